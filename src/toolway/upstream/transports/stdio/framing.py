"""Lines out of a byte stream, in linear time and bounded memory.

A line over the limit is reported once, by its first bytes, and skipped to its newline.
"""

from __future__ import annotations

from dataclasses import dataclass

HEAD = 4096  # of an oversized line: enough to read an id


@dataclass(frozen=True, slots=True)
class Oversized:
    """A line that grew over the limit; `head` is how it began."""

    head: bytes


class Framer:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = bytearray()  # the unfinished line, in one piece: a thousand small ones would each cost an object
        self.skipped = 0  # bytes of the oversized line under way; 0 when there is none

    @property
    def begun(self) -> bool:
        """Whether a line has begun and not ended."""
        return bool(self._held)

    @property
    def partial(self) -> bytes:
        """How the unfinished line begins; empty when there is none."""
        return bytes(self._held[:HEAD])

    def feed(self, chunk: bytes) -> list[bytes | Oversized]:
        """The lines that `chunk` completes, without their newlines."""
        *lines, rest = chunk.split(b"\n")
        out: list[bytes | Oversized] = []
        for line in lines:
            done = self._finish(line)
            if done is not None:
                out.append(done)
        if rest:
            over = self._hold(rest)
            if over is not None:
                out.append(over)
        return out

    def _finish(self, tail: bytes) -> bytes | Oversized | None:
        if self.skipped:
            self.skipped = 0
            return None
        line = tail
        if self._held:
            self._held += tail
            line = bytes(self._held)
            self._held = bytearray()
        return Oversized(line[:HEAD]) if len(line) > self._limit else line

    def _hold(self, rest: bytes) -> Oversized | None:
        if self.skipped:
            self.skipped += len(rest)
            return None
        self._held += rest
        if len(self._held) <= self._limit:
            return None
        over = Oversized(self.partial)
        self.skipped, self._held = len(self._held), bytearray()
        return over
