"""The two eras of MCP, as seen from a client: what a request carries, and what an answer to the probe means.

Modern (2026-07-28): every request says by itself who asks and what the asker can do. Handshake (2024-11-05 to
2025-11-25): `initialize` says it once. Version tables and header rules are the SDK's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    PROTOCOL_VERSION_META_KEY,
)
from mcp_types.jsonrpc import UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    LATEST_MODERN_VERSION,
    MODERN_PROTOCOL_VERSIONS,
)

from toolway.events import Kind
from toolway.model import Json
from toolway.protocol.wire import MODERN_REFUSALS

#: Which capability of a server stands behind which list, and the key of the items in its pages.
LISTS: Final[Mapping[Kind, tuple[str, str, str]]] = {
    "tools": ("tools", "tools/list", "tools"),
    "prompts": ("prompts", "prompts/list", "prompts"),
    "resources": ("resources", "resources/list", "resources"),
    "templates": ("resources", "resources/templates/list", "resourceTemplates"),
}
#: What the list in the answer to a method is called.
ITEMS_OF: Final[Mapping[str, str]] = {method: items for _, method, items in LISTS.values()}

#: Notifications that say that a list changed, and which lists to fetch again.
LIST_CHANGES: Final[Mapping[str, tuple[Kind, ...]]] = {
    "notifications/tools/list_changed": ("tools",),
    "notifications/prompts/list_changed": ("prompts",),
    "notifications/resources/list_changed": ("resources", "templates"),
}

#: Only these may be answered with `input_required`.
MAY_ASK_BACK: Final = frozenset({"tools/call", "prompts/get", "resources/read"})

TASKS: Final = "io.modelcontextprotocol/tasks"

#: What a server may ask in mid-call, and the capability by which a client says that it can be asked.
ASK_CAPABILITIES: Final[Mapping[str, str]] = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}

#: Levels of log messages, from what is said least to what is said most.
LOG_LEVELS: Final = ("emergency", "alert", "critical", "error", "warning", "notice", "info", "debug")

PREFERRED: Final = LATEST_MODERN_VERSION
HANDSHAKE_OFFER: Final = LATEST_HANDSHAKE_VERSION


def stamp(params: Json, version: str, info: Json, capabilities: Json) -> Json:
    """`params` with the `_meta` that a modern request must carry; what the caller put there stays."""
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
    return {"protocolVersion": HANDSHAKE_OFFER, "capabilities": capabilities, "clientInfo": info}


def modern_version(result: Json) -> str | None:
    """The version to speak with a server that answered `server/discover`, or None if it offers no modern one."""
    return _mutual(result.get("supportedVersions"))


def shows_modern(code: int) -> bool:
    """Whether an error to the probe proves that the server speaks the modern era."""
    return code in MODERN_REFUSALS


def version_after_refusal(code: int, data: Any) -> str | None:
    """The modern version that a refusal of ours names as supported."""
    if code != UNSUPPORTED_PROTOCOL_VERSION or not isinstance(data, dict):
        return None
    return _mutual(data.get("supported"))


def handshake_version(result: Json) -> str | None:
    """The version that `initialize` agreed on, or None where it is none we know."""
    version = result.get("protocolVersion")
    return version if isinstance(version, str) and version in HANDSHAKE_PROTOCOL_VERSIONS else None


def _mutual(offered: Any) -> str | None:
    if not isinstance(offered, list):
        return None
    return next((v for v in reversed(MODERN_PROTOCOL_VERSIONS) if v in offered), None)


def listen_filter(capabilities: Json) -> Json:
    """What to ask of `subscriptions/listen`, by what the server says it can notice."""
    wanted = {
        "toolsListChanged": "tools",
        "promptsListChanged": "prompts",
        "resourcesListChanged": "resources",
    }
    return {
        key: True
        for key, capability in wanted.items()
        if isinstance(capabilities.get(capability), dict) and capabilities[capability].get("listChanged") is True
    }


def tells_of_lists(honoured: Any) -> bool:
    """Whether this is what a subscription to lists was acknowledged with."""
    return isinstance(honoured, dict) and any(value is True for value in honoured.values())


def offers_handshake(data: Any) -> bool:
    """Whether a refusal of the modern version names one of the handshake era."""
    offered = data.get("supported") if isinstance(data, dict) else None
    return isinstance(offered, list) and any(v in HANDSHAKE_PROTOCOL_VERSIONS for v in offered)


def log_rank(level: object) -> int:
    """How much more is said at a level than at the quietest; an unknown one is the quietest."""
    return LOG_LEVELS.index(level) if isinstance(level, str) and level in LOG_LEVELS else 0
