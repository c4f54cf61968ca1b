"""This node's cluster membership: keeps the lease; claims, hands over and drains instances.

Three loops, each with one thing to wait for. Every call checks `fence_of`, which does not wait.

Rule 1. An instance is ours from the moment the database says so until we give up the lease (`lease_clock.py`), by our
        clock.
Rule 2. The first node of a slot claims its instances at once, the next nodes later (`placement.py`), so two nodes
        rarely claim the same one; the database decides. If none of these has room, any node with room claims it.
Rule 3. Instances that another node should own are handed over to it (`ownership.py`). A draining node claims nothing
        and releases everything.
Rule 4. The database is authoritative: after a lost result, and every RESYNC_INTERVAL_S seconds, our owned instances
        are made equal to it. An instance that we are releasing does not become ours again.
Rule 5. If nothing has changed, a poll is one query (`db/poll.py`). It costs the same for one server and for a
        thousand, for three nodes and for hundreds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Final

from toolway.cluster.db.instances import InstanceStore, Ownership, ServerInstance, UnownedInstance
from toolway.cluster.db.nodes import NodeInfo, NodeStatus, NodeStore
from toolway.cluster.db.poll import ClusterPoll, ClusterSnapshot
from toolway.cluster.lease import DATABASE_RETRY_DELAY_S, Lease
from toolway.cluster.lease_clock import DEFAULT_LEASE_SETTINGS, LeaseSettings
from toolway.cluster.ownership import OnOwnershipChanged, OwnedInstances, OwnershipHandler, Rebalancer
from toolway.cluster.placement import CLAIM_STEP_S, ORPHAN_CLAIM_STEP_S, Node, PlacementPlan, claim_delay
from toolway.cluster.queries import LogThrottle, QueryRunner

FIRST_CLAIM_DELAY_S: Final = 2.0  # seconds after the first lease without claims: nodes that start together should share
MAX_QUERY_S: Final = 4.0  # seconds for a query
POLL_INTERVAL_S: Final = 1.0  # seconds between two database polls; messages from other nodes trigger earlier polls
LEASE_END_MARGIN_S: Final = 0.02  # seconds after the end of another node's lease at which we poll
WORKER_POLL_INTERVAL_S: Final = 5.0  # the same for workers of one machine, whose messages hardly ever get lost
RESYNC_INTERVAL_S: Final = 30.0  # seconds between two resyncs of all owned instances
FORCED_RESYNC_S: Final = 10.0  # seconds in which every poll resyncs, after a result was lost
CLAIM_BATCH: Final = 500  # instances read and claimed in one batch
OVERFLOW_BATCH: Final = 5  # instances claimed in one batch although nodes ranked before us exist, which have no room
OVERFLOW_INTERVAL_S: Final = 4.0  # seconds

__all__ = ["Member", "OnOwnershipChanged", "OwnershipHandler"]


class Member:
    """This node's membership in the cluster: keeps its lease, claims and releases servers.

    `now` is a clock that keeps running while the machine sleeps. `shares` is False for a worker process
    (`--workers`), which claims servers without the first delay and has its own poll interval.
    """

    def __init__(
        self,
        info: NodeInfo,
        nodes: NodeStore,
        instances: InstanceStore,
        handler: OwnershipHandler,
        now: Callable[[], float],
        settings: LeaseSettings = DEFAULT_LEASE_SETTINGS,
        *,
        shares: bool = True,
    ) -> None:
        self.info = info
        self._nodes = nodes
        self._instances = instances
        self._poll = ClusterPoll(instances.engine)
        self._handler = handler
        self._now = now
        self._shares = shares
        self._poll_interval = POLL_INTERVAL_S if shares else WORKER_POLL_INTERVAL_S
        self._run_query = QueryRunner(min(MAX_QUERY_S, settings.hold - settings.renew_interval))
        self._plan = PlacementPlan(_placement_node(info))
        self._owned = OwnedInstances(handler)
        self._lease = Lease(
            info,
            nodes,
            self._run_query,
            now,
            settings,
            on_acquired=self._on_lease_acquired,
            on_lost=self._owned.lose_all,
            load=lambda: self._owned.load,
        )
        self._rebalancer = Rebalancer(
            info.id, info.tenant, nodes, instances, self._plan, self._owned, handler, self._run_query, now, settings.ttl
        )
        self._poll_log = LogThrottle("cluster database poll failed")
        self._draining = False
        self._wakeup = asyncio.Event()
        self._alive: dict[str, NodeStatus] = {}
        self._nodes_revision = -1  # revision of the nodes and pools that the plan was built from
        self._resync_at = 0.0  # time of the next resync
        self._force_resync_until = 0.0
        self._overflow_at = 0.0
        self._poll_delay = POLL_INTERVAL_S  # seconds from now
        self._claim_from: float | None = None  # time of the first claim

    # -- queries from this process ------------------------------------------------------------------------------------

    def fence_of(self, instance: ServerInstance) -> int | None:
        """Return the fence (ownership number) under which this node owns a server instance, or None."""
        ownership = self._owned.get(instance)
        return ownership.fence if ownership is not None and self._lease.epoch is not None else None

    @property
    def epoch(self) -> int | None:
        """Number of this node's current lease, or None without a lease."""
        return self._lease.epoch

    @property
    def owned(self) -> Sequence[Ownership]:
        """Server instances that this node owns now; none without a lease."""
        return tuple(self._owned) if self._lease.epoch is not None else ()

    @property
    def on_ownership_changed(self) -> OnOwnershipChanged:
        """Callback that gets the acquired and the released ownerships; must not block."""
        return self._owned.on_changed

    @on_ownership_changed.setter
    def on_ownership_changed(self, callback: OnOwnershipChanged) -> None:
        self._owned.on_changed = callback

    @property
    def nodes(self) -> Sequence[NodeStatus]:
        """Nodes that had a valid lease in the last poll of the database."""
        return tuple(self._alive.values())

    def get_node(self, id: str) -> NodeStatus | None:
        """Return a node's status at the last poll, or None if it had no lease."""
        return self._alive.get(id)

    def wake(self) -> None:
        """Poll the database now instead of at the next interval, because another node changed it."""
        self._wakeup.set()

    @property
    def is_draining(self) -> bool:
        """True if this node claims no more servers, because it or another node requested a drain."""
        return self._draining

    def drain(self) -> None:
        """Claim no more server instances, and release all owned ones in the background."""
        self._draining = True
        self._wakeup.set()

    # -- the loops ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the lease and claim servers until cancelled.

        Then stop all owned servers, and release the lease if the database is reachable.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._lease.run())
                tasks.create_task(self._run_reconcile())
                tasks.create_task(self._rebalancer.run_releases())
        finally:
            self._rebalancer.cancel()
            self._owned.lose_all()
            await self._lease.release()
            await self._run_query.wait_pending()

    async def _run_reconcile(self) -> None:
        while True:
            # Not `wait_for`: in Python 3.11 it loses a cancellation that arrives together with its result.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_delay):
                    await self._wakeup.wait()
            self._wakeup.clear()
            self._poll_delay = self._poll_interval
            epoch = self._lease.epoch
            if epoch is None:
                continue
            try:
                await self._reconcile(epoch)
                self._poll_log.log_recovery()
            except Exception as exc:
                self._poll_log.log_failure(exc)
                self._force_resync()
                await asyncio.sleep(DATABASE_RETRY_DELAY_S)

    # -- one poll -----------------------------------------------------------------------------------------------------

    async def _reconcile(self, epoch: int) -> None:
        snapshot = await self._run_query(self._poll.fetch(self.info.id, self.info.tenant, self._plan.pools))
        await self._update_nodes(snapshot)
        self._poll_delay = _next_poll_delay(snapshot, self._poll_interval)
        if not self._draining and self._claim_from is not None and self._now() >= self._claim_from:
            await self._claim_unowned(epoch, snapshot)
        if self._now() >= self._resync_at:
            await self._resync(epoch)
            if snapshot.dead_nodes:
                await self._run_query(self._nodes.delete_expired(self.info.tenant))
        elif snapshot.has_recalled:
            self._owned.update(await self._run_query(self._instances.list_owned(self.info.id, epoch, recalled=True)))
            self._rebalancer.mark_unsettled()
        await self._rebalancer.reconcile(self._draining)

    async def _update_nodes(self, snapshot: ClusterSnapshot) -> None:
        """Update the list of live nodes and the placement plan from the result of a poll."""
        for id in snapshot.dead_nodes:
            self._alive.pop(id, None)
        self._plan.remove_nodes(snapshot.dead_nodes)
        if snapshot.revision == self._nodes_revision:
            return
        tenant = self.info.tenant
        alive, pools = (
            await self._run_query(self._nodes.list_alive(tenant)),
            await self._run_query(self._nodes.list_pools(tenant)),
        )
        self._alive = {status.info.id: status for status in alive}
        own = self._alive.get(self.info.id)
        self._draining = self._draining or (own is not None and own.draining)
        for _ in self._plan.update([_placement_node(status.info) for status in alive if not status.draining], pools):
            await asyncio.sleep(0)
        self._nodes_revision = snapshot.revision

    async def _claim_unowned(self, epoch: int, snapshot: ClusterSnapshot) -> None:
        for pool in self._plan.pools:
            if snapshot.dead_nodes or pool in snapshot.pools_with_unowned:
                await self._claim_in_pool(epoch, pool, snapshot.dead_nodes)
        if snapshot.pools_with_unowned and self._now() >= self._overflow_at:
            self._overflow_at = self._now() + OVERFLOW_INTERVAL_S
            await self._claim(
                epoch,
                await self._run_query(self._instances.list_overdue(self.info.tenant, self._plan.pools, OVERFLOW_BATCH)),
            )

    async def _claim_in_pool(self, epoch: int, pool: str, dead: Collection[str]) -> None:
        """Claim a pool's unowned instances: first those that prefer this node, then overdue ones.

        An instance is overdue if its preferred nodes did not claim it in time. Two separate queries keep instances
        that prefer other nodes from displacing ours in the batch.
        """
        tenant, instances, plan = self.info.tenant, self._instances, self._plan
        found = await self._run_query(
            instances.list_claimable(tenant, plan.claimable_slots(pool), CLAIM_BATCH, pool=pool, dead_nodes=dead)
        )
        claimed = await self._claim(epoch, found)
        if claimed and len(found) == CLAIM_BATCH:
            self._wakeup.set()  # there may be more
            return
        waited = claim_delay(1, ORPHAN_CLAIM_STEP_S if dead else CLAIM_STEP_S)
        overdue = instances.list_unowned(
            tenant, plan.ranked_slots(pool), CLAIM_BATCH, pool=pool, dead_nodes=dead, min_wait=waited
        )
        await self._claim(epoch, await self._run_query(overdue))

    async def _claim(self, epoch: int, found: Sequence[UnownedInstance]) -> int:
        """Claim these server instances in the database; return how many this node owns now."""
        selected = self._select_claimable(found)
        claimed = await self._run_query(self._instances.claim_many(selected, self.info.id, epoch)) if selected else ()
        if self._lease.epoch == epoch:
            self._owned.add(claimed)
            self._rebalancer.on_claimed(claimed)
        return len(claimed)

    def _select_claimable(self, found: Sequence[UnownedInstance]) -> list[ServerInstance]:
        """Return the unowned instances that this node may claim now, within its free capacity.

        A node ranked lower for an instance must wait longer before it claims.
        """
        chosen, room = [], self.info.capacity - self._owned.load
        for unowned in found:
            rank = self._plan.rank(unowned.pool, unowned.instance.slot, unowned.instance.index)
            if (
                unowned.waited_s >= claim_delay(rank, ORPHAN_CLAIM_STEP_S if unowned.is_orphaned else CLAIM_STEP_S)
                and unowned.cost <= room
            ):
                room -= unowned.cost
                chosen.append(unowned.instance)
        return chosen

    async def _resync(self, epoch: int) -> None:
        """Make the owned instances match what the database assigns to this node.

        Also release in the database what it still assigns to earlier leases of this node.
        """
        await self._run_query(self._nodes.release_stale(self.info.id, epoch))
        released_before = set(self._owned.pending_releases)
        stored = await self._run_query(self._instances.list_owned(self.info.id, epoch))
        now = self._now()
        self._resync_at = now if now < self._force_resync_until else now + RESYNC_INTERVAL_S
        if self._lease.epoch == epoch:  # otherwise the result belongs to a lease that is over
            self._owned.resync(stored, released_before.union(self._owned.pending_releases))
            self._rebalancer.mark_unsettled()

    def _on_lease_acquired(self) -> None:
        if self._claim_from is None:
            self._claim_from = self._now() + (FIRST_CLAIM_DELAY_S if self._shares else 0.0)
        self._force_resync()
        self._wakeup.set()

    def _force_resync(self) -> None:
        """Resync owned instances with the database on every poll for `FORCED_RESYNC_S` seconds.

        Used if the result of a query was lost: the query may still change the database later.
        """
        self._resync_at, self._force_resync_until = 0.0, self._now() + FORCED_RESYNC_S


def _next_poll_delay(snapshot: ClusterSnapshot, interval: float) -> float:
    """Return the seconds until the next poll of the database.

    The delay is short if a node died: its instances need an owner, and nodes ranked before us may have died too. If a
    node does not renew its lease, we poll when it ends.
    """
    wait = ORPHAN_CLAIM_STEP_S if snapshot.dead_nodes else interval
    return wait if snapshot.next_expiry_s is None else min(wait, snapshot.next_expiry_s + LEASE_END_MARGIN_S)


def _placement_node(info: NodeInfo) -> Node:
    return Node(info.id, info.capacity, frozenset(info.labels))
