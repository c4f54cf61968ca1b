"""Faults during a workflow run, with a real server and a journal on disk.

A crash is a journal that stops answering at an exact point: what was not written by then is lost, as when a process
dies. `make workflows` kills real processes at random moments.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.bridge_lab import made
from tests.parts.workflows.test_gateway import WITH_ALL, serving
from tests.workflows.effect_server import read_effects
from tests.workflows.journal_loss import KINDS, run_with_loss
from tests.workflows.kill_runner import effect_server
from toolway import Effect, Hub, ToolSettings
from toolway.gateway.principals import FileApiKeyStore
from toolway.types import Json
from toolway.workflows import RunContext, WorkflowError, Workflows, workflow
from toolway.workflows.journal import Entry, JournalError, RunChange, RunRecord, RunsInUse
from toolway.workflows.sqlite_journal import SqliteJournal

pytest.importorskip("cel_expr_python", reason="the extra toolway[workflows] is not installed")
pytestmark = pytest.mark.anyio


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    async with Hub({"s": effect_server(tmp_path)}) as hub:
        await hub.list_tools()
        yield hub


class CrashJournal(SqliteJournal):
    """Journal whose process ends at the point that `crash(point, entries, change)` chooses: before or after a write."""

    def __init__(self, path: Path, crash: Callable[[str, Sequence[Entry], RunChange | None], bool]) -> None:
        super().__init__(path)
        self._crash = crash
        self.crashed = asyncio.Event()

    async def write(self, run: str, entries: Sequence[Entry], change: RunChange | None = None) -> None:
        self._require(not self._crash("before", entries, change))
        await super().write(run, entries, change)
        self._require(not self._crash("after", entries, change))

    async def create(self, run: RunRecord, definition: Json) -> RunRecord:
        self._require(not self._crash("before create", (), None))
        created = await super().create(run, definition)
        self._require(not self._crash("after create", (), None))
        return created

    async def take(self, now: float, room: int) -> list[RunRecord]:
        self._require(True)
        return await super().take(now, room)

    def _require(self, is_alive: bool) -> None:
        if not is_alive:
            self.crashed.set()
        if self.crashed.is_set():
            raise JournalError("the process has ended")


@asynccontextmanager
async def running_engine(
    hub: Hub,
    folder: Path,
    crash: Callable[[str, Sequence[Entry], RunChange | None], bool] = lambda *facts: False,
    **options: Any,
) -> AsyncIterator[tuple[Workflows, asyncio.Event]]:
    """One process: an engine that is dropped without a word when its journal has crashed."""
    journal = CrashJournal(folder / "runs.db", crash)
    engine = Workflows(hub, journal, **options)
    await engine.__aenter__()
    try:
        yield engine, journal.crashed
    finally:
        if journal.crashed.is_set():
            for run in engine._active.values():
                if run.task is not None:
                    run.task.cancel()
        await engine.aclose()


def has(entries: Sequence[Entry], path: str, state: str) -> bool:
    return any(each.path == path and each.state == state for each in entries)


def pay(name: str, **keys: Any) -> Json:
    return {"name": name, "tool": "s.pay", "params": {"id": name}, **keys}


def verified(name: str) -> Json:
    verify = {
        "tool": "s.list",
        "params": {"id": name},
        "happened": "reply.data.items.size() > 0",
        "result": "reply.data.items[0]",
        "after": "10ms",
    }
    return pay(name, on_unknown={"verify": verify}, timeout="1s")


def effects(folder: Path) -> list[str]:
    return [each["id"] for each in read_effects(folder / "effects")]


async def finish(hub: Hub, folder: Path, key: str, body: Json) -> tuple[RunRecord, list[str]]:
    """Continue in a new process until the run has ended; answer unknown outcomes by effects. Return the questions."""
    asked = []
    async with running_engine(hub, folder) as (engine, _):
        run = await engine.start(body, key=key)
        while (record := await run.wait()).state == "asks":
            for question in record.asks:
                asked.append(question["path"])
                happened = question["path"].removeprefix("undo/") in effects(folder)
                if question["path"].startswith("undo/"):
                    happened = f"not {question['path'].removeprefix('undo/')}" in effects(folder)
                await engine.settle(run.id, question["path"], happened=happened)
            while engine.is_asking(await run.status()):
                await asyncio.sleep(0.01)
            while (await run.status()).due is not None:
                await asyncio.sleep(0.01)
        return record, asked


@pytest.mark.fault("F1", "F2")
@pytest.mark.parametrize("point", ["before create", "after create"])
async def test_run_created_during_a_crash_exists_once(hub: Hub, tmp_path: Path, point: str) -> None:
    body = {"steps": [pay("a")]}
    async with running_engine(hub, tmp_path, lambda at, entries, change: at == point) as (engine, _):
        with pytest.raises(JournalError):
            await engine.start(body, key="k")
    record, _ = await finish(hub, tmp_path, "k", body)
    async with running_engine(hub, tmp_path) as (engine, _):
        assert [each.id for each in await engine.list_runs()] == [record.id]
    assert effects(tmp_path) == ["a"]


@pytest.mark.fault("F3", "F4", "F6")
@pytest.mark.parametrize(
    ("point", "state", "asked"), [("before", "begun", False), ("after", "begun", True), ("before", "done", True)]
)
@pytest.mark.parametrize("step", [pay, verified])
async def test_crash_around_an_unsafe_call_leaves_one_effect(
    hub: Hub, tmp_path: Path, point: str, state: str, asked: bool, step: Callable[[str], Json]
) -> None:
    body = {"steps": [step("a"), {"name": "end", "tool": "s.put"}]}

    def crash(at: str, entries: Sequence[Entry], change: RunChange | None) -> bool:
        return at == point and has(entries, "a", state)

    async with running_engine(hub, tmp_path, crash) as (engine, crashed):
        await engine.start(body, key="k")
        await crashed.wait()
    assert effects(tmp_path).count("a") == (state == "done")  # nothing was sent before the intent was written
    record, questions = await finish(hub, tmp_path, "k", body)
    assert record.state == "done"
    assert effects(tmp_path).count("a") == 1
    assert questions == (["a"] if asked and step is pay else [])


@pytest.mark.fault("F5")
@pytest.mark.parametrize("tool", ["pay", "pay_once", "read"])
@pytest.mark.parametrize("when", ["delay", "delay_after"])
async def test_crash_during_a_call_repeats_only_repeatable_calls(
    hub: Hub, tmp_path: Path, tool: str, when: str
) -> None:
    keys = {"key": "honored"} if tool == "pay_once" else {}
    slow = {"name": "a", "tool": f"s.{tool}", "params": {"id": "a", when: 0.3}, **keys}
    body = {"steps": [slow]}
    ended = asyncio.Event()
    async with running_engine(hub, tmp_path, lambda *facts: ended.is_set()) as (engine, crashed):
        run = await engine.start(body, key="k")
        while not any(active.id == run.id for active in engine._active.values()):
            await asyncio.sleep(0.01)
        while when == "delay_after" and tool != "read" and not effects(tmp_path):
            await asyncio.sleep(0.01)
        ended.set()
        await crashed.wait()
        await asyncio.sleep(0.4)  # the server works on after its caller has gone
    record, questions = await finish(hub, tmp_path, "k", body)
    assert record.state == "done"
    assert effects(tmp_path) == ([] if tool == "read" else ["a"])
    assert tool == "pay" or questions == []


@pytest.mark.fault("F7")
async def test_commit_with_a_lost_answer_is_not_written_twice(hub: Hub, tmp_path: Path) -> None:
    class LosesAnswers(SqliteJournal):
        lost = 0

        async def write(self, run: str, entries: Sequence[Entry], change: RunChange | None = None) -> None:
            await super().write(run, entries, change)
            if self.lost < 2:
                self.lost += 1
                raise JournalError("the answer was lost")

    async with Workflows(hub, LosesAnswers(tmp_path / "runs.db")) as engine:
        run = await engine.start({"steps": [pay("a"), pay("b")]})
        await run.result()
        _, _, entries, _ = await engine.load(run.id)
    assert [(each.path, each.state) for each in entries] == [("a", "done"), ("b", "done")]
    assert effects(tmp_path) == ["a", "b"]


@pytest.mark.fault("F8")
async def test_crash_during_verify_verifies_again_after_settling(hub: Hub, tmp_path: Path) -> None:
    body = {"steps": [verified("a")]}
    run = None
    crashes = iter([("before", "done"), ("before", "done")])  # of the call, then of its verification
    for point, state in crashes:

        def crash(at: str, entries: Sequence[Entry], change: RunChange | None, point=point, state=state) -> bool:
            return at == point and has(entries, "a", state)

        async with running_engine(hub, tmp_path, crash) as (engine, crashed):
            run = await engine.start(body, key="k")
            await crashed.wait()
    record, questions = await finish(hub, tmp_path, "k", body)
    assert (record.state, questions) == ("done", [])
    assert run is not None
    assert record.output["id"] == "a"  # by `result` of the verification
    assert effects(tmp_path) == ["a"]
    async with running_engine(hub, tmp_path) as (engine, _):
        _, _, entries, _ = await engine.load(run.id)
    call = next(each for each in entries if each.path == "a")
    verification = next(each for each in entries if each.path.startswith("a/verify"))
    assert verification.began >= (call.settles or 0.0)


@pytest.mark.fault("F9")
@pytest.mark.parametrize("number", range(6))
async def test_crash_while_undoing_undoes_nothing_twice(hub: Hub, tmp_path: Path, number: int) -> None:
    steps = [pay(name, undo={"tool": "s.pay", "params": {"id": f"not {name}"}}) for name in ("a", "b")]
    body = {"on_failure": "undo", "steps": [*steps, {"name": "x", "tool": "s.fail"}]}
    writes = itertools.count()

    def crash(at: str, entries: Sequence[Entry], change: RunChange | None) -> bool:
        is_undoing = any(each.path.startswith("undo/") for each in entries)
        return is_undoing and next(writes) == number

    async with running_engine(hub, tmp_path, crash) as (engine, crashed):
        run = await engine.start(body, key="k")
        waiting = asyncio.ensure_future(run.wait())
        await asyncio.wait({waiting, asyncio.ensure_future(crashed.wait())}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
    record, _ = await finish(hub, tmp_path, "k", body)
    assert record.state == "undone"
    assert effects(tmp_path) == ["a", "b", "not b", "not a"]


@pytest.mark.fault("F10")
async def test_approval_before_a_crash_is_used_once(hub: Hub, tmp_path: Path) -> None:
    body = {"steps": [{"name": "ok", "approve": "Pay?"}, pay("a")]}

    def crash(at: str, entries: Sequence[Entry], change: RunChange | None) -> bool:
        return at == "before" and has(entries, "ok", "done")

    async with running_engine(hub, tmp_path, crash) as (engine, crashed):
        run = await engine.start(body, key="k")
        await run.wait()
        await engine.answer(run.id, "ok", {"yes": True}, by="ann")
        await crashed.wait()
    assert effects(tmp_path) == []
    record, questions = await finish(hub, tmp_path, "k", body)
    assert (record.state, questions) == ("done", [])
    assert effects(tmp_path) == ["a"]


@pytest.mark.fault("F11")
async def test_first_answer_counts_and_must_be_authorized(hub: Hub, tmp_path: Path) -> None:
    body = {"steps": [{"name": "ok", "approve": {"title": "Pay?", "who": ["finance"], "not_by": "starter"}}, pay("a")]}
    async with running_engine(hub, tmp_path) as (engine, _):
        run = await engine.start(body, caller="ann")
        await run.wait()
        with pytest.raises(WorkflowError, match="may not answer"):
            await engine.answer(run.id, "ok", {"yes": True}, by="bob")
        with pytest.raises(WorkflowError, match="starter"):
            await engine.answer(run.id, "ok", {"yes": True}, by="ann", roles=("finance",))
        results = await asyncio.gather(
            engine.answer(run.id, "ok", {"yes": False}, by="eve", roles=("finance",)),
            engine.answer(run.id, "ok", {"yes": True}, by="joe", roles=("finance",)),
            return_exceptions=True,
        )
        assert not isinstance(results[0], BaseException)
        async for _ in engine.watch(run.id):
            pass
        assert (await run.status()).state == "failed"
    assert effects(tmp_path) == []


@pytest.mark.fault("F11")
async def test_approval_after_its_deadline_is_too_late(hub: Hub, tmp_path: Path) -> None:
    offset = 0.0
    body = {"steps": [{"name": "ok", "approve": {"title": "Pay?", "within": "1h"}}, pay("a")]}
    async with running_engine(hub, tmp_path, clock=lambda: time.time() + offset) as (engine, _):
        run = await engine.start(body)
        await run.wait()
        offset = 3601.0
        await engine.answer(run.id, "ok", {"yes": True}, by="ann")
        async for _ in engine.watch(run.id):
            pass
        assert ((await run.status()).error or {})["code"] == "E-WORKFLOW-EXPIRED"
    assert effects(tmp_path) == []


@pytest.mark.fault("F15")
@pytest.mark.parametrize("fault", ["full", "read-only", "slow"])
async def test_unwritable_disk_starts_no_unsafe_call_and_loses_nothing(hub: Hub, tmp_path: Path, fault: str) -> None:
    journal = SqliteJournal(tmp_path / "runs.db")
    ended = threading.Event()
    async with Workflows(hub, journal) as engine:
        run = await engine.start({"steps": [{"name": "w", "wait": 0.3}, pay("a", params={"id": "a" * 100_000})]})
        while (await run.status()).state != "waiting":
            await asyncio.sleep(0.01)
        slow = None
        if fault == "full":
            pages = await journal._submit(lambda db: db.execute("PRAGMA page_count").fetchone()[0])
            await journal._submit(lambda db: db.execute(f"PRAGMA max_page_count = {pages}").fetchone())
        elif fault == "read-only":
            journal._db.execute("PRAGMA query_only = ON")
        else:
            slow = asyncio.ensure_future(journal._submit(lambda db: ended.wait(60)))  # in the thread that commits
        await asyncio.sleep(1.0)  # the wait is over, and the intent cannot be written
        assert effects(tmp_path) == []
        if slow is not None:
            ended.set()
            await slow
        elif fault == "full":
            await journal._submit(lambda db: db.execute("PRAGMA max_page_count = 1000000").fetchone())
        else:
            journal._db.execute("PRAGMA query_only = OFF")  # no transaction can begin before
        await run.result()
    assert len(effects(tmp_path)) == 1


@pytest.mark.fault("F16")
async def test_journal_syncs_each_commit(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "runs.db")
    assert await journal._submit(lambda db: db.execute("PRAGMA synchronous").fetchone()[0]) == 2
    await journal.close()


@pytest.mark.fault("D15")
@pytest.mark.attack("A2-D4")
@pytest.mark.parametrize("kind", KINDS)
async def test_journal_losing_its_end_repeats_no_unsafe_step(tmp_path: Path, kind: str) -> None:
    """Its process is killed, its write-ahead log damaged, and in the last kinds the record of intents too."""
    report = await asyncio.to_thread(run_with_loss, tmp_path, 2, kind)
    assert report.is_good, report
    assert report.asked


@pytest.mark.fault("F17")
async def test_second_process_cannot_open_the_journal(hub: Hub, tmp_path: Path) -> None:
    async with running_engine(hub, tmp_path):
        with pytest.raises(RunsInUse):
            SqliteJournal(tmp_path / "runs.db")


@pytest.mark.fault("F18", "F19")
async def test_many_waits_ending_at_once_each_end_once(hub: Hub, tmp_path: Path) -> None:
    """A day passes in a moment, by the wall clock: all runs are due, and each runs once."""
    offset = 0.0
    body = {"steps": [{"name": "w", "wait": "1h"}, {"name": "a", "tool": "s.pay", "params": {"id": "${inputs.n}"}}]}
    async with running_engine(hub, tmp_path, clock=lambda: time.time() + offset) as (engine, _):
        runs = [await engine.start(body, {"n": str(number)}) for number in range(50)]
        for run in runs:
            while (await run.status()).state != "waiting":
                await asyncio.sleep(0.01)
        assert not engine._active  # a run that waits is a row
        offset = -3600.0
        await asyncio.sleep(0.6)
        assert effects(tmp_path) == []
        offset = 86_400.0
        engine._wake.set()
        await asyncio.gather(*(run.result() for run in runs))
    assert sorted(effects(tmp_path), key=int) == [str(number) for number in range(50)]


@pytest.mark.fault("F20")
async def test_run_keeps_the_definition_it_was_started_with(hub: Hub, tmp_path: Path) -> None:
    file = tmp_path / "flow.yaml"
    file.write_text("name: flow\nsteps:\n- {name: ok, approve: Go?}\n- {tool: s.pay, params: {id: old}}\n")
    async with running_engine(hub, tmp_path) as (engine, _):
        run = await engine.start(file)
        await run.wait()
    file.write_text("name: flow\nsteps:\n- {name: ok, approve: Go?}\n- {tool: s.pay, params: {id: new}}\n")
    async with running_engine(hub, tmp_path) as (engine, _):
        await engine.answer(run.id, "ok", {"yes": True})
        async for _ in engine.watch(run.id):
            pass
    assert effects(tmp_path) == ["old"]


@pytest.mark.fault("F20")
@pytest.mark.parametrize(("change", "code"), [("gone", "E-NOT-FOUND"), ("schema", "E-ARGUMENTS")])
async def test_tool_changed_during_a_run_leaves_it_stuck_until_resume(tmp_path: Path, change: str, code: str) -> None:
    body = {"steps": [pay("a"), {"name": "ok", "approve": "Continue?"}, pay("b")]}
    servers = {"s": effect_server(tmp_path)}
    async with Hub(servers) as hub, running_engine(hub, tmp_path) as (engine, _):
        run = await engine.start(body)
        await run.wait()
    changed = tmp_path / "effects.schema"
    changed.write_text('{"type": "object", "required": ["amount"]}')
    async with Hub({} if change == "gone" else servers) as hub, running_engine(hub, tmp_path) as (engine, _):
        await engine.answer(run.id, "ok", {"yes": True})
        async for _ in engine.watch(run.id):
            pass
        record = await engine.get(run.id)
        assert (record.state, (record.error or {})["code"]) == ("stuck", code)
    assert effects(tmp_path) == ["a"]
    changed.unlink()
    async with Hub(servers) as hub, running_engine(hub, tmp_path) as (engine, _):
        await engine.resume(run.id)
        async for _ in engine.watch(run.id):
            pass
        assert (await engine.get(run.id)).state == "done"
    assert effects(tmp_path) == ["a", "b"]


@pytest.mark.fault("F20")
async def test_effect_weakened_during_a_run_does_not_repeat_the_call(tmp_path: Path) -> None:
    """The setting of the tool says "read" after the crash; the call was begun as an unsafe one."""
    body = {"steps": [pay("a")]}

    def crash(at: str, entries: Sequence[Entry], change: RunChange | None) -> bool:
        return at == "before" and has(entries, "a", "done")

    async with Hub({"s": effect_server(tmp_path)}) as hub, running_engine(hub, tmp_path, crash) as (engine, crashed):
        await engine.start(body, key="k")
        await crashed.wait()
    weaker = dataclasses.replace(effect_server(tmp_path), tools={"pay": ToolSettings(effect=Effect.READ)})
    async with Hub({"s": weaker}) as hub:
        record, asked = await finish(hub, tmp_path, "k", body)
    assert (record.state, asked) == ("done", ["a"])
    assert effects(tmp_path) == ["a"]


@pytest.mark.fault("F22")
@pytest.mark.parametrize(
    "expression",
    [
        "inputs.missing.field",
        "[1 / (size(inputs.l) - 9000)]",
        "[0,1,2,3,4,5,6,7,8,9].map(a, [0,1,2,3,4,5,6,7,8,9].map(b, inputs.l.map(c, c)))",
    ],
)
async def test_failing_or_endless_expression_fails_only_its_run(hub: Hub, tmp_path: Path, expression: str) -> None:
    async with running_engine(hub, tmp_path) as (engine, _):
        bad = await engine.start({"steps": [pay("b", **{"if": f"size({expression}) > 0"})]}, {"l": list(range(9000))})
        good = await engine.start({"steps": [pay("a")]})
        await good.result()
        assert (await bad.wait()).state == "failed"
    assert effects(tmp_path) == ["a"]


@pytest.mark.fault("F23")
async def test_loop_crashing_ten_times_executes_each_item_once(hub: Hub, tmp_path: Path, seed: int) -> None:
    step = {"name": "p", "tool": "s.pay_once", "key": "honored", "params": {"id": "${string(item)}"}}
    body = {"steps": [{"name": "f", "foreach": "inputs.items", "at_once": 10, "steps": [step]}]}
    inputs = {"items": list(range(120))}
    for number in range(10):
        writes = itertools.count()

        def crash(at: str, entries: Sequence[Entry], change: RunChange | None, writes=writes, number=number) -> bool:
            return bool(entries) and next(writes) == 3 + (number + seed) % 4

        async with running_engine(hub, tmp_path, crash) as (engine, crashed):
            run = await engine.start(body, inputs, key="k")
            waiting = asyncio.ensure_future(run.wait())
            dying = asyncio.ensure_future(crashed.wait())
            await asyncio.wait({waiting, dying}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            dying.cancel()
    async with running_engine(hub, tmp_path) as (engine, _):
        run = await engine.start(body, inputs, key="k")
        assert (await run.wait()).state == "done"
    assert sorted(map(int, effects(tmp_path))) == list(range(120))


@pytest.mark.fault("F24")
@pytest.mark.parametrize("when", ["waiting", "calling", "twice"])
async def test_cancelled_run_ends_and_keeps_executed_calls(hub: Hub, tmp_path: Path, when: str) -> None:
    slow = pay("a", params={"id": "a", "delay_after": 0.3})
    body = {"steps": [{"name": "w", "wait": "1h"} if when == "waiting" else slow, pay("b")]}
    async with running_engine(hub, tmp_path) as (engine, _):
        run = await engine.start(body)
        while not (effects(tmp_path) or (await run.status()).state == "waiting"):
            await asyncio.sleep(0.01)
        await engine.cancel(run.id, by="ann")
        if when == "twice":
            await engine.cancel(run.id, by="bob")
        record = await run.wait()
        assert record.state == "cancelled"
        _, _, entries, _ = await engine.load(run.id)
    assert effects(tmp_path) == ([] if when == "waiting" else ["a"])
    assert when == "waiting" or has(entries, "a", "done")  # the running call ended, and its outcome is known


@pytest.mark.fault("F24")
async def test_cancel_during_undo_lets_the_undo_finish(hub: Hub, tmp_path: Path) -> None:
    steps = [
        pay(name, undo={"tool": "s.pay", "params": {"id": f"not {name}", "delay_after": 0.3}}) for name in ("a", "b")
    ]
    async with running_engine(hub, tmp_path) as (engine, _):
        run = await engine.start({"on_failure": "undo", "steps": [*steps, {"name": "x", "tool": "s.fail"}]})
        while "not b" not in effects(tmp_path):
            await asyncio.sleep(0.01)
        await engine.cancel(run.id, by="ann")
        assert (await run.wait()).state == "undone"
    assert effects(tmp_path) == ["a", "b", "not b", "not a"]


@pytest.mark.fault("F21")
async def test_changed_python_code_stops_the_run_without_calls(hub: Hub, tmp_path: Path) -> None:
    async def first(run: RunContext) -> None:
        await run.call("s.pay", {"id": "a"})
        await run.approve("Continue?")

    async def second(run: RunContext) -> None:
        await run.call("s.pay", {"id": "other"})
        await run.approve("Continue?")

    second.__name__ = second.__qualname__ = "first"
    async with running_engine(hub, tmp_path) as (engine, _):
        run = await engine.start(workflow(first), key="k")
        await run.wait()
    async with running_engine(hub, tmp_path, code=[workflow(second)]) as (engine, _):
        await engine.answer(run.id, None, {"yes": True})
        async for _ in engine.watch(run.id):
            pass
        record = await engine.get(run.id)
    assert record.state == "stuck"
    assert (record.error or {})["code"] == "E-WORKFLOW-CHANGED"
    assert effects(tmp_path) == ["a"]


@pytest.mark.fault("F25")
async def test_other_callers_find_no_run_and_revoked_starter_stops_it(tmp_path: Path) -> None:
    keyring = FileApiKeyStore(tmp_path / "keys.json", "t" * 20)
    token, key = keyring.create_key_sync("starter", None, False, 0.0)
    refund = {"name": "refund", "steps": [{"name": "ok", "approve": "Pay?"}, pay("b")]}
    yes = {"ok": {"action": "accept", "content": {"yes": True}}}
    async with serving(tmp_path, refund, keyring=keyring) as found:
        async with found.raw("", token) as raw:
            task = (await raw.call("workflows__refund", {}, capabilities=WITH_ALL)).result["taskId"]
            run = (await raw.call("workflows__refund", {}, capabilities={})).result["structuredContent"]["run"]
        status = {"name": "workflows__run_status", "arguments": {"run": run}}
        async with found.raw("", made(keyring, "stranger")) as other:
            hidden = (await other.ask("tools/call", status)).result["structuredContent"]
            assert hidden["code"] == "E-WORKFLOW-RUN"
            for method in ("tasks/get", "tasks/update", "tasks/cancel"):
                refused = await other.ask(method, {"taskId": task, "inputResponses": yes}, capabilities=WITH_ALL)
                assert "error" in refused.last
            assert (await other.http.get(found.base + "/admin/runs")).status_code == 403
        keyring.revoke_key_sync(key.id)
        async with found.raw("", "t" * 20) as owner:
            form = (await owner.ask("tools/call", status)).result
            assert form["resultType"] == "input_required"  # neither approved nor cancelled
            answer = {"requestState": form["requestState"], "inputResponses": yes}
            ended = (await owner.ask("tools/call", {**status, **answer})).result["structuredContent"]
        assert (ended["state"], ended["code"]) == ("stuck", "E-WORKFLOW-STARTER")
    assert effects(tmp_path) == []
