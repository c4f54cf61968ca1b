"""A TCP proxy that breaks what passes through it, to the byte.

    async with FaultProxy("127.0.0.1", port) as proxy:
        proxy.faults([Fault(), Fault(down=Flow(cut_at=100, reset=True))])  # the second connection is cut
        hub = Hub({"shaky": proxy.url_for("/mcp")})

It knows nothing of what it carries. `up` is from the client to the server, `down` is back. A `Fault` is for one
connection, chosen when it is accepted; `freeze` and `cut` strike all that are open; `refuse` and `black_hole` are for
those to come, before they are accepted.
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

_PIECE: Final = 65536
_FILLERS: Final = 3  # connections that fill the line of a listener with room for one
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset


@dataclass(frozen=True, slots=True)
class Flow:
    """What happens to the bytes of one direction. They are counted from 0, as the sender sends them."""

    delay: float = 0.0  # seconds that each piece is held back
    rate: float = 0.0  # bytes per second; 0: as fast as it goes
    flip: tuple[int, ...] = ()  # bytes whose lowest bit is inverted
    noise: float = 0.0  # the chance of the same, for each byte
    repeat: tuple[int, int] | None = None  # bytes from … up to … are sent twice
    cut_at: int | None = None  # after so many bytes the connection ends, both ways
    reset: bool = False  # and it ends with a reset, not in order
    swallow_at: int | None = None  # from here on bytes are taken and thrown away, and no end is passed on
    stall_at: int | None = None  # from here on nothing is taken: the sender's buffers fill


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one connection; nothing, unless it says so."""

    up: Flow = Flow()
    down: Flow = Flow()
    refuse: bool = False  # reset as soon as it is accepted


HALF_OPEN: Final = Fault(up=Flow(swallow_at=0), down=Flow(swallow_at=0))

#: The fault of the k-th connection, counted from 0.
Choose = Callable[[int], Fault]


@dataclass(slots=True)
class Counts:
    """What has passed and what was done to it."""

    connections: int = 0  # accepted
    refused: int = 0
    cut: int = 0
    up: int = 0  # bytes passed on
    down: int = 0
    swallowed: int = 0  # bytes, both ways


