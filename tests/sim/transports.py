"""The near side of the simulated servers: links that keep the rules of `upstream/transport.py`.

A pipe keeps its requests in the real `Outstanding`; an HTTP endpoint has one connection per request. Both say that a
request may run (C2) at the moment its bytes leave, and not before.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.sim.faults import Fate, Later, ticks
from tests.sim.history import Cut, Sent
from tests.sim.servers import Answer, Exchange, Process, SimServer
from toolway.protocol import jsonrpc
from toolway.types import CallState, Certainty, Era, Json
from toolway.upstream.transport import (
    Disconnect,
    ExchangeListener,
    InboundHandler,
    JSONRPCError,
    Request,
    RequestExchange,
    TransportError,
    TransportInfo,
)
from toolway.upstream.transports.pending_requests import PendingRequests, StreamExchange

BUSY: Final = 0.2  # how often a pipe is full, or a connection has to be made first


def link_to(server: SimServer) -> PipeLink | HttpLink:
    return PipeLink(server) if server.traits.transport == "pipe" else HttpLink(server)


def _leave(server: SimServer, request: Request, exchange: Exchange, ours: RequestExchange) -> None:
    """The bytes leave us."""
    ours.mark_sent()
    if request.method == "tools/call":
        server.history.add(Sent(exchange.sent, server.name, exchange.nonce, exchange.call))


@dataclass(eq=False, slots=True)
class _Frame:
    """A request in the pipe, or still before it."""

    ours: StreamExchange
    request: Request
    fate: Fate
    waiting: Later | None = None
    exchange: Exchange | None = None  # once it has left


class _HttpExchange(RequestExchange):
    """A request on its own connection."""

    __slots__ = ("answer", "drop", "waiter")

    def __init__(self, id: int, call_state: CallState | None, listener: ExchangeListener | None) -> None:
        super().__init__(id, call_state, listener)
        self.answer: Answer | None = None
        self.waiter: asyncio.Future[Answer] | None = None
        self.drop: Callable[[], None] = _nothing

    async def outcome(self) -> Answer:
        if self.answer is not None:
            return self.answer
        self.waiter = asyncio.get_running_loop().create_future()
        return await self.waiter


def _nothing() -> None:
    return None


class PipeLink:
    def __init__(self, server: SimServer) -> None:
        self._server = server
        self._dice = server.dice
        self._outstanding = PendingRequests()
        self._process: Process | None = None
        self._loss: asyncio.Future[Disconnect] | None = None
        self._calls: dict[int, _Frame] = {}  # tool calls running

    async def open(self, inbound: InboundHandler) -> None:
        self._loop = asyncio.get_running_loop()
        self._opened = self._loop.time()
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
            self._server.history.add(Cut(self._loop.time(), self._server.name, len(self._calls), self._opened))
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

    def start(self, request: Request, listener: ExchangeListener | None) -> StreamExchange:
        if self._loss is None or self._loss.done() or self._process is None:
            raise TransportError("the connection to the server has ended", Certainty.NOT_SENT, code="E-STDIO-BROKEN")
        fate = self._server.fate(request.method)
        if fate is Fate.UNSENT:
            raise TransportError("the line to the server is full", Certainty.NOT_SENT, code="E-STDIO-FULL")
        ours = self._outstanding.start(request, listener)
        ours.line = frame = _Frame(ours, request, fate)  # type: ignore[assignment]  # our own frame
        try:
            self._write(frame)
        except BaseException:
            ours.listener = None
            self._outstanding.remove(ours.id)
            raise
        return ours

    async def wait(self, exchange: RequestExchange, request: Request) -> Json:
        assert isinstance(exchange, StreamExchange)
        try:
            return await exchange.future
        except asyncio.CancelledError:
            self._take_back(exchange, request)
            raise
        finally:
            self._outstanding.remove(exchange.id)
            self._calls.pop(exchange.id, None)

    def abandon(self, exchange: RequestExchange, request: Request) -> None:
        assert isinstance(exchange, StreamExchange)
        self._outstanding.remove(exchange.id)
        self._calls.pop(exchange.id, None)
        self._take_back(exchange, request)

    async def request(self, request: Request) -> Json:
        return await self.wait(self.start(request, None), request)

    def _write(self, frame: _Frame) -> None:
        if self._dice.random() < BUSY:
            frame.waiting = Later(self._dice, ticks(self._dice, 0, 32), lambda: self._written(frame))
        elif not self._written(frame):
            raise TransportError("the process has ended", Certainty.NOT_SENT, code="E-STDIO-BROKEN")

    def _written(self, frame: _Frame) -> bool:
        """The pipe takes all of it, unless its other end is closed; then the end of the link fails it."""
        frame.waiting = None
        process = self._process
        if process is None or (not process.alive and self._dice.random() < 0.5):
            return False
        frame.exchange = self._exchange(frame)
        _leave(self._server, frame.request, frame.exchange, frame.ours)
        if frame.request.method == "tools/call":
            self._calls[frame.ours.id] = frame
        self._loop.call_later(ticks(self._dice, 0, self._server.traits.way), process.take, frame.exchange)
        return True

    def _exchange(self, frame: _Frame) -> Exchange:
        return Exchange(
            frame.request.method,
            frame.request.params,
            frame.fate,
            self._loop.time(),
            lambda answer: self._answered(frame.ours.id, answer),
            self._notified,
        )

    def _take_back(self, ours: StreamExchange, request: Request) -> None:
        frame = ours.line
        assert isinstance(frame, _Frame)
        if frame.waiting is not None:
            frame.waiting.cancel()
        elif frame.exchange is not None and self._process is not None and not request.silent_cancel:
            way = ticks(self._dice, 0, self._server.traits.way)
            self._loop.call_later(way, self._process.drop, frame.exchange)

    def _answered(self, id_: int, answer: Answer) -> None:
        if isinstance(answer, TransportError):
            self._outstanding.reject(id_, answer.reason)
        elif isinstance(answer, JSONRPCError):
            body = {"code": answer.code, "message": answer.message, "data": answer.data}
            self._outstanding.resolve(jsonrpc.Message("error", id_, body=body))
        else:
            frame = jsonrpc.encode_result(id_, answer)
            self._outstanding.resolve(jsonrpc.parse_message(frame), frame)
        self._calls.pop(id_, None)

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
        self._waiting: dict[_HttpExchange, Request] = {}
        self._ids = itertools.count(1)
        self._closed = False

    async def open(self, inbound: InboundHandler) -> None:
        self._loop = asyncio.get_running_loop()
        self._opened = self._loop.time()
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
            self._server.history.add(Cut(self._loop.time(), self._server.name, calls, self._opened))
        for exchange in tuple(self._waiting):
            self._answered(exchange, TransportError("closed by us", Certainty.UNKNOWN, code="E-CLOSED"))
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
        exchange = _HttpExchange(next(self._ids), request.call_state, None)
        self._send(exchange, request, fate, process)
        return await self.wait(exchange, request)

    def start(self, request: Request, listener: ExchangeListener) -> _HttpExchange | None:
        """Not if a connection has to be made first."""
        if self._closed or self._dice.random() < BUSY:
            return None
        fate, process = self._server.fate(request.method), self._server.reach()
        if process is None or fate is Fate.UNSENT:
            raise TransportError("the connection was refused", Certainty.NOT_SENT, code="E-HTTP-CONNECT")
        exchange = _HttpExchange(next(self._ids), None, listener)
        self._send(exchange, request, fate, process)
        return exchange

    def _send(self, ours: _HttpExchange, request: Request, fate: Fate, process: Process) -> None:
        exchange = self._exchange(request, fate, ours)
        _leave(self._server, request, exchange, ours)
        self._loop.call_later(ticks(self._dice, 0, self._server.traits.way), process.take, exchange)
        ours.drop = lambda: process.drop(exchange)
        self._waiting[ours] = request

    async def wait(self, exchange: RequestExchange, request: Request) -> Json:
        assert isinstance(exchange, _HttpExchange)
        try:
            return self._read(exchange, request, await exchange.outcome())
        except asyncio.CancelledError:
            self.abandon(exchange, request)
            raise
        finally:
            self._waiting.pop(exchange, None)

    def abandon(self, exchange: RequestExchange, request: Request) -> None:
        assert isinstance(exchange, _HttpExchange)
        self._waiting.pop(exchange, None)
        if not (request.silent_cancel and self._era == "legacy"):
            self._loop.call_later(ticks(self._dice, 0, self._server.traits.way), exchange.drop)

    async def _connect(self, fate: Fate) -> Process:
        if self._dice.random() < BUSY:
            await asyncio.sleep(ticks(self._dice, 0, 32))
        process = self._server.reach()
        if process is None or self._closed or fate is Fate.UNSENT:
            raise TransportError("the connection was refused", Certainty.NOT_SENT, code="E-HTTP-CONNECT")
        return process

    def _exchange(self, request: Request, fate: Fate, ours: _HttpExchange) -> Exchange:
        session = self._session if request.version is None and request.method != "initialize" else None
        return Exchange(
            request.method,
            request.params,
            fate,
            self._loop.time(),
            lambda answer: self._answered(ours, answer),
            self._notified,
            session=session,
        )

    def _answered(self, ours: _HttpExchange, answer: Answer) -> None:
        if ours.answer is not None:
            return
        ours.answer = answer
        if not isinstance(answer, Exception):
            ours.frame = jsonrpc.encode_result(ours.id, answer)
            ours.result = jsonrpc.parse_message(ours.frame).body
        listener, ours.listener = ours.listener, None
        if ours.waiter is not None and not ours.waiter.done():
            ours.waiter.set_result(answer)
        elif listener is not None:
            self._waiting.pop(ours, None)
            if ours.result is not None:
                listener.arrived(ours.result, ours.frame)
            else:
                listener.failed()

    def _read(self, ours: _HttpExchange, request: Request, answer: Answer) -> Json:
        if isinstance(answer, Exception):
            raise answer
        if request.method == "initialize":
            self._session = answer["session"]
        return ours.take_result()

    def _notified(self, method: str, params: Json) -> None:
        if not self._closed:
            self._inbound.on_notification(method, params)

    async def notify(self, method: str, params: Json) -> None:
        if self._server.reach() is None:
            raise TransportError("the connection was refused", Certainty.NOT_SENT, code="E-HTTP-CONNECT")
