"""The loop's side of the log: many records to one write, and what happens while it cannot be written.

A record that somebody waits for is written at the end of this turn of the loop, with all others that have come until
then; those that come while the disk is busy are the next group. So there are many calls to an fsync, and one fsync
under way. Records that nobody waits for go along, or follow soon.

While the log cannot be written, be it for an error, a disk that does not answer, or a full buffer, nothing is promised:
`intend` refuses at once. What is noted meanwhile is kept, up to a limit, and written when the log is well again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from toolway.secrets.known import hide
from toolway.telemetry.audit.chronicle import Chronicle, Opened
from toolway.telemetry.audit.records import RESUMED, Fields, encoded
from toolway.telemetry.audit.scribe import Scribe
from toolway.telemetry.audit.sink import Sink

BUFFER: Final = 10_000  # records that wait for the disk
BUFFER_BYTES: Final = 32 * 1024 * 1024
GROUP: Final = 2_000  # records of one write
SOON: Final = 0.05  # seconds that a record may wait which nobody waits for
PATIENCE: Final = 10.0  # seconds in which a write must have ended, or the disk is taken for dead
AGAIN: Final = (0.1, 2.0)  # seconds between two tries to write: at first, and at most
OPENING: Final = 60.0
CLOSING: Final = 5.0
LOOK: Final = 3600.0  # seconds between two looks for what is too old
FULL: Final = "too many records wait to be written"
_log = logging.getLogger("toolway.audit")


class LogUnavailable(Exception):
    """The log cannot be written now, so nothing was promised."""


class _Entry(NamedTuple):
    data: bytes
    waiter: asyncio.Future[None] | None
    passing: bool = False  # made for one write, and not to be kept for another


class Trouble(NamedTuple):
    """Why the log cannot be written, and since when, on the loop's clock."""

    why: str
    since: float


