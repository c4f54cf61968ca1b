"""Interface of audit log storage, and the records that it stores.

A sink stores rows in the order of `seq`. It does not interpret them, and does not trust what it reads. All its methods
run in the writer thread and may block.

    {"seq": 7, "prev": "<hash of 6>", "kind": "call.intent", "time": "2026-11-15T12:00:00.123456Z", "mono": 81.5, …}

The hash of a record is the SHA-256 of its stored bytes, which contain the hash of the record before. So changing,
removing or inserting a record requires a change of every later record, and of the last hash. The MAC at its end
(`mac.py`) requires the key of the log.

A record is encoded when its event happens, so only its bytes are queued for the disk. `seq` and `prev` are added
when it is written.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import msgspec

from toolway import _os
from toolway._os import O_UNSHARED, try_lock_handle

RecordFields = dict[str, Any]

GENESIS_HASH: Final = "0" * 64  # `prev` of the first record

CALL_INTENT: Final = "call.intent"
CALL_OUTCOME: Final = "call.outcome"
LOG_OPENED: Final = "log.open"  # a process started writing; calls open before it have no known outcome
LOG_CLOSED: Final = "log.close"
LOG_PRUNED: Final = "log.pruned"  # all records up to `through`, with hash `hash`, were removed because of their age
LOG_TRUNCATED: Final = "log.torn"  # the last record was written partially, and was moved away
LOG_CHECKPOINT: Final = "log.checkpoint"  # signature of the record `through`, with hash `head`
LOG_RESTARTED: Final = "log.restart"  # an administrator began the log again; `after` is the last signed record before
LOG_RESUMED: Final = "log.resumed"  # the log could not be written for a while

_encode = msgspec.json.Encoder().encode
_SHA256: Final = hashlib.sha256()


class AuditSink(Protocol):
    """Storage of one audit log: appends, reads and prunes its records."""

    @property
    def location(self) -> str:
        """Name of the log in error messages, such as its file path. Contains no secret."""
        ...

    def open(self) -> TruncatedRecord | None:
        """Open the log for exclusive writing. May be called again after a failed write.

        Returns the partial last record that was moved away, if any. Raises `SinkInUse` if another process
        writes to the log, `SinkBroken` if it cannot be read, or errors of the storage.
        """
        ...

    def head(self) -> ChainHead:
        """Return number and hash of the last stored record; 0 and the genesis hash if there is none."""
        ...

    def append(self, rows: list[StoredRecord]) -> None:
        """Store all of these records or none. They are on stable storage when it returns."""
        ...

    def read_forward(self, after: int = 0) -> Iterator[StoredRecord]:
        """Yield the records with a number above `after`, oldest first.

        Raises `SinkBroken` if stored data is not a record.
        """
        ...

    def read_backward(self) -> Iterator[StoredRecord]:
        """Yield all records, newest first. Raises `SinkBroken` if stored data is not a record."""
        ...

    def prunable(self, before: str) -> ChainHead | None:
        """Return number and hash of the newest record old enough to be removed, or None.

        This record and all earlier ones are older than the time `before`.
        """
        ...

    def remove(self, through: int) -> None:
        """Delete the audit records with numbers up to `through`, because they are too old.

        Some of them may stay, if the storage can only remove whole files.
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class SwitchableSink(Protocol):
    """Audit sink that can continue in another log of the same name, if it lost its own log to another writer."""

    def switch_to_empty(self) -> bool:
        """Switch to another log under the sink's name that is empty and has no writer.

        Return False if there is none.
        """
        ...


@runtime_checkable
class MultiLogSink(Protocol):
    """Audit sink whose storage holds several logs under one name, one per writer."""

    def find_logs(self, name: str) -> Sequence[AuditSink]:
        """Return read-only sinks for all logs stored under `name`, over the connection of this sink."""
        ...


class SinkInUse(Exception):
    """Raised when another process already writes to this audit log."""


class SinkBroken(Exception):
    """Raised when stored data cannot be read as an audit log."""


