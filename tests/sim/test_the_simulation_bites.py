"""The test of the test: a core that is broken on purpose is caught, and by the promise that it breaks."""

from __future__ import annotations

import itertools
from typing import Any

from tests.sim import links
from tests.sim.checks import check
from tests.sim.play import run
from tests.sim.servers import Answer
from toolway.errors import Certainty
from toolway.model import Effect
from toolway.resilience import keys, retry
from toolway.resilience.limits import Slots
from toolway.upstream import border
from toolway.upstream.link import Fault
from toolway.upstream.session import Session

SEEDS = range(50)


def caught(*rules: str) -> bool:
    """Whether one of the seeds shows a violation of one of `rules`."""
    return any(violation.rule in rules for seed in SEEDS for violation in check(run(seed)))


def test_an_unsafe_call_that_is_repeated_after_it_may_have_run(monkeypatch):
    monkeypatch.setitem(retry._AGAIN, (Effect.UNSAFE, Certainty.C2), True)
    assert caught("I3")


def test_two_answers_that_change_places(monkeypatch):
    original = links.PipeLink._answered
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

    monkeypatch.setattr(links.PipeLink, "_answered", swapped)
    assert caught("I2")


def test_a_slot_that_is_not_given_back(monkeypatch):
    original, turns = Slots.give_back, itertools.count(1)

    def forgetful(slots: Slots, caller: str = "") -> None:
        if next(turns) % 50:
            original(slots, caller)

    monkeypatch.setattr(Slots, "give_back", forgetful)
    assert caught("leak")


def test_a_loss_that_is_taken_for_a_request_that_was_never_sent(monkeypatch):
    original = border.call_error

    def careless(exc: Any, *facts: Any) -> Any:
        if isinstance(exc, Fault) and exc.certainty is Certainty.C2:
            exc.certainty = Certainty.C0
        return original(exc, *facts)

    monkeypatch.setattr("toolway.upstream.upstream.call_error", careless)
    assert caught("I4")


def test_a_link_that_does_not_say_when_the_bytes_leave(monkeypatch):
    original = links._leave

    def secretive(server: Any, request: Any, exchange: Any) -> None:
        original(server, request, exchange)
        request.attempt.certainty = Certainty.C0

    monkeypatch.setattr(links, "_leave", secretive)
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
    async def forgotten(store: keys.MemoryKeys, id_: keys.KeyId, fingerprint: str, call: str) -> None:
        store._put(id_, keys.Record("running", fingerprint))

    monkeypatch.setattr(keys.MemoryKeys, "claim", forgotten)
    assert caught("key")


def test_a_retry_without_a_limit(monkeypatch):
    monkeypatch.setattr(retry, "MAX_ATTEMPTS", 100)
    assert caught("limit")
