"""Server side of RPC over NATS: accepts calls of other nodes, sends heartbeats and replies.

It makes no decision about a call: the call token in the request states the caller and the server. From a frame itself
only the reply subject and the length are used. A call whose token cannot be opened gets no reply: we have no key to
seal it with, and callers ignore unsealed replies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from toolway.cluster.nats_rpc import frames
from toolway.cluster.nats_rpc.batching import BatchingOutbox
from toolway.cluster.nats_rpc.frames import MAX_UNACKED_CHUNKS_PER_NODE, ChunkedTransfer, TransferStalled
from toolway.cluster.node_auth import OpenedCall
from toolway.cluster.routing.call_cipher import CallCipher
from toolway.cluster.routing.node_http import CallHandler
from toolway.gateway.mcp.errors import OUTCOME_UNKNOWN, OVERLOADED, RpcFailure
from toolway.protocol import jsonrpc
from toolway.protocol.constants import INTERNAL_ERROR, INVALID_REQUEST
from toolway.types import Json
from toolway.upstream.transports.pending_requests import parse_large

CALL_HEARTBEAT_INTERVAL_S: Final = 0.25  # seconds between two heartbeats
MAX_CALLS: Final = 4096  # calls in flight
MAX_REASSEMBLY_BYTES: Final = 64 * 1024 * 1024  # bytes of incomplete calls
CHUNK_TIMEOUT_S: Final = 5.0  # seconds without a chunk after which an incomplete call is dropped
#: Seconds after which an unreachable caller counts as gone: it does not wait longer either.
CALLER_GONE_TIMEOUT_S: Final = 3.0
MAX_HEARTBEAT_IDS: Final = 500  # ids in one heartbeat
MAX_UNBATCHED_REPLIES: Final = 2  # calls in flight, up to which each reply is sent at once
MAX_NOTIFICATIONS: Final = 1000  # notifications of one call per loop iteration; more are dropped
MAX_NOTIFICATION_BYTES: Final = 64 * 1024  # bytes
MAX_GENERATION_BYTES: Final = 2 * 1024 * 1024  # bytes of a generation
MAX_CACHED_REPLY_BYTES: Final = 256 * 1024  # bytes of one cached reply
GENERATION_LIFETIME_S: Final = 3.0  # seconds, at least, unless a generation is full
UNSUBSCRIBE_TIMEOUT_S: Final = 2.0  # seconds to drain a subscription
QUEUE_GROUP: Final = "owner"

#: Opens a forwarded call and uses up its token; None if it has no valid token for this node.
OpenCall = Callable[[bytes], OpenedCall | None]
log = logging.getLogger("toolway.cluster")


class NatsRpcServer:
    """RPC server of one node: executes calls that other nodes send over NATS.

    `subject_prefix` is the prefix of all NATS subjects of a tenant. `open_call` opens and verifies a sealed call, and
    `handler` executes it. `max_call_bytes` limits the size of a call.
    """

    def __init__(
        self,
        client: Client,
        subject_prefix: str,
        node: str,
        open_call: OpenCall,
        handler: CallHandler,
        max_call_bytes: int = jsonrpc.MAX_MESSAGE_BYTES,
    ) -> None:
        self._client = client
        self._subjects = frames.Subjects(subject_prefix)
        self._node = node
        self._max_call_bytes = max_call_bytes
        self._state = ServerState(client, open_call, handler)
        self._loop = asyncio.get_running_loop()
        self._active_calls = self._state.active_calls
        self.reassembly_bytes = 0  # bytes of incomplete calls
        self._subscriptions: list[Any] = []
        self._call_subject = ""
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._has_calls = asyncio.Event()  # set while calls are in flight
        self._unreachable_callers: dict[str, tuple[float, float]] = {}  # first and last failure of each

    async def listen(self, epoch: int) -> None:
        """Listen on the NATS subject of this lease (`epoch`), and no longer on earlier ones.

        Raises NATS errors if the subscription fails.
        """
        previous, self._subscriptions = self._subscriptions, []
        self._call_subject = self._subjects.call_subject(self._node, epoch)
        for subject, queue, callback in (
            (self._call_subject, QUEUE_GROUP, self._on_call),
            (self._call_subject + ".*", "", self._on_control),
        ):
            # No limit: the callbacks never wait, so nothing queues up, and a limit would drop calls.
            self._subscriptions.append(
                await self._client.subscribe(subject, queue, callback, pending_msgs_limit=0, pending_bytes_limit=0)
            )
        if self._heartbeat_task is None:
            self._heartbeat_task = self._loop.create_task(self._run_heartbeats())
        await _drain_subscriptions(previous)

    async def close(self) -> None:
        """Stop listening and abort all calls in flight; their callers get an error.

        The NATS connection stays open.
        """
        self._state.closing = True
        await _drain_subscriptions(self._subscriptions)
        running = [call.task for call in self._active_calls.values() if call.task is not None]
        if self._heartbeat_task is not None:
            running.append(self._heartbeat_task)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._state.outbox.close()

    @property
    def active_call_count(self) -> int:
        """Number of calls in flight from other nodes."""
        return len(self._active_calls)

    # -- received messages --------------------------------------------------------------------------------------------

    async def _on_call(self, message: Msg) -> None:
        found = self._subjects.parse_reply_subject(message.reply)
        if found is None:
            return  # no valid reply subject
        caller, id_ = found
        target = ReplyTarget(self._subjects.reply_prefix(caller))
        if message.data[:1] == frames.BATCH_FRAME:
            with suppress(frames.InvalidFrame):
                for id_, frame in frames.decode_batch(message.data):
                    self._accept_call(caller, id_, target, frame)
        else:
            self._accept_call(caller, id_, target, message.data)

    def _accept_call(self, caller: str, id_: str, target: ReplyTarget, frame: bytes) -> None:
        reply_subject = target.key + id_
        if reply_subject in self._active_calls or reply_subject in self._state.reply_cache:
            return  # duplicate
        call = ServerCall(self._state, self._unregister, caller, id_, reply_subject, target)
        if len(self._active_calls) >= MAX_CALLS or self._state.closing:
            call.reject("the owner node has too many calls in flight", frame)
        elif frame[:1] == frames.FIRST_CHUNK_FRAME:
            self._accept_first_chunk(call, frame)
        else:
            self._start(call, frame)

    async def _on_control(self, message: Msg) -> None:
        if message.headers is not None and message.headers.get("Status") == "503":
            self._on_no_responders(message.subject.rpartition(".")[2])
            return
        found = self._subjects.parse_reply_subject(message.reply)
        if found is None:
            return
        kind, reply_prefix = message.data[:1], self._subjects.reply_prefix(found[0])
        if kind == frames.STATUS_QUERY_FRAME:
            self._resend_replies(reply_prefix, frames.decode_ids(message.data))
            self._send_heartbeat(found[0], [call.id for call in self._active_calls.values() if call.caller == found[0]])
            return
        call = self._active_calls.get(reply_prefix + found[1])
        if call is None:
            await asyncio.sleep(0)  # subscriptions run in separate tasks: the call itself may still be queued
            call = self._active_calls.get(reply_prefix + found[1])
        if call is None:
            return
        if kind == frames.NEXT_CHUNK_FRAME and call.reassembly is not None:
            self._accept_next_chunk(call, call.reassembly, message.data)
        elif kind == frames.ACK_FRAME and call.transfer is not None:
            call.transfer.acknowledge()
        elif kind == frames.CANCEL_FRAME:
            self._cancel(call)

    def _on_no_responders(self, caller: str) -> None:
        """Record that a calling node did not receive a heartbeat; cancel its calls if it is unreachable for long.

        They are cancelled after `CALLER_GONE_TIMEOUT_S`: until then the caller may be reconnecting to another NATS
        server.
        """
        calls = [call for call in self._active_calls.values() if call.caller == caller]
        if not calls:
            return
        now = self._loop.time()
        since, last = self._unreachable_callers.get(caller, (now, now))
        if now - last > 4 * CALL_HEARTBEAT_INTERVAL_S:
            since = now  # it was reachable in between
        self._unreachable_callers[caller] = (since, now)
        if now - since > CALLER_GONE_TIMEOUT_S:
            for call in calls:
                self._cancel(call)

    def _resend_replies(self, reply_prefix: str, ids: list[str]) -> None:
        """Send the cached replies of these calls again to a caller that may have missed them."""
        target = ReplyTarget(reply_prefix)
        for id_ in ids[:MAX_HEARTBEAT_IDS]:
            reply = self._state.reply_cache.get(reply_prefix + id_)
            if reply is not None:
                self._state.outbox.send_batched(target, id_, reply)

    # -- start and end of calls ---------------------------------------------------------------------------------------

    def _start(self, call: ServerCall, frame: bytes) -> None:
        self._register(call)
        call.task = task = self._loop.create_task(call.run(frame))
        task.add_done_callback(call.on_done)  # a task cancelled before its first step runs no `finally`

    def _register(self, call: ServerCall) -> None:
        self._active_calls[call.reply_subject] = call
        self._state.peak_calls = max(self._state.peak_calls, len(self._active_calls))
        self._has_calls.set()

    def _unregister(self, call: ServerCall) -> None:
        if self._active_calls.pop(call.reply_subject, None) is not None and call.reassembly is not None:
            self.reassembly_bytes -= call.reassembly.length

    def _cancel(self, call: ServerCall) -> None:
        call.is_abandoned = True
        if call.task is not None:
            call.task.cancel()
        else:
            self._unregister(call)

    # -- chunked calls ------------------------------------------------------------------------------------------------

    def _accept_first_chunk(self, call: ServerCall, frame: bytes) -> None:
        try:
            call.reassembly = frames.Reassembly(min(self._max_call_bytes, MAX_REASSEMBLY_BYTES - self.reassembly_bytes))
            call.reassembly.add(frame)
        except frames.InvalidFrame:
            return
        except OverflowError:
            call.reject("the call is too large for the owner node at the moment", frame)
            return
        self.reassembly_bytes += call.reassembly.length
        self._register(call)
        self._acknowledge_chunk(call, call.reassembly)

    def _accept_next_chunk(self, call: ServerCall, reassembly: frames.Reassembly, frame: bytes) -> None:
        try:
            is_new = reassembly.add(frame)
        except (frames.InvalidFrame, OverflowError):
            self._unregister(call)  # its caller detects the silence
        else:
            if is_new:
                self._acknowledge_chunk(call, reassembly)

    def _acknowledge_chunk(self, call: ServerCall, reassembly: frames.Reassembly) -> None:
        """Acknowledge a chunk of a large call, and start the call once it is complete."""
        call.last_chunk_at = self._loop.time()
        self._state.outbox.send_alone(call.reply_subject, frames.ACK_FRAME)
        message = reassembly.message
        if message is not None:
            self.reassembly_bytes -= reassembly.length
            call.reassembly = None
            self._start(call, message)

    def _drop_incomplete(self) -> None:
        """Drop incomplete calls that got no chunk for `CHUNK_TIMEOUT_S`."""
        oldest = self._loop.time() - CHUNK_TIMEOUT_S
        for call in [
            each for each in self._active_calls.values() if each.reassembly is not None and each.last_chunk_at < oldest
        ]:
            self._unregister(call)

    # -- heartbeats ---------------------------------------------------------------------------------------------------

    async def _run_heartbeats(self) -> None:
        while True:
            self._state.peak_calls = len(self._active_calls)
            if not self._active_calls:
                self._unreachable_callers.clear()
                self._has_calls.clear()
                await self._has_calls.wait()
            await asyncio.sleep(CALL_HEARTBEAT_INTERVAL_S)
            self._drop_incomplete()
            callers: dict[str, list[str]] = {}
            for call in self._active_calls.values():
                callers.setdefault(call.caller, []).append(call.id)
            for caller in [each for each in self._unreachable_callers if each not in callers]:
                del self._unreachable_callers[caller]
            for caller, ids in callers.items():
                self._send_heartbeat(caller, ids)

    def _send_heartbeat(self, caller: str, ids: list[str]) -> None:
        """Send a calling node a heartbeat with the ids of its calls that run here.

        NATS reports if the caller does not listen.
        """
        for start in range(0, len(ids) or 1, MAX_HEARTBEAT_IDS):
            frame = frames.encode_ids(frames.HEARTBEAT_FRAME, ids[start : start + MAX_HEARTBEAT_IDS])
            subject = self._subjects.reply_prefix(caller) + frames.HEARTBEAT_SUFFIX
            self._state.outbox.send_alone(subject, frame, f"{self._call_subject}.{caller}")


async def _drain_subscriptions(subscriptions: list[Any]) -> None:
    """Unsubscribe from NATS after messages already sent to us are handled, in limited time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(UNSUBSCRIBE_TIMEOUT_S):
            await asyncio.gather(*(subscription.drain() for subscription in subscriptions), return_exceptions=True)


