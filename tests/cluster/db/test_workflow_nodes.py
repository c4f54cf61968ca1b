"""Three nodes execute workflow runs of one PostgreSQL while one of them is killed or stopped: `kills.py`, in short."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.workflows.kills import run_nodes_with_kills

pytest.importorskip("cel_expr_python", reason="the extra toolway[workflows] is not installed")
pytestmark = pytest.mark.anyio


@pytest.fixture
def database(made_in_postgresql: str) -> Iterator[str]:
    yield made_in_postgresql
    with psycopg.connect(made_in_postgresql, autocommit=True) as db:
        for table in ("run_messages", "run_entries", "runs", "run_definitions", "nodes"):
            db.execute(f"DELETE FROM {table}")


@pytest.mark.slow  # the matrix kills and stops nodes too
@pytest.mark.parametrize("stop", [False, True], ids=["killed", "stopped"])
async def test_killed_or_stopped_node_loses_and_doubles_no_effect(database: str, tmp_path: Path, stop: bool) -> None:
    report = await run_nodes_with_kills(tmp_path, 8, database, seed=1, every=0.3, stop=stop, max_kills=1)
    assert report.is_good, report
