"""Rankings of other search libraries, printed as JSON. Runs in its own environment (requirements/search.txt).

python -m bench.search.peers fastmcp|bm25s|minilm SET…
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable
from typing import Any

from bench.search.sets import SearchSet, load_sets

Ids = list[list[str]]
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[_\-./]")


def rank_fastmcp(chosen: SearchSet) -> Ids:
    """Rank with the BM25 search transform of FastMCP, as a proxy of several servers names its tools."""
    from fastmcp.server.transforms.search import BM25SearchTransform  # type: ignore[import-not-found,unused-ignore]
    from fastmcp.tools.base import Tool  # type: ignore[import-not-found,unused-ignore]

    ids: dict[str, str] = {}
    tools = []
    for tool in chosen.tools:
        name = f"{tool['server']}_{tool['name']}" if tool["server"] else tool["name"]
        while name in ids:
            name += "_"
        ids[name] = tool["id"]
        properties = {each: {"type": "string", "description": text} for each, text in tool.get("params", ())}
        schema = {"type": "object", "properties": properties}
        tools.append(Tool(name=name, description=tool.get("description") or None, parameters=schema))
    transform: Any = BM25SearchTransform(max_results=5)

    async def run() -> Ids:
        return [[ids[each.name] for each in await transform._search(tools, query["text"])] for query in chosen.queries]

    return asyncio.run(run())


def rank_bm25s(chosen: SearchSet) -> Ids:
    """Rank with bm25s, English stop words and stems by Snowball."""
    import bm25s  # type: ignore[import-not-found,unused-ignore]
    import Stemmer  # type: ignore[import-not-found,unused-ignore]

    stemmer = Stemmer.Stemmer("english")
    texts = [
        " ".join(
            (
                _CAMEL.sub(" ", f"{tool['server']} {tool['name']}"),
                tool.get("description", ""),
                chosen.about.get(tool["server"], ""),
                *(f"{_CAMEL.sub(' ', name)} {text}" for name, text in tool.get("params", ())),
            )
        )
        for tool in chosen.tools
    ]
    retriever: Any = bm25s.BM25()
    retriever.index(bm25s.tokenize(texts, stopwords="en", stemmer=stemmer, show_progress=False), show_progress=False)
    queries = [query["text"] for query in chosen.queries]
    tokens = bm25s.tokenize(queries, stopwords="en", stemmer=stemmer, show_progress=False)
    found, _ = retriever.retrieve(tokens, k=5, show_progress=False)
    return [[chosen.tools[int(number)]["id"] for number in row] for row in found]


def rank_minilm(chosen: SearchSet) -> Ids:
    """Rank with our search by words and MiniLM."""
    from bench.search.ours import rank_minilm as ours

    return ours(chosen)


PEERS: dict[str, Callable[[SearchSet], Ids]] = {
    "fastmcp": rank_fastmcp,
    "bm25s": rank_bm25s,
    "minilm": rank_minilm,
}


def main() -> None:
    name, *chosen = sys.argv[1:]
    sets = load_sets()
    try:
        print(json.dumps({key: PEERS[name](sets[key]) for key in chosen}))
    except ImportError as exc:
        sys.exit(f"{exc.name or exc} is not installed")


if __name__ == "__main__":
    main()
