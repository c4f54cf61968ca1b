"""Idempotency keys: the stores against a dictionary, and the stage against what was really executed."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.machines.clock import LoopMachine
from tests.middleware.chain_lab import a_call, failure, keyed_stage
from toolway.errors import CallError, Certainty, OutcomeUnknown
from toolway.middleware.idempotency import (
    IdempotencyKey,
    IdempotencyRecord,
    IdempotencyStore,
    MemoryIdempotencyStore,
)
from toolway.types import Call, CallResult, Json

T = TypeVar("T")
KEEP = 10.5  # seconds; the steps are whole ones, so nothing ends just when it is looked for
MEMORY = Path("/dev/shm")  # where writes are fast

ids = st.builds(
    IdempotencyKey, st.sampled_from(["", "a"]), st.just("s"), st.sampled_from("tu"), st.sampled_from(["k", "l"])
)
prints = st.sampled_from(["f", "g"])
results = st.sampled_from([{}, {"content": []}, {"n": [1, {"x": "ü"}]}])


# -- the stores --------------------------------------------------------------------------------------------------------


class StoreMachine(RuleBasedStateMachine):
    """A store keeps outcomes, gives a key to one caller, and forgets finished keys after their time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.known: dict[IdempotencyKey, tuple[float, IdempotencyRecord]] = {}
        self.calls: dict[IdempotencyKey, str] = {}  # by which each was claimed last
        self.reclaimed: set[IdempotencyKey] = set()  # running again after a crash
        self.store = self.make()

    def make(self) -> IdempotencyStore:
        return MemoryIdempotencyStore(lambda: self.now, retention_s=KEEP)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run what never waits, without a loop."""
        try:
            work.send(None)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        raise AssertionError("it waits")

    @property
    def running(self) -> list[IdempotencyKey]:
        return [id_ for id_, (_, record) in self.known.items() if record.state == "running"]

    @rule(seconds=st.sampled_from([1.0, 3.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.known = {
            id_: (until, record)
            for id_, (until, record) in self.known.items()
            if until > self.now or record.state == "running"
        }

    @rule(id_=ids, print_=prints, call=st.sampled_from(["", "a", "b"]))
    def claims(self, id_: IdempotencyKey, print_: str, call: str) -> None:
        found = self.do(self.store.claim(id_, print_, call))
        if id_ not in self.known:
            assert found is None
            self.put(id_, IdempotencyRecord("running", print_))
            self.calls[id_] = call
        elif call and id_ in self.running and self.calls[id_] == call:
            assert found is None
        else:
            assert found == self.known[id_][1]

    def put(self, id_: IdempotencyKey, record: IdempotencyRecord) -> None:
        self.known[id_] = (self.now + KEEP, record)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 10), outcome=results)
    def finishes(self, which: int, outcome: Json) -> None:
        id_ = self.running[which % len(self.running)]
        self.do(self.store.finish(id_, outcome))
        self.reclaimed.discard(id_)
        self.put(id_, IdempotencyRecord("finished", self.known[id_][1].fingerprint, outcome))

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 10))
    def is_lost(self, which: int) -> None:
        id_ = self.running[which % len(self.running)]
        self.do(self.store.mark_unknown(id_))
        self.reclaimed.discard(id_)
        self.put(id_, IdempotencyRecord("unknown", self.known[id_][1].fingerprint))

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 10))
    def is_released(self, which: int) -> None:
        id_ = self.running[which % len(self.running)]
        self.do(self.store.release(id_))
        until, record = self.known.pop(id_)
        if id_ in self.reclaimed:
            self.known[id_] = (until, IdempotencyRecord("interrupted", record.fingerprint))
            self.reclaimed.remove(id_)
            self.time_passes(0.0)


def test_memory_store_matches_a_dictionary() -> None:
    run_state_machine_as_test(StoreMachine)


class DiskMachine(StoreMachine):
    """The same on disk, where a crash leaves what was running without a known outcome."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        super().__init__()

    def make(self) -> IdempotencyStore:
        from toolway.middleware.idempotency_sqlite import SqliteIdempotencyStore

        return SqliteIdempotencyStore(
            self.folder / "keys.db", retention_s=KEEP, now=lambda: self.now, wall=lambda: self.now
        )

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @rule()
    def the_process_ends_and_another_begins(self) -> None:
        self.store.close()  # type: ignore[attr-defined]
        self.store = self.make()
        for id_ in self.running:
            _, record = self.known[id_]
            self.put(id_, IdempotencyRecord("interrupted", record.fingerprint))  # it may have run until now
        self.reclaimed.clear()
        self.time_passes(0.0)

    @rule(id_=ids, call=st.sampled_from(["", "a", "b"]))
    def reclaims(self, id_: IdempotencyKey, call: str) -> None:
        is_interrupted = id_ in self.known and self.known[id_][1].state == "interrupted"
        assert self.do(self.store.reclaim(id_, call)) == is_interrupted  # type: ignore[attr-defined]
        if is_interrupted:
            until, record = self.known[id_]
            self.known[id_] = (until, IdempotencyRecord("running", record.fingerprint))
            self.calls[id_] = call
            self.reclaimed.add(id_)

    def teardown(self) -> None:
        self.store.close()  # type: ignore[attr-defined]
        self.loop.close()
        shutil.rmtree(self.folder)


def test_disk_store_matches_a_dictionary() -> None:
    pytest.importorskip("toolway.middleware.idempotency_sqlite")
    run_state_machine_as_test(DiskMachine)


# -- the stage ---------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Execution:
    """One time that a call was really made."""

    call: Call
    answer: asyncio.Future[CallResult]


@dataclass(eq=False)
class Asked:
    """One caller with a key."""

    key: str
    print_: int
    task: asyncio.Task[CallResult] = field(init=False)
    left: bool = False


