"""Tool search at a node that does not own the server: the call goes to the owner, as a call of the named tool."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest

from tests.cluster.node.hop_lab import TOKEN, Cluster, cluster
from tests.gateway.bridge_lab import OLD_WORDS, pipe_entry, text

pytestmark = [pytest.mark.anyio, OLD_WORDS]
META_TOOLS = ["search_tools", "describe_tool", "read_tool", "call_tool"]


@pytest.mark.parametrize("hidden", [(), ("one", "two")], ids=["http", "nats"])
async def test_tool_of_another_node_is_found_and_called(tmp_path: Path, hidden: tuple[str, ...]) -> None:
    async def elicit(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"name": "Ada"})

    servers = {"full": pipe_entry("legacy")} if hidden else {"full": pipe_entry("legacy"), "new": pipe_entry("modern")}
    async with cluster(tmp_path, servers, hidden=hidden) as made:
        token = await _search_key(made)
        for server in servers:
            for era in ("modern", "legacy"):
                async with made.other(server).client(era, "search", TOKEN, elicitation_callback=elicit) as client:
                    found = await client.call_tool("search_tools", {"query": "sum of numbers", "server": server})
                    assert text(found).splitlines()[0].startswith(f"{server}__add(")
                    sum_ = {"name": f"{server}__add", "arguments": {"a": 2, "b": 3}}
                    assert text(await client.call_tool("read_tool", sum_)) == "5"
                    asked = await client.call_tool("call_tool", {"name": f"{server}__elicit"})
                    assert "Ada" in text(asked)
                    wrong = {"name": f"{server}__add", "arguments": {"a": "two"}}
                    refused = await client.call_tool("call_tool", wrong)
                    assert refused.is_error and "Not sent. Schema of" in text(refused)
        for node in made.nodes:
            async with node.client("modern", "", token) as client:
                assert [tool.name for tool in (await client.list_tools()).tools] == META_TOOLS


async def _search_key(made: Cluster) -> str:
    """A new API key with search, which all nodes know."""
    token, _ = await made.nodes[0].replica.api_keys.create_key("bot", None, False, 0.0, None, True)
    async with asyncio.timeout(60):
        while not all(node.replica.api_keys.authenticate(token) for node in made.nodes):
            await asyncio.sleep(0.02)
    return token
