"""Pins in the database: definitions of each server's tools and prompts, as first seen or accepted.

A change reads the row of a server, changes it and writes it in one transaction, so two nodes that see a server for
the first time agree on one definition. Changed, removed or restored rows are rejected (`integrity.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec
from sqlalchemy import Row, and_, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from toolway.catalog.pins import ServerPins
from toolway.cluster.db.changes import record_change
from toolway.cluster.db.engine import insert_if_absent, with_snapshot
from toolway.cluster.db.integrity import Integrity
from toolway.cluster.db.tables import PinsRow

PINS_CHANGE: Final = "pins"
MAX_ROWS: Final = 2000  # servers of a tenant; the pins that did not change for the longest time are removed
MAX_BODY_BYTES: Final = 4 * 1024 * 1024  # of one server; beyond that only the digests are stored

_Result = TypeVar("_Result")
#: (stored pins, or None if there are none) → (pins to store, or None to store nothing; result)
Change = Callable[[ServerPins | None], tuple[ServerPins | None, _Result]]


class PinTable:
    """Stores a tenant's pinned definitions. Methods raise SQLAlchemy errors and `StateRefused`."""

    def __init__(self, engine: AsyncEngine, tenant: str, integrity: Integrity) -> None:
        self._engine = engine
        self._snapshot_engine = with_snapshot(engine)
        self._tenant = tenant
        self._integrity = integrity

    async def load_changed(self, after: int = 0) -> tuple[int, list[ServerPins]]:
        """Return the newest revision, and the pins that changed after revision `after`.

        Raises `StateRefused` if a row was changed, removed or put back without the key.
        """
        ours = PinsRow.tenant == self._tenant
        newest = self._integrity.newest(self._tenant)
        async with self._snapshot_engine.connect() as db:
            state = await self._integrity.read_state(db, self._tenant, newest)
            known = await self._heads(db)
            rows = (await db.execute(select(PinsRow).where(ours, PinsRow.revision > after))).all()
        unsigned = {(row.server, row.identity) for row in rows if not self._is_signed(row)}
        signed = [row for row in known if (row.server, row.identity) not in unsigned]
        self._integrity.check(state, self._tenant, "pins", map(self._mark, signed))
        revision = max((row.revision for row in known), default=0)
        return revision, [msgspec.json.decode(row.body, type=ServerPins) for row in rows]

    async def change(self, server: str, identity: str, change: Change[_Result]) -> _Result:
        """Apply `change` to a server's stored pins, in one transaction.

        Return the result of `change`. Raises `StateRefused`, with nothing stored, if any row of the tenant was changed,
        removed or put back without the key.
        """
        row_id = {"tenant": self._tenant, "server": server, "identity": identity}
        is_row = and_(*(getattr(PinsRow, name) == value for name, value in row_id.items()))
        async with self._engine.begin() as db:
            await insert_if_absent(db, PinsRow, {**row_id, "body": b"", "mac": "", "revision": 0})
            row = (await db.execute(select(PinsRow).where(is_row).with_for_update())).one()
            known = msgspec.json.decode(row.body, type=ServerPins) if self._is_signed(row) else None
            new, result = change(known)
            if new is None:
                if not row.mac:
                    await db.execute(delete(PinsRow).where(is_row))
                return result
            body = _encode(new)
            mac = self._integrity.sign("pins", self._tenant, server, identity, body)
            await db.execute(update(PinsRow).where(is_row).values(body=body, mac=mac))
            removed = await self._remove_oldest(db)
            added = self._integrity.mark("pins", self._tenant, f"{server} {identity}", mac)
            state = await self._integrity.lock_state(db, self._tenant)
            replaced = self._mark(row) if known is not None else 0
            state = state.changed({"pins": added - removed - replaced})
            self._integrity.check(state, self._tenant, "pins", map(self._mark, await self._heads(db)))
            await self._integrity.write_state(db, self._tenant, state)
            revision = await record_change(db, PINS_CHANGE, self._tenant)
            await db.execute(update(PinsRow).where(is_row).values(revision=revision))
            return result

    async def _heads(self, db: AsyncConnection) -> Sequence[Any]:
        """Return all of the tenant's rows, without the pinned definitions."""
        columns = (PinsRow.server, PinsRow.identity, PinsRow.mac, PinsRow.revision)
        return (await db.execute(select(*columns).where(PinsRow.tenant == self._tenant, PinsRow.mac != ""))).all()

    async def _remove_oldest(self, db: AsyncConnection) -> int:
        """Delete the rows unchanged for longest, so at most `MAX_ROWS` remain.

        Return the sum of their marks (keyed hashes, `integrity.py`).
        """
        ours = and_(PinsRow.tenant == self._tenant, PinsRow.revision > 0)  # not the new one
        count = (await db.execute(select(func.count()).select_from(PinsRow).where(ours))).scalar_one()
        if count < MAX_ROWS:
            return 0
        query = select(PinsRow).where(ours).order_by(PinsRow.revision).limit(count - MAX_ROWS + 1)
        rows = (await db.execute(query)).all()
        for row in rows:
            same = and_(PinsRow.server == row.server, PinsRow.identity == row.identity)
            await db.execute(delete(PinsRow).where(PinsRow.tenant == self._tenant, same))
        return sum(self._mark(row) for row in rows)

    def _is_signed(self, row: Row[Any]) -> bool:
        return self._integrity.is_signed(row.mac, "pins", row.tenant, row.server, row.identity, row.body)

    def _mark(self, row: Row[Any]) -> int:
        return self._integrity.mark("pins", self._tenant, f"{row.server} {row.identity}", row.mac)


def _encode(pins: ServerPins) -> bytes:
    body = msgspec.json.encode(pins)
    if len(body) <= MAX_BODY_BYTES:
        return body
    return msgspec.json.encode(
        ServerPins(
            pins.name,
            pins.identity,
            {key: msgspec.structs.replace(pin, definition=None) for key, pin in pins.pins.items()},
            {key: msgspec.structs.replace(each, definition=None) for key, each in pins.deviations.items()},
            pins.listed,
        )
    )
