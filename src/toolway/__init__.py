"""Toolway: one dependable way to every MCP server.

    async with Hub("mcp.json") as hub:
        reply = await hub.call_tool("github.search_issues", {"query": "is:open"})

The names are loaded when they are first used, so that a program which only needs one of them stays small.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from toolway._version import __version__

if TYPE_CHECKING:
    from toolway.catalog.index import Prompt, Resource, Tool
    from toolway.config.spec import Health, Limits, Restart, Server, Timeout
    from toolway.errors import (
        CallError,
        ConfigError,
        Denied,
        NotFound,
        OutcomeUnknown,
        Overloaded,
        ProtocolError,
        TimedOut,
        ToolFailed,
        ToolwayError,
        Unavailable,
    )
    from toolway.hub import Hub
    from toolway.model import Reply, ToolRef
    from toolway.upstream.status import Status

_HOME = {
    "toolway.catalog.index": ("Prompt", "Resource", "Tool"),
    "toolway.config.spec": ("Health", "Limits", "Restart", "Server", "Timeout"),
    "toolway.errors": (
        "CallError",
        "ConfigError",
        "Denied",
        "NotFound",
        "OutcomeUnknown",
        "Overloaded",
        "ProtocolError",
        "TimedOut",
        "ToolFailed",
        "ToolwayError",
        "Unavailable",
    ),
    "toolway.hub": ("Hub",),
    "toolway.model": ("Reply", "ToolRef"),
    "toolway.upstream.status": ("Status",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "CallError",
    "ConfigError",
    "Denied",
    "Health",
    "Hub",
    "Limits",
    "NotFound",
    "OutcomeUnknown",
    "Overloaded",
    "Prompt",
    "ProtocolError",
    "Reply",
    "Resource",
    "Restart",
    "Server",
    "Status",
    "TimedOut",
    "Timeout",
    "Tool",
    "ToolFailed",
    "ToolRef",
    "ToolwayError",
    "Unavailable",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'toolway' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
