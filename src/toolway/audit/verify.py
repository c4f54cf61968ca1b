"""Checks of single records of an audit log, as it is opened: hash, number and MAC."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from toolway.audit.mac import RecordMacs
from toolway.audit.sink import StoredRecord

_PREFIX: Final = re.compile(rb'\{"seq":([0-9]{1,18}),"prev":"([0-9a-f]{64})",')


class TamperedLog(Exception):
    """Raised when a record of the audit log was changed, or records are missing."""

    def __init__(self, seq: int, reason: str) -> None:
        super().__init__(f"record {seq}: {reason}")
        self.seq = seq
        self.reason = reason


class MissingLog(TamperedLog):
    """Raised when a whole audit log was removed or emptied, although records of it were signed."""


def verify_mac(row: StoredRecord, macs: RecordMacs | None) -> None:
    """Check the MAC of an audit record, if the key is known. Raises `TamperedLog` if it is wrong or missing."""
    if macs is not None and not macs.check(row.body):
        raise TamperedLog(row.seq, "it has no MAC under the key of this log, so something else wrote it")


def verify_record(row: StoredRecord) -> str:
    """Check the hash and the number of one record, and return its `prev` hash.

    Raises `TamperedLog` if its own hash or number is wrong.
    """
    if hashlib.sha256(row.body).hexdigest() != row.hash:
        raise TamperedLog(row.seq, "its content does not match its hash: it was changed after it was written")
    prefix = _PREFIX.match(row.body)
    if prefix is None or int(prefix[1]) != row.seq:
        raise TamperedLog(row.seq, "the number in its content differs from its stored number")
    return prefix[2].decode()
