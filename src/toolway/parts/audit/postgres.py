"""Audit logs in a PostgreSQL table, with one hash chain of records per log or cluster node.

Several gateways can use one table, because each has its own chain under its log's name. A chain's writer holds an
advisory lock, which is released when its connection ends. A group of records is one statement and one commit, and a
commit is on disk before it returns, whatever the server's default is.

The nodes of a cluster share a name, and each writes to one of the chains under it: `gateway`, `gateway#2`, … A chain
has only one writer, so writers never wait for each other, and each record follows one from the same process. A node
that starts takes the first chain without a writer, so there are never more chains than nodes that ran at once, and the
next node to start recovers the chain of a node that died. If the server thinks a node is gone, another node can take
over its chain. The node then starts a new chain, which records the chain it continues.
"""

from __future__ import annotations

import hashlib
import importlib.util
import time
from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, LiteralString

from toolway.audit.sink import ChainHead, SinkBroken, SinkInUse, StoredRecord, TruncatedRecord
from toolway.errors import ConfigError
from toolway.part_api import AuditSettings

if TYPE_CHECKING:
    import psycopg

MAX_LOGS: Final = 2000  # concurrent writers of one name
_MAX_NAME_GAP: Final = 20  # unused names after which no more logs are expected
ROWS_PER_PAGE: Final = 1000
MAX_ROWS_PER_PRUNE: Final = 5000
LOCK_TIMEOUT_S: Final = 5.0  # the server may not have noticed yet that the last writer is gone
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
_CONNECTION_OPTIONS: Final = "-c statement_timeout=30000 -c idle_in_transaction_session_timeout=30000"


def create_postgres_sink(settings: AuditSettings, read_only: bool) -> PostgresSink:
    """Create the PostgreSQL audit sink that the settings describe, for one log name.

    A cluster node that writes gets a `SharedPostgresSink`. Raises `ConfigError` if psycopg is not installed.
    """
    if not is_psycopg_installed():
        raise ConfigError(
            "the PostgreSQL driver for the audit log is not installed",
            detail="package psycopg is missing",
            hint="pip install 'toolway[postgresql]'",
            code="E-AUDIT-OPEN",
        )
    if settings.shared_name and not read_only:
        return SharedPostgresSink(settings.address, settings.name)
    return PostgresSink(settings.address, settings.name, read_only=read_only)


def is_psycopg_installed() -> bool:
    return importlib.util.find_spec("psycopg") is not None


