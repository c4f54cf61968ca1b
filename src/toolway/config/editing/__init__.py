"""Changing files that belong to others: nothing but what was meant, shown first, kept before, all or nothing.

`documents.py` knows the three kinds of file and changes their text where a value stands (`json_text.py`,
`toml_text.py`, `yaml_text.py`). `edit.py` is a change that can be shown, `write.py` makes it, `backups.py` keeps what
was before.
"""
