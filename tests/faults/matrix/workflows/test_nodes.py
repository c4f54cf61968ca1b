"""Workflow runs of a cluster, with a real PostgreSQL. `make workflows` kills real processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.gateway.bridge_lab import lab
from tests.parts.workflows.test_gateway import WITH_ALL, effect_entry, until_task
from tests.telemetry.postgres_server import binaries, postgres_server
from tests.workflows.effect_server import read_effects
from tests.workflows.kill_runner import effect_server
from toolway import Hub
from toolway.cluster.db.engine import open_engine, upgrade_schema
from toolway.cluster.db.integrity import Integrity
from toolway.cluster.db.nodes import NodeInfo, NodeStore
from toolway.cluster.db.run_journal import PostgresJournal
from toolway.types import Json
from toolway.workflows import Workflows
from toolway.workflows.journal import Entry, RunChange
from toolway.workflows.mcp_tools import WorkflowServer
from toolway.workflows.reader import read_value

pytest.importorskip("cel_expr_python", reason="the extra toolway[workflows] is not installed")
pytestmark = pytest.mark.anyio
KEY = b"k" * 32


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    programs = binaries()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    with postgres_server(programs) as server:
        with psycopg.connect(server, autocommit=True) as db:
            db.execute("CREATE DATABASE runs")
        address = server.replace("/postgres?", "/runs?")
        asyncio.run(_make_tables(address))
        yield address


async def _make_tables(url: str) -> None:
    engine = open_engine(url)
    await upgrade_schema(engine)
    await engine.dispose()


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    async with Hub({"s": effect_server(tmp_path)}) as hub:
        await hub.list_tools()
        yield hub


class Node:
    """A node with a lease that ends when the test says so."""

    def __init__(self, url: str, id: str) -> None:
        self.id = id
        self.url = url
        self.epoch: int | None = None

    def identity(self) -> tuple[str, int] | None:
        return (self.id, self.epoch) if self.epoch is not None else None

    async def join(self) -> None:
        engine = open_engine(self.url)
        self.epoch = await NodeStore(engine, Integrity(KEY)).join(NodeInfo(self.id, "", "1"))
        await engine.dispose()

    def end_lease(self) -> None:
        """End the lease in the database, as if the node had not renewed it."""
        with psycopg.connect(self.url, autocommit=True) as db:
            db.execute("UPDATE nodes SET lease_until = 0 WHERE id = %s", (self.id,))


class StopsAfterIntent(PostgresJournal):
    """Journal of a node that stands still after an intent was written, and wakes when its lease is over."""

    node: Node

    async def write(self, run: str, entries: Sequence[Entry], change: RunChange | None = None) -> None:
        await super().write(run, entries, change)
        if any(each.state == "begun" for each in entries):
            self.node.epoch = None


@asynccontextmanager
async def a_node(
    hub: Hub, url: str, id: str, journal_type: type[PostgresJournal] = PostgresJournal
) -> AsyncIterator[tuple[Workflows, Node]]:
    node = Node(url, id)
    await node.join()
    journal = journal_type(url, "default", KEY, node.identity)
    if isinstance(journal, StopsAfterIntent):
        journal.node = node
    async with Workflows(hub, journal) as engine:
        yield engine, node


def pay(name: str, **keys: Any) -> Json:
    return {"name": name, "tool": "s.pay", "params": {"id": name}, **keys}


def effects(folder: Path) -> list[str]:
    return [each["id"] for each in read_effects(folder / "effects")]


async def end(engine: Workflows, id: str, folder: Path) -> str:
    """Settle what the run asks by the effects; return its last state."""
    async for record in engine.watch(id):
        if engine.is_asking(record):
            path = record.asks[0]["path"]
            await engine.settle(id, path, happened=path in effects(folder))
    return record.state


@pytest.mark.fault("F12")
async def test_node_stopped_between_intent_and_call_sends_nothing(
    hub: Hub, tmp_path: Path, url: str, seed: int
) -> None:
    async with a_node(hub, url, f"stopped{seed}", StopsAfterIntent) as (first, stopped):
        run = await first.start({"steps": [pay("a"), pay("b")]})
        while stopped.epoch is not None or first._active:
            await asyncio.sleep(0.01)
        assert effects(tmp_path) == []  # its lease was over before the first byte
        stopped.end_lease()
        async with a_node(hub, url, f"other{seed}") as (second, _):
            assert await end(second, run.id, tmp_path) == "done"
    assert effects(tmp_path) == ["a", "b"]


@pytest.mark.fault("F13")
async def test_runs_of_a_dead_node_continue_on_another(hub: Hub, tmp_path: Path, url: str, seed: int) -> None:
    slow = pay("a", params={"id": "a", "delay_after": 1.0})
    async with a_node(hub, url, f"dead{seed}") as (first, dead):
        run = await first.start({"steps": [slow, pay("b")]})
        while not effects(tmp_path):
            await asyncio.sleep(0.01)
        dead.end_lease()  # the node itself still believes in it
        async with a_node(hub, url, f"heir{seed}") as (second, _):
            assert await end(second, run.id, tmp_path) == "done"
            while first._active:  # its own write was refused
                await asyncio.sleep(0.01)
    assert effects(tmp_path) == ["a", "b"]


@pytest.mark.fault("F13")
async def test_node_with_a_new_lease_reloads_its_runs(hub: Hub, tmp_path: Path, url: str, seed: int) -> None:
    slow = pay("a", params={"id": "a", "delay_after": 1.0})
    async with a_node(hub, url, f"again{seed}") as (engine, node):
        run = await engine.start({"steps": [slow, pay("b")]})
        while not effects(tmp_path):
            await asyncio.sleep(0.01)
        node.end_lease()
        await node.join()  # between the two, another node could have gone on with the run
        assert await end(engine, run.id, tmp_path) == "done"
        _, _, entries, _ = await engine.load(run.id)
        assert [each.via for each in entries if each.path == "a"] == ["settle"]
    assert effects(tmp_path) == ["a", "b"]


@pytest.mark.fault("F14")
async def test_no_unsafe_call_begins_without_a_database(hub: Hub, tmp_path: Path, url: str, seed: int) -> None:
    server = url.replace("/runs?", "/postgres?")
    async with a_node(hub, url, f"cut{seed}") as (engine, _):
        run = await engine.start({"steps": [pay("a", params={"id": "a", "delay_after": 0.3}), pay("b")]})
        while not effects(tmp_path):
            await asyncio.sleep(0.01)
        with psycopg.connect(server, autocommit=True) as db:
            db.execute("ALTER DATABASE runs ALLOW_CONNECTIONS false")
            try:
                db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'runs'")
                await asyncio.sleep(1.0)  # the first call has ended, and the next intent cannot be written
                assert effects(tmp_path) == ["a"]
            finally:
                db.execute("ALTER DATABASE runs ALLOW_CONNECTIONS true")
        assert await end(engine, run.id, tmp_path) == "done"
    assert effects(tmp_path) == ["a", "b"]


@pytest.mark.fault("F14")
async def test_run_after_a_restored_backup_waits_for_resume(hub: Hub, tmp_path: Path, url: str, seed: int) -> None:
    page = (Path(__file__).parents[4] / "docs/cluster/overview.md").read_text()
    statement = page.partition("```sql\n")[2].partition("```")[0]
    async with a_node(hub, url, f"backup{seed}") as (engine, _):
        run = await engine.start({"steps": [pay("a"), {"name": "w", "wait": "1h"}, pay("b")]})
        while (await run.status()).state != "waiting":
            await asyncio.sleep(0.01)
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("UPDATE runs SET due = 0 WHERE id = %s", (run.id,))  # as the backup may have it
        db.execute(statement.encode())
    async with a_node(hub, url, f"restored{seed}") as (engine, _):
        await asyncio.sleep(1.0)  # two polls
        assert (await engine.get(run.id)).state == "stuck"
        await engine.resume(run.id, by="ann")
        while (await engine.get(run.id)).state != "waiting":  # for its time, which the journal has
            await asyncio.sleep(0.01)
        await engine.cancel(run.id)
        assert await end(engine, run.id, tmp_path) == "cancelled"
    assert effects(tmp_path) == ["a"]


@pytest.mark.fault("F26")
async def test_node_leaves_runs_of_a_newer_version_to_others(hub: Hub, tmp_path: Path, url: str, seed: int) -> None:
    async with a_node(hub, url, f"old{seed}") as (old, _):
        run = await old.start({"steps": [{"name": "ok", "approve": "Pay?"}, pay("b")]})
        assert (await run.wait()).state == "asks"
        journal = old._get_journal()
        assert isinstance(journal, PostgresJournal)
        known = journal._codec.seal(run.id, "ok#1", {"path": "ok", "state": "dreaming", "kind": "ask"})
        with psycopg.connect(url, autocommit=True) as db:
            [before] = db.execute("SELECT body FROM run_entries WHERE run = %s", (run.id,)).fetchall()
            db.execute("UPDATE run_entries SET body = %s WHERE run = %s", (known, run.id))
            db.execute("UPDATE runs SET due = 0 WHERE id = %s", (run.id,))
            row = None
            while row is None or row[0] != "waiting":
                await asyncio.sleep(0.02)
                row = db.execute("SELECT state, node, due FROM runs WHERE id = %s", (run.id,)).fetchone()
            assert row[1] is None and row[2] > 0  # any node may take it, and this one not at once
            assert db.execute("SELECT body FROM run_entries WHERE run = %s", (run.id,)).fetchall() == [(known,)]
            assert effects(tmp_path) == []
            db.execute("UPDATE run_entries SET body = %s WHERE run = %s", (before[0], run.id))  # the newer node
        await old.answer(run.id, None, {"yes": True})
        assert await end(old, run.id, tmp_path) == "done"
    assert effects(tmp_path) == ["b"]


@pytest.mark.fault("F27")
async def test_client_answers_twice_at_another_node_with_one_effect(
    hub: Hub, tmp_path: Path, url: str, seed: int
) -> None:
    entry = {"s": effect_entry(tmp_path)}
    refund = read_value({"name": "refund", "steps": [{"name": "ok", "approve": "Pay?"}, pay("b")]})
    async with (
        lab(entry) as first,
        lab(entry) as second,  # with the same key, as the nodes of a cluster have it
        a_node(Hub._from_core(first.hub), url, f"one{seed}") as (one, left),
        a_node(Hub._from_core(second.hub), url, f"two{seed}") as (two, _),
    ):
        for found, engine in ((first, one), (second, two)):
            await found.hub.servers.add("workflows", WorkflowServer(engine, [refund]))
            await found.hub.servers.wait_ready("workflows", timeout=60)
        async with first.raw("") as raw:
            task = (await raw.call("workflows__refund", {}, capabilities=WITH_ALL)).result["taskId"]
            await until_task(raw, task, "input_required")
        left.end_lease()
        left.epoch = None  # the node that it spoke to is gone
        async with second.raw("") as raw:
            assert "ok" in (await until_task(raw, task, "input_required"))["inputRequests"]
            yes = {"ok": {"action": "accept", "content": {"yes": True}}}
            for _ in range(2):  # the second is an acknowledgement without effect
                update = {"taskId": task, "inputResponses": yes}
                assert "resultType" in (await raw.ask("tasks/update", update, capabilities=WITH_ALL)).result
            await until_task(raw, task, "completed")
    assert effects(tmp_path) == ["b"]
