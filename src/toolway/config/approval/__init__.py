"""Trust in config files: which programs and data an entry uses, and what you have trusted.

accesses.py      what an entry runs, reads and sends
trust_store.py   trusted project files and approved entries, by content
held_entries.py  entries of the user's own files that need review
"""
