"""The HTTP headers that a request mirrors from its body. The rules are the SDK's; this applies them.

In a module of its own because the SDK's rules come with the whole SDK, which only HTTP servers need.
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

from toolway.model import Json

_TASK_METHODS = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})


def for_request(version: str, method: str, params: Json, input_schema: Any = None) -> dict[str, str]:
    """The headers of one modern request. `input_schema` is the tool's, for arguments that are mirrored too."""
    headers = {MCP_PROTOCOL_VERSION_HEADER: version, MCP_METHOD_HEADER: method}
    key = "taskId" if method in _TASK_METHODS else NAME_BEARING_METHODS.get(method)
    name = params.get(key) if key else None
    if isinstance(name, str):
        headers[MCP_NAME_HEADER] = encode_header_value(name)
    arguments = params.get("arguments")
    if method == "tools/call" and isinstance(input_schema, dict) and isinstance(arguments, dict):
        headers.update(mcp_param_headers(x_mcp_header_map(input_schema), arguments))
    return headers


def schema_problem(input_schema: Any) -> str | None:
    """Why a tool with this schema cannot be called over HTTP, or None."""
    return find_invalid_x_mcp_header(input_schema)
