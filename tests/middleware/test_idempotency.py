"""Idempotency keys: a call runs once, however often it is repeated."""

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
    """A store that fails in the given methods."""

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
    """A store that takes a few turns of the loop for everything, and whose work continues when its caller leaves."""

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


async def test_call_without_a_key_is_not_stored() -> None:
    end = End(a_reply())
    stage = a_stage(Broken("claim"))
    for _ in range(3):
        await stage(a_call(), end)
    assert len(end.calls) == 3


async def test_finished_call_is_replayed_and_marked() -> None:
    stage, end = a_stage(), End(a_reply("paid"), a_reply("paid twice"))
    first, second, third = [await stage(keyed(), end) for _ in range(3)]
    assert [reply.text for reply in (first, second, third)] == ["paid"] * 3
    assert [reply.replayed for reply in (first, second, third)] == [False, True, True]
    assert len(end.calls) == 1


async def test_tool_error_is_replayed_like_any_outcome() -> None:
    stage, end = a_stage(), End(a_reply("no money", isError=True), a_reply())
    await stage(keyed(), end)
    again = await stage(keyed(), end)
    assert (again.is_error, again.replayed, len(end.calls)) == (True, True, 1)


async def test_parallel_call_with_the_key_gets_the_same_outcome() -> None:
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


async def test_fifty_parallel_calls_execute_once() -> None:
    stage, end = a_stage(), End(a_reply("paid"))
    found = await outcomes([stage(keyed(), end) for _ in range(50)])
    assert [o for o in found if not isinstance(o, CallResult)] == []
    assert len(end.calls) == 1


async def test_key_released_during_a_claim_is_free_again() -> None:
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


async def test_cancelled_leader_leaves_the_execution_to_followers() -> None:
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


async def test_leader_gets_progress_until_it_leaves() -> None:
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


async def test_same_key_with_other_arguments_is_rejected_unexecuted() -> None:
    stage, end = a_stage(), End(a_reply())
    await stage(keyed(), end)
    error = await fails(stage, keyed(arguments={"a": 2}), end)
    assert isinstance(error, ProtocolError)
    assert (error.code, error.executed, len(end.calls)) == ("E-KEY-MISMATCH", "no", 1)


async def test_key_mismatch_is_rejected_while_the_first_call_runs() -> None:
    stage, end = a_stage(), HeldEnd()
    first = asyncio.ensure_future(stage(keyed(), end))
    await end.reached()
    assert (await fails(stage, keyed(arguments={"a": 2}), end)).code == "E-KEY-MISMATCH"
    end.answer(a_reply("paid"))
    assert (await first).text == "paid"
    assert len(end.calls) == 1


async def test_key_mismatch_is_rejected_after_an_unknown_outcome() -> None:
    stage, end = a_stage(), End(failure(Certainty.UNKNOWN))
    await fails(stage, keyed(), end)
    assert (await fails(stage, keyed(arguments={"a": 2}), end)).code == "E-KEY-MISMATCH"


@pytest.mark.parametrize(
    "other", [{"caller": "someone else"}, {"server": "u"}, {"name": "u"}, {"idempotency_key": "K"}]
)
@pytest.mark.attack("held-29")
async def test_keys_are_separate_per_caller_server_and_tool(other) -> None:
    stage, end = a_stage(), End(a_reply())
    await stage(keyed(), end)
    facts = {"server": "s", "name": "t", "idempotency_key": "k", "caller": "", **other}
    call = Call("s.t", "tools/call", {"arguments": {"a": 1}}, **facts)
    assert not (await stage(call, end)).replayed
    assert len(end.calls) == 2


def test_fingerprint_ignores_the_order_of_arguments() -> None:
    same = {
        call_fingerprint("t", {"a": 1, "b": {"c": 2, "d": 3}}),
        call_fingerprint("t", {"b": {"d": 3, "c": 2}, "a": 1}),
    }
    assert len(same) == 1
    others = [("u", {"a": 1}), ("t", {"a": 2}), ("t", {"a": "1"}), ("t", {}), ("t", None), ("t", {"a": [1]})]
    assert len({call_fingerprint("t", {"a": 1})} | {call_fingerprint(*each) for each in others}) == 7


# -- unknown outcomes -------------------------------------------------------------------------------------------------


async def test_unknown_outcome_stays_unknown_and_is_not_retried() -> None:
    stage, end = a_stage(), End(failure(Certainty.UNKNOWN), a_reply())
    await fails(stage, keyed(), end)
    for _ in range(3):
        error = await fails(stage, keyed(), end)
        assert isinstance(error, OutcomeUnknown)
        assert error.executed == "unknown"
    assert len(end.calls) == 1


class Interrupted(MemoryIdempotencyStore):
    """Keys, one of them claimed by a process that crashed."""

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


async def test_interrupted_call_is_resent_if_the_server_honors_keys() -> None:
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


async def test_error_after_execution_is_not_retried() -> None:
    stage, end = a_stage(), End(failure(Certainty.EXECUTED), a_reply())
    await fails(stage, keyed(), end)
    assert isinstance(await fails(stage, keyed(), end), OutcomeUnknown)
    assert len(end.calls) == 1


@pytest.mark.parametrize("certainty", [Certainty.NOT_SENT, Certainty.REJECTED])
async def test_unexecuted_call_may_be_retried(certainty) -> None:
    stage, end = a_stage(), End(failure(certainty), a_reply("paid"))
    await fails(stage, keyed(), end)
    again = await stage(keyed(), end)
    assert (again.text, again.replayed) == ("paid", False)


