"""Edits other programs' configuration files: minimally, with a preview and a backup, and atomically.

`document.py` reads and writes files, with a preview and a backup of each edit. `patch.py` computes the patches that
turn the old value into the new one. `jsonc.py`, `toml.py`, and `yaml.py` apply a patch to the text and leave the rest
unchanged.
"""
