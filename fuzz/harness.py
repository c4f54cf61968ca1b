"""What all targets share: an input may be refused in the documented way, and must not be slow or large.

    python fuzz/fuzz_framing.py -max_total_time=60 fuzz/corpus/framing

Without atheris the same checks replay the corpus: tests/test_fuzz_corpus.py.
"""

from __future__ import annotations

import importlib
import resource
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

SECONDS: Final = 0.1
BYTES: Final = 64 * 1024 * 1024
TRIES: Final = 3  # another process may take the cores; the best of these counts

Check = Callable[[bytes], None]


class TooSlow(Exception):
    """An input took longer than any input may take."""


class TooLarge(Exception):
    """An input took more memory than any input may take."""


def guarded(check: Check) -> Check:
    """`check` within the limits of time and memory."""

    def run(data: bytes) -> None:
        before = _peak()
        seconds = _timed(check, data)
        for _ in range(TRIES - 1):
            if seconds <= SECONDS:
                break
            seconds = min(seconds, _timed(check, data))
        if seconds > SECONDS:
            raise TooSlow(f"{len(data)} bytes took {seconds:.3f} s")
        if _peak() - before > BYTES:
            raise TooLarge(f"{len(data)} bytes took {(_peak() - before) >> 20} MiB")

    return run


def _timed(check: Check, data: bytes) -> float:
    began = time.thread_time()
    check(data)
    return time.thread_time() - began


def _peak() -> int:
    """Bytes of memory at the worst moment so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def instrumented(fuzzing: bool) -> AbstractContextManager[object]:
    """For the imports of what is fuzzed: atheris watches which way an input takes through them."""
    if not fuzzing:
        return nullcontext()
    watched: AbstractContextManager[object] = _atheris().instrument_imports(include=["toolway"])
    return watched


def fuzz(check: Check, longest: int = 4096) -> None:
    """Inputs of at most `longest` bytes, unless `-max_len` says otherwise: short ones are tried more often."""
    atheris = _atheris()
    given = any(argument.startswith("-max_len=") for argument in sys.argv)
    atheris.Setup([*sys.argv, *([] if given else [f"-max_len={longest}"])], guarded(check))
    atheris.Fuzz()


def _atheris() -> Any:
    try:
        return importlib.import_module("atheris")
    except ImportError:
        version = ".".join(map(str, sys.version_info[:2]))
        fix = "pip install --require-hashes -r requirements/fuzz.txt"
        sys.exit(f"atheris is not installed for Python {version}: {fix}")


class Bytes:
    """A few choices out of an input, and the rest of it as it is."""

    def __init__(self, data: bytes) -> None:
        self.rest = data

    def number(self, most: int) -> int:
        """From 0 to `most`; 0 where the input is used up."""
        head, self.rest = self.rest[:1], self.rest[1:]
        return head[0] % (most + 1) if head else 0

    def chunks(self, size: int) -> list[bytes]:
        """The rest in pieces of 1 to `size` bytes, cut by what it holds."""
        pieces, at = [], 0
        while at < len(self.rest):
            step = 1 + self.rest[at] % size
            pieces.append(self.rest[at : at + step])
            at += step
        return pieces