async def test_caller_leaving_after_sending_leaves_unknown_outcome() -> None:
    stage, end = a_stage(), HeldEnd()
    only = asyncio.ensure_future(stage(keyed(), end))
    await end.reached()
    only.cancel()
    await turns()
    assert end.cancelled == 1
    assert isinstance(await fails(stage, keyed(), end), OutcomeUnknown)
    assert len(end.calls) == 1


async def test_caller_joining_as_the_last_one_leaves_is_not_cancelled() -> None:
    stage, end = a_stage(), HeldEnd()
    only = asyncio.ensure_future(stage(keyed(), end))
    await end.reached()
    only.cancel()
    await asyncio.sleep(0)
    (found,) = await outcomes([stage(keyed(), end)])
    assert isinstance(found, OutcomeUnknown)
    assert len(end.calls) == 1


async def test_caller_leaving_before_sending_leaves_the_key_free() -> None:
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


async def test_caller_leaving_during_the_claim_leaves_the_key_free() -> None:
    stage = a_stage(Slow())
    only = asyncio.ensure_future(stage(keyed(), End(a_reply())))
    await turns(2)
    only.cancel()
    await turns(50)
    assert (await stage(keyed(), End(a_reply("paid")))).text == "paid"


async def test_follower_timing_out_reports_unknown() -> None:
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
async def test_known_outcome_is_stored_after_the_last_caller_left(outcome) -> None:
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


async def test_call_possibly_made_by_another_process_is_unknown() -> None:
    call = keyed()
    waiting = asyncio.ensure_future(a_stage(Followed())(call, End(a_reply())))
    await turns(5)
    waiting.cancel()
    await turns(5)
    assert waiting.cancelled(), "it is left at once"
    assert call.state.overall_certainty() is Certainty.UNKNOWN


async def test_key_released_by_another_process_is_used() -> None:
    store = Followed()
    call = keyed()
    waiting = asyncio.ensure_future(a_stage(store)(call, End(a_reply("paid"))))
    await turns(5)
    store.over.set()
    assert (await waiting).text == "paid"


# -- the store ---------------------------------------------------------------------------------------------------------


async def test_failing_store_means_nothing_is_executed() -> None:
    end = End(a_reply())
    error = await fails(a_stage(Broken("claim")), keyed(), end)
    assert isinstance(error, ServerUnavailable)
    assert (error.code, error.executed, end.calls) == ("E-KEY-STORE", "no", [])
    assert "disk full" in error.detail


async def test_answer_that_cannot_be_stored_reaches_the_caller() -> None:
    assert (await a_stage(Broken("finish"))(keyed(), End(a_reply("paid")))).text == "paid"


@pytest.mark.parametrize("certainty", [Certainty.NOT_SENT, Certainty.UNKNOWN])
async def test_failure_that_cannot_be_stored_reaches_the_caller(certainty) -> None:
    own = failure(certainty)
    assert await fails(a_stage(Broken("release", "mark_unknown")), keyed(), End(own)) is own


@pytest.mark.parametrize("key", ["", "x" * 256, "ü", "a\nb", "a\tb", "\x7f", "a\0"])
async def test_invalid_key_is_rejected(key) -> None:
    end = End(a_reply())
    error = await fails(a_stage(), keyed(idempotency_key=key), end)
    assert isinstance(error, AccessDenied)
    assert (error.code, error.executed, end.calls) == ("E-KEY", "no", [])


@pytest.mark.parametrize("key", ["x", "x" * 255, "order 17/a~!"])
async def test_valid_key_is_accepted(key) -> None:
    assert (await a_stage()(keyed(idempotency_key=key), End(a_reply("paid")))).text == "paid"


async def test_key_is_kept_for_a_day_after_its_outcome() -> None:
    clock = Clock()
    store = MemoryIdempotencyStore(clock)
    assert await store.claim(ID, "f", "c") is None
    clock.now += 3600
    await store.finish(ID, {})
    clock.now += 86_399
    assert await store.claim(ID, "f", "c") == IdempotencyRecord("finished", "f", {})
    clock.now += 1
    assert await store.claim(ID, "f", "c") is None


async def test_running_call_is_never_forgotten() -> None:
    clock = Clock()
    store = MemoryIdempotencyStore(clock)
    await store.claim(ID, "f", "c")
    clock.now += 1e6
    assert await store.claim(ID, "f", "d") == IdempotencyRecord("running", "f")


async def test_same_call_id_is_the_same_claim_until_it_has_ended() -> None:
    store = MemoryIdempotencyStore(Clock())
    assert await store.claim(ID, "f", "c") is None
    assert await store.claim(ID, "f", "c") is None
    await store.finish(ID, {})
    assert await store.claim(ID, "f", "c") == IdempotencyRecord("finished", "f", {})


async def test_calls_without_an_id_are_different_calls() -> None:
    store = MemoryIdempotencyStore(Clock())
    assert await store.claim(ID, "f", "") is None
    assert await store.claim(ID, "f", "") == IdempotencyRecord("running", "f")


async def test_full_store_rejects_new_keys_and_keeps_the_old() -> None:
    store = MemoryIdempotencyStore(Clock(), max_keys=2)
    stage, end = a_stage(store), End(a_reply())
    for key in "ab":
        await stage(keyed(idempotency_key=key), end)
    assert (await fails(stage, keyed(idempotency_key="c"), end)).code == "E-KEY-STORE"
    assert (await stage(keyed(idempotency_key="a"), end)).replayed
    assert len(end.calls) == 2


async def test_running_call_does_not_keep_other_keys_from_expiring() -> None:
    clock = Clock()
    store = MemoryIdempotencyStore(clock)
    await store.claim(ID, "f", "c")
    other = IdempotencyKey("", "s", "t", "other")
    await store.claim(other, "f", "c")
    await store.finish(other, {})
    clock.now += 86_401
    assert await store.claim(other, "g", "c") is None
