"""What can be wrong with the engines of a cluster, as errors that say what to do. None of their libraries is loaded."""

from __future__ import annotations

import importlib.util
from typing import Final

from toolway.errors import ConfigError, Unavailable
from toolway.secrets.known import hide

_NEEDED: Final = ("nats", "sqlalchemy", "alembic", "psycopg", "aiosqlite")
_LONGEST: Final = 300  # characters of what an engine said


def must_be_installed() -> None:
    """Raises `ConfigError` where the extra `cluster` is not installed."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            "this Toolway was installed without what a cluster needs",
            evidence=f"there is no {', '.join(missing)}",
            fix="install it: pip install 'toolway[cluster]'",
            code="E-CLUSTER-MISSING",
        )


def record_silent(exc: BaseException) -> Unavailable:
    """The database of the cluster does not answer, or not as one of ours."""
    return Unavailable(
        "the database of the cluster does not answer",
        evidence=_said(exc),
        fix="see that PostgreSQL runs at the address of --database, and lets this user in: psql ADDRESS",
        code="E-RECORD",
    )


def nats_silent(exc: BaseException) -> Unavailable:
    """No NATS of the cluster can be reached. A gateway goes on without, and is told of changes a little later."""
    return Unavailable(
        "no NATS of the cluster answers",
        evidence=_said(exc),
        fix="see that one runs at an address of --cluster, and takes these credentials: nats server check connection",
        code="E-NATS",
    )


def _said(exc: BaseException) -> str:
    """In one line, without passwords. SQLAlchemy wraps what the driver said, and puts links behind it."""
    cause = getattr(exc, "orig", None) or exc
    text = " ".join(str(cause).split()) or type(cause).__name__
    return hide(text)[:_LONGEST]
