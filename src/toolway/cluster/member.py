"""One node of the cluster: it keeps its lease, takes the places that it should own, and hands back what it should not.

Three loops, each with one thing to wait for. `holds` is what everybody else asks, at every call and without waiting.

Rule 1. A place is ours from the moment the record says so until the lease is given up (`tenure.py`), by our own clock.
Rule 2. The first node of a slot takes its places at once, the next ones later (`placement.py`), so that two rarely ask
        for the same; the record decides. What nobody of these has room for is taken by whoever has.
Rule 3. What another node should own is handed over to it (`handing.py`). A node that drains takes nothing and hands
        back everything.
Rule 4. The record is right: after an answer that was lost, and now and then, we make what we hold what it says. What
        is on its way back is not ours again.
Rule 5. Where nothing has changed, a look is one question (`record/glance.py`), and costs the same for one server and
        for a thousand, among three nodes and among hundreds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Final

from toolway.cluster.asking import Asking
from toolway.cluster.handing import Handing
from toolway.cluster.holdings import Holdings, Moved, Owner
from toolway.cluster.lease import RETRY, Lease
from toolway.cluster.placement import HURRY, STEP, Node, patience
from toolway.cluster.plan import Plan
from toolway.cluster.record.glance import Glance, Glimpse
from toolway.cluster.record.nodes import Card, Nodes, Seen
from toolway.cluster.record.places import Free, Held, Place, Places
from toolway.cluster.tenure import TERMS, Terms
from toolway.cluster.trouble import Trouble

SETTLE: Final = 2.0  # seconds after our start in which nothing is taken: nodes that start together should share
LOOK: Final = 1.0  # seconds between two looks at the record; news from others bring the next one forward
MOMENT: Final = 0.02  # seconds after the end of a lease at which it is looked at
THOROUGH: Final = 30.0  # seconds between two looks at everything that we own
DOUBT: Final = 10.0  # seconds for which every look is a thorough one, after an answer that was lost
AT_ONCE: Final = 500  # places that are looked at, and taken, in one go
STRAYS: Final = 5  # places that are taken in one go though others come before us, who have no room
STRAYS_EVERY: Final = 4.0  # seconds

__all__ = ["Member", "Moved", "Owner"]


class Member:
    """`now` goes on while the machine sleeps."""

    def __init__(
        self, card: Card, nodes: Nodes, places: Places, owner: Owner, now: Callable[[], float], terms: Terms = TERMS
    ) -> None:
        self.card = card
        self._nodes = nodes
        self._places = places
        self._glance = Glance(places.engine)
        self._owner = owner
        self._now = now
        self._ask = Asking(terms.give_up - terms.renew)
        self._plan = Plan(_node(card))
        self._held = Holdings(owner)
        self._lease = Lease(
            card,
            nodes,
            self._ask,
            now,
            terms,
            began=self._on_lease,
            ended=self._held.lose_all,
            load=lambda: self._held.load,
        )
        self._handing = Handing(
            card.id, card.tenant, nodes, places, self._plan, self._held, owner, self._ask, now, terms.ttl
        )
        self._trouble = Trouble("the record cannot be looked at")
        self._draining = False
        self._news = asyncio.Event()
        self._alive: dict[str, Seen] = {}
        self._known = -1  # the revision of the nodes and pools that the plan was made from
        self._thorough_at = 0.0  # when everything that we own is looked at again
        self._doubtful_until = 0.0
        self._strays_at = 0.0
        self._look_in = LOOK  # seconds from now
        self._takes_at: float | None = None  # when we begin to take places

    # -- what others ask ----------------------------------------------------------------------------------------------

    def holds(self, place: Place) -> int | None:
        """The fence under which we own a place at this moment."""
        held = self._held.get(place)
        return held.fence if held is not None and self._lease.epoch is not None else None

    @property
    def epoch(self) -> int | None:
        """The number of our tenure, while we have a lease."""
        return self._lease.epoch

    @property
    def held(self) -> Sequence[Held]:
        return tuple(self._held) if self._lease.epoch is not None else ()

    @property
    def on_moved(self) -> Moved:
        """Told what is ours now, and what others may take; must not wait."""
        return self._held.on_moved

    @on_moved.setter
    def on_moved(self, told: Moved) -> None:
        self._held.on_moved = told

    @property
    def nodes(self) -> Sequence[Seen]:
        """Those that had a lease when we last looked."""
        return tuple(self._alive.values())

    def node(self, id: str) -> Seen | None:
        return self._alive.get(id)

    def look_soon(self) -> None:
        """Somebody told us that something has changed."""
        self._news.set()

    @property
    def draining(self) -> bool:
        """Whether we were told to take nothing more, here or at another node."""
        return self._draining

    def drain(self) -> None:
        self._draining = True
        self._news.set()

    # -- the loops ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until it is cancelled; then nothing is ours any more, and the record is told if it can be reached."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._lease.keep())
                tasks.create_task(self._keep_places())
                tasks.create_task(self._handing.keep_telling())
        finally:
            self._handing.cancel()
            self._held.lose_all()
            await self._lease.leave()
            await self._ask.wait_ended()

    async def _keep_places(self) -> None:
        while True:
            # Not `wait_for`: in Python 3.11 it loses a cancellation that comes together with what it waits for.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._look_in):
                    await self._news.wait()
            self._news.clear()
            self._look_in = LOOK
            epoch = self._lease.epoch
            if epoch is None:
                continue
            try:
                await self._look(epoch)
                self._trouble.over()
            except Exception as exc:
                self._trouble.say(exc)
                self._doubt()
                await asyncio.sleep(RETRY)

    # -- one look -----------------------------------------------------------------------------------------------------

    async def _look(self, epoch: int) -> None:
        glimpse = await self._ask(self._glance.look(self.card.id, self.card.tenant, self._plan.pools))
        await self._see(glimpse)
        self._look_in = _next_look(glimpse)
        if not self._draining and self._takes_at is not None and self._now() >= self._takes_at:
            await self._take_free(epoch, glimpse)
        if self._now() >= self._thorough_at:
            await self._agree(epoch)
            if glimpse.dead:
                await self._ask(self._nodes.sweep(self.card.tenant))
        elif glimpse.recalled:
            self._held.note(await self._ask(self._places.owned_by(self.card.id, epoch, recalled=True)))
            self._handing.unsettle()
        await self._handing.look(self._draining)

    async def _see(self, glimpse: Glimpse) -> None:
        """The nodes as they are now."""
        for id in glimpse.dead:
            self._alive.pop(id, None)
        self._plan.lose(glimpse.dead)
        if glimpse.revision == self._known:
            return
        tenant = self.card.tenant
        alive, pools = await self._ask(self._nodes.alive(tenant)), await self._ask(self._nodes.pools(tenant))
        self._alive = {seen.card.id: seen for seen in alive}
        own = self._alive.get(self.card.id)
        self._draining = self._draining or (own is not None and own.draining)
        for _ in self._plan.see([_node(seen.card) for seen in alive if not seen.draining], pools):
            await asyncio.sleep(0)
        self._known = glimpse.revision

    async def _take_free(self, epoch: int, glimpse: Glimpse) -> None:
        for pool in self._plan.pools:
            if glimpse.dead or pool in glimpse.free:
                await self._take_of(epoch, pool, glimpse.dead)
        if glimpse.free and self._now() >= self._strays_at:
            self._strays_at = self._now() + STRAYS_EVERY
            await self._take(epoch, await self._ask(self._places.waiting(self.card.tenant, self._plan.pools, STRAYS)))

    async def _take_of(self, epoch: int, pool: str, dead: Collection[str]) -> None:
        """Those first that we should own, then those whose first nodes did not take them in their turn. They are asked
        for one after the other, so that what others should own does not stand before what we should."""
        tenant, places, plan = self.card.tenant, self._places, self._plan
        found = await self._ask(places.ours(tenant, plan.turns(pool), AT_ONCE, pool=pool, dead=dead))
        taken = await self._take(epoch, found)
        if taken and len(found) == AT_ONCE:
            self._news.set()  # there may be more
            return
        waited = patience(1, HURRY if dead else STEP)
        left = places.free(tenant, plan.slots(pool), AT_ONCE, pool=pool, dead=dead, waited=waited)
        await self._take(epoch, await self._ask(left))

    async def _take(self, epoch: int, found: Sequence[Free]) -> int:
        """How many are ours now."""
        some = self._choose(found)
        taken = await self._ask(self._places.take_all(some, self.card.id, epoch)) if some else ()
        if self._lease.epoch == epoch:
            self._held.begin(taken)
            self._handing.took(taken)
        return len(taken)

    def _choose(self, found: Sequence[Free]) -> list[Place]:
        """Those that it is our turn to take, as far as there is room."""
        chosen, room = [], self.card.capacity - self._held.load
        for free in found:
            rank = self._plan.rank(free.pool, free.place.slot, free.place.instance)
            if free.since >= patience(rank, HURRY if free.orphaned else STEP) and free.cost <= room:
                room -= free.cost
                chosen.append(free.place)
        return chosen

    async def _agree(self, epoch: int) -> None:
        """Make what we hold what the record says, and let it say nothing of leases that are over."""
        await self._ask(self._nodes.disown_past(self.card.id, epoch))
        before = set(self._held.given)
        said = await self._ask(self._places.owned_by(self.card.id, epoch))
        now = self._now()
        self._thorough_at = now if now < self._doubtful_until else now + THOROUGH
        if self._lease.epoch == epoch:  # else it spoke of a tenure that is over
            self._held.agree(said, before.union(self._held.given))
            self._handing.unsettle()

    def _on_lease(self) -> None:
        if self._takes_at is None:
            self._takes_at = self._now() + SETTLE
        self._doubt()
        self._news.set()

    def _doubt(self) -> None:
        """What we believe to be ours may not be what the record says, or will say when a late question has ended."""
        self._thorough_at, self._doubtful_until = 0.0, self._now() + DOUBT


def _next_look(glimpse: Glimpse) -> float:
    """Seconds. What a dead node had is taken soon, since those before us in the line may have died as well; and one
    that does not renew its lease is looked at when that ends."""
    wait = HURRY if glimpse.dead else LOOK
    return wait if glimpse.next_death is None else min(wait, glimpse.next_death + MOMENT)


def _node(card: Card) -> Node:
    return Node(card.id, card.capacity, frozenset(card.labels))
