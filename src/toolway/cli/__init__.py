"""The command line: arguments → Hub → text. No logic of its own.

What is heavy is imported inside the commands, so that `--version` and `--help` answer at once.
"""

from __future__ import annotations

import io
import sys

from toolway._version import __version__


def main() -> None:
    if sys.argv[1:] in (["--version"], ["-V"]):
        print(f"toolway {__version__}")
        return
    from toolway.cli.app import app

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a sign must not end the command
    app()
