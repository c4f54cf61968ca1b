"""Admin API for tool search: ranking with reasons, tokens per endpoint, searches without a call."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import quote

from toolway.catalog.catalog import Tool
from toolway.gateway.admin.calls import parse_number, parse_query_fields
from toolway.gateway.cluster_hooks import NO_CLUSTER, ClusterHooks
from toolway.gateway.mcp.meta_tools import META_TOOLS, first_sentence
from toolway.gateway.mcp.search_tools import SearchTools
from toolway.gateway.tool_filter import ALL_TOOLS, SEARCH_ALL_TOOLS, ToolFilter
from toolway.hub.core import HubCore
from toolway.types import Json

MAX_RESULTS: Final = 50
BATCH_SIZE: Final = 200  # tools measured before the event loop runs other tasks
SEARCH_QUERY: Final = {
    "query": "the task in a few words",
    "server": "name of a server",
    "limit": f"at most {MAX_RESULTS}",
}


class SearchAdmin:
    """Handlers of `/admin/search`, `/admin/searches` and `/admin/tokens`."""

    def __init__(
        self,
        hub: HubCore,
        search_tools: SearchTools,
        toolsets: Callable[[], Mapping[str, ToolFilter]],
        cluster: ClusterHooks = NO_CLUSTER,
    ) -> None:
        self._hub = hub
        self._cluster = cluster
        self._search_tools = search_tools
        self._toolsets = toolsets
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

    def get_status(self) -> Json:
        """Return the state of embedding search: model, problem, embedded tools.

        The model is "" if this search is off.
        """
        vectors = self._hub.search_vectors
        embedded, tools = vectors.embedded if vectors is not None else (0, 0)
        problem = vectors.problem if vectors is not None else ""
        return {"model": self._hub.search_model, "problem": problem, "embedded": embedded, "tools": tools}

    def list_searches(self) -> Json:
        """Return tool search counters, and the queries that led to no call."""
        log = self._search_tools.log
        counts = log.counts
        others = [report.searches for report in self._cluster.worker_reports()]
        calls = Counter(counts.calls)
        for other in others:
            calls.update(other[3])
        return {
            "fits": counts.fits + sum(other[0] for other in others),
            "nothing": counts.nothing + sum(other[1] for other in others),
            "refused": counts.refused + sum(other[2] for other in others),
            "calls": dict(calls),
            "unmet": [
                {
                    "query": each.query,
                    "times": each.times,
                    "at": each.last_at,
                    "fits": each.fits,
                    "found": list(each.found),
                }
                for each in log.unmet()
            ],
        }

    async def get_tokens(self) -> Json:
        """Return how many tools each endpoint lists, and how many tokens their definitions cost a model."""
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
        """Return the size in characters of each known tool's definition, with the tool, by server and name.

        Computed in batches, so other requests are served.
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
