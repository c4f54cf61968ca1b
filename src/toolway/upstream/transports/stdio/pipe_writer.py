"""Whole frames into a non-blocking pipe, in order, knowing for each whether it left.

A frame that was begun is finished even if its caller has gone, because half a frame would spoil the next one; a frame
that was not begun can still be taken back.

The first frame of a turn of the loop is written at once; those that follow in the same turn leave together at its end,
in one system call, which costs more than all the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final

BUFFER_LIMIT: Final = 32 * 1024 * 1024  # bytes waiting in line for one server
TOGETHER: Final = 64  # frames in one system call


class Frame:
    """One frame in line."""

    __slots__ = ("data", "on_sent", "sent", "taken_back")

    def __init__(self, data: bytes, on_sent: Callable[[], None] | None) -> None:
        self.data = data
        self.on_sent = on_sent
        self.sent = False  # the kernel has all of it
        self.taken_back = False


class PipeFull(Exception):
    """The line of frames waiting to be written is at its limit."""


class PipeBroken(Exception):
    """The reader of the pipe is gone."""


class PipeWriter:
    def __init__(self, fd: int, limit: float, on_stuck: Callable[[], None], on_broken: Callable[[], None]) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Frame] = deque()
        self._offset = 0  # bytes of the first frame that have left
        self._bytes = 0
        self._limit = limit
        self._on_stuck = on_stuck
        self._on_broken = on_broken
        self._stuck: asyncio.TimerHandle | None = None
        self._in_turn = False  # something was written in this turn of the loop
        self.may_write: Callable[[], bool] | None = None  # asked before every write, where that may end
        self.closed = False

    def write_nowait(self, data: bytes, on_sent: Callable[[], None] | None = None) -> Frame:
        """Put `data` in line. Raises `PipeFull` or `PipeBroken`."""
        if self.closed:
            raise PipeBroken
        if self._bytes + len(data) > BUFFER_LIMIT:
            raise PipeFull
        frame = Frame(data, on_sent)
        self._queue.append(frame)
        self._bytes += len(data)
        if not self._in_turn and self._stuck is None:
            self._in_turn = True
            self._loop.call_soon(self._end_turn)
            self._flush()
        return frame

    def take_back(self, frame: Frame) -> bool:
        """Take a frame out of the line; False where it was begun, for then it will be finished."""
        if frame.sent or (self._offset and self._queue and self._queue[0] is frame):
            return False
        frame.taken_back = True
        return True

    def close(self) -> None:
        """Close the pipe; whatever is in line is not sent."""
        if self.closed:
            return
        self.closed = True
        self._rest()
        with contextlib.suppress(OSError):
            os.close(self._fd)
        self._queue.clear()
        self._bytes = 0

    def _end_turn(self) -> None:
        self._in_turn = False
        if self._queue and self._stuck is None and not self.closed:
            self._flush()

    def _flush(self) -> None:
        while self._queue:
            if self._queue[0].taken_back and not self._offset:
                self._next()
                continue
            if self.may_write is not None and not self.may_write():
                self.close()
                self._on_broken()
                return
            try:
                written = os.writev(self._fd, self._pieces())
            except BlockingIOError:
                self._wait_for_room()
                return
            except OSError:
                self.close()
                self._on_broken()
                return
            if written and self._stuck is not None:
                self._watch()
            self._account(written)
        self._rest()

    def _pieces(self) -> list[bytes | memoryview]:
        """What is to leave next: the rest of the first frame, and those behind it."""
        first = self._queue[0].data
        pieces: list[bytes | memoryview] = [memoryview(first)[self._offset :] if self._offset else first]
        pieces += [frame.data for frame in islice(self._queue, 1, TOGETHER) if not frame.taken_back]
        return pieces

    def _account(self, written: int) -> None:
        """So many bytes have left: those of the frames in line, but for what was taken back."""
        while self._queue:
            frame = self._queue[0]
            if frame.taken_back and not self._offset:
                self._next()
                continue
            left = len(frame.data) - self._offset
            if written < left:
                self._offset += written
                return
            written -= left
            self._offset = 0
            self._next()
            frame.sent = True
            if frame.on_sent is not None:
                frame.on_sent()
            if not written:
                return

    def _next(self) -> None:
        self._bytes -= len(self._queue.popleft().data)

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
