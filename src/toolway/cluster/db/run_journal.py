"""Journal of workflow runs in PostgreSQL, for all nodes of a cluster.

Rule 1. A node takes runs under its lease. The row of a run names the node and the number of the lease (epoch).
Rule 2. A statement that writes finds the run with this node and epoch, and the node's lease, and changes only what
        it found: a node that was stopped and has lost its lease writes nothing (`RunLost`).
Rule 3. The runs of a node whose lease has ended are taken by any other node. Rows are locked first and checked in a
        second statement, as in `instances.py`.
Rule 4. The runs of a node share statements: all writes that are queued while a statement runs go into the next one.

Inputs, results and messages are encrypted with a key for each run. A copied or changed value cannot be decrypted.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from functools import lru_cache
from typing import Any, Final, LiteralString, NamedTuple

import msgspec
import psycopg
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import make_url

from toolway.cluster.db.engine import connection_class, postgresql_options, require_sync_commit
from toolway.cluster.lease_clock import DEFAULT_LEASE_SETTINGS, LeaseSettings
from toolway.cluster.options import ClusterOptions
from toolway.errors import ConfigError
from toolway.types import Json
from toolway.workflows.journal import (
    ACTIVE_STATES,
    FINAL_STATES,
    MAX_BODY_BYTES,
    RESUMABLE_STATES,
    RUN_STATES,
    Entry,
    JournalError,
    NewerRun,
    RunChange,
    RunDamaged,
    RunLost,
    RunMessage,
    RunRecord,
    damaged_record,
    definition_hash,
)

MAX_GROUP: Final = 200  # runs in one statement
MAX_TAKEN: Final = 50  # runs taken at once, so other nodes take some too
LISTEN_RETRY_S: Final = 1.0
LISTEN_CHECK_S: Final = 10.0  # seconds without news after which a listener sees whether the database answers
CHANNEL: Final = "toolway_runs"  # of NOTIFY; the payload is the tenant
_NONCE_BYTES: Final = 12
_log = logging.getLogger("toolway.cluster")


def open_journal(options: ClusterOptions, identity: Callable[[], tuple[str, int] | None]) -> PostgresJournal:
    """Return the journal that all cluster nodes share. The run engine closes it.

    Raises `ConfigError` if the database of the cluster is not PostgreSQL.
    """
    if make_url(options.database_url).get_backend_name() == "sqlite":
        raise ConfigError(
            "workflows in a cluster need PostgreSQL",
            detail="this cluster's database is SQLite",
            hint="set --database postgresql://…, or run workflows on a gateway without a cluster",
        )
    return PostgresJournal(options.database_url, options.tenant, options.tenant_key, identity)


class PostgresJournal:
    """Journal of workflow runs in the cluster's database, as one node uses it.

    `identity()` returns the id of this node and the number of its lease, None without a lease. `key` is the key of the
    tenant. Methods raise `JournalError` if the database cannot be used.
    """

    def __init__(
        self,
        url: str,
        tenant: str,
        key: bytes,
        identity: Callable[[], tuple[str, int] | None],
        settings: LeaseSettings = DEFAULT_LEASE_SETTINGS,
    ) -> None:
        self.lease_s = settings.ttl
        self.on_changed: Callable[[], None] | None = None
        self._tenant = tenant
        self._identity = identity
        self._codec = _RunCodec(tenant, key)
        self._reader = _Connection(url)
        self._writer = _Connection(url)
        self._listener = _Connection(url)
        self._listening: asyncio.Task[None] | None = None
        self._queue: deque[_Write] = deque()
        self._flushing: asyncio.Task[None] | None = None
        self._next_due: float | None = None
        self._has_news = False

    @property
    def life(self) -> int:
        identity = self._identity()
        return identity[1] if identity is not None else 0

    def holds(self, life: int) -> bool:
        identity = self._identity()
        return identity is not None and identity[1] == life

    async def close(self) -> None:
        for task in (self._listening, self._flushing):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        for connection in (self._reader, self._writer, self._listener):
            await connection.close()

    # -- runs

    async def create(self, run: RunRecord, definition: Json) -> RunRecord:
        values = {
            "tenant": self._tenant,
            "id": run.id,
            "workflow": run.workflow,
            "hash": run.definition,
            "body": msgspec.json.encode(definition),
            "key": run.key,
            "caller": run.caller,
            "state": run.state,
            "due": run.due,
            "start": self._codec.seal_start(run),
            "result": self._codec.seal_result(run.id, run.asks, None, None),
            "created": run.created,
        }
        async with self._reader.use() as db:
            if await (await db.execute(_CREATE, values)).fetchone() is not None:
                return run
            row = await (await db.execute(_FIND_BY_KEY, values)).fetchone()
        if row is None:  # it ended and was deleted in this moment, or the id exists
            raise JournalError("cannot store the run", detail=run.id)
        return self._codec.open_run(row)

    async def take(self, now: float, room: int) -> list[RunRecord]:
        self._start_listening()
        identity = self._identity()
        if identity is None:
            return []
        node, epoch = identity
        room = min(room, MAX_TAKEN)
        values = {"tenant": self._tenant, "node": node, "epoch": epoch, "now": now, "room": room}
        async with self._reader.use() as db:
            found = await (await db.execute(_LOOK, values, prepare=True)).fetchall()
            self._next_due = next((due for kind, _, due in found if kind == "next"), None)
            ids = [id for kind, id, _ in found if kind == "run"]
            if not ids:
                return []
            async with db.transaction():
                locked = await (await db.execute(_LOCK, {**values, "ids": ids})).fetchall()
                taken = await db.execute(_TAKE, {**values, "ids": [id for (id,) in locked]})
                rows = await taken.fetchall()
        return [self._codec.open_run(row) for row in rows]

    async def get(self, run: str) -> RunRecord:
        async with self._reader.use() as db:
            row = await (await db.execute(_RUN, {"tenant": self._tenant, "run": run})).fetchone()
        if row is None:
            raise KeyError(run)
        return self._codec.open_run(row)

    async def load(self, run: str) -> tuple[RunRecord, Json, list[Entry], list[RunMessage]]:
        values = {"tenant": self._tenant, "run": run, "after": 0}
        async with self._reader.use() as db, db.pipeline():
            results = [await db.execute(each, values) for each in (_RUN, _DEFINITION, _ENTRIES, _MESSAGES)]
            row, body = await results[0].fetchone(), await results[1].fetchone()
            entries, messages = await results[2].fetchall(), await results[3].fetchall()
        if row is None:
            raise KeyError(run)
        record = self._codec.open_run(row)
        if record.state == "damaged" and not record.definition:
            raise RunDamaged(run, str((record.error or {}).get("detail", "")).removeprefix(f"{run}: "))
        definition = _open_definition(record, body[0] if body is not None else b"")
        found = [self._codec.open_entry(run, *each) for each in entries]
        return record, definition, found, self._codec.open_messages(run, messages)

    async def write(self, run: str, entries: Sequence[Entry], change: RunChange | None = None) -> None:
        identity = self._identity()
        if identity is None:
            raise RunLost("this node has lost its lease", detail=run)
        # Of two entries for the same attempt the last one counts.
        last = {(each.path, each.attempt): each for each in entries}
        rows = [self._codec.seal_entry(run, each) for each in last.values()]
        result = None
        if change is not None:
            result = self._codec.seal_result(run, change.asks, change.output, change.error)
        work = _Write(run, identity, rows, change, result, asyncio.get_running_loop().create_future())
        self._queue.append(work)
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())
        await work.future

    async def send(self, run: str, message: RunMessage) -> None:
        values = {
            "tenant": self._tenant,
            "run": run,
            "body": self._codec.seal(run, "message", message),
            "final": sorted(FINAL_STATES - RESUMABLE_STATES if message.kind == "resume" else FINAL_STATES),
            "resumed": sorted(RESUMABLE_STATES if message.kind == "resume" else ()),
            "channel": CHANNEL,
            "result": self._codec.seal_result(run, [], None, None) if message.kind == "resume" else None,
        }
        async with self._reader.use() as db:
            if await (await db.execute(_SEND, values)).fetchone() is None:
                raise KeyError(run)

    async def messages(self, run: str, after: int) -> list[RunMessage]:
        async with self._reader.use() as db:
            found = await db.execute(_MESSAGES, {"tenant": self._tenant, "run": run, "after": after})
            return self._codec.open_messages(run, await found.fetchall())

    async def list_runs(self, state: str | None, limit: int) -> list[RunRecord]:
        query = _LIST if state is None else _LIST_IN_STATE
        async with self._reader.use() as db:
            found = await db.execute(query, {"tenant": self._tenant, "state": state, "limit": limit})
            return [self._codec.open_run(row) for row in await found.fetchall()]

    async def next_due(self) -> float | None:
        """Return the wall time of the next due run, as the last `take` found it, or None if none is waiting."""
        return self._next_due

    async def changed(self) -> bool:
        changed, self._has_news = self._has_news, False
        return changed

    # -- group commits

    async def _flush(self) -> None:
        """Write queued run changes to the database, group by group, until the queue is empty."""
        try:
            while self._queue:
                await self._write_group(self._next_group())
        finally:
            self._flushing = None
            for work in self._queue:  # the journal is closed
                work.fail(JournalError("the run journal was closed"))

    def _next_group(self) -> list[_Write]:
        """Take queued writes that fit in one SQL statement: of different runs, under one lease.

        All remaining writes stay queued.
        """
        identity = self._queue[0].identity
        group: dict[str, _Write] = {}
        rest: list[_Write] = []
        while self._queue and len(group) < MAX_GROUP:
            work = self._queue.popleft()
            if work.run in group or work.identity != identity:
                rest.append(work)
            else:
                group[work.run] = work
        self._queue.extendleft(reversed(rest))
        return list(group.values())

    async def _write_group(self, group: list[_Write]) -> None:
        try:
            async with self._writer.use() as db:
                result = await db.execute(_WRITE, _group_values(self._tenant, group), prepare=True)
                owned = {id for (id,) in await result.fetchall()}
        except JournalError as exc:
            for work in group:
                work.fail(exc)
            return
        except BaseException:
            for work in group:
                work.fail(JournalError("the run journal was closed"))
            raise
        for work in group:
            if work.run in owned:
                work.succeed()
            else:
                work.fail(RunLost("the run belongs to another node now", detail=work.run))

    # -- news of other nodes

    def _start_listening(self) -> None:
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        """Listen for PostgreSQL notifications of messages to runs, and call `on_changed`, until cancelled.

        Without a connection, the workflow engine finds the messages by polling.
        """
        while True:
            with contextlib.suppress(JournalError):
                async with self._listener.use() as db:
                    while True:
                        await db.execute(f"LISTEN {CHANNEL}")  # again, to see that the database still answers
                        async for notice in db.notifies(timeout=LISTEN_CHECK_S):
                            if notice.payload == self._tenant:
                                self._has_news = True
                                if self.on_changed is not None:
                                    self.on_changed()
            await asyncio.sleep(LISTEN_RETRY_S)


class _Write:
    """One run's entries and new state, queued for the next commit."""

    def __init__(
        self,
        run: str,
        identity: tuple[str, int],
        rows: list[tuple[str, int, bytes]],
        change: RunChange | None,
        result: bytes | None,
        future: asyncio.Future[None],
    ) -> None:
        self.run = run
        self.identity = identity
        self.rows = rows
        self.change = change
        self.result = result
        self.future = future

    def succeed(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def _group_values(tenant: str, group: Sequence[_Write]) -> dict[str, Any]:
    changed = [(work, work.change) for work in group if work.change is not None]
    entries = [(work.run, *row) for work in group for row in work.rows]
    return {
        "tenant": tenant,
        "node": group[0].identity[0],
        "epoch": group[0].identity[1],
        "ids": [work.run for work in group],
        "changed": [work.run for work, _ in changed],
        "states": [change.state for _, change in changed],
        "dues": [change.due for _, change in changed],
        "results": [work.result for work, _ in changed],
        "ends": [change.ended for _, change in changed],
        "keeps": [change.keep or change.state in ACTIVE_STATES for _, change in changed],
        "finals": [change.state in FINAL_STATES for _, change in changed],
        "runs": [each[0] for each in entries],
        "paths": [each[1] for each in entries],
        "attempts": [each[2] for each in entries],
        "bodies": [each[3] for each in entries],
    }


# -- connections ------------------------------------------------------------------------------------------------------


class _Connection:
    """A database connection that is reopened after an error. Runs one statement at a time."""

    def __init__(self, url: str) -> None:
        target = make_url(url).set(drivername="postgresql")
        self._url = target.render_as_string(hide_password=False)
        self._db: psycopg.AsyncConnection[Any] | None = None
        self._lock = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """Return a context manager that yields the connection in autocommit mode.

        Raises `JournalError` if the database cannot be used.
        """
        async with self._lock:
            try:
                if self._db is None:
                    self._db = await connection_class().connect(
                        self._url, autocommit=True, **postgresql_options(application_name="toolway-runs")
                    )
                    await self._db.execute(require_sync_commit())
                    # Planning a statement takes longer than executing it, and no plan depends on its values.
                    await self._db.execute("SET plan_cache_mode = force_generic_plan")
                yield self._db
            except psycopg.Error as exc:
                await self._drop()
                raise JournalError(
                    "cannot use the run journal",
                    detail=f"the database reports {type(exc).__name__}",  # its text may name the database
                    hint="restore the database; runs wait until then",
                ) from exc
            except asyncio.CancelledError:
                await self._drop()  # a statement may be in flight
                raise

    async def close(self) -> None:
        await self._drop()

    async def _drop(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                await db.close()


# -- encryption -------------------------------------------------------------------------------------------------------


class _Columns(NamedTuple):
    """A row of the workflow run table, in the order of `_COLUMNS`."""

    id: str
    workflow: str
    definition: str
    key: str | None
    caller: str
    state: Any
    due: float | None
    epoch: int | None
    start: bytes
    result: bytes
    created: float
    ended: float | None


class _RunCodec:
    """Encrypts and decrypts the values of workflow runs. A value can be decrypted only in its own row and column."""

    def __init__(self, tenant: str, key: bytes) -> None:
        self._tenant = tenant

        @lru_cache(maxsize=2000)
        def cipher(run: str) -> AESGCM:
            name = msgspec.json.encode(["run", tenant, run])
            return AESGCM(hashlib.blake2b(name, key=key, digest_size=32).digest())

        self._cipher = cipher

    def seal(self, run: str, place: str, value: Any) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher(run).encrypt(nonce, msgspec.json.encode(value), place.encode())

    def open(self, run: str, place: str, sealed: bytes, type: Any = Any) -> Any:
        try:
            plain = self._cipher(run).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], place.encode())
            return msgspec.json.decode(plain, type=type)
        except msgspec.ValidationError as exc:
            raise NewerRun("the run was continued by a newer version", detail=run, hint="update this node") from exc
        except (InvalidTag, ValueError) as exc:
            raise RunDamaged(run, f"{place} cannot be decrypted, because the row was changed or copied") from exc

    def seal_start(self, run: RunRecord) -> bytes:
        return self.seal(run.id, "start", [run.input, run.variables, run.definition, run.workflow, run.key, run.caller])

    def seal_result(self, run: str, asks: list[Json], output: Any, error: Json | None) -> bytes:
        return self.seal(run, "result", [asks, output, error])

    def open_run(self, row: Sequence[Any]) -> RunRecord:
        """Return the run in a row; a tampered row yields a run in the state `damaged`. Never raises."""
        columns = _Columns(*row)
        try:
            return self._open_run(columns)
        except RunDamaged as exc:
            detail = exc.detail.removeprefix(f"{columns.id}: ")
        except (TypeError, ValueError) as exc:
            detail = str(exc)
        return damaged_record(columns.id, columns.workflow, columns.created, detail)

    def _open_run(self, columns: _Columns) -> RunRecord:
        start = self.open(columns.id, "start", columns.start)
        input, variables, definition, workflow, key, caller = start
        asks, output, error = self.open(columns.id, "result", columns.result)
        if (definition, workflow, key, caller) != (columns.definition, columns.workflow, columns.key, columns.caller):
            raise RunDamaged(columns.id, "its workflow, definition, key or starter was changed")
        if columns.state not in RUN_STATES:
            raise RunDamaged(columns.id, "its state was changed")
        return RunRecord(
            id=columns.id,
            workflow=columns.workflow,
            definition=definition,
            key=columns.key,
            caller=caller,
            state=columns.state,
            asks=asks,
            due=columns.due,
            input=input,
            variables=variables,
            output=output,
            error=error,
            created=columns.created,
            ended=columns.ended,
            life=columns.epoch or 0,
        )

    def seal_entry(self, run: str, entry: Entry) -> tuple[str, int, bytes]:
        body = self.seal(run, f"{entry.path}#{entry.attempt}", entry)
        if len(body) > MAX_BODY_BYTES:
            detail = f"{entry.path}: {len(body)} B"
            raise JournalError("the result of a step is too large for the journal", detail=detail)
        return entry.path, entry.attempt, body

    def open_entry(self, run: str, path: str, attempt: int, body: bytes) -> Entry:
        found: Entry = self.open(run, f"{path}#{attempt}", body, Entry)
        return found

    def open_messages(self, run: str, rows: Sequence[Sequence[Any]]) -> list[RunMessage]:
        return [msgspec.structs.replace(self.open(run, "message", body, RunMessage), id=id) for id, body in rows]


