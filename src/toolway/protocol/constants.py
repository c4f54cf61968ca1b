"""Constants of JSON-RPC and MCP: error codes, keys of `_meta`, protocol versions, HTTP headers.

They are written here because the SDK's modules with the same constants build several hundred pydantic models at import,
which takes longer than all of Toolway. `tests/protocol/test_constants.py` compares them with the SDK.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# -- error codes ------------------------------------------------------------------------------------------------------

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
HEADER_MISMATCH: Final = -32020
MISSING_REQUIRED_CLIENT_CAPABILITY: Final = -32021
UNSUPPORTED_PROTOCOL_VERSION: Final = -32022
#: A user must visit URLs before the call is repeated; the data of the error has them as `elicitations`.
URL_ELICITATION_REQUIRED: Final = -32042

#: HTTP status of a response with one of these errors; 200 for every other one.
ERROR_CODE_HTTP_STATUS: Final[Mapping[int, int]] = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    MISSING_REQUIRED_CLIENT_CAPABILITY: 400,
    UNSUPPORTED_PROTOCOL_VERSION: 400,
    METHOD_NOT_FOUND: 404,
}

# -- `_meta` ----------------------------------------------------------------------------------------------------------

PROTOCOL_VERSION_META_KEY: Final = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO_META_KEY: Final = "io.modelcontextprotocol/clientInfo"
CLIENT_CAPABILITIES_META_KEY: Final = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL_META_KEY: Final = "io.modelcontextprotocol/logLevel"
SERVER_INFO_META_KEY: Final = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION_ID_META_KEY: Final = "io.modelcontextprotocol/subscriptionId"

# -- protocol versions, oldest first ----------------------------------------------------------------------------------

HANDSHAKE_PROTOCOL_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_PROTOCOL_VERSIONS: Final = ("2026-07-28",)
LATEST_HANDSHAKE_VERSION: Final = HANDSHAKE_PROTOCOL_VERSIONS[-1]
LATEST_MODERN_VERSION: Final = MODERN_PROTOCOL_VERSIONS[-1]

# -- HTTP headers of a modern request ---------------------------------------------------------------------------------

MCP_PROTOCOL_VERSION_HEADER: Final = "mcp-protocol-version"
MCP_METHOD_HEADER: Final = "mcp-method"
MCP_NAME_HEADER: Final = "mcp-name"
MCP_PARAM_HEADER_PREFIX: Final = "Mcp-Param-"
#: Key of a property's schema that names the header which repeats the argument.
X_MCP_HEADER_KEY: Final = "x-mcp-header"
#: The parameter of each method that the header `mcp-name` repeats.
NAME_BEARING_METHODS: Final[Mapping[str, str]] = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
