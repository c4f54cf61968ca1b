"""`/mcp` for modern clients (protocol 2026-07-28): every request is self-contained.

Headers are used for routing, but the body is authoritative. A request whose headers and body differ is rejected
before any call is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from toolway.gateway.mcp.context import ForwardedCall, Notify, RequestContext, get_meta
from toolway.gateway.mcp.dispatcher import RequestDispatcher
from toolway.gateway.mcp.errors import RpcFailure
from toolway.gateway.mcp.responses import SERVER_INFO, ResponseWriter, RpcResult
from toolway.gateway.mcp.subscriptions import SubscriptionService
from toolway.gateway.mcp.view import EndpointView
from toolway.gateway.principals import Principal
from toolway.http.exchange import EVENT_STREAM_TYPE, JSON_TYPE, Exchange, HttpRequest
from toolway.hub.servers import HubServers
from toolway.hub.taken_over import TakenOverCall
from toolway.protocol.constants import (
    CLIENT_CAPABILITIES_META_KEY,
    HANDSHAKE_PROTOCOL_VERSIONS,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    LATEST_HANDSHAKE_VERSION,
    LOG_LEVEL_META_KEY,
    MODERN_PROTOCOL_VERSIONS,
    NAME_BEARING_METHODS,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
    SUBSCRIPTION_ID_META_KEY,
)
from toolway.protocol.headers import check_request, decode_header_value
from toolway.protocol.jsonrpc import Message
from toolway.protocol.versions import LOG_LEVELS
from toolway.types import Json

# -- discovery: capabilities and instructions of an endpoint, merged from its servers ----------------------------------

DISCOVER_TTL_MS: Final = 60_000  # milliseconds
MAX_INSTRUCTIONS_CHARS: Final = 16 * 1024  # characters of all servers together
_LIST_CHANGED: Final = {"listChanged": True}
#: Capabilities of an endpoint with many servers; a server that connects later may need any of them.
_DEFAULT_CAPABILITIES: Final[Json] = {
    "tools": _LIST_CHANGED,
    "prompts": _LIST_CHANGED,
    "resources": {"subscribe": True, **_LIST_CHANGED},
    "completions": {},
    "logging": {},
}
#: The experimental tasks of 2025-11-25, which the tasks extension replaced.
_DROPPED_CAPABILITIES: Final = frozenset({"tasks"})


class Discovery:
    """Builds the results of `server/discover` (modern clients) and `initialize` (legacy clients)."""

    def __init__(self, servers: HubServers) -> None:
        self._servers = servers

    def discover(self, view: EndpointView) -> Json:
        """Return the result of `server/discover` for an endpoint view: capabilities and versions."""
        result: Json = {
            "resultType": "complete",
            "supportedVersions": list(MODERN_PROTOCOL_VERSIONS),
            "capabilities": self._capabilities(view),
            "ttlMs": DISCOVER_TTL_MS,
            "cacheScope": "private",
            "_meta": {SERVER_INFO_META_KEY: self._server_info(view)},
        }
        return self._with_instructions(result, view)

    def initialize(self, view: EndpointView, requested_version: object) -> Json:
        """Return the result of `initialize` for a legacy client that requests this protocol version.

        If the version is unknown, the newest legacy version is offered.
        """
        version = requested_version if requested_version in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION
        result: Json = {
            "protocolVersion": version,
            "capabilities": {k: v for k, v in self._capabilities(view).items() if k != "extensions"},
            "serverInfo": self._server_info(view),
        }
        return self._with_instructions(result, view)

    def _capabilities(self, view: EndpointView) -> Json:
        agreed = self._servers.negotiated(view.single_server) if view.single_server is not None else None
        if agreed is None:
            extensions = self._extensions(view)
            capabilities = {**_DEFAULT_CAPABILITIES, **({"extensions": extensions} if extensions else {})}
            meta_tools = view.meta_tools
            return {**capabilities, "experimental": meta_tools.capability} if meta_tools is not None else capabilities
        # Forward the server's own capabilities; the gateway itself detects list changes.
        return {
            k: {**v, **_DEFAULT_CAPABILITIES.get(k, {})} if isinstance(v, dict) else v
            for k, v in agreed.capabilities.items()
            if k not in _DROPPED_CAPABILITIES
        }

    def _extensions(self, view: EndpointView) -> Json:
        """Return all servers' protocol extensions, merged. If several servers declare one, the first wins."""
        found: Json = {}
        for server in view.servers():
            agreed = self._servers.negotiated(server)
            extensions = agreed.capabilities.get("extensions") if agreed is not None else None
            if isinstance(extensions, dict):
                found = {**extensions, **found}
        return found

    def _server_info(self, view: EndpointView) -> Json:
        agreed = self._servers.negotiated(view.single_server) if view.single_server is not None else None
        return view.sanitize(agreed.server_info) if agreed is not None and "name" in agreed.server_info else SERVER_INFO

    def _with_instructions(self, result: Json, view: EndpointView) -> Json:
        if view.meta_tools is not None:  # instructions of all servers would cost more than meta-tools avoid
            return {**result, "instructions": view.meta_tools.instructions(view.servers())[:MAX_INSTRUCTIONS_CHARS]}
        parts = []
        for server in view.servers():
            instructions = self._servers.instructions(server)
            if instructions:
                parts.append(instructions if view.single_server else f"## {server}\n{instructions}")
        text = view.sanitize("\n\n".join(parts))[:MAX_INSTRUCTIONS_CHARS]
        return {**result, "instructions": text} if text else result


