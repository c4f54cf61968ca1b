"""The engine with a real hub, a real server and a journal on disk."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.workflows.effect_server import read_effects
from tests.workflows.kill_runner import SERVER_FILE
from tests.workflows.kills import run_with_kills
from toolway import Hub, RestartPolicy, Server
from toolway.errors import AccessDenied
from toolway.types import Json
from toolway.workflows import WorkflowError, Workflows, step_planner
from toolway.workflows.engine.run_clock import RunClock
from toolway.workflows.journal import FINAL_STATES, Entry, NewerRun, RunLost, RunRecord, RunsInUse, definition_hash
from toolway.workflows.run_actions import possible_actions
from toolway.workflows.sqlite_journal import SqliteJournal

pytest.importorskip("cel_expr_python", reason="the extra toolway[workflows] is not installed")
pytestmark = pytest.mark.anyio


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    server = Server(
        command=sys.executable, args=(str(SERVER_FILE), str(tmp_path / "effects")), idempotency_meta_key="key"
    )
    async with Hub({"s": server}) as hub:
        yield hub


@pytest.fixture
async def workflows(hub: Hub, tmp_path: Path) -> AsyncIterator[Workflows]:
    async with Workflows(hub, tmp_path / "runs.db") as workflows:
        yield workflows


def pay(name: str, **keys: Any) -> Json:
    return {"name": name, "tool": "s.pay", "params": {"id": name}, **keys}


async def test_run_all_kinds_of_steps(workflows: Workflows, tmp_path: Path) -> None:
    run = await workflows.start(
        {
            "name": "all",
            "steps": [
                {"name": "a", "tool": "s.read", "params": {"x": "${inputs.x}"}},
                {"name": "b", "tool": "s.pay", "params": {"id": "p${string(steps.a.data.echo.x)}"}},
                {
                    "name": "f",
                    "foreach": "[1, 2, 3].map(n, n * 2)",
                    "at_once": 2,
                    "steps": [
                        {"name": "g", "tool": "s.pay_once", "key": "honored", "params": {"id": "${string(item)}"}}
                    ],
                },
                {"name": "w", "wait": 0.05},
                {"name": "par", "parallel": {"l": [{"name": "p", "tool": "s.put"}], "r": [pay("y")]}},
                {"name": "q", "if": "size(steps.f.data) == 3", "approve": {"title": "Continue?", "who": ["finance"]}},
                {"name": "form", "ask": {"title": "Why?", "form": {"type": "object", "required": ["why"]}}},
            ],
            "outputs": {"why": "${steps.form.data.why}", "b": "${steps.b.data.id}", "f": "${size(steps.f.data)}"},
        },
        {"x": 1},
        caller="ann",
    )
    asked = await run.wait()
    assert [question["path"] for question in asked.asks] == ["q"]
    with pytest.raises(WorkflowError, match="may not answer"):
        await workflows.answer(run.id, "q", {"yes": True}, by="bob")
    await workflows.answer(run.id, "q", {"yes": True}, by="bob", roles=("finance",))
    while (await run.wait()).asks[0]["path"] != "form":
        pass
    with pytest.raises(WorkflowError, match="schema"):
        await workflows.answer(run.id, None, {"data": {}})
    await workflows.answer(run.id, None, {"data": {"why": "because"}})
    assert await run.result() == {"why": "because", "b": "p1", "f": 3}
    assert sorted(each["id"] for each in read_effects(tmp_path / "effects")) == ["", "2", "4", "6", "p1", "y"]


async def test_same_key_returns_the_same_run(workflows: Workflows) -> None:
    first = await workflows.start({"steps": [pay("a")]}, key="k")
    second = await workflows.start({"steps": [pay("a")]}, key="k")
    assert first.id == second.id
    assert (await first.result())["id"] == "a"


async def test_invalid_inputs_are_rejected_before_a_run_exists(workflows: Workflows) -> None:
    with pytest.raises(WorkflowError, match="input of") as caught:
        await workflows.start({"inputs": {"type": "object", "required": ["n"]}, "steps": [pay("a")]}, {})
    assert caught.value.code == "E-WORKFLOW-INPUT"
    assert await workflows.list_runs() == []


async def test_failed_tool_fails_run_with_executed_yes(workflows: Workflows) -> None:
    run = await workflows.start({"steps": [{"name": "x", "tool": "s.fail"}, pay("a")]})
    with pytest.raises(WorkflowError, match="failed"):
        await run.result()
    error = (await run.status()).error or {}
    assert error["executed"] == "yes"
    assert error["step"] == "x"


async def test_run_resumes_in_another_engine(hub: Hub, tmp_path: Path) -> None:
    async with Workflows(hub, tmp_path / "runs.db") as first:
        run = await first.start({"steps": [pay("a"), {"name": "ok", "approve": "?"}, pay("b")]})
        await run.wait()
    async with Workflows(hub, tmp_path / "runs.db") as second:
        await second.answer(run.id, None, {"yes": True})
        async for record in second.watch(run.id):
            if record.state == "done":
                break
    assert [each["id"] for each in read_effects(tmp_path / "effects")] == ["a", "b"]


async def test_closing_engine_lets_running_call_finish(hub: Hub, tmp_path: Path) -> None:
    slow = {"name": "a", "tool": "s.pay", "params": {"id": "a", "delay_after": 0.3}}
    async with Workflows(hub, tmp_path / "runs.db") as first:
        run = await first.start({"steps": [slow, pay("b")]})
        while not read_effects(tmp_path / "effects"):
            await asyncio.sleep(0.01)
    async with Workflows(hub, tmp_path / "runs.db") as second:
        async for record in second.watch(run.id):
            assert record.state != "asks", "the outcome of the call was lost"
    assert [each["id"] for each in read_effects(tmp_path / "effects")] == ["a", "b"]


async def test_cancel_ends_a_waiting_run(workflows: Workflows) -> None:
    run = await workflows.start({"steps": [{"name": "w", "wait": "1h"}, pay("a")]})
    while (await run.status()).state != "waiting":
        await asyncio.sleep(0.01)
    await workflows.cancel(run.id, by="ann")
    assert (await run.wait()).state == "cancelled"


async def test_failed_run_is_undone(workflows: Workflows, tmp_path: Path) -> None:
    undo = {"tool": "s.pay", "params": {"id": "undo-${steps.a.data.id}"}}
    run = await workflows.start({"on_failure": "undo", "steps": [pay("a", undo=undo), {"name": "x", "tool": "s.fail"}]})
    assert (await run.wait()).state == "undone"
    assert [each["id"] for each in read_effects(tmp_path / "effects")] == ["a", "undo-a"]


async def test_second_process_cannot_use_the_same_journal(workflows: Workflows, hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(RunsInUse, match="another process") as caught:
        async with Workflows(hub, tmp_path / "runs.db"):
            pass
    assert caught.value.code == "E-RUNS-IN-USE"


async def test_timed_out_call_asks_before_it_is_repeated(workflows: Workflows, tmp_path: Path) -> None:
    step = {"name": "a", "tool": "s.pay", "params": {"id": "a", "delay_after": 5}, "timeout": "300ms"}
    run = await workflows.start({"steps": [step]})
    asked = await run.wait()
    assert [question["kind"] for question in asked.asks] == ["unknown"]
    await workflows.settle(run.id, None, happened=True, result={"seen": 1}, by="ann")
    assert await run.result() == {"seen": 1}
    assert len(read_effects(tmp_path / "effects")) == 1


def test_killed_processes_neither_double_nor_lose_effects(tmp_path: Path) -> None:
    report = run_with_kills(tmp_path, 12, seed=1, most=0.8, max_kills=5)
    assert report.is_good, report
    assert report.kills


async def test_supported_idempotency_key_is_resent_after_unknown(workflows: Workflows, tmp_path: Path) -> None:
    step = {"name": "a", "tool": "s.pay_once", "key": "honored", "params": {"id": "a", "first_delay_after": 5}}
    run = await workflows.start({"steps": [{**step, "timeout": "500ms", "retry": {"tries": 5, "wait": "100ms"}}]})
    assert (await run.result())["id"] == "a"
    assert [each.state for each in (await workflows.load(run.id))[2]][-1] == "done"
    assert len(read_effects(tmp_path / "effects")) == 1


async def test_child_run_starts_once_and_wakes_its_parent(hub: Hub, workflows: Workflows, tmp_path: Path) -> None:
    (tmp_path / "child.yaml").write_text(
        """
