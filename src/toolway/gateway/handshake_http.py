"""`/mcp` for clients of the handshake era: a session (`handshake.py`) by POST, GET and DELETE."""

from __future__ import annotations

from typing import Final

from mcp_types.jsonrpc import INVALID_REQUEST
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from toolway.gateway.answers import Stream, error
from toolway.gateway.client_session import ClientSession
from toolway.gateway.failures import Failure
from toolway.gateway.handshake import Handshake
from toolway.gateway.http.exchange import Exchange
from toolway.gateway.http.messages import EVENTS, JSON_FIELDS
from toolway.gateway.others import Others
from toolway.gateway.principals import Principal
from toolway.gateway.tapes import Tape, TapedAnswer
from toolway.gateway.view import View
from toolway.protocol import wire
from toolway.protocol.wire import Message

SESSION: Final = "mcp-session-id"
VERSION: Final = "mcp-protocol-version"
PRIMED: Final = "2025-11-25"  # from this revision on, an event may carry nothing but an id


class HandshakeHttp:
    """The sessions over HTTP, at every endpoint."""

    def __init__(self, sessions: Handshake) -> None:
        self._sessions = sessions

    async def post(self, exchange: Exchange, message: Message, principal: Principal, view: View, endpoint: str) -> None:
        if message.method == "initialize" and message.kind == "request":
            self._initialize(exchange, message, principal, view, endpoint)
            return
        session, others = self._session(exchange, message.id, principal, view, endpoint), self._sessions.others
        if session is None or (others is not None and await self._ended_elsewhere(exchange, session, others)):
            return
        if message.kind != "request":
            if not self._sessions.take(session, message) and others is not None:
                await others.bring(session, message)
            exchange.reply(202)
            return
        tape = session.tapes.begin()
        answer = TapedAnswer(exchange, message.id, tape, primes=session.version >= PRIMED)
        exchange.on_gone = lambda: None  # in this era a lost connection is no cancellation

        def send(data: bytes) -> bool:
            if answer.lost:
                return False
            answer.send(data)
            return True

        try:
            answer.finish(await self._sessions.answer(session, message, send))
        finally:
            answer.stop()
            session.tapes.end(tape, arrived=answer.arrived)

    def _initialize(
        self, exchange: Exchange, message: Message, principal: Principal, view: View, endpoint: str
    ) -> None:
        try:
            id_, result = self._sessions.initialize(principal, view, endpoint, message.body)
        except Failure as failure:
            exchange.reply(400, error(message.id, failure.code, failure.message), JSON_FIELDS)
            return
        assert message.id is not None
        exchange.reply(200, wire.result(message.id, result), (*JSON_FIELDS, (SESSION, id_)))

    async def get(self, exchange: Exchange, principal: Principal, view: View, endpoint: str) -> None:
        """The stream of what belongs to no request, until the client leaves or the session ends."""
        if EVENTS not in exchange.request.headers.get("accept", ""):
            exchange.reply(406, error(None, INVALID_REQUEST, f"Accept must list {EVENTS}"), JSON_FIELDS)
            return
        session, others = self._session(exchange, None, principal, view, endpoint), self._sessions.others
        if session is None or (others is not None and await self._ended_elsewhere(exchange, session, others)):
            return
        last = exchange.request.headers.get("last-event-id", "")
        broken = session.tapes.find(last)
        if broken is not None:
            await self._resume(exchange, *broken)
            return
        if others is not None and last and await others.resume(session, last, Stream(exchange)):
            return
        before, session.stream = session.stream, Stream(exchange)
        if before is not None:
            before.close()  # the client has come back on another connection
        stream = session.stream
        stream.watch()
        stream.open()
        if others is not None:
            others.streams(session)
        try:
            await self._sessions.subscriber(session)
            await stream.over.wait()
        finally:
            stream.close()
            if session.stream is stream:
                session.stream = None

    async def _resume(self, exchange: Exchange, tape: Tape, after: int) -> None:
        """The rest of a stream whose connection broke, until its request is answered."""
        stream = Stream(exchange)
        stream.watch()
        tape.resume(after, stream)
        try:
            await stream.over.wait()
        finally:
            stream.close()

    async def delete(self, exchange: Exchange, principal: Principal, view: View, endpoint: str) -> None:
        session, others = self._session(exchange, None, principal, view, endpoint), self._sessions.others
        if session is None or (others is not None and await self._ended_elsewhere(exchange, session, others)):
            return
        self._sessions.end(exchange.request.headers[SESSION])
        if others is not None:
            await others.settle(session, ended=True)
        exchange.reply(204)

    async def _ended_elsewhere(self, exchange: Exchange, session: ClientSession, others: Others) -> bool:
        """Whether a session is over, as another gateway knows; then its client is told."""
        if not others.is_current(session):
            await others.recall(session)
        if session.ended:
            exchange.reply(404, error(None, INVALID_REQUEST, "Session not found"), JSON_FIELDS)
        return session.ended

    def _session(
        self, exchange: Exchange, id_: wire.Id | None, principal: Principal, view: View, endpoint: str
    ) -> ClientSession | None:
        """The session that a request names; None where it was refused."""
        headers = exchange.request.headers
        version = headers.get(VERSION)
        if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            exchange.reply(
                400, error(id_, INVALID_REQUEST, f"unsupported protocol version {version[:40]}"), JSON_FIELDS
            )
            return None
        named = headers.get(SESSION)
        if named is None or SESSION in exchange.request.repeated:
            exchange.reply(400, error(id_, INVALID_REQUEST, "a session begins with initialize"), JSON_FIELDS)
            return None
        session = self._sessions.find(named, principal, view, endpoint)
        if session is None:
            exchange.reply(404, error(id_, INVALID_REQUEST, "Session not found"), JSON_FIELDS)
        return session
