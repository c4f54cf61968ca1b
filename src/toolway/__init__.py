"""Toolway: a library, CLI and gateway for calling tools of many MCP servers reliably.

    async with Hub("mcp.json") as hub:
        result = await hub.call_tool("github.search_issues", {"query": "is:open"})

Public names are imported on first use, so that a program that needs only one of them stays small.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from toolway._version import __version__

if TYPE_CHECKING:
    from toolway.catalog.catalog import Prompt, Resource, Tool
    from toolway.config.schema import (
        HealthCheck,
        Limits,
        RestartPolicy,
        RetryPolicy,
        SandboxGrants,
        Server,
        Timeout,
        ToolSettings,
    )
    from toolway.config.settings import AlertSettings
    from toolway.errors import (
        AccessDenied,
        ArgumentViolation,
        CallError,
        CallTimeout,
        ConfigError,
        InvalidArguments,
        NotFound,
        OutcomeUnknown,
        Overloaded,
        ProtocolError,
        ServerUnavailable,
        ToolError,
        ToolwayError,
    )
    from toolway.gateway.mcp.errors import to_json_rpc
    from toolway.hub.hub import Hub
    from toolway.hub.sync import SyncHub
    from toolway.network.policy import NetworkPolicy
    from toolway.search.results import ToolMatch
    from toolway.types import (
        Call,
        CallHandler,
        CallResult,
        Effect,
        Middleware,
        PromptResult,
        ResourceResult,
        ToolRef,
        ToolResult,
    )
    from toolway.upstream.status import HealthResult, ServerStatus

_EXPORTS = {
    "toolway.catalog.catalog": ("Prompt", "Resource", "Tool"),
    "toolway.config.schema": (
        "HealthCheck",
        "Limits",
        "RestartPolicy",
        "RetryPolicy",
        "SandboxGrants",
        "Server",
        "Timeout",
        "ToolSettings",
    ),
    "toolway.config.settings": ("AlertSettings",),
    "toolway.errors": (
        "AccessDenied",
        "CallError",
        "CallTimeout",
        "ConfigError",
        "InvalidArguments",
        "NotFound",
        "OutcomeUnknown",
        "Overloaded",
        "ProtocolError",
        "ServerUnavailable",
        "ToolError",
        "ToolwayError",
        "ArgumentViolation",
    ),
    "toolway.gateway.mcp.errors": ("to_json_rpc",),
    "toolway.hub.hub": ("Hub",),
    "toolway.hub.sync": ("SyncHub",),
    "toolway.network.policy": ("NetworkPolicy",),
    "toolway.search.results": ("ToolMatch",),
    "toolway.types": (
        "Call",
        "CallHandler",
        "CallResult",
        "Effect",
        "Middleware",
        "PromptResult",
        "ResourceResult",
        "ToolRef",
        "ToolResult",
    ),
    "toolway.upstream.status": ("HealthResult", "ServerStatus"),
}
_MODULE_BY_NAME = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = [
    "AccessDenied",
    "AlertSettings",
    "ArgumentViolation",
    "Call",
    "CallError",
    "CallHandler",
    "CallResult",
    "CallTimeout",
    "ConfigError",
    "Effect",
    "HealthCheck",
    "HealthResult",
    "Hub",
    "InvalidArguments",
    "Limits",
    "Middleware",
    "NetworkPolicy",
    "NotFound",
    "OutcomeUnknown",
    "Overloaded",
    "Prompt",
    "PromptResult",
    "ProtocolError",
    "Resource",
    "ResourceResult",
    "RestartPolicy",
    "RetryPolicy",
    "SandboxGrants",
    "Server",
    "ServerStatus",
    "ServerUnavailable",
    "SyncHub",
    "Timeout",
    "Tool",
    "ToolError",
    "ToolMatch",
    "ToolRef",
    "ToolResult",
    "ToolSettings",
    "ToolwayError",
    "__version__",
    "to_json_rpc",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module 'toolway' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_BY_NAME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
