"""Reach other tools through `call_tool`, and queries that make the search slow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.gateway.edge_lab import edge, message_of

pytestmark = pytest.mark.anyio
Json = dict[str, Any]


@pytest.mark.attack("A2-held-3")
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_call_tool_is_limited_to_the_access_of_the_key(tmp_path: Path, era: str) -> None:
    names = (
        *(
            "b__echo",
            "b.echo",
            "B__echo",
            "a__echo ",
            " a__echo",
            "a__ECHO",
            "a__echo\x00",
            "a__ech\u043e",
            "../b__echo",
        ),
        *("server/b", "b", "", "call_tool", "search_tools", "*", "a__*"),
    )
    async with edge(tmp_path) as found:
        token = found.key("server/a")
        session = {"Mcp-Session-Id": await found.initialize("/mcp/search", token)}

        async def call_tool(arguments: Json) -> Json:
            params: Json = {"name": "call_tool", "arguments": arguments}
            if era == "modern":
                return await found.modern("tools/call", params, path="/mcp/search", token=token)
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            return message_of(await found.ask("POST", "/mcp/search", body, session, token=token))

        for name in names:
            for arguments in ({"text": "x"}, {"name": "b__echo", "arguments": {"text": "x"}}):
                answer = await call_tool({"name": name, "arguments": arguments})
                assert "error" in answer or answer["result"]["isError"], name
        nested: Json = {"name": "a__echo", "arguments": {"text": "x"}}
        for _ in range(3):
            nested = {"name": "call_tool", "arguments": nested}
        answer = await call_tool(nested)
        assert "error" in answer or answer["result"]["isError"]
        assert found.calls("a") == found.calls("b") == 0
        assert not (await call_tool({"name": "a__echo", "arguments": {"text": "x"}}))["result"].get("isError")
        assert (found.calls("a"), found.calls("b")) == (1, 0)


@pytest.mark.attack("A2-held-8")
async def test_long_search_query_is_rejected(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        for query in ("echo " * 300, "x" * 100_000, "\u0301" * 5_000):
            params = {"name": "search_tools", "arguments": {"query": query}}
            answer = await found.modern("tools/call", params, path="/mcp/search")
            assert "error" in answer or answer["result"]["isError"], query[:20]
        params = {"name": "search_tools", "arguments": {"query": "echo"}}
        assert not (await found.modern("tools/call", params, path="/mcp/search"))["result"].get("isError")
