"""A journal file with a row that cannot be read, or whose thread has ended: what it costs the other runs."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.workflows.effect_server import read_effects
from tests.workflows.kill_runner import SERVER_FILE
from toolway import Hub, Server
from toolway._worker_thread import dead_workers
from toolway.events import Alert, Event
from toolway.parts.workflows.admin import RunsAdmin
from toolway.telemetry.alerts import alert_from_event
from toolway.types import Json
from toolway.workflows import WorkflowError, Workflows
from toolway.workflows.journal import JournalError, RunDamaged, RunMessage, RunRecord
from toolway.workflows.sqlite_journal import SqliteJournal

pytest.importorskip("cel_expr_python", reason="the extra toolway[workflows] is not installed")
pytestmark = pytest.mark.anyio

#: One damage for each table, and for each column that is decoded or compared. The statement damages the run `{run}`.
DAMAGES = {
    "entry, not JSON": "UPDATE entries SET body = '{{' WHERE run = '{run}' AND path = 'a'",
    "entry, a number": "UPDATE entries SET body = 7 WHERE run = '{run}' AND path = 'a'",
    "entry, not UTF-8": "UPDATE entries SET body = x'7b22ff' WHERE run = '{run}' AND path = 'a'",
    "entry of another step": "UPDATE entries SET path = 'b' WHERE run = '{run}' AND path = 'a'",
    "message, not JSON": "UPDATE inbox SET body = 'x' WHERE run = '{run}'",
    "definition, not JSON": "UPDATE definitions SET body = 'x' WHERE name = 'bad'",
    "definition, changed": "UPDATE definitions SET body = '{{}}' WHERE name = 'bad'",
    "definition, gone": "DELETE FROM definitions WHERE name = 'bad'",
    "input, not JSON": "UPDATE runs SET input = '[' WHERE id = '{run}'",
    "variables, not JSON": "UPDATE runs SET variables = x'00' WHERE id = '{run}'",
    "questions, not a list": "UPDATE runs SET asks = '1' WHERE id = '{run}'",
    "caller, not UTF-8": "UPDATE runs SET caller = CAST(x'ff' AS TEXT) WHERE id = '{run}'",
    "time, a text": "UPDATE runs SET created = 'soon' WHERE id = '{run}'",
}


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    server = Server(command=sys.executable, args=(str(SERVER_FILE), str(tmp_path / "effects")))
    async with Hub({"s": server}) as hub:
        yield hub


def flow(name: str) -> Json:
    """Return a workflow that has an entry, a message and a question before its unsafe step."""
    first = {"name": "a", "tool": "s.put", "params": {"id": f"{name}-first"}}
    question = {"name": "q", "approve": "Go?"}
    return {"name": name, "steps": [first, question, {"name": "pay", "tool": "s.pay", "params": {"id": name}}]}


def change(journal: Path, statement: str) -> None:
    with sqlite3.connect(journal) as db:
        assert db.execute(statement).rowcount == 1


async def ended(engine: Workflows, id: str) -> RunRecord:
    return [record async for record in engine.watch(id)][-1]


@pytest.mark.attack("A2-D1")
@pytest.mark.parametrize("damage", DAMAGES)
async def test_damaged_row_affects_only_its_run(hub: Hub, tmp_path: Path, damage: str) -> None:
    journal = tmp_path / "runs.db"
    async with Workflows(hub, journal) as engine:
        runs = {name: await engine.start(flow(name), {}) for name in ("bad", "good")}
        for run in runs.values():
            await run.wait()
            await engine._get_journal().send(run.id, RunMessage(kind="answer", path="other", body={}))
            while (await run.status()).due is not None:
                await asyncio.sleep(0.02)
    change(journal, DAMAGES[damage].format(run=runs["bad"].id))
    events: list[Event] = []
    async with Workflows(hub, journal) as engine:
        engine._emit = events.append  # type: ignore[method-assign, assignment]
        bad, good = runs["bad"].id, runs["good"].id
        new = await engine.start(flow("new"), {})
        await engine.answer(good, "q", {"yes": True})
        await engine._get_journal().send(bad, RunMessage(kind="answer", path="q", body={"yes": True}))
        async with asyncio.timeout(60):
            await ended(engine, good)
            record = await ended(engine, bad)
            async for asking in engine.watch(new.id):
                if asking.state == "asks":
                    break
        assert (await engine.get(good)).state == "done"
        assert (record.state, (record.error or {})["code"]) == ("damaged", "E-WORKFLOW-DAMAGED")
        alerts = [alert for event in events if (alert := alert_from_event(event)) is not None]
        assert [(alert.kind, alert.call) for alert in alerts] == [("workflow-damaged", bad)]
        admin = RunsAdmin(lambda: engine, dict, lambda text: text)
        shown = {each["id"]: each for each in (await admin.list_runs(""))["runs"]}
        assert {id: each["state"] for id, each in shown.items()} == {bad: "damaged", good: "done", new.id: "asks"}
        assert shown[bad]["code"] == "E-WORKFLOW-DAMAGED"
        assert "resume" in (await admin.get_run(bad))["error"]
        with pytest.raises(WorkflowError):
            await engine.answer(bad, "q", {"yes": True})
    assert [each["id"] for each in read_effects(tmp_path / "effects") if each["tool"] == "pay"] == ["good"]


async def test_damaged_run_resumes_after_its_row_is_restored(hub: Hub, tmp_path: Path) -> None:
    journal = tmp_path / "runs.db"
    async with Workflows(hub, journal) as engine:
        run = await engine.start(flow("a"), {})
        await run.wait()
        stored = await engine._get_journal().load(run.id)
    with sqlite3.connect(journal) as db:
        (body,) = db.execute("SELECT body FROM entries WHERE run = ? AND path = 'a'", (run.id,)).fetchone()
        db.execute("UPDATE entries SET body = 'x' WHERE run = ? AND path = 'a'", (run.id,))
    async with Workflows(hub, journal) as engine:
        await engine.answer(run.id, "q", {"yes": True})
        record = await ended(engine, run.id)
        assert record.state == "damaged"
        with sqlite3.connect(journal) as db:
            db.execute("UPDATE entries SET body = ? WHERE run = ? AND path = 'a'", (body, run.id))
        await engine.resume(run.id)
        record = await ended(engine, run.id)
        assert record.state == "done", stored
    assert [each["id"] for each in read_effects(tmp_path / "effects")] == ["a-first", "a"]


async def test_damaged_run_raises_an_alert_with_fix() -> None:
    from toolway.events import RunChanged

    event = RunChanged("workflows", "r1", "w", "damaged", code="E-WORKFLOW-DAMAGED")
    alert = alert_from_event(event)
    assert isinstance(alert, Alert)
    assert (alert.kind, alert.detail) == ("workflow-damaged", "E-WORKFLOW-DAMAGED")
    assert "toolway workflow resume r1" in alert.hint


async def test_failed_action_does_not_fail_its_batch(tmp_path: Path) -> None:
    """An error of SQLite, or of ours, in one action: the others of the same commit are stored."""
    import threading

    journal = SqliteJournal(tmp_path / "runs.db")
    gate = threading.Event()
    held = asyncio.ensure_future(journal._submit(lambda db: gate.wait(30)))
    await asyncio.sleep(0)

    def add(number: int) -> asyncio.Future[Any]:
        statement = f"INSERT INTO meta VALUES ('n{number}', 1)"
        return asyncio.ensure_future(journal._submit(lambda db: db.execute(statement).rowcount))

    def fail(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO meta VALUES ('half', 1)")
        raise ZeroDivisionError

    works: list[asyncio.Future[Any]] = [
        add(1),
        asyncio.ensure_future(journal._submit(fail)),
        add(2),
        asyncio.ensure_future(journal._submit(lambda db: db.execute("SELECT * FROM nothing"))),
        add(3),
    ]
    await asyncio.sleep(0)
    gate.set()
    found = await asyncio.gather(*works, return_exceptions=True)
    await held
    assert [type(each) for each in found] == [int, JournalError, int, JournalError, int]
    rows = await journal._submit(lambda db: db.execute("SELECT name FROM meta WHERE name > 'm'").fetchall())
    assert [name for (name,) in rows] == ["n1", "n2", "n3"]
    await journal.close()


@pytest.mark.attack("A2-D1")
async def test_dead_journal_thread_fails_all_requests_at_once(hub: Hub, tmp_path: Path) -> None:
    """If the thread ends, waiting and later operations fail at once and report it; the engine still closes."""

    def end(db: sqlite3.Connection) -> None:
        raise SystemExit

    async with asyncio.timeout(30), Workflows(hub, tmp_path / "runs.db") as engine:
        journal = engine._get_journal()
        assert isinstance(journal, SqliteJournal)
        works: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(journal._submit(end)),
            asyncio.ensure_future(journal.next_due()),
        ]
        found = await asyncio.gather(*works, return_exceptions=True)
        assert [getattr(each, "code", each) for each in found] == ["E-WORKER", "E-WORKER"]
        with pytest.raises(JournalError) as later:
            await engine.start(flow("a"), {})
        assert later.value.code == "E-WORKER"
        assert dead_workers() == ["toolway-runs"]
    assert dead_workers() == []  # its owner is closed
    async with Workflows(hub, tmp_path / "runs.db") as engine:
        await engine.start(flow("a"), {})


async def test_damage_error_names_the_entry(tmp_path: Path) -> None:
    error = RunDamaged("r1", "the entry pay#1: not JSON")
    assert "pay#1" in error.detail
    assert "toolway workflow resume r1" in error.hint