inputs: {type: object, required: [id]}
steps:
  - {name: first, tool: s.pay, params: {id: "${inputs.id}"}}
  - {name: ok, approve: "Continue with ${inputs.id}?"}
outputs: {paid: "${inputs.id}"}
"""
    )
    (tmp_path / "parent.yaml").write_text(
        """
steps:
  - {name: each, foreach: "['a', 'b']", at_once: 2, steps: [{name: go, workflow: child.yaml, params: {id: "${item}"}}]}
  - {name: bad, workflow: child.yaml, catch: [{}]}
outputs: "${steps.each.data}"
"""
    )
    parent = await workflows.start(tmp_path / "parent.yaml")
    while len(asking := await workflows.list_runs("asks")) < 2:
        await asyncio.sleep(0.02)
    # The parent leaves memory; its children end later.
    while (await parent.status()).state != "waiting":
        await asyncio.sleep(0.02)
    for child in asking:
        assert (child.key or "").startswith(f"child:{parent.id}/each[")
        await workflows.answer(child.id, None, {"yes": True})
    assert await parent.result() == [{"paid": "a"}, {"paid": "b"}]
    _, _, entries, _ = await workflows.load(parent.id)
    assert {each.path: (each.kind, each.state) for each in entries} == {
        "each[0]/go": ("child", "done"),
        "each[1]/go": ("child", "done"),
        "bad": ("child", "failed"),
    }
    assert sorted(each["id"] for each in read_effects(tmp_path / "effects")) == ["a", "b"]


async def test_cancel_reaches_child_runs(workflows: Workflows) -> None:
    child = {"name": "inner", "steps": [{"name": "ok", "approve": "Continue?"}]}
    parent = await workflows.start({"name": "outer", "steps": [{"name": "go", "workflow": child}]})
    while (await parent.status()).state != "waiting":
        await asyncio.sleep(0.02)
    await workflows.cancel(parent.id)
    with pytest.raises(WorkflowError, match="cancelled"):
        await parent.result()
    while len(await workflows.list_runs("cancelled")) < 2:
        await asyncio.sleep(0.02)


async def test_schedule_runs_once_after_downtime_then_on_time(hub: Hub, tmp_path: Path) -> None:
    now = 1_000_000.0
    flow = {
        "name": "hourly",
        "schedule": {"every": "1h", "inputs": {"id": "x"}},
        "steps": [{"name": "p", "tool": "s.pay", "params": {"id": "${inputs.id}${string(int(run.started))}"}}],
    }
    async with Workflows(hub, tmp_path / "runs.db", clock=lambda: now) as workflows:
        first = await workflows.schedule(flow)
        assert (await workflows.schedule(flow)).id == first.id
        assert (await first.status()).due == 1_000_800.0
    now += 5 * 3600  # nothing ran in the meantime
    async with Workflows(hub, tmp_path / "runs.db", clock=lambda: now) as workflows:
        await workflows.schedule(flow)
        async for _ in workflows.watch(first.id):
            pass
        while not (waiting := await workflows.list_runs("waiting")):
            await asyncio.sleep(0.02)
        assert [each.due for each in waiting] == [1_018_800.0]
        changed = {**flow, "schedule": {"cron": "0 0 * * *", "timezone": "Europe/Berlin"}, "inputs": {"type": "object"}}
        await workflows.schedule(changed)
        while len(waiting := await workflows.list_runs("waiting")) != 1 or waiting[0].due == 1_018_800.0:
            await asyncio.sleep(0.02)
        await workflows.unschedule("hourly")
        while await workflows.list_runs("waiting"):
            await asyncio.sleep(0.02)
    assert [each["id"] for each in read_effects(tmp_path / "effects")] == ["x1000800"]


class RevokedOnce:
    """Rights of a starter that are gone until `is_valid` is set."""

    is_valid = False

    def caller_id(self, caller: str) -> str:
        return ""

    def user_of(self, caller: str) -> str:
        return caller

    def find_problem(self, caller: str, tool: str, arguments: Json | None = None) -> AccessDenied | None:
        return None if self.is_valid else AccessDenied("the key was revoked", code="E-WORKFLOW-STARTER")


async def test_stuck_run_resumes_where_it_stopped(hub: Hub, tmp_path: Path) -> None:
    access = RevokedOnce()
    access.is_valid = True
    async with Workflows(hub, tmp_path / "runs.db", access=access) as workflows:
        run = await workflows.start({"steps": [pay("a"), {"name": "ok", "approve": "Continue?"}, pay("b")]})
        assert (await run.wait()).state == "asks"
        with pytest.raises(WorkflowError, match="is asks"):
            await workflows.resume(run.id)
        access.is_valid = False
        await workflows.answer(run.id, None, {"yes": True})
        stuck = await run.wait()
        assert (stuck.state, (stuck.error or {})["code"]) == ("stuck", "E-WORKFLOW-STARTER")
        _, _, entries, _ = await workflows.load(run.id)
        assert [each["action"] for each in possible_actions(stuck, entries)] == ["resume"]
        access.is_valid = True
        await workflows.resume(run.id)
        assert (await run.wait()).state == "done"
    assert [each["id"] for each in read_effects(tmp_path / "effects")] == ["a", "b"]


async def test_run_of_newer_version_is_left_alone(hub: Hub, tmp_path: Path) -> None:
    import sqlite3

    async with Workflows(hub, tmp_path / "runs.db") as workflows:
        newer = await workflows.start({"steps": [{"name": "ok", "approve": "?"}, pay("a")]})
        await newer.wait()
        with sqlite3.connect(tmp_path / "runs.db") as db:
            body = '{"path": "ok", "state": "dreaming", "kind": "call"}'
            db.execute("UPDATE entries SET body = ? WHERE run = ?", (body.encode(), newer.id))
            db.execute("UPDATE runs SET due = 0 WHERE id = ?", (newer.id,))
        other = await workflows.start({"steps": [pay("b")]})
        assert (await other.wait()).state == "done"
        async with asyncio.timeout(30):
            while (record := (await workflows.list_runs("waiting"))[:1]) == []:
                await asyncio.sleep(0.02)
        assert record[0].id == newer.id and (record[0].due or 0) > record[0].created
        with pytest.raises(NewerRun):
            await workflows.load(newer.id)
    assert [each["id"] for each in read_effects(tmp_path / "effects")] == ["b"]


async def test_batched_writes_leave_out_a_lost_run(tmp_path: Path) -> None:
    import sqlite3

    journal = SqliteJournal(tmp_path / "runs.db")
    for name in "abc":
        await journal.create(RunRecord(id=name, workflow="w", definition=definition_hash({}), due=0.0), {})
    await journal.take(1.0, 10)
    with sqlite3.connect(tmp_path / "runs.db") as db:
        db.execute("UPDATE runs SET life = 99 WHERE id = 'b'")
    gate = threading.Event()
    held = asyncio.ensure_future(journal._submit(lambda db: gate.wait(30)))
    await asyncio.sleep(0)
    entry = Entry(path="pay", state="begun")
    writes = [asyncio.ensure_future(journal.write(name, [entry])) for name in "abcac"]
    await asyncio.sleep(0)
    gate.set()
    found = await asyncio.gather(*writes, return_exceptions=True)
    await held
    assert [type(each) for each in found] == [type(None), RunLost, type(None), type(None), type(None)]
    assert [len((await journal.load(name))[2]) for name in "abc"] == [1, 0, 1]
    await journal.close()


@pytest.mark.attack("A2-S2")
async def test_clock_set_back_does_not_delay_a_waiting_run(hub: Hub, tmp_path: Path) -> None:
    back = 0.0
    body = {"steps": [{"name": "w", "wait": 4}, pay("a")]}
    async with Workflows(hub, tmp_path / "runs.db", clock=lambda: time.time() - back) as engine:
        run = await engine.start(body)
        while (await run.status()).state != "waiting":
            await asyncio.sleep(0.01)
        back = 3600.0
        engine._wake.set()
        async with asyncio.timeout(60):
            await run.result()
    assert [each["id"] for each in read_effects(tmp_path / "effects")] == ["a"]


def test_run_clock_ignores_backward_jumps_and_follows_forward() -> None:
    now = {"wall": 1000.0, "monotonic": 5.0}
    clock = RunClock(lambda: now["wall"], lambda: now["monotonic"])

    def passes(seconds: float, jump: float = 0.0) -> float:
        now["wall"] += seconds + jump
        now["monotonic"] += seconds
        return clock()

    assert passes(10.0) == 1010.0
    assert passes(10.0, -3600.0) == 1019.0
    assert passes(100.0) == pytest.approx(1109.0)
    assert passes(1.0, 7200.0) == now["wall"]
    assert passes(1.0) == now["wall"]


@pytest.mark.attack("A2-S5")
async def test_run_waits_for_a_failed_server_and_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The restart limit of the server holds the run: it continues when the server is back."""
    monkeypatch.setattr(step_planner, "HOLD_POLL_S", 0.2)
    program = tmp_path / "server.py"
    program.write_text("raise SystemExit(3)")
    quick = RestartPolicy(initial_backoff=0.05, max_backoff=0.1, max_restarts=2, failed_retry_interval=0.5)
    server = Server(command=sys.executable, args=(str(program), str(tmp_path / "effects")), restart=quick)
    steps = [{"name": "r", "tool": "s.read", "effect": "read", "params": {}, "retry": {"tries": 2, "wait": 0.05}}]
    async with Hub({"s": server}) as hub, Workflows(hub, tmp_path / "runs.db") as engine:
        run = await engine.start({"steps": [*steps, pay("a")]})
        async with asyncio.timeout(90):
            while not any(each.state == "not_executed" for each in (await engine.load(run.id))[2]):
                await asyncio.sleep(0.05)
            await asyncio.sleep(3)  # longer than all attempts
            assert (await run.status()).state not in FINAL_STATES
            program.write_text(SERVER_FILE.read_text())
            await run.result()
    assert [each["id"] for each in read_effects(tmp_path / "effects")] == ["a"]
