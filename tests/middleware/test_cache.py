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


async def test_answer_is_cached_for_its_time_and_marked() -> None:
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
async def test_answer_is_cached_per_caller() -> None:
    stage, end = a_stage(Clock()), End(a_reply("a's"), a_reply("b's"))
    assert (await stage(a_call(Effect.READ, caller="a"), end)).text == "a's"
    assert (await stage(a_call(Effect.READ, caller="b"), end)).text == "b's"
    assert (await stage(a_call(Effect.READ, caller="a"), end)).text == "a's"
    assert len(end.calls) == 2


async def test_call_without_identity_is_never_cached() -> None:
    stage, end = a_stage(Clock()), End(a_reply("1"), a_reply("2"))
    assert [(await stage(a_call(Effect.UNSAFE), end)).text for _ in range(2)] == ["1", "2"]


async def test_tool_error_is_not_cached() -> None:
    stage, end = a_stage(Clock()), End(a_reply("no", isError=True), a_reply("yes"))
    assert [(await stage(a_call(Effect.READ), end)).text for _ in range(3)] == ["no", "yes", "yes"]


async def test_call_error_is_not_cached() -> None:
    stage, end = a_stage(Clock()), End(failure(Certainty.UNKNOWN), a_reply("yes"))
    with pytest.raises(CallError):
        await stage(a_call(Effect.READ), end)
    assert (await stage(a_call(Effect.READ), end)).text == "yes"


@pytest.mark.parametrize("seconds", [0.0, -1.0])
async def test_answer_without_ttl_is_not_cached(seconds) -> None:
    stage, end = a_stage(Clock(), seconds), End(a_reply("1"), a_reply("2"))
    assert [(await stage(a_call(Effect.READ), end)).text for _ in range(2)] == ["1", "2"]


async def test_nothing_is_cached_for_longer_than_an_hour() -> None:
    assert MAX_TTL_S == 3600
    clock, end = Clock(), End(a_reply("1"), a_reply("2"))
    stage = a_stage(clock, 1e9)
    await stage(a_call(Effect.READ), end)
    clock.now += 3599.9
    assert (await stage(a_call(Effect.READ), end)).from_cache
    clock.now += 0.1
    assert not (await stage(a_call(Effect.READ), end)).from_cache


def test_cache_is_bounded_and_evicts_the_least_recently_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_ENTRIES == 1024
    monkeypatch.setattr(module, "MAX_ENTRIES", 3)
    store = ResponseCache(Clock())
    for key in "abc":
        store.put(key, a_reply(key), 10.0)
    assert store.get("a") is not None
    store.put("d", a_reply("d"), 10.0)
    assert [key for key in "abcd" if store.get(key) is not None] == ["a", "c", "d"]


def test_new_answer_replaces_the_old_and_its_time() -> None:
    clock = Clock()
    store = ResponseCache(clock)
    store.put("k", a_reply("old"), 10.0)
    clock.now += 8
    store.put("k", a_reply("new"), 10.0)
    clock.now += 8
    found = store.get("k")
    assert found is not None and found.text == "new"


def test_invalidate_removes_only_answers_of_its_server() -> None:
    store = ResponseCache(Clock())
    store.put("a", CallResult("s", "t", {}), 10.0)
    store.put("b", CallResult("u", "t", {}), 10.0)
    store.invalidate("s")
    assert (store.get("a"), store.get("b") is not None) == (None, True)


def test_answer_of_maximum_size_is_not_cached() -> None:
    store = ResponseCache(Clock())
    store.put("k", a_reply("x" * 8 * 1024 * 1024), 10.0)
    assert store.get("k") is None