# -- endpoint ----------------------------------------------------------------------------------------------------------

VERSION_HEADER: Final = "mcp-protocol-version"
_ROUTING_HEADERS: Final = frozenset({VERSION_HEADER, "mcp-method", "mcp-name"})
_TASK_METHODS: Final = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})
#: The parameter of each method that the header `mcp-name` repeats.
_NAME_PARAMS: Final = {**NAME_BEARING_METHODS, **dict.fromkeys(_TASK_METHODS, "taskId")}
MODERN_META_KEY: Final = PROTOCOL_VERSION_META_KEY


def is_modern(request: HttpRequest, message: Message) -> bool:
    """Return True if a request is from the modern era, judged by its version header or its `_meta`."""
    version = request.headers.get(VERSION_HEADER)
    if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
        return True
    meta = message.body.get("_meta") if isinstance(message.body, dict) and message.method else None
    return isinstance(meta, dict) and MODERN_META_KEY in meta and message.method != "initialize"


class ModernEndpoint:
    """MCP endpoint for modern clients (since 2026-07-28) and for calls forwarded by other nodes."""

    def __init__(
        self,
        dispatcher: RequestDispatcher,
        discovery: Discovery,
        subscriptions: SubscriptionService,
    ) -> None:
        self._dispatcher = dispatcher
        self._discovery = discovery
        self._subscriptions = subscriptions

    async def handle(
        self, exchange: Exchange, message: Message, principal: Principal, view: EndpointView, endpoint: str
    ) -> None:
        if message.kind == "notification":
            await self._dispatcher.notify(
                RequestContext(principal, view, endpoint, "modern"), message.method, message.body
            )
            exchange.reply(202)
            return
        response = ResponseWriter(exchange, message.id)
        try:
            if message.kind != "request":
                raise RpcFailure(INVALID_REQUEST, "modern clients must send requests, not responses", status=400)
            context = self._build_context(exchange.request, message, principal, view, endpoint, response.notify)
            context.set_ids(exchange)
            if message.method == "subscriptions/listen":
                await self._subscriptions.handle_listen(context, response, message.body)
            elif message.method == "server/discover":
                response.send_result(self._discovery.discover(context.view))
            else:
                response.send_result(await self._dispatcher.dispatch(context, message.method, message.body))
        except RpcFailure as failure:
            response.send_error(failure)
        finally:
            response.stop_keepalive()

    async def resume(self, exchange: Exchange, context: RequestContext, taken: TakenOverCall) -> None:
        """Await a tool call that was sent as a flight (flights.py), and answer its request."""
        response = ResponseWriter(exchange, context.request_id)
        try:
            result = await self._dispatcher.resume(context, taken)
            if context.on_result is not None:
                context.on_result(result)
            response.send_result(result)
        except RpcFailure as failure:
            response.send_error(failure)
        finally:
            response.stop_keepalive()

    async def handle_forwarded(
        self, principal: Principal, view: EndpointView, forwarded: ForwardedCall, message: Message, notify: Notify
    ) -> RpcResult:
        """Return the result of a request that another node forwards for a principal.

        Raises `RpcFailure` if the request fails.
        """
        meta = get_meta(message.body)
        version, capabilities = meta.get(PROTOCOL_VERSION_META_KEY), meta.get(CLIENT_CAPABILITIES_META_KEY)
        if version not in MODERN_PROTOCOL_VERSIONS or not isinstance(capabilities, dict):
            raise RpcFailure(INVALID_REQUEST, "a forwarded request must be of the modern era", {"executed": "no"})
        level = meta.get(LOG_LEVEL_META_KEY)
        context = RequestContext(
            principal,
            view,
            forwarded.endpoint,
            "modern",
            capabilities,
            notify,
            log_level=level if level in LOG_LEVELS else None,
            idempotency_key=forwarded.idempotency_key,
            request_id=message.id,
            version=version,
            forwarded=forwarded,
        )
        if message.method == "subscriptions/listen":
            assert message.id is not None
            await self._subscriptions.run_subscription(context, message.id, message.body, notify)
            return {"resultType": "complete", "_meta": {SUBSCRIPTION_ID_META_KEY: message.id}}
        if message.method == "server/discover":
            return self._discovery.discover(view)
        return await self._dispatcher.dispatch(context, message.method, message.body)

    def _build_context(
        self,
        request: HttpRequest,
        message: Message,
        principal: Principal,
        view: EndpointView,
        endpoint: str,
        notify: Notify,
    ) -> RequestContext:
        """Build the context of an MCP request from HTTP headers and body.

        Raises `RpcFailure` if headers and body differ or are invalid.
        """
        routing: RoutingHeaders | None = request.notes.routing
        if routing is None:
            routing = request.notes.routing = _read_routing_headers(request)
        meta = message.body.get("_meta")
        if not routing.matches(message.method, message.body, meta):
            _raise_mismatch(request, message)
        capabilities, level = meta[CLIENT_CAPABILITIES_META_KEY], meta.get(LOG_LEVEL_META_KEY)
        if not isinstance(capabilities, dict):
            raise RpcFailure(INVALID_PARAMS, "client capabilities must be an object")
        return RequestContext(
            principal,
            view,
            endpoint,
            "modern",
            capabilities,
            notify,
            None,
            level if level in LOG_LEVELS else None,
            routing.param_headers,
            routing.idempotency_key,
            False,
            message.id,
            routing.version or "",
        )


