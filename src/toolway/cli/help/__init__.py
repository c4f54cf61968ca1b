"""Help of the command line: the pages that list commands, the text of `--help`, and names that commands had before."""
