"""Routing of HTTP requests to their handlers, by path and era, after authentication.

A path is compared exactly as sent: nothing is decoded, case-folded or trimmed, so every route has one spelling.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
import time
from collections.abc import Awaitable
from dataclasses import replace
from typing import Final, NamedTuple

import msgspec

from toolway._worker_thread import dead_workers
from toolway.catalog.catalog import Item
from toolway.errors import Certainty
from toolway.gateway.admin.dashboard import (
    PAGE_KEY_HEADER,
    SESSION_PATH,
    BrowserSessions,
    DashboardEndpoint,
    is_dashboard_path,
    session_digest,
)
from toolway.gateway.admin.metrics import MetricsEndpoint
from toolway.gateway.admin.routes import AdminEndpoint
from toolway.gateway.admin.servers import encode_for_display
from toolway.gateway.authenticator import (
    Authenticator,
    DenialLog,
    RequestDenied,
    VerificationPending,
    cors_headers,
    json_error,
    preflight_headers,
)
from toolway.gateway.caller_paths import CallerEndpoint, CallerPaths
from toolway.gateway.cluster_hooks import ClusterHooks
from toolway.gateway.gateway_options import LiveSettings
from toolway.gateway.logins import LoginEndpoint
from toolway.gateway.mcp.context import client_request_id
from toolway.gateway.mcp.errors import DENIED, OVERLOADED, QUOTA, SHUTTING_DOWN, RpcFailure
from toolway.gateway.mcp.legacy_http import LegacyHttpEndpoint
from toolway.gateway.mcp.legacy_sse import MESSAGES_PATH, LegacySseEndpoint
from toolway.gateway.mcp.modern import ModernEndpoint, is_modern
from toolway.gateway.mcp.responses import encode_error
from toolway.gateway.mcp.view import EndpointView
from toolway.gateway.meta_tools import MetaTools
from toolway.gateway.permissions import Permissions, PrincipalAccess
from toolway.gateway.principals import (
    ACCESS_PREFIX,
    LOCAL_ADMIN,
    SEARCH_ENDPOINT,
    USER_PREFIX,
    Principal,
    is_valid_access,
)
from toolway.gateway.tool_filter import (
    ALL_TOOLS,
    NO_TOOLS,
    SEARCH_ALL_TOOLS,
    ToolFilter,
    filter_for_access,
    filter_for_server,
)
from toolway.http.exchange import JSON_HEADERS, JSON_TYPE, Exchange, HttpRequest
from toolway.http.limits import STRANGERS
from toolway.http.server_connection import Rejection
from toolway.hub.core import HubCore
from toolway.protocol import jsonrpc
from toolway.protocol.constants import INVALID_REQUEST, PARSE_ERROR
from toolway.types import Json, ToolRef
from toolway.upstream.transports.pending_requests import parse_large

LISTEN_METHOD: Final = "subscriptions/listen"  # a modern client keeps this request open for notifications
WHO_PATH: Final = "/who"  # every principal may ask who it is
NODE_PATH: Final = "/node"  # other nodes of a cluster post their sealed requests here
NODE_LINK_PATH: Final = "/node/link"  # other nodes turn a connection into a link here; the link authenticates them
NODE_LINK_PROTOCOL: Final = "toolway-link"
NODE_PROOF_PATH: Final = "/node/proof"  # works without a token: the challenge in the query is sealed
MAX_REQUESTS_PER_PRINCIPAL: Final = 4096  # concurrent requests of one principal
MAX_LIGHT_BYTES: Final = jsonrpc.LARGE_BYTES  # a message of at most this size is cheap to parse
MAX_VIEWS: Final = 1000  # the access of API keys varies without bound; beyond this all views are rebuilt on demand
NOT_EXECUTED: Final[Json] = {  # error data
    "executed": "no",
    "certainty": Certainty.NOT_SENT.code,
    "retryable": True,
    "retryAfterMs": 1000,
    "attempts": 0,
}
_ALL_SERVERS: Final = (ALL_TOOLS, None)
_UNRESTRICTED: Final = Principal("", "", "")
_HEALTH_PATHS: Final = frozenset({"/healthz", "/readyz"})
_PUBLIC_PATHS: Final = _HEALTH_PATHS | {NODE_PROOF_PATH}  # work without a token
_METADATA_HEADERS: Final = (("content-type", JSON_TYPE), ("cache-control", "max-age=300"))
_PROOF_HEADERS: Final = (("content-type", "text/plain"), ("cache-control", "no-store"))
_SERVER_PATH: Final = re.compile(r"/mcp/server/([a-z0-9-]{1,64})")
_TOOLSET_PATH: Final = re.compile(r"/mcp/([a-z0-9-]{1,64})")


class AuthenticatedRequest(msgspec.Struct, frozen=True, gc=False):
    """Result of authenticating a request by its HTTP head (request line and headers).

    It is reused for later requests with the same head.
    """

    auth_version: int  # `Authenticator.version` at the time of the check
    principal: Principal
    response_headers: tuple[tuple[str, str], ...]  # headers added to every response
    endpoint: str | None  # MCP endpoint; None for other paths
    expires_at: float | None = None  # seconds since 1970 at which the token expires; None: it does not


class Endpoints(NamedTuple):
    """The handlers for a gateway's paths. `metrics` is None if no metrics are exported."""

    modern: ModernEndpoint
    legacy: LegacyHttpEndpoint
    sse: LegacySseEndpoint
    admin: AdminEndpoint
    dashboard: DashboardEndpoint
    metrics: MetricsEndpoint | None


