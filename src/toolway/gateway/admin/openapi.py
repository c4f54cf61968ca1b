"""OpenAPI 3.1 description of `/admin`, built from the route table: `GET /admin/openapi.json`.

The schemas of bodies and replies are in `SCHEMAS`, except those of data classes, which are derived from the classes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from toolway._version import __version__
from toolway.events import Alert
from toolway.gateway.admin.schema import ANY as _ANY
from toolway.gateway.admin.schema import ANY_OBJECT as _ANY_OBJECT
from toolway.gateway.admin.schema import BOOLEAN as _BOOLEAN
from toolway.gateway.admin.schema import INTEGER as _INTEGER
from toolway.gateway.admin.schema import NUMBER as _NUMBER
from toolway.gateway.admin.schema import STRING as _STRING
from toolway.gateway.admin.schema import STRINGS as _STRINGS
from toolway.gateway.admin.schema import array_of as _array
from toolway.gateway.admin.schema import nullable as _nullable
from toolway.gateway.admin.schema import object_from as _object_from
from toolway.gateway.admin.schema import object_of as _object
from toolway.gateway.admin.schema import ref_to as _ref
from toolway.outcomes import OUTCOMES
from toolway.part_api import registry
from toolway.types import Json
from toolway.upstream.status import HealthResult, ServerInfo, ServerStatus

if TYPE_CHECKING:
    from toolway.gateway.admin.routes import Route

_PATH_PARAMETER: Final = re.compile(r"\{(\w+)\}")
_CLUSTER_NOTES: Final = {
    "any": "",
    "required": "Only in a cluster.",
    "rejected": "Not in a cluster: there the configuration is shared.",
}


def build_description(operations: Iterable[Route]) -> Json:
    """Return the OpenAPI 3.1 document for these admin API operations."""
    paths: dict[str, Json] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Toolway admin API",
            "version": __version__,
            "description": "Every operation requires the token of an administrator.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": all_schemas(),
            "responses": {"Error": {"description": "The request was rejected", **_content("Error")}},
        },
    }


def all_schemas() -> Json:
    """Return the schemas of all bodies and replies, by name, including the built-in parts' schemas."""
    parts = registry.in_use()
    status = {part.name: _ref(part.status_schema) for part in parts if part.status_schema}
    of_parts = {name: each for part in parts for name, each in part.schemas().items()}
    return {**SCHEMAS, "Gateway": _object(status, SCHEMAS["Gateway"]), **of_parts}


def _describe(operation: Route) -> Json:
    reply: Json = {"description": "OK", **_content(operation.response)}
    if operation.streams:
        reply["content"]["text/event-stream"] = {"schema": _STRING}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _STRING}
        for name in _PATH_PARAMETER.findall(operation.path)
    ]
    parameters += [
        {"name": name, "in": "query", "description": text, "schema": _STRING} for name, text in operation.query.items()
    ]
    described: Json = {
        "summary": operation.summary,
        "parameters": parameters,
        "responses": {"200": reply, "default": {"$ref": "#/components/responses/Error"}},
    }
    if _CLUSTER_NOTES[operation.cluster]:
        described["description"] = _CLUSTER_NOTES[operation.cluster]
    if operation.body:
        described["requestBody"] = _content(operation.body)
    return described


def _content(schema: str) -> Json:
    return {"content": {"application/json": {"schema": _ref(schema)}}}


# -- shapes -----------------------------------------------------------------------------------------------------------


