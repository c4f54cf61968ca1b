"""Rankings of the tool search of this project, of SQLite FTS5, and with learning and MiniLM."""

from __future__ import annotations

import asyncio
import importlib
import re
import sqlite3
from collections.abc import Sequence
from importlib import resources
from typing import Any

from bench.search.sets import SearchSet, load
from toolway.catalog.catalog import Catalog
from toolway.search.tool_search import ServerFacts, ToolSearch

Ids = list[list[str]]


class Searched:
    """A tool search over the tools of a set, with the ids of the set."""

    def __init__(self, tools: Sequence[dict[str, Any]], about: dict[str, str] | None = None) -> None:
        catalog = Catalog()
        by_server: dict[str, list[dict[str, Any]]] = {}
        self.ids: dict[tuple[str, str], str] = {}
        self.names: dict[str, tuple[str, str]] = {}
        for tool in tools:
            by_server.setdefault(tool["server"] or "tools", []).append(tool)
        for server, listed in by_server.items():
            catalog.add_server(server)
            catalog.replace(server, "tools", [self._definition(server, tool) for tool in listed])
            assert catalog.problems(server) == (), catalog.problems(server)
        described = about or {}
        facts = {server: ServerFacts(described.get(server, "")) for server in by_server}
        self.search = ToolSearch(catalog, lambda: facts)

    def _definition(self, server: str, tool: dict[str, Any]) -> dict[str, Any]:
        name = re.sub(r"[^A-Za-z0-9_./-]", "_", tool["name"])[:120]
        while (server, name) in self.ids:
            name += "_"
        self.ids[server, name], self.names[tool["id"]] = tool["id"], (server, name)
        properties = {name: {"type": "string", "description": text} for name, text in tool.get("params", ())}
        schema = {"type": "object", "properties": properties}
        return {"name": name, "description": tool.get("description", ""), "inputSchema": schema}

    def rank(self, queries: Sequence[dict[str, Any]]) -> Ids:
        """Return the ids of the best five tools of each query."""
        return [
            [self.ids[match.tool.server, match.tool.name] for match in self.search.search(query["text"]).matches]
            for query in queries
        ]

    def learn(self, queries: Sequence[dict[str, Any]], most: int, tools: frozenset[str] | None = None) -> None:
        """Record a call of the right tool after each query, for at most `most` queries per tool."""
        counts: dict[str, int] = {}
        for number, query in enumerate(queries):
            right = query["relevant"][0][0]
            counts[right] = counts.get(right, 0) + 1
            if counts[right] <= most and (tools is None or right in tools):
                self.search.record_call(query["text"], f"principal {number}", *self.names[right])


def rank_ours(chosen: SearchSet) -> Ids:
    """Rank by the default: words and related words."""
    return Searched(chosen.tools, chosen.about).rank(chosen.queries)


def rank_learned(chosen: SearchSet) -> Ids | None:
    """Rank with ten earlier queries per tool. Only MetaTool has earlier queries: those that it gives for tuning."""
    if not chosen.name.startswith("MetaTool"):
        return None
    searched = Searched(chosen.tools, chosen.about)
    searched.learn(load("metatool")["dev"], 10)
    return searched.rank(chosen.queries)


def rank_fts5(chosen: SearchSet) -> Ids:
    """Rank with SQLite FTS5: stems by Porter, the weights of our fields."""
    database = sqlite3.connect(":memory:")
    database.execute("CREATE VIRTUAL TABLE tools USING fts5(name, server, description, params, tokenize='porter')")
    split = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[_\-./]")
    for number, tool in enumerate(chosen.tools, 1):
        params = " ".join(f"{split.sub(' ', name)} {text}" for name, text in tool.get("params", ()))
        about = f"{tool.get('description', '')} {chosen.about.get(tool['server'], '')}"
        row = (number, split.sub(" ", tool["name"]), split.sub(" ", tool["server"]), about, params)
        database.execute("INSERT INTO tools(rowid, name, server, description, params) VALUES (?, ?, ?, ?, ?)", row)
    found: Ids = []
    for query in chosen.queries:
        words = dict.fromkeys(re.findall(r"[a-z0-9]+", query["text"].lower()))
        text = " OR ".join(f'"{word}"' for word in words)
        order = "SELECT rowid FROM tools WHERE tools MATCH ? ORDER BY bm25(tools, 3.0, 1.0, 1.0, 0.5) LIMIT 5"
        rows = database.execute(order, (text,)).fetchall() if text else []
        found.append([chosen.tools[number - 1]["id"] for (number,) in rows])
    return found


def rank_minilm(chosen: SearchSet) -> Ids:
    """Rank by words and MiniLM. Raises `ImportError` if its packages or the model are missing."""
    for package in ("numpy", "onnxruntime", "toolway_search_minilm"):
        importlib.import_module(package)
    if not resources.files("toolway_search_minilm").joinpath("model.onnx").is_file():
        raise ImportError("the model is missing: make search-score ARGS=model")
    from toolway.parts.search.minilm import MiniLm
    from toolway.parts.search.vector_store import NoVectorStore
    from toolway.parts.search.vectors import ModelVectors

    async def run() -> Ids:
        searched = Searched(chosen.tools, chosen.about)
        # On a busy machine too: queries may take long, and a batch of tools that took too long is repeated soon.
        source = ModelVectors(MiniLm(), NoVectorStore(), query_timeout=60, sleep=lambda _: asyncio.sleep(0.1))
        searched.search.set_vectors(source)
        found: Ids = []
        await searched.search.search_async("start")
        await source.wait_complete()
        for query in chosen.queries:
            answer = await searched.search.search_async(query["text"])
            assert answer.notes.meaning == "", answer.notes.meaning
            found.append([searched.ids[match.tool.server, match.tool.name] for match in answer.matches])
        await source.close()
        return found

    return asyncio.run(run())
