"""Verifies a whole audit log: the hashes, numbers, and links of all records."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

import msgspec

from toolway.audit.mac import RecordMacs
from toolway.audit.sink import (
    CALL_INTENT,
    CALL_OUTCOME,
    GENESIS_HASH,
    LOG_OPENED,
    LOG_PRUNED,
    LOG_RESTARTED,
    ChainHead,
    StoredRecord,
)
from toolway.audit.verify import TamperedLog, verify_mac, verify_record


@dataclass(frozen=True, slots=True)
class PrunedRecords:
    """Records that one retention rule removed because of their age, in one or more steps."""

    through: int  # number of the last removed record
    first_time: str  # time of the first and of the last step
    last_time: str
    keep_days: float  # the rule: `keepDays` at that time
    steps: int


@dataclass(frozen=True, slots=True)
class Beginning:
    """The first record of a replacement log: where the earlier log ended, and who agreed to replace it."""

    after: ChainHead
    is_confirmed: bool  # by `toolway audit restart`
    time: str
    who: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class VerifiedLog:
    """The summary of a verified audit log: record count, first and last record, and calls without an outcome."""

    record_count: int
    first_seq: int
    head: ChainHead
    intent_count: int
    open_intents: int  # intents without outcome: calls in flight, or interrupted by a crash and not recovered yet
    pruned: tuple[PrunedRecords, ...] = ()
    unstored: int = 0  # records that are only in the journal yet
    checkpoints: int = 0  # signed checkpoints in the log
    signed_through: int = 0  # last record that a checkpoint covers
    signed_at: str = ""
    beginning: Beginning | None = None  # if this log replaced another


def read_beginning(first: StoredRecord | None) -> Beginning | None:
    """Return what a log's first record says about the log before it, or None if there was no earlier log."""
    fields = first.fields() if first is not None and first.seq == 1 else {}
    kind, after = fields.get("kind"), fields.get("after")
    if kind == LOG_RESTARTED:
        after = after if isinstance(after, dict) else {}
    elif kind != LOG_OPENED or not isinstance(after, dict):
        return None
    head = ChainHead(after.get("seq", 0), str(after.get("hash", GENESIS_HASH)))
    texts = (str(fields.get(name, "")) for name in ("time", "who", "why"))
    return Beginning(head, kind == LOG_RESTARTED, *texts)


def verify_log(
    rows: Iterable[StoredRecord],
    on_progress: Callable[[int], None] = lambda _: None,
    macs: RecordMacs | None = None,
) -> VerifiedLog:
    """Verify the hash chain of a whole audit log, given its records from the oldest on.

    `on_progress` gets the number of verified records. Without `macs`, MACs are not checked. Raises `TamperedLog` if a
    record was changed, is missing, or was written without the log's key.
    """
    head = start = ChainHead()
    pruned: list[RecordSummary] = []
    intents: set[str] = set()
    count = intent_count = 0
    beginning = None
    for row in rows:
        if not count:
            beginning = _decode_beginning(row)
            head = start = ChainHead(row.seq - 1, verify_record(row))
        head = verify_link(row, head)
        verify_mac(row, macs)
        count += 1
        found = decode_summary(row)
        if found.kind == CALL_INTENT:
            intent_count += 1
            intents.add(found.call)
        elif found.kind == CALL_OUTCOME:
            intents.discard(found.call)
        elif found.kind == LOG_PRUNED and found.through is not None:
            pruned.append(found)
        on_progress(count)
    if count and start != ChainHead() and not _is_pruned(start, pruned):
        raise TamperedLog(start.seq + 1, "the records before it are missing, and no record says that they were removed")
    return VerifiedLog(
        count,
        start.seq + 1,
        head,
        intent_count,
        len(intents),
        tuple(_join_pruned(pruned)),
        beginning=beginning,
    )


def refuse_replacement(found: VerifiedLog, known: Container[ChainHead] = ()) -> None:
    """Raise `TamperedLog` if this log replaced another one without an administrator's consent.

    `known` are records of other logs under the same name: one of them may be the log that this one continues.
    """
    beginning = found.beginning
    if beginning is None or beginning.is_confirmed or beginning.after in known:
        return
    records = beginning.after.seq
    reason = f"this log replaced another one, which had {records} records, and no administrator confirmed it"
    raise TamperedLog(found.first_seq, reason)


def _decode_beginning(row: StoredRecord) -> Beginning | None:
    try:
        return read_beginning(row)
    except ValueError as exc:
        raise TamperedLog(row.seq, f"it cannot be read: {exc}") from None


def _is_pruned(start: ChainHead, pruned: Iterable[RecordSummary]) -> bool:
    """Return True if the log says that all records up to `start` were removed because of their age.

    The removal may be incomplete: the record of it may also cover later records that are still stored.
    """
    named = [ChainHead(each.through or 0, each.hash) for each in pruned]
    return start in named or any(each.seq > start.seq for each in named)


def _join_pruned(pruned: Iterable[RecordSummary]) -> Iterator[PrunedRecords]:
    """Yield one summary for each run of `log.pruned` records with the same retention rule."""
    for keep_days, group in groupby(pruned, key=lambda each: each.keep_days):
        steps = list(group)
        through = max(each.through or 0 for each in steps)
        yield PrunedRecords(through, steps[0].time, steps[-1].time, keep_days, len(steps))


def verify_link(row: StoredRecord, before: ChainHead) -> ChainHead:
    """Check that the record `row` follows the record `before`, and return `row` as the new head.

    Raises `TamperedLog` if a record between them is missing, or if a hash is wrong.
    """
    if row.seq != before.seq + 1:
        raise TamperedLog(row.seq, f"it follows record {before.seq}: the records between them are missing")
    if verify_record(row) != before.hash:
        raise TamperedLog(row.seq, f"its `prev` is not the hash of record {before.seq} before it")
    return ChainHead(row.seq, row.hash)


class RecordSummary(msgspec.Struct):
    """The fields of an audit record that checks and exports need."""

    kind: str = ""
    call: str = ""
    through: int | None = None
    hash: str = GENESIS_HASH
    time: str = ""
    keep_days: float = 0.0


_decode = msgspec.json.Decoder(RecordSummary).decode


def decode_summary(row: StoredRecord) -> RecordSummary:
    """Return the fields of an audit record that most checks need. Raises `TamperedLog` if it cannot be decoded."""
    try:
        return _decode(row.body)
    except (ValueError, RecursionError) as exc:
        raise TamperedLog(row.seq, f"it cannot be read: {exc}") from None
