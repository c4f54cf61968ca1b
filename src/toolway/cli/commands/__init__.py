"""The commands as they are written: their arguments and options. Each hands over to a module that does the work, and
imports it only then, so that `--help` is quick."""
