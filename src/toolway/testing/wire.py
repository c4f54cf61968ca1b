"""JSON-RPC messages of the fake MCP servers, protocol versions, `_meta` keys, error codes."""

from __future__ import annotations

import json

TYPE_CHECKING = False  # not from typing: importing it takes a third of the start-up time
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    Json: TypeAlias = dict[str, Any]
    Id: TypeAlias = int | str

LEGACY_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSIONS = ("2026-07-28",)

VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
SERVER_INFO_KEY = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION_KEY = "io.modelcontextprotocol/subscriptionId"

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
RESOURCE_NOT_FOUND = -32002  # legacy era only
HEADER_MISMATCH = -32020
MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022

_encoder = json.JSONEncoder(separators=(",", ":"))


class RpcError(Exception):
    """Error that a fake server returns to the client as a JSON-RPC error response."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class Unanswered(Exception):
    """Raised while a fake server handles a request, to send no response at all."""


def encode(message: Json) -> bytes:
    return _encoder.encode(message).encode()


def make_request(id: Id, method: str, params: Json) -> Json:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def make_notification(method: str, params: Json | None = None) -> Json:
    return {"jsonrpc": "2.0", "method": method, "params": params or {}}


def make_response(id: Id, result: Json) -> Json:
    return {"jsonrpc": "2.0", "id": id, "result": result}


def make_error_response(id: Id | None, error: RpcError) -> Json:
    body: Json = {"code": error.code, "message": error.message}
    if error.data is not None:
        body["data"] = error.data
    return {"jsonrpc": "2.0", "id": id, "error": body}


def parse_message(data: bytes) -> Json:
    """Parse a JSON-RPC message and check the types of its `method` and `id`.

    Raises `RpcError` if it is not valid JSON or not a valid message.
    """
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        raise RpcError(PARSE_ERROR, "Parse error") from None
    if (
        isinstance(message, dict)
        and isinstance(message.get("method", ""), str)
        and isinstance(message.get("id", 0), int | str)
    ):
        return message
    raise RpcError(INVALID_REQUEST, "Invalid request")


def cancelled_id(message: Json) -> Id:
    """Return the id of the request that a `notifications/cancelled` message cancels, or ""."""
    id = as_object(message.get("params")).get("requestId")
    return id if isinstance(id, int | str) else ""


def as_object(value: Any) -> Json:
    """Return `value` if it is a JSON object, else an empty object."""
    return value if isinstance(value, dict) else {}
