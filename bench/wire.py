"""Requests of the load generator: complete HTTP/1.1 messages, built once and written to files.

load.c replaces every `MARK` in a request by a unique number each time it sends the request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Era: TypeAlias = Literal["modern", "legacy", "rest"]

MARK = 1_000_000_000
MODERN = "2026-07-28"
LEGACY = "2025-11-25"
TEXT = f"{MARK} " + "the quick brown fox jumps over the lazy dog, " * 4
_META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
}


@dataclass(frozen=True)
class Endpoint:
    """HTTP endpoint of a gateway, with the headers it requires."""

    port: int
    path: str = "/mcp"
    headers: dict[str, str] = field(default_factory=dict)


def call(endpoint: Endpoint, era: Era, tool: str, big: bool = False) -> bytes:
    """Build a tool call."""
    arguments: dict[str, object] = {} if big else {"text": TEXT}
    if era == "rest":
        return _post(Endpoint(endpoint.port, f"{endpoint.path}/{tool}", endpoint.headers), arguments, {})
    return request(endpoint, era, "tools/call", {"name": tool, "arguments": arguments})


def request(endpoint: Endpoint, era: Era, method: str, params: dict[str, object]) -> bytes:
    """Build a JSON-RPC request."""
    if era != "modern":
        return _post(endpoint, _message(method, params), {"MCP-Protocol-Version": LEGACY})
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method}
    if "name" in params:
        headers["Mcp-Name"] = str(params["name"])
    return _post(endpoint, _message(method, {**params, "_meta": _META}), headers)


def hellos(endpoint: Endpoint, era: Era) -> list[bytes]:
    """Build the messages that a client of that era sends first on a connection."""
    if era != "legacy":
        return []
    params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
    done = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    return [
        _post(endpoint, _message("initialize", params), {}),
        _post(endpoint, done, {"MCP-Protocol-Version": LEGACY}),
    ]


def expected(work: str) -> str:
    """Return the text that a correct response contains besides its id."""
    return {"echo": f"{MARK} the quick", "call_tool": f"{MARK} the quick", "big": "x" * 100, "list": "inputSchema"}[
        work
    ]


def _message(method: str, params: Mapping[str, object]) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": MARK, "method": method, "params": params}


def _post(endpoint: Endpoint, message: Mapping[str, object], headers: dict[str, str]) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    lines = {
        "Host": f"127.0.0.1:{endpoint.port}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        **endpoint.headers,
        **headers,
        "Content-Length": str(len(body)),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {endpoint.path} HTTP/1.1\r\n{head}\r\n".encode() + body
