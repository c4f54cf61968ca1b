"""Links: two ends on a real socket, and everything that can go wrong on the way between them."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from toolway.cluster.node_auth import NodeProofs
from toolway.cluster.routing import link, link_frames
from toolway.cluster.routing.link import CalledLink, CallerLink, LinkExchange
from toolway.cluster.routing.link_frames import (
    IncompleteMessages,
    LinkError,
    LinkKeys,
    Outbox,
    RecordCipher,
    split_frames,
)
from toolway.cluster.routing.node_link import CallerIdentity
from toolway.gateway.sealing import Sealer
from toolway.protocol import jsonrpc
from toolway.types import CallState, Certainty
from toolway.upstream.transport import SEND_TOO_LATE, JSONRPCError, Request, TransportError

pytestmark = pytest.mark.anyio
Json = dict[str, Any]
ADDRESS = "http://owner"
KEY = b"k" * 32


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def proofs(node: str, key: bytes = KEY, epoch: int = 3, now: Callable[[], float] = time.time) -> NodeProofs:
    return NodeProofs(node, Sealer(key, now), lambda: (node, epoch), lambda: ADDRESS)


class Owner:
    """Peer that answers the calls of a given list, and keeps the rest."""

    def __init__(self, made: NodeProofs) -> None:
        self._proofs = made
        self.links: list[CalledLink] = []
        self.calls: dict[int, bytes] = {}
        self.cancelled: list[int] = []
        self.too_large: list[int] = []
        self.lost = asyncio.Event()
        self.changed = asyncio.Event()
        self.answers_at_once = False

    def accept(self) -> CalledLink:
        self.links.append(CalledLink(self))
        return self.links[-1]

    def welcome(self, hello: bytes) -> tuple[bytes, LinkKeys, str] | None:
        return self._proofs.welcome(hello)

    def on_call(self, link: CalledLink, number: int, content: memoryview) -> None:
        self.calls[number] = bytes(content)
        self.changed.set()
        if self.answers_at_once:
            self.answer(number, {"size": len(content)})

    def answer(self, number: int, result: Json) -> None:
        self.links[-1].reply(number, jsonrpc.encode_result(number, result))

    def on_cancel(self, link: CalledLink, number: int) -> None:
        self.cancelled.append(number)
        self.changed.set()

    def on_too_large(self, link: CalledLink, number: int) -> None:
        self.too_large.append(number)
        data = {"executed": "no"}
        link.reply(number, jsonrpc.encode_error(number, -32000, "too large", data))

    def on_lost(self, link: CalledLink) -> None:
        self.lost.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


class Wire:
    """Passes bytes between both ends: all of them, changed ones, or none."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.change: Callable[[bytes], bytes] = bytes
        self.is_stopped = asyncio.Event()
        self.writers: list[asyncio.StreamWriter] = []

    async def run(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        self.writers += (writer, back)
        await asyncio.gather(self._pass(reader, back, True), self._pass(there, writer, False), return_exceptions=True)
        writer.close()
        back.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_call: bool) -> None:
        while data := await reader.read(65536):
            if is_call:
                self.sent += data
                data = self.change(data)
            if data:
                writer.write(data)
                await writer.drain()
        writer.close()

    def cut(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class Inbound:
    def __init__(self) -> None:
        self.heard: list[tuple[str, Json]] = []

    def on_notification(self, method: str, params: Json, call_state: CallState | None = None) -> None:
        self.heard.append((method, params))

    async def on_request(self, method: str, params: Json, call_state: CallState | None = None) -> Json | None:
        return None


class Lab:
    def __init__(self, owner: Owner, caller: CallerLink, wire: Wire, port: int) -> None:
        self.owner = owner
        self.caller = caller
        self.wire = wire
        self.port = port
        self.inbound = Inbound()

    def call(self, text: str = "hi") -> tuple[LinkExchange, CallState, asyncio.Task[Json]]:
        state = CallState()
        exchange = self.caller.start(b"", Request("tools/call", {"text": text}, state), self.inbound, None)
        return exchange, state, asyncio.ensure_future(self.caller.wait(exchange))


@asynccontextmanager
async def lab(owner: Owner | None = None, identity: CallerIdentity | None = None) -> AsyncIterator[Lab]:
    loop = asyncio.get_running_loop()
    made = owner or Owner(proofs("owner"))
    server = await loop.create_server(made.accept, "127.0.0.1", 0)
    wire = Wire()
    port = server.sockets[0].getsockname()[1]
    middle = await asyncio.start_server(lambda r, w: wire.run(port, r, w), "127.0.0.1", 0)
    who = identity or CallerIdentity(proofs("caller"), "owner", 3, ADDRESS)
    _, caller = await loop.create_connection(lambda: CallerLink(who), "127.0.0.1", middle.sockets[0].getsockname()[1])
    try:
        yield Lab(made, caller, wire, port)
    finally:
        caller.abort("end")
        wire.cut()
        for each in made.links:
            each.abort("end")
        server.close()
        middle.close()
        await asyncio.gather(server.wait_closed(), middle.wait_closed())
        for _ in range(3):
            await asyncio.sleep(0)


# -- calls ------------------------------------------------------------------------------------------------------------


async def test_many_calls_share_a_link_and_are_answered_in_any_order() -> None:
    async with lab() as made:
        assert await made.caller.wait_open()
        calls = [made.call(str(number)) for number in range(50)]
        await made.owner.until(lambda: len(made.owner.calls) == 50)
        assert all(state.certainty is Certainty.UNKNOWN for _, state, _ in calls)
        for exchange, *_ in reversed(calls):
            made.owner.answer(exchange.id, {"number": exchange.id})
        assert [await task for *_, task in calls] == [{"number": exchange.id} for exchange, *_ in calls]
        assert len(made.owner.links) == 1 and len(made.caller) == 0


async def test_link_traffic_is_encrypted() -> None:
    async with lab() as made:
        await made.caller.wait_open()
        exchange, _, task = made.call("words of the call")
        await made.owner.until(lambda: made.owner.calls)
        assert b"words of the call" in made.owner.calls[exchange.id]
        assert b"words" not in made.wire.sent and b"tools" not in made.wire.sent
        task.cancel()


async def test_error_and_notification_belong_to_their_call() -> None:
    async with lab() as made:
        await made.caller.wait_open()
        (one, _, first), (two, _, second) = made.call(), made.call()
        await made.owner.until(lambda: len(made.owner.calls) == 2)
        called = made.owner.links[0]
        called.notify(two.id, jsonrpc.encode_notification("notifications/progress", {"progress": 1}))
        called.reply(one.id, jsonrpc.encode_error(one.id, -32000, "no"))
        made.owner.answer(two.id, {"ok": True})
        with pytest.raises(JSONRPCError, match="no"):
            await first
        assert await second == {"ok": True}
        assert made.inbound.heard == [("notifications/progress", {"progress": 1})]


async def test_cancelled_call_is_cancelled_at_the_owner_only() -> None:
    async with lab() as made:
        await made.caller.wait_open()
        (one, state, first), (two, _, second) = made.call(), made.call()
        await made.owner.until(lambda: len(made.owner.calls) == 2)
        first.cancel()
        await made.owner.until(lambda: made.owner.cancelled)
        assert made.owner.cancelled == [one.id] and state.certainty is Certainty.UNKNOWN
        made.owner.answer(one.id, {"late": True})
        made.owner.answer(two.id, {"ok": True})
        assert await second == {"ok": True}


async def test_large_result_does_not_delay_a_small_one() -> None:
    async with lab() as made:
        await made.caller.wait_open()
        (large, _, first), (small, _, second) = made.call(), made.call()
        await made.owner.until(lambda: len(made.owner.calls) == 2)
        ended: list[str] = []
        first.add_done_callback(lambda _: ended.append("large"))
        second.add_done_callback(lambda _: ended.append("small"))
        made.owner.answer(large.id, {"text": "x" * 7_000_000})
        made.owner.answer(small.id, {"ok": True})
        assert await second == {"ok": True} and len((await first)["text"]) == 7_000_000
        assert ended == ["small", "large"]


async def test_too_large_request_is_rejected_and_not_executed() -> None:
    async with lab() as made:
        await made.caller.wait_open()
        _, _, task = made.call("x" * (jsonrpc.MAX_MESSAGE_BYTES + 1))
        with pytest.raises(JSONRPCError, match="too large"):
            await task
        assert made.owner.calls == {}
        made.owner.answers_at_once = True
        assert "size" in await made.call()[2]


async def test_quiet_link_is_pinged_first() -> None:
    async with lab() as made:
        await made.caller.wait_open()
        made.caller.last_received -= 2 * link.FRESH_S
        assert not made.caller.is_fresh
        await made.caller.ping()
        assert made.caller.is_fresh


async def test_closing_node_gets_no_new_calls_and_answers_the_rest() -> None:
    async with lab() as made:
        await made.caller.wait_open()
        exchange, _, task = made.call()
        await made.owner.until(lambda: made.owner.calls)
        made.owner.links[0].announce_going()
        async with asyncio.timeout(20):
            while made.caller.is_usable:
                await asyncio.sleep(0)
        with pytest.raises(TransportError) as refused:
            made.call()
        assert refused.value.certainty is Certainty.NOT_SENT
        made.owner.answer(exchange.id, {"ok": True})
        assert await task == {"ok": True}
        async with asyncio.timeout(20):
            await made.owner.lost.wait()  # the caller has closed it


async def test_late_or_blocked_call_is_not_sent() -> None:
    async with lab() as made:
        await made.caller.wait_open()
        request = Request("tools/call", {"text": "x"}, CallState(may_send=lambda: False))
        with pytest.raises(TransportError) as late:
            made.caller.start(b"", request, made.inbound, None)
        assert (late.value.code, late.value.certainty) == (SEND_TOO_LATE, Certainty.NOT_SENT)
        made.caller.pause_writing()
        request = Request("tools/call", {"text": "x"}, CallState(may_send=lambda: True))
        with pytest.raises(TransportError) as busy:
            made.caller.start(b"", request, made.inbound, None)
        assert busy.value.certainty is Certainty.NOT_SENT and len(made.caller) == 0
        made.caller.resume_writing()
        made.owner.answers_at_once = True
        assert "size" in await made.caller.wait(made.caller.start(b"", request, made.inbound, None))
        assert len(made.owner.calls) == 1


# -- faults -----------------------------------------------------------------------------------------------------------


async def test_cut_connection_leaves_sent_calls_unknown() -> None:
    async with lab() as made:
        await made.caller.wait_open()
        _, state, task = made.call()
        await made.owner.until(lambda: made.owner.calls)
        made.wire.cut()
        with pytest.raises(TransportError) as lost:
            await task
        assert lost.value.certainty is state.certainty is Certainty.UNKNOWN
        with pytest.raises(TransportError) as refused:
            made.call()
        assert refused.value.certainty is Certainty.NOT_SENT


async def test_call_behind_a_slow_reader_is_not_sent() -> None:
    """The owner reads nothing: what does not fit into the sockets stays here, and is known not to be sent."""
    async with lab() as made:
        await made.caller.wait_open()
        made.owner.links[0]._transport.pause_reading()  # type: ignore[union-attr]
        tasks = [made.call("x" * 4_000_000) for _ in range(8)]
        async with asyncio.timeout(20):
            while not made.caller._is_paused:
                await asyncio.sleep(0)
        exchange, state, waiting = made.call("small")
        await asyncio.sleep(0)
        assert state.certainty is Certainty.NOT_SENT
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert exchange.id not in made.owner.calls and state.certainty is Certainty.NOT_SENT
        made.caller.abort("cut")
        found = await asyncio.gather(*(task for *_, task in tasks), return_exceptions=True)
        assert {error.certainty for error in found if isinstance(error, TransportError)} == {Certainty.NOT_SENT}
        assert made.owner.calls == {}


async def test_truncated_request_is_never_executed() -> None:
    async with lab() as made:
        await made.caller.wait_open()
        left = 200_000

        def only_a_part(data: bytes) -> bytes:
            nonlocal left
            part, left = data[:left], max(0, left - len(data))
            return part

        made.wire.change = only_a_part
        _, _, task = made.call("x" * 1_000_000)
        async with asyncio.timeout(20):
            while left:
                await asyncio.sleep(0)
        made.wire.cut()
        with pytest.raises(TransportError):
            await task
        async with asyncio.timeout(20):
            await made.owner.lost.wait()
        assert made.owner.calls == {}


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),  # changed
        lambda data: data + data,  # repeated
        lambda data: link_frames.LENGTH.pack(1 << 30) + data,  # too long
    ],
)
async def test_altered_bytes_end_the_link_and_execute_nothing_twice(change: Callable[[bytes], bytes]) -> None:
    async with lab() as made:
        await made.caller.wait_open()
        await made.caller.ping()
        made.wire.change = change
        _, _, task = made.call()
        async with asyncio.timeout(20):
            await made.owner.lost.wait()
        with pytest.raises(TransportError) as lost:
            await task
        assert lost.value.certainty is Certainty.UNKNOWN
        assert len(made.owner.calls) <= 1


