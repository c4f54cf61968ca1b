"""Server instances that this node owns, and releasing those that it should not own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, Protocol

from toolway.cluster.db.instances import InstanceStore, Ownership, ServerInstance
from toolway.cluster.db.nodes import NodeStore
from toolway.cluster.lease import DATABASE_RETRY_DELAY_S
from toolway.cluster.placement import PlacementPlan
from toolway.cluster.queries import LogThrottle, QueryRunner

HANDOVER_BATCH: Final = 5  # instances handed to other nodes at a time; if we own many, one in HANDOVER_DIVISOR
HANDOVER_DIVISOR: Final = 200
MAX_DRAINING: Final = 500  # instances that drain at a time when all must be released
RELEASE_BATCH: Final = 500  # releases written to the database in one batch

OnOwnershipChanged = Callable[[Sequence[Ownership], Sequence[Ownership]], None]
_NOT_SKIPPED: Final[tuple[float, frozenset[str]]] = (0.0, frozenset())


class OwnershipHandler(Protocol):
    """Starts and stops servers when this node gains or loses them."""

    def on_acquired(self, ownership: Ownership) -> None:
        """Start the server of an instance that this node owns from now on."""
        ...

    async def drain(self, ownership: Ownership) -> None:
        """Accept no more calls for the instance; return when its calls in flight have ended.

        After a time limit the method returns anyway.
        """
        ...

    def on_lost(self, ownership: Ownership) -> None:
        """Stop sending to the server at once, because this node no longer owns the instance.

        Also called after `drain`.
        """
        ...


class OwnedInstances:
    """In-memory set of the server instances that this node owns. No I/O.

    Every change is passed to the `OwnershipHandler`.
    """

    def __init__(self, handler: OwnershipHandler) -> None:
        self._handler = handler
        self._by_instance: dict[ServerInstance, Ownership] = {}
        self.on_changed: OnOwnershipChanged = lambda acquired, lost: None
        self.load = 0  # sum of the costs
        self.pending_releases: list[Ownership] = []  # stopped here, release not yet confirmed by the database

    def __len__(self) -> int:
        return len(self._by_instance)

    def __iter__(self) -> Iterator[Ownership]:
        return iter(self._by_instance.values())

    def get(self, instance: ServerInstance) -> Ownership | None:
        return self._by_instance.get(instance)

    def add(self, acquired: Sequence[Ownership]) -> None:
        """Add instances that the database assigned to this node, and start their servers."""
        for ownership in acquired:
            self._by_instance[ownership.instance] = ownership
            self.load += ownership.cost
            self._handler.on_acquired(ownership)
        if acquired:
            self.on_changed(acquired, ())

    def resync(self, stored: Collection[Ownership], released: Collection[Ownership]) -> None:
        """Make the owned instances match those stored in the database.

        `released` are instances whose release was not yet stored when the query was sent, or began since. They do not
        become ours again: the query result may be older than the release.
        """
        by_instance = {ownership.instance: ownership for ownership in stored}
        self.lose([ownership for ownership in self if by_instance.get(ownership.instance) != ownership])
        self.add(
            [
                ownership
                for ownership in stored
                if ownership.instance not in self._by_instance and ownership not in released
            ]
        )
        self.update(stored)

    def update(self, stored: Collection[Ownership]) -> None:
        """Update owned instances' attributes: they may be recalled, or have a new cost.

        Instances that this node does not own are ignored.
        """
        for ownership in stored:
            previous = self._by_instance.get(ownership.instance)
            if previous == ownership:
                self._by_instance[ownership.instance] = ownership
                self.load += ownership.cost - previous.cost

    def release(self, ownership: Ownership) -> bool:
        """Stop a drained instance and queue its release in the database.

        Return False if this node does not own it under this fence.
        """
        if self._by_instance.get(ownership.instance) != ownership:
            return False
        self._remove(ownership)
        self.pending_releases.append(ownership)
        return True

    def confirm_released(self, count: int) -> None:
        """Remove the first `count` pending releases: the database has stored them."""
        released = self.pending_releases[:count]
        del self.pending_releases[:count]
        self.on_changed((), released)

    def lose(self, lost: Sequence[Ownership]) -> None:
        """Stop instances that this node no longer owns.

        The database is not updated: it knows already.
        """
        for ownership in lost:
            self._remove(ownership)
        if lost:
            self.on_changed((), lost)

    def lose_all(self) -> None:
        """Stop all owned instances and forget pending releases, because the lease has ended."""
        released, self.pending_releases = self.pending_releases, []
        self.lose(tuple(self))
        if released:
            self.on_changed((), released)  # they are never released one by one: the lease is over

    def _remove(self, ownership: Ownership) -> None:
        del self._by_instance[ownership.instance]
        self.load -= ownership.cost
        self._handler.on_lost(ownership)


class Rebalancer:
    """Releases server instances that this node should not own: recalled or misplaced ones.

    Rule 1. Instances that another node should own are handed over slowly, a few at a time, and only while that node is
            alive and has room.
    Rule 2. A draining node releases everything.
    Rule 3. An instance first finishes its calls, then its server stops here, then the release is written to the
            database, with retries until it succeeds: until then the database considers the instance ours.

    `ttl` is the duration of a lease. `now` is a clock that keeps running while the machine sleeps.
    """

    def __init__(
        self,
        id: str,
        tenant: str,
        nodes: NodeStore,
        instances: InstanceStore,
        plan: PlacementPlan,
        owned: OwnedInstances,
        handler: OwnershipHandler,
        run_query: QueryRunner,
        now: Callable[[], float],
        ttl: float,
    ) -> None:
        self._id = id
        self._tenant = tenant
        self._nodes = nodes
        self._instances = instances
        self._plan = plan
        self._owned = owned
        self._handler = handler
        self._run_query = run_query
        self._now = now
        self._ttl = ttl
        self._drain_tasks: dict[ServerInstance, asyncio.Task[None]] = {}  # instances that drain before their release
        #: When this node claimed an instance, and the nodes ranked before it.
        self._skipped_nodes: dict[ServerInstance, tuple[float, frozenset[str]]] = {}
        self._settled_version = -1  # plan version for which no owned instance is misplaced
        self._release_queued = asyncio.Event()
        self._release_log = LogThrottle("cluster database unavailable, releases delayed")

    def on_claimed(self, claimed: Sequence[Ownership]) -> None:
        """Remember which better-ranked nodes did not claim these instances before us: they may be dead.

        Until a lease duration has passed, the instances are not handed over to them (`_expire_skipped`).
        """
        for ownership in claimed:
            self.mark_unsettled()
            if skipped := self._plan.ranked_before(ownership.pool, ownership.instance.slot, ownership.instance.index):
                self._skipped_nodes[ownership.instance] = self._now(), skipped

    def mark_unsettled(self) -> None:
        """Make the next `reconcile` check all owned instances again, because they have changed."""
        self._settled_version = -1

    async def reconcile(self, draining: bool) -> None:
        """Start draining the owned instances that this node should release: all of them if `draining`."""
        if draining:
            self._start_draining(self._owned, MAX_DRAINING)
        elif self._settled_version != self._plan.version:
            version = self._plan.version
            recalled = [ownership for ownership in self._owned if ownership.recalled]
            misplaced = await self._select_misplaced()
            self._start_draining(recalled, MAX_DRAINING)
            self._start_draining(misplaced, max(HANDOVER_BATCH, len(self._owned) // HANDOVER_DIVISOR))
            self._settled_version = version if not misplaced and not self._skipped_nodes else -1

    async def run_releases(self) -> None:
        """Write pending releases to the database in batches until cancelled."""
        while True:
            await self._release_queued.wait()
            self._release_queued.clear()
            while batch := self._owned.pending_releases[:RELEASE_BATCH]:
                try:
                    await self._run_query(self._instances.release_many(batch))
                    self._owned.confirm_released(len(batch))
                    self._release_log.log_recovery()
                except Exception as exc:
                    self._release_log.log_failure(exc)
                    await asyncio.sleep(DATABASE_RETRY_DELAY_S)

    def cancel(self) -> None:
        for task in tuple(self._drain_tasks.values()):
            task.cancel()

    # -- selection ----------------------------------------------------------------------------------------------------

    async def _select_misplaced(self) -> list[Ownership]:
        """Return owned instances that another live node should own and has room for."""
        preferred = [
            (self._plan.preferred_node(ownership.pool, ownership.instance.slot, ownership.instance.index), ownership)
            for ownership in self._owned
            if ownership.instance not in self._drain_tasks
        ]
        self._expire_skipped()
        misplaced = [
            (node, ownership)
            for node, ownership in preferred
            if node not in (None, self._id) and node not in self._skipped_nodes.get(ownership.instance, _NOT_SKIPPED)[1]
        ]
        if not misplaced:
            return []
        room = {
            status.info.id: status.free_capacity
            for status in await self._run_query(self._nodes.list_alive(self._tenant))
            if not status.draining
        }
        selected = []
        for node, ownership in misplaced:
            if node in room and room[node] >= ownership.cost:
                room[node] -= ownership.cost
                selected.append(ownership)
        return selected

    def _expire_skipped(self) -> None:
        """Forget nodes that did not claim an instance before this node, if that was more than a lease duration ago.

        A node that did not claim an instance in time may have died, which is certain only when its lease has ended.
        Until then no instance is handed over to it: the instance would have no owner.
        """
        until = self._now() - self._ttl
        self._skipped_nodes = {instance: each for instance, each in self._skipped_nodes.items() if each[0] > until}

    # -- release ------------------------------------------------------------------------------------------------------

    def _start_draining(self, ownerships: Iterable[Ownership], max_tasks: int) -> None:
        for ownership in tuple(ownerships):
            if len(self._drain_tasks) >= max_tasks:
                return
            if ownership.instance not in self._drain_tasks:
                self._drain_tasks[ownership.instance] = asyncio.create_task(self._drain_and_release(ownership))

    async def _drain_and_release(self, ownership: Ownership) -> None:
        try:
            await self._handler.drain(ownership)
            if self._owned.release(ownership):
                self._release_queued.set()
        finally:
            self._drain_tasks.pop(ownership.instance, None)
