"""Compares an audit log with its checkpoints while reading it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from toolway.audit.checkpoints import Checkpoint, missing_end
from toolway.audit.sink import ChainHead, StoredRecord
from toolway.audit.verify import TamperedLog

if TYPE_CHECKING:  # cryptography is slow to load
    from toolway.audit.signing import PublicKey

MAX_DISTANCE: Final = 50_000  # records between a checkpoint and the record that it names


class CheckpointChecker:
    """Compares an audit log with its checkpoints while `verify` reads it.

    Checkpoints are stored as records in the log itself, and in notes or other files.
    """

    def __init__(self, keys: Iterable[PublicKey], noted: Iterable[Checkpoint] = ()) -> None:
        """Create a checker. `noted` are the checkpoints stored outside the log.

        Signatures are checked with `keys`. Without keys, only the hashes of records are compared.
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
        """Yield a log's records, oldest first, and compare each with the checkpoints.

        Raises `TamperedLog` if a record is missing or differs from its checkpoint, or if a signature is wrong.
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
        """Check the checkpoints kept outside the log. Raises `TamperedLog` if one is beyond `head`."""
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
