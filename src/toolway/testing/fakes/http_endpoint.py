"""What the fake server does with one HTTP request, in both eras."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import Callable, Generator

from toolway.testing.fakes import http_headers
from toolway.testing.fakes.call import Ask, Peer
from toolway.testing.fakes.lists import LISTS
from toolway.testing.fakes.wire import (
    HANDSHAKE_VERSIONS,
    HEADER_MISMATCH,
    INVALID_REQUEST,
    VERSION_KEY,
    RpcError,
    Unanswered,
    cancelled_id,
    failure,
    object_of,
    parsed,
    request,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from toolway.testing.fakes.call import Steps
    from toolway.testing.fakes.http_wire import Exchange
    from toolway.testing.fakes.modes import Modes, Setting
    from toolway.testing.fakes.server import Server
    from toolway.testing.fakes.wire import Id, Json

#: The statuses of modern errors; all others come with 200.
_STATUS = {-32700: 400, -32600: 400, -32601: 404, -32602: 400, -32020: 400, -32021: 400, -32022: 400}
_PATIENCE = 60  # seconds for the client's answer


class Session(Peer):
    """One client of the handshake era."""

    def __init__(self) -> None:
        super().__init__()
        self.id = uuid.uuid4().hex
        self.streams: list[Exchange] = []  # its open GETs
        self.running: dict[Id, asyncio.Event] = {}  # set: cancelled
        self.asked: dict[Id, asyncio.Future[Json]] = {}

    def send(self, message: Json) -> None:
        for stream in self.streams[:1]:
            stream.send(message)


class Hit:
    """A mode that strikes: what it may use to do harm."""

    def __init__(self, endpoint: Endpoint, setting: Setting, exchange: Exchange, reply: Json) -> None:
        self.endpoint = endpoint
        self.server = endpoint.server
        self.setting = setting
        self.exchange = exchange
        self.reply = reply

    def option(self, name: str, default: str = "") -> str:
        return str(self.setting.options.get(name, default))

    def answer(self) -> None:
        """Answer as a good server would."""
        self.endpoint.respond(self.exchange, self.reply)

    def whole(self, body: bytes) -> None:
        """Answer with these bytes."""
        self.endpoint.respond_with(self.exchange, body)

    def stream(self) -> Exchange:
        """Where events are told before the answer."""
        return self.endpoint.stream_of(self.exchange)

    def end(self) -> None:
        """There is nothing more to tell."""
        self.endpoint.end_of(self.exchange)


class Endpoint:
    """Answers requests, well or badly, and keeps the sessions of the handshake era."""

    path = "/mcp"

    def __init__(self, server: Server, modes: Modes, answer: str) -> None:
        if answer not in ("json", "sse"):
            raise ValueError(f"no kind of answer {answer!r}: json or sse")
        self.server = server
        self.modes = modes
        self.answer = answer  # what has to be told before the answer is told in events all the same
        self.sessions: dict[str, Session] = {}
        self.in_flight: list[Id] = []
        self.resumable: dict[str, Json] = {}  # answers by the id of the event after which they were cut off
        self._ids = itertools.count(1)
        for setting in self.modes.at("start"):
            if setting.mode.name not in LISTS:
                raise ValueError(f"{setting.mode.name} cannot strike at the start")
            setting.mode.run(server, setting)

    def next_id(self) -> int:
        return next(self._ids)

    def drop_sessions(self) -> None:
        """Forget all sessions of the handshake era."""
        self.server.peers.clear()
        self.sessions.clear()

    def respond(self, exchange: Exchange, reply: Json) -> None:
        """Send the answer to a POST, as JSON or as the last event."""
        if exchange.streaming or (self.answer == "sse" and "result" in reply):
            exchange.send(reply)
            exchange.end()
        else:
            modern = "mcp-session-id" not in exchange.request.headers
            code = object_of(reply.get("error")).get("code")
            exchange.json(reply, _STATUS.get(code, 200) if modern and isinstance(code, int) else 200)

    def keep(self, event_id: str, exchange: Exchange, reply: Json) -> None:
        """Let a stream that is cut be taken up again, after this event."""
        self.resumable[event_id] = reply

    def moved(self, exchange: Exchange) -> str:
        """Where a request is answered well."""
        return "/moved"

    def respond_with(self, exchange: Exchange, body: bytes) -> None:
        exchange.reply(200, body)

    def stream_of(self, exchange: Exchange) -> Exchange:
        exchange.open_stream()
        return exchange

    def end_of(self, exchange: Exchange) -> None:
        exchange.end()

    def _sender(self, exchange: Exchange, peer: Peer) -> Callable[[Json], None]:
        """Tells what belongs to a request."""
        return exchange.send

    async def serve(self, exchange: Exchange) -> None:
        method = exchange.request.method
        if method == "POST":
            try:
                await self._post(exchange)
            except RpcError as error:
                exchange.json(failure(None, error), _STATUS.get(error.code, 400))
            except Unanswered:
                exchange.keep = False
            return
        self.server.stats.count(method)
        if self.server.era == "modern" or method not in ("GET", "DELETE"):
            exchange.reply(405)
        elif (session := self._session(exchange)) is None:
            return
        elif method == "GET":
            await self._stream(exchange, session)
        else:
            del self.sessions[session.id]
            self.server.peers.discard(session)
            exchange.reply(200)

    async def _post(self, exchange: Exchange) -> None:
        message = parsed(exchange.request.body)
        if "method" in message:
            self.server.stats.count(message["method"])
        setting = self._struck(exchange, message)
        early = setting is not None and setting.mode.early
        if setting is not None and early and not setting.options.get("effect"):
            await setting.mode.run(Hit(self, setting, exchange, {}))
            return
        status = self._objection(exchange)
        if status is not None:
            exchange.reply(status)
            return
        peer = self._peer(exchange, message)
        if peer is None:
            return
        if "id" not in message or "method" not in message:
            self._noted(peer, message)
            exchange.reply(202)
            return
        await self._request(exchange, message, peer, setting)

    def _objection(self, exchange: Exchange) -> int | None:
        """The status to refuse a POST with whose headers are wrong."""
        return http_headers.problem(exchange.request.headers)

    def _struck(self, exchange: Exchange, message: Json) -> Setting | None:
        if (
            "id" not in message
            or "method" not in message
            or exchange.request.target.partition("?")[0].endswith("/moved")
        ):
            return None
        return self.modes.struck(message)

    def _peer(self, exchange: Exchange, message: Json) -> Peer | None:
        """Who sends this POST; None where it has been refused for that."""
        headers = exchange.request.headers
        meta = object_of(object_of(message.get("params")).get("_meta"))
        handshake = self.server.era == "handshake" or (
            self.server.era == "both"
            and VERSION_KEY not in meta
            and ("mcp-session-id" in headers or message.get("method") == "initialize")
        )
        if handshake:
            exchange.outlives = True
            return Session() if message.get("method") == "initialize" else self._session(exchange)
        wrong = http_headers.mismatch(headers, message) if "method" in message and VERSION_KEY in meta else None
        if wrong is not None:
            error = RpcError(HEADER_MISMATCH, f"the header {wrong} does not match the body")
            exchange.json(failure(message.get("id"), error), 400)
            return None
        return Peer()

    def _session(self, exchange: Exchange) -> Session | None:
        """The session a request belongs to; None where it has been refused."""
        headers = exchange.request.headers
        id = headers.get("mcp-session-id")
        if id is None:
            problem = "Bad Request: Missing session ID"
        elif id not in self.sessions:
            exchange.json(failure(None, RpcError(INVALID_REQUEST, "Session not found")), 404)
            return None
        elif headers.get("mcp-protocol-version", HANDSHAKE_VERSIONS[0]) not in HANDSHAKE_VERSIONS:
            problem = "Bad Request: Unsupported protocol version"
        else:
            return self.sessions[id]
        exchange.json(failure(None, RpcError(INVALID_REQUEST, problem)), 400)
        return None

    def _noted(self, peer: Peer, message: Json) -> None:
        """Take a notification, or the client's answer to a question of ours."""
        if not isinstance(peer, Session):
            return
        if message.get("method") == "notifications/cancelled":
            cancelled = peer.running.get(cancelled_id(message))
            if cancelled is not None:
                cancelled.set()
        elif "method" not in message:
            slot = peer.asked.get(message.get("id", ""))
            if slot is not None and not slot.done():
                slot.set_result(message)

    async def _stream(self, exchange: Exchange, session: Session) -> None:
        """Hold a GET open for what belongs to no call; or, where it resumes a cut stream, send what was lost."""
        exchange.open_stream()
        resumed = exchange.request.headers.get("last-event-id")
        if resumed is not None:
            self.server.stats.resumes.append(resumed)
            if resumed in self.resumable:
                exchange.send(self.resumable.pop(resumed))
                exchange.end()
                return
        session.streams.append(exchange)
        try:
            await asyncio.Event().wait()
        finally:
            session.streams.remove(exchange)

    async def _request(self, exchange: Exchange, message: Json, peer: Peer, setting: Setting | None) -> None:
        id = message["id"]
        self.in_flight.append(id)
        try:
            reply = self.server.handle(message, peer, self._sender(exchange, peer))
            if isinstance(reply, Generator):
                walked = await self._walk(exchange, id, reply, peer)
                if walked is None:
                    self.end_of(exchange)
                    return
                reply = walked
            if isinstance(peer, Session) and message["method"] == "initialize" and "result" in reply:
                self.sessions[peer.id] = peer
                exchange.headers["Mcp-Session-Id"] = peer.id
            if setting is None:
                self.respond(exchange, reply)
            else:
                exchange.outlives = False
                await setting.mode.run(Hit(self, setting, exchange, reply))
        finally:
            self.in_flight.remove(id)

    async def _walk(self, exchange: Exchange, id: Id, steps: Steps, peer: Peer) -> Json | None:
        """Go through a call's steps to its response; None where it was cancelled on the way."""
        cancelled = asyncio.Event()
        if isinstance(peer, Session):
            peer.running[id] = cancelled
        given: Json | None = None
        try:
            while True:
                step = steps.send(given)
                if isinstance(step, Ask):
                    given = await self._ask(exchange, peer, step, cancelled)
                else:
                    given = None
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(cancelled.wait(), step.seconds)
                if cancelled.is_set():
                    raise asyncio.CancelledError
        except StopIteration as end:
            reply: Json = end.value
            return reply
        except asyncio.CancelledError:
            steps.close()
            self.server.stats.cancelled.append(id)
            if not cancelled.is_set():
                raise
            return None
        finally:
            if isinstance(peer, Session):
                peer.running.pop(id, None)

    async def _ask(self, exchange: Exchange, peer: Peer, step: Ask, cancelled: asyncio.Event) -> Json:
        assert isinstance(peer, Session)  # only the handshake era asks in the middle of a call
        id = f"ask-{self.next_id()}"
        slot = peer.asked[id] = asyncio.get_running_loop().create_future()
        self._sender(exchange, peer)(request(id, step.method, step.params))
        stop = asyncio.ensure_future(cancelled.wait())
        try:
            await asyncio.wait({slot, stop}, timeout=_PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            del peer.asked[id]
        return slot.result() if slot.done() else {"error": {"code": 0, "message": "the client did not answer"}}
