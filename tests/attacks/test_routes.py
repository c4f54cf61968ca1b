"""Requests for closed routes, and requests that two readers understand differently."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.gateway.edge_lab import TOKEN, edge, modern
from tests.http.raw_client import connected

pytestmark = pytest.mark.anyio


@pytest.mark.attack("A2-held-2")
@pytest.mark.parametrize("path", ["/node", "/node/link", "/node/proof", "/node/proof?x", "/node/", "/node/other"])
async def test_node_routes_are_closed_without_a_cluster(tmp_path: Path, path: str) -> None:
    link = {"Upgrade": "toolway-link", "Connection": "Upgrade"}
    async with edge(tmp_path) as found:
        key = found.key()
        for method in ("GET", "POST"):
            for fields in ({}, link):
                for token in (None, "node:forged", key, TOKEN):
                    answer = await found.ask(method, path, fields=fields, token=token)
                    assert answer.status in (400, 401, 403, 404, 405, 413), (method, fields, token)
        assert found.calls("a") == found.calls("b") == 0


@pytest.mark.attack("A2-held-4")
async def test_path_with_control_bytes_reaches_no_route(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        body, head = modern("tools/list", {})
        for character in map(chr, (*range(0x20), 0x7F, 0x80, 0xA0, 0xFF)):
            for path in ("/mcp{}", "/{}mcp", "/admin{}/servers", "/mcp/{}search"):
                async with connected(found.port) as client:
                    answer = await client.ask(found.request("POST", path.format(character), body, head))
                    assert answer.status in (400, 404, 405, 505), (character, path)


@pytest.mark.attack("A2-held-5")
async def test_mismatch_of_header_and_body_is_rejected(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        token = found.key("server/a")
        body, head = modern("tools/call", {"name": "echo", "arguments": {"text": "x"}})
        for changed in ({"Mcp-Name": "add"}, {"Mcp-Name": ""}, {"Mcp-Method": "tools/list"}, {"Mcp-Method": ""}):
            for warm in (False, True):  # after a right call too, which has a plan
                if warm:
                    assert (await found.ask("POST", "/mcp/server/a", body, head, token=token)).status == 200
                before = found.calls("a")
                answer = await found.ask("POST", "/mcp/server/a", body, {**head, **changed}, token=token)
                assert answer.status == 400 and found.calls("a") == before, changed


@pytest.mark.attack("A2-held-6")
async def test_batch_is_rejected(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        token = found.key("server/a")
        session = {"Mcp-Session-Id": await found.initialize("/mcp/server/a", token)}
        body, head = modern("tools/call", {"name": "echo", "arguments": {"text": "x"}})
        for fields in (head, session, {}):
            for batch in ([body], [body] * 5, [], [[body]]):
                data = json.dumps(batch).encode()
                answer = await found.ask("POST", "/mcp/server/a", data, fields, token=token)
                assert answer.status == 400, (fields, answer)
        assert found.calls("a") == found.calls("b") == 0
