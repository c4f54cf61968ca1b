"""Checkpoints of an audit log: hourly signatures of its end, which reveal a removed end.

A checkpoint names a record by number and hash. The hash covers all records before it, so the signature does too.

    {"log":"audit.sqlite","through":48212,"hash":"9f1c…","time":"2026-11-15T12:00:00.000000Z","key":"…","signature":"…"}

Each is stored as a record of the log (`log.checkpoint`), noted in a file next to the private key
(`checkpoint_notes.py`), and sent to a webhook, if one is configured. A log that lacks a noted record was cut off, or is
an older copy.

A log that is empty although a record of it was noted was removed. Only an operator can begin it again (`restart.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from toolway.audit.sink import ChainHead, RecordFields, StoredRecord
from toolway.audit.verify import MissingLog, TamperedLog

if TYPE_CHECKING:  # cryptography is slow to load
    from toolway.audit.signing import PublicKey

MAX_DISTANCE: Final = 50_000  # records between a checkpoint and the record that it names
_CONTEXT: Final = b"toolway audit checkpoint 1\n"  # a signature is valid for nothing else


class Checkpoint(msgspec.Struct, frozen=True):
    """Signed statement that a log had the record `through` with this hash at a time."""

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
    """Return the `TamperedLog` error for a log in which the record of a signed checkpoint is missing or different."""
    if head == ChainHead():
        return MissingLog(found.through, f"it was signed at {found.time}, and the log is missing or empty")
    if found.through > head.seq:
        reason = f"it is missing, but was signed at {found.time}: the log ends with record {head.seq}"
        return TamperedLog(found.through, f"{reason}, so its end was removed, or it is an older copy")
    return TamperedLog(found.through, f"it differs from the record that was signed at {found.time}")


class CheckpointChecker:
    """Compares an audit log with its checkpoints while `verify` reads the log.

    Checkpoints are stored in records of the log itself, and in notes or other files.
    """

    def __init__(self, keys: Iterable[PublicKey], noted: Iterable[Checkpoint] = ()) -> None:
        """Create the checker. `noted` are checkpoints that are stored outside the log.

        Signatures are checked with `keys`; without keys, only the hashes of records are compared.
        """
        self._keys = {key.id: key for key in keys}
        self._noted = sorted(set(noted), key=lambda each: each.through)
        self._expected: dict[int, list[Checkpoint]] = {}
        for each in self._noted:
            self._expected.setdefault(each.through, []).append(each)
        self._hashes: dict[int, str] = {}  # of the newest records: a checkpoint names one shortly before it
        self.count = 0
        self.newest: Checkpoint | None = None  # the last that is in the log, with a valid signature

    def rows(self, rows: Iterable[StoredRecord]) -> Iterator[StoredRecord]:
        """Yield the records of a log, oldest first, and compare each with the checkpoints.

        Raises `TamperedLog` if a record differs from its checkpoint or is missing, or if a signature is wrong.
        """
        head = ChainHead()
        for row in rows:
            head = ChainHead(row.seq, row.hash)
            for each in self._expected.get(row.seq, ()):
                if each.hash != row.hash:
                    raise missing_end(each, head)
            self._remember(row)
            if b'"kind":"log.checkpoint"' in row.body:
                self._check_record(row)
            yield row
        self.check_end(head)

    def check_end(self, head: ChainHead) -> None:
        """Check the checkpoints from outside the log. Raises `TamperedLog` if one names a record after `head`."""
        for each in self._noted[::-1]:
            self._check_signature(each, each.through)
            if each.through > head.seq:
                raise missing_end(each, head)

    def _remember(self, row: StoredRecord) -> None:
        self._hashes[row.seq] = row.hash
        if len(self._hashes) > 2 * MAX_DISTANCE:
            for seq in list(self._hashes)[:MAX_DISTANCE]:
                del self._hashes[seq]

    def _check_record(self, row: StoredRecord) -> None:
        try:
            fields = row.fields()
            if fields.get("kind") != "log.checkpoint":
                return  # the text is in another field
            found = Checkpoint.from_record(fields)
        except ValueError as exc:
            raise TamperedLog(row.seq, f"not a valid checkpoint: {exc}") from None
        known = self._hashes.get(found.through)
        if found.through >= row.seq or (known is not None and known != found.hash):
            raise TamperedLog(row.seq, f"it is the checkpoint of another record {found.through}")
        self._check_signature(found, row.seq)
        self.count += 1
        self.newest = found

    def _check_signature(self, found: Checkpoint, seq: int) -> None:
        if not self._keys:
            return
        key = self._keys.get(found.key)
        if key is None:
            reason = f"the checkpoint is signed with the key {found.key}, which was not passed"
            raise TamperedLog(seq, f"{reason}: if the key was replaced, add its public half with --public-key FILE")
        try:
            signature = bytes.fromhex(found.signature)
        except ValueError:
            signature = b""
        if not key.verify(signature, found.message()):
            raise TamperedLog(seq, "the signature of the checkpoint is wrong")


def sign_checkpoint(location: str, head: ChainHead, time: str, key: str, sign: Callable[[bytes], bytes]) -> Checkpoint:
    """Return the signed checkpoint of a log that ends with `head`. Raises the errors of `sign`."""
    draft = Checkpoint(log_name(location), head.seq, head.hash, time, key)
    return msgspec.structs.replace(draft, signature=sign(draft.message()).hex())
