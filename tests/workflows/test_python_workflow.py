"""Workflows in Python: replay, crashes at every point, changed code, waits in another process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.workflows.effect_server import read_effects
from tests.workflows.harness import CodeSimulation
from tests.workflows.kill_runner import SERVER_FILE
from toolway import Hub, Server
from toolway.workflows import (
    RunContext,
    StepFailed,
    StepUnknown,
    WorkflowError,
    Workflows,
    verify,
    workflow,
)
from toolway.workflows.journal import RunRecord
from toolway.workflows.sqlite_journal import SqliteJournal
from toolway.workflows.step_planner import CallAction, entry_for


@workflow
async def sequence(run: RunContext) -> Any:
    token = run.uuid()
    await run.call("s.pay", {"id": "a", "at": run.now(), "token": token})
    await run.call("s.read")
    await run.call("s.pay", {"id": "b", "token": token, "lot": run.random()})
    return token


@workflow
async def verified(run: RunContext) -> Any:
    check = verify("s.list", {"id": "a"}, lambda found: found.data["items"], result=lambda found: found.data["items"])
    return (await run.call("s.pay", {"id": "a"}, on_unknown=check)).data


@workflow
async def branches(run: RunContext, items: list[str]) -> Any:
    async def pay(item: str) -> Any:
        await run.call("s.put", {"id": item})
        await run.call("s.pay", {"id": item})
        return item

    async def keyed() -> Any:
        await run.call("s.pay_once", {"id": "k"}, key_honored=True)
        return "k"

    paid = await run.each(items, pay, at_once=2)
    both = await run.gather(keyed(), pay("last"))
    return [paid, both]


@workflow
async def waits(run: RunContext) -> Any:
    await run.call("s.pay", {"id": "a"})
    await run.wait("3d")
    await run.approve("Continue?", who=["finance"])
    answer = await run.ask("How many?", {"type": "object"})
    await run.call("s.pay", {"id": "b"}, name="second")
    return answer


@workflow
async def caught(run: RunContext) -> Any:
    try:
        await run.call("s.fail")
    except StepFailed:
        await run.call("s.pay", {"id": "a"})
    return "caught"


CODE = {
    "sequence": (sequence, {}),
    "verified": (verified, {}),
    "branches": (branches, {"items": ["x", "y", "z"]}),
    "waits": (waits, {}),
    "caught": (caught, {}),
}


@pytest.mark.parametrize("name", CODE)
def test_crash_at_any_point_repeats_no_unsafe_call(name: str) -> None:
    code, inputs = CODE[name]
    plain = CodeSimulation(code, inputs)
    whole = plain.run()
    assert whole.state == "done"
    points = 0

    def count(point: str) -> bool:
        nonlocal points
        points += 1
        return False

    CodeSimulation(code, inputs).run(count)
    assert points >= 5
    for crash_at in range(points):
        seen = 0

        def crash(point: str, at: int = crash_at) -> bool:
            nonlocal seen
            seen += 1
            return seen == at + 1

        run = CodeSimulation(code, inputs)
        ended = run.run(crash)
        assert ended.state == "done", (crash_at, ended.error)
        assert run.effects == plain.effects, crash_at


def test_time_and_randomness_are_stable_in_replay() -> None:
    run = CodeSimulation(sequence)
    crashes = iter([False] * 7 + [True])
    ended = run.run(lambda point: next(crashes, False))
    assert ended.state == "done"
    tokens = {entry.args["token"] for entry in run.journal.values() if entry.tool == "s.pay"}
    assert len(tokens) == 1
    assert ended.output == tokens.pop()


def test_changed_code_makes_run_stuck_and_calls_nothing() -> None:
    run = CodeSimulation(waits)
    crashes = iter([False] * 4 + [True])

    class Stop(Exception):
        pass

    def crash(point: str) -> bool:
        if next(crashes, False):
            raise Stop
        return False

    with pytest.raises(Stop):
        run.run(crash)
    assert run.effects == {"a": 1}

    @workflow(name="waits")
    async def changed(run: RunContext) -> Any:
        await run.call("s.pay", {"id": "other"})

    run.code = changed
    ended = run.run()
    assert (ended.state, (ended.error or {})["code"]) == ("stuck", "E-WORKFLOW-CHANGED")
    assert run.effects == {"a": 1}


def test_failed_branch_starts_no_new_step() -> None:
    @workflow
    async def code(run: RunContext) -> Any:
        async def item(number: int) -> Any:
            await run.call("s.fail" if number == 0 else "s.pay", {"id": str(number)})
            await run.call("s.pay", {"id": f"{number} again"})

        await run.each(range(5), item, at_once=2)

    run = CodeSimulation(code)
    ended = run.run()
    assert ended.state == "failed"
    assert run.effects == {"1": 1}


def test_failed_run_is_undone_by_functions_of_results() -> None:
    @workflow(undo_on_failure=True)
    async def code(run: RunContext) -> Any:
        await run.call("s.pay", {"id": "a"}, undo=("s.pay", lambda paid: {"id": f"back {paid.data['id']}"}))
        await run.call("s.pay", {"id": "b"}, undo=("s.pay", lambda paid: {"id": f"back {paid.data['id']}"}))
        raise ValueError("too late")

    run = CodeSimulation(code)
    ended = run.run()
    assert ended.state == "undone"
    assert (ended.error or {})["message"] == "ValueError: too late"
    assert list(run.effects) == ["a", "b", "back b", "back a"]


def test_failed_undo_function_makes_run_stuck() -> None:
    @workflow(undo_on_failure=True)
    async def code(run: RunContext) -> Any:
        await run.call("s.pay", {"id": "a"}, undo=("s.pay", lambda paid: {"id": paid.data["missing"]}))
        raise ValueError("too late")

    assert CodeSimulation(code).run().state == "stuck"


def test_unknown_outcome_is_raised_if_requested() -> None:
    @workflow
    async def code(run: RunContext) -> Any:
        try:
            await run.call("s.pay", {"id": "a"}, on_unknown="fail")
        except StepUnknown as exc:
            return exc.error["executed"]

    def reply(action: CallAction) -> Any:
        body = {"code": "E-X", "message": "lost", "executed": "unknown"}
        return replace(entry_for(action, 1, 0.0), state="unknown", ended=0.0, body=body)

    run = CodeSimulation(code)
    run.reply = reply
    assert run.run().output == "unknown"


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    server = Server(
        command=sys.executable, args=(str(SERVER_FILE), str(tmp_path / "effects")), idempotency_meta_key="key"
    )
    async with Hub({"s": server}) as hub:
        yield hub


async def _wait_for_question(workflows: Workflows, id: str) -> RunRecord:
    async for record in workflows.watch(id):
        if record.asks:
            return record
    raise AssertionError("the run ended")


@pytest.mark.anyio
async def test_run_resumes_in_another_engine_and_leaves_no_task(hub: Hub, tmp_path: Path) -> None:
    ended: list[str] = []

    @workflow
    async def code(run: RunContext, order: str) -> Any:
        try:
            await run.call("s.pay", {"id": order})
            found = await run.do(lambda: asyncio.sleep(0, {"n": 2}), name="count", effect="read")
            await run.approve("Continue?")
            await asyncio.sleep(0.05)  # not a step
            await run.call("s.pay", {"id": f"{order}/{found['n']}"})
        except BaseException as exc:
            ended.append(type(exc).__name__)
            raise
        return "done"

    async with Workflows(hub, tmp_path / "runs.db") as workflows:
        with pytest.raises(WorkflowError, match="do not match"):
            await workflows.start(code, {"wrong": 1})
        run = await workflows.start(code, {"order": "A"}, key="A")
        assert (await workflows.start(code, {"order": "A"}, key="A")).id == run.id
        await _wait_for_question(workflows, run.id)
    assert ended == ["Suspended"]
    async with Workflows(hub, tmp_path / "runs.db", code=[code]) as workflows:
        await workflows.answer(run.id, None, {"yes": True}, by="ann")
        assert [record.output async for record in workflows.watch(run.id)][-1] == "done"
    assert [each["id"] for each in read_effects(tmp_path / "effects")] == ["A", "A/2"]


@pytest.mark.anyio
async def test_step_started_during_a_write_is_not_missed(hub: Hub, tmp_path: Path) -> None:
    written = asyncio.Event()

    class SlowJournal(SqliteJournal):
        async def write(self, run: str, entries: Any, change: Any = None) -> None:
            await super().write(run, entries, change)
            if any(each.path in ("s.pay#1", "s.pay#2") and each.state == "done" for each in entries):
                written.set()
                await began.wait()
                began.clear()

    began = asyncio.Event()

    @workflow
    async def code(run: RunContext) -> Any:
        await run.call("s.pay", {"id": "1"})
        await written.wait()  # not a step
        asyncio.get_running_loop().call_soon(began.set)
        written.clear()
        await run.call("s.pay", {"id": "2"})
        await written.wait()
        asyncio.get_running_loop().call_soon(began.set)

    async with asyncio.timeout(20), Workflows(hub, SlowJournal(tmp_path / "runs.db")) as workflows:
        await (await workflows.start(code, {})).result()
    assert [each["id"] for each in read_effects(tmp_path / "effects")] == ["1", "2"]


@pytest.mark.anyio
async def test_run_without_its_code_waits(hub: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with Workflows(hub, tmp_path / "runs.db") as workflows:
        run = await workflows.start(waits, {})
        while (await run.status()).state != "waiting":
            await asyncio.sleep(0.01)
        assert (await workflows.load(run.id))[2][-1].kind == "wait"
        await workflows.cancel(run.id)
        with pytest.raises(WorkflowError, match="cancelled"):
            await run.result()
    now = 10.0 * 86_400
    async with Workflows(hub, tmp_path / "again.db", clock=lambda: now) as workflows:
        asking = await workflows.start(waits, {})
        while (await asking.status()).state != "waiting":
            await asyncio.sleep(0.01)
    async with Workflows(hub, tmp_path / "again.db", clock=lambda: now + 4 * 86_400) as workflows:
        while "pass the Python workflow waits" not in caplog.text:
            await asyncio.sleep(0.01)
    assert [each["id"] for each in read_effects(tmp_path / "effects")] == ["a", "a"]


@pytest.mark.anyio
async def test_child_run_returns_output_or_failure(hub: Hub, tmp_path: Path) -> None:
    @workflow
    async def inner(run: RunContext, id: str) -> Any:
        await run.call("s.pay" if id == "good" else "s.fail", {"id": id})
        return id

    @workflow
    async def outer(run: RunContext) -> Any:
        failed = ""
        try:
            await run.start(inner, {"id": "bad"})
        except StepFailed as exc:
            failed = exc.error["executed"]
        file = {"name": "file", "steps": [{"name": "a", "tool": "s.pay", "params": {"id": "in a file"}}]}
        return [failed, await run.start(inner, {"id": "good"}), (await run.start(file))["id"]]

    async with Workflows(hub, tmp_path / "runs.db") as workflows:
        run = await workflows.start(outer)
        assert await run.result() == ["yes", "good", "in a file"]
