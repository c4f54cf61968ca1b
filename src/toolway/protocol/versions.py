"""MCP protocol eras: version tables, request metadata, version negotiation, and tool results.

Modern (2026-07-28): every request carries client info and capabilities. Legacy (2024-11-05 to 2025-11-25):
`initialize` sends them once. Bare: a server without a handshake, which knows `tools/list` and `tools/call` only.
Version tables and header rules are the SDK's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

from toolway.events import ListKind
from toolway.protocol.constants import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    LATEST_MODERN_VERSION,
    MODERN_PROTOCOL_VERSIONS,
    PROTOCOL_VERSION_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
)
from toolway.protocol.jsonrpc import MODERN_ERROR_CODES, tool_result_from_json
from toolway.types import Json

#: List kind -> (server capability, list method, key of the items in a page).
LIST_METHODS: Final[Mapping[ListKind, tuple[str, str, str]]] = {
    "tools": ("tools", "tools/list", "tools"),
    "prompts": ("prompts", "prompts/list", "prompts"),
    "resources": ("resources", "resources/list", "resources"),
    "templates": ("resources", "resources/templates/list", "resourceTemplates"),
}
#: List method -> key of the items in its result.
ITEMS_KEY: Final[Mapping[str, str]] = {method: items for _, method, items in LIST_METHODS.values()}

#: List-changed notifications, and the lists to fetch again.
LIST_CHANGES: Final[Mapping[str, tuple[ListKind, ...]]] = {
    "notifications/tools/list_changed": ("tools",),
    "notifications/prompts/list_changed": ("prompts",),
    "notifications/resources/list_changed": ("resources", "templates"),
}

#: Only these methods may be answered with `input_required`.
INPUT_REQUIRED_METHODS: Final = frozenset({"tools/call", "prompts/get", "resources/read"})

TASKS_EXTENSION: Final = "io.modelcontextprotocol/tasks"

#: Methods that a server may call during a call, and the client capability that each one requires.
CALLBACK_CAPABILITIES: Final[Mapping[str, str]] = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}

#: Log levels, from the least to the most verbose.
LogLevel: TypeAlias = Literal["emergency", "alert", "critical", "error", "warning", "notice", "info", "debug"]
LOG_LEVELS: Final[tuple[str, ...]] = get_args(LogLevel)  # the most severe first
DEFAULT_LOG_LEVEL: Final = "info"  # for a caller that wants log messages and names no level

PREFERRED_VERSION: Final = LATEST_MODERN_VERSION
OFFERED_LEGACY_VERSION: Final = LATEST_HANDSHAKE_VERSION


def has_tasks(era: str, capabilities: Json) -> bool:
    """Return True if a server may answer tool calls with tasks: it is modern and declares the extension."""
    extensions = capabilities.get("extensions")
    return era == "modern" and isinstance(extensions, dict) and TASKS_EXTENSION in extensions


def add_protocol_meta(params: Json, version: str, info: Json, capabilities: Json) -> Json:
    """Return `params` with the `_meta` entries that every modern request (2026-07-28) has.

    Other entries of `_meta` stay.
    """
    meta = params.get("_meta")
    return {
        **params,
        "_meta": {
            **(meta if isinstance(meta, dict) else {}),
            PROTOCOL_VERSION_META_KEY: version,
            CLIENT_INFO_META_KEY: info,
            CLIENT_CAPABILITIES_META_KEY: capabilities,
        },
    }


def initialize_params(info: Json, capabilities: Json) -> Json:
    """Return the params of an `initialize` request for a legacy server (before 2026-07-28)."""
    return {"protocolVersion": OFFERED_LEGACY_VERSION, "capabilities": capabilities, "clientInfo": info}


def select_modern_version(result: Json) -> str | None:
    """Return the newest modern protocol version that a `server/discover` result lists.

    Return None if the result lists no modern version that Toolway knows.
    """
    return _newest_common_version(result.get("supportedVersions"))


def is_modern_error(code: int) -> bool:
    """Return True if only a modern server (2026-07-28) answers a probe with this error code."""
    return code in MODERN_ERROR_CODES


def version_from_error(code: int, data: Any) -> str | None:
    """Return the newest modern version (2026-07-28 or later) that an unsupported-version error lists, or None."""
    if code != UNSUPPORTED_PROTOCOL_VERSION or not isinstance(data, dict):
        return None
    return _newest_common_version(data.get("supported"))


def agreed_legacy_version(result: Json) -> str | None:
    """Return the protocol version in a legacy `initialize` result, or None if Toolway does not know it."""
    version = result.get("protocolVersion")
    return version if isinstance(version, str) and version in HANDSHAKE_PROTOCOL_VERSIONS else None


def _newest_common_version(offered: Any) -> str | None:
    if not isinstance(offered, list):
        return None
    return next((v for v in reversed(MODERN_PROTOCOL_VERSIONS) if v in offered), None)


# -- bare era ---------------------------------------------------------------------------------------------------------

#: Capabilities that a server without a handshake has without declaring them.
BARE_CAPABILITIES: Final[Json] = {"tools": {}}
#: Fields of a tool result in any version. A result without `content` is an MCP result if it has one of them.
_TOOL_RESULT_FIELDS: Final = frozenset(
    {"content", "structuredContent", "isError", "resultType", "task", "taskId", "toolResult"}
)


def bare_call_params(params: Json) -> Json:
    """Return the params of `tools/call` for a server without a handshake.

    Some of these servers read the tool name from `tool` instead of `name`, and most require `arguments`.
    """
    return {"arguments": {}, **params, "tool": params.get("name")}


def normalize_tool_result(result: Json, *, bare: bool) -> Json:
    """Return `result` as a valid MCP tool result, unchanged if it is one.

    Any other object becomes the structured content, with its JSON as text. `bare` means that the server has no
    handshake, so its results need not be MCP results, and only a list of content blocks counts as one.
    """
    if bare:
        if _is_content(result.get("content")):
            return {key: value for key, value in result.items() if key != "resultType"}
        wrapped = tool_result_from_json(result)
        return {**wrapped, "isError": True} if result.get("isError") is True else wrapped
    if not result or not _TOOL_RESULT_FIELDS.isdisjoint(result):
        return result
    wrapped = tool_result_from_json({key: value for key, value in result.items() if key != "_meta"})
    return {**wrapped, "_meta": result["_meta"]} if "_meta" in result else wrapped


def _is_content(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, dict) and isinstance(each.get("type"), str) for each in value
    )


# -- subscriptions and logs -------------------------------------------------------------------------------------------


def listen_filter(capabilities: Json) -> Json:
    """Return the `subscriptions/listen` filter for the list changes that the server can notify."""
    capability_by_key = {
        "toolsListChanged": "tools",
        "promptsListChanged": "prompts",
        "resourcesListChanged": "resources",
    }
    return {
        key: True
        for key, capability in capability_by_key.items()
        if isinstance(capabilities.get(capability), dict) and capabilities[capability].get("listChanged") is True
    }


def has_list_changed(acknowledged: Any) -> bool:
    """Return True if the acknowledgement of a subscription includes any kind of list change."""
    return isinstance(acknowledged, dict) and any(value is True for value in acknowledged.values())


def accepts_legacy(data: Any) -> bool:
    """Return True if an unsupported-version error lists a legacy version (before 2026-07-28)."""
    offered = data.get("supported") if isinstance(data, dict) else None
    return isinstance(offered, list) and any(v in HANDSHAKE_PROTOCOL_VERSIONS for v in offered)


def log_verbosity(level: object) -> int:
    """Return the verbosity of an MCP log level as a number, or 0 for the least verbose or an unknown level."""
    return LOG_LEVELS.index(level) if isinstance(level, str) and level in LOG_LEVELS else 0
