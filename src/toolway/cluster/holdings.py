"""What a node holds, and whoever acts on it. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol

from toolway.cluster.record.places import Held, Place

Moved = Callable[[Sequence[Held], Sequence[Held]], None]


class Owner(Protocol):
    """Who acts on places: starts a server, and stops it."""

    def begin(self, held: Held) -> None: ...

    async def finish(self, held: Held) -> None:
        """Take no more calls, and return when those under way have ended, in bounded time."""
        ...

    def end(self, held: Held) -> None:
        """It is no longer ours: nothing more is sent, from now on. Also after `finish`."""
        ...


class Holdings:
    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._held: dict[Place, Held] = {}
        self.on_moved: Moved = lambda took, lost: None
        self.load = 0  # what all of it costs
        self.given: list[Held] = []  # no longer ours, and the record may not know it

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Held]:
        return iter(self._held.values())

    def get(self, place: Place) -> Held | None:
        return self._held.get(place)

    def begin(self, taken: Sequence[Held]) -> None:
        """The record says that these are ours."""
        for held in taken:
            self._held[held.place] = held
            self.load += held.cost
            self._owner.begin(held)
        if taken:
            self.on_moved(taken, ())

    def agree(self, said: Collection[Held], given: Collection[Held]) -> None:
        """Make what we hold what the record says. What was on its way back when it was asked, or since, is not ours
        again: the answer may be older."""
        ours = {held.place: held for held in said}
        self.lose([held for held in self if ours.get(held.place) != held])
        self.begin([held for held in said if held.place not in self._held and held not in given])
        self.note(said)

    def note(self, said: Collection[Held]) -> None:
        """These are ours still; some may be recalled, or cost something else."""
        for held in said:
            before = self._held.get(held.place)
            if before == held:
                self._held[held.place] = held
                self.load += held.cost - before.cost

    def give(self, held: Held) -> bool:
        """Nobody uses it any more: it ends here, and then the record is told. Whether it was ours."""
        if self._held.get(held.place) != held:
            return False
        self._drop(held)
        self.given.append(held)
        return True

    def told(self, count: int) -> None:
        """The record knows of the first of those that were given."""
        gone = self.given[:count]
        del self.given[:count]
        self.on_moved((), gone)

    def lose(self, lost: Sequence[Held]) -> None:
        """Not ours any more, and there is nobody to be told."""
        for held in lost:
            self._drop(held)
        if lost:
            self.on_moved((), lost)

    def lose_all(self) -> None:
        given, self.given = self.given, []
        self.lose(tuple(self))
        if given:
            self.on_moved((), given)  # nobody is going to tell the record of each

    def _drop(self, held: Held) -> None:
        del self._held[held.place]
        self.load -= held.cost
        self._owner.end(held)
