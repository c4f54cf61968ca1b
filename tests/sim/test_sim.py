"""The core in virtual time keeps its promises, and one seed is one exact run."""

from __future__ import annotations

import functools
import os
import random
import subprocess
import sys
import time
import uuid
from collections import Counter
from pathlib import Path

import pytest

from tests.sim.checks import check
from tests.sim.faults import Fate
from tests.sim.history import Act, Begun, Done, Ended
from tests.sim.run import run
from tests.sim.scenario import FRONTS
from toolway.hub.plan import SWITCH

ROOT = Path(__file__).resolve().parent.parent.parent
CALLS = 200


def once_failed() -> list[int]:
    lines = (ROOT / "tests" / "sim" / "seeds.txt").read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]


history_of = functools.cache(lambda seed, front: run(seed, CALLS, front))


@pytest.mark.parametrize("seed", sorted({*range(15), *once_failed()}))
def test_every_promise_holds(seed):
    violations = check(history_of(seed, "hub"))
    assert violations == [], f"see it with: python scripts/sim.py --seed {seed} --calls {CALLS} -v"


# 1529: a twin was sent while the call was on its way to the gateway, which rejected the call.
@pytest.mark.parametrize("front", FRONTS[1:])
@pytest.mark.parametrize("seed", [*range(12), 1529])
def test_executions_match_reports_with_cancellation_and_shutdown(seed, front):
    violations = check(history_of(seed, front))
    assert violations == [], f"see it with: python scripts/sim.py --seed {seed} --calls {CALLS} --front {front} -v"


@pytest.mark.parametrize("front", FRONTS[1:])
@pytest.mark.parametrize("seed", range(4))
def test_executions_match_reports_without_plans(monkeypatch, seed, front):
    monkeypatch.setenv(SWITCH, "off")
    history = run(seed, CALLS, front)
    assert check(history) == []
    assert (history.landed, history.taken_over) == (0, 0)


@pytest.mark.parametrize("front", FRONTS[1:])
def test_calls_are_flights_and_some_are_taken_over(front):
    histories = [history_of(seed, front) for seed in range(12)]
    assert sum(history.landed for history in histories) > 50
    assert sum(history.taken_over for history in histories) > 20


def test_some_calls_are_slow_and_running_at_shutdown():
    histories = [history_of(seed, "gateway") for seed in range(12)]
    told: Counter[str] = Counter()
    for history in histories:
        shutdown = next(act.at for act in history.of(Act) if act.what == "close")
        begun = {call.call: call.at for call in history.of(Begun)}
        for end in history.of(Ended):
            told["slow"] += end.at - begun[end.call] > 1 and end.executed == "yes"
            told[f"cut off: {end.executed}"] += begun[end.call] < shutdown and end.outcome == "E-SHUTTING-DOWN"
            told["answered"] += begun[end.call] < shutdown < end.at and end.executed == "yes"
            told["turned away"] += begun[end.call] > shutdown and end.executed == "no"
            told["cancelled"] += end.outcome == "cancelled"
    wanted = ("slow", "cut off: no", "cut off: unknown", "answered", "turned away", "cancelled")
    assert all(told[kind] for kind in wanted), told


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("seed", range(3))
def test_seed_is_one_exact_run(seed, front):
    first = list(history_of(seed, front).lines())
    assert list(run(seed, CALLS, front).lines()) == first
    assert list(history_of(seed + 1, front).lines()) != first


def test_seed_is_the_same_run_in_another_process():
    program = "from tests.sim.run import run; print(run(5, 100).digest())"
    digests = set()
    for hashing in ("1", "2"):
        environ = {**os.environ, "PYTHONHASHSEED": hashing}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environ, cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        digests.add(done.stdout)
    assert digests == {run(5, 100).digest() + "\n"}


def test_run_uses_no_real_time_or_randomness(monkeypatch):
    def forbidden(*_: object) -> float:
        raise AssertionError("the core looked at the world")

    for module, name in ((time, "time"), (time, "monotonic"), (random, "random"), (uuid, "uuid4"), (os, "urandom")):
        monkeypatch.setattr(module, name, forbidden)
    assert run(0, 50).complaints == []


def test_seeds_cover_all_faults_and_outcomes():
    histories = [history_of(seed, "hub") for seed in range(15)]
    faults = {what for history in histories for what in history.faults()}
    assert faults >= {fate.value for fate in Fate} - {Fate.FINE.value}
    assert faults >= {"slow start", "failing start", "crash while starting"}
    outcomes = [end.outcome for history in histories for end in history.of(Ended)]
    assert outcomes.count("ok") > len(outcomes) / 3
    assert {"tool_error", "cancelled", "E-OUTCOME-UNKNOWN", "E-OVERLOADED", "E-TIMEOUT"} <= set(outcomes)


def test_run_makes_the_requested_number_of_calls():
    history = next(h for h in (run(seed, 60) for seed in range(20)) if len(list(h.of(Begun))) >= 60)
    assert len(list(history.of(Ended))) == len(list(history.of(Begun)))
    assert any(True for _ in history.of(Done))
