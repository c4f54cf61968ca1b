"""`toolway`, which on Windows treats a line on stdin as Ctrl-Break: a program without a console gets none."""

from __future__ import annotations

import signal
import sys
import threading

from toolway.cli import main


def _wait_for_line() -> None:
    if sys.stdin.readline() and sys.platform == "win32":
        signal.raise_signal(signal.SIGBREAK)


threading.Thread(target=_wait_for_line, daemon=True).start()
main()
