"""TCP proxy that injects faults into the connections it forwards, exact to the byte.

    async with FaultProxy("127.0.0.1", port) as proxy:
        proxy.set_faults([Fault(), Fault(down=Flow(cut_at=100, reset=True))])  # the second connection is cut
        hub = Hub({"shaky": proxy.url_for("/mcp")})

The proxy does not parse the bytes. `up` is from the client to the server, `down` is back. A `Fault` applies to one
connection and is chosen when the connection is accepted. `freeze` and `cut_connections` affect all open connections.
`refuse_connections` and `black_hole` affect later connections, before they are accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final
from urllib.parse import urlsplit

_CHUNK_BYTES: Final = 65536
_BACKLOG_FILLERS: Final = 3  # connections that fill the backlog of a listener with room for one
_LINGER_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset


@dataclass(frozen=True, slots=True)
class Flow:
    """The faults in one direction of a proxied connection: delay, corruption, cut, or stall.

    Byte positions count from 0.
    """

    delay: float = 0.0  # seconds of delay per chunk
    rate: float = 0.0  # bytes per second; 0: no limit
    flip: tuple[int, ...] = ()  # positions of bytes; their lowest bit is inverted
    noise: float = 0.0  # probability of the same for each byte
    repeat: tuple[int, int] | None = None  # bytes from the first position up to the second are sent twice
    cut_at: int | None = None  # after this many bytes the connection ends in both directions
    reset: bool = False  # the cut is a TCP reset, not an orderly close
    swallow_at: int | None = None  # from here on bytes are read and dropped, and the end of the stream is not forwarded
    stall_at: int | None = None  # from here on nothing is read: the sender's buffers fill


@dataclass(frozen=True, slots=True)
class Fault:
    """The faults that the proxy injects into one connection, by direction. By default, it injects none."""

    up: Flow = Flow()
    down: Flow = Flow()
    refuse: bool = False  # reset as soon as it is accepted


HALF_OPEN: Final = Fault(up=Flow(swallow_at=0), down=Flow(swallow_at=0))

#: Returns the fault of the k-th connection, counted from 0.
FaultChooser = Callable[[int], Fault]


@dataclass(slots=True)
class ProxyCounts:
    """Counters of a `FaultProxy`: connections, forwarded bytes, injected faults."""

    connections: int = 0  # accepted
    refused: int = 0
    cut: int = 0
    bytes_up: int = 0  # forwarded bytes
    bytes_down: int = 0
    bytes_swallowed: int = 0  # bytes, both ways


class FaultProxy:
    """TCP proxy that listens on `proxy.port`, forwards to `host:port`, and injects faults.

    `random` decides which bytes `Flow.noise` corrupts.
    """

    def __init__(self, host: str, port: int, *, listen_host: str = "127.0.0.1", random: Random | None = None) -> None:
        self.port = 0
        self.counts = ProxyCounts()
        self._target = (host, port)
        self._listen_host = listen_host
        self._random = random or Random(0)
        self._choose_fault: FaultChooser = lambda number: Fault()
        self._listener: socket.socket | None = None
        self._fillers: list[socket.socket] = []
        self._accept_task: asyncio.Task[None] | None = None
        self._connections: dict[_Connection, asyncio.Task[None]] = {}

    async def __aenter__(self) -> FaultProxy:
        await self.accept_connections()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close_listener()
        tasks = list(self._connections.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def url_for(self, url: str = "/", scheme: str = "http") -> str:
        """Return `url` (or just a path) with the proxy's host and port."""
        parts = urlsplit(url)
        query = f"?{parts.query}" if parts.query else ""
        return f"{parts.scheme or scheme}://{self._listen_host}:{self.port}{parts.path}{query}"

    @property
    def open_connections(self) -> int:
        """Return the number of client connections that the proxy forwards now."""
        return len(self._connections)

    # -- faults

    def set_faults(self, choice: FaultChooser | Iterable[Fault]) -> None:
        """Set the faults of later connections.

        `choice` is a function of the connection number, or one fault for each connection in order. The number
        counts from 0 since the proxy started. Connections after the last fault of a list have none.
        """
        if callable(choice):
            self._choose_fault = choice
            return
        remaining = iter(list(choice))
        self._choose_fault = lambda number: next(remaining, Fault())

    def freeze(self) -> None:
        """Stop forwarding on the open connections without telling either side, so they are half open."""
        for connection in self._connections:
            connection.frozen = True

    async def cut_connections(self, *, reset: bool = False) -> None:
        """End all open connections, with a TCP reset if `reset`. Return once they are closed."""
        for connection in self._connections:
            connection.request_end(reset)
            self.counts.cut += 1
        await asyncio.gather(*self._connections.values(), return_exceptions=True)

    async def refuse_connections(self) -> None:
        """Refuse every later connection, as if no program were listening on the port."""
        await self._close_listener()

    async def black_hole(self) -> None:
        """Drop every later connection attempt, to let the client wait for a response until its own timeout.

        Works on Linux only, because a listener with a full backlog drops connection attempts there.
        """
        await self._close_listener()
        self._open_listener(backlog=0)
        for _ in range(_BACKLOG_FILLERS):
            filler = socket.socket()
            filler.setblocking(False)
            self._fillers.append(filler)
            with contextlib.suppress(BlockingIOError):
                filler.connect((self._listen_host, self.port))

    async def accept_connections(self) -> None:
        """Accept connections again after `refuse_connections` or `black_hole`, on the same port."""
        await self._close_listener()
        listener = self._open_listener(backlog=1024)
        self._accept_task = asyncio.get_running_loop().create_task(self._accept_loop(listener))

    # -- internals

    def _open_listener(self, backlog: int) -> socket.socket:
        listener = self._listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind((self._listen_host, self.port))
        listener.listen(backlog)
        self.port = listener.getsockname()[1]
        return listener

    async def _close_listener(self) -> None:
        if self._accept_task is not None:
            self._accept_task.cancel()
            await asyncio.gather(self._accept_task, return_exceptions=True)
            self._accept_task = None
        for each in (*self._fillers, *([self._listener] if self._listener is not None else [])):
            each.close()
        self._fillers.clear()
        self._listener = None

    async def _accept_loop(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(listener)
            number, self.counts.connections = self.counts.connections, self.counts.connections + 1
            fault = self._choose_fault(number)
            if fault.refuse:
                self.counts.refused += 1
                _close_socket(client, reset=True)
                continue
            connection = _Connection(client, fault, self.counts, self._random)
            task = loop.create_task(connection.run(self._target))
            self._connections[connection] = task
            task.add_done_callback(partial(self._remove_connection, connection))

    def _remove_connection(self, connection: _Connection, _: object) -> None:
        del self._connections[connection]


class _Connection:
    """One proxied connection: client socket, server socket, one forwarding task per direction."""

    def __init__(self, client: socket.socket, fault: Fault, counts: ProxyCounts, random: Random) -> None:
        self.frozen = False
        self._client = client
        self._server = socket.socket()
        self._server.setblocking(False)
        self._fault = fault
        self._counts = counts
        self._random = random
        self._open_directions = 2
        self._end_requested: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def request_end(self, reset: bool) -> None:
        if not self._end_requested.done():
            self._end_requested.set_result(reset)

    async def run(self, target: tuple[str, int]) -> None:
        loop = asyncio.get_running_loop()
        forwarders: list[asyncio.Task[None]] = []
        reset = False
        try:
            await loop.sock_connect(self._server, target)
            forwarders = [
                loop.create_task(self._forward(self._client, self._server, self._fault.up, self._count_up)),
                loop.create_task(self._forward(self._server, self._client, self._fault.down, self._count_down)),
            ]
            reset = await self._end_requested
        except OSError:
            reset = True  # the server is unreachable, so the client's connection is useless
        finally:
            for forwarder in forwarders:
                forwarder.cancel()
            await asyncio.gather(*forwarders, return_exceptions=True)
            for side in (self._client, self._server):
                _close_socket(side, reset)

    def _count_up(self, count: int) -> None:
        self._counts.bytes_up += count

    def _count_down(self, count: int) -> None:
        self._counts.bytes_down += count

    async def _forward(
        self, source: socket.socket, sink: socket.socket, flow: Flow, count: Callable[[int], None]
    ) -> None:
        """Forward bytes in one direction, with that direction's faults, until the sender closes or a fault cuts it.

        After a fault that drops or stalls bytes, wait, and never forward the end of the stream.
        """
        loop = asyncio.get_running_loop()
        flow_filter = FlowFilter(flow, self._random)
        try:
            while not flow_filter.is_stalled and (data := await loop.sock_recv(source, _CHUNK_BYTES)):
                forwarded = b"" if self.frozen else flow_filter.apply(data)
                self._counts.bytes_swallowed += len(data) if self.frozen else flow_filter.bytes_swallowed
                await _send_throttled(sink, forwarded, flow, count)
                if flow_filter.is_cut:
                    self._counts.cut += 1
                    self.request_end(flow.reset)
                    return
        except OSError:
            if not self.frozen and not flow_filter.is_swallowing:
                self.request_end(True)
        if flow_filter.is_stalled or flow_filter.is_swallowing or self.frozen:
            await asyncio.Event().wait()  # the end of the stream is not forwarded
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
        self._open_directions -= 1
        if not self._open_directions:
            self.request_end(False)


class FlowFilter:
    """Applies a `Flow` to the bytes of one direction. Pure: it does no I/O and never waits."""

    def __init__(self, flow: Flow, random: Random) -> None:
        self.bytes_swallowed = 0  # bytes of the last chunk
        self._flow = flow
        self._random = random
        self._position = 0
        self._repeat_buffer = bytearray()  # bytes to repeat

    @property
    def is_cut(self) -> bool:
        return self._has_reached(self._flow.cut_at)

    @property
    def is_swallowing(self) -> bool:
        return self._has_reached(self._flow.swallow_at)

    @property
    def is_stalled(self) -> bool:
        return self._has_reached(self._flow.stall_at)

    def apply(self, data: bytes) -> bytes:
        """Return the bytes to forward for the received bytes `data`, after cuts and corruption."""
        flow, start = self._flow, self._position
        ends = [end for end in (flow.cut_at, flow.swallow_at, flow.stall_at) if end is not None]
        forwarded = data[: max(0, min(ends) - start)] if ends else data
        self._position += len(forwarded)
        self.bytes_swallowed = len(data) - len(forwarded)
        return self._apply_repeat(start, self._corrupt(start, forwarded))

    def _has_reached(self, end: int | None) -> bool:
        return end is not None and self._position >= end

    def _corrupt(self, start: int, data: bytes) -> bytes:
        flow = self._flow
        if not flow.flip and not flow.noise:
            return data
        corrupted = bytearray(data)
        for at in range(len(corrupted)):
            if start + at in flow.flip or (flow.noise and self._random.random() < flow.noise):
                corrupted[at] ^= 1
        return bytes(corrupted)

    def _apply_repeat(self, start: int, data: bytes) -> bytes:
        if self._flow.repeat is None:
            return data
        first, last = self._flow.repeat
        self._repeat_buffer += data[max(0, first - start) : max(0, last - start)]
        if not start < last <= start + len(data):
            return data
        repeat_at = last - start
        return data[:repeat_at] + bytes(self._repeat_buffer) + data[repeat_at:]


async def _send_throttled(sink: socket.socket, data: bytes, flow: Flow, count: Callable[[int], None]) -> None:
    if flow.delay:
        await asyncio.sleep(flow.delay)
    loop = asyncio.get_running_loop()
    size = max(1, int(flow.rate / 20)) if flow.rate else len(data)  # a slow flow sends 20 times per second
    for at in range(0, len(data), max(1, size)):
        chunk = data[at : at + size]
        await loop.sock_sendall(sink, chunk)
        count(len(chunk))
        if flow.rate:
            await asyncio.sleep(len(chunk) / flow.rate)


def _close_socket(sock: socket.socket, reset: bool) -> None:
    with contextlib.suppress(OSError):
        if reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
        else:
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(_CHUNK_BYTES):  # closing with unread data would send a reset
                pass
    sock.close()