class FaultProxy:
    """Listens on `proxy.port` and passes connections on to `host:port`. `dice` decides about `noise`."""

    def __init__(self, host: str, port: int, *, listen: str = "127.0.0.1", dice: Random | None = None) -> None:
        self.port = 0
        self.counts = Counts()
        self._target = (host, port)
        self._listen = listen
        self._dice = dice or Random(0)
        self._choose: Choose = lambda number: Fault()
        self._door: socket.socket | None = None
        self._fillers: list[socket.socket] = []
        self._accepting: asyncio.Task[None] | None = None
        self._connections: dict[_Connection, asyncio.Task[None]] = {}

    async def __aenter__(self) -> FaultProxy:
        await self.welcome()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close_door()
        tasks = list(self._connections.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def url_for(self, url: str = "/", scheme: str = "http") -> str:
        """`url`, or a path alone, at the proxy's address."""
        parts = urlsplit(url)
        query = f"?{parts.query}" if parts.query else ""
        return f"{parts.scheme or scheme}://{self._listen}:{self.port}{parts.path}{query}"

    @property
    def open(self) -> int:
        """Connections that have not ended."""
        return len(self._connections)

    # -- what is done to connections

    def faults(self, choice: Choose | Iterable[Fault]) -> None:
        """The faults of the connections from now on: a function of their number (which goes on from 0 since the proxy
        began), or one each in this order, and none for those after them."""
        if callable(choice):
            self._choose = choice
            return
        coming = iter(list(choice))
        self._choose = lambda number: next(coming, Fault())

    def freeze(self) -> None:
        """From now on nothing passes on the open connections, and neither side is told: half open."""
        for connection in self._connections:
            connection.frozen = True

    async def cut(self, *, reset: bool = False) -> None:
        """End all open connections, and return when they are closed."""
        for connection in self._connections:
            connection.end(reset)
            self.counts.cut += 1
        await asyncio.gather(*self._connections.values(), return_exceptions=True)

    async def refuse(self) -> None:
        """Refuse every connection from now on, as where nothing listens."""
        await self._close_door()

    async def black_hole(self) -> None:
        """Leave every attempt to connect without an answer from now on. For Linux, where a listener whose line is full
        stays silent."""
        await self._close_door()
        self._open_door(backlog=0)
        for _ in range(_FILLERS):
            filler = socket.socket()
            filler.setblocking(False)
            self._fillers.append(filler)
            with contextlib.suppress(BlockingIOError):
                filler.connect((self._listen, self.port))

    async def welcome(self) -> None:
        """Accept connections again, on the same port."""
        await self._close_door()
        door = self._open_door(backlog=1024)
        self._accepting = asyncio.get_running_loop().create_task(self._accept(door))

    # -- inside

    def _open_door(self, backlog: int) -> socket.socket:
        door = self._door = socket.socket()
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.setblocking(False)
        door.bind((self._listen, self.port))
        door.listen(backlog)
        self.port = door.getsockname()[1]
        return door

    async def _close_door(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
            self._accepting = None
        for each in (*self._fillers, *([self._door] if self._door is not None else [])):
            each.close()
        self._fillers.clear()
        self._door = None

    async def _accept(self, door: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(door)
            number, self.counts.connections = self.counts.connections, self.counts.connections + 1
            fault = self._choose(number)
            if fault.refuse:
                self.counts.refused += 1
                _close(client, reset=True)
                continue
            connection = _Connection(client, fault, self.counts, self._dice)
            task = loop.create_task(connection.run(self._target))
            self._connections[connection] = task
            task.add_done_callback(partial(self._forget, connection))

    def _forget(self, connection: _Connection, _: object) -> None:
        del self._connections[connection]


class _Connection:
    """A client's socket, ours to the server, and a pump for each direction."""

    def __init__(self, client: socket.socket, fault: Fault, counts: Counts, dice: Random) -> None:
        self.frozen = False
        self._client = client
        self._server = socket.socket()
        self._server.setblocking(False)
        self._fault = fault
        self._counts = counts
        self._dice = dice
        self._pumping = 2
        self._ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def end(self, reset: bool) -> None:
        if not self._ended.done():
            self._ended.set_result(reset)

    async def run(self, target: tuple[str, int]) -> None:
        loop = asyncio.get_running_loop()
        pumps: list[asyncio.Task[None]] = []
        reset = False
        try:
            await loop.sock_connect(self._server, target)
            pumps = [
                loop.create_task(self._pump(self._client, self._server, self._fault.up, self._up)),
                loop.create_task(self._pump(self._server, self._client, self._fault.down, self._down)),
            ]
            reset = await self._ended
        except OSError:
            reset = True  # the server is not there, so the client's connection is no use
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for side in (self._client, self._server):
                _close(side, reset)

    def _up(self, count: int) -> None:
        self._counts.up += count

    def _down(self, count: int) -> None:
        self._counts.down += count

    async def _pump(self, source: socket.socket, sink: socket.socket, flow: Flow, count: Callable[[int], None]) -> None:
        """Pass bytes on until the flow or the sender ends."""
        loop = asyncio.get_running_loop()
        passage = Passage(flow, self._dice)
        try:
            while not passage.stalled and (data := await loop.sock_recv(source, _PIECE)):
                passed = b"" if self.frozen else passage.take(data)
                self._counts.swallowed += len(data) if self.frozen else passage.swallowed
                await _send_slowly(sink, passed, flow, count)
                if passage.cut:
                    self._counts.cut += 1
                    self.end(flow.reset)
                    return
        except OSError:
            if not self.frozen and not passage.silent:
                self.end(True)
        if passage.stalled or passage.silent or self.frozen:
            await asyncio.Event().wait()  # no end is passed on
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
        self._pumping -= 1
        if not self._pumping:
            self.end(False)


class Passage:
    """The bytes of one direction on their way: what goes in, and what comes out of it. Waits for nothing."""

    def __init__(self, flow: Flow, dice: Random) -> None:
        self.swallowed = 0  # bytes of the last piece
        self._flow = flow
        self._dice = dice
        self._at = 0
        self._kept = bytearray()  # what will be repeated

    @property
    def cut(self) -> bool:
        return self._reached(self._flow.cut_at)

    @property
    def silent(self) -> bool:
        return self._reached(self._flow.swallow_at)

    @property
    def stalled(self) -> bool:
        return self._reached(self._flow.stall_at)

    def take(self, data: bytes) -> bytes:
        """What is passed on of `data`."""
        flow, start = self._flow, self._at
        ends = [end for end in (flow.cut_at, flow.swallow_at, flow.stall_at) if end is not None]
        passing = data[: max(0, min(ends) - start)] if ends else data
        self._at += len(passing)
        self.swallowed = len(data) - len(passing)
        return self._repeated(start, self._spoiled(start, passing))

    def _reached(self, end: int | None) -> bool:
        return end is not None and self._at >= end

    def _spoiled(self, start: int, data: bytes) -> bytes:
        flow = self._flow
        if not flow.flip and not flow.noise:
            return data
        spoiled = bytearray(data)
        for at in range(len(spoiled)):
            if start + at in flow.flip or (flow.noise and self._dice.random() < flow.noise):
                spoiled[at] ^= 1
        return bytes(spoiled)

    def _repeated(self, start: int, data: bytes) -> bytes:
        if self._flow.repeat is None:
            return data
        first, last = self._flow.repeat
        self._kept += data[max(0, first - start) : max(0, last - start)]
        if not start < last <= start + len(data):
            return data
        again = last - start
        return data[:again] + bytes(self._kept) + data[again:]


async def _send_slowly(sink: socket.socket, data: bytes, flow: Flow, count: Callable[[int], None]) -> None:
    if flow.delay:
        await asyncio.sleep(flow.delay)
    loop = asyncio.get_running_loop()
    size = max(1, int(flow.rate / 20)) if flow.rate else len(data)  # so that a slow flow moves 20 times a second
    for at in range(0, len(data), max(1, size)):
        piece = data[at : at + size]
        await loop.sock_sendall(sink, piece)
        count(len(piece))
        if flow.rate:
            await asyncio.sleep(len(piece) / flow.rate)


def _close(side: socket.socket, reset: bool) -> None:
    with contextlib.suppress(OSError):
        if reset:
            side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        else:
            side.shutdown(socket.SHUT_WR)
            while side.recv(_PIECE):  # closing with something unread would be a reset
                pass
    side.close()