class RoutingHeaders(msgspec.Struct, frozen=True, gc=False):
    """MCP headers by which proxies can route a request: protocol version, method, and name.

    They repeat fields of the body.
    """

    version: str | None
    method: str | None
    name: str | None
    param_headers: dict[str, str]  # `mcp-param-*` headers, which repeat arguments
    idempotency_key: str | None

    def matches(self, method: str, params: Json, meta: Any) -> bool:
        """Return True if the routing headers agree with this request body.

        Also return False if the body lacks a required `_meta` key.
        """
        if not isinstance(meta, dict) or CLIENT_CAPABILITIES_META_KEY not in meta or self.method != method:
            return False
        if self.version != meta.get(PROTOCOL_VERSION_META_KEY) or self.version not in MODERN_PROTOCOL_VERSIONS:
            return False
        key = _NAME_PARAMS.get(method)
        return key is None or params.get(key) == self.name


def _read_routing_headers(request: HttpRequest) -> RoutingHeaders:
    """Read the MCP routing headers of a request.

    Raises `RpcFailure` if they are invalid regardless of the body, such as a repeated header.
    """
    headers = request.headers
    _check_accept(headers)
    param_headers = {k: v for k, v in headers.items() if k.startswith("mcp-param-")}
    repeated = request.repeated_headers & (_ROUTING_HEADERS | param_headers.keys())
    if repeated:
        raise RpcFailure(HEADER_MISMATCH, f"header {min(repeated)} is repeated")
    name = decode_header_value(headers.get("mcp-name"))
    return RoutingHeaders(
        headers.get(VERSION_HEADER), headers.get("mcp-method"), name, param_headers, headers.get("idempotency-key")
    )


def _raise_mismatch(request: HttpRequest, message: Message) -> None:
    """Raise `RpcFailure` if headers and body of the request differ."""
    headers = request.headers
    error = check_request(message.method, message.body, headers)
    if error is not None:
        raise RpcFailure(*error)
    if message.method in _TASK_METHODS and decode_header_value(headers.get("mcp-name")) != message.body.get("taskId"):
        raise RpcFailure(HEADER_MISMATCH, "the mcp-name header does not match the request's 'taskId'")


def _check_accept(headers: Mapping[str, str]) -> None:
    accept = headers.get("accept", "")
    if "*/*" not in accept and (JSON_TYPE not in accept or EVENT_STREAM_TYPE not in accept):
        raise RpcFailure(INVALID_REQUEST, f"Accept must list {JSON_TYPE} and {EVENT_STREAM_TYPE}", status=406)
