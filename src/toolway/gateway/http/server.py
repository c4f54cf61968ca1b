"""Listening: connections, what each may cost, and the end of it in order."""

from __future__ import annotations

import asyncio
import resource
import ssl
from contextlib import suppress
from dataclasses import replace
from typing import Final

from toolway.gateway.http.connection import Connection, Greet, Handler
from toolway.gateway.http.limits import HttpLimits
from toolway.gateway.http.messages import Request
from toolway.gateway.http.room import Room
from toolway.protocol.heads import Heads

BACKLOG: Final = 4096
_SHARE: Final = 0.75  # of the files that we may have open; the servers behind us need some too


class HttpServer:
    """`greet` refuses by the head of a request alone, so that a stranger's body is not even read."""

    def __init__(self, handler: Handler, limits: HttpLimits | None = None, greet: Greet | None = None) -> None:
        self.handler = handler
        self.greet = greet
        self.limits = limits if limits is not None else HttpLimits()
        self.draining = False
        self._connections: set[Connection] = set()
        # Each of them with the time since when, the longest first.
        self._strangers: dict[Connection, float] = {}  # have not shown who they are, and wait
        self._idle: dict[Connection, float] = {}  # have, and wait
        self._reading: dict[Connection, float] = {}  # have sent a part of a request
        self._refused: dict[Connection, float] = {}  # are told why, and then closed
        self._unread: set[Connection] = set()  # have much to take
        self.room = Room(self.limits.bodies)
        self.heads: Heads[Request] = Heads()
        self._listeners: list[asyncio.Server] = []
        self._answering: set[Connection] = set()
        self._quiet: asyncio.Event | None = None  # while somebody waits for it
        self._empty = asyncio.Event()
        self._sweeper: asyncio.Task[None] | None = None

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Accept connections; the port that was given where 0 was asked for. Raises `OSError`."""
        self.loop = asyncio.get_running_loop()
        listener = await self.loop.create_server(
            lambda: Connection(self),
            host,
            port,
            ssl=tls,
            ssl_handshake_timeout=self.limits.head_time if tls is not None else None,
            backlog=BACKLOG,
            reuse_address=True,
        )
        self.limits = replace(self.limits, connections=min(self.limits.connections, _affordable()))
        self._listeners.append(listener)
        if self._sweeper is None:
            self._sweeper = self.loop.create_task(self._sweep())
        return int(listener.sockets[0].getsockname()[1])

    async def wait_quiet(self) -> None:
        """Return when nobody is being answered."""
        while self._answering:
            if self._quiet is None:
                self._quiet = asyncio.Event()
            await self._quiet.wait()

    @property
    def busy(self) -> int:
        """How many are being answered."""
        return len(self._answering)

    def __len__(self) -> int:
        return len(self._connections)

    # -- the end ------------------------------------------------------------------------------------------------------

    def stop_accepting(self) -> None:
        """No new connections; those that are open end with their next answer. One that waits is not closed before the
        end: what its client may be sending just now is answered."""
        self.draining = True
        for listener in self._listeners:
            listener.close()

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
        if len(self._connections) > self.limits.connections:
            self._make_room(connection)
        self._strangers[connection] = self.loop.time()

    def _make_room(self, newest: Connection) -> None:
        """Strangers go first, those who say nothing before those who say it slowly; then who has waited longest."""
        strangers_reading = (c for c in self._reading if not c.known)
        for waiting in (self._refused, self._strangers, strangers_reading, self._idle):
            for connection in waiting:
                connection.abort()
                self._forget(connection)
                return
        newest.abort()

    def on_reading(self, connection: Connection) -> None:
        self._strangers.pop(connection, None)
        self._idle.pop(connection, None)
        self._reading[connection] = connection.since

    def on_request(self, connection: Connection) -> None:
        self._reading.pop(connection, None)

    def on_answered(self, connection: Connection) -> None:
        if self.draining:
            connection.close()
        elif not connection.since:
            waiting = self._idle if connection.known else self._strangers
            waiting[connection] = self.loop.time()

    def on_unread(self, connection: Connection) -> None:
        self._unread.add(connection)

    def on_taken(self, connection: Connection) -> None:
        self._unread.discard(connection)

    def on_refused(self, connection: Connection) -> None:
        self._reading.pop(connection, None)
        self._strangers.pop(connection, None)
        self._idle.pop(connection, None)
        self._refused[connection] = self.loop.time()

    def on_closed(self, connection: Connection) -> None:
        self._forget(connection)
        self._empty.set()

    def _forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._unread.discard(connection)
        for waiting in (self._strangers, self._idle, self._reading, self._refused):
            waiting.pop(connection, None)

    def on_begun(self, connection: Connection) -> None:
        self._answering.add(connection)
        if connection in self._idle:
            del self._idle[connection]
        elif connection in self._strangers:
            del self._strangers[connection]

    def on_ended(self, connection: Connection) -> None:
        self._answering.discard(connection)
        if self._quiet is not None and not self._answering:
            self._quiet.set()
            self._quiet = None

    # -- who is slow --------------------------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self.limits.sweep)
            now = self.loop.time()
            for connection in [c for c in self._reading if self._too_slow(c, now)]:
                connection.timed_out()
            for connection in [c for c in self._unread if self._stuck(c, now)]:
                connection.abort()
            for connection in list(self._answering):
                connection.look(now)
            self._leave_the_greediest()
            self._close_waiting(self._refused, now - self.limits.linger)
            self._close_waiting(self._strangers, now - self.limits.idle)
            self._close_waiting(self._idle, now - self.limits.idle)

    def _close_waiting(self, waiting: dict[Connection, float], until: float) -> None:
        """End those that have waited since before then; the longest come first."""
        while waiting:
            connection, since = next(iter(waiting.items()))
            if since > until:
                break
            del waiting[connection]
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
        marked, before = connection.taken_mark
        if now - marked < self.limits.stuck:
            return False
        connection.taken_mark = (now, connection.taken)
        return connection.taken - before < self.limits.slow * self.limits.stuck

    def _leave_the_greediest(self) -> None:
        """Together, clients that take slowly may not fill our memory."""
        most = sum(c.unread for c in self._unread)
        if most <= self.limits.unread_by_all:
            return
        for connection in sorted(self._unread, key=lambda c: c.unread, reverse=True):
            if most <= self.limits.unread_by_all:
                break
            most -= connection.unread
            connection.abort()


def _affordable() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, int(soft * _SHARE)) if soft != resource.RLIM_INFINITY else 1_000_000
