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
from collections.abc import Callable
from typing import Final, NamedTuple

from toolway.secrets.known import hide
from toolway.telemetry.audit.chronicle import Chronicle, Opened
from toolway.telemetry.audit.records import RESUMED, Fields, encoded, stamped
from toolway.telemetry.audit.scribe import Scribe
from toolway.telemetry.audit.sink import Sink

BUFFER: Final = 10_000  # records that wait for the disk
BUFFER_BYTES: Final = 32 * 1024 * 1024
GROUP: Final = 2_000  # records of one write that are waited for, and as many others
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


class _Group(NamedTuple):
    """Records of one write: those that somebody waits for, who waits for each, and the others."""

    intents: list[bytes]
    waiters: list[asyncio.Future[None]]
    notes: list[bytes]

    def __len__(self) -> int:
        return len(self.intents) + len(self.notes)


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
        self._intents: list[bytes] = []  # to be written, like the notes; these are waited for
        self._waiters: list[asyncio.Future[None]] = []
        self._notes: list[bytes] = []
        self._bytes = 0  # of both
        self._group: _Group | None = None  # what is being written
        self._timer: asyncio.Handle | None = None  # begins the next write
        self._at_once = False  # and does so at the end of this turn
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
            _log.error("%d records of the audit log were not written: %s", self.waiting, exc)
        finally:
            self._closed = True
            for handle in (self._timer, self._alarm, self._old):
                if handle is not None:
                    handle.cancel()
            self._scribe.end()

    @property
    def waiting(self) -> int:
        """Records that are not on disk yet."""
        return len(self._intents) + len(self._notes) + (len(self._group) if self._group is not None else 0)

    # -- taking -------------------------------------------------------------------------------------------------------

    def note(self, kind: bytes, rest: bytes) -> None:
        """Write it down soon. Where there is no place for it, it is counted."""
        if len(self._notes) >= BUFFER or self._bytes > BUFFER_BYTES or self._closed:
            self.lost += 1
            self.lost_ever += 1
            self._fail(FULL)
            return
        data = stamped(kind, self._wall(), self._loop.time(), rest)
        self._bytes += len(data)
        self._notes.append(data)
        if self._timer is None and self._group is None:
            self._timer = self._loop.call_later(SOON, self._write)

    def intend(self, kind: bytes, rest: bytes) -> asyncio.Future[None]:
        """What is done when the record is on stable storage. It raises `LogUnavailable`, and so does this."""
        if self.trouble is not None:
            raise LogUnavailable(self.trouble.why)
        if len(self._intents) >= BUFFER or self._bytes > BUFFER_BYTES or self._closed:
            self._fail(FULL)
            raise LogUnavailable(FULL)
        data = stamped(kind, self._wall(), self._loop.time(), rest)
        self._bytes += len(data)
        self._intents.append(data)
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        if self._group is None and not self._at_once:
            self._write_soon()
        return waiter

    async def flush(self) -> None:
        """Return when all that was noted is on disk. Raises `LogUnavailable`."""
        while self.waiting:
            if self.trouble is not None:
                raise LogUnavailable(self.trouble.why)
            turn: asyncio.Future[None] = self._loop.create_future()
            self._turns.append(turn)
            if self._group is None:
                self._write_soon()
            await turn

    # -- writing ------------------------------------------------------------------------------------------------------

    def _write_soon(self) -> None:
        """At the end of this turn of the loop, whatever was planned for later."""
        if self._at_once:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._at_once = True
        self._timer = self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._timer, self._at_once = None, False
        if self._group is not None or not (self._intents or self._notes or self.trouble):
            return
        group = self._group = _Group(self._intents[:GROUP], self._waiters[:GROUP], self._notes[:GROUP])
        self._intents, self._waiters = self._intents[GROUP:], self._waiters[GROUP:]
        self._notes = self._notes[GROUP:]
        self._count_bytes()
        self._told = self.trouble is not None
        entries = [*group.intents, *group.notes]  # no outcome before its intent
        if self.trouble is not None:
            entries.insert(0, self._resumed(self.trouble))
        self._alarm = self._loop.call_later(self._patience, self._stuck)
        self._scribe.do(lambda: self._chronicle.write(entries), self._written)

    def _written(self, result: None, error: Exception | None) -> None:
        """The write under way has ended."""
        group, self._group = self._group, None
        assert group is not None
        if self._alarm is not None:
            self._alarm.cancel()
        if error is not None:
            self._notes[:0] = group.notes  # tried again; who waited is refused
            self._count_bytes()
            _refuse(group.waiters, "the audit log could not be written")
            self._fail(str(error) or type(error).__name__)
            self._timer = self._loop.call_later(self._pause, self._write)
            self._pause = min(2 * self._pause, AGAIN[1])
        else:
            self.groups += 1
            self.written += len(group)
            for waiter in group.waiters:
                if not waiter.done():
                    waiter.set_result(None)
            if self.trouble is not None:
                self._recover(self.trouble)
            self._go_on()
        turns, self._turns = self._turns, []
        for turn in turns:
            if not turn.done():
                turn.set_result(None)

    def _go_on(self) -> None:
        """Begin the next write: at the end of this turn where somebody waits for it, else when more has come."""
        if self._intents or self._turns or len(self._notes) >= GROUP:
            self._write_soon()
        elif self._notes and self._timer is None:
            self._timer = self._loop.call_later(SOON, self._write)

    def _count_bytes(self) -> None:
        self._bytes = sum(map(len, self._intents)) + sum(map(len, self._notes))

    # -- trouble ------------------------------------------------------------------------------------------------------

    def _stuck(self) -> None:
        if self._group is not None:
            _refuse(self._group.waiters, "the audit log takes too long to be written")
        self._fail(f"{self.where} has not answered for {self._patience:g} s")

    def _fail(self, why: str) -> None:
        """Whoever waits is refused: what he wanted to do is not done, so his intent need not be written."""
        waiters = self._waiters
        self._intents, self._waiters = [], []
        self._count_bytes()
        _refuse(waiters, why)
        if self.trouble is None and not self._closed:
            self.trouble = Trouble(why, self._loop.time())
            _log.error("the audit log cannot be written, so calls that change something are refused: %s", why)
            self._on_trouble(why, 0)

    def _recover(self, trouble: Trouble) -> None:
        self.trouble = None
        self._pause = AGAIN[0]
        lost = self.lost
        if not self._told:
            self._notes.append(self._resumed(trouble))
        self.lost = 0
        _log.warning("the audit log is written again; %d records were lost", lost)
        self._on_trouble("", lost)

    def _resumed(self, trouble: Trouble) -> bytes:
        seconds = round(self._loop.time() - trouble.since, 3)
        fields: Fields = {"why": hide(trouble.why)[:500], "seconds": seconds, "lost": self.lost}
        return encoded(RESUMED, self._wall(), self._loop.time(), fields)

    # -- what is too old ----------------------------------------------------------------------------------------------

    def _remove_old(self) -> None:
        if self._keep:
            self._scribe.do(lambda: self._chronicle.remove_old(self._keep), self._removed_old)

    def _removed_old(self, more: bool | None, error: Exception | None) -> None:
        if error is not None:
            _log.error("old records of the audit log could not be removed: %s", error)
        if not self._closed:
            self._old = self._loop.call_later(1.0 if more else LOOK, self._remove_old)


def _refuse(waiters: list[asyncio.Future[None]], why: str) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_exception(LogUnavailable(why))
            waiter.exception()  # whoever waited may have left
