"""A server that is an object in this process: an SDK `MCPServer` or `Server`, over the SDK's own memory streams.

The envelopes are the SDK's here, but params and results stay plain dictionaries, so nothing is lost in between.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from anyio import BrokenResourceError, ClosedResourceError, EndOfStream
from mcp.client._memory import InMemoryTransport
from mcp.shared.message import SessionMessage
from mcp_types import ErrorData, JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from toolway.config.spec import Server
from toolway.model import Certainty, Era, Json
from toolway.protocol import wire
from toolway.upstream.link import Fault, Inbound, LinkFacts, Loss, Request, RpcError
from toolway.upstream.transports.outstanding import Outstanding


class MemoryLink:
    def __init__(self, server: Server) -> None:
        self._server = server.instance
        self._outstanding = Outstanding()
        self._asks: set[asyncio.Task[None]] = set()
        self._owner: asyncio.Task[None] | None = None

    async def open(self, inbound: Inbound) -> None:
        self._inbound = inbound
        loop = asyncio.get_running_loop()
        self._up: asyncio.Future[None] = loop.create_future()
        self._loss: asyncio.Future[Loss] = loop.create_future()
        self._closing = asyncio.Event()
        self._owner = loop.create_task(self._own())
        await asyncio.shield(self._up)

    async def _own(self) -> None:
        """Enter and leave the SDK's transport in one task, as it demands."""
        loss = Loss("closed by us", "E-CLOSED")
        try:
            async with InMemoryTransport(self._server) as (reader, writer):
                self._writer: Any = writer
                self._up.set_result(None)
                reading = asyncio.create_task(self._read(reader))
                closing = asyncio.create_task(self._closing.wait())
                await asyncio.wait({reading, closing}, return_when=asyncio.FIRST_COMPLETED)
                if not closing.done():
                    loss = Loss("the server object ended its session", "E-MEMORY-ENDED")
                for task in (reading, closing):
                    task.cancel()
                await asyncio.gather(reading, closing, return_exceptions=True)
        except Exception as exc:
            loss = Loss(f"the server object failed: {exc!r}", "E-MEMORY-FAILED")
        if not self._up.done():
            self._up.set_exception(Fault(loss.reason, Certainty.C0, code=loss.code))
        self._loss.set_result(loss)
        self._outstanding.fail_all(loss.reason, loss.code)

    async def _read(self, reader: Any) -> None:
        with suppress(EndOfStream, ClosedResourceError):
            async for item in reader:
                if isinstance(item, SessionMessage):
                    self._on_message(item.message)

    def _on_message(self, message: Any) -> None:
        if isinstance(message, JSONRPCResponse):
            self._outstanding.settle(wire.Message("result", message.id, body=message.result))
        elif isinstance(message, JSONRPCError):
            self._outstanding.settle(wire.Message("error", message.id, body=message.error.model_dump(by_alias=True)))
        elif isinstance(message, JSONRPCNotification):
            self._inbound.on_notification(message.method, message.params or {})
        elif isinstance(message, JSONRPCRequest):
            task = asyncio.create_task(self._answer(message))
            self._asks.add(task)
            task.add_done_callback(self._asks.discard)

    async def _answer(self, message: JSONRPCRequest) -> None:
        try:
            answer = await self._inbound.on_request(message.method, message.params or {})
            if answer is not None:
                await self._put(JSONRPCResponse(jsonrpc="2.0", id=message.id, result=answer))
        except RpcError as exc:
            error = ErrorData(code=exc.code, message=exc.message, data=exc.data)
            await self._put(JSONRPCError(jsonrpc="2.0", id=message.id, error=error))

    async def _put(self, message: Any) -> None:
        try:
            await self._writer.send(SessionMessage(message))
        except (ClosedResourceError, BrokenResourceError):
            raise Fault("the server object has ended", Certainty.C0, code="E-MEMORY-ENDED") from None

    async def request(self, request: Request) -> Json:
        id_, answer = self._outstanding.add(request)
        request.attempt.phase = "send"
        try:
            # Handing over may wait for the server to take earlier messages, and once begun it cannot be taken back.
            request.attempt.certainty = Certainty.C2
            await self._put(JSONRPCRequest(jsonrpc="2.0", id=id_, method=request.method, params=request.params))
            request.attempt.phase = "server"
            return await answer
        except asyncio.CancelledError:
            if not request.quiet:
                task = asyncio.create_task(self._tell_cancelled(id_))
                self._asks.add(task)
                task.add_done_callback(self._asks.discard)
            raise
        finally:
            self._outstanding.forget(id_)

    async def _tell_cancelled(self, id_: int) -> None:
        with suppress(Fault):
            await self.notify("notifications/cancelled", {"requestId": id_})

    async def notify(self, method: str, params: Json) -> None:
        await self._put(JSONRPCNotification(jsonrpc="2.0", method=method, params=params))

    def adopt(self, era: Era, version: str) -> None:
        """Nothing to do: the streams carry both eras."""

    def forget_session(self) -> None:
        """Nothing to do: the session is the stream."""

    async def wait_lost(self) -> Loss:
        return await asyncio.shield(self._loss)

    def facts(self) -> LinkFacts:
        return LinkFacts(dropped=self._outstanding.dropped)

    async def close(self) -> None:
        if self._owner is None:
            return
        self._closing.set()
        for task in tuple(self._asks):
            task.cancel()
        await asyncio.wait({self._owner}, timeout=3.0)
        self._owner.cancel()
        await asyncio.gather(self._owner, return_exceptions=True)
