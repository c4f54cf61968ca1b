"""Journal that reports each point of a run, so a process can be killed there.

A point is a write to the journal, such as `before u1 begun` or `after model/1 done`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from toolway.types import Json
from toolway.workflows.journal import Entry, RunChange, RunRecord
from toolway.workflows.sqlite_journal import SqliteJournal


class PointJournal(SqliteJournal):
    """Journal that reports each point before and after a write."""

    def __init__(self, path: Path | None, *, reach: Callable[[str], None]) -> None:
        super().__init__(path)
        self._reach = reach

    async def create(self, run: RunRecord, definition: Json) -> RunRecord:
        self._reach("before create")
        created = await super().create(run, definition)
        self._reach("after create")
        return created

    async def write(self, run: str, entries: Sequence[Entry], change: RunChange | None = None) -> None:
        names = [f"{each.path} {each.state}" for each in entries]
        names += [f"run {change.state}"] if change is not None else []
        for name in names:
            self._reach(f"before {name}")
        await super().write(run, entries, change)
        for name in names:
            self._reach(f"after {name}")
