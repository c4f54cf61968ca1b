"""Public sets of tools and queries for measuring the tool search. Standard library only: peers run it too.

Sources and licenses are in bench/search/data/README.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

DATA: Final = Path(__file__).with_name("data")
AGENT_LIMITS: Final = (3, 5)  # results of each of an agent's searches that count


@dataclass(frozen=True)
class SearchSet:
    """Tools, and queries with groups of right tools. The tools of a group are equally right."""

    name: str
    tools: Sequence[dict[str, Any]]  # id, server, name, description, params: [[name, text], …]
    queries: Sequence[dict[str, Any]]  # text, relevant: [[id, …], …], and task if several searches belong together
    about: dict[str, str] = field(default_factory=dict)  # server → its description
    tasks: Sequence[dict[str, Any]] = ()  # id, relevant: of a set that counts tasks, not queries


def load(name: str) -> dict[str, Any]:
    """Return one file of the data folder."""
    found: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    return found


def load_sets() -> dict[str, SearchSet]:
    """Return all sets by their short names."""
    live, meta, seal, gold = load("livemcpbench"), load("metatool"), load("sealtools"), load("mcpproxy-golden")
    about = {server["name"]: server["description"] for server in live["servers"]}
    tasks = [task for task in live["queries"] if task["relevant"]]
    agents = [
        {"text": f"{query['server_hint']} {query['text']}", "task": query["task"], "relevant": []}
        for query in load("livemcpbench-agents")["queries"]
    ]
    sets = {
        "live": SearchSet("LiveMCPBench, tasks", live["tools"], tasks, about),
        "agents": SearchSet("LiveMCPBench, agent", live["tools"], agents, about, tasks),
        "meta": SearchSet("MetaTool", meta["tools"], meta["queries"][:1000]),
        "multi": SearchSet("MetaTool multi", meta["tools"], meta["multi"]),
        "seal": SearchSet("Seal-Tools", seal["tools"], seal["queries"]),
        "golden": SearchSet("golden", gold["tools"], gold["queries"]),
    }
    if (DATA / "own.json").exists():
        own = load("own")
        sets["own"] = SearchSet("own, 42 servers", own["tools"], own["queries"], own["about"])
    return sets


def score_queries(found: Sequence[Sequence[str]], queries: Sequence[dict[str, Any]]) -> tuple[float, float, float]:
    """Return the means of R@1, R@5 and NDCG@5 over all queries. `found` holds ids, best first."""
    rows = [_score(ids, query["relevant"]) for ids, query in zip(found, queries, strict=True) if query["relevant"]]
    first, five, gain = (sum(column) / len(rows) for column in zip(*rows, strict=True))
    return first, five, gain


def _score(found: Sequence[str], groups: Sequence[Sequence[str]]) -> tuple[float, float, float]:
    first, five = (
        sum(any(each in found[:limit] for each in group) for group in groups) / len(groups) for limit in (1, 5)
    )
    gain, remaining = 0.0, list(groups)
    for place, each in enumerate(found[:5]):
        hit = next((group for group in remaining if each in group), None)
        if hit is not None:
            remaining.remove(hit)
            gain += 1 / math.log2(place + 2)
    return first, five, gain / sum(1 / math.log2(place + 2) for place in range(min(5, len(groups))))


def score_tasks(found: Sequence[Sequence[str]], chosen: SearchSet, limit: int) -> float:
    """Return the share of a task's tools that are among the first `limit` of any of its searches."""
    by_task: dict[str, set[str]] = {}
    for ids, query in zip(found, chosen.queries, strict=True):
        by_task.setdefault(query["task"], set()).update(ids[:limit])
    shares = [
        sum(any(each in by_task.get(task["id"], ()) for each in group) for group in task["relevant"])
        / len(task["relevant"])
        for task in chosen.tasks
    ]
    return sum(shares) / len(shares)
