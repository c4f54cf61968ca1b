"""Whom of the callers on one session a server means."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from toolway.config.schema import Limits
from toolway.types import Call, Json
from toolway.upstream import server_requests
from toolway.upstream.server_requests import ServerRequestRouter
from toolway.upstream.transport import JSONRPCError

pytestmark = pytest.mark.anyio

ELICIT = "elicitation/create"


def test_request_limit_matches_server_default() -> None:
    assert Limits().max_server_requests == server_requests.MAX_REQUESTS_PER_CALL


class FakeCaller:
    """Answers with its name, when it is let."""

    def __init__(self, name: str, *capabilities: str) -> None:
        self.name = name
        self.capabilities: Json = {each: {} for each in capabilities or ("elicitation",)}
        self.may_answer = asyncio.Event()
        self.asked = 0

    async def handle_request(self, server: str, method: str, params: Json) -> Json:
        self.asked += 1
        await self.may_answer.wait()
        return {"by": self.name}


def call(person: FakeCaller | None, name: str = "tool", **more: Any) -> Call:
    return Call(f"s.{name}", "tools/call", {}, server="s", name=name, callbacks=person, **more)


def callers(*calls: Call) -> ServerRequestRouter:
    found = ServerRequestRouter("s", FakeCaller("nobody", "nothing"))
    for each in calls:
        found.add(each)
    return found


async def begin(among: ServerRequestRouter, about: Any = None) -> asyncio.Task[Json]:
    task = asyncio.create_task(among.handle(ELICIT, {}, about))
    await asyncio.sleep(0)
    return task


async def test_request_on_call_stream_goes_to_that_call() -> None:
    one, two = FakeCaller("one"), FakeCaller("two")
    first, second = call(one), call(two)
    one.may_answer.set()
    assert await callers(first, second).handle(ELICIT, {}, first.state) == {"by": "one"}


async def test_request_on_pipe_goes_to_capable_caller() -> None:
    able, unable = FakeCaller("able"), FakeCaller("unable", "roots")
    able.may_answer.set()
    assert await callers(call(able), call(unable)).handle(ELICIT, {}, None) == {"by": "able"}


async def test_requests_of_one_tool_follow_call_order() -> None:
    people = [FakeCaller(str(number)) for number in range(5)]
    among = callers(*(call(person) for person in people))
    asked = [await begin(among) for _ in people]
    assert [person.asked for person in people] == [1] * 5
    for person in reversed(people):
        person.may_answer.set()
    assert [await task for task in asked] == [{"by": str(number)} for number in range(5)]


async def test_second_request_of_a_call_goes_to_the_same_caller() -> None:
    people = [FakeCaller(str(number)) for number in range(3)]
    among = callers(*(call(person) for person in people))
    asked = [await begin(among) for _ in people]
    people[1].may_answer.set()
    assert await asked[1] == {"by": "1"}
    assert await among.handle(ELICIT, {}, None) == {"by": "1"}
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)


async def test_tool_that_asked_before_is_preferred() -> None:
    asker, silent = FakeCaller("asker"), FakeCaller("silent")
    asker.may_answer.set()
    among = callers()
    alone = call(asker, "asks")
    among.add(alone)
    await among.handle(ELICIT, {}, None)
    among.remove(alone)
    among.add(call(asker, "asks"))
    among.add(call(silent, "works"))
    assert await among.handle(ELICIT, {}, None) == {"by": "asker"}


async def test_most_recent_call_of_unknown_tool_is_chosen() -> None:
    old, new = FakeCaller("old"), FakeCaller("new")
    new.may_answer.set()
    assert await callers(call(old, "works long"), call(new, "asks")).handle(ELICIT, {}, None) == {"by": "new"}


async def test_request_without_a_call_is_rejected() -> None:
    with pytest.raises(JSONRPCError):
        await callers().handle(ELICIT, {}, None)


async def test_request_is_cancelled_when_its_call_ends() -> None:
    person = FakeCaller("one")
    mine = call(person)
    among = callers(mine)
    asked = await begin(among)
    among.remove(mine)
    await asyncio.gather(asked, return_exceptions=True)
    assert asked.cancelled() and not mine.state.is_waiting_for_user


async def test_unattributed_log_message_goes_to_one_caller_only() -> None:
    told: list[str] = []

    def listener(name: str, caller: str, level: str | None) -> Call:
        return call(None, caller=caller, on_log=lambda method, params: told.append(name), log_level=level)

    message = {"level": "info", "data": "x"}
    loud, quiet = listener("loud", "a", "debug"), listener("quiet", "a", "error")
    assert callers(loud, quiet).notify("notifications/message", message, None) and told == ["loud"]
    other = listener("other", "b", "debug")
    assert not callers(loud, other).notify("notifications/message", message, None)
    assert callers(loud, other).notify("notifications/message", message, other.state) and told == ["loud", "other"]


# -- turns on a pipe --------------------------------------------------------------------------------------------------


async def work(among: ServerRequestRouter, mine: Call) -> None:
    await among.wait_for_turn(mine)
    among.add(mine)


async def known_to_ask(*names: str) -> ServerRequestRouter:
    """Where calls of these names have asked before."""
    among = callers()
    for name in names:
        person = FakeCaller("earlier")
        person.may_answer.set()
        mine = call(person, name)
        among.add(mine)
        await among.handle(ELICIT, {}, None)
        among.on_result(mine)
        among.remove(mine)
    return among


async def test_asking_tools_run_one_at_a_time() -> None:
    one, two = FakeCaller("one"), FakeCaller("two")
    first, second = call(one, "a"), call(two, "b")
    among = await known_to_ask("a", "b")
    await work(among, first)
    waiting = asyncio.create_task(work(among, second))
    await asyncio.sleep(0)
    assert not waiting.done()
    question = await begin(among)
    async with asyncio.timeout(server_requests.TURN_TIMEOUT_S / 2):
        await waiting  # who waits for an answer does not work
    assert one.asked == 1
    other = await begin(among)
    await asyncio.sleep(2 * server_requests.REQUEST_BATCH_S)
    assert two.asked == 1
    two.may_answer.set()
    assert await other == {"by": "two"}
    one.may_answer.set()
    await asyncio.sleep(2 * server_requests.REQUEST_BATCH_S)
    assert not question.done()  # the answer is held back while the other works
    among.remove(second)
    assert await question == {"by": "one"}


async def test_other_tools_do_not_wait_for_a_turn() -> None:
    among = await known_to_ask("asks")
    await work(among, call(FakeCaller("one"), "asks"))
    async with asyncio.timeout(server_requests.TURN_TIMEOUT_S / 2):
        for number in range(100):
            await work(among, call(FakeCaller("two"), f"works {number}"))
    assert len(among) == 101


async def test_call_does_not_wait_for_tool_that_ended_without_request() -> None:
    among = await known_to_ask("a", "b")
    silent = call(FakeCaller("one"), "a")
    await work(among, silent)
    among.on_result(silent)
    among.remove(silent)
    await work(among, call(FakeCaller("two"), "b"))
    async with asyncio.timeout(server_requests.TURN_TIMEOUT_S / 2):
        await work(among, call(FakeCaller("three"), "a"))
    assert len(among) == 2


async def test_waiting_for_a_turn_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_requests, "TURN_TIMEOUT_S", 0.05)
    among = await known_to_ask("a", "b")
    await work(among, call(FakeCaller("one"), "a"))
    await work(among, call(FakeCaller("two"), "b"))
    assert len(among) == 2


async def test_call_without_callbacks_needs_no_turn() -> None:
    among = await known_to_ask("a")
    await work(among, call(FakeCaller("one"), "a"))
    async with asyncio.timeout(server_requests.TURN_TIMEOUT_S / 2):
        await work(among, call(None, "a"))


async def test_calls_started_before_first_request_are_asked_first() -> None:
    among = callers()
    early = [FakeCaller("first"), FakeCaller("second")]
    for person in early:
        await work(among, call(person, "a"))
    await begin(among)
    waiting = asyncio.create_task(work(among, call(FakeCaller("late"), "a")))
    await asyncio.sleep(2 * server_requests.REQUEST_BATCH_S)
    assert not waiting.done()
    await begin(among)
    assert [person.asked for person in early] == [1, 1]
    async with asyncio.timeout(server_requests.TURN_TIMEOUT_S / 2):
        await waiting


async def test_second_call_waits_for_first_call_of_new_tool() -> None:
    among = callers()
    person = FakeCaller("first")
    await work(among, call(person, "a"))
    waiting = asyncio.create_task(work(among, call(FakeCaller("second"), "a")))
    await asyncio.sleep(0)
    assert not waiting.done()
    await begin(among)
    async with asyncio.timeout(server_requests.TURN_TIMEOUT_S / 2):
        await waiting
    await begin(among)
    assert person.asked == 1


async def test_silent_tool_is_waited_for_only_once() -> None:
    among = callers()
    await work(among, call(FakeCaller("first"), "a"))
    async with asyncio.timeout(server_requests.TRIAL_TIMEOUT_S * 4):
        await work(among, call(FakeCaller("second"), "a"))
        for _ in range(100):
            await work(among, call(FakeCaller("later"), "a"))
    assert len(among) == 102
