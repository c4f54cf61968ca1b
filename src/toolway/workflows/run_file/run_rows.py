"""Rows of workflow runs in a SQLite file: the tables, and the statements of `SqliteJournal`.

A value that cannot be read concerns its run alone. Functions that return runs return a damaged one as a record in the
state `damaged`; `load` and `messages` raise `RunDamaged` for it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from toolway.types import Json
from toolway.workflows.journal import (
    DOUBT_VARIABLE,
    FINAL_STATES,
    RESUMABLE_STATES,
    RUN_STATES,
    Entry,
    NewerRun,
    RunChange,
    RunDamaged,
    RunLost,
    RunMessage,
    RunRecord,
    damaged_record,
    definition_hash,
)
from toolway.workflows.schedule import SCHEDULE_KEY

DOUBT_S: Final = 86_400.0  # after intents were lost: a key that is used again may belong to a lost run
T = TypeVar("T")
SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS definitions (hash TEXT PRIMARY KEY, name TEXT NOT NULL, body BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS runs (
    id TEXT PRIMARY KEY, workflow TEXT NOT NULL, definition TEXT NOT NULL, key TEXT, caller TEXT NOT NULL,
    state TEXT NOT NULL, asks BLOB NOT NULL, due REAL, input BLOB, variables BLOB, output BLOB, error BLOB,
    created REAL NOT NULL, ended REAL, life INTEGER NOT NULL
) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS runs_key ON runs (workflow, caller, key) WHERE key IS NOT NULL;
CREATE INDEX IF NOT EXISTS runs_due ON runs (due) WHERE due IS NOT NULL;
CREATE INDEX IF NOT EXISTS runs_created ON runs (created);
CREATE TABLE IF NOT EXISTS entries (
    run TEXT NOT NULL, path TEXT NOT NULL, attempt INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (run, path, attempt)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS inbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL, body BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS inbox_run ON inbox (run, id);
CREATE TABLE IF NOT EXISTS lost_runs (
    workflow TEXT NOT NULL, caller TEXT NOT NULL, key TEXT NOT NULL, run TEXT NOT NULL,
    PRIMARY KEY (workflow, caller, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""
_RUN_COLUMNS: Final = (
    "id, workflow, definition, key, caller, state, asks, due, input, variables, output, error, created, ended, life"
)
INSERT: Final = "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)"
EntryRow: TypeAlias = tuple[str, str, int, bytes]  # run, path, attempt, body


_RUN_NAMES: Final = _RUN_COLUMNS.split(", ")
encode = msgspec.json.Encoder().encode


def _decode_as(run: str, what: str, data: Any, type: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=type)
    except msgspec.ValidationError as exc:
        raise NewerRun("the run was continued by a newer version", detail=run, hint="update toolway") from exc
    except (msgspec.DecodeError, TypeError, ValueError) as exc:
        raise RunDamaged(run, f"{what}: {exc}") from exc


def _run(row: tuple[Any, ...]) -> RunRecord:
    """Return the run in a row; if the row cannot be read, a record in the state `damaged`."""
    values = dict(zip(_RUN_NAMES, row, strict=True))
    name = ""
    try:
        for name in ("asks", "input", "variables", "output", "error"):
            values[name] = None if values[name] is None else msgspec.json.decode(values[name])
        name = "a text"
        for text in (values["id"], values["workflow"], values["key"] or "", values["caller"]):
            text.encode()
        name = "the row"
        return msgspec.convert(values, RunRecord)
    except (msgspec.DecodeError, AttributeError, TypeError, ValueError) as exc:
        return damaged_record(values["id"], values["workflow"], values["created"], f"{name}: {exc}")


def create(db: sqlite3.Connection, run: RunRecord, definition: Json) -> RunRecord:
    if run.key is not None:
        known = db.execute(
            f"SELECT {_RUN_COLUMNS} FROM runs WHERE workflow = ? AND caller = ? AND key = ?",
            (run.workflow, run.caller, run.key),
        ).fetchone()
        if known is not None:
            return _run(known)
        run = _as_lost_run(db, run)
    db.execute(
        "INSERT INTO definitions VALUES (?, ?, ?)"
        " ON CONFLICT DO UPDATE SET body = excluded.body WHERE body IS NOT excluded.body",
        (run.definition, run.workflow, encode(definition)),
    )
    values = (
        run.id,
        run.workflow,
        run.definition,
        run.key,
        run.caller,
        run.state,
        encode(run.asks),
        run.due,
        encode(run.input),
        encode(run.variables),
        None,
        None,
        run.created,
        None,
        run.life,
    )
    db.execute(f"INSERT INTO runs ({_RUN_COLUMNS}) VALUES ({', '.join('?' * 15)})", values)
    return run


def _as_lost_run(db: sqlite3.Connection, run: RunRecord) -> RunRecord:
    """Mark a new run as a lost one with the same key, if the journal has lost such a run.

    It has the id of the lost run, so the intents that were restored for it count. If it is not known which runs
    or steps were lost, the run asks a user before each unsafe step.
    """
    identity = (run.workflow, run.caller, run.key)
    lost = db.execute("SELECT run FROM lost_runs WHERE workflow = ? AND caller = ? AND key = ?", identity).fetchone()
    if lost is not None:
        db.execute("DELETE FROM lost_runs WHERE workflow = ? AND caller = ? AND key = ?", identity)
        run = msgspec.structs.replace(run, id=lost[0])
    doubt = read_meta(db, "doubt")
    is_later = (run.key or "").startswith(SCHEDULE_KEY) and run.created > doubt
    if doubt and not is_later and time.time() - doubt < DOUBT_S:
        return msgspec.structs.replace(run, variables={**(run.variables or {}), DOUBT_VARIABLE: True})
    return run


def read_meta(db: sqlite3.Connection, name: str) -> int:
    """Return a number of the file itself, 0 if it was never stored."""
    found = db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return found[0] if found is not None and isinstance(found[0], int) else 0


def write_meta(db: sqlite3.Connection, name: str, value: int) -> None:
    db.execute("INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", (name, value))


def take(db: sqlite3.Connection, now: float, room: int, life: int) -> list[RunRecord]:
    rows = db.execute(
        f"UPDATE runs SET state = CASE state WHEN 'undoing' THEN 'undoing' ELSE 'running' END, due = NULL, life = ? "
        f"WHERE id IN (SELECT id FROM runs WHERE due <= ? ORDER BY due LIMIT ?) RETURNING {_RUN_COLUMNS}",
        (life, now, room),
    ).fetchall()
    return [_run(row) for row in rows]


def get(db: sqlite3.Connection, id_: str) -> RunRecord:
    row = db.execute(f"SELECT {_RUN_COLUMNS} FROM runs WHERE id = ?", (id_,)).fetchone()
    if row is None:
        raise KeyError(id_)
    return _run(row)


def load(db: sqlite3.Connection, id_: str) -> tuple[RunRecord, Json, list[Entry], list[RunMessage]]:
    run = get(db, id_)
    if run.state == "damaged" and not run.definition:
        raise RunDamaged(id_, str((run.error or {}).get("detail", "")).removeprefix(f"{id_}: "))
    return run, _definition(db, run), _entries(db, id_), messages(db, id_, 0)


def _definition(db: sqlite3.Connection, run: RunRecord) -> Json:
    found = db.execute("SELECT body FROM definitions WHERE hash = ?", (run.definition,)).fetchone()
    if found is None:
        raise RunDamaged(run.id, "its definition is missing")
    try:
        body = msgspec.json.decode(found[0])
        if isinstance(body, dict) and definition_hash(body) == run.definition:
            return body
    except (msgspec.DecodeError, TypeError, ValueError) as exc:
        raise RunDamaged(run.id, f"its definition: {exc}") from exc
    raise RunDamaged(run.id, "its definition was changed")


def _entries(db: sqlite3.Connection, id_: str) -> list[Entry]:
    found = []
    rows = db.execute("SELECT path, attempt, body FROM entries WHERE run = ? ORDER BY path, attempt", (id_,))
    for path, attempt, body in rows.fetchall():  # an error must leave no statement open: it holds its snapshot
        entry = _decode_as(id_, f"the entry {path}#{attempt}", body, Entry)
        if (entry.path, entry.attempt) != (path, attempt):
            raise RunDamaged(id_, f"the entry {path}#{attempt} belongs to {entry.path}#{entry.attempt}")
        found.append(entry)
    return found


def write(
    db: sqlite3.Connection,
    id_: str,
    life: int,
    rows: Sequence[EntryRow],
    change: RunChange | None,
) -> None:
    owner = db.execute("SELECT life FROM runs WHERE id = ?", (id_,)).fetchone()
    if owner is None or owner[0] != life:
        raise RunLost("the run belongs to another process now", detail=id_)
    db.executemany(INSERT, rows)
    if change is None:
        return
    due = change.due
    if change.state not in FINAL_STATES:
        # A message that arrived in between makes the run due at once.
        pending = db.execute("SELECT 1 FROM runs WHERE id = ? AND due IS NOT NULL", (id_,)).fetchone()
        due = 0.0 if pending else due
    output = None if change.output is None else encode(change.output)
    error = None if change.error is None else encode(change.error)
    db.execute(
        "UPDATE runs SET state = ?, due = ?, asks = ?, output = ?, error = ?, ended = ? WHERE id = ?",
        (change.state, due, encode(change.asks), output, error, change.ended, id_),
    )


def are_owned(db: sqlite3.Connection, ids: list[str], life: int) -> bool:
    """Return True if the process with number `life` has taken all these runs.

    The caller has a transaction, so no other process takes one of them in the meantime.
    """
    places = 1 << (len(ids) - 1).bit_length()  # few different statements: the connection keeps them compiled
    given = ids + ids[-1:] * (places - len(ids))
    query = f"SELECT count(*) FROM runs WHERE life = ? AND id IN ({', '.join('?' * places)})"
    found: int = db.execute(query, (life, *given)).fetchone()[0]
    return found == len(ids)


def send(db: sqlite3.Connection, id_: str, message: RunMessage) -> None:
    row = db.execute("SELECT state FROM runs WHERE id = ?", (id_,)).fetchone()
    if row is None:
        raise KeyError(id_)
    db.execute("INSERT INTO inbox (run, body) VALUES (?, ?)", (id_, encode(message)))
    if message.kind == "resume" and (row[0] in RESUMABLE_STATES or row[0] not in RUN_STATES):
        db.execute("UPDATE runs SET state = 'ready', due = 0, ended = NULL, error = NULL WHERE id = ?", (id_,))
    elif row[0] not in FINAL_STATES:
        db.execute("UPDATE runs SET due = 0 WHERE id = ?", (id_,))


def messages(db: sqlite3.Connection, id_: str, after: int) -> list[RunMessage]:
    rows = db.execute("SELECT id, body FROM inbox WHERE run = ? AND id > ? ORDER BY id", (id_, after))
    return [
        msgspec.structs.replace(_decode_as(id_, f"the message {number}", body, RunMessage), id=number)
        for number, body in rows.fetchall()
    ]


def list_runs(db: sqlite3.Connection, state: str | None, limit: int) -> list[RunRecord]:
    where, values = ("WHERE state = ?", (state,)) if state is not None else ("", ())
    rows = db.execute(f"SELECT {_RUN_COLUMNS} FROM runs {where} ORDER BY created DESC LIMIT ?", (*values, limit))
    return [_run(row) for row in rows]


def next_due(db: sqlite3.Connection) -> float | None:
    found: float | None = db.execute("SELECT min(due) FROM runs WHERE due IS NOT NULL").fetchone()[0]
    return found
