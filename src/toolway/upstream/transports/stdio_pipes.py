"""A server process's pipes: lines from its stdout, and ordered writes to its stdin.

`Framer` splits a byte stream into lines, in linear time and bounded memory. A line over the limit is reported once,
with its first bytes, and skipped to its newline.

`PipeWriter` writes whole frames to a pipe that never blocks, with a sent flag for each frame. A partly written frame
is completed even if its caller is cancelled, because half a frame would corrupt the next one. A frame that was not
begun can still be cancelled. The first frame in a turn of the event loop is written at once. Later frames of the same
turn are written together at its end, in one system call, because system calls dominate the cost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final

import msgspec

from toolway.upstream.process.pipes import Sink

OVERSIZED_HEAD_BYTES = 4096  # bytes kept of an oversized line: enough to read an id


class OversizedLine(msgspec.Struct, frozen=True):
    """Line of the server's output that exceeds the limit. `head` is its first bytes."""

    head: bytes


class Framer:
    """Incremental splitter of a server's output into lines, with a limit for each line."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # The unfinished line, in one buffer: a thousand small chunks would each cost an object.
        self._buffer = bytearray()
        self.skipped = 0  # bytes skipped of the current oversized line; 0 if there is none

    @property
    def has_partial(self) -> bool:
        """Return True if a line was received only partly so far."""
        return bool(self._buffer)

    @property
    def partial_head(self) -> bytes:
        """Return the first bytes of the partly received line; empty if there is none."""
        return bytes(self._buffer[:OVERSIZED_HEAD_BYTES])

    def feed(self, chunk: bytes) -> list[bytes | OversizedLine]:
        """Return the lines that `chunk` completes, without newlines.

        A line over the limit is reported once, as an `OversizedLine`, as soon as it exceeds the limit.
        """
        *lines, rest = chunk.split(b"\n")
        out: list[bytes | OversizedLine] = []
        for line in lines:
            done = self._finish_line(line) if self._buffer or self.skipped or len(line) > self._limit else line
            if done is not None:
                out.append(done)
        if rest:
            over = self._append(rest)
            if over is not None:
                out.append(over)
        return out

    def _finish_line(self, tail: bytes) -> bytes | OversizedLine | None:
        if self.skipped:
            self.skipped = 0
            return None
        line = tail
        if self._buffer:
            self._buffer += tail
            line = bytes(self._buffer)
            self._buffer = bytearray()
        return OversizedLine(line[:OVERSIZED_HEAD_BYTES]) if len(line) > self._limit else line

    def _append(self, rest: bytes) -> OversizedLine | None:
        if self.skipped:
            self.skipped += len(rest)
            return None
        self._buffer += rest
        if len(self._buffer) <= self._limit:
            return None
        over = OversizedLine(self.partial_head)
        self.skipped, self._buffer = len(self._buffer), bytearray()
        return over


# -- writing ----------------------------------------------------------------------------------------------------------

MAX_QUEUED_BYTES: Final = 32 * 1024 * 1024  # bytes queued for one server
MAX_FRAMES_PER_WRITE: Final = 64  # frames in one system call


class Frame(msgspec.Struct, eq=False):
    """One message (line) in the write queue of a pipe, with its sent and cancelled flags."""

    data: bytes
    on_sent: Callable[[], None] | None
    may_send: Callable[[], bool] | None = None  # if set, asked before its first byte is written
    sent: bool = False  # the kernel has all of it
    cancelled: bool = False

    def __repr__(self) -> str:
        return object.__repr__(self)  # without the message, which may have secrets


class PipeFull(Exception):
    """Raised when a frame would exceed the byte limit of the write queue."""


class PipeBroken(Exception):
    """Raised when a frame is written to a pipe that is closed, by us or by its reader."""


class PipeWriter:
    """Write queue of one pipe to a server process.

    Calls `on_stuck` if the server reads nothing for `stuck_timeout` seconds, and `on_broken` if the pipe breaks.
    """

    def __init__(
        self, sink: Sink, stuck_timeout: float, on_stuck: Callable[[], None], on_broken: Callable[[], None]
    ) -> None:
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Frame] = deque()
        self._offset = 0  # bytes of the first frame that are written
        self._queued_bytes = 0
        self._stuck_timeout = stuck_timeout
        self._on_stuck = on_stuck
        self._on_broken = on_broken
        self._stuck_timer: asyncio.TimerHandle | None = None
        self._flushed_this_turn = False  # True if a frame was written in this turn of the event loop
        self.may_write: Callable[[], bool] | None = None  # if set, checked before every write
        self.closed = False

    def write_nowait(self, data: bytes, on_sent: Callable[[], None] | None = None) -> Frame:
        """Queue `data` as one frame and return the frame.

        Raises `PipeFull` if the queue is at its limit, and `PipeBroken` if the pipe is closed.
        """
        if self.closed:
            raise PipeBroken
        if self._queued_bytes + len(data) > MAX_QUEUED_BYTES:
            raise PipeFull
        frame = Frame(data, on_sent)
        self._queue.append(frame)
        self._queued_bytes += len(data)
        if not self._flushed_this_turn and self._stuck_timer is None:
            self._flushed_this_turn = True
            self._loop.call_soon(self._on_turn_end)
            self._flush()
        return frame

    def cancel(self, frame: Frame) -> bool:
        """Cancel a queued frame before it is written.

        Return False if it is partly or fully written; a partly written frame is completed.
        """
        if frame.sent or (self._offset and self._queue and self._queue[0] is frame):
            return False
        frame.cancelled = True
        return True

    def close(self) -> None:
        """Close the pipe and drop all queued frames, which are then never written."""
        if self.closed:
            return
        self.closed = True
        self._stop_waiting()
        self._sink.close()
        self._queue.clear()
        self._queued_bytes = 0

    def _on_turn_end(self) -> None:
        self._flushed_this_turn = False
        if self._queue and self._stuck_timer is None and not self.closed:
            self._flush()

    def _flush(self) -> None:
        while self._queue:
            first = self._queue[0]
            if not self._offset and (first.cancelled or (first.may_send is not None and not first.may_send())):
                self._pop_frame()
                continue
            if self.may_write is not None and not self.may_write():
                self.close()
                self._on_broken()
                return
            try:
                written = self._sink.write(self._next_buffers())
            except BlockingIOError:
                self._wait_writable()
                return
            except OSError:
                self.close()
                self._on_broken()
                return
            if written and self._stuck_timer is not None:
                self._restart_stuck_timer()
            self._on_written(written)
            if self._sink.is_pending:
                self._wait_writable()
                return
        if self._stuck_timer is not None:
            self._stop_waiting()

    def _next_buffers(self) -> list[bytes | memoryview]:
        """Return the buffers of the next write: the rest of the first frame, and frames after it."""
        first = self._queue[0].data
        pieces: list[bytes | memoryview] = [memoryview(first)[self._offset :] if self._offset else first]
        for frame in islice(self._queue, 1, MAX_FRAMES_PER_WRITE):
            if frame.may_send is not None:
                break  # it is asked when it is the first one
            if not frame.cancelled:
                pieces.append(frame.data)
        return pieces

    def _on_written(self, written: int) -> None:
        """Advance the queue by `written` bytes and mark the frames that are fully written.

        Cancelled frames are removed.
        """
        queue = self._queue
        while queue:
            frame = queue[0]
            if frame.cancelled and not self._offset:
                self._pop_frame()
                continue
            size = len(frame.data)
            left = size - self._offset
            if written < left:
                self._offset += written
                return
            written -= left
            self._offset = 0
            queue.popleft()
            self._queued_bytes -= size
            frame.sent = True
            on_sent, frame.on_sent = frame.on_sent, None  # it refers to the request, which refers to this frame
            if on_sent is not None:
                on_sent()
            if not written:
                return

    def _pop_frame(self) -> None:
        self._queued_bytes -= len(self._queue.popleft().data)

    def _wait_writable(self) -> None:
        if self._stuck_timer is None:
            self._sink.wait(self._flush)
            self._restart_stuck_timer()

    def _restart_stuck_timer(self) -> None:
        if self._stuck_timer is not None:
            self._stuck_timer.cancel()
        self._stuck_timer = self._loop.call_later(self._stuck_timeout, self._on_stuck)

    def _stop_waiting(self) -> None:
        if self._stuck_timer is not None:
            self._stuck_timer.cancel()
            self._stuck_timer = None
            self._sink.stop_waiting()