@dataclass
class Story:
    """What really happened under one key."""

    print_: int
    effects: int = 0  # executions that happened, or may have
    outcome: CallResult | None = None
    unknown: bool = False


class KeysMachine(LoopMachine):
    """Callers come with keys and leave; executions succeed, fail or are lost."""

    def __init__(self) -> None:
        super().__init__()
        self.executions: list[Execution] = []
        self.asked: list[Asked] = []
        self.stories: dict[str, Story] = {}
        self.counter = 0

    @initialize(slow=st.sampled_from([0, 1, 2]))
    def a_store_that_takes_its_time(self, slow: int) -> None:
        self.stage = keyed_stage(_Slow(self.loop.time, slow))

    async def end(self, call: Call) -> CallResult:
        execution = Execution(call, self.loop.create_future())
        self.begin_story(call)
        self.executions.append(execution)
        call.state.certainty = Certainty.UNKNOWN
        try:
            return await execution.answer
        except asyncio.CancelledError:
            self.story(call).unknown = True  # even where an answer came at the same moment
            self.story(call).effects = 1
            raise
        finally:
            self.executions.remove(execution)

    def begin_story(self, call: Call) -> None:
        assert call.idempotency_key is not None
        story = self.stories.setdefault(call.idempotency_key, Story(call.params["arguments"]["a"]))
        assert story.effects == 0, "executed twice"
        assert not any(each.call.idempotency_key == call.idempotency_key for each in self.executions), (
            "two at once under one key"
        )
        story.effects = 1
        story.print_ = call.params["arguments"]["a"]

    def story(self, call: Call) -> Story:
        assert call.idempotency_key is not None
        return self.stories[call.idempotency_key]

    @property
    def waiting(self) -> list[Asked]:
        return [asked for asked in self.asked if not asked.task.done()]

    @rule(key=st.sampled_from("kl"), print_=st.sampled_from([1, 1, 1, 2]), count=st.sampled_from([1, 2, 5]))
    def callers_come(self, key: str, print_: int, count: int) -> None:
        for _ in range(count):
            asked = Asked(key, print_)
            asked.task = self.loop.create_task(self.call(a_call(idempotency_key=key, arguments={"a": print_})))
            self.asked.append(asked)

    async def call(self, call: Call) -> CallResult:
        return await self.stage(call, self.end)

    @rule(count=st.sampled_from([1, 2, 3, 5]))
    def a_little_happens(self, count: int) -> None:
        self.loop.turn(count)

    @precondition(lambda self: self.executions)
    @rule(which=st.integers(0, 10), is_error=st.booleans())
    def one_is_answered(self, which: int, is_error: bool) -> None:
        execution = self.executions[which % len(self.executions)]
        self.counter += 1
        reply = CallResult("s", "t", {"n": self.counter, "isError": is_error})
        if not execution.answer.done():
            execution.answer.set_result(reply)
            self.story(execution.call).outcome = reply

    @precondition(lambda self: self.executions)
    @rule(which=st.integers(0, 10), certainty=st.sampled_from(Certainty))
    def one_fails(self, which: int, certainty: Certainty) -> None:
        execution = self.executions[which % len(self.executions)]
        if execution.answer.done():
            return
        execution.answer.set_exception(failure(certainty))
        if certainty.executed == "no":
            self.story(execution.call).effects = 0
        else:
            self.story(execution.call).unknown = True

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 100))
    def one_leaves(self, which: int) -> None:
        asked = self.waiting[which % len(self.waiting)]
        asked.left = True
        asked.task.cancel()

    @invariant()
    def outcomes_match_the_execution(self) -> None:
        for asked in [each for each in self.asked if each.task.done()]:
            self.asked.remove(asked)
            self.check(asked)

    def check(self, asked: Asked) -> None:
        if asked.task.cancelled():
            assert asked.left, "cancelled without having asked for it"
            return
        story, error = self.stories.get(asked.key), asked.task.exception()
        if error is None:
            assert story is not None and story.outcome is not None
            assert asked.task.result().raw == story.outcome.raw
            assert asked.print_ == story.print_
            return
        assert isinstance(error, CallError)
        if error.executed == "no":
            return
        assert story is not None and asked.print_ == story.print_
        assert story.effects == 1, f"no call ran, and yet {error!r}"
        assert not isinstance(error, OutcomeUnknown) or story.unknown, "the outcome is known"

    def finish(self) -> None:
        self.loop.wait(1.0)
        while self.executions:
            self.one_is_answered(0, False)
            self.loop.wait(1.0)
        assert self.waiting == []
        self.outcomes_match_the_execution()


class _Slow:
    """A store that takes its time before and after. Whoever leaves it before does not get it done."""

    def __init__(self, now: Callable[[], float], slow: int) -> None:
        self._keys = MemoryIdempotencyStore(now)
        self._slow = slow

    async def claim(self, id: IdempotencyKey, fingerprint: str, call: str) -> IdempotencyRecord | None:
        return await self._slowly(lambda: self._keys.claim(id, fingerprint, call))

    async def finish(self, id: IdempotencyKey, outcome: Json) -> None:
        await self._slowly(lambda: self._keys.finish(id, outcome))

    async def mark_unknown(self, id: IdempotencyKey) -> None:
        await self._slowly(lambda: self._keys.mark_unknown(id))

    async def release(self, id: IdempotencyKey) -> None:
        await self._slowly(lambda: self._keys.release(id))

    async def _slowly(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        await self._turns()
        found = await work()
        await self._turns()
        return found

    async def _turns(self) -> None:
        for _ in range(self._slow):
            await asyncio.sleep(0)


def test_key_has_one_execution_and_one_outcome() -> None:
    run_state_machine_as_test(KeysMachine)
