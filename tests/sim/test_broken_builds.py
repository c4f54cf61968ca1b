"""The test of the test: a core that is broken on purpose is caught, and by the promise that it breaks."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from tests import broken_builds
from tests.sim import transports
from tests.sim.checks import check
from tests.sim.run import run
from tests.sim.scenario import Front
from tests.sim.servers import Answer
from toolway.errors import Certainty
from toolway.middleware import idempotency, retry
from toolway.middleware.concurrency import ConcurrencyLimiter
from toolway.types import Effect
from toolway.upstream import error_mapping
from toolway.upstream.session import Session
from toolway.upstream.supervisor import Supervisor
from toolway.upstream.transport import TransportError

SEEDS = range(50)


def caught(*rules: str, front: Front = "hub") -> bool:
    """Whether one of the seeds shows a violation of one of `rules`."""
    return any(violation.rule in rules for seed in SEEDS for violation in check(run(seed, front=front)))


def test_repeated_unsafe_call_is_caught(monkeypatch):
    monkeypatch.setitem(retry._RETRYABLE, (Effect.UNSAFE, Certainty.UNKNOWN), True)
    assert caught("I3")


def test_swapped_answers_are_caught(monkeypatch):
    original = transports.PipeLink._answered
    held: list[tuple[Any, int, Answer]] = []

    def swapped(link: Any, id_: int, answer: Answer) -> None:
        if not isinstance(answer, dict) or "content" not in answer:
            original(link, id_, answer)
        elif held and held[-1][0] is link:
            _, other, earlier = held.pop()
            original(link, other, answer)
            original(link, id_, earlier)
        else:
            held.append((link, id_, answer))

    monkeypatch.setattr(transports.PipeLink, "_answered", swapped)
    assert caught("I2")


def test_leaked_slot_is_caught(monkeypatch):
    original, turns = ConcurrencyLimiter.release, itertools.count(1)

    def forgetful(slots: ConcurrencyLimiter, caller: str = "") -> None:
        if next(turns) % 50:
            original(slots, caller)

    monkeypatch.setattr(ConcurrencyLimiter, "release", forgetful)
    assert caught("leak")


def test_loss_reported_as_not_sent_is_caught(monkeypatch):
    original = error_mapping.call_error

    def careless(exc: Any, *facts: Any) -> Any:
        if isinstance(exc, TransportError) and exc.certainty is Certainty.UNKNOWN:
            exc.certainty = Certainty.NOT_SENT
        return original(exc, *facts)

    monkeypatch.setattr("toolway.upstream.upstream.call_error", careless)
    assert caught("I4")


def test_link_hiding_that_bytes_were_sent_is_caught(monkeypatch):
    original = transports._leave

    def secretive(server: Any, request: Any, exchange: Any, ours: Any) -> None:
        original(server, request, exchange, ours)
        request.call_state.certainty, ours.is_sent = Certainty.NOT_SENT, False

    monkeypatch.setattr(transports, "_leave", secretive)
    assert caught("I4")


def test_dropped_answer_is_caught(monkeypatch):
    original, turns = Session.request, itertools.count(1)

    async def deaf(session: Session, method: str, *facts: Any, **more: Any) -> Any:
        result = await original(session, method, *facts, **more)
        if method == "tools/call" and next(turns) % 40 == 0:
            raise KeyError("lost")
        return result

    monkeypatch.setattr(Session, "request", deaf)
    assert caught("I1")


def test_forgotten_key_is_caught(monkeypatch):
    async def forgotten(
        store: idempotency.MemoryIdempotencyStore, id_: idempotency.IdempotencyKey, fingerprint: str, call: str
    ) -> None:
        store._put(id_, idempotency.IdempotencyRecord("running", fingerprint))

    monkeypatch.setattr(idempotency.MemoryIdempotencyStore, "claim", forgotten)
    assert caught("key")


def test_server_stopped_as_idle_during_a_call_is_caught(monkeypatch):
    def without_calls(supervisor: Any, session: Session) -> bool:
        return bool(supervisor._loop.time() < supervisor.last_used + supervisor.server.idle_timeout)

    monkeypatch.setattr(Supervisor, "_in_use", without_calls)
    assert caught("cut")


def test_unlimited_retry_is_caught(monkeypatch):
    decide = retry.next_delay
    first = lambda facts: msgspec.structs.replace(facts, attempts=0)  # noqa: E731 (one of several small breaks)
    monkeypatch.setattr(retry, "next_delay", lambda facts, *more: decide(first(facts), *more))
    assert caught("limit")


@pytest.mark.parametrize("front", ["slow", "gateway"])
def test_slow_call_resent_by_its_takeover_is_caught(monkeypatch, front):
    broken_builds.sends_again(monkeypatch.setattr)
    assert caught("I3", front=front)


def test_sent_call_denied_at_shutdown_is_caught(monkeypatch):
    broken_builds.denies_at_shutdown(monkeypatch.setattr)
    assert caught("I4", front="gateway")


@pytest.mark.parametrize("front", ["slow", "gateway"])
def test_flight_resent_when_taken_over_is_caught(monkeypatch, front):
    broken_builds.resume_sends(monkeypatch.setattr)
    assert caught("I3", front=front)


def test_flight_denied_when_taken_over_at_shutdown_is_caught(monkeypatch):
    broken_builds.resume_rejects(monkeypatch.setattr)
    assert caught("I4", front="gateway")


@pytest.mark.parametrize("front", ["slow", "gateway"])
def test_flight_losing_its_certainty_when_taken_over_is_caught(monkeypatch, front):
    broken_builds.resume_forgets(monkeypatch.setattr)
    assert caught("I3", "I4", front=front)
