"""The callers' windows (their last labeled calls), shared by all processes of a gateway."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from toolway.part_api.database import Database, DatabaseError, Table, Transaction
from toolway.parts.flows.labels import WINDOW_S, LabelledCall, Window

WINDOWS: Final = Table("flow_windows", {"entries": "TEXT", "at": "DOUBLE"})  # by caller
TABLES: Final = (WINDOWS,)
T = TypeVar("T")
Change = Callable[[Window], Window | None]  # returns the new window; None: it stays
_log = logging.getLogger("toolway.gateway")
_WINDOW: Final = msgspec.json.Decoder(dict[str, LabelledCall])


class FlowStoreError(Exception):
    """Raised when stored windows cannot be read or written."""


def encode_window(window: Window) -> str:
    return msgspec.json.encode(dict(window)).decode()


def decode_window(text: str) -> dict[str, LabelledCall]:
    """Decode a caller's stored window. Raises `FlowStoreError` if it is invalid.

    An invalid window is not treated as empty, because that would lose labels.
    """
    try:
        return _WINDOW.decode(text)
    except (msgspec.MsgspecError, TypeError, ValueError) as exc:
        raise FlowStoreError("a stored window is invalid") from exc


def decode_windows(rows: Iterable[tuple[str, str]]) -> dict[str, Window]:
    """Decode stored windows for a list. Invalid ones are reported and left out.

    Calls that need an invalid window are rejected as long as it is invalid (`decode_window`).
    """
    found: dict[str, Window] = {}
    for caller, entries in rows:
        try:
            found[caller] = decode_window(entries)
        except FlowStoreError as exc:
            shown = caller.encode("utf-8", "backslashreplace").decode()
            _log.error("E-FLOW-STORE: %s: toolway policy flows reset %s", exc, shown)
    return found


class FlowStore:
    """Stores the callers' windows. Methods raise `FlowStoreError` if reading or writing fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def change(self, caller: str, change: Change, now: float) -> None:
        """Replace a caller's window with the result of `change`, in one transaction.

        No other process can read or write the window in between.
        """

        def work(db: Transaction) -> None:
            entries = db.lock_rows(WINDOWS, [caller], ("{}", now))[caller][0]
            changed = change(decode_window(entries))
            if changed is not None:
                db.put_rows(WINDOWS, {caller: (encode_window(changed), now)})

        await self._run(work)

    async def load(self, now: float) -> Mapping[str, Window]:
        """Return each caller's window for the last half hour."""

        def work(db: Transaction) -> Mapping[str, Window]:
            db.delete(WINDOWS, "at < :limit", limit=now - 2 * WINDOW_S)
            rows = db.select(WINDOWS, "at > :limit", limit=now - WINDOW_S)
            return decode_windows((caller, entries) for caller, (entries, _) in rows.items())

        return await self._run(work)

    async def remove(self, caller: str) -> bool:
        """Delete a caller's stored window. Return False if there is none."""
        return await self._run(lambda db: db.delete(WINDOWS, "key = :caller", caller=caller)) > 0

    async def close(self) -> None:
        await self._database.close()

    async def _run(self, work: Callable[[Transaction], T]) -> T:
        try:
            return await self._database.run(work)
        except DatabaseError as exc:
            raise FlowStoreError(str(exc)) from exc
