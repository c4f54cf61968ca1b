"""`/mcp` for legacy clients: POST, GET, and DELETE requests in a session (`legacy_sessions.py`).

A request without session and version headers is served on its own with a JSON response, so even `curl` works.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from toolway.gateway.cluster_hooks import SessionPeers
from toolway.gateway.mcp.context import RequestContext
from toolway.gateway.mcp.errors import RpcFailure
from toolway.gateway.mcp.legacy_session import LegacySession
from toolway.gateway.mcp.legacy_sessions import LegacySessions
from toolway.gateway.mcp.replay_buffer import ReplayBuffer, ResumableResponse
from toolway.gateway.mcp.responses import EventStream, ResponseWriter, encode_error
from toolway.gateway.mcp.view import EndpointView
from toolway.gateway.principals import Principal
from toolway.http.exchange import EVENT_STREAM_TYPE, JSON_HEADERS, Exchange, HttpRequest
from toolway.protocol import jsonrpc
from toolway.protocol.constants import HANDSHAKE_PROTOCOL_VERSIONS, INVALID_REQUEST
from toolway.protocol.jsonrpc import Message

SESSION_HEADER: Final = "mcp-session-id"
VERSION_HEADER: Final = "mcp-protocol-version"
EMPTY_EVENTS_SINCE: Final = "2025-11-25"  # first revision in which an event may consist of an id only


class LegacyHttpEndpoint:
    """MCP endpoint for legacy clients (before 2026-07-28), which have sessions."""

    def __init__(self, sessions: LegacySessions) -> None:
        self._sessions = sessions

    async def handle_post(
        self, exchange: Exchange, message: Message, principal: Principal, view: EndpointView, endpoint: str
    ) -> None:
        if message.method == "initialize" and message.kind == "request":
            self._initialize(exchange, message, principal, view, endpoint)
            return
        if message.kind == "request" and _is_stateless(exchange.request):
            await self._handle_stateless(exchange, message, principal, view, endpoint)
            return
        session, peers = self._find_session(exchange, message.id, principal, view, endpoint), self._sessions.peers
        if session is None or (peers is not None and await self._reject_if_ended(exchange, session, peers)):
            return
        if message.kind != "request":
            if not self._sessions.handle_message(session, message) and peers is not None:
                await peers.forward(session, message)
            if message.kind == "notification":
                await self._sessions.notify(session, message)
            exchange.reply(202)
            return
        response = self.open_response(exchange, session, message.id)
        work = self._sessions.handle_request(session, message, response.try_send, exchange)
        await self.send_response(session, response, work)

    def open_response(
        self, exchange: Exchange, session: LegacySession, id_: jsonrpc.MessageId | None
    ) -> ResumableResponse:
        """Create the response to a request in a legacy session. A client that reconnects can resume it.

        The caller must send it with `send_response`.
        """
        buffer = session.replay_buffers.create()
        exchange.on_disconnect = lambda: None  # in the legacy era a lost connection does not cancel the request
        return ResumableResponse(exchange, id_, buffer, accepts_empty_events=session.version >= EMPTY_EVENTS_SINCE)

    async def send_response(
        self, session: LegacySession, response: ResumableResponse, work: Awaitable[bytes | None]
    ) -> None:
        """Await the encoded response to a request and send it.

        `work` returns None if the client cancelled the request.
        """
        try:
            response.finish(await work)
        finally:
            response.stop_keepalive()
            session.replay_buffers.release(response.buffer, delivered=response.is_delivered)

    async def _handle_stateless(
        self, exchange: Exchange, message: Message, principal: Principal, view: EndpointView, endpoint: str
    ) -> None:
        """Answer a request without a session with one JSON document.

        If the connection is lost, the request is cancelled.
        """
        response = ResponseWriter(exchange, message.id)
        response.stop_keepalive()  # it would turn the response into a stream
        key = exchange.request.headers.get("idempotency-key")
        context = RequestContext(principal, view, endpoint, "legacy", idempotency_key=key, request_id=message.id)
        context.set_ids(exchange)
        try:
            response.send_result(await self._sessions.handle_stateless(context, message))
        except RpcFailure as failure:
            response.send_error(failure)

    def _initialize(
        self, exchange: Exchange, message: Message, principal: Principal, view: EndpointView, endpoint: str
    ) -> None:
        try:
            id_, result = self._sessions.initialize(principal, view, endpoint, message.body)
        except RpcFailure as failure:
            exchange.reply(400, encode_error(message.id, failure.code, failure.message), JSON_HEADERS)
            return
        assert message.id is not None
        exchange.reply(200, jsonrpc.encode_result(message.id, result), (*JSON_HEADERS, (SESSION_HEADER, id_)))

    async def handle_get(self, exchange: Exchange, principal: Principal, view: EndpointView, endpoint: str) -> None:
        """Serve the SSE stream (GET) for server messages that belong to no request of the client.

        It ends when the client disconnects or the session ends.
        """
        if EVENT_STREAM_TYPE not in exchange.request.headers.get("accept", ""):
            exchange.reply(
                406, encode_error(None, INVALID_REQUEST, f"Accept must list {EVENT_STREAM_TYPE}"), JSON_HEADERS
            )
            return
        session, peers = self._find_session(exchange, None, principal, view, endpoint), self._sessions.peers
        if session is None or (peers is not None and await self._reject_if_ended(exchange, session, peers)):
            return
        last_event_id = exchange.request.headers.get("last-event-id", "")
        broken = session.replay_buffers.find(last_event_id)
        if broken is not None:
            await self._resume(exchange, *broken)
            return
        if (
            peers is not None
            and last_event_id
            and await peers.resume_stream(session, last_event_id, EventStream(exchange))
        ):
            return
        previous, session.stream = session.stream, EventStream(exchange)
        if previous is not None:
            previous.close()  # the client reconnected
        stream = session.stream
        stream.close_on_disconnect()
        stream.open()
        if peers is not None:
            peers.on_stream_opened(session)
        try:
            await self._sessions.ensure_subscriber(session)
            await stream.closed.wait()
        finally:
            stream.close()
            if session.stream is stream:
                session.stream = None

    async def _resume(self, exchange: Exchange, buffer: ReplayBuffer, after: int) -> None:
        """Send the rest of a request's event stream to a client that reconnected.

        It ends when the request is answered or the client disconnects.
        """
        stream = EventStream(exchange)
        stream.close_on_disconnect()
        buffer.resume(after, stream)
        try:
            await stream.closed.wait()
        finally:
            stream.close()

    async def handle_delete(self, exchange: Exchange, principal: Principal, view: EndpointView, endpoint: str) -> None:
        session, peers = self._find_session(exchange, None, principal, view, endpoint), self._sessions.peers
        if session is None or (peers is not None and await self._reject_if_ended(exchange, session, peers)):
            return
        self._sessions.end_session(exchange.request.headers[SESSION_HEADER])
        if peers is not None:
            await peers.save_state(session, ended=True)
        exchange.reply(204)

    async def _reject_if_ended(self, exchange: Exchange, session: LegacySession, peers: SessionPeers) -> bool:
        """Reply 404 and return True if the session has ended on any node of the cluster.

        Loads the shared session state first, if this node's copy is not current.
        """
        if not peers.is_current(session):
            await peers.load_state(session)
        if session.ended:
            exchange.reply(404, encode_error(None, INVALID_REQUEST, "Session not found"), JSON_HEADERS)
        return session.ended

    def _find_session(
        self, exchange: Exchange, id_: jsonrpc.MessageId | None, principal: Principal, view: EndpointView, endpoint: str
    ) -> LegacySession | None:
        """Return the session that the headers of the request name.

        If the session is invalid or unknown, reply with an error and return None.
        """
        headers = exchange.request.headers
        version = headers.get(VERSION_HEADER)
        if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            exchange.reply(
                400, encode_error(id_, INVALID_REQUEST, f"unsupported protocol version {version[:40]}"), JSON_HEADERS
            )
            return None
        session_id = headers.get(SESSION_HEADER)
        if session_id is None or SESSION_HEADER in exchange.request.repeated_headers:
            exchange.reply(400, encode_error(id_, INVALID_REQUEST, "no session: send initialize first"), JSON_HEADERS)
            return None
        session = self._sessions.get_session(session_id, principal, view, endpoint)
        if session is None:
            exchange.reply(404, encode_error(id_, INVALID_REQUEST, "Session not found"), JSON_HEADERS)
        return session


def _is_stateless(request: HttpRequest) -> bool:
    """Return True if a request names neither a session nor a protocol version."""
    return SESSION_HEADER not in request.headers and VERSION_HEADER not in request.headers
