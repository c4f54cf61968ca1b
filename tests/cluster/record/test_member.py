"""Nodes that come, go, drain and are cut off: every place has an owner soon, and never two."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cluster.record.lab import PLACES, TERMS, Book, Lab, lab_of
from toolway.cluster import member
from toolway.cluster.member import SETTLE, Member
from toolway.cluster.record.nodes import Card, Nodes
from toolway.cluster.record.places import Places
from toolway.cluster.record.tables import PlaceRow
from toolway.cluster.record.wishes import Wish

# SQLite has one writer at a time: nodes that share it wait for its disk, and their short leases end.
pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("url", ["postgresql"], indirect=True)]


async def test_three_nodes_share_all_places_and_one_that_leaves_gives_its_own_to_the_others(
    engine: AsyncEngine,
) -> None:
    async with lab_of(engine, "a", "b", "c") as lab:
        await lab.until(lambda: lab.all_owned("a", "b", "c"))
        kept = {place: held for place, held in lab.book.owners.items() if held.node != "b"}
        await lab.stop("b")
        took = await lab.until(lambda: lab.all_owned("a", "c"))
        assert took < TERMS.ttl  # it said good-bye, so nobody waited for its lease
        assert kept.items() <= lab.book.owners.items()  # what the others had they kept


async def test_a_node_that_is_cut_off_stops_before_another_begins_and_comes_back_as_another(
    engine: AsyncEngine,
) -> None:
    async with lab_of(engine, "a", "b") as lab:
        await lab.until(lambda: lab.all_owned("a", "b"))
        member = lab.members["b"][0]
        lab.cut("b")
        await lab.until(lambda: not member.held, TERMS.give_up + 1)
        await lab.until(lambda: lab.all_owned("a"), TERMS.ttl + 8)
        lab.cut("b", False)
        await lab.until(lambda: lab.all_owned("a", "b"))  # its share is handed back to it, a few places at a time


async def test_a_node_that_joins_gets_its_share_when_the_calls_there_have_ended(engine: AsyncEngine) -> None:
    async with lab_of(engine, "a") as lab:
        await lab.until(lambda: lab.all_owned("a"))
        lab.book.busy.update(PLACES)
        lab.start("b")
        await asyncio.sleep(2.5)
        assert lab.book.shares() == {"a": len(PLACES)}  # all are busy
        lab.book.busy.clear()
        await lab.until(lambda: lab.all_owned("a", "b"))


async def test_what_a_node_was_given_under_a_lease_that_is_over_has_an_owner_again(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "THOROUGH", 1.0)
    monkeypatch.setattr(member, "DOUBT", 0.0)
    async with lab_of(engine, "a", "b") as lab:
        await lab.until(lambda: lab.all_owned("a", "b"))
        lost = next(held for held in lab.book.owners.values() if held.node == "a")
        async with engine.begin() as db:
            where = (PlaceRow.server == lost.place.server, PlaceRow.node == "a")
            await db.execute(update(PlaceRow).where(*where).values(epoch=PlaceRow.epoch - 1, fence=PlaceRow.fence + 1))
        await lab.until(lambda: (held := lab.book.owners.get(lost.place)) is not None and held.fence > lost.fence + 1)


async def test_what_a_dead_node_should_have_is_not_handed_over_to_it_while_its_lease_lasts(engine: AsyncEngine) -> None:
    async with lab_of(engine) as lab:
        await Nodes(engine, TERMS).join(Card("dead", "", "1", tenant="acme"))  # it has a lease, and takes nothing
        lab.start("a")
        await lab.until(lambda: lab.all_owned("a"))
        await asyncio.sleep(TERMS.ttl)
        assert {len(fences) for fences in lab.book.fences.values()} == {1}, "each was taken once, and kept"


async def test_a_node_that_drains_hands_everything_over(engine: AsyncEngine) -> None:
    async with lab_of(engine, "a", "b") as lab:
        await lab.until(lambda: lab.all_owned("a", "b"))
        assert await Nodes(engine).drain("a")
        await lab.until(lambda: lab.all_owned("b"))
        assert lab.members["a"][0].held == ()


async def test_a_place_is_held_by_the_clock_whatever_the_loops_do(engine: AsyncEngine) -> None:
    """After a sleep of the machine nothing has run yet, and nothing is ours."""
    book, now = Book(), [100.0]
    lab = Lab(engine)
    await lab.declare({place.server: Wish() for place in PLACES})
    member = Member(
        Card("a", "", "1", tenant="acme"), Nodes(engine, TERMS), Places(engine), book, lambda: now[0], TERMS
    )
    task = asyncio.create_task(member.run())
    await lab.until(lambda: member.epoch is not None)
    now[0] += SETTLE
    await lab.until(lambda: len(book.owners) == len(PLACES))
    assert all(member.holds(place) == book.owners[place].fence for place in PLACES)
    now[0] += TERMS.give_up
    assert all(member.holds(place) is None for place in PLACES) and member.held == ()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
