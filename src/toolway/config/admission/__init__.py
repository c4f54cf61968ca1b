"""Admission rules: which server entries from untrusted authors are accepted.

The rules list what is allowed; everything else is rejected. `entry.py` has the rules for an entry as a whole,
`command_line.py` those for the program and its arguments, `variables.py` those for the environment.
"""
