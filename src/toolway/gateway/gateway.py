"""Wires up one gateway: hub, authentication, endpoints and HTTP server.

async with HubCore(loaded) as hub:
    gateway = Gateway(hub, …)
    await gateway.listen("127.0.0.1", 8765)
    await gateway.drain()
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final

from toolway.errors import ConfigError
from toolway.gateway.admin.activity import ActivityRecorder
from toolway.gateway.admin.calls import CallsAdmin
from toolway.gateway.admin.dashboard import BrowserSessions, DashboardEndpoint, EndedSessions
from toolway.gateway.admin.metrics import MetricsEndpoint
from toolway.gateway.admin.overview import OverviewAdmin
from toolway.gateway.admin.routes import AdminEndpoint, AdminHandlers, KeysAdmin
from toolway.gateway.admin.servers import ServersAdmin
from toolway.gateway.authenticator import Authenticator
from toolway.gateway.caller_paths import CallerAccess
from toolway.gateway.cluster_hooks import NO_CLUSTER, ClusterHooks
from toolway.gateway.gateway_options import ClientState, ConnectionRules, LiveSettings, ProcessControl
from toolway.gateway.mcp.context import ForwardedCall, Notify
from toolway.gateway.mcp.dispatcher import RequestDispatcher
from toolway.gateway.mcp.flights import ClientFlights, NodeCall, NodeFlight, NodeFlights
from toolway.gateway.mcp.legacy_http import LegacyHttpEndpoint
from toolway.gateway.mcp.legacy_sessions import LegacySessions
from toolway.gateway.mcp.legacy_sse import LegacySseEndpoint
from toolway.gateway.mcp.modern import Discovery, ModernEndpoint
from toolway.gateway.mcp.pending_input import PendingCalls
from toolway.gateway.mcp.responses import RpcResult
from toolway.gateway.mcp.stdio import StdioClient
from toolway.gateway.mcp.subscriptions import SubscriptionService
from toolway.gateway.mcp.view import EndpointView
from toolway.gateway.meta_tools import EndpointFacts
from toolway.gateway.part_set import PartSet
from toolway.gateway.principals import LOCAL_ADMIN, ApiKeyStore, Principal
from toolway.gateway.rate_limit import LocalRateLimiter
from toolway.gateway.router import Endpoints, Router
from toolway.gateway.sealing import Sealer
from toolway.http.exchange import HttpRequest
from toolway.http.limits import STRANGERS
from toolway.http.server import HttpServer
from toolway.hub.core import HubCore
from toolway.part_api.part import CallerRights
from toolway.protocol.jsonrpc import Message
from toolway.telemetry.metrics import Metrics
from toolway.types import Json

DRAIN_DELAY_S: Final = 3.0  # seconds for load balancers to see that /readyz fails
DRAIN_TIMEOUT_S: Final = 30.0  # seconds that active calls may take
UNSIGNED_TOKEN: Final = "eyJhbGciOiJub25lIn0.e30.AA"  # {"alg":"none"} and no claims
CLOSE_TIMEOUT_S: Final = 3.0  # seconds that clients may take to read the last bytes


class Gateway:
    """One MCP gateway: serves the servers of a hub to HTTP or stdio clients.

    If `api_keys` is None, authentication is off, for tests or behind another proxy. `cluster` connects the gateway to
    the other nodes of a cluster. Whoever creates `parts` must close them; without them, the built-in parts store
    nothing.
    """

    def __init__(
        self,
        hub: HubCore,
        key: bytes,
        api_keys: ApiKeyStore | None,
        *,
        settings: LiveSettings = LiveSettings(),  # noqa: B008 - it is frozen
        control: ProcessControl = ProcessControl(),  # noqa: B008 - it is frozen
        connections: ConnectionRules = ConnectionRules(),  # noqa: B008 - it is frozen
        clients: ClientState = ClientState(),  # noqa: B008 - it is frozen
        metrics: Metrics | None = None,
        cluster: ClusterHooks = NO_CLUSTER,
        parts: PartSet | None = None,
    ) -> None:
        self._hub = hub
        hub.calls.redact_results()
        self._api_keys = api_keys
        sealer = Sealer(key, time.time)
        self.pending_calls = clients.pending_calls if clients.pending_calls is not None else PendingCalls()
        self.parts = parts if parts is not None else PartSet(hub, api_keys, key=key)
        self.parts.permissions.on_changed = self.on_access_changed
        self.parts.sealer = sealer
        self._dispatcher = RequestDispatcher(
            hub,
            sealer,
            self.pending_calls,
            clients.rate_limiter if clients.rate_limiter is not None else LocalRateLimiter(time.monotonic),
            self.parts.limits,
            cluster,
            settings.drops_nulls,
        )
        meta_tools = self.parts.meta_tools
        meta_tools.endpoints = EndpointFacts(
            settings.toolsets,
            control.config_history.held_servers if control.config_history is not None else tuple,
            self._dispatcher.lists.wait_for_starting,
        )
        self._discovery = Discovery(hub.servers)
        self.subscriptions = SubscriptionService(hub, self._dispatcher.open_task_id)
        self.legacy_sessions = LegacySessions(self._dispatcher, self._discovery, self.subscriptions, sealer, cluster)
        self.legacy_sse = LegacySseEndpoint(self.legacy_sessions, sealer)
        self._cluster = cluster
        legacy = LegacyHttpEndpoint(self.legacy_sessions)
        self._authenticator = Authenticator(
            api_keys,
            connections.hosts,
            connections.origins,
            cluster,
            connections.local_token_from,
            self.parts.credentials,
        )
        self._uses_tls = False
        self.ended_sessions = clients.ended_sessions if clients.ended_sessions is not None else EndedSessions()
        browser_sessions = BrowserSessions(
            sealer, api_keys, time.time, self.ended_sessions, cluster.on_browser_session_ended
        )
        self._exports_metrics = metrics is not None
        self.metrics = metrics if metrics is not None else Metrics()
        self.activity = ActivityRecorder(lambda: hub.servers.entries, self.metrics)
        hub.instrumentation.add_sink(self.metrics)
        hub.instrumentation.add_sink(self.activity)
        calls = CallsAdmin(hub.calls, self.activity, api_keys, self.parts.credentials.names)
        self._overview = overview = OverviewAdmin(
            hub.servers,
            hub.lists.catalog,
            self.activity,
            calls,
            browser_sessions,
            settings.toolsets,
            control.config_history,
            control.doctor,
        )
        self.dashboard_url = partial(overview.dashboard_url, LOCAL_ADMIN)  # a dashboard path with a one-time code
        self._modern = ModernEndpoint(self._dispatcher, self._discovery, self.subscriptions)
        admin = AdminEndpoint(
            AdminHandlers(
                ServersAdmin(hub.servers, hub.emit, self.activity, control.config_history, settings.admission, cluster),
                calls,
                overview,
                KeysAdmin(hub.emit, api_keys) if api_keys is not None else None,
            ),
            hub.mask,
            control.reload,
            self._stats,
            cluster,
            self.parts,
        )
        endpoints = Endpoints(
            self._modern,
            legacy,
            self.legacy_sse,
            admin,
            DashboardEndpoint(self._authenticator, browser_sessions, lambda: self._uses_tls),
            MetricsEndpoint(hub, metrics, self._stats, self.parts.read_gauges, cluster)
            if metrics is not None
            else None,
        )
        self.router = Router(
            hub,
            self._authenticator,
            endpoints,
            browser_sessions,
            settings,
            cluster,
            self.parts.permissions,
            meta_tools,
            self.parts.caller_paths,
        )
        self.parts.caller_paths.access = CallerAccess(self.router.view_for, self._dispatcher.dispatch)
        calls.allows = self.router.allows
        calls.denial_hint = self.router.denial_hint
        calls.missing_scopes = self.router.missing_scopes
        calls.run_in_limits = self._dispatcher.run_in_limits
        self.parts.rights = CallerRights(
            self.router.may_call, self.router.may_see, self.parts.credentials.find_principal
        )
        self.parts.worker_reports = cluster.worker_reports
        self.parts.report = partial(self.activity.add_event, "change", "")
        self._dispatcher.missing_scopes = self.router.missing_scopes
        self.ended_sessions.on_add = self.router.end_browser_session
        self.http_server = HttpServer(self.router.handle, connections.limits, self.router.authenticate_head)
        self.http_server.accept_upgrade = self.router.accept_upgrade
        self.http_server.begin_flight = ClientFlights(
            hub.calls, self.router, self._authenticator, self._dispatcher, self._modern, legacy, self.legacy_sessions
        ).begin
        self._node_flights = NodeFlights(hub.calls, self._dispatcher)
        if api_keys is not None:
            api_keys.on_revoked(self.router.disconnect)
        self._started_at = time.time()

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None, *, reuse_port: bool = False) -> int:
        """Start listening for HTTP clients. With `reuse_port`, other processes may listen at the same address.

        Return the port, which the system chooses if `port` is 0. Raises `OSError` if the address cannot be bound.
        """
        self.subscriptions.start()
        self._uses_tls = tls is not None
        port = await self.http_server.listen(host, port, tls, reuse_port=reuse_port)
        self._authenticator.set_bound_address(host, port)
        return port

    @property
    def handle_forwarded(
        self,
    ) -> Callable[[Principal, EndpointView, ForwardedCall, Message, Notify], Coroutine[Any, Any, RpcResult]]:
        """Coroutine function that executes a call which another cluster node forwards to this node.

        It raises `RpcFailure` if the call is rejected or fails.
        """
        return self._modern.handle_forwarded

    @property
    def begin_forwarded(
        self,
    ) -> Callable[[Principal, EndpointView, ForwardedCall, Message, NodeCall], NodeFlight | None]:
        """Function that starts a forwarded call without a coroutine.

        It returns None if `handle_forwarded` must be used.
        """
        return self._node_flights.begin

    def set_advertised_host(self, host: str) -> None:
        """Accept in Host headers the host name by which other nodes reach the gateway. "" is ignored."""
        if host:
            self._authenticator.set_advertised_host(host)

    def check_refusals(self) -> None:
        """Check that the gateway rejects test requests without a valid token, if a part verifies tokens.

        The test requests take the same path as real ones. Raises `ConfigError` if one is accepted, so a login that
        does not protect the gateway cannot go unnoticed.
        """
        verifier = self.parts.credentials.verifier
        if verifier is None:
            return
        for headers in ({}, {"authorization": "Bearer garbage"}, {"authorization": f"Bearer {UNSIGNED_TOKEN}"}):
            is_asked_about = "garbage" in headers.get("authorization", "") and verifier.asks_elsewhere
            served = (f"{prefix}/tools/x" for prefix in self.parts.caller_paths.prefixes)
            for path in ("/mcp", "/mcp/search", "/sse", "/messages", "/admin/servers", "/metrics", *served):
                request = HttpRequest("POST", path, "", {"host": "localhost", **headers}, frozenset(), b"", "")
                authenticate = self.http_server.authenticate_head
                answer = authenticate(request) if authenticate is not None else ""
                if is_asked_about and (answer == STRANGERS or answer[0] == 503):
                    continue  # another server is asked; without its answer no request is handled
                if isinstance(answer, str) or answer[0] != 401:
                    raise ConfigError(
                        "the gateway would accept requests without a valid token",
                        detail=f"POST {path} was not denied although {verifier.setting} is set",
                        hint="do not use this gateway, and report this as a security problem",
                        code="E-LOGIN-OPEN",
                    )

    def stop_recording(self) -> None:
        """Stop recording recent activity for the dashboard. Calls are still counted if metrics are exported."""
        self._hub.instrumentation.remove_sink(self.activity)
        if not self._exports_metrics:
            self._hub.instrumentation.remove_sink(self.metrics)

    def stdio_client(self, endpoint: str = "") -> StdioClient:
        """Return the handler that serves one client over stdin and stdout, with the view of an endpoint.

        Recent activity is no longer recorded, because with stdio no dashboard can show it.
        """
        self.stop_recording()
        self.subscriptions.start()

        def current_view() -> EndpointView:
            found = self.router.view_for(LOCAL_ADMIN, endpoint)
            assert found is not None
            return found

        return StdioClient(self._dispatcher, self._discovery, self.subscriptions, self.legacy_sessions, current_view)

    def _stats(self) -> Json:
        """Return the gateway's counters, added up over all its worker processes."""
        stats = self.own_stats()
        for report in self._cluster.worker_reports():
            for name in ("connections", "running", "subscriptions", "pending"):
                stats[name] += report.stats.get(name, 0)
        return stats

    def own_stats(self) -> Json:
        """Return the gateway counters of this process alone."""
        return {
            "started": self._started_at,
            "connections": len(self.http_server),
            "running": self.http_server.active_count,
            "subscriptions": len(self.subscriptions),
            "pending": len(self.pending_calls),
            "draining": not self.router.ready,
        }

    def on_config_changed(self, hosts: Iterable[str], origins: Iterable[str]) -> None:
        """Apply a changed configuration: accepted hosts and origins, tool filters, new servers."""
        self._authenticator.configure(hosts, origins)
        self.router.refresh_views()
        self.subscriptions.recheck()
        self._dispatcher.on_servers_changed()
        if self.parts.meta_tools.provider is not None:
            self.parts.meta_tools.provider.on_views_changed()

    def on_access_changed(self) -> None:
        """After the access rules changed, give every client a new view and tell it that its lists may have changed."""
        router = self.router
        router.close_views()
        self.legacy_sessions.replace_views(router.view_for)
        self.legacy_sse.replace_views(router.view_for)
        self.subscriptions.replace_views(router.view_for)
        if self.parts.meta_tools.provider is not None:
            self.parts.meta_tools.provider.on_views_changed()

    # -- shutdown -----------------------------------------------------------------------------------------------------

    async def drain(
        self, skip_waiting: asyncio.Event, delay: float = DRAIN_DELAY_S, timeout: float = DRAIN_TIMEOUT_S
    ) -> None:
        """Shut down: reject new requests, let active calls finish, then cancel the rest.

        Load balancers get `delay` seconds to notice, and active calls at most `timeout` seconds to finish. Setting
        `skip_waiting` ends both waits. The error of a cancelled call says whether the call may have run.
        """
        self.router.ready = False
        await _wait_first(skip_waiting.wait(), asyncio.sleep(delay), delay)
        self.router.rejects_new_requests = True
        self.http_server.stop_accepting()
        links = self._cluster.links
        if links is not None:
            links.stop_accepting()
        await self.subscriptions.close()
        self.legacy_sessions.close_streams()
        self.legacy_sse.close_streams()
        self._overview.close_streams()
        await _wait_first(skip_waiting.wait(), self._wait_idle(), timeout)
        self._dispatcher.shutting_down = True
        self.pending_calls.close()
        await self.legacy_sse.cancel_all()
        await self.http_server.cancel_all()
        if links is not None:
            await links.cancel_all()
        self.legacy_sessions.close()
        await self.http_server.close(CLOSE_TIMEOUT_S)
        if links is not None:
            await links.close(CLOSE_TIMEOUT_S)

    async def _wait_idle(self) -> None:
        """Wait until no request is active, including legacy requests whose connection was lost."""
        await self.http_server.wait_idle()
        if self._cluster.links is not None:
            await self._cluster.links.wait_idle()
        while self.legacy_sessions.has_active_requests:  # noqa: ASYNC110 - rare, and no other waiter needs an event
            await asyncio.sleep(0.05)


async def _wait_first(one: Coroutine[Any, Any, Any], other: Coroutine[Any, Any, Any], timeout: float) -> None:
    """Wait until either coroutine is done or the timeout has passed, then cancel whatever is still running."""
    tasks = [asyncio.ensure_future(one), asyncio.ensure_future(other)]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
