"""The workers' message bus over Unix datagram sockets, like a cluster's bus but without NATS.

Each worker has a socket in a folder that only its user can open. A message is one datagram per other worker. It may be
lost, like one of NATS: workers that miss it find the change when they poll the database. A worker whose queue is full
gets the message a little later, at most `MAX_SEND_DELAY_S` seconds.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from toolway.cluster.bus import MAX_MESSAGE_BYTES, Bus, MessageHandler
from toolway.cluster.heartbeat import HEARTBEAT_INTERVAL_S, HeartbeatClock
from toolway.cluster.node_auth import CallTokenSealer
from toolway.types import Json

MAX_SEND_DELAY_S: Final = 1.0  # seconds for which a message waits for a worker whose queue is full
SEND_RETRY_S: Final = 0.01
MAX_READS: Final = 64  # datagrams that are read before other tasks run
BUS_SUFFIX: Final = ".bus"
_HEARTBEAT: Final = b"beat "


class LocalBus(Bus):
    """One worker's message bus. `path` is its socket; the other workers' are in the same folder."""

    def __init__(self, path: str, node: str, on_message: MessageHandler, sealer: CallTokenSealer, tenant: str) -> None:
        super().__init__("workers", node, on_message, lambda: None, tenant, sealer)
        self._folder, self._name = os.path.split(path)
        self._socket: socket.socket | None = None
        self._clocks: dict[str, HeartbeatClock] = {}  # of the workers that a call waits for
        self._local_tasks: list[asyncio.Task[None]] = []

    @property
    def is_connected(self) -> bool:
        return self._socket is not None

    async def connect(self, servers: Sequence[str], credentials: str | os.PathLike[str] | None = None) -> None:
        """Bind the Unix socket of this worker and start to send heartbeats. Raises `OSError` if that fails.

        The arguments match `Bus.connect` and are not used.
        """
        path = os.path.join(self._folder, self._name)
        with suppress(FileNotFoundError):
            os.unlink(path)
        if sys.platform == "win32":
            raise OSError("only --workers has this bus, and it needs Linux")
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        bound.setblocking(False)
        try:
            bound.bind(path)
        except OSError:
            bound.close()
            raise
        self._socket = bound
        asyncio.get_running_loop().add_reader(bound, self._read)
        self._local_tasks.append(asyncio.create_task(self._beat()))

    async def close(self) -> None:
        for task in self._local_tasks:
            task.cancel()
        await asyncio.gather(*self._local_tasks, return_exceptions=True)
        bound, self._socket = self._socket, None
        if bound is not None:
            asyncio.get_running_loop().remove_reader(bound)
            bound.close()
            with suppress(OSError):
                os.unlink(os.path.join(self._folder, self._name))

    async def publish(self, kind: str, body: Json) -> bool:
        data = self._seal({"kind": kind, "from": self._node, "body": body})
        if self._socket is None or len(data) > MAX_MESSAGE_BYTES:
            return False
        sent = await asyncio.gather(*(self._send(path, data) for path in self._others()))
        return all(sent)

    def _others(self) -> list[str]:
        try:
            names = os.listdir(self._folder)
        except OSError:
            return []
        return [os.path.join(self._folder, name) for name in names if name.endswith(BUS_SUFFIX) and name != self._name]

    async def _send(self, path: str, data: bytes) -> bool:
        loop = asyncio.get_running_loop()
        until = loop.time() + MAX_SEND_DELAY_S
        while self._socket is not None:
            try:
                self._socket.sendto(data, path)
                return True
            except BlockingIOError:
                if loop.time() >= until:
                    return False
                await asyncio.sleep(SEND_RETRY_S)
            except OSError:
                return False  # that worker has ended
        return False

    def _read(self) -> None:
        for _ in range(MAX_READS):
            if self._socket is None:
                return
            try:
                data = self._socket.recv(MAX_MESSAGE_BYTES + 1)
            except OSError:
                return
            if data.startswith(_HEARTBEAT):
                clock = self._clocks.get(data[len(_HEARTBEAT) :].decode("ascii", "replace"))
                if clock is not None:
                    clock.record_heartbeat(asyncio.get_running_loop().time())
            elif len(data) <= MAX_MESSAGE_BYTES:
                self.handle_data(data)

    # -- heartbeats ---------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        data = _HEARTBEAT + self._node.encode()
        while True:
            for path in self._others():
                with suppress(OSError):
                    if self._socket is not None:
                        self._socket.sendto(data, path)
            await asyncio.sleep(HEARTBEAT_INTERVAL_S)

    @asynccontextmanager
    async def _watch(self, node: str) -> AsyncIterator[LocalHeartbeats]:
        loop = asyncio.get_running_loop()
        clock = self._clocks.setdefault(node, HeartbeatClock(loop.time()))
        try:
            yield LocalHeartbeats(clock, loop)
        finally:
            self._clocks.pop(node, None)


class LocalHeartbeats:
    """Heartbeats of one other worker process on this machine; measures the time since the last one."""

    def __init__(self, clock: HeartbeatClock, loop: asyncio.AbstractEventLoop) -> None:
        self._clock = clock
        self._loop = loop

    @property
    def seconds_silent(self) -> float:
        """Seconds without a heartbeat; times in which this process itself was blocked do not count."""
        now = self._loop.time()
        self._clock.check(now, disconnected=False)
        return self._clock.seconds_silent(now)
