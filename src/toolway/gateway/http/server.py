"""Listening: connections, what each may cost, and the end of it in order."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import OrderedDict
from contextlib import suppress
from typing import Final

from toolway.gateway.http.connection import Connection, Handler
from toolway.gateway.http.limits import HttpLimits

SWEEP: Final = 1.0  # seconds between two looks at who is slow
BACKLOG: Final = 4096


class HttpServer:
    def __init__(self, handler: Handler, limits: HttpLimits | None = None) -> None:
        self.handler = handler
        self.limits = limits if limits is not None else HttpLimits()
        self.draining = False
        self._connections: set[Connection] = set()
        self._reading: set[Connection] = set()
        self._idle: OrderedDict[Connection, float] = OrderedDict()  # and since when, the longest first
        self._reserved = 0
        self._listeners: list[asyncio.Server] = []
        self.busy = 0  # how many are being answered
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._empty = asyncio.Event()
        self._sweeper: asyncio.Task[None] | None = None

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Accept connections; the port that was given where 0 was asked for. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(
            lambda: Connection(self), host, port, ssl=tls, backlog=BACKLOG, reuse_address=True
        )
        self._listeners.append(listener)
        if self._sweeper is None:
            self._sweeper = loop.create_task(self._sweep())
        for sock in listener.sockets:
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return int(listener.sockets[0].getsockname()[1])

    async def wait_quiet(self) -> None:
        """Return when nobody is being answered."""
        await self._quiet.wait()

    def __len__(self) -> int:
        return len(self._connections)

    # -- the end ------------------------------------------------------------------------------------------------------

    def stop_accepting(self) -> None:
        """No new connections; those that are open end with their next answer."""
        self.draining = True
        for listener in self._listeners:
            listener.close()
        for connection in list(self._idle):
            connection.close()

    async def cancel_all(self, within: float = 1.0) -> None:
        """Cut off whoever is still answering, and let them say so."""
        tasks = [task for connection in self._connections if (task := connection.cancel()) is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=within)

    async def close(self, within: float = 5.0) -> None:
        """End every connection, after what was written to it has left; at once where that takes too long."""
        self.stop_accepting()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._connections):
            connection.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._wait_empty()
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)

    async def _wait_empty(self) -> None:
        while self._connections:
            self._empty.clear()
            await self._empty.wait()

    # -- for the connections ------------------------------------------------------------------------------------------

    def on_opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._idle[connection] = asyncio.get_running_loop().time()
        if len(self._connections) > self.limits.connections:
            self._make_room(connection)

    def _make_room(self, newest: Connection) -> None:
        longest = next(iter(self._idle), newest)
        (longest if longest is not newest else newest).abort()

    def on_reading(self, connection: Connection) -> None:
        self._idle.pop(connection, None)
        self._reading.add(connection)

    def on_request(self, connection: Connection) -> None:
        self._reading.discard(connection)

    def on_answered(self, connection: Connection) -> None:
        if self.draining:
            connection.close()
        elif not connection.since:
            self._idle[connection] = asyncio.get_running_loop().time()

    def on_closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._empty.set()
        self._reading.discard(connection)
        self._idle.pop(connection, None)

    def on_begun(self) -> None:
        self.busy += 1
        self._quiet.clear()

    def on_ended(self) -> None:
        self.busy -= 1
        if not self.busy:
            self._quiet.set()

    def reserve(self, size: int) -> bool:
        if self._reserved + size > self.limits.bodies:
            return False
        self._reserved += size
        return True

    def release(self, size: int) -> None:
        self._reserved -= size

    # -- who is slow --------------------------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP)
            now = asyncio.get_running_loop().time()
            for connection in [c for c in self._reading if self._too_slow(c, now)]:
                connection.timed_out()
            for connection in [c for c in self._connections if self._stuck(c, now)]:
                connection.abort()
            while self._idle:
                connection, since = next(iter(self._idle.items()))
                if now - since < self.limits.idle:
                    break
                del self._idle[connection]
                connection.close()

    def _too_slow(self, connection: Connection, now: float) -> bool:
        limits = self.limits
        if not connection.head_done:
            return now - connection.since > limits.head_time
        marked, before = connection.mark
        if now - marked < limits.slow_window:
            return False
        connection.mark = (now, connection.received)
        return connection.received - before < limits.slow * limits.slow_window

    def _stuck(self, connection: Connection, now: float) -> bool:
        return bool(connection.unread_since) and now - connection.unread_since > self.limits.stuck
