"""The names of the MCP semantic conventions of OpenTelemetry, and of our own attributes. They are not stable yet: this
is the one place where they stand.

https://github.com/open-telemetry/semantic-conventions-genai, docs/gen-ai/mcp.md
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

from toolway.config.spec import Server

METHOD: Final = "mcp.method.name"
PROTOCOL: Final = "mcp.protocol.version"
RESOURCE: Final = "mcp.resource.uri"
TOOL: Final = "gen_ai.tool.name"
PROMPT: Final = "gen_ai.prompt.name"
OPERATION: Final = "gen_ai.operation.name"
EXECUTE_TOOL: Final = "execute_tool"
REQUEST: Final = "jsonrpc.request.id"
TRANSPORT: Final = "network.transport"  # pipe or tcp
APPLICATION: Final = "network.protocol.name"  # http
ADDRESS: Final = "server.address"
PORT: Final = "server.port"
ERROR: Final = "error.type"
STATUS: Final = "rpc.response.status_code"
TOOL_ERROR: Final = "tool_error"

CLIENT_DURATION: Final = "mcp.client.operation.duration"
SERVER_DURATION: Final = "mcp.server.operation.duration"
BOUNDS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)  # seconds

# Ours
CALL: Final = "toolway.call.id"
SERVER: Final = "toolway.server"
CALLER: Final = "toolway.caller"
EXECUTED: Final = "toolway.executed"
CERTAINTY: Final = "toolway.certainty"
ATTEMPT: Final = "toolway.attempt"
ATTEMPTS: Final = "toolway.attempts"
SOURCE: Final = "toolway.source"
PHASE: Final = "toolway.phase"

#: In `_meta`, without a prefix: the convention for MCP
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
PARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
LONGEST_STATE: Final = 512  # characters


def span_name(method: str, target: str) -> str:
    """A tool or a prompt is part of the name; a URI is not, for there are too many."""
    return f"{method} {target}" if target and method in ("tools/call", "prompts/get") else method


def about(method: str, target: str) -> dict[str, str]:
    """What a request is for."""
    if method == "tools/call":
        return {METHOD: method, TOOL: target, OPERATION: EXECUTE_TOOL}
    if method == "prompts/get":
        return {METHOD: method, PROMPT: target}
    if method == "resources/read":
        return {METHOD: method, RESOURCE: target}
    return {METHOD: method}


def place_of(server: Server | None, version: str) -> dict[str, Any]:
    """Where a server is, and which version of the protocol it speaks. Of its address only host and port: the rest may
    hold what is not for everybody."""
    found: dict[str, Any] = {PROTOCOL: version} if version else {}
    if server is not None and server.url:
        return found | _address(server.url)
    if server is not None and server.command:
        found[TRANSPORT] = "pipe"
    return found


@lru_cache(maxsize=1000)
def _address(url: str) -> dict[str, Any]:
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return {}
    return {TRANSPORT: "tcp", APPLICATION: "http", ADDRESS: parts.hostname or "", PORT: port}
