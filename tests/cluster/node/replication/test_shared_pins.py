"""Pins that the nodes of a cluster share: one definition for all, and no call under another one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cluster.db.encryption_keys import an_integrity
from toolway.catalog.catalog import Catalog
from toolway.catalog.pins import PinMode, ServerPins, definition_digest
from toolway.catalog.tool_access import PIN_NOT_STORED
from toolway.cluster.db.changes import ChangeReader
from toolway.cluster.db.integrity import Integrity, StateRefused
from toolway.cluster.db.pin_table import PinTable
from toolway.cluster.db.takeover import take_over
from toolway.cluster.keys import derive_tenant_key
from toolway.cluster.replication.change_feed import ChangeFeed
from toolway.cluster.replication.shared_pins import SharedPins
from toolway.events import DefinitionReviewed, Event
from toolway.types import ToolRef

pytestmark = pytest.mark.anyio
NAMES = ("alpha", "beta")


def definition(name: str, version: int) -> dict[str, Any]:
    return {"name": name, "description": f"Version {version}.", "inputSchema": {"type": "object"}}


def digest(name: str, version: int) -> str:
    return definition_digest(definition(name, version))


class Node:
    """Catalog, pins and change feed of one node."""

    def __init__(self, engine: AsyncEngine, mode: PinMode = "hold", *, owns: bool = False) -> None:
        self.owns = owns
        self.events: list[Event] = []
        self.catalog = Catalog()
        self.feed = ChangeFeed(ChangeReader(engine), "t", poll_interval=0.02)
        self.table = PinTable(engine, "t", an_integrity())
        self.pins = SharedPins(
            self.table, lambda server: self.owns, lambda server: mode, lambda: 1000.0, self.review, self.events.append
        )
        self.pins.register(self.feed)
        self.catalog.pins = self.pins
        self.catalog.add_server("weather", identity="npx weather")

    def review(self, server: str) -> None:
        self.catalog.review_again(server)

    def list_tools(self, **versions: int) -> None:
        self.catalog.replace("weather", "tools", [definition(*each) for each in versions.items()])

    @property
    def usable(self) -> dict[str, str]:
        return {tool.name: definition_digest(tool.raw) for tool in self.catalog.tools()}

    async def waiting(self) -> dict[str, str]:
        """What an administrator sees at this node: digests of held definitions."""
        return {
            key: each.digest for pins in self.pins.list_servers() for key, each in pins.deviations.items() if each.held
        }


@asynccontextmanager
async def cluster(engine: AsyncEngine, *owns: bool, mode: PinMode = "hold") -> AsyncIterator[list[Node]]:
    nodes = [Node(engine, mode, owns=each) for each in owns]
    try:
        for node in nodes:
            await node.feed.start()
        yield nodes
    finally:
        for node in nodes:
            await node.feed.close()
            await node.pins.wait_closed()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


async def test_first_definition_is_used_once_it_is_stored(engine: AsyncEngine) -> None:
    async with cluster(engine, True, False) as (owner, other):
        owner.list_tools(alpha=1)
        other.list_tools(alpha=1)
        assert owner.usable == other.usable == {}, "no node uses what the database does not have"
        await until(lambda: owner.usable == other.usable == {"alpha": digest("alpha", 1)})


async def test_list_is_known_once_its_pins_are_stored(engine: AsyncEngine) -> None:
    async with cluster(engine, True, False) as nodes:
        for node in nodes:
            node.list_tools(alpha=1)
            assert not node.catalog.has_list("weather", "tools")
            assert node.catalog.denied_by(ToolRef("weather", "alpha")) == PIN_NOT_STORED
        async with asyncio.timeout(60):
            for node in nodes:
                await node.catalog.wait_pins_stored("weather")
                assert node.catalog.has_list("weather", "tools") and node.usable


async def test_mode_note_does_not_wait_for_the_database(engine: AsyncEngine) -> None:
    async with cluster(engine, True, False, mode="warn") as (owner, other):
        owner.list_tools(alpha=1)
        other.list_tools(alpha=2)
        assert owner.usable and other.usable


async def test_conflicting_first_definitions_agree_on_one(engine: AsyncEngine) -> None:
    async with cluster(engine, True, True) as (one, two):
        one.list_tools(alpha=1)
        two.list_tools(alpha=2, beta=1)
        await until(lambda: bool(one.usable or two.usable) and not (one.pins._writer or two.pins._writer))
        await asyncio.sleep(0.2)
        assert len({*one.usable.values(), *two.usable.values()} & {digest("alpha", 1), digest("alpha", 2)}) == 1


async def test_tool_on_hold_is_held_and_accepted_on_all_nodes(engine: AsyncEngine) -> None:
    async with cluster(engine, True, False) as (owner, other):
        owner.list_tools(alpha=1, beta=1)
        other.list_tools(alpha=1, beta=1)
        await until(lambda: len(owner.usable) == len(other.usable) == 2)
        owner.list_tools(alpha=2, beta=1)
        assert "alpha" not in owner.usable
        other.list_tools(alpha=2, beta=1)
        assert "alpha" not in other.usable
        async with asyncio.timeout(60):
            while await other.waiting() != {"tools/alpha": digest("alpha", 2)}:
                await asyncio.sleep(0.01)
        assert await other.pins.approve("weather", {"tools/alpha": digest("alpha", 3)}) == []
        assert await other.pins.approve("weather", {"tools/alpha": digest("alpha", 2)}, "k1") == ["tools/alpha"]
        assert other.usable["alpha"] == digest("alpha", 2)
        await until(lambda: owner.usable.get("alpha") == digest("alpha", 2))
        owner.list_tools(alpha=1, beta=1)
        assert "alpha" not in owner.usable, "the earlier definition is not the approved one any more"
        reported = [(each.action, each.who) for each in other.events if isinstance(each, DefinitionReviewed)]
        assert reported == [("accepted", "k1")]
        held = [each.action for each in owner.events if isinstance(each, DefinitionReviewed)]
        assert held == ["on_hold", "on_hold"], "only the owner reports what is on hold"


async def test_new_node_uses_the_stored_pins(engine: AsyncEngine) -> None:
    async with cluster(engine, True) as (owner,):
        owner.list_tools(alpha=1)
        await until(lambda: bool(owner.usable))
    async with cluster(engine, True) as (later,):
        later.list_tools(alpha=2)
        assert later.usable == {}
        later.list_tools(alpha=1)
        assert later.usable == {"alpha": digest("alpha", 1)}


@pytest.mark.parametrize(
    "change",
    ["DELETE FROM pins", "UPDATE pins SET body = replace(body, 'Version 1', 'Version 2')", "UPDATE pins SET mac = 'x'"],
)
async def test_altered_pins_are_rejected(engine: AsyncEngine, change: str) -> None:
    async with cluster(engine, True) as (owner,):
        owner.list_tools(alpha=1)
        await until(lambda: bool(owner.usable))
    async with engine.begin() as db:
        await db.execute(text(change))
    with pytest.raises(StateRefused):
        await PinTable(engine, "t", an_integrity()).load_changed()
    later = Node(engine, owns=True)
    later.list_tools(alpha=2)
    await asyncio.sleep(0.1)
    assert later.usable == {}, "a definition is not first seen because its pin was removed"
    await later.pins.wait_closed()


async def test_takeover_keeps_signed_pins_only(engine: AsyncEngine) -> None:
    integrity = Integrity(derive_tenant_key(b"c" * 32, "t"))
    table = PinTable(engine, "t", integrity)
    await table.change("weather", "npx", lambda known: (ServerPins("weather", "npx"), None))
    await table.change("other", "npx", lambda known: (ServerPins("other", "npx"), None))
    async with engine.begin() as db:
        await db.execute(text("UPDATE pins SET mac = 'x' WHERE server = 'other'"))
    found = await take_over(engine, b"c" * 32)
    assert {row.name: row.action for row in found} == {"weather": "keep", "other": "delete"}
    await take_over(engine, b"c" * 32, found)
    later = PinTable(engine, "t", Integrity(derive_tenant_key(b"c" * 32, "t")))
    assert [each.name for each in (await later.load_changed())[1]] == ["weather"]
    await later.change("other", "npx", lambda known: (ServerPins("other", "npx"), None))


async def test_without_the_database_pins_stay_and_none_is_added(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(engine, True) as (owner,):
        owner.list_tools(alpha=1)
        await until(lambda: bool(owner.usable))

        async def fail(*arguments: Any) -> Any:
            raise OperationalError("", None, Exception("down"))

        with monkeypatch.context() as patched:
            patched.setattr(owner.table, "change", fail)
            patched.setattr("toolway.cluster.replication.shared_pins.RETRY_DELAY_S", 0.01)
            owner.catalog.replace("weather", "prompts", [{"name": "ask", "description": "Ask."}])
            await asyncio.sleep(0.05)
            assert owner.usable == {"alpha": digest("alpha", 1)}
            assert [*owner.catalog.items("prompts")] == []
        await until(lambda: len([*owner.catalog.items("prompts")]) == 1)


# -- history -----------------------------------------------------------------------------------------------------------


def find_unpinned_calls(history: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the calls of a history that were sent under a definition that was not pinned before.

    The history has ("pinned", tool, digest), as the database stored them, and ("call", node, tool, digest).
    """
    pinned: set[tuple[str, str]] = set()
    found = []
    for entry in history:
        if entry[0] == "pinned":
            pinned.add((entry[1], entry[2]))
        elif (entry[2], entry[3]) not in pinned:
            found.append(entry)
    return found


