"""Places that this node hands back: those that are wanted back, those that another should own, all when it drains.

Rule 1. What another node should own is handed over slowly, a few places at a time, and only while that node is well
        and has room.
Rule 2. A node that drains hands back everything.
Rule 3. What is handed back finishes its calls first; then it ends here, and then the record is told, until it has heard
        it: what it does not know it takes for ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from toolway.cluster.asking import Asking
from toolway.cluster.holdings import Holdings, Owner
from toolway.cluster.lease import RETRY
from toolway.cluster.plan import Plan
from toolway.cluster.record.nodes import Nodes
from toolway.cluster.record.places import Held, Place, Places
from toolway.cluster.trouble import Trouble

HAND_OVER: Final = 5  # places that are handed to others at a time; of many, one in MANY
MANY: Final = 200
LEAVING: Final = 500  # places that are on their way back at a time, when all must go
TOLD: Final = 500  # places of which the record is told in one go

_NOBODY: Final[tuple[float, frozenset[str]]] = (0.0, frozenset())


class Handing:
    """`ttl` is that of leases, and `now` goes on while the machine sleeps."""

    def __init__(
        self,
        id: str,
        tenant: str,
        nodes: Nodes,
        places: Places,
        plan: Plan,
        held: Holdings,
        owner: Owner,
        ask: Asking,
        now: Callable[[], float],
        ttl: float,
    ) -> None:
        self._id = id
        self._tenant = tenant
        self._nodes = nodes
        self._places = places
        self._plan = plan
        self._held = held
        self._owner = owner
        self._ask = ask
        self._now = now
        self._ttl = ttl
        self._leaving: dict[Place, asyncio.Task[None]] = {}  # places that are being handed over
        self._passed: dict[Place, tuple[float, frozenset[str]]] = {}  # what we took, and who should have and did not
        self._settled = -1  # version of the plan by which everything that we hold is where it should be
        self._to_tell = asyncio.Event()
        self._trouble = Trouble("the record cannot be told what is handed over")

    def took(self, taken: Sequence[Held]) -> None:
        """These are ours now."""
        for held in taken:
            self.unsettle()
            if before := self._plan.before(held.pool, held.place.slot, held.place.instance):
                self._passed[held.place] = self._now(), before

    def unsettle(self) -> None:
        """What we hold is not what it was."""
        self._settled = -1

    async def look(self, draining: bool) -> None:
        if draining:
            self._finish_some(self._held, LEAVING)
        elif self._settled != self._plan.version:
            version = self._plan.version
            recalled, going = [held for held in self._held if held.recalled], await self._going()
            self._finish_some(recalled, LEAVING)
            self._finish_some(going, max(HAND_OVER, len(self._held) // MANY))
            self._settled = version if not going and not self._passed else -1

    async def keep_telling(self) -> None:
        """Many at once."""
        while True:
            await self._to_tell.wait()
            self._to_tell.clear()
            while some := self._held.given[:TOLD]:
                try:
                    await self._ask(self._places.give_up_all(some))
                    self._held.told(len(some))
                    self._trouble.over()
                except Exception as exc:
                    self._trouble.say(exc)
                    await asyncio.sleep(RETRY)

    def cancel(self) -> None:
        for task in tuple(self._leaving.values()):
            task.cancel()

    # -- which --------------------------------------------------------------------------------------------------------

    async def _going(self) -> list[Held]:
        """Those that another node should own, and has room for."""
        first = [
            (self._plan.first(held.pool, held.place.slot, held.place.instance), held)
            for held in self._held
            if held.place not in self._leaving
        ]
        self._forget_passed()
        misplaced = [
            (node, held)
            for node, held in first
            if node not in (None, self._id) and node not in self._passed.get(held.place, _NOBODY)[1]
        ]
        if not misplaced:
            return []
        room = {
            seen.card.id: seen.room for seen in await self._ask(self._nodes.alive(self._tenant)) if not seen.draining
        }
        going = []
        for node, held in misplaced:
            if node in room and room[node] >= held.cost:
                room[node] -= held.cost
                going.append(held)
        return going

    def _forget_passed(self) -> None:
        """Who did not take a place in its turn may have died, which is known when its lease has ended: until then it
        is not handed over to it, where it would have no owner."""
        until = self._now() - self._ttl
        self._passed = {place: each for place, each in self._passed.items() if each[0] > until}

    # -- how ----------------------------------------------------------------------------------------------------------

    def _finish_some(self, some: Iterable[Held], most: int) -> None:
        for held in tuple(some):
            if len(self._leaving) >= most:
                return
            if held.place not in self._leaving:
                self._leaving[held.place] = asyncio.create_task(self._finish(held))

    async def _finish(self, held: Held) -> None:
        try:
            await self._owner.finish(held)
            if self._held.give(held):
                self._to_tell.set()
        finally:
            self._leaving.pop(held.place, None)
