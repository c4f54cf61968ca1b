"""All `/admin` routes in one table: the JSON API of the command line and the dashboard.

The routes are only for administrators, because no other request from a client can start a process. GET returns plain
documents, and a change returns what it changed. `GET /admin/openapi.json` is generated from the table.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import unquote

import msgspec

from toolway._version import __version__
from toolway.errors import CallError, ConfigError, NotFound, ToolwayError
from toolway.events import AccessEvent, Event
from toolway.gateway.admin.activity import Mask
from toolway.gateway.admin.calls import CALL_QUERY, CallsAdmin
from toolway.gateway.admin.overview import EVENT_QUERY, PREVIEW_QUERY, OverviewAdmin, is_preview
from toolway.gateway.admin.servers import ServersAdmin, encode_for_display
from toolway.gateway.authenticator import json_error
from toolway.gateway.cluster_hooks import ClusterAdmin, ClusterHooks
from toolway.gateway.part_set import PartSet
from toolway.gateway.principals import ApiKeyStore, Principal, parse_key_rate, show_key
from toolway.gateway.rate_limit import Rate
from toolway.http.exchange import EVENT_STREAM_TYPE, JSON_TYPE, Exchange
from toolway.part_api import registry
from toolway.protocol import jsonrpc
from toolway.protocol.sanitize import remove_invisible
from toolway.types import Json

_NO_STORE_HEADERS: Final = (("content-type", JSON_TYPE), ("cache-control", "no-store"))


class AdminRequest(msgspec.Struct, frozen=True):
    """An `/admin` request that matched a route, with its path parameters, query and body."""

    params: dict[str, str]  # of the path, not decoded: every route has exactly one spelling
    query: str
    body: Json
    principal: Principal
    key_names: Callable[[], dict[str, str]]  # names of callers by their ids
    find_key: Callable[[str], str | None]  # returns the caller id of the only API key with a name

    def __getitem__(self, name: str) -> str:
        return self.params[name]

    def decoded(self, name: str) -> str:
        """Return the path parameter `name` with percent-encoding removed."""
        return unquote(self.params[name])


#: Gets the endpoint, or the runtime of the part that has the route.
Handler = Callable[[Any, AdminRequest], Json | Awaitable[Json]]


@dataclass(frozen=True)
class Route:
    """One `/admin` operation: method and path, description and handler.

    Every operation requires an administrator.
    """

    method: str
    path: str  # with parameters in braces: /admin/servers/{name}
    summary: str
    response: str  # name in the SCHEMAS of openapi.py
    handler: Handler
    query: Mapping[str, str] = field(default_factory=dict, kw_only=True)  # name → description, all optional
    body: str = field(default="", kw_only=True)  # name in SCHEMAS; empty if the request has no body
    cluster: Literal["any", "required", "rejected"] = field(default="any", kw_only=True)
    streams: bool = field(default=False, kw_only=True)  # replies with events if the client accepts text/event-stream

    @property
    def segments(self) -> list[str]:
        return self.path.split("/")[2:]


def _describe_routes() -> Json:
    from toolway.gateway.admin.openapi import build_description  # builds the schemas of all replies

    return build_description(all_routes())


ROUTES: Final[tuple[Route, ...]] = (
    # -- gateway ------------------------------------------------------------------------------------------------------
    Route("GET", "/admin", "Counters and version of the gateway", "Gateway", lambda a, r: a.get_gateway()),
    Route("GET", "/admin/openapi.json", "This description", "Description", lambda a, r: _describe_routes()),
    Route("POST", "/admin/reload", "Reload the configuration file", "Reload", lambda a, r: a.reload()),
    # -- servers ------------------------------------------------------------------------------------------------------
    Route("POST", "/admin/health", "Check all servers now", "HealthList", lambda a, r: a.servers.check_health()),
    Route("GET", "/admin/servers", "Status of all servers", "ServerList", lambda a, r: a.servers.list_status()),
    Route(
        "GET",
        "/admin/servers/{name}",
        "Status of one server",
        "ServerStatus",
        lambda a, r: a.servers.get_status(r["name"]),
    ),
    Route(
        "PUT",
        "/admin/servers/{name}",
        "Add or replace a server until the next reload",
        "ServerAdded",
        lambda a, r: a.servers.put(r["name"], r.body),
        body="ServerEntry",
        cluster="rejected",
    ),
    Route(
        "DELETE",
        "/admin/servers/{name}",
        "Remove a server until the next reload",
        "Done",
        lambda a, r: a.servers.remove(r["name"]),
        cluster="rejected",
    ),
    Route(
        "POST",
        "/admin/servers/{name}/restart",
        "Restart a server",
        "Done",
        lambda a, r: a.servers.restart(r["name"]),
    ),
    Route(
        "POST",
        "/admin/servers/{name}/enable",
        "Enable a server until the next reload",
        "Done",
        lambda a, r: a.servers.set_enabled(r["name"], "enable"),
        cluster="rejected",
    ),
    Route(
        "POST",
        "/admin/servers/{name}/disable",
        "Disable a server until the next reload",
        "Done",
        lambda a, r: a.servers.set_enabled(r["name"], "disable"),
        cluster="rejected",
    ),
    Route(
        "GET",
        "/admin/servers/{name}/detail",
        "Status, timeline, settings, breakers and events of one server",
        "ServerDetail",
        lambda a, r: a.servers.get_detail(r["name"]),
    ),
    Route("GET", "/admin/overview", "Servers with statistics", "Overview", lambda a, r: a.servers.get_overview()),
    Route("GET", "/admin/breakers", "Circuit breakers", "BreakerList", lambda a, r: a.servers.get_breakers()),
    Route(
        "POST",
        "/admin/breakers/{server}/trip",
        "Open the circuit breaker of a server",
        "Done",
        lambda a, r: a.servers.set_breaker(r["server"], "", "trip"),
    ),
    Route(
        "POST",
        "/admin/breakers/{server}/reset",
        "Close the circuit breaker of a server",
        "Done",
        lambda a, r: a.servers.set_breaker(r["server"], "", "reset"),
    ),
    Route(
        "POST",
        "/admin/breakers/{server}/{tool}/trip",
        "Open the circuit breaker of a tool",
        "Done",
        lambda a, r: a.servers.set_breaker(r["server"], r.decoded("tool"), "trip"),
    ),
    Route(
        "POST",
        "/admin/breakers/{server}/{tool}/reset",
        "Close the circuit breaker of a tool",
        "Done",
        lambda a, r: a.servers.set_breaker(r["server"], r.decoded("tool"), "reset"),
    ),
    # -- tools and endpoints ------------------------------------------------------------------------------------------
    Route("GET", "/admin/tools", "All tools as the servers list them", "ToolList", lambda a, r: a.overview.get_tools()),
    Route(
        "GET",
        "/admin/tools/{server}/{tool}",
        "One tool",
        "ToolDetail",
        lambda a, r: a.overview.get_tool(r["server"], r.decoded("tool")),
    ),
    Route(
        "GET", "/admin/tool-list", "All tools, shortened, with sizes", "ToolRows", lambda a, r: a.overview.list_tools()
    ),
    Route("GET", "/admin/toolsets", "MCP endpoints", "EndpointList", lambda a, r: a.overview.list_endpoints()),
    # -- calls --------------------------------------------------------------------------------------------------------
    Route(
        "GET",
        "/admin/calls",
        "Recent calls, newest first",
        "CallList",
        lambda a, r: a.calls.list_calls(r.query),
        query=CALL_QUERY,
    ),
    Route(
        "GET", "/admin/calls/{id}", "One call with its timings", "CallDetail", lambda a, r: a.calls.get_call(r["id"])
    ),
    Route(
        "POST",
        "/admin/calls/{id}/replay",
        "Repeat a call; one that may change something needs `confirm`",
        "CallResult",
        lambda a, r: a.calls.replay(r["id"], r.body, r.principal),
        body="Replay",
    ),
    Route(
        "POST",
        "/admin/call",
        "Call a tool",
        "CallResult",
        lambda a, r: a.calls.make_call(r.body, r.principal),
        body="NewCall",
    ),
    # -- events and alerts --------------------------------------------------------------------------------------------
    Route(
        "GET",
        "/admin/events",
        "Recent events, newest first; or a live stream",
        "EventList",
        lambda a, r: a.overview.list_events(r.query),
        query=EVENT_QUERY,
        streams=True,
    ),
    Route("GET", "/admin/alerts", "Open alerts", "AlertList", lambda a, r: a.overview.list_alerts()),
    Route(
        "DELETE",
        "/admin/alerts/{name}",
        "Resolve an alert",
        "Done",
        lambda a, r: a.overview.resolve_alert(r.decoded("name")),
    ),
    # -- API keys -----------------------------------------------------------------------------------------------------
    Route("GET", "/admin/keys", "API keys", "KeyList", lambda a, r: a.keys.list()),
    Route(
        "POST",
        "/admin/keys",
        "Create an API key",
        "KeyCreated",
        lambda a, r: a.keys.create(r.body, r.principal),
        body="NewKey",
    ),
    Route("DELETE", "/admin/keys/{id}", "Revoke an API key", "Done", lambda a, r: a.keys.revoke(r["id"])),
    # -- configuration, doctor, dashboard -----------------------------------------------------------------------------
    Route("GET", "/admin/config", "Configuration file and versions", "Config", lambda a, r: a.overview.get_config()),
    Route(
        "GET",
        "/admin/config/diff/{version}",
        "Diff that a rollback would apply",
        "ConfigDiff",
        lambda a, r: a.overview.get_config_diff(r["version"]),
    ),
    Route(
        "POST",
        "/admin/config/rollback/{version}",
        "Restore an earlier version of the file",
        "ConfigRollback",
        lambda a, r: a.overview.roll_back(r["version"]),
    ),
    Route(
        "POST",
        "/admin/config/servers/{name}",
        "Change settings of a server in the configuration file; null removes one",
        "ServerChanged",
        lambda a, r: a.overview.change_server(r["name"], r.body, r.query),
        body="ServerSettings",
        query=PREVIEW_QUERY,
    ),
    Route(
        "PUT",
        "/admin/config",
        "Apply the changes between two versions of the configuration file",
        "ConfigWritten",
        lambda a, r: a.servers.change_file(r.body, preview=is_preview(r.query)),
        body="ConfigTexts",
        query=PREVIEW_QUERY,
    ),
    Route(
        "PUT",
        "/admin/config/servers/{name}",
        "Add a server to the configuration file; one with a command or a secret then needs your review",
        "ServerWritten",
        lambda a, r: a.servers.add_to_file(r["name"], r.body, preview=is_preview(r.query)),
        body="ServerEntry",
        query=PREVIEW_QUERY,
    ),
    Route(
        "PUT",
        "/admin/config/toolsets/{name}",
        "Add or change a toolset in the configuration file",
        "ToolsetWritten",
        lambda a, r: a.overview.set_toolset(r.decoded("name"), r.body, r.query),
        body="ToolsetSettings",
        query=PREVIEW_QUERY,
    ),
    Route(
        "DELETE",
        "/admin/config/toolsets/{name}",
        "Remove a toolset from the configuration file; a rollback restores it",
        "ToolsetWritten",
        lambda a, r: a.overview.set_toolset(r.decoded("name"), None, r.query),
        query=PREVIEW_QUERY,
    ),
    Route(
        "DELETE",
        "/admin/config/servers/{name}",
        "Remove a server from the configuration file; a rollback restores it",
        "ServerRemoved",
        lambda a, r: a.overview.remove_server(r["name"]),
    ),
    Route(
        "POST",
        "/admin/doctor",
        "Examine all servers, or one",
        "DoctorReport",
        lambda a, r: a.overview.run_doctor(r.body),
        body="DoctorRun",
    ),
    Route(
        "POST",
        "/admin/dashboard-links",
        "Create a dashboard path with a one-time login code",
        "DashboardLink",
        lambda a, r: {"path": a.overview.dashboard_url(r.principal)},
    ),
    # -- nodes --------------------------------------------------------------------------------------------------------
    Route(
        "GET", "/admin/nodes", "Nodes of the cluster", "NodeList", lambda a, r: a.nodes.list_nodes(), cluster="required"
    ),
    Route(
        "GET",
        "/admin/nodes/{id}",
        "One node with its servers",
        "NodeDetail",
        lambda a, r: a.nodes.get_node(r.decoded("id")),
        cluster="required",
    ),
    Route(
        "POST",
        "/admin/nodes/{id}/drain",
        "Make a node release its servers",
        "Done",
        lambda a, r: a.nodes.drain_node(r.decoded("id")),
        cluster="required",
    ),
)


def all_routes() -> tuple[Route, ...]:
    """Return all routes: the core's routes, and the routes of all parts in use."""
    return (*ROUTES, *(route for part in registry.in_use() for route in part.routes()))


