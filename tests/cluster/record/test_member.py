"""Nodes that come, go, drain and are cut off: every place has an owner soon, and never two."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress

import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from toolway.cluster.member import Member
from toolway.cluster.placement import Node, Ring
from toolway.cluster.record.nodes import Card, Nodes
from toolway.cluster.record.places import Held, Place, Places
from toolway.cluster.record.tables import ServerRow
from toolway.cluster.tenure import Terms

# SQLite has one writer at a time: nodes that share it wait for its disk, and their short leases end.
pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("url", ["postgresql"], indirect=True)]

TERMS = Terms(ttl=4.0, renew=0.5, give_up=3.0)
PLACES = [Place("acme", f"server-{number}") for number in range(12)]


class Book:
    """Who owned what, from when to when, by one clock; kept for all nodes."""

    def __init__(self) -> None:
        self.owners: dict[Place, Held] = {}
        self.fences: dict[Place, list[int]] = {place: [] for place in PLACES}
        self.wrong: list[str] = []
        self.busy: set[Place] = set()

    def begin(self, held: Held) -> None:
        if held.place in self.owners:
            self.wrong.append(f"{held} began while {self.owners[held.place]} had not ended")
        self.owners[held.place] = held
        self.fences[held.place].append(held.fence)

    async def finish(self, held: Held) -> None:
        while held.place in self.busy:
            await asyncio.sleep(0.01)

    def end(self, held: Held) -> None:
        if self.owners.get(held.place) == held:
            del self.owners[held.place]
        else:
            self.wrong.append(f"{held} ended, and was not the owner")

    def shares(self) -> Counter[str]:
        return Counter(held.node for held in self.owners.values())


class Lab:
    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.book = Book()
        self.members: dict[str, tuple[Member, asyncio.Task[None]]] = {}
        self.records: dict[str, tuple[CutNodes, CutPlaces]] = {}

    async def declare(self) -> None:
        async with self.engine.begin() as db:
            for place in PLACES:
                await db.execute(insert(ServerRow).values(tenant="acme", name=place.server, definition={}, revision=1))
        for place in PLACES:
            await Places(self.engine).declare("acme", place.server, 1)

    def start(self, id: str) -> Member:
        nodes, places = CutNodes(self.engine, TERMS), CutPlaces(self.engine)
        self.records[id] = nodes, places
        member = Member(Card(id, "", "1"), nodes, places, self.book, time.monotonic, TERMS)
        self.members[id] = member, asyncio.create_task(member.run())
        return member

    def cut(self, id: str, cut: bool = True) -> None:
        """The record is out of reach for one node."""
        for record in self.records[id]:
            record.cut = cut

    async def stop(self, id: str) -> None:
        _, task = self.members.pop(id)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def until(self, what: Callable[[], bool], seconds: float = 20.0) -> float:
        began = time.monotonic()
        while not what():
            assert time.monotonic() - began < seconds, self.book.shares()
            await asyncio.sleep(0.02)
        return time.monotonic() - began

    def all_owned(self, *ids: str) -> bool:
        """By these nodes, and each by the one that should own it."""
        ring = Ring(Node(id) for id in ids)
        owners = {place: held.node for place, held in self.book.owners.items()}
        return owners == {place: ring.ranked(place.slot)[0] for place in PLACES}


class _Cut:
    cut = False

    async def _reach(self) -> None:
        while self.cut:
            await asyncio.sleep(0.05)


class CutNodes(_Cut, Nodes):
    async def join(self, card: Card) -> int:
        await self._reach()
        return await super().join(card)

    async def renew(self, id: str, epoch: int, load: int = 0) -> bool:
        await self._reach()
        return await super().renew(id, epoch, load)


class CutPlaces(_Cut, Places):
    async def take_all(self, places: Collection[Place], node: str, epoch: int) -> Sequence[Held]:
        await self._reach()
        return await super().take_all(places, node, epoch)


@asynccontextmanager
async def _lab(engine: AsyncEngine, *ids: str) -> AsyncIterator[Lab]:
    lab = Lab(engine)
    await lab.declare()
    for id in ids:
        lab.start(id)
    yield lab
    for id in tuple(lab.members):
        await lab.stop(id)
    assert lab.book.wrong == []
    assert lab.book.owners == {}
    assert all(fences == sorted(set(fences)) for fences in lab.book.fences.values())


async def test_three_nodes_share_all_places_and_one_that_leaves_gives_its_own_to_the_others(
    engine: AsyncEngine,
) -> None:
    async with _lab(engine, "a", "b", "c") as lab:
        await lab.until(lambda: lab.all_owned("a", "b", "c"))
        kept = {place: held for place, held in lab.book.owners.items() if held.node != "b"}
        await lab.stop("b")
        took = await lab.until(lambda: lab.all_owned("a", "c"))
        assert took < TERMS.ttl  # it said good-bye, so nobody waited for its lease
        assert kept.items() <= lab.book.owners.items()  # what the others had they kept


async def test_a_node_that_is_cut_off_stops_before_another_begins_and_comes_back_as_another(
    engine: AsyncEngine,
) -> None:
    async with _lab(engine, "a", "b") as lab:
        await lab.until(lambda: lab.all_owned("a", "b"))
        member = lab.members["b"][0]
        lab.cut("b")
        await lab.until(lambda: not member.held, TERMS.give_up + 1)
        await lab.until(lambda: lab.all_owned("a"), TERMS.ttl + 8)
        lab.cut("b", False)
        await lab.until(lambda: lab.all_owned("a", "b"))  # its share is handed back to it, a few places at a time


async def test_a_node_that_joins_gets_its_share_when_the_calls_there_have_ended(engine: AsyncEngine) -> None:
    async with _lab(engine, "a") as lab:
        await lab.until(lambda: lab.all_owned("a"))
        lab.book.busy.update(PLACES)
        lab.start("b")
        await asyncio.sleep(2.5)
        assert lab.book.shares() == {"a": len(PLACES)}  # all are busy
        lab.book.busy.clear()
        await lab.until(lambda: lab.all_owned("a", "b"))


async def test_a_node_that_drains_hands_everything_over(engine: AsyncEngine) -> None:
    async with _lab(engine, "a", "b") as lab:
        await lab.until(lambda: lab.all_owned("a", "b"))
        assert await Nodes(engine).drain("a")
        await lab.until(lambda: lab.all_owned("b"))
        assert lab.members["a"][0].held == ()


async def test_a_place_is_held_by_the_clock_whatever_the_loops_do(engine: AsyncEngine) -> None:
    """After a sleep of the machine nothing has run yet, and nothing is ours."""
    book, now = Book(), [100.0]
    lab = Lab(engine)
    await lab.declare()
    member = Member(Card("a", "", "1"), Nodes(engine, TERMS), Places(engine), book, lambda: now[0], TERMS)
    task = asyncio.create_task(member.run())
    await lab.until(lambda: len(book.owners) == len(PLACES))
    assert all(member.holds(place) == book.owners[place].fence for place in PLACES)
    now[0] += TERMS.give_up
    assert all(member.holds(place) is None for place in PLACES) and member.held == ()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
