"""Be taken for a caller whose request was authenticated before, by a head that resembles it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.gateway.edge_lab import HELLO, TOKEN, TYPES, edge, handshake, modern

pytestmark = [pytest.mark.anyio, pytest.mark.attack("A2-F1")]

LIST, FIELDS = modern("tools/list", {})


def head(port: int, path: str, fields: Mapping[str, str]) -> bytes:
    lines = {"Host": f"127.0.0.1:{port}", **TYPES, **fields}
    return "\r\n".join(
        [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in lines.items()), "", ""]
    ).encode()


@pytest.mark.parametrize("path", ["/mcp", "/mcp/both", "/mcp/server/a", "/admin/dashboard-links"])
async def test_request_without_token_is_rejected_on_a_known_connection(tmp_path: Path, path: str) -> None:
    """The first request has a token and no Content-Length, the second a Content-Length and no token."""
    async with edge(tmp_path) as at:
        body = at.request("POST", path, LIST, FIELDS).partition(b"\r\n\r\n")[2]
        with_token = head(at.port, path, {**FIELDS, "Authorization": f"Bearer {TOKEN}"})
        without = head(at.port, path, {**FIELDS, "Content-Length": str(len(body))}) + body
        before = at.contacts()
        async with at.connected() as client:
            assert (await client.ask(with_token)).status in (200, 400)
            assert (await client.ask(without)).status == 401
        async with at.connected() as client:
            assert (await client.ask(without)).status == 401
        assert at.contacts() == before


async def test_split_head_without_token_is_rejected(tmp_path: Path) -> None:
    """A head that arrives without its body is authenticated like any other."""
    async with edge(tmp_path) as at:
        known = at.request("POST", "/mcp", LIST, FIELDS)
        stranger = at.request("POST", "/mcp", LIST, FIELDS, token=None)
        async with at.connected() as client:
            for _ in range(3):
                start, _, rest = known.partition(b"\r\n\r\n")
                await client.send(start + b"\r\n\r\n")
                assert (await client.ask(rest)).status == 200
            start, _, rest = stranger.partition(b"\r\n\r\n")
            await client.send(start + b"\r\n\r\n")
            assert (await client.answer()).status == 401


async def test_repeated_session_header_is_rejected(tmp_path: Path) -> None:
    """Two parsers may choose differently among repeated headers, so no path chooses at all, the quick one neither."""
    async with edge(tmp_path) as at:
        token = {"Authorization": f"Bearer {TOKEN}"}
        hello = json.dumps(handshake("initialize", HELLO)).encode()
        call = json.dumps(handshake("tools/call", {"name": "a__add", "arguments": {"a": 1, "b": 2}})).encode()
        async with at.connected() as client:
            opened = await client.ask(head(at.port, "/mcp", {**token, "Content-Length": str(len(hello))}) + hello)
            fields = {**token, "Mcp-Session-Id": opened.headers["mcp-session-id"], "Content-Length": str(len(call))}
            once = head(at.port, "/mcp", fields)
            for _ in range(3):
                assert (await client.ask(once + call)).status == 200
            again = f"MCP-Session-Id: {fields['Mcp-Session-Id']}\r\n\r\n".encode()
            for _ in range(3):
                await client.send(once.removesuffix(b"\r\n") + again)  # authenticated before its body arrives
                assert (await client.ask(call)).status == 400