class RouteTable:
    """Routes by method and number of segments, each with the object its handler gets."""

    def __init__(self, routes: Iterable[tuple[Route, Any]]) -> None:
        self.paths: list[str] = []
        self._by_shape: dict[tuple[str, int], list[tuple[Route, Any]]] = {}
        self.add(routes)

    def add(self, routes: Iterable[tuple[Route, Any]]) -> None:
        for route, owner in routes:
            self.paths.append(f"{route.method} {route.path}")
            self._by_shape.setdefault((route.method, len(route.segments)), []).append((route, owner))

    def match(self, method: str, path: str) -> tuple[Route, dict[str, str], Any] | None:
        """Return the route for a method and path, with its path parameters and owner, or None if no route matches."""
        parts = path.split("/")[2:]
        for route, owner in self._by_shape.get((method, len(parts)), ()):
            params = {}
            for segment, part in zip(route.segments, parts, strict=True):
                if segment.startswith("{"):
                    params[segment[1:-1]] = part
                elif segment != part:
                    break
            else:
                return route, params, owner
        return None


class AdminHandlers(NamedTuple):
    """The objects that handle `/admin` requests, by subject. `keys` is None if authentication is off."""

    servers: ServersAdmin
    calls: CallsAdmin
    overview: OverviewAdmin
    keys: KeysAdmin | None


