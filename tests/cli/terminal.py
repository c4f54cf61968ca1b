"""A command in a real pseudo-terminal, in which a user types."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

TIMEOUT_S = 120.0  # generous: the machine may be busy
_COLORS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """`toolway` with these words in its own terminal. stdout is a pipe with `pipe_stdout`."""

    def __init__(self, *words: str, env: Mapping[str, str], cwd: Path, columns: int = 100) -> None:
        self._main, other = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "toolway.cli", *words],
            stdin=other,
            stdout=other,
            stderr=other,
            env={**env, "TERM": "xterm", "COLUMNS": str(columns), "LINES": "40"},
            cwd=cwd,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(other)
        self.text = ""
        self._read_to = 0

    def expect(self, text: str) -> None:
        """Read until `text` was shown, after what was expected before."""
        end = time.monotonic() + TIMEOUT_S
        while (found := self.text.find(text, self._read_to)) < 0:
            if time.monotonic() >= end or not self._read(end):
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"{text!r} is not in {self.text[self._read_to :]!r}")
        self._read_to = found + len(text)

    def type(self, line: str) -> None:
        os.write(self._main, f"{line}\n".encode())

    def press(self, key: str) -> None:
        """Press Ctrl and a key."""
        os.write(self._main, bytes([ord(key.upper()) - 64]))

    def close(self) -> int:
        """Read the rest, and return the exit code."""
        end = time.monotonic() + TIMEOUT_S
        while self._read(end):
            pass
        code = self.process.wait(TIMEOUT_S)
        os.close(self._main)
        return code

    def _read(self, end: float) -> bool:
        if not select.select([self._main], [], [], max(0.0, end - time.monotonic()))[0]:
            return False
        try:
            data = os.read(self._main, 65536)
        except OSError:  # Linux reports the end of the other side as an error
            return False
        self.text += _COLORS.sub("", data.decode(errors="replace")).replace("\r\n", "\n")
        return bool(data)


def _take_terminal() -> None:
    """Make the terminal the one of this session, so Ctrl-C reaches the process.

    A test run in the background of a script ignores Ctrl-C, and the process would inherit that.
    """
    import fcntl
    import signal
    import termios

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
