"""One node of the cluster: it keeps its lease, takes the places that it should own, and hands back what it should not.

Three loops, each with one thing to wait for. `holds` is what everybody else asks, at every call and without waiting.

Rule 1. A place is ours from the moment the record says so until the lease is given up (`tenure.py`), by our own clock.
Rule 2. The first node of a slot takes its places at once, the next ones later (`placement.py`), so that two rarely ask
        for the same; the record decides.
Rule 3. What another node should own is handed over slowly, a few places at a time, and only while that node is well.
Rule 4. A node that drains takes nothing and hands back everything.
Rule 5. The record is right: what it says is ours and we do not know of (an answer was lost) we begin with, and what we
        think is ours and it does not say we end.

A question to the record is never cancelled, only no longer waited for: one that is broken off in the middle costs a
connection. The database and the network end it in bounded time (`record/engine.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final, Protocol, TypeVar

from toolway.cluster.placement import Node, Ring, patience
from toolway.cluster.record.nodes import Card, Nodes, Seen
from toolway.cluster.record.places import Held, Place, Places
from toolway.cluster.tenure import TERMS, Tenure, Terms

LOOK: Final = 1.0  # seconds between two looks at the record; news from others bring the next one forward
RETRY: Final = 0.5  # seconds after a record that did not answer
AT_ONCE: Final = 100  # places that are looked at, and taken, in one go
HAND_OVER: Final = 5  # places that are handed to others between two looks

PATIENCE: Final = 5.0  # seconds at the end for questions that nobody waits for

T = TypeVar("T")
log = logging.getLogger("toolway.cluster")


class Owner(Protocol):
    """Who acts on places: starts a server, and stops it."""

    def begin(self, held: Held) -> None: ...

    async def finish(self, held: Held) -> None:
        """Take no more calls, and return when those under way have ended, in bounded time."""
        ...

    def end(self, held: Held) -> None:
        """It is no longer ours: nothing more is sent, from now on. Also after `finish`."""
        ...


class Member:
    """`now` goes on while the machine sleeps."""

    def __init__(
        self, card: Card, nodes: Nodes, places: Places, owner: Owner, now: Callable[[], float], terms: Terms = TERMS
    ) -> None:
        self.card = card
        self._nodes = nodes
        self._places = places
        self._owner = owner
        self._now = now
        self._terms = terms
        self._tenure = Tenure(terms)
        self._ring = Ring()
        self._held: dict[Place, Held] = {}
        self._leaving: dict[Place, asyncio.Task[None]] = {}  # places that are being handed over
        self._draining = False
        self._news = asyncio.Event()
        self._alive: dict[str, Seen] = {}
        self._asked: set[asyncio.Future[Any]] = set()

    # -- what others ask ----------------------------------------------------------------------------------------------

    def holds(self, place: Place) -> int | None:
        """The fence under which we own a place at this moment."""
        held = self._held.get(place)
        return held.fence if held is not None and self._tenure.epoch(self._now()) is not None else None

    @property
    def held(self) -> Sequence[Held]:
        return tuple(self._held.values()) if self._tenure.epoch(self._now()) is not None else ()

    def node(self, id: str) -> Seen | None:
        """A node that had a lease when we last looked."""
        return self._alive.get(id)

    def look_soon(self) -> None:
        """Somebody told us that something has changed."""
        self._news.set()

    def drain(self) -> None:
        self._draining = True
        self._news.set()

    # -- the loops ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until it is cancelled; then nothing is ours any more, and the record is told if it can be reached."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_lease())
                tasks.create_task(self._keep_places())
        finally:
            epoch = self._tenure.epoch(self._now())
            for task in tuple(self._leaving.values()):
                task.cancel()
            self._lose_all()
            if epoch is not None:
                with suppress(Exception):
                    await self._ask(self._nodes.leave(self.card.id, epoch))
            if self._asked:
                await asyncio.wait(self._asked, timeout=PATIENCE)

    async def _keep_lease(self) -> None:
        while True:
            asked_at = self._now()
            epoch = self._tenure.epoch(asked_at)
            try:
                await self._renew(epoch, asked_at)
                wait = self._terms.renew if self._tenure.epoch(self._now()) is not None else 0.0
            except Exception as exc:
                why, left = type(exc).__name__, max(0.0, self._left())
                log.warning("the record does not answer (%s): the lease ends in %.1f s", why, left)
                wait = min(RETRY, self._terms.renew)
            if not await self._sleep_while_held(wait):
                self._lose_all()

    async def _renew(self, epoch: int | None, asked_at: float) -> None:
        if epoch is None:
            self._lose_all()
            self._tenure.began(await self._ask(self._nodes.join(self.card)), asked_at)
            self._news.set()
        elif await self._ask(self._nodes.renew(self.card.id, epoch)):
            self._tenure.renewed(asked_at, self._now())
        else:
            self._tenure.refused()

    async def _sleep_while_held(self, seconds: float) -> bool:
        """Whether we have a lease; woken when it ends, so that what we own is let go in time."""
        await asyncio.sleep(max(0.0, min(seconds, self._left()) if self._left() > 0 else seconds))
        return self._tenure.epoch(self._now()) is not None

    def _left(self) -> float:
        return self._tenure.ends_at() - self._now()

    async def _keep_places(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), LOOK)
            self._news.clear()
            epoch = self._tenure.epoch(self._now())
            if epoch is None:
                continue
            try:
                await self._look(epoch)
            except Exception as exc:
                log.warning("the record cannot be looked at: %s", type(exc).__name__)
                await asyncio.sleep(RETRY)

    # -- one look -----------------------------------------------------------------------------------------------------

    async def _look(self, epoch: int) -> None:
        self._see(await self._ask(self._nodes.alive()))
        if not self._draining:
            await self._take_free(epoch)
        self._agree(epoch, await self._ask(self._places.owned_by(self.card.id, epoch)))
        self._hand_back(self._held.values() if self._draining else self._misplaced())

    def _see(self, alive: Sequence[Seen]) -> None:
        self._alive = {seen.card.id: seen for seen in alive}
        own = self._alive.get(self.card.id)
        self._draining = self._draining or (own is not None and own.draining)
        able = {seen.card.id: seen for seen in alive if not seen.draining}
        for gone in self._ring.ids - able.keys():
            self._ring.leave(gone)
        for id, seen in able.items():
            self._ring.join(Node(id, seen.card.capacity))

    async def _take_free(self, epoch: int) -> None:
        ranks = dict(self._ring.slots(self.card.id))
        room = self.card.capacity - len(self._held)
        for free in await self._ask(self._places.free(ranks, AT_ONCE)) if room > 0 else ():
            if room > 0 and free.since >= patience(ranks[free.place.slot]):
                taken = await self._ask(self._places.take(free.place, self.card.id, epoch))
                room -= taken is not None

    def _agree(self, epoch: int, said: Sequence[Held]) -> None:
        """Make what we hold what the record says."""
        if self._tenure.epoch(self._now()) != epoch:
            return  # it spoke of a tenure that is over
        ours = {held.place: held for held in said}
        for held in [held for held in self._held.values() if ours.get(held.place) != held]:
            del self._held[held.place]
            self._owner.end(held)
        for held in said:
            if held.place not in self._held:
                self._held[held.place] = held
                self._owner.begin(held)

    def _misplaced(self) -> tuple[Held, ...]:
        """A few of those that another node should own."""
        ours = self.card.id
        wrong = (held for held in self._held.values() if self._ring.ranked(held.place.slot)[:1] not in ((), (ours,)))
        return tuple(islice(wrong, HAND_OVER))

    def _hand_back(self, some: Iterable[Held]) -> None:
        for held in some:
            if held.place not in self._leaving:
                task = self._leaving[held.place] = asyncio.create_task(self._finish(held))
                task.add_done_callback(partial(self._left_behind, held.place))

    def _left_behind(self, place: Place, done: asyncio.Task[None]) -> None:
        self._leaving.pop(place, None)

    async def _finish(self, held: Held) -> None:
        await self._owner.finish(held)
        if self._held.get(held.place) == held:
            del self._held[held.place]
            self._owner.end(held)
            with suppress(Exception):  # then the next look finds it, and it is handed back again
                await self._ask(self._places.give_up(held.place, self.card.id, held.fence))

    def _lose_all(self) -> None:
        held, self._held = self._held, {}
        for each in held.values():
            self._owner.end(each)

    async def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        """The answer. Raises what the record raises, and `TimeoutError`; then the question goes on without us."""
        asked = asyncio.ensure_future(question)
        self._asked.add(asked)
        asked.add_done_callback(self._asked.discard)
        asked.add_done_callback(lambda done: done.cancelled() or done.exception())
        async with asyncio.timeout(self._terms.give_up - self._terms.renew):
            return await asyncio.shield(asked)
