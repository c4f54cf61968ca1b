"""Likeness of queries and tools of the golden set by MiniLM, stored for tests without the model.

    .search/bin/python -m bench.search.pack_likeness

Writes `golden-likeness.json`: one list for each query, one number (in ten-thousandths) for each tool, in their order.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Final

from bench.search.ours import Searched
from bench.search.sets import DATA, load, load_sets
from toolway.catalog.catalog import Tool

FILE: Final = DATA / "golden-likeness.json"
SCALE: Final = 10_000


class StoredLikeness:
    """Scores by meaning of the golden set, from the file."""

    problem = ""

    def __init__(self, searched: Searched) -> None:
        chosen, rows = load_sets()["golden"], load("golden-likeness")["likeness"]
        self._columns = {searched.names[tool["id"]]: place for place, tool in enumerate(chosen.tools)}
        self._rows = {query["text"]: row for query, row in zip(chosen.queries, rows, strict=True)}

    async def prepare(self, queries: Sequence[str], tools: Sequence[Tool]) -> None:
        """Do nothing: all queries are stored."""

    def score(self, query: str, tools: Sequence[Tool]) -> list[float | None]:
        row = self._rows[query]
        return [row[self._columns[tool.server, tool.name]] / SCALE for tool in tools]


async def measure() -> list[list[int]]:
    """Return the likeness of each query and tool by the model."""
    from toolway.parts.search.minilm import MiniLm
    from toolway.parts.search.vector_store import NoVectorStore
    from toolway.parts.search.vectors import ModelVectors

    chosen = load_sets()["golden"]
    searched = Searched(chosen.tools, chosen.about)
    source = ModelVectors(MiniLm(), NoVectorStore(), query_timeout=60)
    searched.search.set_vectors(source)
    await searched.search.search_async("start")
    await source.wait_complete()
    tools = searched.search._index.tools
    places = {searched.ids[tool.server, tool.name]: place for place, tool in enumerate(tools)}
    rows = []
    for query in chosen.queries:
        await source.prepare([query["text"]], tools)
        scores = source.score(query["text"], tools)
        assert scores is not None
        rows.append([round(float(scores[places[tool["id"]]] or 0.0) * SCALE) for tool in chosen.tools])
    await source.close()
    return rows


if __name__ == "__main__":
    rows = asyncio.run(measure())
    about = (
        "likeness of mcpproxy-golden.json by all-MiniLM-L6-v2 with 8-bit weights: python -m bench.search.pack_likeness"
    )
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    FILE.write_text(f'{{"source": {json.dumps(about)}, "licence": "Apache-2.0", "likeness": [\n{lines}\n]}}\n')
