"""HTTP server: accepts connections, enforces limits by a sweep, and shuts down in order."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from toolway._os import max_open_files
from toolway.http.exchange import Exchange, HeadCache, HttpRequest
from toolway.http.limits import BodyBudget, ServerLimits
from toolway.http.server_connection import AuthenticateHead, RequestHandler, ServerConnection

BACKLOG: Final = 4096
_FILE_LIMIT_SHARE: Final = 0.75  # of the open-file limit for clients; the servers behind the gateway need files too


class HttpServer:
    """HTTP/1.1 server that passes each complete request to `handler`, within `limits`.

    `authenticate_head` rejects a request by its head (request line and headers), so an unauthenticated body is
    never read.
    """

    def __init__(
        self,
        handler: RequestHandler,
        limits: ServerLimits | None = None,
        authenticate_head: AuthenticateHead | None = None,
    ) -> None:
        self.request_handler = handler
        self.begin_flight: Callable[[Exchange], bool] | None = (
            None  # handles a request without a task, or returns False
        )
        #: Returns the protocol that a connection is given to, if a request offers one that is accepted.
        self.accept_upgrade: Callable[[HttpRequest], asyncio.Protocol | None] | None = None
        self.authenticate_head = authenticate_head
        self.limits = limits if limits is not None else ServerLimits()
        self.draining = False
        self._closed = False
        self._connections: set[ServerConnection] = set()
        # Each of these maps a connection to the time since when, oldest first.
        self._unauthenticated: dict[ServerConnection, float] = {}  # unauthenticated and idle
        self._idle: dict[ServerConnection, float] = {}  # authenticated and idle
        self._reading: dict[ServerConnection, float] = {}  # in the middle of a request
        self._rejected: dict[ServerConnection, float] = {}  # rejected, closed after a delay
        self._blocked: set[ServerConnection] = set()  # with many unread bytes
        self.body_budget = BodyBudget(self.limits.max_total_body_bytes)
        self.head_cache: HeadCache[HttpRequest] = HeadCache()
        self._listeners: list[asyncio.Server] = []
        self._handling: set[ServerConnection] = set()
        self._idle_event: asyncio.Event | None = None  # exists only while `wait_idle` waits
        self._empty = asyncio.Event()
        self._sweeper: asyncio.Task[None] | None = None

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None, *, reuse_port: bool = False) -> int:
        """Accept connections at `host` and `port`, with TLS if `tls` is set.

        Return the port, which the system chooses if `port` is 0. With `reuse_port`, other processes may listen there
        too, and the kernel distributes the connections. Raises `OSError` if the address cannot be bound.
        """
        self.loop = asyncio.get_running_loop()
        listener = await self.loop.create_server(
            lambda: ServerConnection(self),
            host,
            port,
            ssl=tls,
            ssl_handshake_timeout=self.limits.head_timeout if tls is not None else None,
            backlog=BACKLOG,
            reuse_address=True,
            reuse_port=reuse_port or None,
        )
        self._add_listener(listener)
        return int(listener.sockets[0].getsockname()[1])

    async def listen_unix(self, path: str) -> None:
        """Accept connections at a Unix socket too. Raises `OSError` if the path cannot be bound."""
        self.loop = asyncio.get_running_loop()
        self._add_listener(await self.loop.create_unix_server(lambda: ServerConnection(self), path, backlog=BACKLOG))

    def _add_listener(self, listener: asyncio.Server) -> None:
        self.limits = msgspec.structs.replace(
            self.limits, max_connections=min(self.limits.max_connections, _affordable_connections())
        )
        self._listeners.append(listener)
        if self._sweeper is None:
            self._sweeper = self.loop.create_task(self._sweep())

    async def wait_idle(self) -> None:
        """Wait, without a time limit, until no request is being handled."""
        while self._handling:
            if self._idle_event is None:
                self._idle_event = asyncio.Event()
            await self._idle_event.wait()

    @property
    def active_count(self) -> int:
        """Number of requests that are being handled now."""
        return len(self._handling)

    def __len__(self) -> int:
        return len(self._connections)

    # -- shutdown -----------------------------------------------------------------------------------------------------

    def stop_accepting(self) -> None:
        """Accept no new connections; open ones close after their next response.

        An idle connection stays open until `close`, because its client may be sending a request right now.
        """
        self.draining = True
        for listener in self._listeners:
            listener.close()

    async def cancel_all(self, timeout: float = 1.0) -> None:
        """Cancel all running handlers, and wait at most `timeout` seconds for their error responses."""
        tasks = [task for connection in self._connections if (task := connection.cancel()) is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)

    async def close(self, timeout: float = 5.0) -> None:
        """Close every connection after its output is sent.

        Connections that take longer than `timeout` seconds are aborted.
        """
        self.stop_accepting()
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._connections):
            connection.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._wait_empty()
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)

    async def _wait_empty(self) -> None:
        while self._connections:
            self._empty.clear()
            await self._empty.wait()

    # -- for the connections ------------------------------------------------------------------------------------------

    def on_opened(self, connection: ServerConnection) -> None:
        if self._closed:  # the loop had accepted it already, and tells us now
            connection.abort()
            return
        self._connections.add(connection)
        if len(self._connections) > self.limits.max_connections:
            self._evict_one(connection)
        self._unauthenticated[connection] = self.loop.time()

    def _evict_one(self, newest: ServerConnection) -> None:
        """Close the one connection whose loss does the least harm, because there are too many.

        They are closed in this order: rejected, unauthenticated and idle, unauthenticated and reading, longest idle,
        newest.
        """
        unauthenticated_reading = (c for c in self._reading if not c.authenticated)
        for waiting in (self._rejected, self._unauthenticated, unauthenticated_reading, self._idle):
            for connection in waiting:
                connection.abort()
                self._forget(connection)
                return
        newest.abort()

    def on_message_begun(self, connection: ServerConnection) -> None:
        self._unauthenticated.pop(connection, None)
        self._idle.pop(connection, None)
        self._reading[connection] = connection.reading_since

    def on_message_read(self, connection: ServerConnection) -> None:
        self._reading.pop(connection, None)

    def on_waiting(self, connection: ServerConnection) -> None:
        if self.draining:
            connection.close()
        elif not connection.reading_since:
            waiting = self._idle if connection.authenticated else self._unauthenticated
            waiting[connection] = self.loop.time()

    def on_blocked(self, connection: ServerConnection) -> None:
        self._blocked.add(connection)

    def on_drained(self, connection: ServerConnection) -> None:
        self._blocked.discard(connection)

    def on_rejected(self, connection: ServerConnection) -> None:
        self._reading.pop(connection, None)
        self._unauthenticated.pop(connection, None)
        self._idle.pop(connection, None)
        self._rejected[connection] = self.loop.time()

    def on_closed(self, connection: ServerConnection) -> None:
        self._forget(connection)
        self._empty.set()

    def _forget(self, connection: ServerConnection) -> None:
        self._connections.discard(connection)
        self._blocked.discard(connection)
        for waiting in (self._unauthenticated, self._idle, self._reading, self._rejected):
            waiting.pop(connection, None)

    def on_exchange_started(self, connection: ServerConnection) -> None:
        self._handling.add(connection)
        if connection in self._idle:
            del self._idle[connection]
        elif connection in self._unauthenticated:
            del self._unauthenticated[connection]

    def on_exchange_ended(self, connection: ServerConnection) -> None:
        self._handling.discard(connection)
        if self._idle_event is not None and not self._handling:
            self._idle_event.set()
            self._idle_event = None

    # -- slow clients -------------------------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self.limits.sweep_interval)
            now = self.loop.time()
            for connection in [c for c in self._reading if self._is_too_slow(c, now)]:
                connection.reject_timed_out()
            for connection in [c for c in self._blocked if self._is_stalled(c, now)]:
                connection.abort()
            for connection in list(self._handling):
                connection.tick(now)
            self._abort_slowest_readers()
            self._close_waiting(self._rejected, now - self.limits.rejection_linger)
            self._close_waiting(self._unauthenticated, now - self.limits.idle_timeout)
            self._close_waiting(self._idle, now - self.limits.idle_timeout)

    def _close_waiting(self, waiting: dict[ServerConnection, float], until: float) -> None:
        """Close the connections in `waiting` that have been waiting since the time `until` or longer.

        `waiting` has the time at which each began to wait, oldest first.
        """
        while waiting:
            connection, since = next(iter(waiting.items()))
            if since > until:
                break
            del waiting[connection]
            connection.close()

    def _is_too_slow(self, connection: ServerConnection, now: float) -> bool:
        """Return True if the client sends the head or the body of its request too slowly."""
        limits = self.limits
        if not connection.head_done:
            return now - connection.reading_since > limits.head_timeout
        marked, before = connection.read_mark
        if now - marked < limits.speed_window:
            return False
        connection.read_mark = (now, connection.received)
        return connection.received - before < limits.min_bytes_per_s * limits.speed_window

    def _is_stalled(self, connection: ServerConnection, now: float) -> bool:
        """Return True if the client has read its response too slowly since the last check."""
        marked, before = connection.drain_mark
        if now - marked < self.limits.stall_timeout:
            return False
        connection.drain_mark = (now, connection.drained_bytes)
        return connection.drained_bytes - before < self.limits.min_bytes_per_s * self.limits.stall_timeout

    def _abort_slowest_readers(self) -> None:
        """Disconnect the clients with the most unread bytes if the total of all clients exceeds the limit.

        Slow readers together therefore cannot fill the memory.
        """
        total = sum(c.unread_bytes for c in self._blocked)
        if total <= self.limits.max_total_unread_bytes:
            return
        for connection in sorted(self._blocked, key=lambda c: c.unread_bytes, reverse=True):
            if total <= self.limits.max_total_unread_bytes:
                break
            total -= connection.unread_bytes
            connection.abort()


def _affordable_connections() -> int:
    """Return the number of client connections that the process's open-file limit allows."""
    return min(1_000_000, max(16, int(max_open_files() * _FILE_LIMIT_SHARE)))
