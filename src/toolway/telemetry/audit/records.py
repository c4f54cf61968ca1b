"""A record, and the chain that ties it to the one before it. Pure.

    {"seq": 7, "prev": "<hash of 6>", "kind": "call.intent", "time": "2026-11-15T12:00:00.123456Z", "mono": 81.5, …}

The hash of a record is the SHA-256 of its bytes as they are stored, and those contain the hash of the one before. So
whoever changes, removes or adds a record in the middle must change every record after it, and the last hash with them.

What is known when something happens is encoded at once, so that nothing waits for the disk but its bytes;
its place in the chain is given when it is written.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

Fields = dict[str, Any]

GENESIS: Final = "0" * 64  # what stands before the first record

INTENT: Final = "call.intent"
OUTCOME: Final = "call.outcome"
LATE: Final = "call.late_result"
OPENED: Final = "log.open"  # a process began to write; whatever was open before it has no known outcome
CLOSED: Final = "log.close"
PRUNED: Final = "log.pruned"  # everything up to `through`, whose hash is `hash`, was removed because of its age
TORN: Final = "log.torn"  # the last record was written in part, and was set aside
RESUMED: Final = "log.resumed"  # the log could not be written for a while

_encode = msgspec.json.Encoder().encode


class Row(NamedTuple):
    """A record as it is stored."""

    seq: int
    hash: str
    body: bytes

    def fields(self) -> Fields:
        """Raises `ValueError` where the body is no record."""
        found = msgspec.json.decode(self.body)
        if not isinstance(found, dict):
            raise ValueError("it is not an object")
        return found


class Head(NamedTuple):
    """The end of a chain: what the next record is tied to."""

    seq: int = 0
    hash: str = GENESIS


def encoded(kind: str, wall: float, mono: float, fields: Fields) -> bytes:
    """What is known of a record when it happens."""
    return stamped(kind.encode(), wall, mono, rest_of(fields))


def rest_of(fields: Fields) -> bytes:
    """What follows the stamp of a record: its own fields, to the end."""
    return b',"' + _encode(fields)[2:] if fields else b"}"


def stamped(kind: bytes, wall: float, mono: float, rest: bytes) -> bytes:
    whole = int(wall)
    micros = (wall - whole) * 1_000_000
    return b'{"kind":"%b","time":"%b.%06dZ","mono":%.6f%b' % (kind, _second(whole), micros, mono, rest)


def iso(wall: float) -> str:
    """A time as records have it."""
    return f"{_second(int(wall)).decode()}.{int(wall * 1_000_000) % 1_000_000:06}Z"


@lru_cache(maxsize=4)
def _second(whole: int) -> bytes:
    """The time up to its second, which many records share."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)).encode()


def chained(head: Head, entries: Iterable[bytes]) -> list[Row]:
    """Entries in their places after `head`."""
    seq, before = head
    rows = []
    for entry in entries:
        seq += 1
        body = b'{"seq":%d,"prev":"%s",%s' % (seq, before.encode(), entry[1:])
        before = hashlib.sha256(body).hexdigest()
        rows.append(Row(seq, before, body))
    return rows
