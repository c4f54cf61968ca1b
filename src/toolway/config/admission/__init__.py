"""Admission of server entries that a stranger wrote: through `/admin`, in a `server.json`, in a bundle.

What is allowed is listed; everything else is rejected. `entry.py` has the rules for an entry as a whole,
`command_line.py` those for the program and its arguments, `variables.py` those for the environment.
"""
