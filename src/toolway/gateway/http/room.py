"""Room for bodies that are being read or answered: bounded for all together, and for each guest by a share of it."""

from __future__ import annotations

from typing import Final

SHARE: Final = 4  # one guest takes at most this part of what there is for all


class Room:
    """A guest is whoever the greeting recognised; without a name, only the bound for all counts."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0
        self._by_guest: dict[str, int] = {}

    def __len__(self) -> int:
        return self._taken

    def has(self, size: int, guest: str = "") -> bool:
        if guest and self._by_guest.get(guest, 0) + size > self._most // SHARE:
            return False
        return self._taken + size <= self._most

    def take(self, size: int, guest: str) -> bool:
        if self._taken + size > self._most:
            return False
        if guest:
            taken = self._by_guest.get(guest, 0) + size
            if taken > self._most // SHARE:
                return False
            self._by_guest[guest] = taken
        self._taken += size
        return True

    def give_back(self, size: int, guest: str) -> None:
        self._taken -= size
        if guest and size:
            left = self._by_guest[guest] - size
            if left:
                self._by_guest[guest] = left
            else:
                del self._by_guest[guest]
