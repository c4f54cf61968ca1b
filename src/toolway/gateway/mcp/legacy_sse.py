"""`/sse` and `/messages`: the HTTP+SSE transport of protocol 2024-11-05.

The client first opens the stream, on which it gets the URL to post to and then every response. Unlike a session at
`/mcp`, this session is bound to its process, so it ends with its connection. In a cluster, a message posted to
another node is forwarded to this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs

from toolway.gateway.authenticator import json_error
from toolway.gateway.mcp.errors import RpcFailure
from toolway.gateway.mcp.legacy_session import LegacySession
from toolway.gateway.mcp.legacy_sessions import LegacySessions
from toolway.gateway.mcp.responses import EventStream, encode_error
from toolway.gateway.mcp.view import EndpointView
from toolway.gateway.principals import Principal
from toolway.gateway.sealing import Sealer
from toolway.http.exchange import Exchange
from toolway.protocol import jsonrpc
from toolway.protocol.jsonrpc import Message
from toolway.types import Json

SSE_KIND: Final = "sse"
SSE_LIFETIME_S: Final = 86_400.0
MESSAGES_PATH: Final = "/messages"
MAX_REQUESTS_PER_STREAM: Final = 256  # of one stream, in flight at once
_STATUS_MESSAGES: Final[dict[int, str]] = {
    HTTPStatus.NOT_FOUND: "unknown stream",
    HTTPStatus.TOO_MANY_REQUESTS: "too many concurrent requests",
}


class LegacySseEndpoint:
    """Endpoint of the old HTTP+SSE transport (2024-11-05): `/sse` streams and posted messages."""

    def __init__(self, sessions: LegacySessions, sealer: Sealer) -> None:
        self._sessions = sessions
        self._sealer = sealer
        self._closing = False
        self._streams: dict[str, tuple[LegacySession, EventStream, set[asyncio.Task[None]]]] = {}

    async def serve_stream(self, exchange: Exchange, principal: Principal, view: EndpointView) -> None:
        """Serve an `/sse` stream (GET), which carries all responses, until the client disconnects."""
        facts: Json = {"principal": principal.id, "endpoint": "", "version": "2024-11-05", "capabilities": {}}
        id_ = self._sealer.seal(SSE_KIND, [principal.id, self._sessions.node_tag], SSE_LIFETIME_S)
        session = LegacySession(facts, principal, view, self._sessions.node_tag)
        stream = session.stream = EventStream(exchange)
        stream.close_on_disconnect()
        tasks: set[asyncio.Task[None]] = set()
        self._streams[id_] = (session, stream, tasks)
        stream.write(f"event: endpoint\ndata: {MESSAGES_PATH}?session={id_}\n\n".encode())
        try:
            await self._sessions.ensure_subscriber(session)
            await stream.closed.wait()
        finally:
            del self._streams[id_]
            for task in tasks:
                task.cancel()  # its response can no longer be delivered
            self._sessions.close_session(session)

    async def handle_post(self, exchange: Exchange, message: Message, principal: Principal, view: EndpointView) -> None:
        """Accept a posted client message; its response is sent on the client's `/sse` stream.

        The message has the rights of the request that carries it, even if another request opened the stream with
        other rights.
        """
        session_id = parse_qs(exchange.request.query).get("session", [""])[0]
        peers = self._sessions.peers
        entry = self._streams.get(session_id)
        if entry is not None and entry[0].principal.id == principal.id:
            entry[0].renew(principal, view)
        if session_id in self._streams or peers is None:
            status = self.handle_message(session_id, principal.id, message, exchange)
        else:
            found = self._sealer.open(SSE_KIND, session_id)
            owner_id, tag = found if found is not None else ("", "")
            is_owner = owner_id == principal.id
            status = (
                await peers.forward_sse_message(tag.rstrip("."), session_id, principal.id, message)
                if is_owner
                else HTTPStatus.NOT_FOUND
            )
        if status == HTTPStatus.ACCEPTED:
            exchange.reply(status)
        else:
            exchange.reply(
                *json_error(status, _STATUS_MESSAGES.get(status, "node that holds the stream is unreachable"))
            )

    def handle_message(self, id_: str, principal_id: str, message: Message, exchange: Exchange | None = None) -> int:
        """Handle a client message for an `/sse` stream of this process; return the HTTP status."""
        entry = self._streams.get(id_)
        if entry is None or entry[0].principal.id != principal_id:
            return HTTPStatus.NOT_FOUND
        session, stream, tasks = entry
        if message.kind != "request":
            self._sessions.handle_message(session, message)
        elif len(tasks) >= MAX_REQUESTS_PER_STREAM:
            return HTTPStatus.TOO_MANY_REQUESTS
        else:
            task = asyncio.get_running_loop().create_task(self._handle_request(session, stream, message, exchange))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            task.add_done_callback(lambda _: self._close_if_done(stream, tasks))
        return HTTPStatus.ACCEPTED

    def replace_views(self, find_view: Callable[[Principal, str], EndpointView | None]) -> None:
        """Give the sessions of all streams new views of what their clients may see, because the policy changed."""
        for session, _, _ in self._streams.values():
            view = find_view(session.principal, "")
            if view is not None:
                session.set_view(view)

    def close_streams(self) -> None:
        """Close every `/sse` stream as soon as all its responses are sent."""
        self._closing = True
        for _, stream, tasks in list(self._streams.values()):
            self._close_if_done(stream, tasks)

    async def cancel_all(self, timeout: float = 1.0) -> None:
        """Cancel all active requests; wait at most `timeout` seconds for their errors to be sent."""
        tasks = [task for _, _, tasks in self._streams.values() for task in tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)

    def _close_if_done(self, stream: EventStream, tasks: set[asyncio.Task[None]]) -> None:
        if self._closing and not tasks:
            stream.close()

    async def _handle_request(
        self, session: LegacySession, stream: EventStream, message: Message, exchange: Exchange | None
    ) -> None:
        def send(data: bytes) -> bool:
            stream.send(data)
            return not stream.disconnected

        if message.method == "initialize":
            response: bytes | None = self._initialize(session, message)
        else:
            response = await self._sessions.handle_request(session, message, send, exchange)
        if response is not None:
            stream.send(response)

    def _initialize(self, session: LegacySession, message: Message) -> bytes:
        assert message.id is not None
        try:
            _, result = self._sessions.initialize(session.principal, session.view, "", message.body)
        except RpcFailure as failure:
            return encode_error(message.id, failure.code, failure.message)
        session.version = result["protocolVersion"]
        capabilities: Any = message.body.get("capabilities")
        session.capabilities = capabilities if isinstance(capabilities, dict) else {}
        return jsonrpc.encode_result(message.id, result)
