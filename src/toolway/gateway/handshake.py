"""`/mcp` for clients of the handshake era (2024-11-05 to 2025-11-25).

What `initialize` settled is sealed into the session's id, so any process with the same key can go on with it. What
needs a living connection (the stream of notifications, questions to the client, requests that can be cancelled) is
kept in a `ClientSession` of this process, made when a session is first seen here. In a cluster a client may come to
another gateway with every request: what belongs elsewhere goes there (`others.py`).
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from mcp_types.jsonrpc import INVALID_PARAMS, INVALID_REQUEST
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from toolway.events import Logged
from toolway.gateway.answers import Stream, error
from toolway.gateway.discovery import Discovery
from toolway.gateway.failures import Failure
from toolway.gateway.http.exchange import Exchange
from toolway.gateway.http.messages import EVENTS, JSON_FIELDS
from toolway.gateway.listen import Listening, Subscriber
from toolway.gateway.others import Others
from toolway.gateway.principals import Principal
from toolway.gateway.relay import Relay, Result
from toolway.gateway.sealed import Sealer
from toolway.gateway.tapes import Tape, TapedAnswer, Tapes
from toolway.gateway.view import KINDS, View
from toolway.gateway.visit import Visit, can_answer
from toolway.model import AskRefused, Json
from toolway.protocol import wire
from toolway.protocol.eras import LOG_LEVELS, log_rank
from toolway.protocol.wire import Message

SESSION: Final = "mcp-session-id"
VERSION: Final = "mcp-protocol-version"
PRIMED: Final = "2025-11-25"  # from this revision on, an event may carry nothing but an id
KIND: Final = "session"
LIFE: Final = 7 * 86_400.0  # seconds a session can be taken up again
MOST: Final = 20_000  # sessions with something living in this process
MAX_ASKS: Final = 64  # questions to one client at once
ASK_TIME: Final = 900.0  # seconds a client may take to answer one
ASK: Final = "toolway-"  # begins the ids of our questions; the tag of a gateway may follow

Send = Callable[[bytes], bool]


class ClientSession:
    """What lives of one session in this process."""

    def __init__(self, facts: Json, principal: Principal, view: View, tag: str = "") -> None:
        self.id = ""  # where it can be taken up again
        self.capabilities: Json = facts["capabilities"]
        self.version: str = facts["version"]
        self.endpoint: str = facts["endpoint"]
        self.principal = principal
        self.transport = "tcp"
        self.view = view
        self.log_level: str | None = None
        self.stream: Stream | None = None  # for what belongs to no request
        self.running: dict[wire.Id, _Running] = {}
        self.subscriber: Subscriber | None = None
        self.uris: tuple[str, ...] = ()  # of resources that it subscribed to, here or at another gateway
        self.ended = False
        self.looked_at = 0.0  # when we last asked what it settled at others; 0 = never
        self.tapes = Tapes(tag)
        self._tag = tag  # ours among the gateways of a cluster
        self._asks: dict[str, asyncio.Future[Json]] = {}
        self._numbers = itertools.count(1)

    def see(self, view: View) -> None:
        """What there is to see may be another since the configuration changed."""
        self.view = view

    def tell(self, method: str, params: Json) -> None:
        """A notification that belongs to no request; lost where the client does not listen."""
        if self.stream is not None and not self.stream.gone:
            self.stream.send(wire.notification(method, params))

    def log(self, fact: Logged) -> None:
        if fact.of_call or fact.caller != self.principal.caller or fact.server not in self.view.servers():
            return
        if self.log_level is None or log_rank(self.log_level) < log_rank(fact.level):
            return
        params: Json = {"level": fact.level, "data": fact.data}
        if fact.logger is not None:
            params["logger"] = fact.logger
        self.tell("notifications/message", params)

    # -- asking the client --------------------------------------------------------------------------------------------

    async def ask(self, send: Send, method: str, params: Json) -> Json:
        """The client's answer to a request of ours. Raises `LookupError` where it cannot be asked."""
        if not can_answer(self.capabilities, method, params) or len(self._asks) >= MAX_ASKS:
            raise LookupError(method)
        id_ = f"{ASK}{self._tag}{next(self._numbers)}"
        answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._asks[id_] = answer
        try:
            if not send(wire.request(id_, method, params)):
                raise LookupError(method)
            async with asyncio.timeout(ASK_TIME):
                return await answer
        except (asyncio.CancelledError, TimeoutError):
            send(wire.notification("notifications/cancelled", {"requestId": id_}))  # it need not answer any more
            raise
        finally:
            del self._asks[id_]

    def answered(self, message: Message) -> bool:
        """The client answers a question of ours; False where it is none of ours, or was answered."""
        answer = self._asks.get(message.id) if isinstance(message.id, str) else None
        if answer is None or answer.done():
            return False
        if message.kind == "result":
            answer.set_result(message.body)
        else:
            code, text, data = wire.error_fields(message.body)
            answer.set_exception(AskRefused(code, text, data))
        return True

    def end(self) -> None:
        for answer in self._asks.values():
            if not answer.done():
                answer.cancel()
        for running in self.running.values():
            running.cancel()
        if self.stream is not None:
            self.stream.close()


