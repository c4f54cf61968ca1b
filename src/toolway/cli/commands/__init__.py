"""Functions of all commands, with arguments and options.

The modules that do the work are imported when a command runs, so `--help` stays fast.
"""
