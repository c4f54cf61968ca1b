"""Heads of HTTP messages that were read before.

Whoever is at the other end sends the same head again and again; only the length of the body differs. Equal bytes mean
equal things, so a head that was read once, and found good, is not read again: what was made of it is looked up by its
bytes, the digits of the length left out. All else goes to the parser, which costs ten times as much.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

T = TypeVar("T")

MOST: Final = 1024  # heads that are remembered
LONGEST: Final = 4096  # bytes of one
_NAMES: Final = frozenset({b"\nContent-L", b"\ncontent-l"})  # before "ength: "


class Heads(Generic[T]):
    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._known: dict[bytes, T] = {}

    def find(self, data: bytes) -> tuple[T, bytes] | None:
        """What was made of the head of `data`, and the body; None where it is not one whole message with a head that
        is known."""
        place = _length_in(data)
        if place is None:
            return None
        begin, stop, end = place
        known = self._known.get(data[:begin] + data[stop:end])
        return (known, data[end + 4 :]) if known is not None else None

    def learn(self, data: bytes, made: T) -> None:
        """`made` comes of a head whose length stands there once, and says nothing about the end of the connection. It
        is remembered if `data` is that message and nothing else."""
        place = _length_in(data)
        if place is None or place[2] > LONGEST:
            return
        if len(self._known) >= self._most:
            self._known.clear()  # whoever is still there is soon known again
        begin, stop, end = place
        self._known[data[:begin] + data[stop:end]] = made

    def __len__(self) -> int:
        return len(self._known)


def _length_in(data: bytes) -> tuple[int, int, int] | None:
    """Where the digits of the body's length begin and end in a whole message, and where its head ends."""
    end = data.find(b"\r\n\r\n")
    name = data.find(b"ength: ", 0, end) if end > 0 else -1
    if name < 0 or data[name - 10 : name] not in _NAMES:
        return None
    begin = name + 7
    stop = data.find(b"\r", begin, end + 1)
    digits = data[begin:stop]
    if not digits.isdigit() or len(digits) > 7 or len(data) - end - 4 != int(digits):
        return None
    return begin, stop, end