def test_checker_finds_a_call_under_an_unpinned_definition() -> None:
    history = [("pinned", "alpha", "d1"), ("call", 0, "alpha", "d1"), ("call", 1, "alpha", "d2")]
    assert find_unpinned_calls([*history, ("pinned", "alpha", "d2")]) == [("call", 1, "alpha", "d2")]


async def test_no_call_is_sent_under_an_unpinned_definition(engine: AsyncEngine) -> None:
    """Owners change, servers change their definitions, lists arrive late, approvals are made at any node."""
    rng = random.Random(5)
    history: list[tuple[Any, ...]] = []
    versions = dict.fromkeys(NAMES, 1)
    async with cluster(engine, True, False, False) as nodes:
        for node in nodes:
            record_pins(node, history)
        for _ in range(200):
            node = rng.choice(nodes)
            action = rng.choice(["change", "list", "list", "list", "approve", "approve", "move", "write", "load"])
            if action == "change":
                versions[rng.choice(NAMES)] = rng.randrange(1, 4)
            elif action == "list":
                node.list_tools(**versions)
            elif action == "approve":
                waiting = [*(await node.waiting()).items()]
                if waiting:
                    await node.pins.approve("weather", dict([rng.choice(waiting)]))
            elif action == "move":
                for each in nodes:
                    each.owns = each is node
            elif action == "write":
                await until(lambda: all(each.pins._writer is None for each in nodes))
            else:
                await node.pins._load_changed()
            for number, each in enumerate(nodes):
                history += [("call", number, tool, used) for tool, used in each.usable.items()]
    assert sum(entry[0] == "call" for entry in history) > 30
    assert len({entry[2:] for entry in history if entry[0] == "call"}) > 2, "several definitions were used"
    assert find_unpinned_calls(history) == []


def record_pins(node: Node, history: list[tuple[Any, ...]]) -> None:
    """Write what the database pins to the history, before any node learns of it."""
    change = node.table.change

    async def recorded(server: str, identity: str, decide: Callable[[Any], tuple[Any, Any]]) -> Any:
        def with_history(stored: Any) -> tuple[Any, Any]:
            new, result = decide(stored)
            if new is not None:
                history.extend(("pinned", key.partition("/")[2], pin.digest) for key, pin in new.pins.items())
            return new, result

        return await change(server, identity, with_history)

    vars(node.table)["change"] = recorded
