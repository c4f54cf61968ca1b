"""Audit log in every kind of storage, including a real PostgreSQL server in a folder of the test run."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.telemetry.postgres_server import binaries, postgres_server
from toolway.audit.file_sinks import JsonlSink, SqliteSink
from toolway.audit.sink import AuditSink
from toolway.parts.audit.postgres import PostgresSink

_names = itertools.count(1)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of our PostgreSQL server."""
    programs = binaries()
    if programs is None or importlib.util.find_spec("psycopg") is None:
        pytest.skip("PostgreSQL or psycopg is not installed: the log in PostgreSQL was not tested")
    with postgres_server(programs) as address:
        yield address


@pytest.fixture(params=["sqlite", "jsonl", "postgres"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., AuditSink]:
    """Makes the sink for one and the same log, again and again."""
    if request.param == "postgres":
        address, name = request.getfixturevalue("postgres"), f"test-{next(_names)}"
        return lambda **options: PostgresSink(address, name, **options)
    kind = SqliteSink if request.param == "sqlite" else JsonlSink
    return lambda **options: kind(tmp_path / f"audit.{request.param}", **options)
