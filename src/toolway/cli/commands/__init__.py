"""Command functions with their arguments and options.

The work is imported when a command runs: `--help` stays fast.
"""