class Ledger:
    def __init__(
        self,
        sink: Sink,
        *,
        keep: float = 0.0,
        patience: float = PATIENCE,
        wall: Callable[[], float] = time.time,
        on_trouble: Callable[[str, int], None] = lambda why, lost: None,
    ) -> None:
        """`keep`: seconds for which records are kept; 0 for ever. `on_trouble` hears why the log cannot be written,
        and an empty reason, with the number of records that were lost, when it can again."""
        self._chronicle = Chronicle(sink, wall=wall)
        self._keep = keep
        self._patience = patience
        self._wall = wall
        self._on_trouble = on_trouble
        self._buffer: deque[_Entry] = deque()
        self._bytes = 0
        self._writing: list[_Entry] = []
        self._timer: asyncio.Handle | None = None  # begins the next write
        self._alarm: asyncio.TimerHandle | None = None  # the write under way takes too long
        self._old: asyncio.TimerHandle | None = None
        self._turns: list[asyncio.Future[None]] = []  # of those who wait for the end of the write under way
        self._told = False  # the write under way tells of the trouble
        self._pause = AGAIN[0]
        self._closed = True
        self.where = sink.where
        self.trouble: Trouble | None = None
        self.lost = 0  # records that had no place in the buffer, since the log was last well
        self.lost_ever = 0
        self.written = 0
        self.groups = 0

    async def open(self) -> Opened:
        """Raises whatever `Chronicle.open` does, and `TimeoutError`."""
        self._loop = asyncio.get_running_loop()
        self._scribe = Scribe("toolway-audit")
        try:
            opened = await self._scribe.wait(self._chronicle.open, OPENING)
        except BaseException:
            self._scribe.do(self._chronicle.sink.close, lambda result, error: None)
            self._scribe.end()
            raise
        self._closed = False
        self._remove_old()
        return opened

    async def close(self) -> None:
        """Write what is left, for a few seconds at most."""
        if self._closed:
            return
        try:
            async with asyncio.timeout(CLOSING):
                await self.flush()
                await self._scribe.wait(self._chronicle.close, CLOSING)
        except Exception as exc:
            _log.error("%d records of the audit log were not written: %s", len(self._buffer) + len(self._writing), exc)
        finally:
            self._closed = True
            for handle in (self._timer, self._alarm, self._old):
                if handle is not None:
                    handle.cancel()
            self._scribe.end()

    @property
    def waiting(self) -> int:
        """Records that are not on disk yet."""
        return len(self._buffer) + len(self._writing)

    # -- taking -------------------------------------------------------------------------------------------------------

    def note(self, kind: str, fields: Fields) -> None:
        """Write it down soon. Where there is no place for it, it is counted."""
        data = self._encoded(kind, fields)
        if not self._has_place(data):
            self.lost += 1
            self.lost_ever += 1
            self._fail(FULL)
            return
        self._put(data, None)
        if self._timer is None and not self._writing:
            self._timer = self._loop.call_later(SOON, self._write)

    def intend(self, kind: str, fields: Fields) -> asyncio.Future[None]:
        """What is done when the record is on stable storage. It raises `LogUnavailable`, and so does this."""
        if self.trouble is not None:
            raise LogUnavailable(self.trouble.why)
        data = self._encoded(kind, fields)
        if not self._has_place(data):
            self._fail(FULL)
            raise LogUnavailable(FULL)
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._put(data, waiter)
        if not self._writing:
            self._write_soon()
        return waiter

    async def flush(self) -> None:
        """Return when all that was noted is on disk. Raises `LogUnavailable`."""
        while self.waiting:
            if self.trouble is not None:
                raise LogUnavailable(self.trouble.why)
            turn: asyncio.Future[None] = self._loop.create_future()
            self._turns.append(turn)
            if not self._writing:
                self._write_soon()
            await turn

    def _encoded(self, kind: str, fields: Fields) -> bytes:
        return encoded(kind, self._wall(), self._loop.time(), fields)

    def _has_place(self, data: bytes) -> bool:
        return len(self._buffer) < BUFFER and self._bytes + len(data) <= BUFFER_BYTES and not self._closed

    def _put(self, data: bytes, waiter: asyncio.Future[None] | None) -> None:
        self._buffer.append(_Entry(data, waiter))
        self._bytes += len(data)

    # -- writing ------------------------------------------------------------------------------------------------------

    def _write_soon(self) -> None:
        """At the end of this turn of the loop, whatever was planned for later."""
        if self._timer is not None:
            if not isinstance(self._timer, asyncio.TimerHandle):
                return
            self._timer.cancel()
        self._timer = self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._timer = None
        if self._writing or not (self._buffer or self.trouble):
            return
        group = self._writing = [self._buffer.popleft() for _ in range(min(GROUP, len(self._buffer)))]
        self._bytes -= sum(len(entry.data) for entry in group)
        self._told = self.trouble is not None
        if self.trouble is not None:
            group.insert(0, _Entry(self._resumed(self.trouble), None, True))
        entries = [entry.data for entry in group]
        self._alarm = self._loop.call_later(self._patience, self._stuck)
        self._scribe.do(lambda: self._chronicle.write(entries), self._written)

    def _written(self, result: None, error: Exception | None) -> None:
        """The write under way has ended."""
        if self._alarm is not None:
            self._alarm.cancel()
        group, self._writing = self._writing, []
        if error is not None:
            self._put_back(group)
            self._fail(str(error) or type(error).__name__)
            self._timer = self._loop.call_later(self._pause, self._write)
            self._pause = min(2 * self._pause, AGAIN[1])
        else:
            self.groups += 1
            self.written += len(group)
            for entry in group:
                if entry.waiter is not None and not entry.waiter.done():
                    entry.waiter.set_result(None)
            if self.trouble is not None:
                self._recover(self.trouble)
            self._write()
        turns, self._turns = self._turns, []
        for turn in turns:
            if not turn.done():
                turn.set_result(None)

    def _put_back(self, group: list[_Entry]) -> None:
        """What nobody waited for is tried again; who waited is refused."""
        again = [entry for entry in group if entry.waiter is None and not entry.passing]
        self._buffer.extendleft(reversed(again))
        self._bytes += sum(len(entry.data) for entry in again)
        _refuse(group, "the audit log could not be written")

    # -- trouble ------------------------------------------------------------------------------------------------------

    def _stuck(self) -> None:
        self._fail(f"{self.where} has not answered for {self._patience:g} s")
        _refuse(self._writing, "the audit log takes too long to be written")

    def _fail(self, why: str) -> None:
        """Whoever waits is refused: what he wanted to do is not done, so his intent need not be written."""
        waiting = [entry for entry in self._buffer if entry.waiter is not None]
        if waiting:
            self._buffer = deque(entry for entry in self._buffer if entry.waiter is None)
            self._bytes = sum(len(entry.data) for entry in self._buffer)
            _refuse(waiting, why)
        if self.trouble is None:
            self.trouble = Trouble(why, self._loop.time())
            _log.error("the audit log cannot be written, so calls that change something are refused: %s", why)
            self._on_trouble(why, 0)

    def _recover(self, trouble: Trouble) -> None:
        self.trouble = None
        self._pause = AGAIN[0]
        lost = self.lost
        if not self._told:
            self._put(self._resumed(trouble), None)
        self.lost = 0
        _log.warning("the audit log is written again; %d records were lost", lost)
        self._on_trouble("", lost)

    def _resumed(self, trouble: Trouble) -> bytes:
        seconds = round(self._loop.time() - trouble.since, 3)
        return self._encoded(RESUMED, {"why": hide(trouble.why)[:500], "seconds": seconds, "lost": self.lost})

    # -- what is too old ----------------------------------------------------------------------------------------------

    def _remove_old(self) -> None:
        if self._keep:
            self._scribe.do(lambda: self._chronicle.remove_old(self._keep), self._removed_old)

    def _removed_old(self, more: bool | None, error: Exception | None) -> None:
        if error is not None:
            _log.error("old records of the audit log could not be removed: %s", error)
        if not self._closed:
            self._old = self._loop.call_later(1.0 if more else LOOK, self._remove_old)


def _refuse(entries: list[_Entry], why: str) -> None:
    for entry in entries:
        if entry.waiter is not None and not entry.waiter.done():
            entry.waiter.set_exception(LogUnavailable(why))
            entry.waiter.exception()  # whoever waited may have left
