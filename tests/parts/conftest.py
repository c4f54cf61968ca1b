"""Fixtures of the databases in which parts store data: SQLite and PostgreSQL."""

from tests.cluster.db.conftest import (  # noqa: F401 - fixtures
    anyio_backend,
    empty_url,
    engine,
    made_in_postgresql,
    made_in_sqlite,
    postgresql,
    url,
)
