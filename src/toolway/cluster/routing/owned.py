"""Transports to a server itself: for its owner node, and for any node if it is stateless."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from toolway.cluster.db.instances import Ownership
from toolway.cluster.replication.catalog import SharedCatalog, answer_catalog_request
from toolway.types import Certainty, Era, Json
from toolway.upstream.transport import (
    SERVER_MOVED,
    Disconnect,
    ExchangeListener,
    InboundHandler,
    Request,
    RequestExchange,
    StartingTransport,
    Transport,
    TransportError,
    TransportInfo,
)

DRAIN_TIMEOUT_S: Final = 30.0  # seconds for calls in flight when a server is handed over
_STREAM_METHODS: Final = frozenset({"subscriptions/listen"})  # open as long as the transport; not waited for


class TransportWrapper:
    """Transport that passes everything to an inner transport; subclasses override parts."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._starting = transport if isinstance(transport, StartingTransport) else None

    async def open(self, inbound: InboundHandler) -> None:
        await self._transport.open(inbound)

    def start(self, request: Request, listener: ExchangeListener) -> RequestExchange | None:
        """Send a request without a coroutine and return its exchange, which gets the outcome.

        None if the inner transport cannot do that. Nothing was sent then; await `request` instead.
        """
        inner = self._starting
        return inner.start(request, listener) if inner is not None else None

    async def wait(self, exchange: RequestExchange, request: Request) -> Json:
        assert self._starting is not None  # `start` sent it
        return await self._starting.wait(exchange, request)

    def abandon(self, exchange: RequestExchange, request: Request) -> None:
        assert self._starting is not None
        self._starting.abandon(exchange, request)

    async def notify(self, method: str, params: Json) -> None:
        await self._transport.notify(method, params)

    def set_protocol(self, era: Era, version: str) -> None:
        self._transport.set_protocol(era, version)

    def reset_session(self) -> None:
        self._transport.reset_session()

    async def wait_closed(self) -> Disconnect:
        return await self._transport.wait_closed()

    def info(self) -> TransportInfo:
        return self._transport.info()

    async def close(self) -> None:
        await self._transport.close()


class OwnedTransport(TransportWrapper):
    """Transport to a server that this node owns, valid as long as the node owns it.

    Rule 1. The lease is checked before each request; nothing is sent to a server that we no longer own.
    Rule 2. A draining server accepts no new calls, and its calls in flight get time to finish.

    `is_owned()` returns True while this node owns the instance under this fence.
    """

    def __init__(self, ownership: Ownership, transport: Transport, is_owned: Callable[[], bool]) -> None:
        super().__init__(transport)
        self.ownership = ownership
        self._is_owned = is_owned
        self._calls_in_flight = 0
        self._idle = asyncio.Event()
        self._draining = False
        self._stopped = asyncio.Event()
        self._started: dict[RequestExchange, _CountedListener] = {}  # calls that `start` sent and that are in flight

    async def request(self, request: Request) -> Json:
        if self._draining:
            await self._stopped.wait()  # then the next owner executes it
        if self._stopped.is_set() or not self._is_owned():
            raise moved_error(self.ownership.instance.server)
        if request.method in _STREAM_METHODS:
            return await self._transport.request(request)
        self._calls_in_flight += 1
        try:
            return await self._transport.request(request)
        finally:
            self._calls_in_flight -= 1
            if not self._calls_in_flight:
                self._idle.set()

    def start(self, request: Request, listener: ExchangeListener) -> RequestExchange | None:
        if self._draining or self._stopped.is_set() or not self._is_owned():
            return None  # `request` waits or says why
        counted = _CountedListener(self, listener)
        exchange = super().start(request, counted)
        if exchange is not None:
            self._calls_in_flight += 1
            self._started[exchange] = counted
            counted.exchange = exchange
        return exchange

    async def wait(self, exchange: RequestExchange, request: Request) -> Json:
        try:
            return await super().wait(exchange, request)
        finally:
            self.end_started(exchange)

    def abandon(self, exchange: RequestExchange, request: Request) -> None:
        super().abandon(exchange, request)
        self.end_started(exchange)

    def end_started(self, exchange: RequestExchange) -> None:
        """Count a call sent by `start` as finished, unless it was counted already."""
        if self._started.pop(exchange, None) is not None:
            self._calls_in_flight -= 1
            if not self._calls_in_flight:
                self._idle.set()

    async def notify(self, method: str, params: Json) -> None:
        if not self._is_owned():
            raise moved_error(self.ownership.instance.server)
        await super().notify(method, params)

    async def drain(self) -> None:
        """Accept no new calls; return when no call is in flight or after `DRAIN_TIMEOUT_S` seconds."""
        self._draining = True
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                while self._calls_in_flight:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            pass

    def stop(self) -> None:
        """Reject all requests from now on: the server has another owner."""
        self._draining = False
        self._stopped.set()

    async def close(self) -> None:
        self.stop()
        await super().close()


class _CountedListener:
    """Receives the outcome of a call that `OwnedTransport.start` sent.

    It passes the outcome on, and counts the call as no longer in flight if a result arrived.
    """

    __slots__ = ("_listener", "_transport", "exchange")

    def __init__(self, transport: OwnedTransport, listener: ExchangeListener) -> None:
        self._transport = transport
        self._listener = listener
        self.exchange: RequestExchange | None = None

    def arrived(self, result: Json, frame: bytes) -> None:
        self._listener.arrived(result, frame)
        if self.exchange is not None and self.exchange.call_state is None:  # else the pipeline has taken the call over
            self._transport.end_started(self.exchange)

    def failed(self) -> None:
        self._listener.failed()  # the pipeline takes the call over: `wait` or `abandon` follows


def moved_error(server: str) -> TransportError:
    """Return the error for a request to a server that this node no longer owns."""
    return TransportError(f"{server} has a new owner node", Certainty.NOT_SENT, code=SERVER_MOVED)


class DirectTransport(TransportWrapper):
    """Transport to a stateless server, for nodes that do not own it.

    Calls go to the server itself. Its lists and description come from the database, where the owner stored them.
    """

    def __init__(self, server: str, transport: Transport, catalog: SharedCatalog) -> None:
        super().__init__(transport)
        self._server = server
        self._catalog = catalog

    async def request(self, request: Request) -> Json:
        result = answer_catalog_request(self._catalog, self._server, request)
        return result if result is not None else await self._transport.request(request)


class OwnerTransportBase:
    """Base of transports that send requests to the node that owns a server.

    That node acts as a modern MCP server: it has no session and gets no notifications.
    """

    async def notify(self, method: str, params: Json) -> None:
        """Do nothing: the owner node does not need notifications."""

    def set_protocol(self, era: Era, version: str) -> None:
        """Do nothing: each request carries its protocol version."""

    def reset_session(self) -> None:
        """Do nothing: requests between nodes use no session."""

    async def wait_closed(self) -> Disconnect:
        """Wait forever: requests fail one by one, and the transport itself is never lost."""
        never: asyncio.Future[Disconnect] = asyncio.get_running_loop().create_future()
        return await never