class Router:
    """The entry point for all of a gateway's HTTP requests. It authenticates them and selects the handler.

    `permissions` are decided by a part, and `meta_tools` are provided by a part. Parts answer at `caller_paths`.
    """

    def __init__(
        self,
        hub: HubCore,
        authenticator: Authenticator,
        endpoints: Endpoints,
        browser_sessions: BrowserSessions,
        settings: LiveSettings,
        cluster: ClusterHooks,
        permissions: Permissions | None = None,
        meta_tools: MetaTools | None = None,
        caller_paths: CallerPaths | None = None,
    ) -> None:
        self._servers = hub.servers.entries
        self._lists = hub.lists
        self._catalog = hub.lists.catalog
        self._authenticator = authenticator
        self._modern, self._legacy, self._sse, self._admin, self._dashboard, self._metrics = endpoints
        self._browser_sessions = browser_sessions
        self._toolsets = settings.toolsets
        self._cluster = cluster
        self._invisible_characters = settings.invisible_characters
        self._credentials = authenticator.credentials
        self._permissions = permissions if permissions is not None else Permissions()
        self._meta_tools = meta_tools
        self._caller_paths = caller_paths if caller_paths is not None else CallerPaths()
        self._logins = LoginEndpoint(hub.servers, self._can_see)
        self._denial_log = DenialLog(hub.emit)
        #: by endpoint, access, search setting, permission of a principal, and the caller, if it has its own lists;
        #: with the filter of the endpoint
        self._views: dict[
            tuple[str, tuple[str, ...] | None, bool, PrincipalAccess | None, str], tuple[ToolFilter, EndpointView]
        ] = {}
        self._active_requests: dict[str, set[Exchange]] = {}  # by principal
        self._id_prefix = secrets.token_hex(4)  # of generated request ids
        self._request_numbers = itertools.count(1)
        self.views_version = 0  # grows when the views of all endpoints are refreshed
        self.ready = True  # reported to load balancers by /readyz
        self.rejects_new_requests = False  # True during shutdown: new requests are rejected

    async def handle(self, exchange: Exchange) -> None:
        """Authenticate and answer one request, within the concurrency limit of its principal."""
        request = exchange.request
        exchange.request_id = self._request_id(request)
        try:
            try:
                authenticated = self.authenticate(request)
            except VerificationPending as pending:
                await asyncio.wait([pending.task])
                authenticated = self.authenticate(request)
            if authenticated is None and self._is_exchange(request):
                await self._handle_exchange(exchange)
                return
            if authenticated is None:
                if request.path != SESSION_PATH or not await self._cluster.forward_admin(exchange):
                    self._handle_public(exchange)
                return
        except RequestDenied as denied:
            exchange.reply(*self._log_denied(request, denied))
            return
        exchange.extra_headers = authenticated.response_headers
        exchange.mark_authenticated()
        principal, endpoint = authenticated.principal, authenticated.endpoint
        is_overloaded = not self.add_active(principal, exchange)
        served = self._caller_paths.find(exchange.request.path) if endpoint is None else None
        if is_overloaded and not principal.is_node:
            self._reject(exchange, 429, QUOTA, "too many concurrent requests for this caller", served=served)
            return
        ending: asyncio.TimerHandle | None = None
        try:
            if principal.is_node:
                await self._handle_node(exchange, is_overloaded=is_overloaded)
            elif endpoint is not None and exchange.request.method == "POST":
                if len(exchange.request.body) <= MAX_LIGHT_BYTES:
                    message = self._parse_message(exchange)
                else:
                    message = await self._parse_large_message(exchange)
                if message is not None and message.method == LISTEN_METHOD:
                    ending = _abort_at(exchange, authenticated.expires_at)
                handling = self._route_mcp(exchange, message, principal, endpoint) if message is not None else None
                if handling is not None:
                    await handling
            elif served is not None and self.rejects_new_requests:
                self._reject_shutting_down(exchange, served=served)
            elif served is not None:
                await self._caller_paths.handle(served, exchange, principal)
            else:
                ending = _abort_at(exchange, authenticated.expires_at)
                await self._route_other(exchange, principal, endpoint)
        finally:
            if ending is not None:
                ending.cancel()
            self.remove_active(principal, exchange)

    # -- active requests ----------------------------------------------------------------------------------------------

    def add_active(self, principal: Principal, exchange: Exchange) -> bool:
        """Record that a request of a principal is being handled, so it can be counted and aborted.

        Return False if the principal has too many concurrent requests. The request is then not recorded unless the
        principal is a node.
        """
        active = self._active_requests.get(principal.id)
        if active is None:
            active = self._active_requests[principal.id] = set()
        is_overloaded = len(active) >= MAX_REQUESTS_PER_PRINCIPAL
        if not is_overloaded or principal.is_node:
            active.add(exchange)
        return not is_overloaded

    def remove_active(self, principal: Principal, exchange: Exchange) -> None:
        """Remove a request that was passed to `add_active`, because it has been handled."""
        active = self._active_requests.get(principal.id)
        if active is not None:
            active.discard(exchange)
            if not active:
                del self._active_requests[principal.id]

    def new_request_id(self) -> str:
        """Return a request id for a client that sent none. It is alphanumeric and unique."""
        return f"{self._id_prefix}{next(self._request_numbers):x}"

    # -- authentication -----------------------------------------------------------------------------------------------

    def authenticate(self, request: HttpRequest) -> AuthenticatedRequest | None:
        """Authenticate a request by its HTTP head; return None if it is public (no principal).

        Raises `RequestDenied` if the host, origin, token, or session is not accepted. The result for a token is
        cached for equal heads until the token expires, or until keys or hosts change. A browser session is checked
        each time.
        """
        authenticated: AuthenticatedRequest | None = request.notes.authenticated
        version = self._authenticator.version
        if (
            authenticated is not None
            and authenticated.auth_version == version
            and (authenticated.expires_at is None or time.time() < authenticated.expires_at)
        ):
            return authenticated
        self._authenticator.check_host_and_origin(request)
        if _is_public(request) or self._find_document(request) is not None or self._is_exchange(request):
            return None
        headers = tuple(cors_headers(request))
        if "cookie" in request.headers and "authorization" not in request.headers and _is_admin_path(request.path):
            browser_principal = self._browser_sessions.authenticate(request)
            if browser_principal is not None and (
                browser_principal.id != LOCAL_ADMIN.id or self._authenticator.allows_local_token(request)
            ):
                return AuthenticatedRequest(version, browser_principal, headers, None)
        try:
            principal, expires_at, depends_on_peer = self._authenticator.authenticate_token(request)
        except RequestDenied as denied:
            denied.headers = (*denied.headers, *headers)
            raise
        authenticated = AuthenticatedRequest(version, principal, headers, _endpoint_for(request.path), expires_at)
        if not depends_on_peer:  # the notes are shared with other clients that send the same head
            request.notes.authenticated = authenticated
        return authenticated

    def authenticate_head(self, request: HttpRequest) -> Rejection | str:
        """Authenticate a request by its HTTP head, before its body is read.

        Return the principal's id, or the rejection to send, because the body of a denied request is never read. There
        is one exception: while a token's key is being fetched, a small body is read anyway, and `handle` then
        authenticates the request again.
        """
        known: AuthenticatedRequest | None = request.notes.authenticated
        if (
            known is not None
            and known.auth_version == self._authenticator.version
            and (known.expires_at is None or time.time() < known.expires_at)
        ):
            return known.principal.id
        try:
            authenticated = self.authenticate(request)
            if authenticated is None:
                if self._is_exchange(request) and _has_small_body(request):
                    return STRANGERS  # it has no principal: its body has the secret of a client
                raise RequestDenied(413, "request body not allowed", headers=cors_headers(request))
        except RequestDenied as denied:
            if isinstance(denied, VerificationPending) and _has_small_body(request):
                return STRANGERS
            status, body, headers = self._log_denied(request, denied)
            return status, body, (*headers, ("x-request-id", self._request_id(request)))
        return authenticated.principal.id

    def _request_id(self, request: HttpRequest) -> str:
        """Return a request's `X-Request-ID`, or a new one."""
        return client_request_id(request) or self.new_request_id()

    def _log_denied(self, request: HttpRequest, denied: RequestDenied) -> Rejection:
        self._denial_log.add(denied.status, request.path)
        return denied.status, denied.body, denied.headers

    async def _handle_node(self, exchange: Exchange, *, is_overloaded: bool) -> None:
        """Let the cluster answer another node's request.

        If the request is rejected, the error is encrypted for that node.
        """
        refusal = self.refuse_node_request(is_overloaded=is_overloaded)
        await self._cluster.handle_node_exchange(exchange, refusal)

    def refuse_node_request(self, *, is_overloaded: bool) -> RpcFailure | None:
        """Return the error if other nodes' requests must be rejected now, or None if they may run."""
        if self.rejects_new_requests:
            return RpcFailure(SHUTTING_DOWN, "the gateway is shutting down", {**NOT_EXECUTED})
        if is_overloaded:
            return RpcFailure(OVERLOADED, "too many concurrent requests of this node", {**NOT_EXECUTED})
        return None

    def accept_upgrade(self, request: HttpRequest) -> asyncio.Protocol | None:
        """Return the protocol of a link (a connection for many calls) if another node requests one.

        Return None to decline the upgrade and answer the request as HTTP.
        """
        links = self._cluster.links
        if links is None or request.path != NODE_LINK_PATH or request.method != "GET" or request.body:
            return None
        if request.headers.get("upgrade") != NODE_LINK_PROTOCOL or self.rejects_new_requests:
            return None
        try:
            self._authenticator.check_host_and_origin(request)
        except RequestDenied:
            return None
        return links.accept()

    def _handle_public(self, exchange: Exchange) -> None:
        """Answer a request that works without a principal: CORS preflight, health check or dashboard page.

        Raises `RequestDenied` if a login at the dashboard fails.
        """
        request = exchange.request
        if _is_preflight(request):
            exchange.reply(204, b"", preflight_headers(request))
            return
        exchange.extra_headers = cors_headers(request)
        if request.path in _HEALTH_PATHS:
            self._reply_health(exchange)
        elif (document := self._find_document(request)) is not None:
            exchange.reply(200, document, _METADATA_HEADERS)
        elif request.path == NODE_PROOF_PATH:
            proof = self._cluster.prove_node(request.query)
            if proof is None:
                raise RequestDenied(403, "not the node that is asked for")
            exchange.reply(200, proof.encode(), _PROOF_HEADERS)
        else:
            self._dashboard.handle(exchange)

    def _find_document(self, request: HttpRequest) -> bytes | None:
        """Return the credential verifier's public document for this request, or None."""
        verifier = self._credentials.verifier
        return verifier.document(request) if verifier is not None else None

    def _is_exchange(self, request: HttpRequest) -> bool:
        """Return True if a request exchanges a credential for one that the gateway accepts."""
        verifier = self._credentials.verifier
        return verifier is not None and verifier.is_exchange(request)

    async def _handle_exchange(self, exchange: Exchange) -> None:
        """Answer a request that exchanges a credential for one that the gateway accepts.

        Raises `RequestDenied` if that credential cannot be verified.
        """
        request, verifier = exchange.request, self._credentials.verifier
        assert verifier is not None
        exchange.extra_headers = cors_headers(request)
        try:
            status, body, headers = verifier.exchange(request)
        except VerificationPending as pending:
            await asyncio.wait([pending.task])
            status, body, headers = verifier.exchange(request)
        if status == 401:
            self._denial_log.add(status, request.path)
        exchange.reply(status, body, headers)

    def disconnect(self, principal_id: str) -> None:
        """Abort all active requests of a revoked API key and log its principal out of all servers.

        This is also used for a user whose logins were ended.
        """
        for exchange in list(self._active_requests.get(principal_id, ())):
            exchange.abort()
        is_user = principal_id.startswith(USER_PREFIX)
        self._logins.log_out_everywhere(principal_id if is_user else f"key:{principal_id}")

    def end_browser_session(self, digest: str) -> None:
        """Abort all active requests of a dashboard session, such as its stream of events."""
        for exchanges in list(self._active_requests.values()):
            for exchange in [each for each in exchanges if PAGE_KEY_HEADER in each.request.headers]:
                if session_digest(exchange.request) == digest:
                    exchange.abort()

    def _reply_health(self, exchange: Exchange) -> None:
        is_ready = self.ready and not self._cluster.is_draining() and not dead_workers()
        healthy = exchange.request.path == "/healthz" or is_ready
        exchange.reply(200 if healthy else 503, b'{"ok":true}' if healthy else b'{"ok":false}', JSON_HEADERS)

    async def _route_other(self, exchange: Exchange, principal: Principal, endpoint: str | None) -> None:
        path = exchange.request.path
        if endpoint is None and (_is_admin_path(path) or path == "/metrics" or path.startswith("/login/")):
            if await self._cluster.forward_admin(exchange):
                return
            await self._cluster.collect_reports()
        if self.rejects_new_requests and exchange.request.method == "GET" and (endpoint is not None or path == "/sse"):
            self._reject_shutting_down(exchange)
        elif endpoint is not None:
            await self._route_session(exchange, principal, endpoint)
        elif path == "/sse" and exchange.request.method == "GET":
            view = self.view_for(principal, "")
            assert view is not None
            await self._sse.serve_stream(exchange, principal, view)
        elif path == MESSAGES_PATH and exchange.request.method == "POST":
            message = await self._parse_large_message(exchange)
            if message is not None and self.rejects_new_requests and message.kind == "request":
                self._reject_shutting_down(exchange, message.id)
            elif message is not None:
                everything = self.view_for(principal, "")
                assert everything is not None
                await self._sse.handle_post(exchange, message, principal, everything)
        elif _is_admin_path(path):
            await self._admin.handle(exchange, principal)
        elif path == WHO_PATH and exchange.request.method == "GET":
            authenticated: AuthenticatedRequest | None = exchange.request.notes.authenticated
            expires_at = authenticated.expires_at if authenticated is not None else None
            found = self._credentials.describe(principal, expires_at)
            exchange.reply(200, encode_for_display(found), (*JSON_HEADERS, ("cache-control", "no-store")))
        elif path.startswith("/login/"):
            await self._logins.handle(exchange, principal)
        elif path == "/metrics" and self._metrics is not None:
            await self._metrics.handle(exchange, principal)
        else:
            exchange.reply(*json_error(404, "unknown path", endpoints=["/mcp", "/sse", "/admin", "/dashboard"]))

    # -- MCP ----------------------------------------------------------------------------------------------------------

    def _route_mcp(
        self, exchange: Exchange, message: jsonrpc.Message, principal: Principal, endpoint: str
    ) -> Awaitable[None] | None:
        """Return an awaitable that answers an MCP message, or None if it was rejected and the reply has been sent."""
        view = self.view_for(principal, endpoint)
        if view is None:
            exchange.reply(*json_error(404, "unknown endpoint"))
        elif self.rejects_new_requests and message.kind == "request":
            self._reject_shutting_down(exchange, message.id)
        elif message.method == "tools/call" and self._needs_scopes(principal):
            return self._call_with_scopes(exchange, message, principal, view, endpoint)
        else:
            return self._handle_message(exchange, message, principal, view, endpoint)
        return None

    def _handle_message(
        self, exchange: Exchange, message: jsonrpc.Message, principal: Principal, view: EndpointView, endpoint: str
    ) -> Awaitable[None]:
        if is_modern(exchange.request, message):
            return self._modern.handle(exchange, message, principal, view, endpoint)
        return self._legacy.handle_post(exchange, message, principal, view, endpoint)

    def _needs_scopes(self, principal: Principal) -> bool:
        """Return True if this principal's token may lack OAuth scopes that some tools need."""
        verifier = self._credentials.verifier
        return verifier is not None and principal.is_user and verifier.has_tool_scopes

    async def _call_with_scopes(
        self, exchange: Exchange, message: jsonrpc.Message, principal: Principal, view: EndpointView, endpoint: str
    ) -> None:
        """Answer a user's call if the token's OAuth scopes suffice for the tool.

        The view is prepared first, because otherwise the first call after a change would be rejected with a different
        error.
        """
        await view.prepare()
        if not self._reject_missing_scope(exchange, message, principal, view):
            await self._handle_message(exchange, message, principal, view, endpoint)

    def _reject_missing_scope(
        self, exchange: Exchange, message: jsonrpc.Message, principal: Principal, view: EndpointView
    ) -> bool:
        """Reply 403 and return True if a user's token lacks a scope for the tool of a call.

        The challenge makes a client log in again with this scope (step-up). The dispatcher checks scopes too, for
        tools that are called in other ways and for tools on servers that are still starting.
        """
        verifier = self._credentials.verifier
        if verifier is None or not isinstance(message.body, dict):
            return False
        tool = _find_called_tool(view, message.body)
        missing = self.missing_scopes(principal, f"{tool.server}.{tool.name}") if tool is not None else ()
        if not missing:
            return False
        denied = verifier.deny_scope(principal.granted, missing)
        body = encode_error(message.id, DENIED, f"the token lacks the scope {' '.join(missing)}", {"executed": "no"})
        exchange.reply(403, body, (*JSON_HEADERS, *(each for each in denied.headers if each[0] != "content-type")))
        return True

    def missing_scopes(self, principal: Principal, tool: str) -> tuple[str, ...]:
        """Return the OAuth scopes that a principal's token lacks for calling a tool, named `server.tool`."""
        return self._credentials.missing_scopes(principal, tool)

    async def _route_session(self, exchange: Exchange, principal: Principal, endpoint: str) -> None:
        """Handle GET and DELETE on an MCP endpoint, which only legacy clients send.

        Legacy means before protocol version 2026-07-28.
        """
        method, view = exchange.request.method, self.view_for(principal, endpoint)
        if view is None:
            exchange.reply(*json_error(404, "unknown endpoint"))
        elif method == "GET" and _has_session_id(exchange):
            await self._legacy.handle_get(exchange, principal, view, endpoint)
        elif method == "DELETE" and _has_session_id(exchange):
            await self._legacy.handle_delete(exchange, principal, view, endpoint)
        else:
            status, body, fields = json_error(405, "method not allowed: use POST, or GET and DELETE within a session")
            exchange.reply(status, body, (*fields, ("allow", "POST")))

    def _parse_message(self, exchange: Exchange) -> jsonrpc.Message | None:
        """Parse the JSON-RPC message of a POST. If it is invalid, send an error and return None."""
        try:
            return jsonrpc.parse_message(exchange.request.body) if _check_content_type(exchange) else None
        except jsonrpc.InvalidMessage as bad:
            _reject_message(exchange, bad)
            return None

    async def _parse_large_message(self, exchange: Exchange) -> jsonrpc.Message | None:
        """Parse a JSON-RPC message of any size, off the event loop if it is large.

        If the message is invalid, send an error and return None.
        """
        body = exchange.request.body
        if not jsonrpc.is_large(body):
            return self._parse_message(exchange)
        try:
            return await parse_large(body, "") if _check_content_type(exchange) else None
        except jsonrpc.InvalidMessage as bad:
            _reject_message(exchange, bad)
            return None

    def _reject_shutting_down(
        self, exchange: Exchange, id_: jsonrpc.MessageId | None = None, *, served: CallerEndpoint | None = None
    ) -> None:
        """Reply 503 to a new request during shutdown.

        Cancellations and client responses are still accepted, so this is not used for them.
        """
        self._reject(exchange, 503, SHUTTING_DOWN, "the gateway is shutting down", id_, served=served)

    def _reject(
        self,
        exchange: Exchange,
        status: int,
        code: int,
        message: str,
        id_: jsonrpc.MessageId | None = None,
        *,
        served: CallerEndpoint | None = None,
    ) -> None:
        """Reply that the request did not run and may be retried after a second, as JSON-RPC or as a part does."""
        if served is not None:
            exchange.reply(*served.reject(RpcFailure(code, message, {**NOT_EXECUTED}, status=status)))
            return
        exchange.reply(status, encode_error(id_, code, message, NOT_EXECUTED), (*JSON_HEADERS, ("retry-after", "1")))

    # -- views --------------------------------------------------------------------------------------------------------

    def view_for(self, principal: Principal, endpoint: str) -> EndpointView | None:
        """Return the view of an endpoint for a principal: the tools and other items it may see.

        Return None if the endpoint does not exist or the principal may not use it.
        """
        tool_filter, single_server = self._filter_for(endpoint)
        if tool_filter is None:
            return None
        if not principal.can_access(endpoint) and not (
            principal.is_user and single_server is not None and self._can_see(principal, single_server)
        ):
            return None
        permission = self._permission_for(principal)
        if single_server is not None and permission is not None and not permission.may_include(single_server):
            return None  # as if there was no such server
        own_lists = self._lists.own_lists(principal.caller_id)
        own_caller = principal.caller_id if own_lists is not None else ""
        key = (endpoint, principal.access, principal.search and single_server is None, permission, own_caller)
        cached = self._views.get(key)
        if cached is None or (cached[0] is not tool_filter and cached[0] != tool_filter):
            if len(self._views) >= MAX_VIEWS:
                self._views = {}
            permitted = self._permitted_tools(principal.access)
            cached = (
                tool_filter,
                EndpointView(
                    self._catalog,
                    lambda: self._servers,
                    replace(tool_filter, search=True) if key[2] else tool_filter,
                    permitted,
                    single_server,
                    self._invisible_characters,
                    permission,
                    own_lists,
                    self._meta_tools,
                ),
            )
            self._views[key] = cached
        return cached[1]

    def may_call(self, principal: Principal, tool: str, arguments: Json | None = None) -> bool:
        """Return True if access and policy let a principal call `server.tool` with these arguments."""
        if self.missing_scopes(principal, tool):
            return False
        permission = self._permission_for(principal)
        if principal.access is None and permission is None:
            return True
        ref = self._find_permitted(principal, tool)
        if ref is None:
            return False
        return permission is None or self.allows(principal, ref, arguments if arguments is not None else {})

    def may_see(self, principal: Principal, tool: str) -> bool:
        """Return True if access and policy let a principal see `server.tool` on any endpoint."""
        permission = self._permission_for(principal)
        if principal.access is None and permission is None:
            return True
        ref = self._find_permitted(principal, tool)
        if ref is None or permission is None:
            return ref is not None
        item = self._catalog.tool(ref)
        return item is not None and permission.shows("tools", item)

    def _find_permitted(self, principal: Principal, tool: str) -> ToolRef | None:
        """Return the tool with this name if a principal's access permits it on any endpoint, or else None."""
        ref = self._catalog.parse_name(tool)
        if ref is None or (principal.access is not None and str(ref) not in self._permitted_tools(principal.access)):
            return None
        return ref

    def allows(self, principal: Principal, ref: ToolRef, arguments: Json) -> bool:
        """Return True if the gateway's policy permits a tool call. Denied calls go to the audit log."""
        permission = self._permission_for(principal)
        tool = self._catalog.tool(ref)
        if permission is None or (tool is not None and permission.allows_call(tool, arguments)):
            return True
        if tool is not None:
            permission.report_call(principal, tool, arguments)
        return False

    def denial_hint(self, principal: Principal, name: str) -> str:
        """Return the hint for a principal whose call to the tool `name` is denied."""
        permission = self._permission_for(principal)
        return permission.denial_hint(principal, name) if permission is not None else ""

    def _permission_for(self, principal: Principal) -> PrincipalAccess | None:
        """Return a part's decisions about a principal, or None if no part decides.

        Also return None for calls that another node forwards, because that node has already decided.
        """
        return self._permissions.access_for(principal) if principal is not _UNRESTRICTED else None

    def close_views(self) -> None:
        """Make all views empty, because the policy changed. Clients get new views."""
        self.views_version += 1
        views, self._views = self._views, {}
        for _, view in views.values():
            view.close()

    def server_view(self, endpoint: str) -> EndpointView | None:
        """Return the unfiltered view of a server (`server/name`), for calls from another node.

        That node has already checked the permissions of its caller. Return None for other endpoints.
        """
        return self.view_for(_UNRESTRICTED, endpoint) if endpoint.startswith("server/") else None

    def refresh_views(self) -> None:
        """Apply changed toolsets to all cached views, including those that clients are using."""
        self.views_version += 1
        for key, (_, view) in list(self._views.items()):
            endpoint, access, search, _, _ = key
            tool_filter, _ = self._filter_for(endpoint)
            shown = tool_filter if tool_filter is not None else NO_TOOLS
            view.set_filter(replace(shown, search=True) if search else shown, self._permitted_tools(access))
            if tool_filter is not None:
                self._views[key] = (tool_filter, view)
            else:
                del self._views[key]

    def filter_of_toolset(self, endpoint: str) -> ToolFilter | None:
        """Return the tool filter of the toolset that an endpoint is named after, or None if it is not a toolset."""
        return self._toolsets().get(endpoint) if endpoint and not endpoint.startswith("server/") else None

    def _filter_for(self, endpoint: str) -> tuple[ToolFilter | None, str | None]:
        if not endpoint:
            return _ALL_SERVERS
        if endpoint.startswith("server/"):
            name = endpoint.removeprefix("server/")
            return (filter_for_server(name), name) if name in self._servers else (None, None)
        if endpoint == SEARCH_ENDPOINT:
            return SEARCH_ALL_TOOLS, None
        return self._toolsets().get(endpoint), None

    def _can_see(self, principal: Principal, server: str) -> bool:
        """Return True if a principal may see any tool of a server."""
        permission = self._permission_for(principal)
        return self._permitted_tools(principal.access).may_include(server) and (
            permission is None or permission.may_include(server)
        )

    def _permitted_tools(self, access: tuple[str, ...] | None) -> ToolFilter:
        """Return the filter for all tools that a principal's access permits, on any endpoint.

        It is the union of the toolsets and servers to which an API key is limited; None permits all tools. A user's
        access names groups from the identity provider.
        """
        if access is None:
            return ALL_TOOLS
        if access and all(each.startswith(ACCESS_PREFIX) for each in access):
            return filter_for_access(self._credentials.tools_of(each.removeprefix(ACCESS_PREFIX)) for each in access)
        names = [
            each.removeprefix("server/") for each in access if each.startswith("server/") and is_valid_access(each)
        ]
        servers = [filter_for_server(name) for name in names]
        toolsets = [found for each in access if (found := self._toolsets().get(each)) is not None]
        return ToolFilter.union([*servers, *toolsets])


