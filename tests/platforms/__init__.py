"""Checks of what a user does with Toolway, run on one system after the other: `python -m tests.platforms`.

`checks.py` has the table of checks, `home.py` the user's machine, one file per idea the checks. A full run writes its
result to `linux.json`, `macos.json` or `windows.json`, from which `page.py` makes the tables of
docs/reference/platforms.md.
"""
