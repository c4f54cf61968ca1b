"""Single flight: identical reads at the same time are made once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.middleware.chain_lab import HeldEnd, a_call, a_reply, failure, turns
from toolway.errors import CallTimeout, Certainty, OutcomeUnknown
from toolway.middleware.deadline import deadline
from toolway.middleware.single_flight import MAX_WAITERS, single_flight
from toolway.types import Call, CallResult, Effect, Middleware

pytestmark = pytest.mark.anyio

Task = asyncio.Task[CallResult]


def one_identity(call: Call) -> str | None:
    return call.caller if call.effect is Effect.READ else None


def together(stage: Middleware, end: HeldEnd, count: int, **facts: Any) -> list[Task]:
    async def made() -> CallResult:
        return await stage(a_call(Effect.READ, **facts), end)

    return [asyncio.create_task(made()) for _ in range(count)]


async def leave(task: Task) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_identical_parallel_reads_are_made_once() -> None:
    stage, end = single_flight(one_identity), HeldEnd()
    tasks = together(stage, end, 20)
    await turns()
    end.answer(a_reply("one"))
    assert {reply.text for reply in await asyncio.gather(*tasks)} == {"one"}
    assert len(end.calls) == 1


async def test_next_read_is_made_again() -> None:
    stage, end = single_flight(one_identity), HeldEnd()
    for number in (1, 2):
        (task,) = together(stage, end, 1)
        await end.reached(number)
        end.answer(a_reply())
        await task
        await turns()


async def test_reads_of_another_caller_are_separate() -> None:
    stage, end = single_flight(one_identity), HeldEnd()
    tasks = together(stage, end, 3, caller="a") + together(stage, end, 3, caller="b")
    await end.reached(2)
    await turns()
    assert len(end.calls) == 2
    end.answer(a_reply("for a"), 0)
    end.answer(a_reply("for b"), 1)
    texts = [reply.text for reply in await asyncio.gather(*tasks)]
    assert texts == ["for a"] * 3 + ["for b"] * 3


async def test_call_without_identity_is_not_shared() -> None:
    stage, end = single_flight(lambda _: None), HeldEnd()
    tasks = together(stage, end, 5)
    await end.reached(5)
    for number in range(5):
        end.answer(a_reply(str(number)), number)
    assert [reply.text for reply in await asyncio.gather(*tasks)] == ["0", "1", "2", "3", "4"]


async def test_failure_reaches_all_waiters() -> None:
    stage, end = single_flight(one_identity), HeldEnd()
    tasks = together(stage, end, 5)
    await end.reached()
    end.answer(failure(Certainty.UNKNOWN))
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in found] == [OutcomeUnknown] * 5


async def test_cancelled_leader_leaves_the_work_to_followers() -> None:
    stage, end = single_flight(one_identity), HeldEnd()
    leader, *followers = together(stage, end, 4)
    await end.reached()
    await leave(leader)
    assert leader.cancelled()
    end.answer(a_reply("kept"))
    assert {reply.text for reply in await asyncio.gather(*followers)} == {"kept"}
    assert (len(end.calls), end.cancelled) == (1, 0)


async def test_last_caller_leaving_cancels_the_work() -> None:
    stage, end = single_flight(one_identity), HeldEnd()
    tasks = together(stage, end, 4)
    await end.reached()
    for task in tasks:
        assert end.cancelled == 0
        await leave(task)
    await turns()
    assert end.cancelled == 1


async def test_at_most_a_hundred_follow_one_leader() -> None:
    assert MAX_WAITERS == 100
    stage, end = single_flight(one_identity), HeldEnd()
    tasks = together(stage, end, MAX_WAITERS + 1)
    await end.reached()
    await turns()
    assert len(end.calls) == 1
    tasks += together(stage, end, 3)
    await end.reached(4)
    for number in range(4):
        end.answer(a_reply(str(number)), number)
    replies = await asyncio.gather(*tasks)
    assert [reply.text for reply in replies] == ["0"] * (MAX_WAITERS + 1) + ["1", "2", "3"]


async def test_caller_joining_as_the_last_one_leaves_gets_an_answer() -> None:
    stage, end = single_flight(one_identity), HeldEnd()
    (only,) = together(stage, end, 1)
    await end.reached()
    only.cancel()
    await asyncio.sleep(0)
    (late,) = together(stage, end, 1)
    await turns()
    if not late.done():
        end.answer(a_reply("for the late one"))
    (found,) = await asyncio.gather(late, return_exceptions=True)
    assert found == a_reply("for the late one")


async def test_follower_timing_out_reports_how_far_the_work_got() -> None:
    inner, end = single_flight(one_identity), HeldEnd()
    outer = deadline(lambda _: 0.06, asyncio.get_running_loop().time)

    async def bounded(call: Call) -> CallResult:
        return await outer(call, lambda timed: inner(timed, end))

    (leader,) = together(inner, end, 1)
    await end.reached()
    with pytest.raises(CallTimeout) as caught:
        await bounded(a_call(Effect.READ))
    await leave(leader)
    assert (caught.value.executed, caught.value.phase) == ("unknown", "server")
