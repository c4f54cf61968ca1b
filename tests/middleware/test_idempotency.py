"""Idempotency keys: executed once, whoever repeats it and however often."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from tests.middleware.chain_lab import Clock, End, HeldEnd, a_call, a_reply, failure, keyed_stage, outcomes, turns
from toolway.config.schema import Server
from toolway.errors import (
    AccessDenied,
    CallError,
    CallTimeout,
    Certainty,
    OutcomeUnknown,
    ProtocolError,
    ServerUnavailable,
)
from toolway.middleware.deadline import deadline
from toolway.middleware.idempotency import (
    IdempotencyKey,
    IdempotencyRecord,
    MemoryIdempotencyStore,
    call_fingerprint,
)
from toolway.types import Call, CallResult, Effect, Json, Middleware

pytestmark = pytest.mark.anyio

ID = IdempotencyKey("", "s", "t", "k")


class Broken(MemoryIdempotencyStore):
    """A store that fails where it is told to."""

    def __init__(self, *methods: str) -> None:
        super().__init__(Clock())
        self._broken = methods

    def _check(self, method: str) -> None:
        if method in self._broken:
            raise OSError("disk full")

    async def claim(self, id: IdempotencyKey, fingerprint: str, call: str) -> IdempotencyRecord | None:
        self._check("claim")
        return await super().claim(id, fingerprint, call)

    async def finish(self, id: IdempotencyKey, outcome: Json) -> None:
        self._check("finish")
        await super().finish(id, outcome)

    async def mark_unknown(self, id: IdempotencyKey) -> None:
        self._check("mark_unknown")
        await super().mark_unknown(id)

    async def release(self, id: IdempotencyKey) -> None:
        self._check("release")
        await super().release(id)


class Slow(MemoryIdempotencyStore):
    """A store that takes a few turns of the loop for everything, and whose work goes on when its caller leaves."""

    def __init__(self, before: int = 3, after: int = 3) -> None:
        super().__init__(Clock())
        self._turns = (before, after)

    async def _slowly(self, work: Awaitable[IdempotencyRecord | None]) -> IdempotencyRecord | None:
        async def done() -> IdempotencyRecord | None:
            await turns(self._turns[0])
            found = await work
            await turns(self._turns[1])
            return found

        return await asyncio.shield(asyncio.ensure_future(done()))

    async def claim(self, id: IdempotencyKey, fingerprint: str, call: str) -> IdempotencyRecord | None:
        return await self._slowly(super().claim(id, fingerprint, call))


class Lingering(MemoryIdempotencyStore):
    """A store that has not begun to write when its caller leaves does not write."""

    async def finish(self, id: IdempotencyKey, outcome: Json) -> None:
        await turns(3)
        await super().finish(id, outcome)

    async def release(self, id: IdempotencyKey) -> None:
        await turns(3)
        await super().release(id)


def a_stage(store: MemoryIdempotencyStore | None = None) -> Middleware:
    return keyed_stage(store or MemoryIdempotencyStore(Clock()))


def keyed(**facts: Any) -> Call:
    return a_call(**{"idempotency_key": "k", **facts})


async def fails(stage: Middleware, call: Call, end: End | HeldEnd) -> CallError:
    with pytest.raises(CallError) as caught:
        await stage(call, end)
    return caught.value


# -- the same call -----------------------------------------------------------------------------------------------------


async def test_without_a_key_nothing_is_remembered() -> None:
    end = End(a_reply())
    stage = a_stage(Broken("claim"))
    for _ in range(3):
        await stage(a_call(), end)
    assert len(end.calls) == 3


async def test_what_has_finished_is_replayed_and_says_so() -> None:
    stage, end = a_stage(), End(a_reply("paid"), a_reply("paid twice"))
    first, second, third = [await stage(keyed(), end) for _ in range(3)]
    assert [reply.text for reply in (first, second, third)] == ["paid"] * 3
    assert [reply.replayed for reply in (first, second, third)] == [False, True, True]
    assert len(end.calls) == 1


async def test_a_tools_own_failure_is_an_outcome_like_any_other() -> None:
    stage, end = a_stage(), End(a_reply("no money", isError=True), a_reply())
    await stage(keyed(), end)
    again = await stage(keyed(), end)
    assert (again.is_error, again.replayed, len(end.calls)) == (True, True, 1)


async def test_who_comes_while_it_runs_gets_its_outcome() -> None:
    stage, end = a_stage(), HeldEnd()
    first = asyncio.ensure_future(stage(keyed(), end))
    await end.reached()
    others = [asyncio.ensure_future(stage(keyed(), end)) for _ in range(49)]
    await turns()
    end.answer(a_reply("paid"))
    replies = await asyncio.gather(first, *others)
    assert {reply.text for reply in replies} == {"paid"}
    assert Counter(reply.replayed for reply in replies) == {False: 1, True: 49}
    assert len(end.calls) == 1


async def test_fifty_at_once_are_one_execution() -> None:
    stage, end = a_stage(), End(a_reply("paid"))
    found = await outcomes([stage(keyed(), end) for _ in range(50)])
    assert [o for o in found if not isinstance(o, CallResult)] == []
    assert len(end.calls) == 1


async def test_a_key_that_was_released_meanwhile_is_free_again() -> None:
    stage, end = a_stage(Slow()), HeldEnd()
    first = asyncio.ensure_future(stage(keyed(), end))
    await end.reached()
    second = asyncio.ensure_future(stage(keyed(), end))
    await asyncio.sleep(0)
    end.answer(failure(Certainty.NOT_SENT))
    await asyncio.gather(first, second, return_exceptions=True)
    third = asyncio.ensure_future(stage(keyed(), end))
    await turns(50)
    assert len(end.calls) > 1, third.exception()
    end.answer(a_reply("paid"))
    assert (await third).text == "paid"


async def test_a_leader_who_leaves_leaves_the_execution_to_his_followers() -> None:
    stage, end = a_stage(), HeldEnd()
    leader = asyncio.ensure_future(stage(keyed(), end))
    await end.reached()
    follower = asyncio.ensure_future(stage(keyed(), end))
    await turns()
    leader.cancel()
    await turns()
    end.answer(a_reply("paid"))
    assert (await follower).text == "paid"
    assert (leader.cancelled(), end.cancelled) == (True, 0)


async def test_whoever_began_it_hears_of_its_progress_until_he_leaves() -> None:
    stage, end, heard = a_stage(), HeldEnd(), []
    leader = asyncio.ensure_future(stage(keyed(on_progress=lambda *told: heard.append(told)), end))
    await end.reached()
    follower = asyncio.ensure_future(stage(keyed(), end))
    await turns()
    listener = end.calls[0].on_progress
    assert listener is not None
    listener(1.0, 2.0, "half")
    leader.cancel()
    await turns()
    listener(2.0, 2.0, "whole")
    end.answer(a_reply("paid"))
    assert (await follower).text == "paid"
    assert heard == [(1.0, 2.0, "half")]


# -- another call ------------------------------------------------------------------------------------------------------


async def test_the_same_key_with_other_arguments_is_refused_and_nothing_is_executed() -> None:
    stage, end = a_stage(), End(a_reply())
    await stage(keyed(), end)
    error = await fails(stage, keyed(arguments={"a": 2}), end)
    assert isinstance(error, ProtocolError)
    assert (error.code, error.executed, len(end.calls)) == ("E-KEY-MISMATCH", "no", 1)


async def test_it_is_refused_while_the_other_runs_too() -> None:
    stage, end = a_stage(), HeldEnd()
    first = asyncio.ensure_future(stage(keyed(), end))
    await end.reached()
    assert (await fails(stage, keyed(arguments={"a": 2}), end)).code == "E-KEY-MISMATCH"
    end.answer(a_reply("paid"))
    assert (await first).text == "paid"
    assert len(end.calls) == 1


async def test_it_is_refused_when_the_outcome_of_the_other_is_unknown() -> None:
    stage, end = a_stage(), End(failure(Certainty.UNKNOWN))
    await fails(stage, keyed(), end)
    assert (await fails(stage, keyed(arguments={"a": 2}), end)).code == "E-KEY-MISMATCH"


@pytest.mark.parametrize(
    "other", [{"caller": "someone else"}, {"server": "u"}, {"name": "u"}, {"idempotency_key": "K"}]
)
@pytest.mark.attack("held-29")
async def test_two_callers_servers_or_tools_never_share_a_key(other) -> None:
    stage, end = a_stage(), End(a_reply())
    await stage(keyed(), end)
    facts = {"server": "s", "name": "t", "idempotency_key": "k", "caller": "", **other}
    call = Call("s.t", "tools/call", {"arguments": {"a": 1}}, **facts)
    assert not (await stage(call, end)).replayed
    assert len(end.calls) == 2


def test_a_fingerprint_is_of_the_meaning_and_not_of_the_order() -> None:
    same = {
        call_fingerprint("t", {"a": 1, "b": {"c": 2, "d": 3}}),
        call_fingerprint("t", {"b": {"d": 3, "c": 2}, "a": 1}),
    }
    assert len(same) == 1
    others = [("u", {"a": 1}), ("t", {"a": 2}), ("t", {"a": "1"}), ("t", {}), ("t", None), ("t", {"a": [1]})]
    assert len({call_fingerprint("t", {"a": 1})} | {call_fingerprint(*each) for each in others}) == 7


# -- what nobody knows -------------------------------------------------------------------------------------------------


async def test_an_unknown_outcome_stays_unknown_and_is_not_tried_again() -> None:
    stage, end = a_stage(), End(failure(Certainty.UNKNOWN), a_reply())
    await fails(stage, keyed(), end)
    for _ in range(3):
        error = await fails(stage, keyed(), end)
        assert isinstance(error, OutcomeUnknown)
        assert error.executed == "unknown"
    assert len(end.calls) == 1


class Interrupted(MemoryIdempotencyStore):
    """Keys of which one was claimed by a process that crashed."""

    is_down = False

    def crash(self) -> None:
        for id_, (until, record) in self._records.items():
            self._records[id_] = (until, replace(record, state="interrupted"))
        self._running.clear()

    async def reclaim(self, id: IdempotencyKey, call: str) -> bool:
        if self.is_down:
            raise OSError("the disk is gone")
        found = self._records[id][1].state == "interrupted"
        if found:
            self._put(id, replace(self._records[id][1], state="running"))
        return found

    async def release(self, id: IdempotencyKey) -> None:
        self._put(id, replace(self._records[id][1], state="interrupted"))


async def test_a_call_that_a_crash_interrupted_is_sent_again_with_its_key_if_the_server_honours_keys() -> None:
    policy = SimpleNamespace(server=Server(command="x", idempotency_meta_key="key"))
    honoured = partial(keyed, effect=Effect.IDEMPOTENT, policy=policy)
    store = Interrupted(Clock())
    await store.claim(ID, call_fingerprint("t", keyed().params.get("arguments")), "call-1")
    store.crash()
    stage, end = a_stage(store), End(failure(Certainty.NOT_SENT), a_reply("paid"))
    assert isinstance(await fails(stage, keyed(), end), OutcomeUnknown)  # as unsafe: nothing is sent
    store.is_down = True
    assert (await fails(stage, honoured(), end)).executed == "unknown"
    store.is_down = False
    assert not end.calls
    assert isinstance(await fails(stage, honoured(), end), OutcomeUnknown)  # not sent: the first outcome is unknown
    paid = await stage(honoured(), end)
    assert (paid.text, paid.replayed) == ("paid", False)
    assert (await stage(keyed(), end)).replayed
    assert len(end.calls) == 2


async def test_an_error_after_execution_is_not_tried_again() -> None:
    stage, end = a_stage(), End(failure(Certainty.EXECUTED), a_reply())
    await fails(stage, keyed(), end)
    assert isinstance(await fails(stage, keyed(), end), OutcomeUnknown)
    assert len(end.calls) == 1


@pytest.mark.parametrize("certainty", [Certainty.NOT_SENT, Certainty.REJECTED])
async def test_what_was_not_executed_may_be_tried_again(certainty) -> None:
    stage, end = a_stage(), End(failure(certainty), a_reply("paid"))
    await fails(stage, keyed(), end)
    again = await stage(keyed(), end)
    assert (again.text, again.replayed) == ("paid", False)


async def test_a_caller_who_leaves_after_the_sending_leaves_an_unknown_outcome() -> None:
    stage, end = a_stage(), HeldEnd()
    only = asyncio.ensure_future(stage(keyed(), end))
    await end.reached()
    only.cancel()
    await turns()
    assert end.cancelled == 1
    assert isinstance(await fails(stage, keyed(), end), OutcomeUnknown)
    assert len(end.calls) == 1


async def test_a_caller_who_comes_as_the_last_one_leaves_is_not_cancelled_with_him() -> None:
    stage, end = a_stage(), HeldEnd()
    only = asyncio.ensure_future(stage(keyed(), end))
    await end.reached()
    only.cancel()
    await asyncio.sleep(0)
    (found,) = await outcomes([stage(keyed(), end)])
    assert isinstance(found, OutcomeUnknown)
    assert len(end.calls) == 1


async def test_a_caller_who_leaves_before_the_sending_leaves_the_key_free() -> None:
    stage, begun = a_stage(), asyncio.Event()

    async def waits(call: Call) -> CallResult:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    only = asyncio.ensure_future(stage(keyed(), waits))
    await begun.wait()
    only.cancel()
    await turns()
    assert (await stage(keyed(), End(a_reply("paid")))).text == "paid"


async def test_a_caller_who_leaves_during_the_claim_leaves_the_key_free() -> None:
    stage = a_stage(Slow())
    only = asyncio.ensure_future(stage(keyed(), End(a_reply())))
    await turns(2)
    only.cancel()
    await turns(50)
    assert (await stage(keyed(), End(a_reply("paid")))).text == "paid"


async def test_a_follower_whose_time_is_over_is_not_told_that_nothing_happened() -> None:
    inner, end = a_stage(), HeldEnd()
    outer = deadline(lambda _: 0.06, asyncio.get_running_loop().time)
    leader = asyncio.ensure_future(inner(keyed(), end))
    await end.reached()
    with pytest.raises(CallTimeout) as caught:
        await outer(keyed(), lambda call: inner(call, end))
    leader.cancel()
    await turns()
    assert caught.value.executed == "unknown"


@pytest.mark.parametrize("outcome", [a_reply("paid"), failure(Certainty.NOT_SENT)], ids=["finished", "released"])
async def test_what_is_known_is_stored_although_the_last_caller_has_left(outcome) -> None:
    stage, end = a_stage(Lingering(Clock())), HeldEnd()
    only = asyncio.ensure_future(stage(keyed(), end))
    await end.reached()
    end.answer(outcome)
    await turns(2)
    only.cancel()
    await turns(20)
    assert (await stage(keyed(), End(a_reply("paid")))).text == "paid"


# -- a call of another process -----------------------------------------------------------------------------------------


class Followed(MemoryIdempotencyStore):
    """A store in which another process has claimed the key, until `over`."""

    def __init__(self) -> None:
        super().__init__(Clock())
        self.over = asyncio.Event()

    async def claim_or_wait(
        self, id: IdempotencyKey, fingerprint: str, call: str, on_waiting: Callable[[], None]
    ) -> IdempotencyRecord | None:
        on_waiting()
        await self.over.wait()
        return await self.claim(id, fingerprint, call)


async def test_of_a_call_that_another_process_may_be_making_nobody_says_that_it_was_not_made() -> None:
    call = keyed()
    waiting = asyncio.ensure_future(a_stage(Followed())(call, End(a_reply())))
    await turns(5)
    waiting.cancel()
    await turns(5)
    assert waiting.cancelled(), "it is left at once"
    assert call.state.overall_certainty() is Certainty.UNKNOWN


async def test_a_key_that_another_process_gave_back_is_used() -> None:
    store = Followed()
    call = keyed()
    waiting = asyncio.ensure_future(a_stage(store)(call, End(a_reply("paid"))))
    await turns(5)
    store.over.set()
    assert (await waiting).text == "paid"


# -- the store ---------------------------------------------------------------------------------------------------------


async def test_a_store_that_fails_means_that_nothing_is_executed() -> None:
    end = End(a_reply())
    error = await fails(a_stage(Broken("claim")), keyed(), end)
    assert isinstance(error, ServerUnavailable)
    assert (error.code, error.executed, end.calls) == ("E-KEY-STORE", "no", [])
    assert "disk full" in error.detail


async def test_an_answer_that_cannot_be_stored_is_still_the_callers() -> None:
    assert (await a_stage(Broken("finish"))(keyed(), End(a_reply("paid")))).text == "paid"


@pytest.mark.parametrize("certainty", [Certainty.NOT_SENT, Certainty.UNKNOWN])
async def test_a_failure_that_cannot_be_stored_is_still_the_callers(certainty) -> None:
    own = failure(certainty)
    assert await fails(a_stage(Broken("release", "mark_unknown")), keyed(), End(own)) is own


@pytest.mark.parametrize("key", ["", "x" * 256, "ü", "a\nb", "a\tb", "\x7f", "a\0"])
async def test_a_key_is_1_to_255_printable_ascii_characters(key) -> None:
    end = End(a_reply())
    error = await fails(a_stage(), keyed(idempotency_key=key), end)
    assert isinstance(error, AccessDenied)
    assert (error.code, error.executed, end.calls) == ("E-KEY", "no", [])


@pytest.mark.parametrize("key", ["x", "x" * 255, "order 17/a~!"])
async def test_such_a_key_is_taken(key) -> None:
    assert (await a_stage()(keyed(idempotency_key=key), End(a_reply("paid")))).text == "paid"


async def test_a_key_is_remembered_for_a_day_from_its_outcome() -> None:
    clock = Clock()
    store = MemoryIdempotencyStore(clock)
    assert await store.claim(ID, "f", "c") is None
    clock.now += 3600
    await store.finish(ID, {})
    clock.now += 86_399
    assert await store.claim(ID, "f", "c") == IdempotencyRecord("finished", "f", {})
    clock.now += 1
    assert await store.claim(ID, "f", "c") is None


async def test_what_runs_is_never_forgotten() -> None:
    clock = Clock()
    store = MemoryIdempotencyStore(clock)
    await store.claim(ID, "f", "c")
    clock.now += 1e6
    assert await store.claim(ID, "f", "d") == IdempotencyRecord("running", "f")


async def test_the_same_call_again_is_the_same_claim_until_it_has_ended() -> None:
    store = MemoryIdempotencyStore(Clock())
    assert await store.claim(ID, "f", "c") is None
    assert await store.claim(ID, "f", "c") is None
    await store.finish(ID, {})
    assert await store.claim(ID, "f", "c") == IdempotencyRecord("finished", "f", {})


async def test_calls_without_an_id_are_not_the_same_call() -> None:
    store = MemoryIdempotencyStore(Clock())
    assert await store.claim(ID, "f", "") is None
    assert await store.claim(ID, "f", "") == IdempotencyRecord("running", "f")


async def test_a_full_store_refuses_new_keys_and_keeps_the_old() -> None:
    store = MemoryIdempotencyStore(Clock(), max_keys=2)
    stage, end = a_stage(store), End(a_reply())
    for key in "ab":
        await stage(keyed(idempotency_key=key), end)
    assert (await fails(stage, keyed(idempotency_key="c"), end)).code == "E-KEY-STORE"
    assert (await stage(keyed(idempotency_key="a"), end)).replayed
    assert len(end.calls) == 2


async def test_a_call_that_still_runs_keeps_no_other_key_from_being_forgotten() -> None:
    clock = Clock()
    store = MemoryIdempotencyStore(clock)
    await store.claim(ID, "f", "c")
    other = IdempotencyKey("", "s", "t", "other")
    await store.claim(other, "f", "c")
    await store.finish(other, {})
    clock.now += 86_401
    assert await store.claim(other, "g", "c") is None
