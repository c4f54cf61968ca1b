"""Requests between nodes: forward a client message to the node that holds its state.

They use the transport of calls, HTTP or NATS, with a call token for the node itself: valid for its current lease, and
for the principal of the session. A request is sent once and never queued. If it fails, the client gets an error or no
later events, as after any lost connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, Final, Protocol

from toolway.cluster.db.nodes import NodeStatus
from toolway.cluster.node_auth import CallToken, CallTokenSealer, new_call_key, new_use_id
from toolway.cluster.routing.node_http import NodeHttpTransport
from toolway.cluster.routing.peers import Peers, PeerTimeout
from toolway.cluster.routing.remote import forwarded_request
from toolway.gateway.mcp.context import Notify
from toolway.gateway.mcp.legacy_session import LegacySession
from toolway.gateway.mcp.legacy_sessions import LegacySessions
from toolway.gateway.mcp.legacy_sse import LegacySseEndpoint
from toolway.gateway.mcp.replay_buffer import ReplayBuffer
from toolway.gateway.mcp.responses import EventStream
from toolway.protocol.jsonrpc import Message
from toolway.types import CallState, Json
from toolway.upstream.transport import JSONRPCError, Request, Transport, TransportError

NODE_REQUEST_METHOD: Final = "toolway/node-request"
NODE_REQUEST_TIMEOUT_S: Final = 5.0  # seconds; resumed streams have no limit
CHUNK_CHARS: Final = 8000  # characters of a stream per notification: NATS limits the message size
MAX_STREAMED_EVENT_BYTES: Final = 1024 * 1024  # a larger event is sent with the final result, which may have any size

OnUpdate = Callable[[Json], None]
log = logging.getLogger("toolway.cluster")


# -- session requests, at the node that the client reached ------------------------------------------------------------


async def forward_response(node_requests: NodeRequests, tag: str, session: LegacySession, message: Message) -> None:
    """Forward a client's response to the node (by its tag) that sent the request.

    If that node is gone, so is the call that waited for the response: the response is dropped.
    """
    params = {"do": "answer", "session": session.id, "message": _encode_message(message)}
    await node_requests.send(tag, session.principal.id, params)


async def forward_post(node_requests: NodeRequests, tag: str, id_: str, principal: str, message: Message) -> int:
    """Forward a client message to the node (by its tag) that holds the client's `/sse` stream.

    Return the HTTP status for the client: 404 if the node is gone.
    """
    result = await node_requests.send(
        tag, principal, {"do": "post", "stream": id_, "message": _encode_message(message)}
    )
    status = result.get("status") if result is not None else HTTPStatus.NOT_FOUND
    return status if isinstance(status, int) else HTTPStatus.BAD_GATEWAY


async def forward_resume(
    node_requests: NodeRequests, tag: str, session: LegacySession, last_event_id: str, stream: EventStream
) -> bool:
    """Fetch the remaining events of a broken stream from its node and write them to `stream`.

    Return False if that node is gone or does not have the stream.
    """

    def on_update(update: Json) -> None:
        if not stream.disconnected:
            stream.write(str(update.get("data", "")).encode())

    params = {"do": "resume", "session": session.id, "last": last_event_id}
    result = await node_requests.send(tag, session.principal.id, params, on_update, timeout=None)
    if result is None or result.get("found") is not True:
        return False
    rest = str(result.get("data", "")).encode()
    if rest:
        stream.write(rest)
    stream.open()
    stream.close()
    return True


# -- session requests, at the node with the state ---------------------------------------------------------------------


async def execute_node_request(
    legacy_sessions: LegacySessions, legacy_sse: LegacySseEndpoint, principal: str, params: Json, notify: Notify
) -> Json:
    """Execute a request about a client session for another node, as if the client had sent it here.

    `params["do"]` is the action: "post" a message, "answer" a server request, "resume" a stream. Return the reply for
    that node. It is empty if the session is not on this node or the action is unknown.
    """
    action, message = params.get("do"), _decode_message(params.get("message"))
    if action == "post" and message is not None:
        return {"status": int(legacy_sse.handle_message(str(params.get("stream")), principal, message))}
    session = legacy_sessions.get_live(str(params.get("session")), principal)
    if session is None:
        return {}
    if action == "answer" and message is not None:
        return {"accepted": legacy_sessions.handle_message(session, message)}
    resumable = session.replay_buffers.find(str(params.get("last"))) if action == "resume" else None
    return await _stream_rest(*resumable, notify) if resumable is not None else {}


async def _stream_rest(buffer: ReplayBuffer, after: int, notify: Notify) -> Json:
    """Send buffered and later events of a request's stream to the node that asked for them.

    Returns when the request has its result, or the client disconnects.
    """
    target = _RemoteStreamTarget(notify)
    try:
        buffer.resume(after, target)
        await target.closed.wait()
    finally:
        target.disconnected = True
    return {"found": True, "data": target.rest.decode()}


class _RemoteStreamTarget:
    """Event stream whose client has reconnected to another node: events are sent to that node."""

    def __init__(self, notify: Notify) -> None:
        self._notify = notify
        self.rest = bytearray()
        self.disconnected = False
        self.closed = asyncio.Event()

    def open(self) -> None:
        self._notify(NODE_REQUEST_METHOD, {"data": ""})

    def write(self, data: bytes) -> None:
        if self.rest or len(data) > MAX_STREAMED_EVENT_BYTES:
            self.rest += data
            return
        text = data.decode()
        for start in range(0, len(text), CHUNK_CHARS):
            self._notify(NODE_REQUEST_METHOD, {"data": text[start : start + CHUNK_CHARS]})

    def close(self) -> None:
        self.closed.set()


def _encode_message(message: Message) -> list[Any]:
    return [message.kind, message.id, message.method, message.body]


def _decode_message(encoded: Any) -> Message | None:
    """Decode a JSON-RPC message that another node forwards; None if it is malformed.

    The other node may run another version.
    """
    if not isinstance(encoded, list) or len(encoded) != 4 or not isinstance(encoded[3], dict):
        return None
    kind, id_, method, body = encoded
    return Message(kind, id_, method, body)


# -- any request to another node --------------------------------------------------------------------------------------


def tag_for_node(node: str) -> str:
    """Return a node's tag: the random suffix of its id, the only part that clients see."""
    return node.rpartition("-")[2]


