"""What the fake server does with one HTTP request where it speaks HTTP+SSE: the two endpoints of 2024-11-05.

`GET /sse` opens the stream of a session, which ends with it, unless the mode that cut it gave its events ids. A POST
to the address that the stream names is taken with 202, and answered on the stream. Modes about the response strike the
POST; modes about the answer or its events strike the stream, after the POST was taken.
"""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import parse_qs, urlsplit

from toolway.testing.fakes.http_endpoint import Endpoint, Session
from toolway.testing.fakes.wire import RpcError, Unanswered, failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from toolway.testing.fakes.call import Peer
    from toolway.testing.fakes.http_wire import Exchange
    from toolway.testing.fakes.modes import Modes, Setting
    from toolway.testing.fakes.server import Server
    from toolway.testing.fakes.wire import Json

_PLAIN = {"Content-Type": "text/plain"}


class SseEndpoint(Endpoint):
    """Streams, and what is posted to them."""

    path = "/sse"

    def __init__(self, server: Server, modes: Modes, answer: str) -> None:
        server.era = "handshake"
        super().__init__(server, modes, answer)
        self.messages = "/messages?session={id}"  # where messages go, as a stream says it; empty: it does not say
        self._of: dict[Exchange, Session] = {}  # whose the POSTs are that are being answered
        self._taken: set[Exchange] = set()  # those of them that have their 202
        self._cut: dict[str, tuple[Session, Json]] = {}  # by the id of the event after which a stream was cut
        self._tasks: set[asyncio.Task[None]] = set()

    def cut_streams(self, *, clean: bool = False) -> None:
        """End all streams, in order or in the middle."""
        for session in list(self.sessions.values()):
            for stream in session.streams[:]:
                (stream.end if clean else stream.cut)()

    async def serve(self, exchange: Exchange) -> None:
        method, path = exchange.request.method, urlsplit(exchange.request.target).path
        if method == "GET" and path == self.path:
            self.server.stats.count(method)
            await self._hold(exchange)
        elif method == "POST" and path != self.path:
            try:
                await self._post(exchange)
            except RpcError as error:
                exchange.json(failure(None, error), 400)
            except Unanswered:
                exchange.keep = False
        else:
            exchange.reply(405, b"Method Not Allowed", _PLAIN)

    async def _hold(self, exchange: Exchange) -> None:
        """The stream of a new session, or of one whose stream was cut."""
        session, missed = Session(), None
        resumed = exchange.request.headers.get("last-event-id")
        if resumed is not None:
            self.server.stats.resumes.append(resumed)
            if resumed in self._cut:
                session, missed = self._cut.pop(resumed)
        exchange.open_stream()
        if self.messages:
            exchange.chunk(f"event: endpoint\ndata: {self.messages.format(id=session.id)}\n\n".encode())
        session.streams[:] = [exchange]
        self.sessions[session.id] = session
        if missed is not None:
            session.send(missed)
        try:
            await exchange.over.wait()
        finally:
            session.streams.clear()
            if all(session is not kept for kept, _ in self._cut.values()):
                self.sessions.pop(session.id, None)
                self.server.peers.discard(session)

    def _objection(self, exchange: Exchange) -> int | None:
        return None  # this transport says nothing about headers

    def _peer(self, exchange: Exchange, message: Json) -> Peer | None:
        exchange.outlives = True
        named = parse_qs(urlsplit(exchange.request.target).query).get("session", [""])[0]
        if not named and len(self.sessions) == 1:
            (named,) = self.sessions  # a redirect has lost it
        if named in self.sessions:
            return self.sessions[named]
        exchange.reply(404, b"Could not find session", _PLAIN)
        return None

    async def _request(self, exchange: Exchange, message: Json, peer: Peer, setting: Setting | None) -> None:
        assert isinstance(peer, Session)
        self._of[exchange] = peer
        if setting is None:
            self._take(exchange)
            task = asyncio.ensure_future(self._finish(exchange, message, peer, None))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            await self._finish(exchange, message, peer, setting)

    async def _finish(self, exchange: Exchange, message: Json, peer: Session, setting: Setting | None) -> None:
        try:
            with contextlib.suppress(Unanswered):
                await super()._request(exchange, message, peer, setting)
        finally:
            del self._of[exchange]
            self._taken.discard(exchange)

    def _take(self, exchange: Exchange) -> None:
        if exchange not in self._taken:
            self._taken.add(exchange)
            exchange.reply(202, b"Accepted", _PLAIN)

    # -- answers come on the stream

    def moved(self, exchange: Exchange) -> str:
        return f"/moved?{urlsplit(exchange.request.target).query}"

    def respond(self, exchange: Exchange, reply: Json) -> None:
        self._take(exchange)
        self._of[exchange].send(reply)

    def respond_with(self, exchange: Exchange, body: bytes) -> None:
        self.stream_of(exchange).event(body)

    def stream_of(self, exchange: Exchange) -> Exchange:
        self._take(exchange)
        streams = self._of[exchange].streams
        if not streams:
            raise Unanswered
        return streams[0]

    def end_of(self, exchange: Exchange) -> None:
        self._take(exchange)

    def keep(self, event_id: str, exchange: Exchange, reply: Json) -> None:
        self._cut[event_id] = (self._of[exchange], reply)

    def _sender(self, exchange: Exchange, peer: Peer) -> Callable[[Json], None]:
        assert isinstance(peer, Session)
        return peer.send
