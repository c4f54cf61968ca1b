"""The fake server on a socket: it listens, and gives each request to its endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import os

from toolway.testing.fakes import tools
from toolway.testing.fakes.http_endpoint import Endpoint, Session
from toolway.testing.fakes.http_modes import MODES
from toolway.testing.fakes.http_wire import Connection, Exchange
from toolway.testing.fakes.modes import Modes
from toolway.testing.fakes.options import parser, read, server_options
from toolway.testing.fakes.server import Server
from toolway.testing.fakes.sse_endpoint import SseEndpoint
from toolway.testing.fakes.wire import Unanswered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, NoReturn

    from toolway.testing.fakes.server import Stats


ENDPOINTS: dict[str, type[Endpoint]] = {"http": Endpoint, "sse": SseEndpoint}


class FakeHttp:
    """A fake server over HTTP, in this process.

        async with FakeHttp(era="handshake", modes=["status=503;retry_after=1;times=1"]) as server:
            ...  # connect to server.url, then look at server.stats

    `transport` is http or, for the pair of endpoints of 2024-11-05, sse, whose era is the handshake's. `answer` is how
    the former answers: json or sse. Other options are those of `python -m toolway.testing.fake_http --help`: name,
    tools, page, ttl, effects.
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
        if transport not in ENDPOINTS:
            raise ValueError(f"no transport {transport!r}: {' or '.join(ENDPOINTS)}")
        self.server = Server(tools, era=era, **options)
        self.server.exit = self._crash
        self.endpoint = ENDPOINTS[transport](self.server, Modes(MODES, modes), answer)
        self.transport = transport
        self.host = host
        self.port = port
        self._listener: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}{self.endpoint.path}"

    @property
    def stats(self) -> Stats:
        """What the server has seen: requests by method, connections, effects and more."""
        return self.server.stats

    @property
    def sessions(self) -> dict[str, Session]:
        """The sessions of the handshake era by their ids."""
        return self.endpoint.sessions

    async def __aenter__(self) -> FakeHttp:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        self._listener = await asyncio.start_server(self._connected, self.host, self.port, backlog=1024)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """End as a killed process does: connections reset, sessions gone."""
        self._abort()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    def set_mode(self, mode: str) -> None:
        """Misbehave from now on: `name=value;option=value;…`."""
        self.endpoint.modes.set(mode)

    def clear_modes(self) -> None:
        """Behave well from now on."""
        self.endpoint.modes.clear()

    def drop_sessions(self) -> None:
        """Forget all sessions of the handshake era."""
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

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        self.stats.connections += 1
        self._connections.add(connection)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._converse(connection)
        except (OSError, asyncio.CancelledError):
            pass  # the client has gone, or the server stops
        finally:
            self._tasks.discard(task)
            self._connections.discard(connection)
            writer.close()

    async def _converse(self, connection: Connection) -> None:
        while (request := await connection.next_request()) is not None:
            exchange = Exchange(connection, request)
            await self._attend(exchange)
            if not exchange.keep or request.headers.get("connection", "").lower() == "close":
                return
            await exchange.drain()

    async def _attend(self, exchange: Exchange) -> None:
        """Serve one request, and stop when its client has gone, unless the work outlives it."""
        work = asyncio.ensure_future(self.endpoint.serve(exchange))
        gone = asyncio.ensure_future(exchange.connection.wait_gone())
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                exchange.keep = False
                if not exchange.outlives:
                    work.cancel()
                await asyncio.wait({work})
        finally:
            work.cancel()
            gone.cancel()
            await asyncio.wait({work, gone})  # the next request cannot be read while `gone` still reads
        if not work.cancelled():
            work.result()


def main() -> None:
    command = parser("An HTTP MCP server that misbehaves on purpose. Its first line says `listening PORT`.")
    command.add_argument("--port", type=int, default=0, help="where to listen (0: any free port)")
    command.add_argument("--answer", choices=("json", "sse"), default="json", help="how to answer (json)")
    command.add_argument("--transport", choices=tuple(ENDPOINTS), default="http", help="what to speak (http)")
    options = read(command, MODES)
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
