"""Toolway: a library, CLI and gateway for calling tools of many MCP servers reliably.

    async with Hub("mcp.json") as hub:
        result = await hub.call_tool("github.search_issues", {"query": "is:open"})

Public names are imported on first use, so a program that needs only one of them stays small.
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
        Certainty,
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
    from toolway.events import (
        Alert,
        AlertResolved,
        AttemptFinished,
        CallFinished,
        CallStarted,
        CatalogChanged,
        Event,
        EventSink,
        EventsMissed,
        HealthChanged,
        ServerLog,
        ServerPaused,
        StateChanged,
    )
    from toolway.gateway.mcp.errors import to_json_rpc
    from toolway.hub.hub import Hub
    from toolway.hub.sync import SyncHub
    from toolway.middleware.idempotency_sqlite import SqliteIdempotencyStore, StoreInUse
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
    from toolway.upstream.status import HealthResult, ServerInfo, ServerStatus
    from toolway.upstream.transport import (
        Disconnect,
        InboundHandler,
        InProcessServer,
        JSONRPCError,
        Request,
        Transport,
        TransportError,
        TransportInfo,
    )

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
        "Certainty",
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
    "toolway.events": (
        "Alert",
        "AlertResolved",
        "AttemptFinished",
        "CallFinished",
        "CallStarted",
        "CatalogChanged",
        "Event",
        "EventSink",
        "EventsMissed",
        "HealthChanged",
        "ServerLog",
        "ServerPaused",
        "StateChanged",
    ),
    "toolway.gateway.mcp.errors": ("to_json_rpc",),
    "toolway.hub.hub": ("Hub",),
    "toolway.hub.sync": ("SyncHub",),
    "toolway.middleware.idempotency_sqlite": ("SqliteIdempotencyStore", "StoreInUse"),
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
    "toolway.upstream.status": ("HealthResult", "ServerInfo", "ServerStatus"),
    "toolway.upstream.transport": (
        "Disconnect",
        "InboundHandler",
        "InProcessServer",
        "JSONRPCError",
        "Request",
        "Transport",
        "TransportError",
        "TransportInfo",
    ),
}
_MODULE_BY_NAME = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = [
    "AccessDenied",
    "Alert",
    "AlertResolved",
    "AlertSettings",
    "ArgumentViolation",
    "AttemptFinished",
    "Call",
    "CallError",
    "CallFinished",
    "CallHandler",
    "CallResult",
    "CallStarted",
    "CallTimeout",
    "CatalogChanged",
    "Certainty",
    "ConfigError",
    "Disconnect",
    "Effect",
    "Event",
    "EventSink",
    "EventsMissed",
    "HealthChanged",
    "HealthCheck",
    "HealthResult",
    "Hub",
    "InProcessServer",
    "InboundHandler",
    "InvalidArguments",
    "JSONRPCError",
    "Limits",
    "Middleware",
    "NetworkPolicy",
    "NotFound",
    "OutcomeUnknown",
    "Overloaded",
    "Prompt",
    "PromptResult",
    "ProtocolError",
    "Request",
    "Resource",
    "ResourceResult",
    "RestartPolicy",
    "RetryPolicy",
    "SandboxGrants",
    "Server",
    "ServerInfo",
    "ServerLog",
    "ServerPaused",
    "ServerStatus",
    "ServerUnavailable",
    "SqliteIdempotencyStore",
    "StateChanged",
    "StoreInUse",
    "SyncHub",
    "Timeout",
    "Tool",
    "ToolError",
    "ToolMatch",
    "ToolRef",
    "ToolResult",
    "ToolSettings",
    "ToolwayError",
    "Transport",
    "TransportError",
    "TransportInfo",
    "__version__",
    "to_json_rpc",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module 'toolway' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_BY_NAME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