def _abort_at(exchange: Exchange, expires_at: float | None) -> asyncio.TimerHandle | None:
    """Schedule aborting a request for when its client's token expires. Return the timer, if any.

    This is not used for MCP clients' tool calls, because a running call may finish.
    """
    if expires_at is None or exchange.request.method == "DELETE":
        return None
    return asyncio.get_running_loop().call_later(max(0.0, expires_at - time.time()), exchange.abort)


def _has_small_body(request: HttpRequest) -> bool:
    """Return True if the request announces a body that is small enough to be read before authentication."""
    length = request.headers.get("content-length", "0")
    return "transfer-encoding" not in request.headers and length.isdecimal() and int(length) <= MAX_LIGHT_BYTES


def _check_content_type(exchange: Exchange) -> bool:
    """Return True if the request body is declared as JSON; reply with 415 if not."""
    content = exchange.request.headers.get("content-type", "")
    if content == JSON_TYPE or content.partition(";")[0].strip().lower() == JSON_TYPE:
        return True
    exchange.reply(415, encode_error(None, INVALID_REQUEST, f"content type must be {JSON_TYPE}"), JSON_HEADERS)
    return False


def _find_called_tool(view: EndpointView, params: Json) -> Item | None:
    """Return the tool that the params of `tools/call` name, directly or through a meta-tool.

    Return None if the tool is not known.
    """
    name = params.get("name")
    tool = view.find_item("tools", name)
    if tool is not None or view.meta_tools is None or not isinstance(name, str) or name not in view.meta_tools.callers:
        return tool
    inner = params.get("arguments")
    found = view.find_tool(inner.get("name")) if isinstance(inner, dict) else None
    return found[1] if found is not None else None


