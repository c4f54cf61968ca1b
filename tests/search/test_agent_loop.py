"""Test of the agent loop of the benchmark, on a set of six tools: a real gateway, both endpoints, a client."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench.search import agent_loop

pytestmark = pytest.mark.anyio

TOOLS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("mail", "send_message", "Send a message to an address", {"to": {"type": "string"}, "text": {"type": "string"}}),
    ("mail", "list_folders", "List the folders of a mailbox", {}),
    ("code", "create_issue", "Create an issue in a repository", {"title": {"type": "string", "minLength": 300}}),
    ("code", "list_branches", "List the branches of a repository", {"limit": {"type": "integer"}}),
    ("sky", "get_forecast", "Weather forecast for a city", {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}}),
    ("sky", "get_tides", "Tides of a coast", {"days": {"type": "array", "items": {"type": "integer"}}}),
]
QUESTIONS = [
    ("What is the weather forecast for the city 'Oslo'?", "sky.get_forecast"),
    ("Create an issue in the repository: the build fails", "code.create_issue"),
    ("List 5 branches of the repository", "code.list_branches"),
    ("Bake a cake", "sky.get_tides"),
]


async def test_agent_loop_counts_solved_tasks_and_cost(tmp_path, monkeypatch):
    tools = [
        {
            "id": f"{server}.{name}",
            "server": server,
            "name": name,
            "description": text,
            "schema": {"type": "object", "properties": properties, "required": list(properties)},
            "chars": 1_000,
        }
        for server, name, text, properties in TOOLS
    ]
    queries = [{"text": text, "relevant": [[right]]} for text, right in QUESTIONS]
    (tmp_path / "six.json").write_text(json.dumps({"tools": tools, "queries": queries}))
    monkeypatch.setattr(agent_loop, "DATA", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # restored after the test: the loop sets it too
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    runs = await agent_loop.measure("six", 10, agent_loop.WordJudge(), model="")
    assert set(runs) == {"all 6 definitions", "the first 128 definitions", "search by words"}
    for way, found in runs.items():
        assert [len(found), sum(run.solved_first for run in found)] == [4, 3], way
        assert all(run.solved >= run.solved_first and run.read >= run.window for run in found)
    searched, listed = runs["search by words"], runs["all 6 definitions"]
    assert all(run.window > 6_000 for run in listed)  # definitions count with the size that the set says
    assert all(a.calls > b.calls for a, b in zip(searched, listed, strict=True) if a.solved and b.solved)
    # The line of create_issue does not say how long a title must be: the answer with the full schema does.
    assert max(run.calls for run in searched if run.solved_first) == 3
    assert "| search by words | 3 of 4 |" in agent_loop.report("words", runs)[-1]