class NodeRequestContext(Protocol):
    """What `NodeRequests` needs from this node: live nodes, transports, call tokens."""

    @property
    def id(self) -> str: ...

    @property
    def peers(self) -> Peers: ...

    @property
    def sealer(self) -> CallTokenSealer: ...

    def live_nodes(self) -> Sequence[NodeStatus]: ...

    def nats_transport(self, node: NodeStatus) -> Transport: ...


class NodeRequests:
    """Sends requests about client sessions to the nodes that hold them, over HTTP or NATS."""

    def __init__(self, context: NodeRequestContext, tenant: str) -> None:
        self._context = context
        self._tenant = tenant

    async def send(
        self,
        tag: str,
        principal: str,
        params: Json,
        on_update: OnUpdate | None = None,
        timeout: float | None = NODE_REQUEST_TIMEOUT_S,
    ) -> Json | None:
        """Send a request about a client session to the node with this tag, and return its result.

        None if the node is gone, rejects the request or does not answer within `timeout` seconds. `on_update` is called
        with each notification that the node sends before its answer.
        """
        node = next((node for node in self._context.live_nodes() if tag_for_node(node.info.id) == tag), None)
        if node is None:
            return None
        try:
            async with asyncio.timeout(timeout):
                return await self._send(node, self._token_for(node, principal), params, on_update)
        except (TransportError, JSONRPCError, PeerTimeout, TimeoutError) as exc:
            log.debug("node request to %s failed: %s", node.info.id, exc)
            return None

    def _token_for(self, node: NodeStatus, principal: str) -> CallToken:
        return CallToken(
            node.info.id,
            self._tenant,
            "",
            0,
            node.epoch,
            principal,
            "",
            "",
            sender=self._context.id,
            key=new_call_key(),
            use_id=new_use_id(),
        )

    async def _send(self, node: NodeStatus, token: CallToken, params: Json, on_update: OnUpdate | None) -> Json:
        address, context = node.info.address, self._context
        request = forwarded_request(Request(NODE_REQUEST_METHOD, params), params, token, context.sealer)
        if not address:
            return await _send_once(context.nats_transport(node), request, on_update)
        peer = context.peers.get(node.info.id, address)
        transport = NodeHttpTransport(peer.server_config(), client=peer.client)
        return await peer.run_while_alive(_send_once(transport, request, on_update))


async def _send_once(transport: Transport, request: Request, on_update: OnUpdate | None) -> Json:
    """Open the transport, send one request, close the transport and return the result."""
    await transport.open(_UpdateReceiver(on_update))
    transport.set_protocol("modern", "")
    try:
        return await transport.request(request)
    finally:
        await transport.close()


class _UpdateReceiver:
    """Passes the notifications that arrive during a request to another node to `on_update`."""

    def __init__(self, on_update: OnUpdate | None) -> None:
        self._on_update = on_update

    def on_notification(self, method: str, params: Json, call_state: CallState | None = None) -> None:
        if self._on_update is not None and method == NODE_REQUEST_METHOD:
            self._on_update(params)

    async def on_request(self, method: str, params: Json, call_state: CallState | None = None) -> Json | None:
        return None