# -- one call ---------------------------------------------------------------------------------------------------------


class ServerState:
    """State shared by all calls of an RPC server: connection, outbox, reply cache, limits."""

    def __init__(self, client: Client, open_call: OpenCall, handler: CallHandler) -> None:
        self.client = client
        self.open_call = open_call
        self.handler = handler
        self.reply_cache = ReplyCache()
        self.outbox = BatchingOutbox(client)
        self.chunk_window = asyncio.Semaphore(MAX_UNACKED_CHUNKS_PER_NODE)
        self.loop = asyncio.get_running_loop()
        self.closing = False
        self.peak_calls = 0  # most calls at once since the last heartbeat
        self.active_calls: dict[str, ServerCall] = {}  # calls in flight, by reply subject

    def can_send_unbatched(self) -> bool:
        """Return True if few calls are active, so a reply is sent at once, not in a batch."""
        return self.peak_calls <= MAX_UNBATCHED_REPLIES and self.outbox.is_idle


class ReplyTarget:
    """Target for batches of replies to one calling node.

    If a reply is not sent, the caller asks for it again.
    """

    def __init__(self, reply_prefix: str) -> None:
        self.key = reply_prefix

    def single_subject(self, id_: str) -> tuple[str, str]:
        return self.key + id_, ""

    def batch_subject(self, ids: list[str]) -> tuple[str, str]:
        return self.key + frames.BATCH_SUFFIX, ""

    def on_unsent(self, ids: list[str]) -> None:
        pass


