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
        self._parts: list[bytes] = []
        self._size = 0
        self.skipped = 0  # bytes of the oversized line under way; 0 when there is none

    @property
    def partial(self) -> bytes:
        """How the unfinished line begins; empty when there is none."""
        return self._parts[0][:HEAD] if self._parts else b""

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
        if self._parts:
            self._parts.append(tail)
            line = b"".join(self._parts)
            self._parts, self._size = [], 0
        else:
            line = tail
        return Oversized(line[:HEAD]) if len(line) > self._limit else line

    def _hold(self, rest: bytes) -> Oversized | None:
        if self.skipped:
            self.skipped += len(rest)
            return None
        self._parts.append(rest)
        self._size += len(rest)
        if self._size <= self._limit:
            return None
        head = b"".join(self._parts)[:HEAD]
        self.skipped, self._parts, self._size = self._size, [], 0
        return Oversized(head)
