"""Command line interface `toolway`: parses arguments, calls the `Hub`, prints the results.

It contains no other logic. Heavy modules are imported inside the commands, so that `--version` and `--help` respond at
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
    from toolway.cli.app import app

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a character the terminal cannot encode must not raise
            if sys.platform == "win32" and not stream.isatty():
                stream.reconfigure(encoding="utf-8")  # a pipe has the code page of the system otherwise
    app()