class PostgresSink:
    """An audit sink that stores one log, a hash chain of records, in a PostgreSQL table."""

    def __init__(self, address: str, log: str, *, read_only: bool = False) -> None:
        self._address = address
        self._log = log
        self._read_only = read_only
        self._db: psycopg.Connection[Any] | None = None

    @property
    def location(self) -> str:
        return f"the log {self._log!r} in PostgreSQL"  # never the address, which may hold a password

    def open(self) -> TruncatedRecord | None:
        self.close()
        db = self._db = _connect(self._address)
        if self._read_only:
            if not self._fetch_one(_EXISTS)[0]:
                raise SinkBroken("table toolway_audit does not exist")
            return None
        # `local` would do on one machine. Stronger settings are your choice and are kept.
        if self._fetch_one("SHOW synchronous_commit")[0] in ("off", "local"):
            db.execute("SET synchronous_commit = on")
        if self._fetch_one("SHOW fsync")[0] == "off":
            raise SinkBroken("fsync is off in this PostgreSQL: committed records may be lost")
        self._lock()
        if not self._fetch_one(_EXISTS)[0]:
            self._create_table()
        return None

    def head(self) -> ChainHead:
        found = self._execute(_HEAD, self._log).fetchone()
        return ChainHead(*found) if found is not None else ChainHead()

    def append(self, rows: list[StoredRecord]) -> None:
        numbers, hashes, bodies = [], [], []
        for row in rows:
            numbers.append(row.seq)
            hashes.append(row.hash)
            bodies.append(row.body.decode())
        self._execute(_INSERT, self._log, numbers, hashes, bodies)

    def read_forward(self, after: int = 0) -> Iterator[StoredRecord]:
        while page := self._fetch_page(_FORWARD, after):
            yield from page
            after = page[-1].seq

    def read_backward(self) -> Iterator[StoredRecord]:
        before = 2**62
        while page := self._fetch_page(_BACKWARD, before):
            yield from page
            before = page[-1].seq

    def prunable(self, before: str) -> ChainHead | None:
        oldest = self._execute(_OLDEST, self._log, MAX_ROWS_PER_PRUNE + 1).fetchall()
        old = list(takewhile(lambda row: isinstance(row[2], str) and row[2] < before, oldest[:-1]))
        return ChainHead(*old[-1][:2]) if old else None

    def remove(self, through: int) -> None:
        self._execute("DELETE FROM toolway_audit WHERE log = %s AND seq <= %s", self._log, through)

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def find_logs(self, name: str) -> list[PostgresSink]:
        """Return read-only sinks for all logs stored under `name`: `name`, `name#2`, ….

        They share the database connection of this sink.
        """
        found: list[PostgresSink] = []
        missing = 0
        for log in _log_names(name):
            sink = PostgresSink(self._address, log, read_only=True)
            sink._db = self._db
            if sink.head() != ChainHead():
                found.append(sink)
                missing = 0
            elif (missing := missing + 1) > _MAX_NAME_GAP:
                break
        return found

    def _create_table(self) -> None:
        # The lock is needed because concurrent CREATE TABLE statements can fail.
        self._fetch_one("SELECT pg_advisory_lock(%s)", _lock_id("the table"))
        try:
            self._execute(_SCHEMA)
        finally:
            self._fetch_one("SELECT pg_advisory_unlock(%s)", _lock_id("the table"))

    def _lock(self) -> None:
        until = time.monotonic() + LOCK_TIMEOUT_S
        while not self._try_lock(self._log):
            if time.monotonic() > until:
                raise SinkInUse(f"another process writes to {self.location}")
            time.sleep(0.1)

    def _try_lock(self, log: str) -> bool:
        return bool(self._fetch_one("SELECT pg_try_advisory_lock(%s)", _lock_id(log))[0])

    def _unlock(self, log: str) -> None:
        self._fetch_one("SELECT pg_advisory_unlock(%s)", _lock_id(log))

    def _fetch_page(self, query: LiteralString, edge: int) -> list[StoredRecord]:
        return [
            StoredRecord(seq, hash, body.encode())
            for seq, hash, body in self._execute(query, self._log, edge, ROWS_PER_PAGE)
        ]

    def _fetch_one(self, query: LiteralString, *values: object) -> Any:
        found = self._execute(query, *values).fetchone()
        assert found is not None
        return found

    def _execute(self, query: LiteralString, *values: object) -> psycopg.Cursor[Any]:
        if self._db is None:
            raise OSError(f"{self.location} is not open")
        return self._db.execute(query, values)


class SharedPostgresSink(PostgresSink):
    """The audit sink of a cluster node. Nodes share a log name, but write to separate logs under it.

    When it opens, the node takes the first of these logs that has no writer.
    """

    def __init__(self, address: str, name: str) -> None:
        super().__init__(address, name)
        self._name = name
        self._has_log = False

    def switch_to_empty(self) -> bool:
        """Switch to another log under the shared name that is empty and has no writer.

        Return False if every log has a writer or records.
        """
        before = self._log
        for log in _log_names(self._name):
            if log == before or not self._try_lock(log):
                continue
            self._log = log
            if self.head() == ChainHead():
                self._unlock(before)
                return True
            self._unlock(log)
        self._log = before
        return False

    def _lock(self) -> None:
        if not self._has_log:
            self._log = self._lock_first_free()
            self._has_log = True
        elif not self._try_lock(self._log) and not self.switch_to_empty():
            raise SinkInUse(f"another process writes to {self.location}")

    def _lock_first_free(self) -> str:
        for log in _log_names(self._name):
            if self._try_lock(log):
                return log
        raise SinkInUse(f"all {MAX_LOGS} logs of the name {self._name!r} have a writer")


def _log_names(name: str) -> Iterator[str]:
    yield name
    for number in range(2, MAX_LOGS + 1):
        yield f"{name}#{number}"


def _lock_id(log: str) -> int:
    """Return the id of the PostgreSQL advisory lock that a log's writer holds."""
    return int.from_bytes(hashlib.sha256(f"toolway audit {log}".encode()).digest()[:8], "big", signed=True)


def _connect(address: str) -> psycopg.Connection[Any]:
    import psycopg  # an optional dependency

    return psycopg.connect(
        address,
        autocommit=True,
        connect_timeout=5,
        options=_CONNECTION_OPTIONS,
        keepalives_idle=10,
        keepalives_interval=5,
        keepalives_count=3,
        application_name="toolway",
    )