class AdminEndpoint:
    """Handles all `/admin` requests. `gateway_stats` returns counters for the gateway itself."""

    def __init__(
        self,
        handlers: AdminHandlers,
        mask: Mask,
        reload: Callable[[], Awaitable[Json]],
        gateway_stats: Callable[[], Json],
        cluster: ClusterHooks,
        parts: PartSet,
    ) -> None:
        self.servers, self.calls, self.overview, self._keys = handlers
        self.reload: Callable[[], Awaitable[Json]] = reload
        self._hub_mask = mask
        self._gateway_stats = gateway_stats
        self._cluster = cluster
        self._parts = parts
        self._table: RouteTable | None = None

    @property
    def table(self) -> RouteTable:
        """All routes. The routes of parts are loaded on the first request."""
        if self._table is None:
            self._table = RouteTable([(route, self) for route in ROUTES])
            self._table.add((route, runtime) for part, runtime in self._parts for route in part.routes())
        return self._table

    async def handle(self, exchange: Exchange, principal: Principal) -> None:
        if not principal.admin:
            exchange.reply(*json_error(403, "administrator access required", hint="use this machine's local token"))
            return
        request = exchange.request
        try:
            body = jsonrpc.decode_json(request.body) if request.body else {}
            if not isinstance(body, dict):
                raise ValueError("expected an object")
            found = self.table.match(request.method, request.path)
            if found is None:
                exchange.reply(*json_error(404, "unknown path", paths=self.table.paths))
                return
            route, params, owner = found
            if route.cluster == "rejected":
                self._reject_in_cluster()
            if route.streams and request.headers.get("accept") == EVENT_STREAM_TYPE:
                await self.overview.stream_events(exchange)
                return
            asked = AdminRequest(params, request.query, body, principal, self.calls.key_names, self.calls.find_key)
            result = route.handler(owner, asked)
            if inspect.isawaitable(result):
                result = await result
        except ValueError as exc:
            exchange.reply(*json_error(400, f"invalid request: {exc}"))
        except NotFound as exc:
            exchange.reply(*_error_reply(404, exc, self._mask))
        except ConfigError as exc:
            exchange.reply(*_error_reply(422, exc, self._mask))
        except OSError as exc:
            exchange.reply(*json_error(507, f"cannot store the API keys: {exc.strerror or exc}"))
        except CallError as exc:
            exchange.reply(*_error_reply(502, exc, self._mask))
        else:
            exchange.reply(200, encode_for_display(result), _NO_STORE_HEADERS)

    def _mask(self, text: str) -> str:
        return remove_invisible(self._hub_mask(text))

    def get_gateway(self) -> Json:
        facts = {
            "version": __version__,
            "pid": os.getpid(),
            "paths": self.table.paths,
        }
        return {**self._gateway_stats(), **facts, **self._parts.status()}

    @property
    def keys(self) -> KeysAdmin:
        """Handles `/admin/keys`. Raises `ConfigError` if authentication is off."""
        if self._keys is None:
            raise ConfigError("authentication is off", hint="start the gateway without --no-auth")
        return self._keys

    @property
    def nodes(self) -> ClusterAdmin:
        """Handles `/admin/nodes`. Raises `ConfigError` if cluster mode is off."""
        if self._cluster.admin is None:
            raise ConfigError(
                "cluster mode is off",
                detail="the gateway was started without --cluster",
                hint="start it as a node: toolway serve --cluster nats://HOST:4222 --database postgresql://…",
                code="E-CLUSTER-NONE",
            )
        return self._cluster.admin

    def _reject_in_cluster(self) -> None:
        """Raise `ConfigError` on a cluster node, where `/admin` cannot change servers.

        A server that was added to one node would be unknown to the rest of the cluster.
        """
        if self._cluster.admin is not None:
            raise ConfigError(
                "with a cluster or several workers, servers can only be changed in the config file",
                detail="a change through /admin would only affect this process",
                hint="edit the config file (in a cluster, on any node): all nodes apply it",
                code="E-CLUSTER-FILE",
            )


