"""Evaluates expressions whose cost depends on data in a child process, with limits for CPU time and memory.

`expression_child.py` is its program. If one evaluation takes too much CPU time, the kernel ends the child, and a new
one is started.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from toolway._os import read_line

CHILD = Path(__file__).with_name("expression_child.py")
CPU_SECONDS = 0.25  # of one evaluation
MAX_MEMORY_BYTES = 512 << 20
START_TIMEOUT_S = 60.0  # wall time: a process that starts on a busy machine isn't an expression that takes too long
REPLY_TIMEOUT_S = 10.0  # wall time, for a process that doesn't get its CPU time
MAX_REPLY_BYTES = 2 << 20


class ExpressionProcess:
    """Child process that evaluates expressions, one at a time. Its methods block the calling thread."""

    def __init__(self, error: Callable[[str, str], Exception]) -> None:
        self._error = error
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def evaluate(self, expression: str, variables: Sequence[str], values: Mapping[str, Any]) -> Any:
        """Return the value of an expression as JSON data, evaluated in the child process."""
        with self._lock:
            reply = self._ask(json.dumps([expression, list(variables), values]).encode() + b"\n")
        if reply is None:
            raise self._error(
                f"the expression {expression!r} takes too much time or memory",
                f"limits: {CPU_SECONDS} s of CPU time, {MAX_MEMORY_BYTES >> 20} MiB",
            )
        if "error" in reply:
            raise self._error(f"the expression {expression!r} has no value", str(reply["error"])[:300])
        return reply["value"]

    def close(self) -> None:
        """End the child process that evaluates expressions."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            self._process = None

    def _ask(self, request: bytes) -> dict[str, Any] | None:
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(CHILD), str(CHILD.parents[2])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env={name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ},  # Windows needs it
            )
            assert self._process.stdout is not None
            read_line(self._process.stdout.fileno(), START_TIMEOUT_S, MAX_REPLY_BYTES)
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(request)
            reply = read_line(process.stdout.fileno(), REPLY_TIMEOUT_S, MAX_REPLY_BYTES)
        except OSError:
            reply = b""
        if not reply.endswith(b"\n"):
            self.close()
            return None
        found: dict[str, Any] = json.loads(reply)
        return found
