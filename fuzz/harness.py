"""What all targets share: an input may be refused in the documented way, and must not be slow or large.

An input as it is has 100 ms. Where a target makes an input larger, only growth is judged: seconds would say more about
the machine than about the code. All times are of this thread alone, and the best of a few tries.

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
TRIES: Final = 5  # another process may take the cores or the caches; the best of these counts

LITTLE: Final = 4 * 1024  # bytes that an input is first made to have, where it is made larger
TIMES: Final = 4  # and then so many times as many: what is linear takes 4 times as long, what is quadratic 16 times
MOST: Final = 8.0  # half-way between the two
QUICK: Final = 0.005  # seconds in which nothing shows
PATIENCE: Final = 1.0  # seconds after which no further try would say anything else

Check = Callable[[bytes], None]
Sized = Callable[[int], object]  # does its work with about so many bytes
Grown = Callable[[bytes], Sized | None]  # an input that can be made larger, or None


class TooSlow(Exception):
    """An input took longer than any input may take."""


class TooLarge(Exception):
    """An input took more memory than any input may take."""


def guarded(check: Check, grown: Grown | None = None) -> Check:
    """`check` within the limits of time and memory, and the same for what `grown` makes of an input."""

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
    """Raises `TooSlow` where the time grows much faster than the size."""
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
    """Bytes of memory at the worst moment so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def instrumented(fuzzing: bool) -> AbstractContextManager[object]:
    """For the imports of what is fuzzed: atheris watches which way an input takes through them."""
    if not fuzzing:
        return nullcontext()
    watched: AbstractContextManager[object] = _atheris().instrument_imports(include=["toolway"])
    return watched


def fuzz(check: Check, longest: int = 4096, grown: Grown | None = None) -> None:
    """Inputs of at most `longest` bytes, unless `-max_len` says otherwise: short ones are tried more often."""
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
