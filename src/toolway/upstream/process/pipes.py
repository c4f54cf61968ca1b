"""The hub's ends of a server's pipes: what a transport needs from them, on every system.

A `Source` delivers what the process writes, and finally b"" once. A `Sink` takes what the process will read. On Linux
and macOS both are file descriptors that the event loop watches (`fd_pipes.py`). On Windows they belong to a transport
of asyncio's Proactor loop (`windows/job_spawner.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

READ_BYTES: Final = 64 * 1024  # bytes: the capacity of a pipe, and the limit of work in one turn of the event loop
Buffers = Sequence[bytes | memoryview]


class Source(Protocol):
    """Readable end of a pipe."""

    def start(self, on_data: Callable[[bytes], None]) -> None:
        """Deliver all data to `on_data` from now on, and b"" at the end of the pipe."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None:
        """Close the pipe and stop delivering."""

    @property
    def is_open(self) -> bool:
        """Return True until the pipe has ended or was closed."""
        ...


class Sink(Protocol):
    """Writable end of a pipe."""

    def write(self, buffers: Buffers) -> int:
        """Write without waiting and return how many bytes the system took.

        Raises `BlockingIOError` if it takes none now, and `OSError` if the pipe is broken.
        """
        ...

    @property
    def is_pending(self) -> bool:
        """Return True if the process has not yet made room for bytes that the system took."""
        ...

    def wait(self, on_writable: Callable[[], None]) -> None:
        """Call `on_writable` whenever the pipe can take bytes again, until `stop_waiting`."""

    def stop_waiting(self) -> None: ...

    def close(self) -> None: ...


async def read_all(source: Source, limit: int) -> bytes:
    """Return what a process writes until it closes the pipe, or the first bytes over `limit`."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    data = bytearray()

    def on_data(chunk: bytes) -> None:
        data.extend(chunk)
        if not done.done() and (not chunk or len(data) > limit):
            done.set_result(None)

    source.start(on_data)
    await done
    return bytes(data)


async def write_all(sink: Sink, data: bytes) -> None:
    """Write `data` to a process and close the pipe. Stop quietly if the process no longer reads."""
    left = memoryview(data)
    try:
        while left:
            try:
                written = sink.write([left[:READ_BYTES]])
            except BlockingIOError:
                written = 0
            except OSError:
                return
            left = left[written:]
            if not written or sink.is_pending:
                await _writable(sink)
    finally:
        sink.close()


async def _writable(sink: Sink) -> None:
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_writable() -> None:
        if not ready.done():
            ready.set_result(None)

    sink.wait(on_writable)
    try:
        await ready
    finally:
        sink.stop_waiting()
