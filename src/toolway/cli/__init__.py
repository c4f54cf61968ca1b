"""Command line interface `toolway`: parses arguments, calls the `Hub`, prints the results.

It contains no other logic. Heavy modules are imported inside the commands, so `--version` and `--help` respond at
once.
"""

from __future__ import annotations

import io
import sys

from toolway._version import __version__


def main() -> None:
    """Run the command line of this process. Entry point of the `toolway` program."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        print(f"toolway {__version__}")
        return
    from toolway._os import set_pipe_encoding
    from toolway.cli.app import app

    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            if stream is not sys.stdin:
                stream.reconfigure(errors="backslashreplace")  # a character the terminal cannot encode must not raise
            set_pipe_encoding(stream)
    app()