async def test_recorded_connection_cannot_be_replayed() -> None:
    async with lab() as made:
        await made.caller.wait_open()
        _, _, task = made.call()
        await made.owner.until(lambda: made.owner.calls)
        made.owner.calls.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        writer.write(bytes(made.wire.sent))
        async with asyncio.timeout(20):
            await reader.read(100_000)  # a welcome, with keys that the recorded bytes do not fit
            assert await reader.read() == b""
        assert made.owner.calls == {}
        writer.close()
        task.cancel()


@pytest.mark.parametrize(
    ("owner", "identity"),
    [
        (proofs("owner", b"x" * 32), None),
        (proofs("other"), None),
        (proofs("owner", epoch=2), None),
        (None, CallerIdentity(proofs("caller", b"x" * 32), "owner", 3, ADDRESS)),
        (None, CallerIdentity(proofs("caller"), "owner", 3, "http://elsewhere")),
        (None, CallerIdentity(proofs("caller", now=lambda: time.time() - 60), "owner", 3, ADDRESS)),
    ],
    ids=["key of the owner", "another node", "old lease", "key of the caller", "address", "old hello"],
)
async def test_process_without_valid_proof_receives_no_call(
    owner: NodeProofs | None, identity: CallerIdentity | None
) -> None:
    async with lab(Owner(owner) if owner is not None else None, identity) as made:
        with pytest.raises(LinkError):
            await made.caller.wait_open()
        with pytest.raises(TransportError) as refused:
            made.call()
        assert refused.value.certainty is Certainty.NOT_SENT and made.owner.calls == {}


