"""Calls to a node without an address, over a real NATS server."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import nats
import pytest
from nats.aio.msg import Msg

from tests.cluster.nats_server import nats_server, program
from tests.cluster.node.nats_lab import (
    ROOT,
    RecordingSink,
    answered,
    call,
    caller,
    echo,
    link_to,
    never,
    owner,
    settled,
    until,
)
from tests.faults.cluster.echo import LATEST, echoing
from tests.timing import within
from toolway.cluster.nats_rpc import frames
from toolway.cluster.nats_rpc import rpc_server as server_module
from toolway.cluster.nats_rpc.rpc_server import MAX_NOTIFICATION_BYTES, MAX_NOTIFICATIONS
from toolway.gateway.mcp.context import Notify
from toolway.gateway.mcp.errors import MOVED, OUTCOME_UNKNOWN, OVERLOADED, RpcFailure
from toolway.protocol import jsonrpc
from toolway.types import Certainty, Json
from toolway.upstream.transport import JSONRPCError, TransportError

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(program() is None, reason="nats-server is not installed")]


def _certainty(error: JSONRPCError) -> object:
    return error.data.get("certainty") if isinstance(error.data, dict) else None


async def test_call_and_answer_arrive_unchanged() -> None:
    encoded = b'{"content":[], "odd": 1e2}'

    async def how(server: str, request: jsonrpc.Message, tell: Notify) -> jsonrpc.RawResult:
        return jsonrpc.RawResult(memoryview(encoded), b"}")

    async with nats_server() as server, owner(server, how) as there, caller(server) as way:
        link = await link_to(way)
        request = call(path="/a", text="ü\n")
        request.call_state.keep_raw = True
        assert await link.request(request) == {"content": [], "odd": 100}
        assert request.call_state.raw_bytes is not None and bytes(request.call_state.raw_bytes) == encoded
        assert request.call_state.certainty is Certainty.UNKNOWN
        assert there.asked == [("files", "tools/call", request.params)]
        assert (link.info().transport, link.info().unmatched_responses) == ("nats", 0)


async def test_owners_error_arrives_unchanged() -> None:
    async def how(server: str, request: jsonrpc.Message, tell: Notify) -> Json:
        if request.body["arguments"]["what"] == "bug":
            raise ZeroDivisionError
        raise RpcFailure(MOVED, "not mine", {"certainty": "C0"})

    async with nats_server() as server, owner(server, how), caller(server) as way:
        link = await link_to(way)
        with pytest.raises(JSONRPCError) as refused:
            await link.request(call(what="moved"))
        assert (refused.value.code, refused.value.message, refused.value.data) == (
            MOVED,
            "not mine",
            {"certainty": "C0"},
        )
        with pytest.raises(JSONRPCError) as failed:
            await link.request(call(what="bug"))
        assert failed.value.code == -32603 and "ZeroDivision" not in failed.value.message


async def test_missing_owner_is_reported_at_once_as_not_sent() -> None:
    async with nats_server() as server, owner(server, echo, epoch=2) as there, caller(server) as way:
        for node, epoch in (("nobody", 1), ("owner", 1)):  # the second is an earlier tenure of a node that is there
            request = call()
            began = time.monotonic()
            with pytest.raises(TransportError) as absent:
                await (await link_to(way, node, epoch)).request(request)
            assert (absent.value.certainty, absent.value.code) == (Certainty.NOT_SENT, "E-NO-OWNER")
            assert request.call_state.certainty is Certainty.NOT_SENT
            assert time.monotonic() - began < within(0.7)
        assert there.asked == []
        assert there.door is not None
        await there.door.listen(3)
        with pytest.raises(TransportError):
            await (await link_to(way, epoch=2)).request(call())
        assert await (await link_to(way, epoch=3)).request(call())


async def test_parallel_calls_are_batched_and_each_gets_its_answer() -> None:
    async with nats_server() as server, owner(server, echo) as there, caller(server) as way:
        link, nobody = await link_to(way), await link_to(way, "nobody")
        before = there.client.stats["in_msgs"] if there.client is not None else 0
        requests = [call(number=number, text="x" * (number % 7) * 2500) for number in range(300)]
        absent = [call(number=number) for number in range(300)]
        answers = await asyncio.gather(*(link.request(request) for request in requests))
        faults = await asyncio.gather(*(nobody.request(request) for request in absent), return_exceptions=True)
        assert [answer["said"] for answer in answers] == [request.params for request in requests]
        assert all(isinstance(fault, TransportError) and fault.certainty is Certainty.NOT_SENT for fault in faults)
        assert all(request.call_state.certainty is Certainty.NOT_SENT for request in absent)
        assert there.client is not None and there.client.stats["in_msgs"] - before < 120


async def test_calls_returning_together_are_sent_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolway.cluster.nats_rpc.rpc_client.SILENCE_CHECK_INTERVAL_S", 0.7)
    async with nats_server() as server, owner(server, echo) as there, caller(server) as way:
        link = await link_to(way)
        assert way.can_send_unbatched()
        assert there.client is not None
        taken = []
        for _ in range(5):
            before = there.client.stats["in_msgs"], way.client.stats["in_msgs"]
            await asyncio.gather(*(link.request(call()) for _ in range(16)))
            taken.append((there.client.stats["in_msgs"] - before[0], way.client.stats["in_msgs"] - before[1]))
        assert min(taken) == (1, 1)
        assert not way.can_send_unbatched()  # more calls may follow the next one
        await until(way.can_send_unbatched)


@pytest.mark.parametrize("size", [10, 20_000, 300_000])  # the last one goes in pieces
async def test_notifications_arrive_in_order_before_the_answer(size: int) -> None:
    count = 3 * MAX_NOTIFICATIONS

    async def how(server: str, request: jsonrpc.Message, tell: Notify) -> Json:
        for number in range(count):
            tell("notifications/progress", {"progressToken": 1, "progress": number})
            if number % 500 == 499:
                await asyncio.sleep(0.01)
        tell("notifications/message", {"data": "x" * MAX_NOTIFICATION_BYTES})  # left out: it is too large
        return {"content": "x" * size}

    async with nats_server() as server, owner(server, how), caller(server) as way:
        sink = RecordingSink()
        request = call()
        assert await (await link_to(way, sink=sink)).request(request) == {"content": "x" * size}
        assert [params["progress"] for _, params, _ in sink.heard] == list(range(count))
        assert all(about is request.call_state for _, _, about in sink.heard)


async def test_excess_notifications_are_dropped_but_not_the_answer() -> None:
    async def how(server: str, request: jsonrpc.Message, tell: Notify) -> Json:
        for number in range(50_000):
            tell("notifications/progress", {"progressToken": 1, "progress": number})
        return {"content": ["done"]}

    async with nats_server() as server, owner(server, how), caller(server) as way:
        sink = RecordingSink()
        assert await (await link_to(way, sink=sink)).request(call()) == {"content": ["done"]}
        assert [params["progress"] for _, params, _ in sink.heard] == list(range(MAX_NOTIFICATIONS))


@pytest.mark.parametrize("payload", [1024, 1024 * 1024])
async def test_large_messages_are_chunked_both_ways(tmp_path: Path, payload: int) -> None:
    configuration = tmp_path / "nats.conf"
    configuration.write_text(f"max_payload: {payload}\n")
    async with nats_server(configuration) as server, owner(server, echo), caller(server) as way:
        link = await link_to(way)
        for size in (payload // 2, 200_000, 3_000_000 if payload > 1024 else 300_000):
            requests = [call(text=mark * size) for mark in "abc"]
            answers = await asyncio.gather(*(link.request(request) for request in requests))
            assert [answer["said"] for answer in answers] == [request.params for request in requests]
        assert way.dropped == 0


async def test_large_answer_does_not_make_other_calls_look_lost() -> None:
    async def how(server: str, request: jsonrpc.Message, tell: Notify) -> Json:
        if request.body["arguments"].get("large"):
            return {"content": "x" * 7_000_000}
        await asyncio.sleep(1.5)
        return {"content": ""}

    async with nats_server() as server, owner(server, how), caller(server) as way:
        link = await link_to(way)
        slow = [asyncio.create_task(link.request(call())) for _ in range(20)]
        for _ in range(3):
            assert len((await link.request(call(large=True)))["content"]) == 7_000_000
        assert await asyncio.gather(*slow) == [{"content": ""}] * 20


async def test_call_or_answer_over_the_limit_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    async with nats_server() as server, owner(server, echo) as there, caller(server) as way:
        link = await link_to(way, limit=400_000)
        request = call(text="x" * 500_000)
        with pytest.raises(TransportError) as long:
            await link.request(request)
        assert (long.value.certainty, long.value.code) == (Certainty.UNKNOWN, "E-FRAME-LIMIT")
        assert len(there.asked) == 1
        request = call(text="x" * (jsonrpc.MAX_MESSAGE_BYTES + 1))
        with pytest.raises(JSONRPCError) as refused:
            await link.request(request)
        assert refused.value.code == OVERLOADED and _certainty(refused.value) == "C0"
        assert request.call_state.certainty is Certainty.NOT_SENT
        assert len(there.asked) == 1
        monkeypatch.setattr(server_module, "MAX_CALLS", 0)
        with pytest.raises(JSONRPCError) as many:
            await link.request(call())
        assert many.value.code == OVERLOADED and len(there.asked) == 1


async def test_cancelled_call_is_cancelled_at_the_owner() -> None:
    async with nats_server() as server, owner(server, never) as there, caller(server) as way:
        link = await link_to(way)
        calls = [asyncio.create_task(link.request(call(large="x" * size))) for size in (1, 500_000)]
        await until(lambda: len(there.asked) == 2)
        for each in calls:
            each.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await until(lambda: there.cancelled == 2)
        assert all(each.cancelled() for each in calls)


async def test_call_cancelled_before_its_start_is_forgotten() -> None:
    async with nats_server() as server, owner(server, echo) as there, caller(server) as way:
        calls = f"{ROOT}.call.owner.1"
        await way.client.publish(calls, b"Qfiles\n{}", way.reply_subject(7))
        await way.client.publish(f"{calls}.c", frames.CANCEL_FRAME, way.reply_subject(7))
        assert await (await link_to(way)).request(call())
        entry = there.door
        await until(lambda: entry is not None and entry.active_call_count == 0)


async def test_briefly_absent_caller_keeps_its_calls() -> None:
    async with nats_server() as server, owner(server, never) as there, caller(server) as way:
        waits = asyncio.create_task((await link_to(way)).request(call()))
        await until(lambda: there.asked)
        assert there.client is not None
        for _ in range(3):  # what NATS sends if a subject has no subscriber
            nobody = f"{ROOT}.call.owner.1.{way.reply_subject(1).split('.')[-2]}"
            await there.client.publish(nobody, b"", headers={"Status": "503"})
        await asyncio.sleep(1)
        assert not waits.done() and not there.cancelled
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)


async def test_calls_of_a_gone_node_are_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "CALLER_GONE_TIMEOUT_S", 0.5)
    async with nats_server() as server, owner(server, never) as there, caller(server) as other:
        stays = asyncio.create_task((await link_to(other)).request(call()))
        async with caller(server, "gone") as way:
            leaves = asyncio.create_task((await link_to(way)).request(call()))
            await until(lambda: len(there.asked) == 2)
            await way.client.close()
            await until(lambda: there.cancelled == 1)
            leaves.cancel()
            await asyncio.gather(leaves, return_exceptions=True)
        assert not stays.done()
        stays.cancel()
        await asyncio.gather(stays, return_exceptions=True)


async def test_closing_owner_reports_unknown_outcome() -> None:
    async with nats_server() as server, caller(server) as way:
        link = await link_to(way)
        async with owner(server, never) as there:
            waits = asyncio.create_task(link.request(call()))
            await until(lambda: there.asked)
        with pytest.raises(JSONRPCError) as ended:
            await waits
        assert (ended.value.code, _certainty(ended.value)) == (OUTCOME_UNKNOWN, "C2")


async def test_chunked_call_goes_to_one_of_two_listeners() -> None:
    async with nats_server() as server, owner(server, echo) as one, owner(server, echo) as two, caller(server) as way:
        link = await link_to(way)
        requests = [call(text="x" * (1 if number % 5 else 400_000), number=number) for number in range(50)]
        answers = await asyncio.gather(*(link.request(request) for request in requests))
        assert [answer["said"] for answer in answers] == [request.params for request in requests]
        assert len(one.asked) + len(two.asked) == 50 and one.asked and two.asked


async def test_junk_messages_are_ignored_and_calls_continue() -> None:
    async with nats_server() as server, owner(server, echo) as there, caller(server) as way:
        link = await link_to(way)
        stranger = await nats.connect(server.url)
        calls, reply = f"{ROOT}.call.owner.1", way.reply_subject(5000)
        for junk in (
            b"",
            b"{",
            b"Qfiles\n{}",
            b"Q\xff\n{}",
            b"P5\nx",
            b"C1\nx",
            b"P99999999999\nx",
            b"A",
            b"X",
            b"W1 2",
        ):
            for subject in (calls, f"{calls}.c", f"{calls}.x", reply, way.reply_subject(0)):
                for answer in ("", "elsewhere", f"{ROOT}.news.places", f"{ROOT}.reply.x.99", reply):
                    await stranger.publish(subject, junk, answer)
        news = await stranger.subscribe(f"{ROOT}.news.>")
        await stranger.flush()
        assert await asyncio.gather(*(link.request(call(n=n)) for n in range(100)))
        assert len(there.asked) == 100
        assert news.pending_msgs == 0
        await stranger.close()


async def test_repeated_frame_is_not_executed_again() -> None:
    async with nats_server() as server, owner(server, echo) as there, caller(server) as way:
        seen: list[tuple[str, bytes]] = []
        spy = await nats.connect(server.url)

        async def record_message(message: Msg) -> None:
            seen.append((message.reply, message.data))

        await spy.subscribe(f"{ROOT}.call.owner.1", cb=record_message)
        await settled(spy)
        assert await (await link_to(way)).request(call())
        await until(lambda: seen)
        for _ in range(5):
            await spy.publish(f"{ROOT}.call.owner.1", seen[0][1], seen[0][0])
        await spy.flush()
        assert await (await link_to(way)).request(call(second=True))
        assert len(there.asked) == 2
        await spy.close()


async def test_repeating_and_reordering_broker_changes_nothing() -> None:
    async with nats_server() as server, owner(server, echo) as there, caller(server) as way:
        async with echoing(server.url) as again:
            link = await link_to(way)
            for turn in range(3):
                requests = [
                    call(turn=turn, text="x" * size) for size in (1, 10, 1000, 30_000, 500_000) for _ in range(6)
                ]
                answers = await asyncio.gather(*(link.request(request) for request in requests))
                assert [answer["said"] for answer in answers] == [request.params for request in requests]
            await asyncio.sleep(2 * LATEST)  # until all is said
        assert again.count > 200
        assert len(there.asked) == 90


async def test_calls_without_nats_are_not_sent_and_resume_with_it() -> None:
    async with nats_server() as server, owner(server, echo) as there, caller(server) as way:
        link = await link_to(way)
        server.kill()
        await until(lambda: not way.client.is_connected)
        request = call()
        with pytest.raises(TransportError) as down:
            await link.request(request)
        assert (down.value.certainty, down.value.code) == (Certainty.NOT_SENT, "E-NATS")
        assert (request.call_state.certainty, there.asked) == (Certainty.NOT_SENT, [])
        await server.start()
        await until(lambda: way.client.is_connected)
        assert await answered(link) == {"content": [], "said": call().params}


@pytest.mark.parametrize("seconds", [0.05, 1.0])
async def test_call_survives_a_nats_restart(seconds: float) -> None:
    """It is answered while neither node is connected, or after both are again."""

    async def how(server: str, request: jsonrpc.Message, tell: Notify) -> Json:
        await asyncio.sleep(seconds)
        return {"content": ["done"]}

    async with nats_server() as server, owner(server, how) as there, caller(server) as way:
        link = await link_to(way)
        waits = asyncio.create_task(link.request(call()))
        await until(lambda: there.asked)
        server.kill()
        await server.start()
        assert await waits == {"content": ["done"]}
        assert len(there.asked) == 1


async def test_local_stall_is_not_mistaken_for_a_silent_owner() -> None:
    async with nats_server() as server, owner(server, never) as there, caller(server) as way:
        waits = asyncio.create_task((await link_to(way)).request(call()))
        await until(lambda: there.asked)
        time.sleep(1.0)  # noqa: ASYNC251 - that is the standstill
        await asyncio.sleep(1.5)
        assert not waits.done()
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)


async def test_late_answer_is_delivered() -> None:
    async with nats_server() as server, caller(server) as way:
        go = asyncio.Event()

        async def how(server: str, request: jsonrpc.Message, tell: Notify) -> Json:
            while not go.is_set():
                try:
                    await go.wait()
                except asyncio.CancelledError:
                    continue  # it cannot be stopped
            return {"content": ["late"]}

        async with owner(server, how) as there:
            late: list[Json] = []
            request = call()
            request.call_state.on_late_result = late.append
            waits = asyncio.create_task((await link_to(way)).request(request))
            await until(lambda: there.asked)
            waits.cancel()
            await asyncio.gather(waits, return_exceptions=True)
            await asyncio.sleep(0.1)
            go.set()
            await until(lambda: late)
            assert late == [{"content": ["late"]}]


async def test_incomplete_calls_are_bounded_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "CHUNK_TIMEOUT_S", 0.3)
    async with nats_server() as server, owner(server, echo) as there, caller(server) as way:
        first = next(frames.split_chunks(b"x" * 1_000_000, 1_000_000))
        for number in range(100, 200):
            await way.client.publish(f"{ROOT}.call.owner.1", first, way.reply_subject(number))
        entry = there.door
        assert entry is not None
        await until(lambda: entry.reassembly_bytes > 0)
        assert entry.reassembly_bytes <= server_module.MAX_REASSEMBLY_BYTES
        await until(lambda: entry.reassembly_bytes == 0)
        assert there.asked == []
