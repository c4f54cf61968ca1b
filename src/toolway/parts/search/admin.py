"""Admin API for tool search: ranking with reasons, tokens per endpoint, and searches that led to no call."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from urllib.parse import quote

from toolway.catalog.catalog import Tool
from toolway.gateway.admin.calls import parse_number, parse_query_fields
from toolway.gateway.admin.routes import Route
from toolway.gateway.admin.schema import ANY_OBJECT, BOOLEAN, INTEGER, NUMBER, STRING, STRINGS, array_of, object_of
from toolway.gateway.tool_filter import ALL_TOOLS, SEARCH_ALL_TOOLS, ToolFilter
from toolway.hub.core import HubCore
from toolway.parts.search.meta_tools import META_TOOLS, first_sentence
from toolway.parts.search.search_log import SearchLog
from toolway.types import Json

MAX_RESULTS: Final = 50
BATCH_SIZE: Final = 200  # tools measured before the event loop runs other tasks
SEARCH_QUERY: Final = {
    "query": "the task in a few words",
    "server": "name of a server",
    "limit": f"at most {MAX_RESULTS}",
}


class SearchAdmin:
    """Handlers of `/admin/search`, `/admin/searches`, and `/admin/tokens`.

    `worker_reports` returns what the other workers have counted (`report_counts`).
    """

    def __init__(
        self,
        hub: HubCore,
        log: SearchLog,
        toolsets: Callable[[], Mapping[str, ToolFilter]],
        worker_reports: Callable[[], Sequence[Json]],
    ) -> None:
        self._hub = hub
        self._log = log
        self._toolsets = toolsets
        self._worker_reports = worker_reports
        self._sizes: dict[tuple[str, str], tuple[Tool, int]] = {}  # characters of each definition, of this tool object

    async def search(self, query: str) -> Json:
        """Return the tools of all servers that fit the search words in a URL query, with scores and reasons.

        Starts no server. An empty search finds nothing.
        """
        fields = parse_query_fields(query)
        text, limit = fields.get("query", ""), min(MAX_RESULTS, parse_number(fields.get("limit", "10")))
        search = await self._hub.open_tool_search()
        found = await search.search_async(text, limit=max(1, limit), server=fields.get("server"))
        return {
            "fits": found.fits,
            "total_tools": found.total_tools,
            "total_servers": found.total_servers,
            "problem": found.notes.meaning,
            "tools": [
                {
                    "server": match.tool.server,
                    "tool": match.tool.name,
                    "description": first_sentence(match.tool.description),
                    "score": round(match.score, 3),
                    "reasons": [
                        {
                            "kind": each.kind,
                            "text": each.text,
                            "fields": list(each.fields),
                            "weight": round(each.weight, 3),
                        }
                        for each in match.reasons
                    ],
                }
                for match in found.matches
            ],
        }

    def list_searches(self) -> Json:
        """Return the counters of tool searches, and the queries that led to no call."""
        reports = [self.report_counts(), *self._worker_reports()]
        calls = Counter[str]()
        for report in reports:
            calls.update(report["calls"])
        return {
            **{name: sum(report[name] for report in reports) for name in ("fits", "nothing", "rejected")},
            "calls": dict(calls),
            "unmet": [
                {
                    "query": each.query,
                    "times": each.times,
                    "at": each.last_at,
                    "fits": each.fits,
                    "found": list(each.found),
                }
                for each in self._log.unmet()
            ],
        }

    def report_counts(self) -> Json:
        """Return the counters of this process alone."""
        counts = self._log.counts
        return {
            "fits": counts.fits,
            "nothing": counts.nothing,
            "rejected": counts.rejected,
            "calls": dict(counts.calls),
        }

    async def get_tokens(self) -> Json:
        """Return how many tools each endpoint lists, and how many tokens a model spends on their definitions."""
        from toolway.search.tokens import CHARS_PER_TOKEN, TOKENIZER, estimate_tokens, search_advice

        sizes = await self._measure()
        meta_tokens = estimate_tokens(META_TOOLS.values())

        def cost(path: str, tool_filter: ToolFilter) -> Json:
            listed = [size for name, (_, size) in sizes.items() if _lists(tool_filter, name)]
            tokens = round(sum(listed) / CHARS_PER_TOKEN) + (meta_tokens if tool_filter.search else 0)
            tools = len(listed) + (len(META_TOOLS) if tool_filter.search else 0)
            return {"path": path, "tools": tools, "tokens": tokens, "search": tool_filter.search}

        every = cost("/mcp", ALL_TOOLS)
        servers: dict[str, list[int]] = {}
        for (server, _), (_, size) in sizes.items():
            servers.setdefault(server, []).append(size)
        return {
            "endpoints": [
                every,
                cost("/mcp/search", SEARCH_ALL_TOOLS),
                *(cost(f"/mcp/{quote(name)}", each) for name, each in self._toolsets().items()),
            ],
            "servers": [
                {"server": name, "tools": len(each), "tokens": round(sum(each) / CHARS_PER_TOKEN)}
                for name, each in sorted(servers.items(), key=lambda pair: -sum(pair[1]))
            ],
            "advice": search_advice(every["tools"], every["tokens"]),
            "tokenizer": TOKENIZER,
        }

    async def _measure(self) -> Mapping[tuple[str, str], tuple[Tool, int]]:
        """Return each known tool and the size of its definition in characters, by server and name.

        The sizes are computed in batches, so other requests are served in between.
        """
        from toolway.search.tokens import tool_chars

        known, sizes = self._sizes, {}
        for number, tool in enumerate(self._hub.lists.catalog.tools(), 1):
            key = (tool.server, tool.name)
            cached = known.get(key)
            if cached is None or cached[0] is not tool:
                cached = (tool, tool_chars(tool))
            sizes[key] = cached
            if number % BATCH_SIZE == 0:
                await asyncio.sleep(0)
        self._sizes = sizes
        return sizes


def _lists(tool_filter: ToolFilter, name: tuple[str, str]) -> bool:
    full_name = ".".join(name)
    return full_name in tool_filter and tool_filter.lists(full_name)


SCHEMAS: Final = {
    "SearchStatus": object_of({"model": STRING, "problem": STRING, "embedded": INTEGER, "tools": INTEGER}),
    "SearchAnswer": object_of(
        {
            "fits": BOOLEAN,
            "total_tools": INTEGER,
            "total_servers": INTEGER,
            "problem": STRING,
            "tools": array_of(
                object_of(
                    {
                        "server": STRING,
                        "tool": STRING,
                        "description": STRING,
                        "score": NUMBER,
                        "reasons": array_of(
                            object_of({"kind": STRING, "text": STRING, "fields": STRINGS, "weight": NUMBER})
                        ),
                    }
                )
            ),
        }
    ),
    "SearchList": object_of(
        {
            "fits": INTEGER,
            "nothing": INTEGER,
            "rejected": INTEGER,
            "calls": ANY_OBJECT,
            "unmet": array_of(
                object_of({"query": STRING, "times": INTEGER, "at": NUMBER, "fits": BOOLEAN, "found": STRINGS})
            ),
        }
    ),
    "TokenList": object_of(
        {
            "endpoints": array_of(object_of({"path": STRING, "tools": INTEGER, "tokens": INTEGER, "search": BOOLEAN})),
            "servers": array_of(object_of({"server": STRING, "tools": INTEGER, "tokens": INTEGER})),
            "advice": STRING,
            "tokenizer": STRING,
        }
    ),
}
ROUTES: Final = (
    Route(
        "GET",
        "/admin/search",
        "Tools that match a query, with scores and reasons",
        "SearchAnswer",
        lambda runtime, request: runtime.admin.search(request.query),
        query=SEARCH_QUERY,
    ),
    Route(
        "GET",
        "/admin/searches",
        "Searches of clients, and those that led to no call",
        "SearchList",
        lambda runtime, request: runtime.admin.list_searches(),
    ),
    Route(
        "GET",
        "/admin/tokens",
        "Tokens of each endpoint and server",
        "TokenList",
        lambda runtime, request: runtime.admin.get_tokens(),
    ),
)
