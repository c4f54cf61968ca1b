"""The requests that the load generator sends: whole HTTP/1.1 messages, made once and written to files.

Every `MARK` in a request is replaced by a number of its own each time it is sent (load.c).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Era: TypeAlias = Literal["modern", "handshake", "rest"]

MARK = 1_000_000_000
MODERN = "2026-07-28"
HANDSHAKE = "2025-11-25"
TEXT = f"{MARK} " + "the quick brown fox jumps over the lazy dog, " * 4
_META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
}


@dataclass(frozen=True)
class Door:
    """Where a gateway is reached, and what it wants to see."""

    port: int
    path: str = "/mcp"
    headers: dict[str, str] = field(default_factory=dict)


def call(door: Door, era: Era, tool: str, big: bool = False) -> bytes:
    arguments: dict[str, object] = {} if big else {"text": TEXT}
    if era == "rest":
        return _post(Door(door.port, f"{door.path}/{tool}", door.headers), arguments, {})
    return request(door, era, "tools/call", {"name": tool, "arguments": arguments})


def request(door: Door, era: Era, method: str, params: dict[str, object]) -> bytes:
    if era != "modern":
        return _post(door, _message(method, params), {"MCP-Protocol-Version": HANDSHAKE})
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method}
    if "name" in params:
        headers["Mcp-Name"] = str(params["name"])
    return _post(door, _message(method, {**params, "_meta": _META}), headers)


def hellos(door: Door, era: Era) -> list[bytes]:
    """What a client of that era says first on a connection."""
    if era != "handshake":
        return []
    who = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
    done = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    return [
        _post(door, _message("initialize", who), {}),
        _post(door, done, {"MCP-Protocol-Version": HANDSHAKE}),
    ]


def expected(work: str) -> str:
    """What a good answer contains, beside its id."""
    return {"echo": f"{MARK} the quick", "big": "x" * 100, "list": "inputSchema"}[work]


def _message(method: str, params: Mapping[str, object]) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": MARK, "method": method, "params": params}


def _post(door: Door, message: Mapping[str, object], headers: dict[str, str]) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    lines = {
        "Host": f"127.0.0.1:{door.port}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        **door.headers,
        **headers,
        "Content-Length": str(len(body)),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {door.path} HTTP/1.1\r\n{head}\r\n".encode() + body
