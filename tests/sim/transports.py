"""The near side of the simulated servers: links that keep the rules of `upstream/transport.py`.

A pipe keeps its requests in the real `Outstanding`; an HTTP endpoint has one connection per request. Both say that a
request may be executed (C2) at the moment its bytes leave, and not before.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from tests.sim.faults import Fate, Later, ticks
from tests.sim.history import Cut, Sent
from tests.sim.servers import Answer, Exchange, Process, SimServer
from toolway.protocol import jsonrpc
from toolway.types import Certainty, Era, Json
from toolway.upstream.transport import Disconnect, InboundHandler, JSONRPCError, Request, TransportError, TransportInfo
from toolway.upstream.transports.pending_requests import PendingRequests

BUSY: Final = 0.2  # how often a pipe is full, or a connection has to be made first


def link_to(server: SimServer) -> PipeLink | HttpLink:
    return PipeLink(server) if server.traits.transport == "pipe" else HttpLink(server)


def _leave(server: SimServer, request: Request, exchange: Exchange) -> None:
    """The bytes leave us."""
    request.call_state.certainty = Certainty.UNKNOWN
    request.call_state.phase = "server"
    if request.method == "tools/call":
        server.history.add(Sent(exchange.sent, server.name, exchange.nonce, exchange.call))


@dataclass(eq=False, slots=True)
class _Frame:
    """A request in the pipe, or still before it."""

    id: int
    request: Request
    fate: Fate
    waiting: Later | None = None
    exchange: Exchange | None = None  # once it has left


class PipeLink:
    def __init__(self, server: SimServer) -> None:
        self._server = server
        self._dice = server.dice
        self._outstanding = PendingRequests()
        self._process: Process | None = None
        self._loss: asyncio.Future[Disconnect] | None = None
        self._calls: dict[int, _Frame] = {}  # tool calls under way

    async def open(self, inbound: InboundHandler) -> None:
        self._loop = asyncio.get_running_loop()
        self._inbound = inbound
        self._loss = self._loop.create_future()
        await asyncio.sleep(ticks(self._dice, 0, 4))
        if self._server.weather.strikes(0.2):
            self._server.struck("failing start")
            raise TransportError("the process could not be started", Certainty.NOT_SENT, code="E-STDIO-SPAWN")
        self._process = self._server.start(self._on_end)

    async def wait_closed(self) -> Disconnect:
        assert self._loss is not None
        return await asyncio.shield(self._loss)

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if self._calls and process.alive:
            self._server.history.add(Cut(self._loop.time(), self._server.name, len(self._calls)))
        self._lose(Disconnect("closed by us", "E-CLOSED"))
        try:
            await asyncio.sleep(ticks(self._dice, 0, 64 * 6) if process.alive else 0)  # it may finish what it has begun
        finally:
            process.end()

    def set_protocol(self, era: Era, version: str) -> None:
        """Nothing to do, as on a real pipe."""

    def reset_session(self) -> None:
        """Nothing to do, as on a real pipe."""

    def info(self) -> TransportInfo:
        pid = self._server.processes if self._process is not None else None
        return TransportInfo(pid=pid, unmatched_responses=self._outstanding.dropped)

    def _on_end(self) -> None:
        news = ticks(self._dice, 0, 16)
        self._loop.call_later(
            news, self._lose, Disconnect("the process ended with exit code 1", "E-STDIO-EXIT", exit_code=1)
        )

    def _lose(self, loss: Disconnect) -> None:
        assert self._loss is not None
        if not self._loss.done():
            self._loss.set_result(loss)
            self._outstanding.fail_all(loss.reason, loss.code, loss.hint)

    # -- requests -----------------------------------------------------------------------------------------------------

    async def request(self, request: Request) -> Json:
        if self._loss is None or self._loss.done() or self._process is None:
            raise TransportError("the connection to the server has ended", Certainty.NOT_SENT, code="E-STDIO-BROKEN")
        fate = self._server.fate(request.method)
        if fate is Fate.UNSENT:
            raise TransportError("the line to the server is full", Certainty.NOT_SENT, code="E-STDIO-FULL")
        id_, answer = self._outstanding.add(request)
        frame = _Frame(id_, request, fate)
        request.call_state.phase = "send"
        try:
            self._write(frame)
            return await answer
        except asyncio.CancelledError:
            self._take_back(frame)
            raise
        finally:
            self._outstanding.remove(id_)
            self._calls.pop(id_, None)

    def _write(self, frame: _Frame) -> None:
        if self._dice.random() < BUSY:
            frame.waiting = Later(self._dice, ticks(self._dice, 0, 32), lambda: self._written(frame))
        elif not self._written(frame):
            raise TransportError("the process has ended", Certainty.NOT_SENT, code="E-STDIO-BROKEN")

    def _written(self, frame: _Frame) -> bool:
        """The pipe takes all of it, unless nobody holds its other end any more; then the end of the link fails it."""
        frame.waiting = None
        process = self._process
        if process is None or (not process.alive and self._dice.random() < 0.5):
            return False
        frame.exchange = self._exchange(frame)
        _leave(self._server, frame.request, frame.exchange)
        if frame.request.method == "tools/call":
            self._calls[frame.id] = frame
        self._loop.call_later(ticks(self._dice, 0, self._server.traits.way), process.take, frame.exchange)
        return True

    def _exchange(self, frame: _Frame) -> Exchange:
        return Exchange(
            frame.request.method,
            frame.request.params,
            frame.fate,
            self._loop.time(),
            lambda answer: self._answered(frame.id, answer),
            self._notified,
        )

    def _take_back(self, frame: _Frame) -> None:
        if frame.waiting is not None:
            frame.waiting.cancel()
        elif frame.exchange is not None and self._process is not None and not frame.request.silent_cancel:
            way = ticks(self._dice, 0, self._server.traits.way)
            self._loop.call_later(way, self._process.drop, frame.exchange)

    def _answered(self, id_: int, answer: Answer) -> None:
        if isinstance(answer, TransportError):
            self._outstanding.reject(id_, answer.reason)
        elif isinstance(answer, JSONRPCError):
            body = {"code": answer.code, "message": answer.message, "data": answer.data}
            self._outstanding.resolve(jsonrpc.Message("error", id_, body=body))
        else:
            self._outstanding.resolve(jsonrpc.Message("result", id_, body=answer))

    def _notified(self, method: str, params: Json) -> None:
        if self._process is not None:
            self._inbound.on_notification(method, params)

    async def notify(self, method: str, params: Json) -> None:
        if self._process is None or not self._process.alive:
            raise TransportError("the process has ended", Certainty.NOT_SENT, code="E-STDIO-BROKEN")


class HttpLink:
    def __init__(self, server: SimServer) -> None:
        self._server = server
        self._dice = server.dice
        self._session: str | None = None
        self._era: Era | None = None
        self._waiting: dict[asyncio.Future[Answer], Request] = {}
        self._closed = False

    async def open(self, inbound: InboundHandler) -> None:
        self._loop = asyncio.get_running_loop()
        self._inbound = inbound

    async def wait_closed(self) -> Disconnect:
        never: asyncio.Future[Disconnect] = asyncio.get_running_loop().create_future()
        return await never

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        calls = sum(request.method == "tools/call" for request in self._waiting.values())
        if calls:
            self._server.history.add(Cut(self._loop.time(), self._server.name, calls))
        for answer in self._waiting:
            if not answer.done():
                answer.set_result(TransportError("closed by us", Certainty.UNKNOWN, code="E-CLOSED"))
        await asyncio.sleep(0)

    def set_protocol(self, era: Era, version: str) -> None:
        self._era = era
        if era == "modern":
            self._session = None

    def reset_session(self) -> None:
        self._session = None

    def info(self) -> TransportInfo:
        return TransportInfo()

    # -- requests -----------------------------------------------------------------------------------------------------

    async def request(self, request: Request) -> Json:
        request.call_state.phase = "send"
        fate = self._server.fate(request.method)
        process = await self._connect(fate)
        answer: asyncio.Future[Answer] = self._loop.create_future()
        exchange = self._exchange(request, fate, answer)
        _leave(self._server, request, exchange)
        self._loop.call_later(ticks(self._dice, 0, self._server.traits.way), process.take, exchange)
        self._waiting[answer] = request
        try:
            return self._read(request, await answer)
        except asyncio.CancelledError:
            if not (request.silent_cancel and self._era == "legacy"):
                self._loop.call_later(ticks(self._dice, 0, self._server.traits.way), process.drop, exchange)
            raise
        finally:
            del self._waiting[answer]

    async def _connect(self, fate: Fate) -> Process:
        if self._dice.random() < BUSY:
            await asyncio.sleep(ticks(self._dice, 0, 32))
        process = self._server.reach()
        if process is None or self._closed or fate is Fate.UNSENT:
            raise TransportError("the connection was refused", Certainty.NOT_SENT, code="E-HTTP-CONNECT")
        return process

    def _exchange(self, request: Request, fate: Fate, answer: asyncio.Future[Answer]) -> Exchange:
        def answered(found: Answer) -> None:
            if not answer.done():
                answer.set_result(found)

        session = self._session if request.version is None and request.method != "initialize" else None
        return Exchange(
            request.method, request.params, fate, self._loop.time(), answered, self._notified, session=session
        )

    def _read(self, request: Request, answer: Answer) -> Json:
        if isinstance(answer, Exception):
            raise answer
        if request.method == "initialize":
            self._session = answer["session"]
        return answer

    def _notified(self, method: str, params: Json) -> None:
        if not self._closed:
            self._inbound.on_notification(method, params)

    async def notify(self, method: str, params: Json) -> None:
        if self._server.reach() is None:
            raise TransportError("the connection was refused", Certainty.NOT_SENT, code="E-HTTP-CONNECT")