class ServerCall(msgspec.Struct, eq=False):
    """Call of another node that this node executes, from first chunk to last reply chunk."""

    state: ServerState
    unregister: Callable[[ServerCall], None]
    caller: str
    id: str
    reply_subject: str  # reply subject of this call
    reply_target: ReplyTarget  # batch target of its caller
    task: asyncio.Task[None] | None = None
    reassembly: frames.Reassembly | None = None  # set while chunks of the call are missing
    last_chunk_at: float = 0.0
    transfer: ChunkedTransfer | None = None  # chunked transfer of the reply
    cipher: CallCipher | None = None  # set when the call token was opened
    is_abandoned: bool = False  # the caller does not wait any more
    outbox_iteration: int = -1  # outbox iteration of the last notification
    notification_count: int = 0  # notifications in that iteration

    async def run(self, frame: bytes) -> None:
        """Execute the call and send its reply, unless it is cancelled."""
        state = self.state
        try:
            message = await self._execute(frame)
            if message is None:
                return
            if not frames.fits_unchunked(message, state.client.max_payload):
                state.reply_cache.add(self.reply_subject, b"", state.loop.time())
                await self._send_chunked(message)
                return
            reply = self.seal(message)
            state.reply_cache.add(self.reply_subject, reply, state.loop.time())
            if state.can_send_unbatched():
                await state.client.publish(self.reply_subject, reply)
            else:
                state.outbox.send_batched(self.reply_target, self.id, reply)
        except asyncio.CancelledError:
            if not state.closing or self.is_abandoned:
                raise
            if self.cipher is not None:
                state.outbox.send_batched(self.reply_target, self.id, self.seal(self._shutdown_error()))
        except (NatsError, OSError, TransferStalled):
            pass  # the caller detects the missing reply and counts this node as lost

    def on_done(self, task: asyncio.Task[None]) -> None:
        self.unregister(self)
        if not task.cancelled() and task.exception() is not None:
            log.error("forwarded call failed", exc_info=task.exception())

    def seal(self, frame: bytes) -> bytes:
        """Encrypt a reply frame with the key of this call. The call must have been opened before."""
        assert self.cipher is not None
        return frames.SEALED_FRAME + self.cipher.seal_reply(frame)

    def _open(self, frame: bytes) -> OpenedCall | None:
        """Decrypt the call in a frame and use up its call token; None if the token is invalid."""
        opened = self.state.open_call(frame[1:]) if frame[:1] == frames.CALL_FRAME else None
        if opened is not None:
            self.cipher = opened.cipher
        return opened

    async def _execute(self, frame: bytes) -> bytes | None:
        """Execute the call in `frame` and return the response; None (no reply) if its token is invalid."""
        id_ = int(self.id)
        opened = self._open(frame)
        if opened is None:
            return None
        try:
            opened.check()
            data = opened.request
            message = await parse_large(data, "") if jsonrpc.is_large(data) else jsonrpc.parse_message(data)
            if message.kind != "request" or message.id != id_:
                raise frames.InvalidFrame
            return jsonrpc.encode_result(id_, await self.state.handler(opened.token, message, self.notify))
        except (frames.InvalidFrame, jsonrpc.InvalidMessage):
            return jsonrpc.encode_error(id_, INVALID_REQUEST, "invalid request over NATS")
        except RpcFailure as failure:
            return jsonrpc.encode_error(id_, failure.code, failure.message, failure.data)
        except Exception:
            log.exception("forwarded call failed")
            return jsonrpc.encode_error(id_, INTERNAL_ERROR, "internal error at the owner node")

    async def _send_chunked(self, reply: bytes) -> None:
        """Send a large reply in chunks, after all queued messages."""

        async def publish(chunk: bytes) -> None:
            self.state.outbox.send_alone(self.reply_subject, self.seal(chunk))

        self.transfer = ChunkedTransfer(self.state.chunk_window)
        await self.transfer.send(reply, self.state.client.max_payload, publish, on_last=lambda: None)

    def notify(self, method: str, params: Json) -> None:
        """Send the caller a notification that belongs to the call; dropped if too many or too large."""
        outbox = self.state.outbox
        if self.outbox_iteration != outbox.iteration:
            self.outbox_iteration, self.notification_count = outbox.iteration, 0
        self.notification_count += 1
        if self.is_abandoned or self.notification_count > MAX_NOTIFICATIONS:
            return
        frame = frames.NOTIFICATION_FRAME + jsonrpc.encode_notification(method, params)
        if len(frame) <= min(MAX_NOTIFICATION_BYTES, self.state.client.max_payload - frames.FRAME_OVERHEAD_BYTES):
            outbox.send_batched(self.reply_target, self.id, self.seal(frame))

    def reject(self, message: str, frame: bytes) -> None:
        """Send a retryable error (overloaded) as the reply to a call that was not started.

        `frame` is the first frame of the call, which has the call token. Without a valid token the call gets no reply.
        """
        if frame[:1] == frames.FIRST_CHUNK_FRAME:
            frame = frame.partition(b"\n")[2]
        if self._open(frame) is None:
            return
        data = {"executed": "no", "certainty": "C0", "retryable": True, "code": "E-OVERLOADED"}
        reply = self.seal(jsonrpc.encode_error(int(self.id), OVERLOADED, message, data))
        # Cached, so a duplicate of the call is not started either.
        self.state.reply_cache.add(self.reply_subject, reply, self.state.loop.time())
        self.state.outbox.send_batched(self.reply_target, self.id, reply)

    def _shutdown_error(self) -> bytes:
        data = {"executed": "unknown", "certainty": "C2", "retryable": False, "code": "E-SHUTTING-DOWN"}
        message = "the owner node shut down during the call, which may have run"
        return jsonrpc.encode_error(int(self.id), OUTCOME_UNKNOWN, message, data)


