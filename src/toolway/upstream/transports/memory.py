"""Transport to an SDK `MCPServer` or `Server` object in this process, over memory streams.

The message classes are the SDK's, but params and results stay plain dictionaries, so no field is lost.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from anyio import BrokenResourceError, ClosedResourceError, EndOfStream
from mcp.client._memory import InMemoryTransport
from mcp.shared.message import SessionMessage
from mcp_types import ErrorData, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse
from mcp_types import JSONRPCError as JSONRPCErrorMessage

from toolway.config.schema import Server
from toolway.protocol import jsonrpc
from toolway.protocol.cancellation import CANCELLED, cancellation_params
from toolway.types import Certainty, Era, Json
from toolway.upstream.transport import (
    Disconnect,
    InboundHandler,
    JSONRPCError,
    Request,
    TransportError,
    TransportInfo,
    TransportServices,
    require_may_send,
)
from toolway.upstream.transports.pending_requests import PendingRequests


def create(server: Server, services: TransportServices) -> MemoryTransport:
    """Return an unopened in-process transport, for the registry in `transports/__init__.py`."""
    return MemoryTransport(server)


class MemoryTransport:
    """Transport to an SDK server object in this process, over memory streams."""

    def __init__(self, server: Server) -> None:
        self._server = server.instance
        self._pending = PendingRequests()
        self._messages_sent = 0
        self._messages_received = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._session_task: asyncio.Task[None] | None = None

    async def open(self, inbound: InboundHandler) -> None:
        self._inbound = inbound
        loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = loop.create_future()
        self._disconnected: asyncio.Future[Disconnect] = loop.create_future()
        self._closing = asyncio.Event()
        self._session_task = loop.create_task(self._run_session())
        await asyncio.shield(self._opened)

    async def _run_session(self) -> None:
        """Run the SDK's memory transport until it ends: the SDK requires enter and exit in one task."""
        disconnect = Disconnect("closed by us", "E-CLOSED")
        try:
            async with InMemoryTransport(self._server) as (reader, writer):
                self._writer: Any = writer
                self._opened.set_result(None)
                reading = asyncio.create_task(self._read(reader))
                closing = asyncio.create_task(self._closing.wait())
                await asyncio.wait({reading, closing}, return_when=asyncio.FIRST_COMPLETED)
                if not closing.done():
                    disconnect = Disconnect("the server object ended its session", "E-MEMORY-ENDED")
                for task in (reading, closing):
                    task.cancel()
                await asyncio.gather(reading, closing, return_exceptions=True)
        except Exception as exc:
            disconnect = Disconnect(f"the server object failed: {exc!r}", "E-MEMORY-FAILED")
        if not self._opened.done():
            self._opened.set_exception(TransportError(disconnect.reason, Certainty.NOT_SENT, code=disconnect.code))
        self._disconnected.set_result(disconnect)
        self._pending.fail_all(disconnect.reason, disconnect.code)

    async def _read(self, reader: Any) -> None:
        with suppress(EndOfStream, ClosedResourceError):
            async for item in reader:
                if isinstance(item, SessionMessage):
                    self._on_message(item.message)

    def _on_message(self, message: Any) -> None:
        self._messages_received += 1
        if isinstance(message, JSONRPCResponse):
            self._pending.resolve(jsonrpc.Message("result", message.id, body=message.result))
        elif isinstance(message, JSONRPCErrorMessage):
            self._pending.resolve(jsonrpc.Message("error", message.id, body=message.error.model_dump(by_alias=True)))
        elif isinstance(message, JSONRPCNotification):
            self._inbound.on_notification(message.method, message.params or {})
        elif isinstance(message, JSONRPCRequest):
            task = asyncio.create_task(self._handle_server_request(message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _handle_server_request(self, message: JSONRPCRequest) -> None:
        try:
            result = await self._inbound.on_request(message.method, message.params or {})
            if result is not None:
                await self._send(JSONRPCResponse(jsonrpc="2.0", id=message.id, result=result))
        except JSONRPCError as exc:
            error = ErrorData(code=exc.code, message=exc.message, data=exc.data)
            await self._send(JSONRPCErrorMessage(jsonrpc="2.0", id=message.id, error=error))

    async def _send(self, message: Any) -> None:
        try:
            await self._writer.send(SessionMessage(message))
            self._messages_sent += 1
        except (ClosedResourceError, BrokenResourceError):
            raise TransportError("the server object has ended", Certainty.NOT_SENT, code="E-MEMORY-ENDED") from None

    async def request(self, request: Request) -> Json:
        require_may_send(request.call_state)
        id_, result = self._pending.add(request)
        request.call_state.phase = "send"
        try:
            # The send may wait until the server has received earlier messages. Once begun, it cannot be undone.
            request.call_state.certainty = Certainty.UNKNOWN
            await self._send(JSONRPCRequest(jsonrpc="2.0", id=id_, method=request.method, params=request.params))
            request.call_state.phase = "server"
            return await result
        except asyncio.CancelledError:
            if not request.silent_cancel:
                task = asyncio.create_task(self._notify_cancelled(id_))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            raise
        finally:
            self._pending.remove(id_)

    async def _notify_cancelled(self, id_: int) -> None:
        with suppress(TransportError):
            await self.notify(CANCELLED, cancellation_params(id_))

    async def notify(self, method: str, params: Json) -> None:
        await self._send(JSONRPCNotification(jsonrpc="2.0", method=method, params=params))

    def set_protocol(self, era: Era, version: str) -> None:
        """Do nothing: memory streams carry the messages of both protocol eras."""

    def reset_session(self) -> None:
        """Do nothing: the memory stream is the session."""

    async def wait_closed(self) -> Disconnect:
        return await asyncio.shield(self._disconnected)

    def info(self) -> TransportInfo:
        return TransportInfo(
            unmatched_responses=self._pending.dropped,
            messages_sent=self._messages_sent,
            messages_received=self._messages_received,
        )

    async def close(self) -> None:
        if self._session_task is None:
            return
        self._closing.set()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.wait({self._session_task}, timeout=3.0)
        self._session_task.cancel()
        await asyncio.gather(self._session_task, return_exceptions=True)
