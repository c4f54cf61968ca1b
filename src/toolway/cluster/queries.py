"""Database queries that are never cancelled, and a log throttle for their failures.

If a caller times out, it stops waiting but the query keeps running: cancelling it midway would cost a connection.
Time limits in the database and network code end every query (`db/engine.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from toolway.errors import ToolwayError

PENDING_QUERIES_TIMEOUT_S: Final = 5.0  # seconds to wait at shutdown for queries without a waiting caller
MAX_LOGGED_ERRORS: Final = 10  # distinct errors logged until the next recovery
_MAX_ERROR_CHARS: Final = 300  # characters

T = TypeVar("T")
log = logging.getLogger("toolway.cluster")


class QueryRunner:
    """Runs database queries with a time limit. A query continues if its caller stops waiting."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._pending: set[asyncio.Future[Any]] = set()

    async def __call__(self, query: Coroutine[Any, Any, T]) -> T:
        """Run a query and return its result; errors of the query are raised.

        After the time limit, `TimeoutError` is raised and the query continues in the background.
        """
        task = asyncio.ensure_future(query)
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        async with asyncio.timeout(self._timeout):
            return await asyncio.shield(task)

    async def wait_pending(self) -> None:
        """Wait for queries that still run, at most `PENDING_QUERIES_TIMEOUT_S`; then return anyway."""
        if self._pending:
            await asyncio.wait(self._pending, timeout=PENDING_QUERIES_TIMEOUT_S)


class LogThrottle:
    """Throttles the log for a repeated failure, such as an unreachable database.

    Logs each distinct error of one operation once, and its recovery once.
    """

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._logged: set[str] = set()

    def log_failure(self, exc: Exception) -> None:
        """Log an error, unless the same error was logged since the last recovery.

        Only the text of Toolway's own errors is logged: that of another library may contain the database URL or a
        secret.
        """
        text = (
            f"{type(exc).__name__}: {str(exc)[:_MAX_ERROR_CHARS]}"
            if isinstance(exc, ToolwayError)
            else type(exc).__name__
        )
        if text not in self._logged and len(self._logged) < MAX_LOGGED_ERRORS:
            log.warning("%s: %s", self._subject, text)
            self._logged.add(text)

    def log_recovery(self) -> None:
        """Log that the operation succeeds again, if a failure was logged."""
        if self._logged:
            log.warning("%s: recovered", self._subject)
            self._logged.clear()
