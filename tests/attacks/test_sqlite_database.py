"""Another process that opens the SQLite database of a running node."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from toolway.cluster.db.engine import open_engine, upgrade_schema

pytestmark = pytest.mark.anyio


@pytest.mark.attack("R2-C-1")
async def test_reading_the_database_file_does_not_undo_writes(tmp_path: Path) -> None:
    """Another process opens the file and closes it. If the node had no locks, that would delete the `-wal` file: the
    node would continue writing into a deleted file, and a restart would bring back what was there before."""
    file = tmp_path / "record"
    engine = open_engine(f"sqlite:///{file}")
    try:
        await upgrade_schema(engine)
        async with engine.begin() as first:
            await first.execute(text("UPDATE revisions SET last = 1"))
        one, two = await engine.connect().start(), await engine.connect().start()  # more than one, as in a node
        await asyncio.gather(one.close(), two.close())
        read = (
            "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('SELECT * FROM api_keys'); db.close()"
        )
        reader = await asyncio.create_subprocess_exec(sys.executable, "-c", read, str(file))
        assert await reader.wait() == 0
        async with engine.begin() as later:
            await later.execute(text("UPDATE revisions SET last = 2"))
        with sqlite3.connect(file) as db:
            assert db.execute("SELECT last FROM revisions").fetchall() == [(2,)]
        assert file.with_name("record-wal").exists()
    finally:
        await engine.dispose()
