"""A sink and the end of its chain, as the writer's thread has them: opening, recovery, writing, removing by age.

When a log is opened, its last records are checked; one that was changed stops everything, because what follows it
could not be trusted either. Calls that were begun and never ended get the outcome that is true of them: unknown.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from toolway._version import __version__
from toolway.errors import Certainty
from toolway.telemetry.audit.records import (
    CLOSED,
    INTENT,
    OPENED,
    OUTCOME,
    PRUNED,
    TORN,
    Fields,
    Head,
    Row,
    chained,
    encoded,
    iso,
)
from toolway.telemetry.audit.sink import OneOfSeveral, Sink, SinkBroken
from toolway.telemetry.audit.verify import Altered, prev_of

CHECKED: Final = 100_000  # records that are checked at a start, and at least those of the last run
_COPIED: Final = ("call", "caller", "server", "tool", "method", "effect", "key", "arguments")


@dataclass(frozen=True, slots=True)
class Opened:
    """What was found when a log was opened."""

    head: Head
    recovered: tuple[Fields, ...] = ()  # the outcomes that were written for calls which a crash had cut off
    torn: str = ""


class Chronicle:
    def __init__(
        self, sink: Sink, *, wall: Callable[[], float] = time.time, mono: Callable[[], float] = time.monotonic
    ) -> None:
        self.sink = sink
        self._wall = wall
        self._mono = mono
        self._head = Head()
        self._tried: list[Row] = []  # of whose fate nothing is known: their writing failed
        self._doubt = False

    def open(self) -> Opened:
        """Raises `Altered`, `SinkInUse`, `SinkBroken`, and whatever else stands in the way."""
        torn = self.sink.open()
        head = self.sink.head()
        cut_off = self._look_back()
        recovered = [_unknown(intent) for intent in cut_off]
        self._head = head
        entries = [self._entry(OPENED, {"version": __version__, "pid": os.getpid()})]
        if torn is not None:
            entries.append(self._entry(TORN, {"bytes": torn.size, "kept": torn.kept}))
        entries += [self._entry(OUTCOME, fields) for fields in recovered]
        self.write(entries)
        return Opened(self._head, tuple(recovered), str(torn) if torn is not None else "")

    def write(self, entries: list[bytes]) -> None:
        """On stable storage when it returns. Raises whatever stands in the way, and then none of them is, or will be
        found to be when it is tried again."""
        if self._doubt:
            self._reopen()
        rows = chained(self._head, entries)
        try:
            self.sink.append(rows)
        except Exception:
            self._tried = rows
            self._doubt = True
            raise
        self._head = Head(rows[-1].seq, rows[-1].hash)

    def remove_old(self, keep: float) -> bool:
        """Remove some of what is older than `keep` seconds; whether there was any."""
        if self._doubt:
            return False
        last = self.sink.removable(iso(self._wall() - keep))
        if last is None:
            return False
        self.write([self._entry(PRUNED, {"through": last.seq, "hash": last.hash})])
        self.sink.remove(last.seq)
        return True

    def close(self) -> None:
        try:
            if not self._doubt:
                self.write([self._entry(CLOSED, {})])
        finally:
            self.sink.close()

    def _entry(self, kind: str, fields: Fields) -> bytes:
        return encoded(kind, self._wall(), self._mono(), fields)

    def _reopen(self) -> None:
        """After a failure: is what was tried stored or not, and is it still the log that we wrote?"""
        self.sink.open()
        found = self.sink.head()
        tried = {Head(row.seq, row.hash) for row in self._tried[-1:]}
        lost = found != self._head and found not in tried
        if lost and found != Head() and isinstance(self.sink, OneOfSeveral) and self.sink.begin_another():
            found = Head()  # another writer went on with ours
        if found == Head() and self._head != Head():
            # Somebody took the file away. A new log begins, and says which one it goes on with.
            after = {"seq": self._head.seq, "hash": self._head.hash}
            rows = chained(found, [self._entry(OPENED, {"version": __version__, "pid": os.getpid(), "after": after})])
            self.sink.append(rows)
            found = Head(rows[-1].seq, rows[-1].hash)
        elif lost:
            raise SinkBroken(f"{self.sink.where} does not end with what was last written to it")
        self._head, self._tried, self._doubt = found, [], False

    def _look_back(self) -> list[Fields]:
        """Check the last records; the intents of the last run that have no outcome, oldest first."""
        ended: set[str] = set()
        cut_off: list[Fields] = []
        for row, in_last_run in tied(self.sink.backward()):
            if not in_last_run:
                continue
            fields = _fields(row)
            kind, call = fields.get("kind"), str(fields.get("call", ""))
            if kind == OUTCOME:
                ended.add(call)
            elif kind == INTENT and call not in ended:
                cut_off.append(fields)
        return cut_off[::-1]


def tied(rows: Iterator[Row]) -> Iterator[tuple[Row, bool]]:
    """The last rows, newest first, each checked against the one after it, and whether it is of the last run. Raises
    `Altered`."""
    wanted = ""
    seq = 0
    in_last_run = True
    for count, row in enumerate(rows, 1):
        prev = prev_of(row)
        if wanted and row.seq != seq - 1:
            raise Altered(seq, f"it stands after record {row.seq}: what was between them is missing")
        if wanted and row.hash != wanted:
            raise Altered(seq, f"it is tied to another record than the {row.seq} that stands before it")
        yield row, in_last_run
        if in_last_run and _fields(row).get("kind") == OPENED:
            in_last_run = False
        if not in_last_run and count >= CHECKED:
            return
        wanted, seq = prev, row.seq


def _fields(row: Row) -> Fields:
    try:
        return row.fields()
    except ValueError as exc:
        raise Altered(row.seq, f"it cannot be read: {exc}") from None


def _unknown(intent: Fields) -> Fields:
    fields: Fields = {name: intent[name] for name in _COPIED if name in intent}
    known = {"certainty": Certainty.C2.name, "outcome": "unknown"}
    return {**fields, **known, "recovered": True, "intent": intent.get("seq")}
