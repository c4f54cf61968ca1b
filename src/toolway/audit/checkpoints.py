"""Checkpoints of an audit log: hourly signatures of its end, so cutting it off is noticed.

A checkpoint names a record by number and hash. The hash covers all records before it, so the signature does too.

    {"log":"audit.sqlite","through":48212,"hash":"9f1c…","time":"2026-11-15T12:00:00.000000Z","key":"…","signature":"…"}

Each is stored as a record of the log (`log.checkpoint`), noted in a file next to the private key
(`checkpoint_notes.py`), and sent to a webhook, if one is configured. A log that lacks a noted record was cut off, or is
an older copy.

A log that is empty although a record of it was noted was removed. Only an administrator can begin it again, with
`toolway audit restart`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

import msgspec

from toolway.audit.sink import ChainHead, RecordFields
from toolway.audit.verify import MissingLog, TamperedLog

_CONTEXT: Final = b"toolway audit checkpoint 1\n"  # a signature is valid for nothing else


class Checkpoint(msgspec.Struct, frozen=True):
    """A signed statement that a log had the record `through` with this hash at some time."""

    log: str  # file name, or name in PostgreSQL
    through: int
    hash: str
    time: str
    key: str  # id of the public key
    signature: str = ""  # hex

    def message(self) -> bytes:
        """Return the bytes of this checkpoint that its signature covers."""
        return _CONTEXT + msgspec.json.encode([self.log, self.through, self.hash, self.time, self.key])

    def to_record(self) -> RecordFields:
        """Return the checkpoint as fields of an audit record.

        Every audit record has its own `time` and `hash`, so the checkpoint names its own `at` and `head`.
        """
        return {_RECORD_NAMES.get(name, name): value for name, value in msgspec.structs.asdict(self).items()}

    @classmethod
    def from_record(cls, fields: RecordFields) -> Checkpoint:
        """Return the checkpoint in the fields of an audit record.

        Raises `ValueError` if the fields are not a checkpoint.
        """
        named = {name: fields.get(_RECORD_NAMES.get(name, name)) for name in cls.__struct_fields__}
        return msgspec.convert(named, cls)


_RECORD_NAMES: Final = {"time": "at", "hash": "head"}


def read_checkpoints(data: bytes) -> list[Checkpoint]:
    """Read checkpoints from JSON lines, the form that a webhook receives.

    Raises `ValueError` if a line is not a checkpoint.
    """
    return [msgspec.json.decode(line, type=Checkpoint) for line in data.splitlines() if line.strip()]


def log_name(location: str) -> str:
    """Return the name of a log for its checkpoints: the file name in `location`. Its folders are not published."""
    return os.path.basename(location)


def missing_end(found: Checkpoint, head: ChainHead) -> TamperedLog:
    """Return the `TamperedLog` error for a log that does not match a signed checkpoint."""
    if head == ChainHead():
        return MissingLog(found.through, f"it was signed at {found.time}, and the log is missing or empty")
    if found.through > head.seq:
        reason = f"it is missing, but was signed at {found.time}: the log ends with record {head.seq}"
        return TamperedLog(found.through, f"{reason}, so its end was removed, or it is an older copy")
    return TamperedLog(found.through, f"it differs from the record that was signed at {found.time}")


def sign_checkpoint(location: str, head: ChainHead, time: str, key: str, sign: Callable[[bytes], bytes]) -> Checkpoint:
    """Return the signed checkpoint of a log that ends with `head`. Raises the errors of `sign`."""
    draft = Checkpoint(log_name(location), head.seq, head.hash, time, key)
    return msgspec.structs.replace(draft, signature=sign(draft.message()).hex())