_STATUS: Final = _object_from(ServerStatus)
_WRITTEN: Final[Json] = {  # reply of a change of the config file: the diff of a preview, or what was changed
    "diff?": _STRING,
    "changed?": {"type": ["object", "array"]},
    "problems?": _STRINGS,
    "published_to?": _STRING,
}
_LOAD: Final = {"queued": _INTEGER, "retries": _INTEGER, "retries_denied": _INTEGER}
_EVENT: Final = _object(
    {"n": _INTEGER, "at": _NUMBER, "kind": _STRING, "server": _STRING, "text": _STRING, "state?": _STRING}
)
_OUTCOME: Final = {"enum": [each.word for each in OUTCOMES]}
_CALL: Final = _object(
    {
        "id": _STRING,
        "at": _NUMBER,
        "server": _STRING,
        "tool": _STRING,
        "name": _STRING,
        "method": _STRING,
        "outcome": _OUTCOME,
        "failed": _BOOLEAN,
        "code": _STRING,
        "executed": {"enum": ["no", "unknown", "yes"]},
        "certainty": _STRING,
        "effect": _STRING,
        "seconds": _NUMBER,
        "attempts": _INTEGER,
        "caller": _STRING,
        "principal": _STRING,
        "trace": _STRING,
        "source": _STRING,
        "message": _STRING,
        "detail": _STRING,
        "hint": _STRING,
    }
)
_PHASE: Final = _object({"name": _STRING, "began": _NUMBER, "seconds": _NUMBER})
_ATTEMPT: Final = _object(
    {
        "number": _INTEGER,
        "began": _NUMBER,
        "seconds": _NUMBER,
        "outcome": _OUTCOME,
        "code": _STRING,
        "certainty": _STRING,
        "phases": _array(_PHASE),
    }
)
_TOOL_ROW: Final = _object(
    {
        "server": _STRING,
        "tool": _STRING,
        "model_name": _STRING,
        "title": _STRING,
        "description": _STRING,
        "size": _INTEGER,
        "read_only": _BOOLEAN,
        "destructive": _BOOLEAN,
    }
)
_TOOL: Final = _object(
    {
        "name": _STRING,
        "model_name": _STRING,
        "server": _STRING,
        "title": _nullable("string"),
        "description": _nullable("string"),
        "raw": _ANY_OBJECT,
    }
)
_KEY: Final = _object(
    {
        "id": _STRING,
        "name": _STRING,
        "access": {"anyOf": [_STRINGS, {"type": "null"}]},
        "admin": _BOOLEAN,
        "created": _NUMBER,
        "rate": _nullable("string"),
        **{
            name: each.schema if each.empty is not None else {**each.schema, "type": [each.schema["type"], "null"]}
            for name, each in registry.key_attributes().items()
        },
        "search": _BOOLEAN,
        "expires": _nullable("number"),
        "made_by": _STRING,
    }
)
_BREAKER: Final = _object(
    {
        "server": _STRING,
        "tool": _STRING,
        "position": {"enum": ["closed", "open", "half-open"]},
        "wait": _NUMBER,
        "consecutive_failures": _INTEGER,
        "ended": _INTEGER,
        "failures": _INTEGER,
        "opened_count": _INTEGER,
    }
)
_TOOLSET: Final = _object(
    {
        "name": _STRING,
        "path": _STRING,
        "patterns": _STRINGS,
        "search": _BOOLEAN,
        "tools": _INTEGER,
        "size": _INTEGER,
        "servers": _STRINGS,
    }
)
_ENTRY_TO_REVIEW: Final = _object(
    {
        "server": _STRING,
        "message": _STRING,
        "detail": _STRING,
        "hint": _STRING,
        "file": _STRING,
        "line": _nullable("integer"),
    }
)
_CONFIG_ISSUE: Final = _object(
    {
        "severity": _STRING,
        "server": _nullable("string"),
        "message": _STRING,
        "hint": _STRING,
        "line": _nullable("integer"),
    }
)
_VALUE_ORIGIN: Final = _object({"path": _STRING, "value": _ANY, "file": _STRING, "line": _nullable("integer")})
_NODE: Final = _object(
    {
        "id": _STRING,
        "address": _STRING,
        "version": _STRING,
        "capacity": _INTEGER,
        "labels": _STRINGS,
        "state": {"enum": ["ready", "draining", "silent"]},
        "draining": _BOOLEAN,
        "lease": _NUMBER,
        "seen": _NUMBER,
    }
)

