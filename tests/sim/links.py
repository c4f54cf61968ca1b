"""The near side of the simulated servers: links that keep the rules of `upstream/link.py`.

A pipe keeps its requests in the real `Outstanding`; an HTTP endpoint has one connection per request. Both say that a
request may be executed (C2) at the moment its bytes leave, and not before.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from tests.sim.history import Cut, Sent
from tests.sim.servers import Answer, Exchange, Process, SimServer
from tests.sim.weather import Fate, Later, ticks
from toolway.model import Certainty, Era, Json
from toolway.protocol import wire
from toolway.upstream.link import Fault, Inbound, LinkFacts, Loss, Request, RpcError
from toolway.upstream.transports.outstanding import Outstanding

BUSY: Final = 0.2  # how often a pipe is full, or a connection has to be made first


def link_to(server: SimServer) -> PipeLink | HttpLink:
    return PipeLink(server) if server.traits.transport == "pipe" else HttpLink(server)


def _leave(server: SimServer, request: Request, exchange: Exchange) -> None:
    """The bytes leave us."""
    request.attempt.certainty = Certainty.C2
    request.attempt.phase = "server"
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
        self._outstanding = Outstanding()
        self._process: Process | None = None
        self._loss: asyncio.Future[Loss] | None = None
        self._calls: dict[int, _Frame] = {}  # tool calls under way

    async def open(self, inbound: Inbound) -> None:
        self._loop = asyncio.get_running_loop()
        self._inbound = inbound
        self._loss = self._loop.create_future()
        await asyncio.sleep(ticks(self._dice, 0, 4))
        if self._server.weather.strikes(0.2):
            self._server.struck("failing start")
            raise Fault("the process could not be started", Certainty.C0, code="E-STDIO-SPAWN")
        self._process = self._server.start(self._on_end)

    async def wait_lost(self) -> Loss:
        assert self._loss is not None
        return await asyncio.shield(self._loss)

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if self._calls and process.alive:
            self._server.history.add(Cut(self._loop.time(), self._server.name, len(self._calls)))
        self._lose(Loss("closed by us", "E-CLOSED"))
        try:
            await asyncio.sleep(ticks(self._dice, 0, 64 * 6) if process.alive else 0)  # it may finish what it has begun
        finally:
            process.end()

    def adopt(self, era: Era, version: str) -> None:
        """Nothing to do, as on a real pipe."""

    def forget_session(self) -> None:
        """Nothing to do, as on a real pipe."""

    def facts(self) -> LinkFacts:
        pid = self._server.processes if self._process is not None else None
        return LinkFacts(pid=pid, dropped=self._outstanding.dropped)

    def _on_end(self) -> None:
        news = ticks(self._dice, 0, 16)
        self._loop.call_later(news, self._lose, Loss("the process ended with exit code 1", "E-STDIO-EXIT", exit_code=1))

    def _lose(self, loss: Loss) -> None:
        assert self._loss is not None
        if not self._loss.done():
            self._loss.set_result(loss)
            self._outstanding.fail_all(loss.reason, loss.code, loss.fix)

    # -- requests -----------------------------------------------------------------------------------------------------

    async def request(self, request: Request) -> Json:
        if self._loss is None or self._loss.done() or self._process is None:
            raise Fault("the link to the server has ended", Certainty.C0, code="E-STDIO-BROKEN")
        fate = self._server.fate(request.method)
        if fate is Fate.UNSENT:
            raise Fault("the line to the server is full", Certainty.C0, code="E-STDIO-FULL")
        id_, answer = self._outstanding.add(request)
        frame = _Frame(id_, request, fate)
        request.attempt.phase = "send"
        try:
            self._write(frame)
            return await answer
        except asyncio.CancelledError:
            self._take_back(frame)
            raise
        finally:
            self._outstanding.forget(id_)
            self._calls.pop(id_, None)

    def _write(self, frame: _Frame) -> None:
        if self._dice.random() < BUSY:
            frame.waiting = Later(self._dice, ticks(self._dice, 0, 32), lambda: self._written(frame))
        elif not self._written(frame):
            raise Fault("the process has ended", Certainty.C0, code="E-STDIO-BROKEN")

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
        elif frame.exchange is not None and self._process is not None and not frame.request.quiet:
            way = ticks(self._dice, 0, self._server.traits.way)
            self._loop.call_later(way, self._process.drop, frame.exchange)

    def _answered(self, id_: int, answer: Answer) -> None:
        if isinstance(answer, Fault):
            self._outstanding.spoil(id_, answer.reason)
        elif isinstance(answer, RpcError):
            body = {"code": answer.code, "message": answer.message, "data": answer.data}
            self._outstanding.settle(wire.Message("error", id_, body=body))
        else:
            self._outstanding.settle(wire.Message("result", id_, body=answer))

    def _notified(self, method: str, params: Json) -> None:
        if self._process is not None:
            self._inbound.on_notification(method, params)

    async def notify(self, method: str, params: Json) -> None:
        if self._process is None or not self._process.alive:
            raise Fault("the process has ended", Certainty.C0, code="E-STDIO-BROKEN")


class HttpLink:
    def __init__(self, server: SimServer) -> None:
        self._server = server
        self._dice = server.dice
        self._session: str | None = None
        self._era: Era | None = None
        self._waiting: dict[asyncio.Future[Answer], Request] = {}
        self._closed = False

    async def open(self, inbound: Inbound) -> None:
        self._loop = asyncio.get_running_loop()
        self._inbound = inbound

    async def wait_lost(self) -> Loss:
        never: asyncio.Future[Loss] = asyncio.get_running_loop().create_future()
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
                answer.set_result(Fault("closed by us", Certainty.C2, code="E-CLOSED"))
        await asyncio.sleep(0)

    def adopt(self, era: Era, version: str) -> None:
        self._era = era
        if era == "modern":
            self._session = None

    def forget_session(self) -> None:
        self._session = None

    def facts(self) -> LinkFacts:
        return LinkFacts()

    # -- requests -----------------------------------------------------------------------------------------------------

    async def request(self, request: Request) -> Json:
        request.attempt.phase = "send"
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
            if not (request.quiet and self._era == "handshake"):
                self._loop.call_later(ticks(self._dice, 0, self._server.traits.way), process.drop, exchange)
            raise
        finally:
            del self._waiting[answer]

    async def _connect(self, fate: Fate) -> Process:
        if self._dice.random() < BUSY:
            await asyncio.sleep(ticks(self._dice, 0, 32))
        process = self._server.reach()
        if process is None or self._closed or fate is Fate.UNSENT:
            raise Fault("the connection was refused", Certainty.C0, code="E-HTTP-CONNECT")
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
            raise Fault("the connection was refused", Certainty.C0, code="E-HTTP-CONNECT")
