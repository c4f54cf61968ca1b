"""Signed tables of parts in the database of a cluster: what was written without its key is neither read nor kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cluster.db.encryption_keys import an_integrity
from toolway.cluster.db.part_database import ClusterDatabase
from toolway.part_api.database import DatabaseError, Transaction
from toolway.parts.approvals.store import REQUESTS, SPENT

pytestmark = pytest.mark.anyio
ROW = ("binding", "pending", "anna", 5.0, "sealed")


def a_database(engine: AsyncEngine, tenant: str = "t") -> ClusterDatabase:
    """As a node has it that was just started."""
    return ClusterDatabase(engine, tenant, (REQUESTS, SPENT), an_integrity(b"k"))


async def put(engine: AsyncEngine, *keys: str, tenant: str = "t") -> None:
    await a_database(engine, tenant).run(lambda db: db.put_rows(REQUESTS, dict.fromkeys(keys, ROW)))


async def execute(engine: AsyncEngine, statement: str, **values: Any) -> None:
    async with engine.begin() as db:
        await db.execute(text(statement), values)


def everything(db: Transaction) -> tuple[list[str], int]:
    return sorted(db.select(REQUESTS, "until > 0")), db.count(REQUESTS, "until > 0")


@pytest.mark.parametrize("column", ["binding", "state", "caller", "sealed", "mac"])
async def test_changed_row_is_not_read_but_still_counted(engine: AsyncEngine, column: str) -> None:
    await put(engine, "bad", "good")
    if column == "mac":  # the sum says so already: nothing is read
        await execute(engine, "UPDATE approvals SET mac = 'x' WHERE key = 'bad'")
        with pytest.raises(DatabaseError):
            await a_database(engine).read(everything)
        return
    await execute(engine, f"UPDATE approvals SET {column} = 'x' WHERE key = 'bad'")
    for run in (a_database(engine).run, a_database(engine).read):
        assert await run(everything) == (["good"], 2)
    with pytest.raises(DatabaseError, match="without the cluster key"):
        await a_database(engine).run(lambda db: db.lock_rows(REQUESTS, ["bad"], ROW))
    assert await a_database(engine).run(lambda db: db.delete(REQUESTS, "\"key\" = 'bad'")) == 1
    assert await a_database(engine).run(everything) == (["good"], 1), "a deleted row is no longer reported"


@pytest.mark.parametrize(
    "attack",
    [
        "DELETE FROM approvals WHERE key = 'b'",
        "UPDATE approvals SET key = 'c' WHERE key = 'b'",
        "UPDATE approvals SET tenant = 'other' WHERE key = 'b'",
        "INSERT INTO approvals SELECT 't', 'c', binding, state, caller, until, sealed, mac FROM approvals LIMIT 1",
    ],
)
async def test_removed_moved_or_copied_rows_are_rejected(engine: AsyncEngine, attack: str) -> None:
    await put(engine, "a", "b")
    await execute(engine, attack)
    for run in (a_database(engine).run, a_database(engine).read):
        with pytest.raises(DatabaseError):
            await run(everything)


async def test_failed_transaction_changes_nothing(engine: AsyncEngine) -> None:
    await put(engine, "a")

    def fail(db: Transaction) -> None:
        db.put_rows(REQUESTS, {"b": ROW})
        db.delete(REQUESTS, "\"key\" = 'a'")
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        await a_database(engine).run(fail)
    assert await a_database(engine).run(everything) == (["a"], 1)


async def test_concurrent_nodes_add_up_and_tenants_stay_apart(engine: AsyncEngine) -> None:
    await asyncio.gather(*(put(engine, f"k{number}") for number in range(6)), put(engine, "k0", tenant="other"))
    assert (await a_database(engine).run(everything))[1] == 6
    locked = await a_database(engine).run(lambda db: db.lock_rows(REQUESTS, ["k1", "none"], ("", "", "", 0.0, "")))
    assert locked == {"k1": ROW, "none": ("", "", "", 0.0, "")}
    assert await a_database(engine, "other").run(everything) == (["k0"], 1)


async def test_nothing_is_read_or_written_without_signing_key(engine: AsyncEngine) -> None:
    await put(engine, "a")
    database = ClusterDatabase(engine, "t", (REQUESTS, SPENT))
    for work in (everything, lambda db: db.put_rows(REQUESTS, {"b": ROW}), lambda db: db.delete(REQUESTS, "until > 0")):
        with pytest.raises(DatabaseError, match="cannot be verified"):
            await database.run(work)
    assert await a_database(engine).run(everything) == (["a"], 1)
