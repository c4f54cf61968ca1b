"""Log messages that servers send during calls: who gets them, and which level to request."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from toolway.errors import ConfigError
from toolway.events import CallFinished, Event, ServerLog
from toolway.hub.event_stream import EventBroadcaster, mask_event
from toolway.protocol.versions import DEFAULT_LOG_LEVEL, LOG_LEVELS, log_verbosity
from toolway.secrets.replacer import Mask

#: Called with each log message of a server; may be a coroutine function.
LogListener: TypeAlias = Callable[[ServerLog], Awaitable[None] | None]
MAX_WAITING: Final = 1000  # log messages whose coroutines have not ended; any more are dropped
_log = logging.getLogger(__name__)


def check_log_level(level: str | None) -> str | None:
    """Return the level. Raises `ConfigError` if MCP has no such level."""
    if level is None or level in LOG_LEVELS:
        return level
    levels = ", ".join(LOG_LEVELS)
    raise ConfigError(f"log_level must be one of {levels}", detail=f"found {level!r}", code="E-CONFIG-KEY")


class LogCallbackSink:
    """Passes servers' log messages to a function or coroutine function.

    A server may send any level, so this sink drops messages below `level`. An exception in the callback is logged.
    """

    wants_attempts = False
    wants_calls = False

    def __init__(self, callback: LogListener, level: str | None, mask: Mask) -> None:
        self._callback = callback
        self._level = level
        self._mask = mask
        self._waiting: set[asyncio.Task[None]] = set()

    def on_call(self, event: CallFinished) -> None:
        """Do nothing: only log messages matter."""

    def on_event(self, event: Event) -> None:
        if not isinstance(event, ServerLog):
            return
        if self._level is not None and log_verbosity(event.level) > log_verbosity(self._level):
            return
        if len(self._waiting) >= MAX_WAITING:
            return
        masked = mask_event(event, self._mask)
        assert isinstance(masked, ServerLog)
        result = self._callback(masked)
        if inspect.isawaitable(result):
            task = asyncio.ensure_future(_await(result))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

    async def close(self) -> None:
        """Wait up to a second for the callback's coroutines, then cancel them."""
        if self._waiting:
            _, late = await asyncio.wait(self._waiting, timeout=1.0)
            for task in late:
                task.cancel()


class LogReaders:
    """Knows who reads servers' log messages: the program's callback (in `sink`), and subscribers."""

    def __init__(self, broadcaster: EventBroadcaster, callback: LogListener | None, level: str | None, mask: Mask):
        self._broadcaster = broadcaster
        self._level = check_log_level(level)
        self.sink = LogCallbackSink(callback, self._level, mask) if callback is not None else None

    @property
    def level(self) -> str | None:
        """Return the lowest log level to request from servers for the program's calls.

        Return None if nothing reads log messages; a modern server then sends none.
        """
        if self._level is not None:
            return self._level
        is_read = self.sink is not None or self._broadcaster.has_subscribers(ServerLog)
        return DEFAULT_LOG_LEVEL if is_read else None


async def _await(result: Awaitable[None]) -> None:
    try:
        await result
    except Exception:
        _log.exception("the log callback failed")
