"""Statements that PostgreSQL and SQLite spell alike, and SQLAlchemy does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from toolway.cluster.record.tables import Base

Columns: TypeAlias = Mapping[str, Any]


async def insert_once(db: AsyncConnection, table: type[Base], row: Columns) -> bool:
    """Insert a row unless there is one with its key; whether it was inserted."""
    make = sqlite.insert if db.dialect.name == "sqlite" else postgresql.insert
    done = await db.execute(make(table).values(row).on_conflict_do_nothing().returning(*_key(table)))
    return done.first() is not None


async def put(db: AsyncConnection, table: type[Base], row: Columns) -> None:
    """Insert a row, or replace what is in the one that has its key."""
    await put_all(db, table, [row])


async def put_all(db: AsyncConnection, table: type[Base], rows: Sequence[Columns]) -> None:
    """The same for some rows of the same columns: hundreds, not thousands."""
    keys = [column.name for column in _key(table)]
    make = sqlite.insert if db.dialect.name == "sqlite" else postgresql.insert
    new = make(table).values(rows)
    rest = {name: new.excluded[name] for name in rows[0] if name not in keys}
    await db.execute(new.on_conflict_do_update(index_elements=keys, set_=rest))


def _key(table: type[Base]) -> list[Any]:
    return list(table.__table__.primary_key)