_KEY_FIELDS: Final = frozenset({"name", "access", "admin", "rate", "search", "expires"})


class KeysAdmin:
    """Handles `/admin/keys`: lists, creates, and revokes API keys."""

    def __init__(self, emit: Callable[[Event], None], api_keys: ApiKeyStore) -> None:
        self._emit = emit
        self._api_keys = api_keys

    def list(self) -> Json:
        return {"keys": [show_key(key) for key in self._api_keys.list_keys()]}

    async def create(self, body: Json, principal: Principal) -> Json:
        """Create an API key; return it with its token. Raises `ValueError` if a field is invalid or unknown.

        A misspelled restriction would have no effect, leaving the key with full access.
        """
        attributes = registry.key_attributes()
        fields = _KEY_FIELDS | attributes.keys()
        if unknown := sorted(body.keys() - fields):
            raise ValueError(f"unknown field {unknown[0][:50]!r}: the fields are {', '.join(sorted(fields))}")
        given = {name: body[name] for name in attributes if body.get(name) is not None}
        for name, value in given.items():
            attributes[name].read(value)  # a wrong value is an error of the request
        for flag in ("admin", "search"):
            if not isinstance(body.get(flag, False), bool):
                raise ValueError(f"{flag} must be true or false")
        token, key = await self._api_keys.create_key(
            _read_text(body, "name"),
            _read_access(body),
            body.get("admin") is True,
            time.time(),
            _read_rate(body),
            body.get("search") is True,
            _read_expiry(body),
            made_by=self._api_keys.user_of(principal.caller_id),
            **given,
        )
        self._emit(AccessEvent("", "key_created", principal_id=key.id))
        return {**show_key(key), "token": token}

    async def revoke(self, id_: str) -> Json:
        if not await self._api_keys.revoke_key(id_):
            raise NotFound(f"unknown API key {id_!r}", hint="list all keys: toolway keys ls")
        self._emit(AccessEvent("", "key_revoked", principal_id=id_))
        return {"revoked": id_}


def _read_text(body: Json, name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 100:
        raise ValueError(f"{name} must be a string of 1 to 100 characters")
    return value


def _read_access(body: Json) -> list[str] | None:
    value = body.get("access")
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError("access must be a list of names")
    return value


def _read_expiry(body: Json) -> float | None:
    value = body.get("expires")
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError("expires must be a time in seconds since 1970")
    return float(value) if value is not None else None


def _read_rate(body: Json) -> Rate | None:
    value = body.get("rate")
    return parse_key_rate(str(value) if value is not None else None)


def _error_reply(status: int, error: ToolwayError, mask: Mask) -> tuple[int, bytes, Any]:
    """Return an HTTP error response with secrets masked, because its strings may come from a server."""
    texts = {"detail": error.detail, "hint": error.hint, "code": error.code}
    return json_error(status, mask(error.message), **{name: mask(text) for name, text in texts.items()})
