"""A file with the queries that led to calls of each tool, to keep them across restarts.

It holds the stems of words in earlier queries, the ids of principals, and the hashes of definitions, but not the
original queries, and nothing about the calls. Its size is bounded. A file that is damaged or has another format is
treated as missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec

from toolway.search.learning import CallHistory
from toolway.search.tool_search import ToolSearch

SAVE_INTERVAL_S: Final = 30.0  # seconds between two writes, if something was learned
MAX_STORED_TOOLS: Final = 5_000  # those that learned most recently
MAX_FILE_BYTES: Final = 16 * 1024 * 1024
_FORM: Final = 1


def read_history(path: Path) -> CallHistory:
    """Return the call history in a file, or an empty one if the file is missing, too large, or invalid."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return CallHistory()
        content = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError, RecursionError):
        return CallHistory()
    if not isinstance(content, dict) or content.get("form") != _FORM:
        return CallHistory()
    return CallHistory.from_json(content.get("tools"))


def write_history(path: Path, tools: list[object]) -> None:
    """Replace the call history file atomically, or remove it if the history is empty.

    Disk errors are ignored.
    """
    with contextlib.suppress(OSError):
        if not tools:
            path.unlink(missing_ok=True)
            return
        encoded = msgspec.json.encode({"form": _FORM, "tools": tools[-MAX_STORED_TOOLS:]})
        if len(encoded) > MAX_FILE_BYTES:
            return
        handle, name = tempfile.mkstemp(dir=path.parent)  # readable by this user only
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(encoded)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
            raise


def _merge_history(path: Path, tools: list[object]) -> None:
    """Write a call history to the file, merged with what the gateway's other workers have written there."""
    if tools:
        merged = read_history(path)
        merged.update(CallHistory.from_json(tools))
        tools = list(merged.to_json())
    write_history(path, tools)


class HistoryKeeper:
    """Loads a tool search's call history from a file, and writes it back after changes and on close."""

    def __init__(
        self, search: ToolSearch, path: Path, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._search = search
        self._path = path
        self._sleep = sleep
        self._written = search.history_version
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        self._search.restore_history(await asyncio.to_thread(read_history, self._path))
        while True:
            await self._sleep(SAVE_INTERVAL_S)
            await self._save()

    async def _save(self) -> None:
        version = self._search.history_version
        if version != self._written:
            await asyncio.to_thread(_merge_history, self._path, self._search.history_to_json())
            self._written = version

    async def close(self) -> None:
        """Write the call history if it changed since the last write, and stop writing."""
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._save()
