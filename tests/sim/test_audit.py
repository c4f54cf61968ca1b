"""Calls with an audit log on a slow disk that fails: none is sent before its intent is stored, and none is denied."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from tests.sim.audit_disk import Disk, SimAuditLog
from tests.sim.checks import Violation, check
from tests.sim.history import Ended, History
from tests.sim.run import run
from tests.sim.scenario import Front
from toolway.audit.middleware import PlannedAudit
from toolway.hub.plan import SWITCH
from toolway.hub.taken_over import UnsentFlight

SEEDS = range(5)
CALLS = 150


def play(seed: int, front: Front) -> tuple[History, list[Violation]]:
    log = SimAuditLog(Disk(random.Random(f"disk {seed}")))
    history = run(seed, CALLS, front, log)
    return history, [*check(history), *log.check(history)]


@pytest.mark.parametrize("front", ["slow", "gateway"])
def test_no_call_is_sent_before_its_intent_is_stored(front: Front) -> None:
    told: Counter[str] = Counter()
    for seed in SEEDS:
        history, violations = play(seed, front)
        assert violations == [], f"seed {seed}"
        told["landed"] += history.landed
        told["taken over"] += history.taken_over
        told.update(f"{end.outcome}: {end.executed}" for end in history.of(Ended))
    assert told["landed"] > 20 and told["taken over"] > 20, told
    assert told["E-AUDIT: no" if front == "slow" else "cancelled: unknown"], told


def test_audit_keeps_its_promises_without_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "off")
    history, violations = play(0, "gateway")
    assert (violations, history.landed, history.taken_over) == ([], 0, 0)


# -- programs that are broken on purpose ------------------------------------------------------------------------------


def is_caught(front: Front = "slow") -> bool:
    return any(violation.rule == "audit" for seed in SEEDS for violation in play(seed, front)[1])


def test_flight_not_waiting_for_its_intent_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    original = PlannedAudit.start_intent

    def impatient(planned: PlannedAudit, id: str, arguments: Any, on_done: Any) -> bool:
        asyncio.get_running_loop().call_soon(on_done, None)
        return original(planned, id, arguments, lambda _: None)

    monkeypatch.setattr(PlannedAudit, "start_intent", impatient)
    assert is_caught()


def test_call_without_an_outcome_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        UnsentFlight, "discard", lambda taken: taken._flights.instrumentation.on_cancelled(taken.call, 0)
    )
    assert is_caught()


def test_pipeline_not_waiting_for_a_flight_intent_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def impatient(flights: Any, call: Any, intent: Any, began: float) -> Any:
        return await flights._observe(call, lambda call: flights._audit.resume(call, flights._below_audit), began)

    monkeypatch.setattr("toolway.hub.flight.Flights.send", impatient)
    assert is_caught()
