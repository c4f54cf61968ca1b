"""The interface between the core and its parts: what a part declares, what it gets, and its storage.

A part is a feature in one folder. The core finds it by name (`registry.py`) and imports its modules on first use.
Parts from other distributions register with the entry point `toolway.parts` and import all names from here. The
interface is unstable, and may change in any minor version.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from toolway.audit.sink import AuditSink, ChainHead, SinkBroken, SinkInUse, StoredRecord
    from toolway.cli.exit_codes import ExitCode
    from toolway.cli.framework import CommandResult
    from toolway.cli.options import CommandContext
    from toolway.cli.targets import require_gateway
    from toolway.cluster.options import tenant_key_from_env
    from toolway.config.field_reader import FieldReader
    from toolway.config.schema import Server
    from toolway.config.settings import AuditSettings, GatewaySettings
    from toolway.doctor.report import Check, SubjectReport, split_hint
    from toolway.doctor.start_checks import format_seconds
    from toolway.doctor.trial_start import TrialStart
    from toolway.errors import CallRefused, Certainty, ConfigError, StoreUnavailable
    from toolway.events import PartCondition
    from toolway.gateway.admin.routes import AdminRequest, Route
    from toolway.gateway.authenticator import ProvenIdentity, RequestDenied, VerificationPending
    from toolway.gateway.caller_paths import CallerEndpoint, PathCaller, PathReply
    from toolway.gateway.credentials import CredentialVerifier
    from toolway.gateway.limits import BoundLimit, CallLimit
    from toolway.gateway.mcp.errors import RpcFailure
    from toolway.gateway.mcp.responses import RpcResult
    from toolway.gateway.permissions import AccessFilter, PrincipalAccess
    from toolway.gateway.principals import Principal
    from toolway.middleware.approval import CallCheck
    from toolway.part_api.database import Database, DatabaseError, Table, Transaction
    from toolway.part_api.part import (
        CallerRights,
        CheckedGateway,
        Command,
        GatewayPlace,
        Gauge,
        Implied,
        KeyAttribute,
        Metric,
        Part,
        PartContext,
        PartRuntime,
    )
    from toolway.part_api.server_transport import EntryString, RestrictionLost, ServerTransport, TransportSettings
    from toolway.part_api.start_guard import GuardChecks, GuardedProgram, StartGuard
    from toolway.types import Json
    from toolway.upstream.transport import Transport, TransportServices

_EXPORTS: Final = {
    "toolway.audit.sink": ("AuditSink", "ChainHead", "SinkBroken", "SinkInUse", "StoredRecord"),
    "toolway.cli.exit_codes": ("ExitCode",),
    "toolway.cli.framework": ("CommandResult",),
    "toolway.cli.options": ("CommandContext",),
    "toolway.cli.targets": ("require_gateway",),
    "toolway.cluster.options": ("tenant_key_from_env",),
    "toolway.config.field_reader": ("FieldReader",),
    "toolway.config.schema": ("Server",),
    "toolway.config.settings": ("AuditSettings", "GatewaySettings"),
    "toolway.doctor.report": ("Check", "SubjectReport", "split_hint"),
    "toolway.doctor.start_checks": ("format_seconds",),
    "toolway.doctor.trial_start": ("TrialStart",),
    "toolway.errors": (
        "CallRefused",
        "Certainty",
        "ConfigError",
        "StoreUnavailable",
    ),
    "toolway.events": ("PartCondition",),
    "toolway.gateway.admin.routes": (
        "AdminRequest",
        "Route",
    ),
    "toolway.gateway.authenticator": (
        "ProvenIdentity",
        "RequestDenied",
        "VerificationPending",
    ),
    "toolway.gateway.caller_paths": (
        "PathCaller",
        "CallerEndpoint",
        "PathReply",
    ),
    "toolway.gateway.credentials": ("CredentialVerifier",),
    "toolway.gateway.limits": (
        "BoundLimit",
        "CallLimit",
    ),
    "toolway.gateway.mcp.errors": ("RpcFailure",),
    "toolway.gateway.mcp.responses": ("RpcResult",),
    "toolway.gateway.permissions": (
        "AccessFilter",
        "PrincipalAccess",
    ),
    "toolway.gateway.principals": ("Principal",),
    "toolway.middleware.approval": ("CallCheck",),
    "toolway.part_api.database": (
        "Database",
        "DatabaseError",
        "Table",
        "Transaction",
    ),
    "toolway.part_api.part": (
        "CallerRights",
        "CheckedGateway",
        "Command",
        "GatewayPlace",
        "Gauge",
        "Implied",
        "KeyAttribute",
        "Metric",
        "Part",
        "PartContext",
        "PartRuntime",
    ),
    "toolway.part_api.server_transport": (
        "EntryString",
        "RestrictionLost",
        "ServerTransport",
        "TransportSettings",
    ),
    "toolway.part_api.start_guard": (
        "GuardChecks",
        "GuardedProgram",
        "StartGuard",
    ),
    "toolway.types": ("Json",),
    "toolway.upstream.transport": (
        "Transport",
        "TransportServices",
    ),
}
_MODULES: Final = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = [
    "AccessFilter",
    "AdminRequest",
    "AuditSettings",
    "AuditSink",
    "BoundLimit",
    "CallCheck",
    "CallLimit",
    "CallRefused",
    "CallerEndpoint",
    "CallerRights",
    "Certainty",
    "ChainHead",
    "Check",
    "CheckedGateway",
    "Command",
    "CommandContext",
    "CommandResult",
    "ConfigError",
    "CredentialVerifier",
    "Database",
    "DatabaseError",
    "EntryString",
    "ExitCode",
    "FieldReader",
    "GatewayPlace",
    "GatewaySettings",
    "Gauge",
    "GuardChecks",
    "GuardedProgram",
    "Implied",
    "Json",
    "KeyAttribute",
    "Metric",
    "Part",
    "PartCondition",
    "PartContext",
    "PartRuntime",
    "PathCaller",
    "PathReply",
    "Principal",
    "PrincipalAccess",
    "ProvenIdentity",
    "RequestDenied",
    "RestrictionLost",
    "Route",
    "RpcFailure",
    "RpcResult",
    "Server",
    "ServerTransport",
    "SinkBroken",
    "SinkInUse",
    "StartGuard",
    "StoreUnavailable",
    "StoredRecord",
    "SubjectReport",
    "Table",
    "Transaction",
    "Transport",
    "TransportServices",
    "TransportSettings",
    "TrialStart",
    "VerificationPending",
    "format_seconds",
    "require_gateway",
    "split_hint",
    "tenant_key_from_env",
]


def __getattr__(name: str) -> Any:
    """Import a name on first use, so `toolway --help` loads only the declarations of parts."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