# -- cached replies ---------------------------------------------------------------------------------------------------


class ReplyCache:
    """Recent replies of this node to other nodes, for callers that lost their connection.

    Bounded, with two generations: the older one is dropped as a whole, which makes adding cheap.
    """

    def __init__(self) -> None:
        self._replies: dict[str, bytes] = {}
        self._previous: dict[str, bytes] = {}
        self._bytes = 0
        self._since = 0.0

    def __contains__(self, subject: str) -> bool:
        return subject in self._replies or subject in self._previous

    def add(self, subject: str, message: bytes, now: float) -> None:
        """Cache a reply by its reply subject. For a large reply, only remember that it exists."""
        if len(message) > MAX_CACHED_REPLY_BYTES:
            message = b""
        self._bytes += len(subject) + len(message)
        if self._bytes > MAX_GENERATION_BYTES or now - self._since > GENERATION_LIFETIME_S:
            self._previous = self._replies if now - self._since <= 2 * GENERATION_LIFETIME_S else {}
            self._replies, self._bytes, self._since = {}, len(subject) + len(message), now
        self._replies[subject] = message

    def get(self, subject: str) -> bytes | None:
        """Return the cached reply for a reply subject, or None if it is unknown or was too large."""
        return self._replies.get(subject) or self._previous.get(subject) or None
