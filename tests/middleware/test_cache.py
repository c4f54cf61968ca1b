"""The cache: answers that may be given again, to the same caller, for as long as was said."""

from __future__ import annotations

import pytest

from tests.middleware.chain_lab import Clock, End, a_call, a_reply, failure
from toolway.errors import CallError, Certainty
from toolway.middleware import cache as module
from toolway.middleware.cache import MAX_ENTRIES, MAX_TTL_S, ResponseCache, response_cache
from toolway.types import Call, CallResult, Effect, Middleware

pytestmark = pytest.mark.anyio


def a_stage(clock: Clock, seconds: float = 10.0) -> Middleware:
    def identity(call: Call) -> tuple[str, str] | None:
        return (call.caller, call.name) if call.effect is Effect.READ else None

    return response_cache(ResponseCache(clock), identity, lambda call, reply: seconds)


async def test_an_answer_is_given_again_within_its_time_and_says_so() -> None:
    clock, end = Clock(), End(a_reply("1"), a_reply("2"))
    stage = a_stage(clock)
    first = await stage(a_call(Effect.READ), end)
    clock.now += 9.999
    again = await stage(a_call(Effect.READ), end)
    assert (first.text, first.from_cache, again.text, again.from_cache, again.duration) == ("1", False, "1", True, 0.0)
    clock.now += 0.001
    third = await stage(a_call(Effect.READ), end)
    assert (third.text, third.from_cache, len(end.calls)) == ("2", False, 2)


@pytest.mark.attack("held-30")
async def test_an_answer_is_given_to_the_same_caller_only() -> None:
    stage, end = a_stage(Clock()), End(a_reply("a's"), a_reply("b's"))
    assert (await stage(a_call(Effect.READ, caller="a"), end)).text == "a's"
    assert (await stage(a_call(Effect.READ, caller="b"), end)).text == "b's"
    assert (await stage(a_call(Effect.READ, caller="a"), end)).text == "a's"
    assert len(end.calls) == 2


async def test_what_has_no_identity_is_never_kept() -> None:
    stage, end = a_stage(Clock()), End(a_reply("1"), a_reply("2"))
    assert [(await stage(a_call(Effect.UNSAFE), end)).text for _ in range(2)] == ["1", "2"]


async def test_a_tools_failure_is_not_kept() -> None:
    stage, end = a_stage(Clock()), End(a_reply("no", isError=True), a_reply("yes"))
    assert [(await stage(a_call(Effect.READ), end)).text for _ in range(3)] == ["no", "yes", "yes"]


async def test_an_error_is_not_kept() -> None:
    stage, end = a_stage(Clock()), End(failure(Certainty.UNKNOWN), a_reply("yes"))
    with pytest.raises(CallError):
        await stage(a_call(Effect.READ), end)
    assert (await stage(a_call(Effect.READ), end)).text == "yes"


@pytest.mark.parametrize("seconds", [0.0, -1.0])
async def test_an_answer_without_a_time_is_not_kept(seconds) -> None:
    stage, end = a_stage(Clock(), seconds), End(a_reply("1"), a_reply("2"))
    assert [(await stage(a_call(Effect.READ), end)).text for _ in range(2)] == ["1", "2"]


async def test_nothing_is_kept_for_longer_than_an_hour() -> None:
    assert MAX_TTL_S == 3600
    clock, end = Clock(), End(a_reply("1"), a_reply("2"))
    stage = a_stage(clock, 1e9)
    await stage(a_call(Effect.READ), end)
    clock.now += 3599.9
    assert (await stage(a_call(Effect.READ), end)).from_cache
    clock.now += 0.1
    assert not (await stage(a_call(Effect.READ), end)).from_cache


def test_the_entries_are_bounded_and_the_one_longest_unused_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_ENTRIES == 1024
    monkeypatch.setattr(module, "MAX_ENTRIES", 3)
    store = ResponseCache(Clock())
    for key in "abc":
        store.put(key, a_reply(key), 10.0)
    assert store.get("a") is not None
    store.put("d", a_reply("d"), 10.0)
    assert [key for key in "abcd" if store.get(key) is not None] == ["a", "c", "d"]


def test_a_new_answer_takes_the_place_and_the_time_of_the_old() -> None:
    clock = Clock()
    store = ResponseCache(clock)
    store.put("k", a_reply("old"), 10.0)
    clock.now += 8
    store.put("k", a_reply("new"), 10.0)
    clock.now += 8
    found = store.get("k")
    assert found is not None and found.text == "new"


def test_what_a_server_said_is_forgotten_with_it() -> None:
    store = ResponseCache(Clock())
    store.put("a", CallResult("s", "t", {}), 10.0)
    store.put("b", CallResult("u", "t", {}), 10.0)
    store.invalidate("s")
    assert (store.get("a"), store.get("b") is not None) == (None, True)


def test_an_answer_as_large_as_a_message_may_be_is_not_kept() -> None:
    store = ResponseCache(Clock())
    store.put("k", a_reply("x" * 8 * 1024 * 1024), 10.0)
    assert store.get("k") is None
