"""Fake HTTP MCP server, legacy (before 2026-07-28) and modern, that misbehaves on request.

    python -m toolway.testing.http_server --list-modes
    python -m toolway.testing.http_server --port 0 --era legacy --answer sse

Its first line on stdout is `listening PORT`. Inside a test, use `toolway.testing.FakeHttp`. The server accepts
connections and passes each request to its endpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from urllib.parse import parse_qs, urlsplit

from toolway.testing import tools
from toolway.testing.command_line import build_parser, parse_options, server_options
from toolway.testing.faults import ActiveFaults
from toolway.testing.http_endpoint import Endpoint, FakeConnection, FakeExchange, FakeSession
from toolway.testing.http_faults import HTTP_FAULTS
from toolway.testing.server import FakeServer
from toolway.testing.wire import RpcError, Unanswered, make_error_response

TYPE_CHECKING = False  # importing typing would take a third of the start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, NoReturn

    from toolway.testing.faults import FaultSetting
    from toolway.testing.server import FakePeer, Stats
    from toolway.testing.wire import Json


class FakeHttp:
    """Fake MCP server over HTTP, in this process.

        async with FakeHttp(era="legacy", modes=["status=503;retry_after=1;times=1"]) as server:
            ...  # connect to server.url, then check server.stats

    `transport` is `http`, or `sse` for the two endpoints of 2024-11-05, which always use the legacy era. `answer` is
    `json` or `sse`, the response format of `http`. Other options are listed by
    `python -m toolway.testing.http_server --help`: name, tools, page, ttl, effects.
    """

    def __init__(
        self,
        *,
        era: str = "both",
        modes: Iterable[str] = (),
        answer: str = "json",
        host: str = "127.0.0.1",
        port: int = 0,
        transport: str = "http",
        **options: Any,
    ) -> None:
        if transport not in ENDPOINT_BY_TRANSPORT:
            raise ValueError(f"unknown transport {transport!r}: must be {' or '.join(ENDPOINT_BY_TRANSPORT)}")
        self.server = FakeServer(tools, era=era, **options)
        self.server.exit = self._crash
        self.endpoint = ENDPOINT_BY_TRANSPORT[transport](self.server, ActiveFaults(HTTP_FAULTS, modes), answer)
        self.transport = transport
        self.host = host
        self.port = port
        self._listener: asyncio.Server | None = None
        self._connections: set[FakeConnection] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}{self.endpoint.path}"

    @property
    def stats(self) -> Stats:
        """Return the counters of the fake server: requests by method, connections, effects and more."""
        return self.server.stats

    @property
    def sessions(self) -> dict[str, FakeSession]:
        """Return the sessions of legacy clients (protocol before 2026-07-28), by session id."""
        return self.endpoint.sessions

    async def __aenter__(self) -> FakeHttp:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start to listen. After a stop, the server listens on the port it had before."""
        self._listener = await asyncio.start_server(self._handle_connection, self.host, self.port, backlog=1024)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop the server like a killed process: reset all connections and drop all sessions."""
        self._abort()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    def set_mode(self, mode: str) -> None:
        """Set a fault mode for later requests, given as `name=value;option=value;…`."""
        self.endpoint.faults.add(mode)

    def clear_modes(self) -> None:
        """Remove all fault modes, so the server behaves well again."""
        self.endpoint.faults.clear()

    def drop_sessions(self) -> None:
        """Forget all sessions of legacy clients (before 2026-07-28): their next request gets a 404."""
        self.endpoint.drop_sessions()

    def _abort(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for connection in list(self._connections):
            connection.reset()
        self.endpoint.drop_sessions()

    def _crash(self, code: int) -> NoReturn:
        self._abort()
        raise Unanswered

    async def _handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = FakeConnection(reader, writer)
        self.stats.connections += 1
        self._connections.add(connection)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve_connection(connection)
        except (OSError, asyncio.CancelledError):
            pass  # the client has disconnected, or the server stops
        finally:
            self._tasks.discard(task)
            self._connections.discard(connection)
            writer.close()

    async def _serve_connection(self, connection: FakeConnection) -> None:
        while (request := await connection.read_request()) is not None:
            exchange = FakeExchange(connection, request)
            await self._serve_exchange(exchange)
            if not exchange.keep_alive or request.headers.get("connection", "").lower() == "close":
                return
            await exchange.drain()

    async def _serve_exchange(self, exchange: FakeExchange) -> None:
        """Serve one HTTP request. Cancel the work if the client disconnects.

        Requests with `survives_disconnect` continue, as the legacy protocol demands.
        """
        work = asyncio.ensure_future(self.endpoint.serve(exchange))
        disconnected = asyncio.ensure_future(exchange.connection.wait_closed())
        try:
            await asyncio.wait({work, disconnected}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                exchange.keep_alive = False
                if not exchange.survives_disconnect:
                    work.cancel()
                await asyncio.wait({work})
        finally:
            work.cancel()
            disconnected.cancel()
            await asyncio.wait({work, disconnected})  # the next request cannot be read while `disconnected` still reads
        if not work.cancelled():
            work.result()


def main() -> None:
    arg_parser = build_parser(
        "Fake HTTP MCP server that misbehaves on request. Its first output line is `listening PORT`."
    )
    arg_parser.add_argument("--port", type=int, default=0, help="port to listen on (0: any free port)")
    arg_parser.add_argument("--answer", choices=("json", "sse"), default="json", help="response format (json)")
    arg_parser.add_argument(
        "--transport", choices=tuple(ENDPOINT_BY_TRANSPORT), default="http", help="MCP transport (http)"
    )
    options = parse_options(arg_parser, HTTP_FAULTS)
    fake = FakeHttp(
        modes=options.mode,
        answer=options.answer,
        port=options.port,
        transport=options.transport,
        **server_options(options),
    )
    fake.server.exit = os._exit
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve_forever(fake))


async def _serve_forever(fake: FakeHttp) -> None:
    async with fake:
        print(f"listening {fake.port}", flush=True)
        await asyncio.Event().wait()


# -- endpoint of HTTP+SSE, the transport of 2024-11-05 -----------------------------------------------------------------

_PLAIN_TEXT_HEADERS = {"Content-Type": "text/plain"}


class SseEndpoint(Endpoint):
    """Fake endpoint of HTTP+SSE, the MCP transport of 2024-11-05.

    `GET /sse` opens the event stream of a session. The session ends with its stream, unless a fault mode cut the
    stream and gave its events ids. A POST to the address that the stream names gets the status 202, and its
    response is sent on the stream. Fault modes of the HTTP response affect the POST. Fault modes of the JSON-RPC
    response or its events affect the stream, after the POST was accepted.
    """

    path = "/sse"

    def __init__(self, server: FakeServer, modes: ActiveFaults, answer: str) -> None:
        server.era = "legacy"
        super().__init__(server, modes, answer)
        self.messages_url = "/messages?session={id}"  # POST address that the stream announces; empty: it announces none
        self._session_by_post: dict[FakeExchange, FakeSession] = {}  # sessions of the POSTs in progress
        self._accepted_posts: set[FakeExchange] = set()  # POSTs that got their 202
        # By id of the last event before the stream was cut.
        self._resumable_by_event_id: dict[str, tuple[FakeSession, Json]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def cut_streams(self, *, clean: bool = False) -> None:
        """End the SSE streams of all sessions: in an orderly way if `clean`, else with no end chunk."""
        for session in list(self.sessions.values()):
            for stream in session.streams[:]:
                (stream.end_stream if clean else stream.close)()

    async def serve(self, exchange: FakeExchange) -> None:
        method, path = exchange.request.method, urlsplit(exchange.request.target).path
        if method == "GET" and path == self.path:
            self.server.stats.count_request(method)
            await self._serve_session_stream(exchange)
        elif method == "POST" and path != self.path:
            try:
                await self._handle_post(exchange)
            except RpcError as error:
                exchange.respond_json(make_error_response(None, error), 400)
            except Unanswered:
                exchange.keep_alive = False
        else:
            exchange.respond(405, b"Method Not Allowed", _PLAIN_TEXT_HEADERS)

    async def _serve_session_stream(self, exchange: FakeExchange) -> None:
        """Serve the SSE stream of a new session, or of a session that resumes after a cut stream."""
        session, missed_response = FakeSession(), None
        resumed = exchange.request.headers.get("last-event-id")
        if resumed is not None:
            self.server.stats.resumes.append(resumed)
            if resumed in self._resumable_by_event_id:
                session, missed_response = self._resumable_by_event_id.pop(resumed)
        exchange.open_stream()
        if self.messages_url:
            exchange.write_chunk(f"event: endpoint\ndata: {self.messages_url.format(id=session.id)}\n\n".encode())
        session.streams[:] = [exchange]
        self.sessions[session.id] = session
        if missed_response is not None:
            session.send(missed_response)
        try:
            await exchange.stream_ended.wait()
        finally:
            session.streams.clear()
            if all(session is not other for other, _ in self._resumable_by_event_id.values()):
                self.sessions.pop(session.id, None)
                self.server.peers.discard(session)

    def _check_headers(self, exchange: FakeExchange) -> int | None:
        return None  # this transport has no rules for headers

    def _find_peer(self, exchange: FakeExchange, message: Json) -> FakePeer | None:
        exchange.survives_disconnect = True
        session_id = parse_qs(urlsplit(exchange.request.target).query).get("session", [""])[0]
        if not session_id and len(self.sessions) == 1:
            (session_id,) = self.sessions  # a redirect dropped the query
        if session_id in self.sessions:
            return self.sessions[session_id]
        exchange.respond(404, b"Could not find session", _PLAIN_TEXT_HEADERS)
        return None

    async def _handle_request(
        self, exchange: FakeExchange, message: Json, peer: FakePeer, setting: FaultSetting | None
    ) -> None:
        assert isinstance(peer, FakeSession)
        self._session_by_post[exchange] = peer
        if setting is None:
            self._accept_post(exchange)
            task = asyncio.ensure_future(self._process_post(exchange, message, peer, None))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            await self._process_post(exchange, message, peer, setting)

    async def _process_post(
        self, exchange: FakeExchange, message: Json, peer: FakeSession, setting: FaultSetting | None
    ) -> None:
        try:
            with contextlib.suppress(Unanswered):
                await super()._handle_request(exchange, message, peer, setting)
        finally:
            del self._session_by_post[exchange]
            self._accepted_posts.discard(exchange)

    def _accept_post(self, exchange: FakeExchange) -> None:
        if exchange not in self._accepted_posts:
            self._accepted_posts.add(exchange)
            exchange.respond(202, b"Accepted", _PLAIN_TEXT_HEADERS)

    # -- responses are sent on the stream ------------------------------------------------------------------------------

    def fault_free_path(self, exchange: FakeExchange) -> str:
        return f"/moved?{urlsplit(exchange.request.target).query}"

    def send_response(self, exchange: FakeExchange, response: Json) -> None:
        self._accept_post(exchange)
        self._session_by_post[exchange].send(response)

    def send_body(self, exchange: FakeExchange, body: bytes) -> None:
        self.stream_for(exchange).send_event(body)

    def stream_for(self, exchange: FakeExchange) -> FakeExchange:
        self._accept_post(exchange)
        streams = self._session_by_post[exchange].streams
        if not streams:
            raise Unanswered
        return streams[0]

    def end_stream(self, exchange: FakeExchange) -> None:
        self._accept_post(exchange)

    def keep_for_resume(self, event_id: str, exchange: FakeExchange, response: Json) -> None:
        self._resumable_by_event_id[event_id] = (self._session_by_post[exchange], response)

    def _sender_for(self, exchange: FakeExchange, peer: FakePeer) -> Callable[[Json], None]:
        assert isinstance(peer, FakeSession)
        return peer.send


ENDPOINT_BY_TRANSPORT: dict[str, type[Endpoint]] = {"http": Endpoint, "sse": SseEndpoint}


if __name__ == "__main__":
    main()
