"""The checker finds what it is there to find, one broken promise at a time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from toolway.testing import History, check
from toolway.testing.history import Outcome, find_violations

pytestmark = pytest.mark.anyio


class Failure(Exception):
    def __init__(self, executed: str) -> None:
        super().__init__(executed)
        self.executed = executed
        self.attempts = 2


@dataclass
class Reply:
    data: Any = field(default_factory=dict)
    is_error: bool = False


class Run:
    """A history on a clock that stands still, and its effects file."""

    def __init__(self, folder: Path) -> None:
        self.time = 0.0
        self.file = folder / "effects"
        self.history = History(self.file, now=lambda: self.time)

    def happen(self, nonce: str, times: int = 1) -> None:
        with self.file.open("a") as file:
            file.write(f"call\t{nonce}\n" * times)

    def begin(self, *, unsafe: bool = True, limit: float = 5.0) -> str:
        return self.history.start_call(unsafe=unsafe, time_limit=limit, target="s.counter")

    def kinds(self) -> list[tuple[str, str]]:
        return [(violation.rule, violation.kind) for violation in find_violations(self.history)]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_correct_run_has_no_violation(run: Run) -> None:
    done, lost, refused, again = run.begin(), run.begin(), run.begin(), run.begin(unsafe=False)
    run.happen(done)
    run.happen(lost)
    run.happen(again, times=2)
    run.history.record_result(done, Reply({"nonce": done}))
    run.history.record_failure(lost, Failure("unknown"))
    run.history.record_failure(refused, Failure("no"))
    run.history.record_result(again, Reply({"nonce": again}))
    assert check(run.history) == []
    assert run.history.count_outcomes() == {"ok": 2, "Failure": 2}


def test_call_without_outcome_is_lost(run: Run) -> None:
    run.begin()
    assert run.kinds() == [("I1", "lost")]


def test_two_outcomes_are_reported(run: Run) -> None:
    nonce = run.begin()
    for _ in range(2):
        run.history.record_failure(nonce, Failure("no"))
    assert run.kinds() == [("I1", "twice")]


def test_outcome_may_be_at_most_a_second_late(run: Run) -> None:
    early, late = run.begin(limit=5), run.begin(limit=4)
    run.time = 5.9
    for nonce in (early, late):
        run.history.record_failure(nonce, Failure("no"))
    assert run.kinds() == [("I1", "late")]


def test_failure_without_executed_is_reported(run: Run) -> None:
    run.history.record_failure(run.begin(), ValueError())
    assert run.kinds() == [("I1", "silent")]


def test_response_of_another_call_is_reported(run: Run) -> None:
    mine, yours = run.begin(unsafe=False), run.begin(unsafe=False)
    for nonce in (mine, yours):
        run.happen(nonce)
        run.history.record_result(nonce, Reply({"nonce": mine}))
    assert run.kinds() == [("I2", "misplaced")]


@pytest.mark.parametrize(("unsafe", "found"), [(True, [("I3", "repeated")]), (False, [])])
def test_repeated_effect_is_reported_only_for_unsafe_calls(run: Run, unsafe: bool, found: list[Any]) -> None:
    nonce = run.begin(unsafe=unsafe)
    run.happen(nonce, times=2)
    run.history.record_failure(nonce, Failure("unknown"))
    assert run.kinds() == found


def test_result_without_expected_effect_is_reported(run: Run) -> None:
    nonce = run.begin()
    run.history.record_result(nonce, Reply())
    read = run.history.start_call(unsafe=False, time_limit=1, has_effect=False)
    run.history.record_result(read, Reply())
    assert run.kinds() == [("I3", "missing")]


def test_effect_of_call_reported_as_not_run_is_reported(run: Run) -> None:
    nonce = run.begin()
    run.happen(nonce)
    run.history.record_failure(nonce, Failure("no"))
    assert run.kinds() == [("I4", "denied")]
    assert check(run.history) == [f"I4 {nonce}: s.counter took effect, but Failure denies it"]


def test_unknown_effect_is_reported(run: Run) -> None:
    run.happen("foreign")
    assert run.kinds() == [("I3", "strange")]


async def test_calls_are_recorded_with_their_outcome(tmp_path: Path) -> None:
    history = History(tmp_path / "effects")

    async def fails(nonce: str) -> Reply:
        raise Failure("no")

    async def answers(nonce: str) -> Reply:
        return Reply({"nonce": nonce}, is_error=True)

    assert await history.call(fails, unsafe=True, time_limit=1) is None
    assert (await history.call(answers, unsafe=True, time_limit=1)).is_error
    (first,), (second,) = (each.outcomes for each in history.invocations.values())
    assert (first.name, first.executed, first.attempts) == ("Failure", "no", 2)
    assert (second.name, second.executed) == ("tool_error", "yes")
    assert check(history) == []


async def test_unexpected_exception_is_recorded_and_raised() -> None:
    history = History()

    async def breaks(nonce: str) -> Reply:
        raise KeyError(nonce)

    with pytest.raises(KeyError):
        await history.call(breaks, unsafe=True, time_limit=1)
    assert [violation.kind for violation in find_violations(history)] == ["silent"]


async def test_cancelled_call_has_outcome_cancelled() -> None:
    history = History()

    async def waits(nonce: str) -> Reply:
        await asyncio.sleep(60)
        raise AssertionError

    task = asyncio.create_task(history.call(waits, unsafe=True, time_limit=1))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    (call,) = history.invocations.values()
    assert [outcome.name for outcome in call.outcomes] == ["cancelled"]


def test_nonces_of_two_histories_differ() -> None:
    assert History().start_call(unsafe=True, time_limit=1) != History().start_call(unsafe=True, time_limit=1)


def test_outcome_can_be_recorded_by_hand(run: Run) -> None:
    nonce = run.begin()
    run.history.record_outcome(nonce, Outcome("ok", "no", 0.0))
    assert run.kinds() == [("I3", "missing")]
