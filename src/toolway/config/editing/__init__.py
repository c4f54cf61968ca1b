"""Editing of other programs' configuration files: minimal, previewed, backed up, atomic.

`document.py` reads and writes files, with a preview and a backup of each edit. `patch.py` computes the patches from the
old value to the new one. `jsonc.py`, `toml.py` and `yaml.py` apply a patch to the text and leave the rest unchanged.
"""