async def test_silent_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "OPEN_TIMEOUT_S", 0.05)
    async with lab() as made:
        with socket.create_connection(("127.0.0.1", made.port)) as stranger:
            stranger.setblocking(False)
            async with asyncio.timeout(20):
                assert await asyncio.get_running_loop().sock_recv(stranger, 10) == b""


async def test_peer_that_reads_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "STALL_TIMEOUT_S", 0.05)
    async with lab() as made:
        await made.caller.wait_open()
        made.owner.links[0]._transport.pause_reading()  # type: ignore[union-attr]
        tasks = [made.call("x" * 7_000_000)[2] for _ in range(4)]
        async with asyncio.timeout(20):
            found = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(error, TransportError) for error in found)


# -- frames -----------------------------------------------------------------------------------------------------------


def test_messages_stay_in_order_and_small_ones_overtake_large() -> None:
    outbox = Outbox()
    outbox.add(link_frames.NOTIFICATION, 1, b"a" * 150_000)
    outbox.add(link_frames.REPLY, 1, b"b")
    outbox.add(link_frames.REPLY, 2, b"c" * 100_000)
    outbox.add(link_frames.REPLY, 3, b"d")
    assembly = IncompleteMessages(10**6, 10**6)
    whole: list[tuple[int, int]] = []
    while outbox:
        frames, _ = outbox.next_record()
        for frame in split_frames(frames):
            message = assembly.add(frame)
            if message is not None:
                whole.append((frame.number, len(message)))
    assert whole == [(3, 1), (2, 100_000), (1, 150_000), (1, 1)]
    assert outbox.bytes == 0 and assembly.bytes == 0


def test_removed_message_leaves_nothing() -> None:
    outbox = Outbox()
    outbox.add(link_frames.CALL, 1, b"a" * 150_000)
    outbox.add(link_frames.CALL, 2, b"b")
    assert not outbox.remove(2)
    outbox.next_record()
    assert outbox.remove(1) and not outbox and outbox.bytes == 0


@pytest.mark.parametrize("record", [b"\x01", b"\x01\x00\x00\x00\x01\x00\x00\x00\x05abc"])
def test_record_without_whole_frames_is_an_error(record: bytes) -> None:
    with pytest.raises(LinkError):
        split_frames(record)


def test_records_are_opened_in_order_only() -> None:
    keys = LinkKeys.derive(b"a" * 32, b"b" * 32)
    seal, opens = RecordCipher(keys.calls), RecordCipher(keys.calls)
    first, second = seal.seal(b"1"), seal.seal(b"2")
    with pytest.raises(LinkError):
        opens.open(second[4:])
    opens = RecordCipher(keys.calls)
    assert [opens.open(first[4:]), opens.open(second[4:])] == [b"1", b"2"]
    with pytest.raises(LinkError):
        RecordCipher(keys.replies).open(first[4:])
