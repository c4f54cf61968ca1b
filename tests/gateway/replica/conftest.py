"""A record that only one test has."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from toolway.cluster.record.engine import open_engine, upgrade


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    engine = open_engine(f"sqlite:///{tmp_path / 'record'}")
    await upgrade(engine)
    yield engine
    await engine.dispose()
