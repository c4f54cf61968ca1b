"""Whole frames into a non-blocking pipe, in order, knowing for each whether it left.

A frame that was begun is finished even if its caller has gone, because half a frame would spoil the next one; a frame
that was not begun can still be taken back.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

BUFFER_LIMIT = 32 * 1024 * 1024  # bytes waiting in line for one server


@dataclass(slots=True)
class Frame:
    """One frame in line."""

    data: bytes
    on_sent: Callable[[], None] | None
    done: asyncio.Future[None] = field(repr=False)  # ends when the kernel has all of it
    offset: int = 0


class PipeFull(Exception):
    """The line of frames waiting to be written is at its limit."""


class PipeBroken(Exception):
    """The reader of the pipe is gone."""


class PipeWriter:
    def __init__(self, fd: int, limit: float, on_stuck: Callable[[], None], on_broken: Callable[[], None]) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Frame] = deque()
        self._bytes = 0
        self._limit = limit
        self._on_stuck = on_stuck
        self._on_broken = on_broken
        self._stuck: asyncio.TimerHandle | None = None
        self.closed = False

    def write_nowait(self, data: bytes, on_sent: Callable[[], None] | None = None) -> Frame:
        """Put `data` in line. Raises `PipeFull` or `PipeBroken`."""
        if self.closed:
            raise PipeBroken
        if self._bytes + len(data) > BUFFER_LIMIT:
            raise PipeFull
        frame = Frame(data, on_sent, self._loop.create_future())
        self._queue.append(frame)
        self._bytes += len(data)
        if len(self._queue) == 1:
            self._flush()
        return frame

    def take_back(self, frame: Frame) -> bool:
        """Take a frame out of the line; False where it was begun, for then it will be finished."""
        if frame.offset or frame.done.done():
            return False
        frame.done.cancel()
        return True

    def close(self) -> None:
        """Close the pipe; whatever is in line is not sent."""
        if self.closed:
            return
        self.closed = True
        self._rest()
        with contextlib.suppress(OSError):
            os.close(self._fd)
        for frame in self._queue:
            if not frame.done.done():
                frame.done.set_exception(PipeBroken())
                frame.done.exception()  # its caller may have gone
        self._queue.clear()
        self._bytes = 0

    def _flush(self) -> None:
        while self._queue:
            frame = self._queue[0]
            if frame.offset == 0 and frame.done.cancelled():
                self._next(frame)
                continue
            try:
                written = os.write(self._fd, memoryview(frame.data)[frame.offset :])
            except BlockingIOError:
                self._wait_for_room()
                return
            except OSError:
                self.close()
                self._on_broken()
                return
            frame.offset += written
            if written and self._stuck is not None:
                self._watch()
            if frame.offset == len(frame.data):
                self._sent(frame)
        self._rest()

    def _sent(self, frame: Frame) -> None:
        if frame.on_sent is not None:
            frame.on_sent()
        if not frame.done.done():
            frame.done.set_result(None)
        self._next(frame)

    def _next(self, frame: Frame) -> None:
        self._queue.popleft()
        self._bytes -= len(frame.data)

    def _wait_for_room(self) -> None:
        if self._stuck is None:
            self._loop.add_writer(self._fd, self._flush)
            self._watch()

    def _watch(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
        self._stuck = self._loop.call_later(self._limit, self._on_stuck)

    def _rest(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
            self._loop.remove_writer(self._fd)
