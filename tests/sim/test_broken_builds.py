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


def test_an_unsafe_call_that_is_repeated_after_it_may_have_run(monkeypatch):
    monkeypatch.setitem(retry._RETRYABLE, (Effect.UNSAFE, Certainty.UNKNOWN), True)
    assert caught("I3")


def test_two_answers_that_change_places(monkeypatch):
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


def test_a_slot_that_is_not_given_back(monkeypatch):
    original, turns = ConcurrencyLimiter.release, itertools.count(1)

    def forgetful(slots: ConcurrencyLimiter, caller: str = "") -> None:
        if next(turns) % 50:
            original(slots, caller)

    monkeypatch.setattr(ConcurrencyLimiter, "release", forgetful)
    assert caught("leak")


def test_a_loss_that_is_taken_for_a_request_that_was_never_sent(monkeypatch):
    original = error_mapping.call_error

    def careless(exc: Any, *facts: Any) -> Any:
        if isinstance(exc, TransportError) and exc.certainty is Certainty.UNKNOWN:
            exc.certainty = Certainty.NOT_SENT
        return original(exc, *facts)

    monkeypatch.setattr("toolway.upstream.upstream.call_error", careless)
    assert caught("I4")


def test_a_link_that_does_not_say_when_the_bytes_leave(monkeypatch):
    original = transports._leave

    def secretive(server: Any, request: Any, exchange: Any, ours: Any) -> None:
        original(server, request, exchange, ours)
        request.call_state.certainty, ours.is_sent = Certainty.NOT_SENT, False

    monkeypatch.setattr(transports, "_leave", secretive)
    assert caught("I4")


def test_an_answer_that_is_dropped(monkeypatch):
    original, turns = Session.request, itertools.count(1)

    async def deaf(session: Session, method: str, *facts: Any, **more: Any) -> Any:
        result = await original(session, method, *facts, **more)
        if method == "tools/call" and next(turns) % 40 == 0:
            raise KeyError("lost")
        return result

    monkeypatch.setattr(Session, "request", deaf)
    assert caught("I1")


def test_a_key_that_is_forgotten(monkeypatch):
    async def forgotten(
        store: idempotency.MemoryIdempotencyStore, id_: idempotency.IdempotencyKey, fingerprint: str, call: str
    ) -> None:
        store._put(id_, idempotency.IdempotencyRecord("running", fingerprint))

    monkeypatch.setattr(idempotency.MemoryIdempotencyStore, "claim", forgotten)
    assert caught("key")


def test_a_server_that_is_stopped_as_unused_during_a_call(monkeypatch):
    def without_calls(supervisor: Any, session: Session) -> bool:
        return bool(supervisor._loop.time() < supervisor.last_used + supervisor.server.idle_timeout)

    monkeypatch.setattr(Supervisor, "_in_use", without_calls)
    assert caught("cut")


def test_a_retry_without_a_limit(monkeypatch):
    decide = retry.next_delay
    first = lambda facts: msgspec.structs.replace(facts, attempts=0)  # noqa: E731 (one of several small breaks)
    monkeypatch.setattr(retry, "next_delay", lambda facts, *more: decide(first(facts), *more))
    assert caught("limit")


@pytest.mark.parametrize("front", ["slow", "gateway"])
def test_a_slow_call_that_is_sent_again_by_what_takes_it_over(monkeypatch, front):
    broken_builds.sends_again(monkeypatch.setattr)
    assert caught("I3", front=front)


def test_a_slow_call_that_is_denied_although_it_was_sent_because_the_gateway_shuts_down(monkeypatch):
    broken_builds.denies_at_shutdown(monkeypatch.setattr)
    assert caught("I4", front="gateway")


@pytest.mark.parametrize("front", ["slow", "gateway"])
def test_a_flight_that_is_sent_again_when_it_is_taken_over(monkeypatch, front):
    broken_builds.resume_sends(monkeypatch.setattr)
    assert caught("I3", front=front)


def test_a_flight_that_is_denied_when_it_is_taken_over_during_the_shutdown(monkeypatch):
    broken_builds.resume_rejects(monkeypatch.setattr)
    assert caught("I4", front="gateway")


@pytest.mark.parametrize("front", ["slow", "gateway"])
def test_a_flight_whose_certainty_is_lost_when_it_is_taken_over(monkeypatch, front):
    broken_builds.resume_forgets(monkeypatch.setattr)
    assert caught("I3", "I4", front=front)