SCHEMAS: Final[Mapping[str, Json]] = {
    "Error": _object(
        {
            "error": _object(
                {
                    "message": _STRING,
                    "detail?": _STRING,
                    "hint?": _STRING,
                    "code?": _STRING,
                    "paths?": _STRINGS,
                    "endpoints?": _STRINGS,
                }
            )
        }
    ),
    "Gateway": _object(
        {
            "started": _NUMBER,
            "connections": _INTEGER,
            "running": _INTEGER,
            "subscriptions": _INTEGER,
            "pending": _INTEGER,
            "draining": _BOOLEAN,
            "version": _STRING,
            "pid": _INTEGER,
            "paths": _STRINGS,
        }
    ),
    "Description": _ANY_OBJECT,
    "Reload": _object({"changed": {"type": "object"}, "problems?": _STRINGS, "published_to?": _STRING}),
    "Done": {**_ANY_OBJECT, "maxProperties": 1, "additionalProperties": _STRING},
    # servers
    "ServerStatus": _STATUS,
    "HealthList": _object({"servers": _array(_object_from(HealthResult))}),
    "ServerList": _object({"servers": _array(_ref("ServerStatus")), "needs_review": _array(_ENTRY_TO_REVIEW)}),
    "ServerEntry": {**_ANY_OBJECT, "description": "an entry of mcpServers, see docs/reference/config.md"},
    "ServerAdded": _object({"server": _STRING, "problems": _STRINGS}),
    "MinuteStats": _object(
        {
            "calls": _INTEGER,
            "errors": _INTEGER,
            "per_minute": _array(_INTEGER),
            "errors_per_minute": _array(_INTEGER),
            "p50": _nullable("number"),
            "p95": _nullable("number"),
            "p99": _nullable("number"),
        }
    ),
    "ServerRow": _object(
        {"minutes": _ref("MinuteStats"), "breaker": _STRING, "open_tools": _INTEGER, "limit": _INTEGER, **_LOAD},
        _STATUS,
    ),
    "Overview": _object(
        {
            "now": _NUMBER,
            "servers": _array(_ref("ServerRow")),
            "minutes": _ref("MinuteStats"),
            "calls": _INTEGER,
            "last_event": _INTEGER,
            "cluster?": _BOOLEAN,
        }
    ),
    "ServerDetail": _object(
        {
            "now": _NUMBER,
            "status": _ref("ServerStatus"),
            "info?": _object_from(ServerInfo),
            "timeline": _array(_object({"at": _NUMBER, "state": _STRING, "why": _STRING})),
            "minutes": _ref("MinuteStats"),
            "definition": _ANY_OBJECT,
            "origins": _array(_VALUE_ORIGIN),
            "breakers": _array(_ref("Breaker")),
            "events": _array(_ref("Event")),
            "load": _object(_LOAD),
        }
    ),
    "Breaker": _BREAKER,
    "BreakerList": _object({"breakers": _array(_ref("Breaker"))}),
    # calls, events, alerts
    "Call": _CALL,
    "CallList": _object({"calls": _array(_ref("Call")), "count": _INTEGER}),
    "CallDetail": _object({"attempt_details": _array(_ATTEMPT), "arguments": _ANY}, _CALL),
    "Replay": _object({"confirm?": _BOOLEAN}),
    "NewCall": _object({"server": _STRING, "tool": _STRING, "arguments?": _ANY_OBJECT, "timeout?": _NUMBER}),
    "CallResult": _object({"id": _STRING, "result": _ANY_OBJECT, "seconds": _NUMBER, "attempts": _INTEGER}),
    "Event": _EVENT,
    "EventList": _object({"events": _array(_ref("Event")), "last": _INTEGER}),
    "AlertList": _object({"alerts": _array(_object({"name": _STRING}, _object_from(Alert)))}),
    # tools and endpoints
    "ToolList": _object({"tools": _array(_TOOL)}),
    "ToolRows": _object({"tools": _array(_TOOL_ROW)}),
    "ToolDetail": _object({"raw": _ANY_OBJECT}, _TOOL_ROW),
    "EndpointList": _object(
        {"all": _object({"path": _STRING, "tools": _INTEGER}), "toolsets": _array(_TOOLSET), "servers": _STRINGS}
    ),
    # keys
    "KeyList": _object({"keys": _array(_KEY)}),
    "NewKey": _object(
        {
            "name": _STRING,
            "access?": _STRINGS,
            "admin?": _BOOLEAN,
            "rate?": _STRING,
            **{f"{name}?": each.schema for name, each in registry.key_attributes().items()},
            "search?": _BOOLEAN,
            "expires?": _NUMBER,
        }
    ),
    "KeyCreated": _object({"token": _STRING}, _KEY),
    # configuration, doctor, dashboard
    "Config": _object(
        {
            "file": _STRING,
            "text": _STRING,
            "versions": _array(
                _object({"version": _INTEGER, "until": _NUMBER, "bytes": _INTEGER, "changes?": _STRINGS})
            ),
            "problems": _array(_CONFIG_ISSUE),
        }
    ),
    "ConfigDiff": _object({"version": _INTEGER, "diff": _STRING}),
    "ConfigRollback": _object(
        {
            "version": _INTEGER,
            "changed": {"type": ["object", "array"]},
            "problems?": _STRINGS,
            "published_to?": _STRING,
        }
    ),
    "ServerSettings": _object(
        {
            "enabled?": _nullable("boolean"),
            "lazy?": _nullable("boolean"),
            **{key: {"type": ["string", "number", "null"]} for key in ("timeout?", "startTimeout?", "idleTimeout?")},
            "deniedTools?": {"type": ["array", "null"], "items": _STRING},
        }
    ),
    "ServerChanged": _object({"server": _STRING, **_WRITTEN}),
    "ServerWritten": _object({"server": _STRING, "needs_review?": _BOOLEAN, "hint?": _STRING, **_WRITTEN}),
    "ConfigTexts": _object({"before": _STRING, "after": _STRING}),
    "ConfigWritten": _object({"needs_review?": _BOOLEAN, "hint?": _STRING, **_WRITTEN}),
    "ToolsetSettings": _object({"tools?": _STRINGS, "search?": _BOOLEAN}),
    "ToolsetWritten": _object({"toolset": _STRING, **_WRITTEN}),
    "ServerRemoved": _object(
        {
            "removed": _STRING,
            "changed": {"type": ["object", "array"]},
            "problems?": _STRINGS,
            "published_to?": _STRING,
        }
    ),
    "DoctorRun": _object({"server?": _STRING}),
    "DoctorReport": _object({"state": _STRING, "first_line": _STRING, "subjects": _array(_ANY_OBJECT)}),
    "DashboardLink": _object({"path": _STRING}),
    # nodes
    "NodeList": _object(
        {
            "cluster": _STRING,
            "tenant": _STRING,
            "node": _STRING,
            "nats": _BOOLEAN,
            "nodes": _array(_object({"servers": _INTEGER}, _NODE)),
            "unowned": _INTEGER,
            "rejected": _STRINGS,
        }
    ),
    "NodeDetail": _object(
        {
            "owns": _array(_object({"tenant": _STRING, "server": _STRING, "instance": _INTEGER})),
            "more": _BOOLEAN,
        },
        _NODE,
    ),
}
