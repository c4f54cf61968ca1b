"""The ends of a server's pipes on Linux and macOS: non-blocking descriptors that the event loop watches."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable

from toolway.upstream.process.pipes import READ_BYTES, Buffers

assert sys.platform != "win32"


class FdSource:
    """Readable end of a pipe, as a non-blocking file descriptor."""

    __slots__ = ("_fd", "_loop", "_on_data", "is_open")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._on_data: Callable[[bytes], None] | None = None
        self.is_open = True

    def start(self, on_data: Callable[[bytes], None]) -> None:
        self._on_data = on_data
        self.resume()

    def resume(self) -> None:
        if self.is_open:
            self._loop.add_reader(self._fd, self._read)

    def pause(self) -> None:
        if self.is_open:
            self._loop.remove_reader(self._fd)

    def close(self) -> None:
        if self.is_open:
            if self._on_data is not None:
                self._loop.remove_reader(self._fd)
            self.is_open = False
            self._on_data = None
            os.close(self._fd)

    def _read(self) -> None:
        try:
            chunk = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        on_data = self._on_data
        assert on_data is not None
        if not chunk:
            self.close()
        on_data(chunk)


class FdSink:
    """Writable end of a pipe, as a non-blocking file descriptor."""

    __slots__ = ("_fd", "_loop")
    is_pending = False

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()

    def write(self, buffers: Buffers) -> int:
        return os.writev(self._fd, buffers)

    def wait(self, on_writable: Callable[[], None]) -> None:
        self._loop.add_writer(self._fd, on_writable)

    def stop_waiting(self) -> None:
        self._loop.remove_writer(self._fd)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._fd)
