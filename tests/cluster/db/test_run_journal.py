"""The journal of workflow runs in a real PostgreSQL: leases, fences, groups, messages, encryption."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cluster.db.encryption_keys import an_integrity
from toolway.cluster.db.engine import db_now, open_engine
from toolway.cluster.db.nodes import NodeInfo, NodeStore
from toolway.cluster.db.run_journal import PostgresJournal
from toolway.cluster.db.tables import NodeRow
from toolway.workflows.journal import (
    Entry,
    JournalError,
    NewerRun,
    RunChange,
    RunLost,
    RunMessage,
    RunRecord,
    definition_hash,
)

pytestmark = pytest.mark.anyio
BODY = {"steps": [{"name": "a", "tool": "s.pay"}]}
SECRET = "4242-4242"


class Nodes:
    """Nodes with leases in one database, each with its journal."""

    def __init__(self, url: str, engine: AsyncEngine) -> None:
        self.url = url
        self.engine = engine
        self.store = NodeStore(engine, an_integrity())
        self.epochs: dict[str, int] = {}
        self.journals: dict[str, PostgresJournal] = {}

    async def start(self, id: str, key: bytes = b"k" * 32) -> PostgresJournal:
        self.epochs[id] = await self.store.join(NodeInfo(id, "", "1", 100, (), "acme"))
        journal = PostgresJournal(self.url, "acme", key, lambda: (id, self.epochs[id]) if id in self.epochs else None)
        self.journals[id] = journal
        return journal

    async def end_lease(self, id: str) -> None:
        """Let the lease of a node end in the database, while the node still believes in it."""
        async with self.engine.begin() as db:
            await db.execute(update(NodeRow).where(NodeRow.id == id).values(lease_until=db_now() - 1))


@pytest.fixture
async def nodes(made_in_postgresql: str) -> AsyncIterator[Nodes]:
    engine = open_engine(made_in_postgresql)
    nodes = Nodes(made_in_postgresql, engine)
    yield nodes
    for journal in nodes.journals.values():
        await journal.close()
    await engine.dispose()
    with psycopg.connect(made_in_postgresql, autocommit=True) as db:
        for table in ("run_messages", "run_entries", "runs", "run_definitions", "nodes"):
            db.execute(f"DELETE FROM {table}")


def a_run(id: str, *, key: str | None = None, due: float | None = 1.0) -> RunRecord:
    return RunRecord(
        id=id, workflow="w", definition=definition_hash(BODY), key=key, due=due, input={"card": SECRET}, created=1.0
    )


def an_entry(path: str, state: str = "begun", attempt: int = 1) -> Entry:
    return Entry(path=path, attempt=attempt, state=state, tool="s.pay", effect="unsafe", args={"card": SECRET})  # type: ignore[arg-type]


async def test_run_is_created_once_per_key(nodes: Nodes) -> None:
    journal = await nodes.start("n1")
    assert (await journal.create(a_run("r1", key="k"), BODY)).id == "r1"
    assert (await journal.create(a_run("r2", key="k"), BODY)).id == "r1"
    both = await asyncio.gather(*(journal.create(a_run(f"p{n}", key="p"), BODY) for n in range(5)))
    assert len({run.id for run in both}) == 1


async def test_run_is_taken_by_one_node_and_by_another_after_its_lease(nodes: Nodes) -> None:
    first, second = await nodes.start("n1"), await nodes.start("n2")
    await first.create(a_run("r1"), BODY)
    assert [run.id for run in await first.take(2.0, 10)] == ["r1"]
    assert await second.take(2.0, 10) == []
    await first.write("r1", [an_entry("a")])
    await nodes.end_lease("n1")
    taken = await second.take(2.0, 10)
    assert [(run.id, run.state) for run in taken] == [("r1", "running")]
    _, body, entries, _ = await second.load("r1")
    assert body == BODY
    assert [(each.path, each.state) for each in entries] == [("a", "begun")]
    with pytest.raises(RunLost):
        await first.write("r1", [an_entry("a", "done")])
    await second.write("r1", [an_entry("a", "unknown")], RunChange(state="done", output=1, ended=3.0))
    record, _, entries, _ = await first.load("r1")
    assert (record.state, record.output, entries[0].state) == ("done", 1, "unknown")


async def test_node_without_a_lease_writes_and_takes_nothing(nodes: Nodes) -> None:
    journal = await nodes.start("n1")
    await journal.create(a_run("r1"), BODY)
    await journal.create(a_run("r2"), BODY)
    assert len(await journal.take(2.0, 1)) == 1
    await nodes.end_lease("n1")
    taken = {"r1", "r2"} - {run.id for run in await journal.list_runs("ready", 10)}
    with pytest.raises(RunLost):  # no node has taken the run yet, and nothing is written
        await journal.write(taken.pop(), [an_entry("a")])
    assert await journal.take(2.0, 10) == []
    life = journal.life
    assert journal.holds(life)
    del nodes.epochs["n1"]  # now the node itself knows it
    assert not journal.holds(life)
    with pytest.raises(RunLost):
        await journal.write("r1", [an_entry("a")])


async def test_batched_writes_of_many_runs_succeed_individually(nodes: Nodes) -> None:
    first, second = await nodes.start("n1"), await nodes.start("n2")
    for number in range(20):
        await first.create(a_run(f"r{number:02}"), BODY)
    mine = {run.id for run in await first.take(2.0, 10)}
    others = {run.id for run in await second.take(2.0, 10)}
    assert len(mine) == len(others) == 10
    results = await asyncio.gather(
        *(
            first.write(f"r{n:02}", [an_entry("a"), an_entry("a", "done"), an_entry("b")], RunChange(state="waiting"))
            for n in range(20)
        ),
        return_exceptions=True,
    )
    written = {f"r{n:02}" for n, result in enumerate(results) if result is None}
    assert written == mine
    assert all(isinstance(result, RunLost) for result in results if result is not None)
    _, _, entries, _ = await first.load(min(mine))
    assert [(each.path, each.state) for each in entries] == [("a", "done"), ("b", "begun")]
    assert (await first.load(min(others)))[2] == []


async def test_message_makes_a_run_due_and_wakes_the_other_engine(nodes: Nodes) -> None:
    first, second = await nodes.start("n1"), await nodes.start("n2")
    await first.create(a_run("r1"), BODY)
    await first.take(2.0, 10)
    await first.write("r1", [], RunChange(state="asks", asks=[{"path": "a"}]))
    woken = asyncio.Event()
    second.on_changed = woken.set
    assert await second.take(2.0, 10) == []  # it waits and is not taken
    while not woken.is_set():  # until the connection listens
        await first.send("r1", RunMessage(kind="cancel", body={}))
        await asyncio.wait({asyncio.ensure_future(woken.wait())}, timeout=0.2)
    assert await second.changed()
    assert not await second.changed()
    assert [run.id for run in await second.take(2.0, 10)] == ["r1"]
    messages = await second.messages("r1", 0)
    assert messages[0].kind == "cancel"
    assert await second.messages("r1", messages[-1].id) == []


async def test_message_arriving_before_a_run_is_saved_is_not_lost(nodes: Nodes) -> None:
    first, second = await nodes.start("n1"), await nodes.start("n2")
    await first.create(a_run("r1"), BODY)
    await first.take(2.0, 10)
    await second.send("r1", RunMessage(kind="cancel", body={}))
    assert await second.take(2.0, 10) == []  # it belongs to the other node
    await first.write("r1", [], RunChange(state="waiting", due=1e12))
    assert [run.id for run in await second.take(2.0, 10)] == ["r1"]
    await second.send("r1", RunMessage(kind="cancel", body={}))
    assert [run.id for run in await second.take(2.0, 10)] == ["r1"]  # its own, which a message made due
    with pytest.raises(KeyError):
        await first.send("unknown", RunMessage(kind="cancel", body={}))


async def test_briefly_waiting_run_stays_with_its_node(nodes: Nodes) -> None:
    first, second = await nodes.start("n1"), await nodes.start("n2")
    await first.create(a_run("r1"), BODY)
    await first.take(2.0, 10)
    await first.write("r1", [], RunChange(state="waiting", due=3.0, keep=True))
    assert await second.take(4.0, 10) == []
    assert [run.id for run in await first.take(4.0, 10)] == ["r1"]
    await first.write("r1", [], RunChange(state="waiting", due=9.0))
    await second.take(4.0, 10)
    assert await second.next_due() == 9.0


async def test_values_are_encrypted_and_bound_to_their_row(nodes: Nodes) -> None:
    journal = await nodes.start("n1")
    await journal.create(a_run("r1"), BODY)
    await journal.create(a_run("r2"), BODY)
    await journal.take(2.0, 10)
    await journal.write("r1", [an_entry("a", "done")])
    await journal.write("r2", [an_entry("a", "failed")])
    with psycopg.connect(nodes.url, autocommit=True) as db:
        stored = [bytes(row[0]) for row in db.execute("SELECT body FROM run_entries").fetchall()]
        stored += [bytes(row[0]) for row in db.execute("SELECT start FROM runs").fetchall()]
        assert len(stored) == 4
        assert not any(SECRET.encode() in each for each in stored)
        db.execute("UPDATE run_entries SET body = (SELECT body FROM run_entries WHERE run = 'r2') WHERE run = 'r1'")
    with pytest.raises(JournalError, match="decrypted"):
        await journal.load("r1")
    with psycopg.connect(nodes.url, autocommit=True) as db:
        db.execute("UPDATE run_definitions SET body = %s", (b'{"steps": []}',))
    with pytest.raises(JournalError, match="definition"):
        await journal.load("r2")


async def test_unavailable_database_raises_and_is_used_again(nodes: Nodes) -> None:
    journal = await nodes.start("n1")
    await journal.create(a_run("r1"), BODY)
    await journal.take(2.0, 10)
    await journal.write("r1", [an_entry("a")])
    with psycopg.connect(nodes.url, autocommit=True) as db:
        db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'toolway-runs'")
    with pytest.raises(JournalError):
        await journal.write("r1", [an_entry("a", "done")])
    await journal.write("r1", [an_entry("a", "done")])
    with pytest.raises(JournalError):
        await journal.load("r1")
    assert (await journal.load("r1"))[2][0].state == "done"


async def test_stuck_run_needs_resume_and_newer_entries_are_not_read(nodes: Nodes) -> None:
    one = await nodes.start("one")
    await one.create(a_run("r1"), BODY)
    await one.take(2.0, 10)
    await one.write("r1", [an_entry("a", "done")], RunChange(state="stuck", error={"code": "E-X"}, ended=3.0))
    await one.send("r1", RunMessage(kind="cancel", body={}))
    assert await one.take(9.0, 10) == []
    await one.send("r1", RunMessage(kind="resume", body={}))
    [taken] = await one.take(9.0, 10)
    assert (taken.state, taken.error, taken.ended) == ("running", None, None)
    newer = one._codec.seal("r1", "a#1", {"path": "a", "state": "dreaming"})
    with psycopg.connect(nodes.url, autocommit=True) as db:
        db.execute("UPDATE run_entries SET body = %s", (newer,))
    with pytest.raises(NewerRun):
        await one.load("r1")