def _open_definition(record: RunRecord, body: bytes) -> Json:
    """Return a run's definition, verified by its hash to be the one that the run started with."""
    try:
        definition: Json = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError as exc:
        raise RunDamaged(record.id, f"its definition: {exc}") from exc
    if definition_hash(definition) != record.definition:
        raise RunDamaged(record.id, "its definition was changed")
    return definition


# -- statements -------------------------------------------------------------------------------------------------------

_COLUMNS: Final[LiteralString] = ", ".join(_Columns._fields)
_NOW: Final = "extract(epoch from statement_timestamp())::double precision"
_HAS_LEASE: Final = (
    f"EXISTS (SELECT 1 FROM nodes WHERE id = %(node)s AND nodes.epoch = %(epoch)s AND lease_until > {_NOW})"
)
_IS_LEFT_BEHIND: Final = (
    "runs.node IS NOT NULL AND NOT EXISTS (SELECT 1 FROM nodes WHERE nodes.id = runs.node"
    f" AND nodes.epoch = runs.epoch AND nodes.lease_until > {_NOW})"
)
_CREATE: Final = """
WITH stored AS (
    INSERT INTO run_definitions (tenant, hash, name, body) VALUES (%(tenant)s, %(hash)s, %(workflow)s, %(body)s)
    ON CONFLICT (tenant, hash) DO UPDATE SET body = excluded.body WHERE run_definitions.body <> excluded.body
)
INSERT INTO runs (tenant, id, workflow, definition, key, caller, state, due, start, result, created)
VALUES (%(tenant)s, %(id)s, %(workflow)s, %(hash)s, %(key)s, %(caller)s, %(state)s, %(due)s, %(start)s, %(result)s,
    %(created)s)
ON CONFLICT DO NOTHING RETURNING id
"""
_FIND_BY_KEY: Final = (
    f"SELECT {_COLUMNS} FROM runs"
    " WHERE tenant = %(tenant)s AND workflow = %(workflow)s AND caller = %(caller)s AND key = %(key)s"
)
#: Runs that this node may take, and the next time at which one is due.
_LOOK: Final = f"""
(SELECT 'run', id, due FROM runs
 WHERE tenant = %(tenant)s AND due <= %(now)s AND node IS NULL ORDER BY due LIMIT %(room)s)
UNION ALL
(SELECT 'run', id, due FROM runs
 WHERE tenant = %(tenant)s AND node = %(node)s AND epoch = %(epoch)s AND due <= %(now)s)
UNION ALL
(SELECT 'run', id, due FROM runs WHERE tenant = %(tenant)s AND {_IS_LEFT_BEHIND} LIMIT %(room)s)
UNION ALL
(SELECT 'next', '', due FROM runs
 WHERE tenant = %(tenant)s AND due > %(now)s AND node IS NULL ORDER BY due LIMIT 1)
"""
_LOCK: Final = "SELECT id FROM runs WHERE tenant = %(tenant)s AND id = ANY(%(ids)s) ORDER BY id FOR UPDATE SKIP LOCKED"
_TAKE: Final = f"""
UPDATE runs SET state = CASE state WHEN 'undoing' THEN 'undoing' ELSE 'running' END, due = NULL,
    node = %(node)s, epoch = %(epoch)s
WHERE tenant = %(tenant)s AND id = ANY(%(ids)s) AND {_HAS_LEASE}
    AND ((node IS NULL AND due <= %(now)s) OR (node = %(node)s AND epoch = %(epoch)s AND due <= %(now)s)
        OR ({_IS_LEFT_BEHIND}))
RETURNING {_COLUMNS}
"""
_RUN: Final = f"SELECT {_COLUMNS} FROM runs WHERE tenant = %(tenant)s AND id = %(run)s"
_DEFINITION: Final = (
    "SELECT d.body FROM run_definitions d JOIN runs r ON r.tenant = d.tenant AND r.definition = d.hash"
    " WHERE r.tenant = %(tenant)s AND r.id = %(run)s"
)
_ENTRIES: Final = (
    "SELECT path, attempt, body FROM run_entries WHERE tenant = %(tenant)s AND run = %(run)s ORDER BY path, attempt"
)
_MESSAGES: Final = (
    "SELECT id, body FROM run_messages WHERE tenant = %(tenant)s AND run = %(run)s AND id > %(after)s ORDER BY id"
)
_LIST: Final = f"SELECT {_COLUMNS} FROM runs WHERE tenant = %(tenant)s ORDER BY created DESC LIMIT %(limit)s"
_LIST_IN_STATE: Final = (
    f"SELECT {_COLUMNS} FROM runs WHERE tenant = %(tenant)s AND state = %(state)s ORDER BY created DESC LIMIT %(limit)s"
)
_SEND: Final = """
WITH known AS (SELECT id FROM runs WHERE tenant = %(tenant)s AND id = %(run)s),
stored AS (
    INSERT INTO run_messages (tenant, run, body) SELECT %(tenant)s, id, %(body)s FROM known RETURNING id
),
woken AS (
    UPDATE runs SET due = 0, state = CASE WHEN state = ANY(%(resumed)s) THEN 'ready' ELSE state END,
        ended = CASE WHEN state = ANY(%(resumed)s) THEN NULL ELSE ended END,
        result = CASE WHEN state = ANY(%(resumed)s) THEN %(result)s ELSE result END
    WHERE tenant = %(tenant)s AND id = %(run)s AND state <> ALL(%(final)s)
)
SELECT id, pg_notify(%(channel)s, %(tenant)s) FROM stored
"""
#: One statement for a group: it finds the runs that belong to this node, and changes only those.
_WRITE: Final = f"""
WITH owned AS MATERIALIZED (
    SELECT id FROM runs
    WHERE tenant = %(tenant)s AND id = ANY(%(ids)s) AND node = %(node)s AND epoch = %(epoch)s AND {_HAS_LEASE}
    ORDER BY id FOR UPDATE
),
stored AS (
    INSERT INTO run_entries (tenant, run, path, attempt, body)
    SELECT %(tenant)s, given.run, given.path, given.attempt, given.body
    FROM unnest(%(runs)s::text[], %(paths)s::text[], %(attempts)s::int[], %(bodies)s::bytea[])
        AS given (run, path, attempt, body)
    JOIN owned ON owned.id = given.run
    ON CONFLICT (tenant, run, path, attempt) DO UPDATE SET body = excluded.body
),
moved AS (
    UPDATE runs SET state = given.state, result = given.result, ended = given.ended,
        due = CASE WHEN given.final THEN NULL WHEN runs.due IS NOT NULL THEN 0 ELSE given.due END,
        node = CASE WHEN given.keep THEN runs.node END, epoch = CASE WHEN given.keep THEN runs.epoch END
    FROM unnest(%(changed)s::text[], %(states)s::text[], %(dues)s::float8[], %(results)s::bytea[], %(ends)s::float8[],
        %(keeps)s::bool[], %(finals)s::bool[]) AS given (id, state, due, result, ended, keep, final)
    JOIN owned ON owned.id = given.id
    WHERE runs.tenant = %(tenant)s AND runs.id = given.id
)
SELECT id FROM owned
"""
