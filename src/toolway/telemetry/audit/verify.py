"""Whether a log is as it was written: every record's hash, its tie to the one before it, and no number left out."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from toolway.telemetry.audit.records import GENESIS, INTENT, OUTCOME, PRUNED, Head, Row

_BEGIN: Final = re.compile(rb'\{"seq":([0-9]{1,18}),"prev":"([0-9a-f]{64})",')


class Altered(Exception):
    """A record is not as it was written, or one is missing."""

    def __init__(self, seq: int, why: str) -> None:
        super().__init__(f"record {seq}: {why}")
        self.seq = seq
        self.why = why


@dataclass(frozen=True, slots=True)
class Verified:
    """What a whole log holds."""

    records: int
    first: int
    head: Head
    intents: int
    open: int  # intents of which nothing more is written: calls under way, or cut off by a crash not yet recovered


def prev_of(row: Row) -> str:
    """The hash to which a record says that it is tied. Raises `Altered` where the record is not as it was written."""
    if hashlib.sha256(row.body).hexdigest() != row.hash:
        raise Altered(row.seq, "its content does not fit its hash: it was changed after it was written")
    begin = _BEGIN.match(row.body)
    if begin is None or int(begin[1]) != row.seq:
        raise Altered(row.seq, "its content has another number than its place")
    return begin[2].decode()


def follows(row: Row, before: Head) -> Head:
    """The head after `row`. Raises `Altered`."""
    if row.seq != before.seq + 1:
        raise Altered(row.seq, f"it stands after record {before.seq}: what was between them is missing")
    if prev_of(row) != before.hash:
        raise Altered(row.seq, f"it is tied to another record than the {before.seq} that stands before it")
    return Head(row.seq, row.hash)


def verify(rows: Iterable[Row], each: Callable[[int], None] = lambda _: None) -> Verified:
    """Look through a whole log, oldest first. `each` hears how far it got. Raises `Altered`."""
    head = begin = Head()
    removed: list[Head] = []
    intents: set[str] = set()
    count = begun = 0
    for row in rows:
        if not count:
            head = begin = Head(row.seq - 1, prev_of(row))
        head = follows(row, head)
        count += 1
        kind, call, through = _gist(row)
        if kind == INTENT:
            begun += 1
            intents.add(call)
        elif kind == OUTCOME:
            intents.discard(call)
        elif kind == PRUNED and through is not None:
            removed.append(through)
        each(count)
    if count and begin != Head() and not _was_removed(begin, removed):
        raise Altered(begin.seq + 1, "what was before it is missing, and no record says that it was removed by its age")
    return Verified(count, begin.seq + 1, head, begun, len(intents))


def _was_removed(begin: Head, removed: list[Head]) -> bool:
    """Whether the log says itself why it begins where it does. What may be removed may still be there in part."""
    return begin in removed or any(each.seq > begin.seq for each in removed)


class _Gist(msgspec.Struct):
    kind: str = ""
    call: str = ""
    through: int | None = None
    hash: str = GENESIS


_decode = msgspec.json.Decoder(_Gist).decode


def _gist(row: Row) -> tuple[str, str, Head | None]:
    try:
        found = _decode(row.body)
    except ValueError as exc:
        raise Altered(row.seq, f"it cannot be read: {exc}") from None
    return found.kind, found.call, Head(found.through, found.hash) if found.through is not None else None
