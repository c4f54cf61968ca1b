"""RPC over NATS: calls to nodes without an HTTP address, and from nodes if we have none.

RPC has its own NATS connection, opened on first use. If all nodes have addresses, it is never opened. Core NATS
delivers at most once and does not report if a receiver lives. So:

Rule 1. If no node listens, NATS reports that at once, and the call did not run.
Rule 2. An owner sends heartbeats for its calls. After LOST_AFTER_CHECKS checks without one, the owner counts as dead or
        hung, and the call may have run. A check counts only if our own loop and connection worked: our own
        pause is not the silence of the owner.
Rule 3. A caller that receives nothing asks again: an owner caches its last replies for callers that lost their
        connection.
Rule 4. A lost owner is sent nothing until a message from it arrives.
Rule 5. The reply subscription never drops messages: it has no limit, and the senders bound their messages.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from toolway.cluster.bus import nats_auth_options
from toolway.cluster.nats_connection import NatsConnection
from toolway.cluster.nats_rpc import frames
from toolway.cluster.nats_rpc.batching import BatchingOutbox, BatchTarget
from toolway.cluster.nats_rpc.frames import MAX_UNACKED_CHUNKS_PER_NODE, ChunkedTransfer, TransferStalled
from toolway.cluster.nats_rpc.rpc_server import NatsRpcServer, OpenCall
from toolway.cluster.routing.call_cipher import CallCipher, ForwardedRequest, join_request
from toolway.cluster.routing.node_http import CallHandler
from toolway.cluster.routing.owned import OwnerTransportBase
from toolway.protocol import jsonrpc
from toolway.protocol.jsonrpc import MAX_MESSAGE_BYTES
from toolway.types import Certainty, Json
from toolway.upstream.transport import (
    InboundHandler,
    JSONRPCError,
    Request,
    TransportError,
    TransportInfo,
    require_may_send,
)
from toolway.upstream.transports.pending_requests import parse_large

MAX_UNBATCHED_CALLS: Final = 2  # calls in flight, up to which each is sent at once
SILENCE_CHECK_INTERVAL_S: Final = 0.2  # seconds between two checks
QUERY_AFTER_CHECKS: Final = 2  # checks without a heartbeat of a call after which its reply is requested again
LOST_AFTER_CHECKS: Final = 4  # checks without a heartbeat after which its owner is lost
MAX_DISCONNECTED_CHECKS: Final = 15  # checks without a connection after which all calls fail
MAX_REMEMBERED_BATCHES: Final = 1000  # batches of calls for which NATS may still report that no node listens
MAX_LATE_CALLS: Final = 256  # ended calls with a callback for a late result
MAX_QUERIED_IDS: Final = 500  # ids in one status query
LOST_OWNER_RETRY_S: Final = 30.0  # seconds after which a lost owner is tried again: its lease is over by then
CONNECT_TIMEOUT_S: Final = 3.0  # seconds that a call waits for the connection
LISTEN_RETRY_DELAY_S: Final = 1.0  # seconds after a failed attempt to listen
EPOCH_CHECK_INTERVAL_S: Final = 0.1  # seconds between two checks of our lease epoch

OWNER_LOST: Final = "E-OWNER-LOST"
NO_OWNER: Final = "E-NO-OWNER"
NATS_UNAVAILABLE: Final = "E-NATS"


class NatsRpc:
    """Calls between nodes over NATS: RPC client, RPC server and NATS connection of one node.

    `subject_prefix` is the prefix of all NATS subjects of the tenant.
    """

    def __init__(self, urls: Sequence[str], credentials: str, subject_prefix: str, node: str) -> None:
        self._urls = urls
        self._credentials = credentials
        self._subject_prefix = subject_prefix
        self._node = node
        self._connection: Client | None = None
        self._rpc_client: NatsRpcClient | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._rpc_server: NatsRpcServer | None = None
        self._listen_task: asyncio.Task[None] | None = None

    def create_transport(self, node: str, epoch: int, max_reply_bytes: int = MAX_MESSAGE_BYTES) -> NatsTransport:
        """Return a NATS transport to the servers that `node` owns under its lease `epoch`."""
        return NatsTransport(self.get_client, node, epoch, max_reply_bytes)

    def listen(self, open_call: OpenCall, handler: CallHandler, get_epoch: Callable[[], int | None]) -> None:
        """Accept calls from other nodes on the NATS subject of this node's current lease.

        `open_call` opens and verifies a sealed call, and `handler` executes it. `get_epoch()` returns the number of
        that lease, or None without a lease.
        """
        if self._listen_task is None:
            self._listen_task = asyncio.create_task(self._run_listener(open_call, handler, get_epoch))

    async def get_client(self) -> NatsRpcClient:
        """Return the RPC client once NATS is connected.

        Raises `TransportError` (certainty NOT_SENT) if NATS is not reachable within `CONNECT_TIMEOUT_S`.
        """
        if self._rpc_client is None:
            if self._connecting is None or self._connecting.done():
                self._connecting = asyncio.create_task(self._connect())
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await asyncio.shield(self._connecting)
            except (TimeoutError, NatsError, OSError) as exc:
                raise TransportError(
                    f"NATS unavailable: {type(exc).__name__}", Certainty.NOT_SENT, code=NATS_UNAVAILABLE
                ) from None
            assert self._rpc_client is not None
        return self._rpc_client

    async def _connect(self) -> None:
        self._connection = connection = await connect_nats(self._urls, self._node, self._credentials)
        rpc_client = NatsRpcClient(connection, self._subject_prefix, self._node)
        await rpc_client.open()
        self._rpc_client = rpc_client

    async def _run_listener(
        self, open_call: OpenCall, handler: CallHandler, get_epoch: Callable[[], int | None]
    ) -> None:
        """Listen on a new NATS subject whenever this node has a new lease, until cancelled."""
        listening_epoch: int | None = None
        while True:
            own_epoch = get_epoch()
            if own_epoch is not None and own_epoch != listening_epoch:
                try:
                    await self._listen_in_epoch(open_call, handler, own_epoch)
                    listening_epoch = own_epoch
                except (TransportError, NatsError, OSError):
                    await asyncio.sleep(LISTEN_RETRY_DELAY_S)
            await asyncio.sleep(EPOCH_CHECK_INTERVAL_S)

    async def _listen_in_epoch(self, open_call: OpenCall, handler: CallHandler, epoch: int) -> None:
        connection = (await self.get_client()).client
        if self._rpc_server is None:
            self._rpc_server = NatsRpcServer(connection, self._subject_prefix, self._node, open_call, handler)
        await self._rpc_server.listen(epoch)

    async def close(self) -> None:
        """Close RPC client, RPC server and NATS connection.

        Calls of other nodes in flight are aborted, and their callers get an error.
        """
        tasks = [task for task in (self._listen_task, self._connecting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._rpc_server is not None:
            await self._rpc_server.close()
        if self._rpc_client is not None:
            await self._rpc_client.close()
        if self._connection is not None:
            with suppress(NatsError, OSError, asyncio.TimeoutError):
                await self._connection.close()


async def connect_nats(urls: Sequence[str], name: str, credentials: str = "") -> Client:
    """Open a NATS connection for calls only, so a large reply delays no bus messages.

    Raises `OSError` or `nats.errors.Error` if the connection fails.
    """
    auth_options: dict[str, Any] = nats_auth_options(credentials) if credentials else {}
    connection = NatsConnection()
    await connection.connect(
        list(urls),
        name=f"{name} calls",
        **auth_options,
        connect_timeout=2,
        max_reconnect_attempts=-1,
        reconnect_time_wait=0.2,  # type: ignore[arg-type]  # any number of seconds
        ping_interval=1,
        max_outstanding_pings=2,
        error_cb=_ignore_error,
    )
    return connection


async def _ignore_error(exc: Exception) -> None:
    """Ignore a NATS connection error: each call notices whether it is affected."""


# -- transport to one server ------------------------------------------------------------------------------------------


class NatsTransport(OwnerTransportBase):
    """Transport over NATS to a node that owns servers, for one of its lease epochs.

    `get_client()` returns the RPC client, which all transports share. All requests are `ForwardedRequest`s. The owner
    acts as an MCP server of the modern era: its replies are validated as strictly as those of any server.
    """

    def __init__(
        self,
        get_client: Callable[[], Awaitable[NatsRpcClient]],
        node: str,
        epoch: int,
        max_reply_bytes: int = jsonrpc.MAX_MESSAGE_BYTES,
    ) -> None:
        self._get_client = get_client
        self._node = node
        self._epoch = epoch
        self._max_reply_bytes = max_reply_bytes

    async def open(self, inbound: InboundHandler) -> None:
        """Prepare calls to the owner node of this server over NATS.

        Nothing is sent: only the first request shows whether the owner exists.
        """
        self._inbound = inbound
        self._rpc_client = await self._get_client()
        self._owner_subject = self._rpc_client.subjects.call_subject(self._node, self._epoch)
        self._call_target = _CallTarget(self._rpc_client, self._owner_subject)

    async def request(self, request: Request) -> Json:
        assert isinstance(request, ForwardedRequest)
        request.call_state.phase = "send"
        request.call_state.raw_bytes = None
        id_, pending = self._rpc_client.register(request, self._inbound, self._owner_subject, self._max_reply_bytes)
        try:
            sending = self._send(id_, request, pending)
            if sending is not None:
                await sending
            reply = await pending.reply
        except asyncio.CancelledError:
            if not request.silent_cancel:
                self._rpc_client.send_control(id_, self._owner_subject, frames.CANCEL_FRAME)
            raise
        finally:
            self._rpc_client.unregister(id_)
        try:
            message = (
                await parse_large(reply, request.method) if jsonrpc.is_large(reply) else jsonrpc.parse_message(reply)
            )
        except jsonrpc.InvalidMessage as bad:
            reason = f"invalid reply: {bad.reason}"
            raise TransportError(reason, Certainty.UNKNOWN, code=bad.code or "E-ANSWER", hint=bad.hint) from None
        return _extract_result(reply, message, id_, request)

    def _send(self, id_: int, request: ForwardedRequest, pending: PendingNatsCall) -> Coroutine[Any, Any, None] | None:
        """Send a request to the owner node.

        Return a coroutine to await if the send cannot finish at once. Raises `TransportError` if it was not sent.
        """
        rpc_client, attempt = self._rpc_client, request.call_state
        try:
            sealed = pending.cipher.seal_request(jsonrpc.encode_request(id_, request.method, request.params))
            frame = frames.CALL_FRAME + join_request(request.call_token, sealed)
        except (TypeError, ValueError, OverflowError, RecursionError) as exc:
            raise TransportError(f"request not encodable: {exc}", Certainty.NOT_SENT, code="E-REQUEST") from None
        if not rpc_client.client.is_connected:  # NATS would buffer it and send it too late
            raise TransportError("NATS disconnected", Certainty.NOT_SENT, code=NATS_UNAVAILABLE)
        if rpc_client.is_owner_lost(self._owner_subject):
            raise TransportError("the owner node sends no heartbeat", Certainty.NOT_SENT, code=OWNER_LOST)
        require_may_send(attempt)
        if not frames.fits_unchunked(frame, rpc_client.client.max_payload):
            return self._send_chunked(frame, rpc_client.reply_subject(id_), request, pending)
        attempt.mark_sent()
        if rpc_client.can_send_unbatched():
            return self._publish(frame, rpc_client.reply_subject(id_), request)
        rpc_client.send_batched(id_, self._call_target, frame)
        return None

    async def _publish(self, frame: bytes, reply: str, request: Request) -> None:
        try:
            await self._rpc_client.client.publish(self._owner_subject, frame, reply)
        except (NatsError, OSError) as exc:
            raise _not_sent_error(exc, request) from None

    async def _send_chunked(self, frame: bytes, reply: str, request: Request, pending: PendingNatsCall) -> None:
        """Send a large request in chunks to the owner node.

        The first chunk goes to the call subject, the rest to the control subject.
        """
        pending.transfer = transfer = ChunkedTransfer(self._rpc_client.chunk_window)
        client, subject = self._rpc_client.client, self._owner_subject
        control = f"{subject}.{frames.CONTROL_SUFFIX}"

        async def publish(chunk: bytes) -> None:
            await client.publish(subject if chunk[:1] == frames.FIRST_CHUNK_FRAME else control, chunk, reply)

        sending = asyncio.ensure_future(transfer.send(frame, client.max_payload, publish, request.call_state.mark_sent))
        try:
            either: set[asyncio.Future[Any]] = {sending, pending.reply}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        except TransferStalled:
            raise TransportError(
                "the owner node acknowledges no chunk", request.call_state.certainty, code=OWNER_LOST
            ) from None
        except (NatsError, OSError) as exc:
            raise _not_sent_error(exc, request) from None
        finally:
            pending.transfer = None
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    def info(self) -> TransportInfo:
        return TransportInfo(unmatched_responses=self._rpc_client.dropped, transport="nats")

    async def close(self) -> None:
        """Do nothing: the RPC client is shared by all transports."""


class _CallTarget:
    """NATS subject of the node that owns a server. Calls to it are sent in batches."""

    def __init__(self, rpc_client: NatsRpcClient, subject: str) -> None:
        self._rpc_client = rpc_client
        self.key = subject

    def single_subject(self, id_: str) -> tuple[str, str]:
        return self.key, self._rpc_client.reply_subject(id_)

    def batch_subject(self, ids: list[str]) -> tuple[str, str]:
        return self.key, self._rpc_client.batch_reply_subject(ids)

    def on_unsent(self, ids: list[str]) -> None:
        self._rpc_client.fail_unsent(ids)


def _not_sent_error(exc: Exception, request: Request) -> TransportError:
    """Return the error for a request that NATS did not accept, so it was not sent."""
    request.call_state.certainty = Certainty.NOT_SENT
    return TransportError(f"NATS rejected the message: {type(exc).__name__}", Certainty.NOT_SENT, code=NATS_UNAVAILABLE)


def _extract_result(frame: bytes, message: jsonrpc.Message, id_: int, request: Request) -> Json:
    """Return the result in the owner node's reply.

    Raises `JSONRPCError` if the reply is an error, `TransportError` if it does not belong to the request.
    """
    if message.id != id_ or message.kind not in ("result", "error"):
        raise TransportError("the owner node sent an unexpected message", Certainty.UNKNOWN, code="E-ANSWER")
    if message.kind == "error":
        raise JSONRPCError(*jsonrpc.parse_error(message.body))
    if request.call_state.keep_raw and message.is_bare_result:
        request.call_state.raw_bytes = jsonrpc.slice_result(frame, id_)
    body: Json = message.body
    return body


# -- client shared by all transports ----------------------------------------------------------------------------------


class NatsRpcClient:
    """RPC client of one node: sends calls over NATS, receives all replies in one subscription."""

    def __init__(self, client: Client, subject_prefix: str, node: str) -> None:
        self.client = client
        self.subjects = frames.Subjects(subject_prefix)
        self._reply_prefix = self.subjects.reply_prefix(f"{node}-{secrets.token_hex(8)}")
        self._loop = asyncio.get_running_loop()
        self._last_id = 0
        self._pending: dict[str, PendingNatsCall] = {}
        self._late_calls: dict[str, tuple[Callable[[Json], None], CallCipher]] = {}
        self._lost_owners: dict[str, float] = {}  # lost owners, and when they were lost
        self._batches: deque[tuple[str, list[str]]] = deque(maxlen=MAX_REMEMBERED_BATCHES)  # reply subject, call ids
        self._last_batch = 0
        self._outbox = BatchingOutbox(client)
        self._subscription: Any = None
        self._check_task: asyncio.Task[None] | None = None
        self._reconnects = 0
        self._disconnected_checks = 0
        self.chunk_window = asyncio.Semaphore(MAX_UNACKED_CHUNKS_PER_NODE)
        self._peak_pending = 0  # most calls in flight at once since the last check
        self.dropped = 0  # frames without a waiting call

    async def open(self) -> None:
        self._subscription = await self.client.subscribe(
            self._reply_prefix + "*", cb=self._on_message, pending_msgs_limit=0, pending_bytes_limit=0
        )
        self._reconnects = self.client.stats["reconnects"]
        self._check_task = self._loop.create_task(self._run_checks())

    async def close(self) -> None:
        """Fail all pending calls and unsubscribe.

        The NATS connection stays open; its owner closes it.
        """
        if self._check_task is not None:
            self._check_task.cancel()
            await asyncio.gather(self._check_task, return_exceptions=True)
        self._fail_all("closed by this node", "E-CLOSED")
        await self._outbox.close()
        if self._subscription is not None:
            with suppress(NatsError, OSError):
                await self._subscription.unsubscribe()

    # -- start and end of calls ---------------------------------------------------------------------------------------

    def register(
        self, request: ForwardedRequest, inbound: InboundHandler, owner_subject: str, max_reply_bytes: int
    ) -> tuple[int, PendingNatsCall]:
        """Register a call that waits for its reply. Return its new id and the pending call."""
        assert request.cipher is not None
        self._last_id = id_ = self._last_id + 1
        request.call_state.jsonrpc_id = id_
        pending = PendingNatsCall(
            request, request.cipher, self._loop.create_future(), inbound, owner_subject, max_reply_bytes
        )
        self._pending[str(id_)] = pending
        if len(self._pending) > self._peak_pending:
            self._peak_pending = len(self._pending)
        return id_, pending

    def unregister(self, id_: int) -> None:
        """Stop waiting for the reply of a call.

        A late result is still delivered if the call has a callback for it.
        """
        pending = self._pending.pop(str(id_), None)
        if pending is not None and pending.request.call_state.on_late_result is not None:
            self._late_calls[str(id_)] = (pending.request.call_state.on_late_result, pending.cipher)
            if len(self._late_calls) > MAX_LATE_CALLS:
                del self._late_calls[next(iter(self._late_calls))]

    def is_owner_lost(self, owner_subject: str) -> bool:
        return bool(self._lost_owners) and owner_subject in self._lost_owners

    def reply_subject(self, id_: int | str) -> str:
        return f"{self._reply_prefix}{id_}"

    def can_send_unbatched(self) -> bool:
        """Return True if few calls are active, so a new one can be sent at once, without a batch.

        Uses the recent peak instead of the current number, which is briefly low when several calls are answered
        together.
        """
        return self._peak_pending <= MAX_UNBATCHED_CALLS and self._outbox.is_idle

    def send_batched(self, id_: int, target: BatchTarget, frame: bytes) -> None:
        """Queue a call; calls to the same owner node are sent as one NATS message."""
        self._outbox.send_batched(target, str(id_), frame)

    def send_control(self, id_: int, owner_subject: str, frame: bytes) -> None:
        """Send a control frame (cancellation, status query …) about a call to its owner node."""
        self._outbox.send_alone(
            f"{owner_subject}.{frames.CONTROL_SUFFIX}", frame, f"{self._reply_prefix}{frames.CONTROL_ID_PREFIX}{id_}"
        )

    def batch_reply_subject(self, ids: list[str]) -> str:
        """Return the reply subject of a batch, on which NATS reports that no node listens."""
        self._last_batch += 1
        self._batches.append((f"{frames.BATCH_ID_PREFIX}{self._last_batch}", ids))
        return f"{self._reply_prefix}{frames.BATCH_ID_PREFIX}{self._last_batch}"

    def fail_unsent(self, ids: list[str]) -> None:
        """Fail calls that NATS did not accept; they did not run."""
        for id_ in ids:
            if id_ in self._pending:
                self._pending[id_].fail_unsent("NATS rejected the message", NATS_UNAVAILABLE)

    # -- received messages; no handler awaits, so the subscription queue stays empty ----------------------------------

    async def _on_message(self, message: Msg) -> None:
        suffix, frame = message.subject[len(self._reply_prefix) :], message.data
        if suffix == frames.BATCH_SUFFIX:
            with suppress(frames.InvalidFrame):
                for id_, each in frames.decode_batch(frame):
                    self._handle_frame(id_, each)
        elif suffix == frames.HEARTBEAT_SUFFIX:
            self._on_heartbeat(frame, message.reply.rpartition(".")[0])
        elif message.headers is not None and message.headers.get("Status") == "503":
            self._on_no_responders(suffix)
        else:
            self._handle_frame(suffix, frame)

    def _on_no_responders(self, suffix: str) -> None:
        """Fail the call, or all calls of a batch, for which NATS reports that no node listens."""
        ids = next((ids for name, ids in self._batches if name == suffix), [suffix])
        for id_ in ids:
            if id_ in self._pending:
                self._pending[id_].fail_unsent("the owner node does not listen", NO_OWNER)

    def _handle_frame(self, id_: str, frame: bytes) -> None:
        """Handle a received frame about one call: reply, notification, chunk or acknowledgement.

        All but acknowledgements are sealed. A frame that is forged or was received before is ignored.
        """
        pending = self._pending.get(id_)
        if pending is None:
            self._on_late_frame(id_, frame)
            return
        if frame[:1] == frames.ACK_FRAME and pending.transfer is not None:
            pending.silent_checks = 0
            pending.transfer.acknowledge()
            return
        opened = pending.cipher.open_reply(frame[1:]) if frame[:1] == frames.SEALED_FRAME else None
        if opened is None:
            self.dropped += 1
            return
        pending.silent_checks = 0
        frame, kind = opened, opened[:1]
        if kind == frames.REPLY_FRAME:
            self._complete(id_, pending, frame)
        elif kind == frames.NOTIFICATION_FRAME:
            pending.deliver_notification(frame)
        elif kind == frames.FIRST_CHUNK_FRAME or kind == frames.NEXT_CHUNK_FRAME:
            self._reassemble(id_, pending, frame)

    def _complete(self, id_: str, pending: PendingNatsCall, frame: bytes) -> None:
        if not pending.reply.done():
            pending.reply.set_result(frame)
        del self._pending[id_]

    def _reassemble(self, id_: str, pending: PendingNatsCall, frame: bytes) -> None:
        if pending.reassembly is None:
            pending.reassembly = frames.Reassembly(pending.max_reply_bytes)
        try:
            is_new = pending.reassembly.add(frame)
        except frames.InvalidFrame:
            pending.fail("a chunk of the reply is missing", OWNER_LOST)
        except OverflowError:
            reason = f"the reply exceeds {pending.max_reply_bytes} bytes"
            pending.fail(reason, "E-FRAME-LIMIT", "raise `limits.maxMessageBytes` for this server")
        else:
            if is_new:
                self.send_control(int(id_), pending.owner_subject, frames.ACK_FRAME)
            message = pending.reassembly.message
            if message is not None:
                self._complete(id_, pending, message)

    def _on_heartbeat(self, frame: bytes, owner_subject: str) -> None:
        self._lost_owners.pop(owner_subject, None)
        for id_ in frames.decode_ids(frame):
            pending = self._pending.get(id_)
            if pending is not None:
                pending.silent_checks = 0

    def _on_late_frame(self, id_: str, frame: bytes) -> None:
        self.dropped += 1
        found = self._late_calls.get(id_)
        opened = found[1].open_reply(frame[1:]) if found is not None else None
        if found is None or opened is None or opened[:1] != frames.REPLY_FRAME:
            return
        del self._late_calls[id_]
        with suppress(jsonrpc.InvalidMessage):
            found[0](jsonrpc.parse_message(opened).body)

    # -- silence detection --------------------------------------------------------------------------------------------

    async def _run_checks(self) -> None:
        while True:
            await asyncio.sleep(SILENCE_CHECK_INTERVAL_S)
            self._peak_pending = len(self._pending)
            if not self.client.is_connected:
                self._disconnected_checks += 1
                if self._disconnected_checks > MAX_DISCONNECTED_CHECKS:
                    self._fail_all("NATS connection lost", NATS_UNAVAILABLE)
            elif self._disconnected_checks or self.client.stats["reconnects"] != self._reconnects:
                self._disconnected_checks = 0
                self._reconnects = self.client.stats["reconnects"]
                for pending in self._pending.values():
                    pending.silent_checks = 0
                self._query_status(self._pending)  # their replies may have been missed
            else:
                self._check_silence()
                self._probe_lost_owners()

    def _check_silence(self) -> None:
        silent_ids: list[str] = []
        for id_, pending in list(self._pending.items()):
            if pending.transfer is not None:
                continue  # not sent completely yet; the transfer detects a silent owner itself
            pending.silent_checks += 1
            if pending.silent_checks >= LOST_AFTER_CHECKS:
                reason = f"the owner node sent no heartbeat for {SILENCE_CHECK_INTERVAL_S * LOST_AFTER_CHECKS:g} s"
                pending.fail(reason, OWNER_LOST)
                self._lost_owners[pending.owner_subject] = self._loop.time()
                self.send_control(int(id_), pending.owner_subject, frames.CANCEL_FRAME)
            elif pending.silent_checks >= QUERY_AFTER_CHECKS:
                silent_ids.append(id_)
        self._query_status(silent_ids)

    def _query_status(self, call_ids: Iterable[str]) -> None:
        """Ask the owner nodes whether these calls still run. One that already replied sends its reply again."""
        by_owner: dict[str, list[str]] = {}
        for id_ in call_ids:
            by_owner.setdefault(self._pending[id_].owner_subject, []).append(id_)
        for owner_subject, ids in by_owner.items():
            for start in range(0, len(ids), MAX_QUERIED_IDS):
                batch = ids[start : start + MAX_QUERIED_IDS]
                self.send_control(int(batch[0]), owner_subject, frames.encode_ids(frames.STATUS_QUERY_FRAME, batch))

    def _probe_lost_owners(self) -> None:
        """Request a heartbeat from each owner node that has stopped sending them.

        Forget a node after LOST_OWNER_RETRY_S.
        """
        for owner_subject, since in list(self._lost_owners.items()):
            if since < self._loop.time() - LOST_OWNER_RETRY_S:
                del self._lost_owners[owner_subject]
            else:
                self.send_control(0, owner_subject, frames.STATUS_QUERY_FRAME)

    def _fail_all(self, reason: str, code: str) -> None:
        for pending in list(self._pending.values()):
            pending.fail(reason, code)


class PendingNatsCall(msgspec.Struct, eq=False):
    """A call sent over NATS that waits for its reply."""

    request: Request
    cipher: CallCipher
    reply: asyncio.Future[bytes]
    inbound: InboundHandler
    owner_subject: str  # call subject of the owner node
    max_reply_bytes: int  # maximum bytes of the reply
    silent_checks: int = 0  # checks since the last heartbeat or frame
    reassembly: frames.Reassembly | None = None
    transfer: ChunkedTransfer | None = None  # chunked transfer of the request

    def fail(self, reason: str, code: str, hint: str = "") -> None:
        if not self.reply.done():
            self.reply.set_exception(TransportError(reason, self.request.call_state.certainty, code=code, hint=hint))

    def fail_unsent(self, reason: str, code: str) -> None:
        """Fail a call that was not sent, or that no node received: it did not run."""
        self.request.call_state.certainty = Certainty.NOT_SENT
        self.fail(reason, code)

    def deliver_notification(self, frame: bytes) -> None:
        """Deliver a server notification that belongs to this call; ignored if malformed."""
        with suppress(jsonrpc.InvalidMessage):
            message = jsonrpc.parse_message(frame[1:])
            if message.kind == "notification":
                self.inbound.on_notification(message.method, message.body, self.request.call_state)
