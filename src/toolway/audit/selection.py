"""Selection of audit records for a signed export: the hash chain is verified, and journal records are included."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from toolway.audit.checkpoints import log_name
from toolway.audit.mac import RecordMacs
from toolway.audit.sink import AuditSink, ChainHead, StoredRecord
from toolway.audit.verify import AuditQuery, MacChecker, decode_summary, verify_link, verify_record


class SelectedRecords:
    """Records of one log that match a query, as lines, oldest first. Reading them also verifies the hash chain."""

    def __init__(
        self, sink: AuditSink, query: AuditQuery, macs: RecordMacs | None, unstored: Iterable[bytes] = ()
    ) -> None:
        """Create the selection of records of one log. `unstored` are journal records that are not in the log yet."""
        self._sink = sink
        self._query = query
        self._macs = macs
        self._unstored = list(unstored)
        self._head = ChainHead()
        self._first = self._last = self.count = 0

    def lines(self) -> Iterator[tuple[str, bytes]]:
        """Yield (time, line) of each audit record that matches the query, and verify the log on the way.

        All records of the log are verified, also those that do not match. Raises `TamperedLog` if one was changed.
        """
        checker, is_first = MacChecker(self._macs), True
        for row in self._sink.read_forward():
            if is_first:
                self._head, is_first = ChainHead(row.seq - 1, verify_record(row)), False
            self._head = verify_link(row, self._head)
            checker.check(row)
            found = decode_summary(row)
            if self._query.includes(found.kind, found.time):
                self._first = self._first or row.seq
                self._last, self.count = row.seq, self.count + 1
                yield found.time, row_to_line(row)
        for record in self._unstored:
            found = decode_summary(StoredRecord(0, "", record))
            if self._query.includes(found.kind, found.time):
                self.count += 1
                yield found.time, b'%b,"unstored":true}' % record[:-1]

    def describe(self) -> dict[str, Any]:
        """Return the facts about this log for the last line of an export: name, number of records, range, chain end."""
        facts = {"log": log_name(self._sink.location), "records": self.count}
        if self._first:
            facts |= {"first": self._first, "last": self._last}
        return {**facts, "head": f"{self._head.seq}:{self._head.hash}"}


def row_to_line(row: StoredRecord) -> bytes:
    """Return an audit record as a JSON line: its stored bytes with its hash as the last field."""
    return b'%b,"hash":"%b"}' % (row.body[:-1], row.hash.encode())