@dataclass(slots=True)
class _Running:
    """A request that is being answered."""

    task: asyncio.Task[Any] | None
    cancelled: bool = False  # by the client, who wants no answer any more

    def cancel(self) -> None:
        self.cancelled = True
        if self.task is not None:
            self.task.cancel()


class SessionAsks:
    """The `Asks` of one call of a session: questions go where the answer of the call will go."""

    def __init__(self, session: ClientSession, send: Send) -> None:
        self._session = session
        self._send = send

    @property
    def capabilities(self) -> Json:
        return self._session.capabilities

    async def answer(self, server: str, method: str, params: Json) -> Json:
        return await self._session.ask(self._send, method, params)


class Handshake:
    """All sessions, whatever carries them: `/mcp`, `/sse` or pipes."""

    def __init__(self, relay: Relay, discovery: Discovery, listening: Listening, sealer: Sealer) -> None:
        self._relay = relay
        self._discovery = discovery
        self._listening = listening
        self._sealer = sealer
        self._sessions: OrderedDict[str, ClientSession] = OrderedDict()
        self._ended: OrderedDict[str, None] = OrderedDict()
        self.others: Others | None = None  # in a cluster

    # -- sessions -----------------------------------------------------------------------------------------------------

    def initialize(self, principal: Principal, view: View, endpoint: str, params: Json) -> tuple[str, Json]:
        """A new session's id, and the result that the client gets. Raises `Failure`."""
        capabilities = params.get("capabilities")
        if not isinstance(params.get("protocolVersion"), str):
            raise Failure(INVALID_PARAMS, "initialize needs a protocolVersion")
        result = self._discovery.initialize(view, params["protocolVersion"])
        facts: Json = {
            "principal": principal.id,
            "endpoint": endpoint,
            "version": result["protocolVersion"],
            "capabilities": capabilities if isinstance(capabilities, dict) else {},
        }
        id_ = self._sealer.seal(KIND, facts, LIFE)
        if self.others is not None:
            self.others.began(id_)
        return id_, result

    def find(self, id_: str, principal: Principal, view: View, endpoint: str) -> ClientSession | None:
        """The session of this id, for the principal and endpoint that began it; for everybody else there is none."""
        known = self._sessions.get(id_)
        if known is not None:
            self._sessions.move_to_end(id_)
            if known.principal.id != principal.id or known.endpoint != endpoint:
                return None
            known.see(view)
            return known
        facts = self._sealer.open(KIND, id_) if id_ not in self._ended else None
        if facts is None or (facts["principal"], facts["endpoint"]) != (principal.id, endpoint):
            return None
        return self.keep(id_, ClientSession(facts, principal, view, self.tag))

    @property
    def tag(self) -> str:
        """What begins the names that only we know; nothing where we are alone."""
        return f"{self.others.tag}." if self.others is not None else ""

    def keep(self, id_: str, session: ClientSession) -> ClientSession:
        self._sessions[id_] = session
        session.id = id_
        if self.others is not None:
            self.others.lives(session)
        if len(self._sessions) > MOST:
            oldest = next((k for k, s in self._sessions.items() if s.stream is None and not s.running), None)
            if oldest is not None:
                self._forget(oldest)
        return session

    def end(self, id_: str) -> None:
        """The client is done with a session."""
        self._forget(id_)
        self._ended[id_] = None
        if len(self._ended) > MOST:
            self._ended.popitem(last=False)

    def living(self, id_: str, principal: str) -> ClientSession | None:
        """A session of which something is here, for whom it is."""
        found = self._sessions.get(id_)
        return found if found is not None and found.principal.id == principal else None

    def _forget(self, id_: str) -> None:
        session = self._sessions.pop(id_, None)
        if session is not None:
            self.leave(session)

    def leave(self, session: ClientSession) -> None:
        """Nothing of the session lives on in this process."""
        session.end()
        if session.subscriber is not None:
            self._listening.remove(session.subscriber)

    @property
    def under_way(self) -> bool:
        """Whether a request runs, be it one whose connection was lost."""
        return any(session.running for session in self._sessions.values())

    def close_streams(self) -> None:
        """End the streams of what belongs to no request."""
        for session in self._sessions.values():
            if session.stream is not None:
                session.stream.close()

    def close(self) -> None:
        for id_ in list(self._sessions):
            self._forget(id_)

    # -- messages of a session ----------------------------------------------------------------------------------------

    def take(self, session: ClientSession, message: Message) -> bool:
        """A message that gets no answer; False where it belongs to nothing that is here."""
        if message.kind in ("result", "error"):
            return session.answered(message)
        if message.method == "notifications/cancelled":
            id_ = message.body.get("requestId")
            running = session.running.get(id_) if isinstance(id_, str | int) else None
            if running is None:
                return False
            running.cancel()
        return True

    async def answer(self, session: ClientSession, message: Message, send: Send) -> bytes | None:
        """The answer to a request, encoded; None where the client cancelled it. `send` carries what belongs to it."""
        id_ = message.id
        assert id_ is not None
        if id_ in session.running:
            return error(id_, INVALID_REQUEST, "a request with this id is under way")
        session.running[id_] = running = _Running(asyncio.current_task())
        try:
            return wire.result(id_, await self._result(session, message, send))
        except Failure as failure:
            return error(id_, failure.code, failure.message, failure.data)
        except asyncio.CancelledError:
            if running.cancelled and running.task is not None and running.task.uncancel() == 0:
                return None
            raise
        finally:
            session.running.pop(id_, None)

    async def _result(self, session: ClientSession, message: Message, send: Send) -> Result:
        method, params = message.method, message.body
        if method == "ping":
            return {}
        if method == "logging/setLevel":
            return await self._set_level(session, params)
        if method in ("resources/subscribe", "resources/unsubscribe"):
            return await self._subscribe(session, method, params)
        return await self._relay.answer(self._visit(session, send, message.id), method, params)

    def _visit(self, session: ClientSession, send: Send, id_: wire.Id | None) -> Visit:
        def tell(method: str, params: Json) -> None:
            send(wire.notification(method, params))

        return Visit(
            session.principal,
            session.view,
            session.endpoint,
            "handshake",
            session.capabilities,
            tell,
            SessionAsks(session, send),
            session.log_level,
            wants_log=True,
            request_id=id_,
            version=session.version,
            transport=session.transport,
        )

    async def _set_level(self, session: ClientSession, params: Json) -> Json:
        if params.get("level") not in LOG_LEVELS:
            raise Failure(INVALID_PARAMS, f"level must be one of {', '.join(LOG_LEVELS)}")
        session.log_level = params["level"]
        await self._settle(session)
        return {}

    async def _settle(self, session: ClientSession) -> None:
        if self.others is not None and session.id:
            await self.others.settle(session)

    async def _subscribe(self, session: ClientSession, method: str, params: Json) -> Json:
        uri = params.get("uri")
        subscriber = await self.subscriber(session)
        if method == "resources/unsubscribe":
            self._listening.remove_uri(subscriber, str(uri))
        elif not isinstance(uri, str) or not await self._listening.add_uri(subscriber, uri):
            raise Failure(INVALID_PARAMS, "no server has this resource", {"uri": uri})
        session.uris = tuple(subscriber.wishes.values())
        await self._settle(session)
        return {}

    async def renew(self, session: ClientSession) -> None:
        """Another gateway was told what this client wants to hear of."""
        if session.subscriber is None:
            return
        known = set(session.subscriber.wishes.values())
        for uri in known.difference(session.uris):
            self._listening.remove_uri(session.subscriber, uri)
        for uri in set(session.uris) - known:
            await self._listening.add_uri(session.subscriber, uri)

    async def subscriber(self, session: ClientSession) -> Subscriber:
        if session.subscriber is None:
            session.subscriber = Subscriber(
                session.view, frozenset(KINDS), session.tell, session.principal.caller, on_log=session.log
            )
            await self._listening.add(session.subscriber)
            await self.renew(session)
        return session.subscriber


class HandshakeHttp:
    """The sessions over one HTTP endpoint: POST, GET and DELETE."""

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
