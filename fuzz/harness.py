"""Limits that all fuzz targets check: an input may be refused in the documented way, and must not be slow or large.

An input has 100 ms of processor time. If a target enlarges an input, only the growth of the time is checked, because
seconds depend on the machine. All times are of this thread, and the best of a few attempts.

    python fuzz/fuzz_framing.py -max_total_time=60 fuzz/corpus/framing

Without atheris the same checks replay the corpus: tests/test_fuzz_corpus.py.
"""

from __future__ import annotations

import importlib
import math
import resource
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

SECONDS: Final = 0.1
BYTES: Final = 64 * 1024 * 1024
TRIES: Final = 5  # the best counts: another process may use the cores and caches

LITTLE: Final = 4 * 1024  # bytes of an enlarged input at first
TIMES: Final = 4  # factor of the second size: linear work takes 4 times as long, quadratic work 16 times
MOST: Final = 8.0  # limit of the ratio, between the two
QUICK: Final = 0.005  # seconds; below it no growth is checked
PATIENCE: Final = 1.0  # seconds; above it, no more attempts

Check = Callable[[bytes], None]
Sized = Callable[[int], object]  # runs a check with about this number of bytes
Grown = Callable[[bytes], Sized | None]  # returns the check of an enlarged input; None if it cannot be enlarged


class TooSlow(Exception):
    """Raised if an input took too much time."""


class TooLarge(Exception):
    """Raised if an input took too much memory."""


def guarded(check: Check, grown: Grown | None = None) -> Check:
    """Return `check` with limits of time and memory, also for the input that `grown` enlarges."""

    def run(data: bytes) -> None:
        before = _peak()
        _check_time(check, data)
        larger = grown(data) if grown is not None else None
        if larger is not None:
            check_growth(larger)
        if _peak() - before > BYTES:
            raise TooLarge(f"{len(data)} bytes took {(_peak() - before) >> 20} MiB")

    return run


def _check_time(check: Check, data: bytes) -> None:
    best = _timed(check, data)
    for _ in range(TRIES - 1):
        if best <= SECONDS:
            return
        best = min(best, _timed(check, data))
    if best > SECONDS:
        raise TooSlow(f"{len(data)} bytes took {best:.3f} s")


def check_growth(run: Sized, little: int = LITTLE) -> None:
    """Raise `TooSlow` if the time grows much faster than the size."""
    much = _timed(run, TIMES * little)
    few = math.inf
    for _ in range(TRIES):
        if much <= QUICK:
            return
        few = min(few, _timed(run, little), _timed(run, little))
        if much <= MOST * few:
            return
        if much > PATIENCE:
            break
        much = min(much, _timed(run, TIMES * little))
    raise TooSlow(f"{little} bytes took {few:.4f} s, {TIMES} times as many {much:.4f} s")


def _timed(run: Callable[[Any], object], given: Any) -> float:
    began = time.thread_time()
    run(given)
    return time.thread_time() - began


def _peak() -> int:
    """Return the peak of the memory of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def instrumented(fuzzing: bool) -> AbstractContextManager[object]:
    """Return a context for the imports of the fuzzed code: atheris then records the path of an input through it."""
    if not fuzzing:
        return nullcontext()
    watched: AbstractContextManager[object] = _atheris().instrument_imports(include=["toolway"])
    return watched


def fuzz(check: Check, longest: int = 4096, grown: Grown | None = None) -> None:
    """Fuzz a check with inputs of at most `longest` bytes, unless `-max_len` is given."""
    atheris = _atheris()
    given = any(argument.startswith("-max_len=") for argument in sys.argv)
    atheris.Setup([*sys.argv, *([] if given else [f"-max_len={longest}"])], guarded(check, grown))
    atheris.Fuzz()


def _atheris() -> Any:
    try:
        return importlib.import_module("atheris")
    except ImportError:
        version = ".".join(map(str, sys.version_info[:2]))
        fix = "pip install --require-hashes -r requirements/fuzz.txt"
        sys.exit(f"atheris is not installed for Python {version}: {fix}")


class Bytes:
    """Reader that takes a few numbers from the beginning of an input, and leaves the rest."""

    def __init__(self, data: bytes) -> None:
        self.rest = data

    def number(self, most: int) -> int:
        """Return a number from 0 to `most`; 0 if the input is used up."""
        head, self.rest = self.rest[:1], self.rest[1:]
        return head[0] % (most + 1) if head else 0

    def chunks(self, size: int) -> list[bytes]:
        """Return the rest in pieces of 1 to `size` bytes; its bytes decide where it is cut."""
        pieces, at = [], 0
        while at < len(self.rest):
            step = 1 + self.rest[at] % size
            pieces.append(self.rest[at : at + step])
            at += step
        return pieces
