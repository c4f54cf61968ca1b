"""Attribute names of OpenTelemetry's MCP semantic conventions, and Toolway's own attributes.

The conventions are not stable yet, so this is the only file that spells their names:
https://github.com/open-telemetry/semantic-conventions-genai, docs/gen-ai/mcp.md
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

from toolway._lazy import compile_pattern
from toolway.config.schema import Server

ATTR_METHOD: Final = "mcp.method.name"
ATTR_PROTOCOL_VERSION: Final = "mcp.protocol.version"
ATTR_RESOURCE_URI: Final = "mcp.resource.uri"
ATTR_TOOL: Final = "gen_ai.tool.name"
ATTR_PROMPT: Final = "gen_ai.prompt.name"
ATTR_OPERATION: Final = "gen_ai.operation.name"
OPERATION_EXECUTE_TOOL: Final = "execute_tool"
ATTR_REQUEST_ID: Final = "jsonrpc.request.id"
ATTR_TRANSPORT: Final = "network.transport"  # pipe or tcp
ATTR_NETWORK_PROTOCOL: Final = "network.protocol.name"  # http
ATTR_SERVER_ADDRESS: Final = "server.address"
ATTR_SERVER_PORT: Final = "server.port"
ATTR_ERROR_TYPE: Final = "error.type"
ATTR_STATUS_CODE: Final = "rpc.response.status_code"

SERVER_DURATION_METRIC: Final = "mcp.server.operation.duration"
OTEL_BOUNDS_S: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

# Toolway's own attributes
ATTR_CALL_ID: Final = "toolway.call.id"
ATTR_SERVER: Final = "toolway.server"
ATTR_CALLER: Final = "toolway.caller"
ATTR_EXECUTED: Final = "toolway.executed"
ATTR_CERTAINTY: Final = "toolway.certainty"
ATTR_ATTEMPT: Final = "toolway.attempt"
ATTR_ATTEMPTS: Final = "toolway.attempts"
ATTR_SOURCE: Final = "toolway.source"
ATTR_PHASE: Final = "toolway.phase"
ATTR_RUN: Final = "toolway.run"
ATTR_WORKFLOW: Final = "toolway.workflow"
ATTR_STEP: Final = "toolway.step"
ATTR_STATE: Final = "toolway.state"  # of a run or a step

#: Keys in `_meta`, without a prefix: the MCP convention
TRACEPARENT_KEY: Final = "traceparent"
TRACESTATE_KEY: Final = "tracestate"
TRACEPARENT_PATTERN: Final = compile_pattern(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
MAX_TRACESTATE_CHARS: Final = 512


def span_name(method: str, target: str) -> str:
    """Return the OpenTelemetry span name of a request: MCP method plus tool or prompt name.

    Resource URIs are left out, because span names must have few distinct values.
    """
    return f"{method} {target}" if target and method in ("tools/call", "prompts/get") else method


def request_attributes(method: str, target: str) -> dict[str, str]:
    """Return the span attributes of an MCP request: method, and tool, prompt or resource URI."""
    if method == "tools/call":
        return {ATTR_METHOD: method, ATTR_TOOL: target, ATTR_OPERATION: OPERATION_EXECUTE_TOOL}
    if method == "prompts/get":
        return {ATTR_METHOD: method, ATTR_PROMPT: target}
    if method == "resources/read":
        return {ATTR_METHOD: method, ATTR_RESOURCE_URI: target}
    return {ATTR_METHOD: method}


def server_attributes(server: Server | None, version: str) -> dict[str, Any]:
    """Return the span attributes of a server: protocol version, transport, host and port.

    The rest of the server's URL may contain secrets and is left out.
    """
    found: dict[str, Any] = {ATTR_PROTOCOL_VERSION: version} if version else {}
    if server is not None and server.url:
        return found | _address_attributes(server.url)
    if server is not None and server.command:
        found[ATTR_TRANSPORT] = "pipe"
    return found


@lru_cache(maxsize=1000)
def _address_attributes(url: str) -> dict[str, Any]:
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return {}
    return {
        ATTR_TRANSPORT: "tcp",
        ATTR_NETWORK_PROTOCOL: "http",
        ATTR_SERVER_ADDRESS: parts.hostname or "",
        ATTR_SERVER_PORT: port,
    }
