"""Searches an audit log, including journal records that have not reached it yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

import msgspec

from toolway.audit.log import create_journal
from toolway.audit.sink import LOG_OPENED, AuditSink, MultiLogSink, RecordFields, StoredRecord

if TYPE_CHECKING:
    from toolway.audit.journal import JournalContent
    from toolway.part_api import AuditSettings

READ_ATTEMPTS: Final = 5  # of a journal whose segments a gateway removes at the same time


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Filter for audit records: a record matches if it matches every field that is set."""

    fields: Mapping[str, str] = field(default_factory=dict)  # exact values by field name
    kind: str = ""  # or its prefix: `call`, `log`
    since: str = ""  # an ISO time in UTC
    until: str = ""  # an ISO time in UTC; records of this time and later do not match

    def starting(self, since: str) -> AuditQuery:
        """Return a copy of this filter that only matches records from `since` on."""
        return replace(self, since=since)

    def includes(self, kind: str, time: str) -> bool:
        """Return True if a record of this kind and time matches the filter.

        Other fields that the filter sets are not compared.
        """
        return kind.startswith(self.kind) and time >= self.since and (not self.until or time < self.until)

    def matches(self, found: RecordFields) -> bool:
        if self.kind and not str(found.get("kind", "")).startswith(self.kind):
            return False
        if self.until and str(found.get("time", "")) >= self.until:
            return False
        return all(found.get(name) == value for name, value in self.fields.items())

    def is_too_old(self, found: RecordFields) -> bool:
        return bool(self.since) and str(found.get("time", "")) < self.since


def find_newest(sink: AuditSink, query: AuditQuery, limit: int, unstored: Sequence[bytes] = ()) -> list[RecordFields]:
    """Return the newest `limit` records of a log that match `query`, ordered oldest first.

    `unstored` are records that are still only in the journal. Raises `SinkBroken` if stored data is not a record.
    """
    newest = (unstored_to_json(each) for each in reversed(unstored))
    return list(islice(_find_backward(chain(newest, map(record_to_json, sink.read_backward())), query), limit))[::-1]


def _find_backward(records: Iterable[RecordFields], query: AuditQuery) -> Iterator[RecordFields]:
    for found in records:
        if query.is_too_old(found):
            return
        if query.matches(found):
            yield found


def find_all(sink: AuditSink, query: AuditQuery, unstored: Iterable[bytes] = ()) -> Iterator[RecordFields]:
    """Yield all records of a log that match `query`, oldest first.

    `unstored` are records that are still only in the journal. Raises `SinkBroken` if stored data is not a record.
    """
    for found in chain(map(record_to_json, sink.read_forward()), map(unstored_to_json, unstored)):
        if not query.is_too_old(found) and query.matches(found):
            yield found


def unstored_to_json(record: bytes) -> RecordFields:
    """Return the fields of a record that is still only in the journal, so it has no number or hash yet."""
    fields: RecordFields = msgspec.json.decode(record)
    return {**fields, "unstored": True}


def record_to_json(row: StoredRecord) -> RecordFields:
    """Return the fields of a stored audit record and its hash as a JSON object.

    A record that cannot be decoded becomes an entry of kind `damaged`, so later records are still listed.
    """
    try:
        return {**row.fields(), "hash": row.hash}
    except ValueError:
        return {"seq": row.seq, "kind": "damaged", "hash": row.hash}


def list_logs(sink: AuditSink, settings: AuditSettings) -> Sequence[AuditSink]:
    """Return the audit logs to read: `sink` itself, or the logs of all cluster nodes.

    A PostgreSQL table can store several logs under the configured name, one per writer.
    """
    logs = sink.find_logs(settings.name) if isinstance(sink, MultiLogSink) else ()
    return logs or (sink,)


def read_journal(settings: AuditSettings) -> JournalContent | None:
    """Return the records that are in an audit log's journal now, or None if the log has no journal.

    Call this before you read the log: a record that moves to the log in between is then found twice instead of being
    missed. Raises `SinkBroken` if the journal was changed, and `OSError` if the log's key is missing.
    """
    for attempt in range(READ_ATTEMPTS):
        journal = create_journal(settings)
        try:
            return journal.read() if journal is not None else None
        except FileNotFoundError:  # a running gateway removed a segment in between
            if attempt == READ_ATTEMPTS - 1:
                raise
    return None


def find_unstored(found: JournalContent | None, sink: AuditSink) -> list[bytes]:
    """Return the journal records in `found` that are not in the audit log yet.

    A running gateway has such records for a short time, and a killed gateway leaves them behind. `sink` must be open.
    The log is read backward to the journal's newest record, or to the start of the run.
    """
    entries = dict(found.entries) if found is not None else {}
    if found is None or not entries:
        return []
    for row in sink.read_backward():
        fields = record_to_json(row)
        number = fields.get("entry")
        if fields.get("kind") == LOG_OPENED:
            return list(entries.values()) if fields.get("run") == found.run else []
        if isinstance(number, int) and number in entries:
            is_same = entries[number][1:-1] in row.body  # else the journal belongs to another log
            return [record for each, record in entries.items() if each > number] if is_same else []
    return []


def read_unstored(settings: AuditSettings, sink: AuditSink) -> list[RecordFields]:
    """Read the journal and return its records that are not in the log yet.

    A running gateway has such records for a short time, and a killed gateway leaves them behind. `sink` must be open.
    Raises `SinkBroken` if the journal was changed, and `OSError` if the log's key is missing.
    """
    return [msgspec.json.decode(record) for record in find_unstored(read_journal(settings), sink)]
