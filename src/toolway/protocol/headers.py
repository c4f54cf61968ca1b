"""HTTP headers of a modern MCP request (2026-07-28) that repeat parts of its body.

The rules are the SDK's. This is a separate module because they import the whole SDK, which only HTTP servers need.
"""

from __future__ import annotations

from typing import Any

from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
    find_invalid_x_mcp_header,
    mcp_param_headers,
    x_mcp_header_map,
)

from toolway.types import Json

_TASK_METHODS = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})


def request_headers(version: str, method: str, params: Json, input_schema: Any = None) -> dict[str, str]:
    """Return the HTTP headers that repeat parts of a modern MCP request (2026-07-28).

    `input_schema` is the schema of the called tool; it names the arguments that are repeated in headers.
    """
    headers = {MCP_PROTOCOL_VERSION_HEADER: version, MCP_METHOD_HEADER: method}
    key = "taskId" if method in _TASK_METHODS else NAME_BEARING_METHODS.get(method)
    name = params.get(key) if key else None
    if isinstance(name, str):
        headers[MCP_NAME_HEADER] = encode_header_value(name)
    arguments = params.get("arguments")
    if method == "tools/call" and isinstance(input_schema, dict) and isinstance(arguments, dict):
        headers.update(mcp_param_headers(x_mcp_header_map(input_schema), arguments))
    return headers


def check_header_schema(input_schema: Any) -> str | None:
    """Return why a tool with this input schema cannot be called over HTTP, or None if it can."""
    return find_invalid_x_mcp_header(input_schema)
