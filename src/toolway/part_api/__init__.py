"""Interface between the core and its parts: what a part declares, what it gets, and where it stores data.

A part is a feature in one folder. The core finds it by its name (`registry.py`), and imports its modules when they are
used. Parts of other distributions register with the entry point `toolway.parts`.
"""
