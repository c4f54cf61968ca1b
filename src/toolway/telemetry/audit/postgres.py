"""The log in a PostgreSQL table, where several gateways may keep theirs: each has a chain of its own, by its name.
Those of a cluster share a name, and each takes one of its chains (`postgres_shared.py`).

Whoever writes to a chain holds a lock of the server, which ends with his connection. A group of records is one
statement and one commit, and a commit is on disk before it returns, whatever the server's default is.
"""

from __future__ import annotations

import hashlib
import importlib.util
import time
from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, LiteralString

from toolway.telemetry.audit.records import Head, Row
from toolway.telemetry.audit.sink import SinkBroken, SinkInUse, Torn

if TYPE_CHECKING:
    import psycopg

PAGE: Final = 1000
MOST_REMOVED: Final = 5000
LOCK_WAIT: Final = 5.0  # seconds: the server may not have noticed yet that the last writer is gone
_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS toolway_audit "
    "(log text NOT NULL, seq bigint NOT NULL, hash text NOT NULL, body text NOT NULL, PRIMARY KEY (log, seq))"
)
_EXISTS: Final = "SELECT to_regclass('toolway_audit') IS NOT NULL"
_INSERT: Final = (
    "INSERT INTO toolway_audit SELECT %s, * FROM unnest(%s::bigint[], %s::text[], %s::text[]) AS rows (seq, hash, body)"
)
_HEAD: Final = "SELECT seq, hash FROM toolway_audit WHERE log = %s ORDER BY seq DESC LIMIT 1"
_FORWARD: Final = "SELECT seq, hash, body FROM toolway_audit WHERE log = %s AND seq > %s ORDER BY seq LIMIT %s"
_BACKWARD: Final = "SELECT seq, hash, body FROM toolway_audit WHERE log = %s AND seq < %s ORDER BY seq DESC LIMIT %s"
_OLDEST: Final = (
    'SELECT seq, hash, substring(body from \'"time":"([0-9TZ:.-]+)"\') FROM toolway_audit '
    "WHERE log = %s ORDER BY seq LIMIT %s"
)
_SETTINGS: Final = "-c statement_timeout=30000 -c idle_in_transaction_session_timeout=30000"


class PostgresSink:
    def __init__(self, address: str, log: str, *, read_only: bool = False) -> None:
        self._address = address
        self._log = log
        self._read_only = read_only
        self._db: psycopg.Connection[Any] | None = None

    @property
    def where(self) -> str:
        return f"the log {self._log!r} in PostgreSQL"  # never the address, which may hold a password

    def open(self) -> Torn | None:
        self.close()
        db = self._db = _connect(self._address)
        if self._read_only:
            if not self._one(_EXISTS)[0]:
                raise SinkBroken("there is no table toolway_audit")
            return None
        # `local` would do on one machine; whatever is stronger is the operator's, and stays.
        if self._one("SHOW synchronous_commit")[0] in ("off", "local"):
            db.execute("SET synchronous_commit = on")
        if self._one("SHOW fsync")[0] == "off":
            raise SinkBroken("fsync is off in this PostgreSQL: what it has acknowledged may be lost")
        self._lock()
        if not self._one(_EXISTS)[0]:
            self._make_table()
        return None

    def head(self) -> Head:
        found = self._do(_HEAD, self._log).fetchone()
        return Head(*found) if found is not None else Head()

    def append(self, rows: list[Row]) -> None:
        numbers, hashes, bodies = [], [], []
        for row in rows:
            numbers.append(row.seq)
            hashes.append(row.hash)
            bodies.append(row.body.decode())
        self._do(_INSERT, self._log, numbers, hashes, bodies)

    def forward(self, after: int = 0) -> Iterator[Row]:
        while page := self._page(_FORWARD, after):
            yield from page
            after = page[-1].seq

    def backward(self) -> Iterator[Row]:
        before = 2**62
        while page := self._page(_BACKWARD, before):
            yield from page
            before = page[-1].seq

    def removable(self, before: str) -> Head | None:
        oldest = self._do(_OLDEST, self._log, MOST_REMOVED + 1).fetchall()
        old = list(takewhile(lambda row: isinstance(row[2], str) and row[2] < before, oldest[:-1]))
        return Head(*old[-1][:2]) if old else None

    def remove(self, through: int) -> None:
        self._do("DELETE FROM toolway_audit WHERE log = %s AND seq <= %s", self._log, through)

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def beside(self, log: str) -> PostgresSink:
        """Another log of the same table, to be read by the same connection."""
        other = PostgresSink(self._address, log, read_only=True)
        other._db = self._db
        return other

    def _make_table(self) -> None:
        self._one("SELECT pg_advisory_lock(%s)", _number("the table"))  # two who make it at once disturb each other
        try:
            self._do(_SCHEMA)
        finally:
            self._one("SELECT pg_advisory_unlock(%s)", _number("the table"))

    def _lock(self) -> None:
        until = time.monotonic() + LOCK_WAIT
        while not self._try_lock(self._log):
            if time.monotonic() > until:
                raise SinkInUse(f"{self.where} is written to by another process")
            time.sleep(0.1)

    def _try_lock(self, log: str) -> bool:
        return bool(self._one("SELECT pg_try_advisory_lock(%s)", _number(log))[0])

    def _unlock(self, log: str) -> None:
        self._one("SELECT pg_advisory_unlock(%s)", _number(log))

    def _page(self, query: LiteralString, edge: int) -> list[Row]:
        return [Row(seq, hash, body.encode()) for seq, hash, body in self._do(query, self._log, edge, PAGE)]

    def _one(self, query: LiteralString, *values: object) -> Any:
        found = self._do(query, *values).fetchone()
        assert found is not None
        return found

    def _do(self, query: LiteralString, *values: object) -> psycopg.Cursor[Any]:
        if self._db is None:
            raise OSError(f"{self.where} is not open")
        return self._db.execute(query, values)


def _number(log: str) -> int:
    """The lock of a log."""
    return int.from_bytes(hashlib.sha256(f"toolway audit {log}".encode()).digest()[:8], "big", signed=True)


def is_installed() -> bool:
    return importlib.util.find_spec("psycopg") is not None


def _connect(address: str) -> psycopg.Connection[Any]:
    import psycopg  # an extra, which only those have who need it

    return psycopg.connect(
        address,
        autocommit=True,
        connect_timeout=5,
        options=_SETTINGS,
        keepalives_idle=10,
        keepalives_interval=5,
        keepalives_count=3,
        application_name="toolway",
    )
