"""What happened lately, for a person who looks: numbered, bounded, and to be followed from any number on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final, Generic, TypeVar

MOST: Final = 2000  # kept
AT_ONCE: Final = 200  # told to one follower at a time; who is further behind hears the newest

T = TypeVar("T")


class Recent(Generic[T]):
    """The last happenings, oldest first. Each gets the next number."""

    def __init__(self, most: int = MOST) -> None:
        self._kept: deque[tuple[int, T]] = deque(maxlen=most)
        self.last = 0  # the number of the newest

    def add(self, fact: T) -> None:
        self.last += 1
        self._kept.append((self.last, fact))

    def after(self, number: int, most: int = AT_ONCE) -> list[tuple[int, T]]:
        """What came after a number, oldest first; the newest where there is too much."""
        found = [each for each in islice(reversed(self._kept), most) if each[0] > number]
        return found[::-1]

    def newest_first(self) -> Iterator[tuple[int, T]]:
        return reversed(self._kept)
