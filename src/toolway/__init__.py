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
    from toolway.addresses.policy import Addresses
    from toolway.catalog.index import Prompt, Resource, Tool
    from toolway.config.spec import Health, Limits, Restart, Retry, Server, Timeout, ToolRule
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
    from toolway.model import Effect, Reply, ToolRef
    from toolway.upstream.status import Status

_HOME = {
    "toolway.addresses.policy": ("Addresses",),
    "toolway.catalog.index": ("Prompt", "Resource", "Tool"),
    "toolway.config.spec": ("Health", "Limits", "Restart", "Retry", "Server", "Timeout", "ToolRule"),
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
    "toolway.model": ("Effect", "Reply", "ToolRef"),
    "toolway.upstream.status": ("Status",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Addresses",
    "CallError",
    "ConfigError",
    "Denied",
    "Effect",
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
    "Retry",
    "Server",
    "Status",
    "TimedOut",
    "Timeout",
    "Tool",
    "ToolFailed",
    "ToolRef",
    "ToolRule",
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
