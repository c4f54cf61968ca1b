"""Several nodes in one process on one database, and a log of owners."""

from __future__ import annotations

import asyncio
import functools
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cluster.db.encryption_keys import an_integrity
from toolway.cluster.db.instances import (
    DesiredInstances,
    InstanceStore,
    Ownership,
    ServerInstance,
    apply_desired_instances,
)
from toolway.cluster.db.nodes import NodeInfo, NodeStore
from toolway.cluster.lease_clock import LeaseSettings
from toolway.cluster.member import Member
from toolway.cluster.placement import Node, Ring

TERMS = LeaseSettings(ttl=4.0, renew_interval=0.5, hold=3.0)
PLACES = [ServerInstance("acme", f"server-{number}") for number in range(12)]


class OwnershipLog:
    """Who owned what, from when to when, by one clock; kept for all nodes."""

    def __init__(self) -> None:
        self.owners: dict[ServerInstance, Ownership] = {}
        self.fences: dict[ServerInstance, list[int]] = {}
        self.wrong: list[str] = []
        self.busy: set[ServerInstance] = set()

    def on_acquired(self, ownership: Ownership) -> None:
        if ownership.instance in self.owners:
            self.wrong.append(f"{ownership} began while {self.owners[ownership.instance]} had not ended")
        self.owners[ownership.instance] = ownership
        self.fences.setdefault(ownership.instance, []).append(ownership.fence)

    async def drain(self, ownership: Ownership) -> None:
        while ownership.instance in self.busy:
            await asyncio.sleep(0.01)

    def on_lost(self, ownership: Ownership) -> None:
        if self.owners.get(ownership.instance) == ownership:
            del self.owners[ownership.instance]
        else:
            self.wrong.append(f"{ownership} ended, and was not the owner")

    def shares(self) -> Counter[str]:
        return Counter(held.node for held in self.owners.values())


class Lab:
    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.ownership_log = OwnershipLog()
        self.moved_at = time.monotonic()
        self.told: list[tuple[Ownership, bool]] = []  # what moved, and whether it was taken
        self.members: dict[str, tuple[Member, asyncio.Task[None]]] = {}
        self.records: dict[str, tuple[CutNodes, CutPlaces]] = {}

    async def declare(self, wishes: Mapping[str, DesiredInstances]) -> None:
        async with self.engine.begin() as db:
            await apply_desired_instances(db, "acme", wishes)

    def start(self, id: str, capacity: int = 100, labels: Sequence[str] = ()) -> Member:
        nodes, places = CutNodes(self.engine, an_integrity(), TERMS), CutPlaces(self.engine)
        self.records[id] = nodes, places
        card = NodeInfo(id, "", "1", capacity, tuple(labels), "acme")
        member = Member(card, nodes, places, self.ownership_log, time.monotonic, TERMS)
        member.on_ownership_changed = self.moved
        self.members[id] = member, asyncio.create_task(member.run())
        return member

    def moved(self, took: Sequence[Ownership], lost: Sequence[Ownership]) -> None:
        self.moved_at = time.monotonic()
        self.told += [(held, True) for held in took] + [(held, False) for held in lost]

    def cut(self, id: str, cut: bool = True) -> None:
        """The record is out of reach for one node."""
        for record in self.records[id]:
            record.cut = cut

    async def stop(self, id: str) -> None:
        _, task = self.members.pop(id)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def until(self, what: Callable[[], bool], seconds: float = 60.0) -> float:
        began = time.monotonic()
        while not what():
            assert time.monotonic() - began < seconds, self.ownership_log.shares()
            await asyncio.sleep(0.02)
        return time.monotonic() - began

    def quiet(self) -> float:
        """Seconds since anything moved."""
        return time.monotonic() - self.moved_at

    def all_owned(self, *ids: str) -> bool:
        """By these nodes, and each by the one that should own it."""
        return {place: held.node for place, held in self.ownership_log.owners.items()} == _owners(ids)


@functools.cache
def _owners(ids: tuple[str, ...]) -> dict[ServerInstance, str]:
    """Who should own each place. To make a ring takes long: in a loop it would keep leases from being renewed."""
    ring = Ring(Node(id) for id in ids)
    return {place: ring.ranked(place.slot)[0] for place in PLACES}


class _Cut:
    cut = False

    async def _reach(self) -> None:
        while self.cut:
            await asyncio.sleep(0.05)


class CutNodes(_Cut, NodeStore):
    async def join(self, info: NodeInfo) -> int:
        await self._reach()
        return await super().join(info)

    async def renew(self, id: str, epoch: int, load: int = 0) -> bool:
        await self._reach()
        return await super().renew(id, epoch, load)


class CutPlaces(_Cut, InstanceStore):
    async def claim_many(self, instances: Collection[ServerInstance], node: str, epoch: int) -> Sequence[Ownership]:
        await self._reach()
        return await super().claim_many(instances, node, epoch)


@asynccontextmanager
async def lab_of(engine: AsyncEngine, *ids: str) -> AsyncIterator[Lab]:
    lab = Lab(engine)
    await lab.declare({place.server: DesiredInstances() for place in PLACES})
    for id in ids:
        lab.start(id)
    yield lab
    for id in tuple(lab.members):
        await lab.stop(id)
    assert lab.ownership_log.wrong == []
    assert lab.ownership_log.owners == {}
    assert all(fences == sorted(set(fences)) for fences in lab.ownership_log.fences.values())
    taken = Counter(held for held, took in lab.told if took)
    assert taken == Counter(held for held, took in lab.told if not took)  # every loss was reported
    assert set(taken.values()) <= {1}
