"""Tool search in a running gateway: its meta-tools, its model, and what it learned."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from toolway.gateway.mcp.view import STARTUP_WINDOW_S
from toolway.part_api.part import Gauge, Part, PartContext, PartRuntime
from toolway.parts.search.admin import SearchAdmin
from toolway.parts.search.meta_tools import CALL_TOOL, READ_TOOL
from toolway.parts.search.search_tools import SearchTools
from toolway.parts.search.settings import SearchSettings
from toolway.types import Json

if TYPE_CHECKING:
    from toolway.parts.search.history_file import HistoryKeeper
    from toolway.parts.search.meaning import Vectors
    from toolway.parts.search.vector_store import VectorStore
    from toolway.search.tool_search import ToolSearch

HISTORY_FILE: Final = "search-history.json"
_log = logging.getLogger("toolway.gateway")


class SearchRuntime(PartRuntime):
    """A gateway's tool search.

    The hub creates its search when it is first used. Then the model and the history are added.
    """

    def __init__(self, part: Part, context: PartContext) -> None:
        self._hub = context.hub
        self._database = context.open_database(part)
        self._key = context.derive_key(part)
        self._history_path = context.place.folder / HISTORY_FILE if context.place.folder is not None else None
        self.settings = SearchSettings()
        self._search: ToolSearch | None = None
        self.vectors: Vectors | None = None  # None if no model is configured, or nothing was searched yet
        self._closing: set[asyncio.Task[None]] = set()
        self._history: HistoryKeeper | None = None
        self._advises = False
        self.tools = SearchTools(context.hub, context.meta_tools)
        self.admin = SearchAdmin(
            context.hub,
            self.tools.log,
            lambda: context.meta_tools.endpoints.toolsets(),
            partial(context.reports_of_workers, part),
        )
        context.meta_tools.provide(self.tools)
        context.hub.on_tool_search = self._set_up
        if context.api_keys is not None:
            context.api_keys.on_revoked(self.tools.log.forget)

    def start(self, settings: Any) -> None:
        self.apply(settings)
        if self._history_path is not None and not self.settings.learn:
            with suppress(OSError):
                self._history_path.unlink(missing_ok=True)

    async def prepare(self) -> None:
        self._advises = True  # clients over HTTP can choose their endpoint

    def apply(self, settings: Any) -> None:
        previous, self.settings = self.settings, settings or SearchSettings()
        if self._search is not None:
            self._search.set_learning(self.settings.learn)
            if replace(previous, learn=self.settings.learn) != self.settings:
                self._open_vectors(self._search)

    def _set_up(self, search: ToolSearch) -> None:
        """Let a hub's new search learn, and give it the configured model."""
        self._search = search
        search.set_learning(self.settings.learn)
        self._open_vectors(search)
        if self._history_path is not None:
            self._history = self._keep_history(search, self._history_path)

    def _keep_history(self, search: ToolSearch, path: Path) -> HistoryKeeper:
        from toolway.parts.search.history_file import HistoryKeeper

        return HistoryKeeper(search, path)

    def _open_vectors(self, search: ToolSearch) -> None:
        """Let the search use the embedding model or endpoint from the settings instead of the previous one."""
        from toolway.parts.search.meaning import open_vectors

        settings = self.settings

        async def get_key() -> str:
            return await self._hub.resolve_setting(settings.key, "search.key")

        self._drop_vectors()
        policy = self._hub.servers.config.network_policy
        self.vectors = open_vectors(settings, policy, get_key, self._open_store)
        search.set_vectors(self.vectors)

    def _open_store(self, identity: str) -> VectorStore:
        from toolway.parts.search.vector_store import NoVectorStore, TableVectorStore

        return TableVectorStore(self._database, self._key, identity) if self._database is not None else NoVectorStore()

    def _drop_vectors(self) -> None:
        """Close the model in the background."""
        if self.vectors is not None:
            task = asyncio.get_running_loop().create_task(self.vectors.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
            self.vectors = None

    async def run(self) -> None:
        """If all tool definitions together cost many tokens, log a suggestion to use tool search."""
        if not self._advises:
            return
        await self._hub.servers.wait_first_starts(STARTUP_WINDOW_S)
        from toolway.search.tokens import estimate_tool_tokens, search_advice

        tools = self._hub.lists.catalog.tools()
        if advice := search_advice(len(tools), estimate_tool_tokens(tools)):
            _log.warning("%s: toolway connect CLIENT --print --search", advice)

    def status(self) -> Json:
        """Return the state of embedding search: the model, the problem, and the embedded tools.

        Embedding search is off if no model is set.
        """
        embedded, tools = self.vectors.embedded if self.vectors is not None else (0, 0)
        problem = self.vectors.problem if self.vectors is not None else ""
        return {"model": self.settings.model, "problem": problem, "embedded": embedded, "tools": tools}

    def worker_report(self) -> Json:
        return self.admin.report_counts()

    def gauges(self) -> Iterable[Gauge]:
        searches = self.admin.list_searches()
        for outcome in ("fits", "nothing"):
            yield Gauge("toolway_searches", searches[outcome], {"outcome": outcome})
        for name in (READ_TOOL, CALL_TOOL):
            yield Gauge("toolway_search_calls", searches["calls"].get(name, 0), {"meta_tool": name})
        yield Gauge("toolway_search_calls_rejected", searches["rejected"])
        yield Gauge("toolway_searches_unmet", len(searches["unmet"]))

    async def read_gauges(self) -> Iterable[Gauge]:
        tokens = await self.admin.get_tokens()
        endpoints, servers = tokens["endpoints"], tokens["servers"]
        found = [Gauge("toolway_endpoint_tokens", each["tokens"], {"endpoint": each["path"]}) for each in endpoints]
        return found + [Gauge("toolway_server_tokens", each["tokens"], {"server": each["server"]}) for each in servers]

    async def close(self) -> None:
        self._drop_vectors()
        await asyncio.gather(*self._closing, return_exceptions=True)
        if self._history is not None:
            await self._history.close()
        if self._database is not None:
            await self._database.close()