class TruncatedRecord(Exception):
    """Note that a crash left a partial last record, which opening the log moved away.

    Its bytes are now in the file `moved_to`; the log is usable. Returned by `AuditSink.open`, not raised.
    """

    def __init__(self, size: int, moved_to: str) -> None:
        super().__init__(f"{size} bytes of a partially written record were moved to {moved_to}")
        self.size = size
        self.moved_to = moved_to


# -- records -----------------------------------------------------------------------------------------------------------


class StoredRecord(NamedTuple):
    """One record as it is stored: number, hash and encoded body."""

    seq: int
    hash: str
    body: bytes

    def fields(self) -> RecordFields:
        """Decode the body of the record. Raises `ValueError` if it is not a JSON object."""
        try:
            found = msgspec.json.decode(self.body)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        if not isinstance(found, dict):
            raise ValueError("it is not an object")
        return found


class ChainHead(NamedTuple):
    """Sequence number and hash of the last record of a chain; the next record is linked to it."""

    seq: int = 0
    hash: str = GENESIS_HASH


def encode_record(kind: str, wall_time: float, monotonic_time: float, fields: RecordFields) -> bytes:
    """Encode a record as JSON, without `seq` and `prev`, which are added on writing."""
    return encode_stamped(kind.encode(), wall_time, monotonic_time, encode_fields(fields))


def encode_fields(fields: RecordFields) -> bytes:
    """Encode fields as the end of a record's JSON object: the text after the time stamp, with the closing brace."""
    return b',"' + _encode(fields)[2:] if fields else b"}"


def encode_stamped(kind: bytes, wall_time: float, monotonic_time: float, fields: bytes) -> bytes:
    seconds = int(wall_time)
    micros = (wall_time - seconds) * 1_000_000
    return b'{"kind":"%b","time":"%b.%06dZ","mono":%.6f%b' % (
        kind,
        _format_second(seconds),
        micros,
        monotonic_time,
        fields,
    )


def format_time(wall_time: float) -> str:
    """Format a Unix time as in audit records: ISO 8601 in UTC with microseconds."""
    return f"{_format_second(int(wall_time)).decode()}.{int(wall_time * 1_000_000) % 1_000_000:06}Z"


@lru_cache(maxsize=4)
def _format_second(seconds: int) -> bytes:
    """Format a Unix time as ISO 8601 to the second. Cached, because many records share it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)).encode()


def link_records(
    head: ChainHead, entries: Iterable[bytes], add_mac: Callable[[bytes], bytes] = lambda body: body
) -> list[StoredRecord]:
    """Complete encoded records with sequence number, hash of the record before, MAC and own hash.

    The first of them follows the record `head`. `add_mac` returns a body with its MAC.
    """
    seq, before = head
    rows = []
    for entry in entries:
        seq += 1
        body = add_mac(b'{"seq":%d,"prev":"%s",%s' % (seq, before.encode(), entry[1:]))
        found = _SHA256.copy()  # cheaper than a new one
        found.update(body)
        before = found.hexdigest()
        rows.append(StoredRecord(seq, before, body))
    return rows


# -- file helpers: exclusive lock, private files, durable directory entries --------------------------------------------


def lock_file(path: Path) -> int:
    """Lock a log file for writing and return the handle of the lock.

    Raises `SinkInUse` if another process holds the lock. The operating system releases it with the process.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | O_UNSHARED, 0o600)
    try:
        if not try_lock_handle(handle):
            raise SinkInUse(f"another process writes to {path}")
    except BaseException:
        os.close(handle)
        raise
    return handle


def create_private_file(path: Path) -> None:
    """Create the file if it is missing, with mode 0600: only its owner can read and write it."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | O_UNSHARED, 0o600))


def sync_folder(path: Path) -> None:
    """Sync the parent folder of `path` to disk.

    Without that, a newly created file may be missing after a power failure.
    """
    _os.sync_folder(path.parent)


def is_same_file(path: Path, inode: int) -> bool:
    try:
        return path.stat().st_ino == inode
    except FileNotFoundError:
        return False
