"""The clock of the database, in seconds: the only one that all nodes share."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Double
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import FunctionElement


class seconds_now(FunctionElement[float]):
    """The time at which the statement began. Not that of its transaction, which could be long ago; and not the very
    moment, since a statement that waited for a lock sees the other rows as they were when it began, and would take a
    lease for ended that was renewed meanwhile."""

    type = Double()
    inherit_cache = True
    name = "seconds_now"


@compiles(seconds_now, "postgresql")
def _postgresql(element: seconds_now, compiler: Any, **options: Any) -> str:
    return "extract(epoch from statement_timestamp())::double precision"


@compiles(seconds_now, "sqlite")
def _sqlite(element: seconds_now, compiler: Any, **options: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"