def _reject_message(exchange: Exchange, bad: jsonrpc.InvalidMessage) -> None:
    code = INVALID_REQUEST if bad.reason.startswith(_INVALID_ENVELOPE_REASONS) else PARSE_ERROR
    exchange.reply(400, encode_error(bad.id, code, bad.reason), JSON_HEADERS)


_INVALID_ENVELOPE_REASONS: Final = ("not a JSON-RPC", "neither a request", "params is", "id is")


def _endpoint_for(path: str) -> str | None:
    """Return a path's MCP endpoint ("" for `/mcp`), or None if it is not an MCP path."""
    if path == "/mcp":
        return ""
    server = _SERVER_PATH.fullmatch(path)
    if server is not None:
        return f"server/{server[1]}"
    toolset = _TOOLSET_PATH.fullmatch(path)
    return toolset[1] if toolset is not None and toolset[1] != "server" else None


def _is_public(request: HttpRequest) -> bool:
    """Return True if a request works without a principal: health check, node proof, dashboard, CORS preflight."""
    return request.path in _PUBLIC_PATHS or is_dashboard_path(request.path) or _is_preflight(request)


def _is_preflight(request: HttpRequest) -> bool:
    return request.method == "OPTIONS" and "origin" in request.headers


def _is_admin_path(path: str) -> bool:
    return path == "/admin" or path.startswith("/admin/")


def _has_session_id(exchange: Exchange) -> bool:
    return "mcp-session-id" in exchange.request.headers
