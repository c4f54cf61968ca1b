"""Admission rules: which server entries from untrusted authors are accepted.

The rules list what is allowed, and everything else is rejected. `entry.py` has the rules for an entry as a whole,
`command_line.py` the rules for the program and its arguments, and `variables.py` the rules for the environment.
"""
