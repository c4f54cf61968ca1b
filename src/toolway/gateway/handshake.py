"""Sessions of the handshake era (2024-11-05 to 2025-11-25), whatever carries them.

What `initialize` settled is sealed into the session's id, so any process with the same key can go on with it. What
needs a living connection (the stream of notifications, questions to the client, requests that can be cancelled) is
kept in a `ClientSession` of this process, made when a session is first seen here. In a cluster a client may come to
another gateway with every request: what belongs elsewhere goes there (`others.py`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from mcp_types.jsonrpc import INVALID_PARAMS, INVALID_REQUEST

from toolway.gateway.answers import error
from toolway.gateway.client_session import ClientSession, Running, Send, SessionAsks
from toolway.gateway.discovery import Discovery
from toolway.gateway.failures import Failure
from toolway.gateway.listen import Listening, Subscriber
from toolway.gateway.others import Others
from toolway.gateway.principals import Principal
from toolway.gateway.relay import Relay, Result
from toolway.gateway.sealed import Sealer
from toolway.gateway.view import KINDS, View
from toolway.gateway.visit import Visit
from toolway.model import Json
from toolway.protocol import wire
from toolway.protocol.eras import LOG_LEVELS
from toolway.protocol.wire import Message

KIND: Final = "session"
LIFE: Final = 7 * 86_400.0  # seconds a session can be taken up again
MOST: Final = 20_000  # sessions with something living in this process


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
        session.running[id_] = running = Running(asyncio.current_task())
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
        if self.others is not None and session.id:
            await self.others.settle(session, level=session.log_level)
        return {}

    async def _subscribe(self, session: ClientSession, method: str, params: Json) -> Json:
        uri, add, drop = params.get("uri"), "", ""
        subscriber = await self.subscriber(session)
        if method == "resources/unsubscribe":
            self._listening.remove_uri(subscriber, str(uri))
            drop = str(uri)
        elif not isinstance(uri, str) or not await self._listening.add_uri(subscriber, uri):
            raise Failure(INVALID_PARAMS, "no server has this resource", {"uri": uri})
        else:
            add = uri
        if self.others is not None and session.id:
            await self.others.settle(session, add=add, drop=drop)
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
