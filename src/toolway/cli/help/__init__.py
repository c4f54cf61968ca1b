"""Command line help: command pages, `--help` text, and former command names."""
