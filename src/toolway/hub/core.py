"""Engine of a hub: servers, catalog, middleware chain, events.

Used by `Hub` and by the gateway. `HubCore` builds the parts in `__init__` and starts them in `__aenter__`. A call is
one `Call` value: `request` sends it through the middleware chain (middleware/chain.py) to the dispatcher
(hub/dispatch.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec
from msgspec.structs import replace

from toolway._async import wait_all
from toolway.auth.encrypted_token_store import default_token_store
from toolway.auth.manager import AuthManager
from toolway.auth.token_manager import LoginCallback
from toolway.auth.token_store import DEFAULT_TOKENS, TokenStore
from toolway.callbacks import FunctionCallbacks
from toolway.catalog.catalog import Catalog, Item, Tool
from toolway.catalog.persister import CatalogPersister
from toolway.catalog.storage import CatalogStorage
from toolway.config.locations import own_folders
from toolway.config.masking import create_mask
from toolway.config.schema import RetryPolicy, Server, ServerLike, Timeout, check_server_name, with_defaults
from toolway.config.settings import (
    AlertSettings,
    AuditSettings,
    SearchSettings,
    alert_settings_from,
    with_network_policy,
)
from toolway.errors import CallError, ConfigError, ServerUnavailable, ToolwayError, closed_error
from toolway.events import (
    AccessEvent,
    Alert,
    Event,
    EventSink,
    ListKind,
    ServerChanged,
    ServerLog,
    ServerPaused,
)
from toolway.hub.call_policy import CallPolicies, CallTerms
from toolway.hub.caller_lists import OwnLists, is_on_behalf
from toolway.hub.dispatch import Dispatcher, OutputValidator
from toolway.hub.environment import HubEnvironment
from toolway.hub.event_stream import EventBroadcaster, LogCallbackSink, LogListener, Watchdog, check_log_level
from toolway.hub.flight import Flights
from toolway.hub.instrumentation import Instrumentation, Tracer, WorkflowTrace
from toolway.hub.library_flights import LibraryFlight, LibraryFlights
from toolway.hub.plan import Plan, Planner
from toolway.hub.result_redaction import ResultRedaction, redact_stored
from toolway.hub.source import (
    DEFAULT_CATALOG,
    ConfigSource,
    default_runtime_dir,
    load_servers,
    log_issues,
    open_catalog_storage,
    open_vector_store,
    parse_server,
)
from toolway.hub.upstream_context import HubUpstreamContext
from toolway.hub.upstreams import NAMED_LIST_WAIT_S, UpstreamManager
from toolway.middleware.approval import CallGate, approval
from toolway.middleware.arguments import ArgumentValidator, check_arguments
from toolway.middleware.cache import ResponseCache, response_cache
from toolway.middleware.chain import Answerers, Attempts, CallEntry, Chain, Gates, compose
from toolway.middleware.circuit_breaker import BreakerStatus, CircuitBreakers, circuit_breaker
from toolway.middleware.concurrency import ConcurrencyLimiter, concurrency
from toolway.middleware.deadline import deadline
from toolway.middleware.idempotency import IdempotencyStore, MemoryIdempotencyStore, idempotency
from toolway.middleware.rate_limit import rate_limit
from toolway.middleware.replay import replay
from toolway.middleware.resolve import (
    find_tool,
    is_bare_name,
    require_server,
    require_tool,
    resolve,
    wait_for_bare_name,
)
from toolway.middleware.retry import retry
from toolway.middleware.single_flight import single_flight
from toolway.middleware.user_middleware import user_middleware
from toolway.network.policy import PUBLIC_ONLY, NetworkPolicy
from toolway.telemetry.alerts import AlertDelivery, AlertDetector
from toolway.telemetry.hub_log import HubLog
from toolway.telemetry.otel_attributes import StepSpan, server_attributes
from toolway.types import (
    Call,
    CallHandler,
    CallResult,
    CallState,
    ClientCallbacks,
    Effect,
    Era,
    Json,
    Middleware,
    ToolRef,
)
from toolway.upstream.error_mapping import mask_error, raising_access_denied
from toolway.upstream.negotiation import NegotiatedProtocol
from toolway.upstream.process.spawner import Spawner
from toolway.upstream.session import DEFAULT_LOG_LEVEL
from toolway.upstream.state import State, StateWord
from toolway.upstream.status import (
    HealthResult,
    ServerInfo,
    ServerStatus,
    describe_missing,
    describe_time,
    mask_status,
)
from toolway.upstream.subscriptions import SubscriptionKind

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from toolway.audit.log import AuditLog
    from toolway.audit.middleware import AuditMiddleware
    from toolway.audit.writer import AuditWriter
    from toolway.auth.token_exchange import SubjectTokens
    from toolway.catalog.pins import PinMode, Pins
    from toolway.search.history_file import HistoryKeeper
    from toolway.search.meaning import Vectors
    from toolway.search.tool_search import ServerFacts, ToolSearch
    from toolway.upstream.upstream import Upstream

_log = logging.getLogger("toolway.hub")


class LoginService:
    """Logs callers in and out of servers and updates the affected upstreams."""

    def __init__(self, upstreams: UpstreamManager, auth: AuthManager, context: HubUpstreamContext) -> None:
        self._upstreams = upstreams
        self._auth = auth
        self._context = context

    async def login(self, name: str, callback: LoginCallback, caller: str, redirect_uri: str | None) -> None:
        """Let a user log in to a server and store the login, even if one is stored already.

        Raises `NotFound` if the server is unknown, `AccessDenied` if the login fails or the server has no logins.
        """
        with raising_access_denied(name):
            server = await self._resolve_server(name)
            await self._auth.log_in(name, server, callback, caller=caller, redirect_uri=redirect_uri)
        self._context.emit(AccessEvent(name, "login", principal_id=caller))
        self.on_login(name, caller)

    async def logout(self, name: str, caller: str) -> bool:
        """Delete a caller's stored login for a server. Return True if there was one.

        Raises `NotFound` if the server is unknown, `AccessDenied` if it has no logins.
        """
        with raising_access_denied(name):
            existed = await self._auth.log_out(name, await self._resolve_server(name), caller=caller)
        self._context.emit(AccessEvent(name, "logout", principal_id=caller))
        self.on_login(name, caller)
        return existed

    async def logout_all(self, caller: str) -> None:
        for name in list(self._upstreams.servers):
            with suppress(ToolwayError):  # servers without logins raise
                await self.logout(name, caller)

    async def _resolve_server(self, name: str) -> Server:
        require_server(self._upstreams.servers, name)
        return await self._context.resolve_secrets(self._upstreams.servers[name])

    def on_login(self, name: str, caller: str) -> None:
        """Let a server's connection use a login that was just stored or deleted.

        If the connection is ready, fetch its tool list again. Otherwise start it, even if earlier starts failed. A
        caller without its own connection gets one only if the tool list is missing.
        """
        upstreams = self._upstreams
        if not upstreams.is_open or name not in upstreams.upstreams:
            return
        if caller:
            upstream = upstreams.per_caller.get(name, caller)
            if upstream is None and self._context.is_list_missing(name, "tools"):
                upstream = upstreams.per_caller.get_or_start(name, upstreams.servers[name], caller)
        else:
            upstream = upstreams.upstreams[name]
        if upstream is None:
            return
        if upstream.negotiated is not None:
            upstream.refresh("tools")
            return
        # Not `restart`: a start in progress may use this login already, and calls may be sent as soon as it is ready.
        upstream.retry_start()
        if not caller:
            upstreams.reset_failures(name)


class HubCore:
    """Engine of a hub: supervised connections to all configured servers, with the operations that a gateway needs.

    Programs use `Hub`, which has a smaller interface with examples. It takes the same arguments as `Hub`, except:

    Args:
        callbacks: Answers the requests of all servers (elicitation, sampling, roots). None rejects them.
        library: True if a `Hub` uses this engine: it logs calls and servers, and its hints name methods of `Hub`.
        environment: Replacements for randomness, sleep and transports, for tests and the cluster.
    """

    def __init__(
        self,
        config: ConfigSource = None,
        *,
        timeout: float | Timeout | None = None,
        retry: RetryPolicy | None = None,
        idempotency_store: IdempotencyStore | None = None,
        callbacks: ClientCallbacks | None = None,
        login_callback: LoginCallback | None = None,
        token_store: TokenStore | None = DEFAULT_TOKENS,
        catalog_storage: str | os.PathLike[str] | CatalogStorage | None = DEFAULT_CATALOG,
        audit_log: str | os.PathLike[str] | AuditSettings | None = None,
        alerts: str | os.PathLike[str] | AlertSettings | None = None,
        network_policy: NetworkPolicy = PUBLIC_ONLY,
        middleware: Sequence[Middleware] = (),
        log_callback: LogListener | None = None,
        log_level: str | None = None,
        library: bool = False,
        environment: HubEnvironment | None = None,
    ) -> None:
        self._environment = environment = environment if environment is not None else HubEnvironment()
        self._timeout = Timeout(timeout) if isinstance(timeout, int | float) else timeout
        self._retry = retry
        self._user_middleware = user_middleware(middleware, lambda exc: mask_error(exc, self.mask))
        self._base_network_policy = network_policy
        self._servers, self.config_issues, self._network_policy, self.model_urls = load_servers(
            config, self._timeout, retry, network_policy
        )
        self._configured: Mapping[str, Server] = dict(self._servers)
        self._catalog = Catalog()
        self.pins: Pins | None = None  # None: definitions are not compared
        self._approvals: CallGate | None = None  # None: no call needs an approval
        self._search_settings = SearchSettings()
        self._tool_search: ToolSearch | None = None
        self._search_vectors: Vectors | None = None
        self._closing_vectors: set[asyncio.Task[None]] = set()
        self._search_history_path: Path | None = None
        self._history_keeper: HistoryKeeper | None = None
        storage = open_catalog_storage(catalog_storage, environment.environ)
        self._persister = CatalogPersister(self._catalog, storage, self.emit)
        self._broadcaster = EventBroadcaster()
        self._instrumentation = Instrumentation(self._broadcaster, self._environment.wall_clock)
        self._watchdog = Watchdog(self._instrumentation.emit, environment.stall_threshold)
        self.spawner = Spawner(default_runtime_dir(environment.environ), own_folders(environment.environ))
        resolved_token_store = (
            default_token_store(environment.environ) if token_store is DEFAULT_TOKENS else token_store
        )
        self._auth = AuthManager(login_callback, resolved_token_store, on_login=self._on_login)
        self._policies = CallPolicies(self._servers, self._catalog)
        self._cache = ResponseCache(self._now)
        self._output_validator = OutputValidator()
        self._argument_validator = ArgumentValidator(self._policies.ignores_null)
        self._breakers = CircuitBreakers(environment.random)
        self._idempotency_store = idempotency_store or MemoryIdempotencyStore(self._now)
        self._context = HubUpstreamContext(
            environment,
            callbacks if callbacks is not None else FunctionCallbacks(None, None, None),
            self.spawner,
            self._auth,
            self._servers,
            self._catalog,
            self._persister,
            self._breakers,
            self._instrumentation,
        )
        self._upstreams = UpstreamManager(
            self._servers,
            self._context,
            self._catalog,
            self._persister,
            self._breakers,
            self._auth,
            self._on_definition_changed,
        )
        self._upstreams.per_caller_in_cluster = environment.per_caller_in_cluster
        self._upstreams.describe_time = self._describe_time
        self._own_lists_known = (-1, False)  # changes of servers so far, and True if one of them has a list per caller
        self._login_service = LoginService(self._upstreams, self._auth, self._context)
        self._dispatcher = Dispatcher(
            self._upstreams,
            self._catalog,
            self._output_validator,
            self._argument_validator,
            self._policies,
            self._auth,
            self._instrumentation,
            environment,
        )
        self._planner = Planner(
            self._upstreams,
            self._catalog,
            self._policies,
            self._breakers,
            self._argument_validator,
            self._auth,
            self._instrumentation,
            enabled=not middleware,
        )
        self.flights: Flights  # calls in flight that no coroutine waits for
        self._audit_log: AuditLog | None = None
        if audit_log is not None:
            from toolway.audit.log import AuditLog

            self._audit_log = AuditLog(
                AuditSettings.from_location(audit_log), self.emit, self._servers, self._network_policy
            )
        self.mask = create_mask(lambda: self._servers)  # hides secrets of the server entries in strings from servers
        self._library = library
        self._hub_log = HubLog(self.mask, lambda call: self._policies.retry_policy(call).max_attempts)
        self._log_level = check_log_level(log_level)
        self._log_sink: LogCallbackSink | None = None
        if log_callback is not None:
            self._log_sink = LogCallbackSink(log_callback, self._log_level, self.mask)
            self._instrumentation.add_sink(self._log_sink)
        self.alert_detector = AlertDetector(self.emit, self.mask, wants_calls=alerts is not None, for_library=library)
        self._instrumentation.add_sink(self.alert_detector)
        self._alert_delivery: AlertDelivery | None = None
        if alerts is not None:
            self._alert_delivery = AlertDelivery(alert_settings_from(alerts), self._network_policy)
            self._instrumentation.add_sink(self._alert_delivery)

    def _on_definition_changed(self, server: str) -> None:
        """Drop cached results and compiled schemas of a server whose definition changed."""
        self._cache.invalidate(server)
        self._context.caller_lists.forget(server)
        self._output_validator.discard(server)
        self._argument_validator.discard(server)

    def _build_middleware(
        self, idempotency_store: IdempotencyStore, now: Callable[[], float], audit: Middleware | None
    ) -> Chain:
        policies = self._policies
        return Chain(
            CallEntry(
                resolve=resolve(self._catalog, self._servers.keys(), policies.attach, self._wait_all_tools_known),
                deadline=deadline(policies.total_timeout, now, self._watchdog.pause_before),
                user_middleware=self._user_middleware,
                idempotency=idempotency(idempotency_store),
            ),
            Gates(
                redaction=redact_stored(self._dispatcher.find_redactor),
                arguments=check_arguments(self._argument_validator),
                approval=approval(self._approvals, self._wait_for_definition, self._definition_of)
                if self._approvals is not None
                else None,
            ),
            Answerers(
                replay=replay(),
                cache=response_cache(self._cache, policies.cache_key, policies.cache_ttl),
                single_flight=single_flight(policies.coalesce_key),
            ),
            Attempts(
                audit=audit,
                retry=retry(
                    policies.retry_policy,
                    self._upstreams.retry_budgets.__getitem__,
                    now,
                    self._environment.random,
                    self._environment.sleep,
                    self._on_attempt_failed,
                    policies.update,
                ),
                circuit_breaker=circuit_breaker(self._breakers, now, self._ping_server, policies.is_process),
                rate_limit=rate_limit(policies.rate_limits, now, self._environment.sleep, self._describe_time),
                concurrency=concurrency(
                    self._upstreams.limiters.__getitem__,
                    policies.queue_timeout,
                    now,
                    self._describe_time,
                    self._on_pause,
                ),
            ),
        )

    def _describe_time(self, seconds: float) -> str:
        return describe_time(seconds, self._environment.wall_clock())

    def _on_pause(self, server: str, seconds: float) -> None:
        self.emit(ServerPaused(server, seconds))

    def _on_attempt_failed(self, call: Call, exc: CallError, retry_delay: float | None) -> None:
        self._hub_log.on_attempt_failed(call, exc, retry_delay)
        self._instrumentation.on_attempt_failed(call, exc, retry_delay)

    # -- lifecycle ----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        if self._library:
            self._hub_log.read_level()
            self._instrumentation.add_sink(self._hub_log)
        if self._alert_delivery is not None:  # before the audit log, which reports calls that a crash left open
            for key, at in await self._alert_delivery.start():
                self.alert_detector.add_known(key, at)
        try:
            audit = await self._open_audit(self._audit_log) if self._audit_log is not None else None
        except BaseException:
            if self._alert_delivery is not None:
                await self._alert_delivery.close()
            raise
        middleware = self._build_middleware(self._idempotency_store, self._loop.time, audit).stages
        self._chain = compose(middleware, self._dispatcher.dispatch)
        self.flights = Flights(
            self._loop.time,
            self._instrumentation,
            self._output_validator,
            self._dispatcher,
            middleware,
            audit,
            self._report_end,
            self._watchdog,
        )
        self._planner.audit = audit
        self._library_flights = LibraryFlights(self, self._catalog, self._planner)
        self._watchdog.start()
        self._upstreams.start()
        return self

    async def _open_audit(self, audit_log: AuditLog) -> AuditMiddleware:
        """Open the audit log. Raises `ConfigError` if it is damaged or not writable."""
        middleware = await audit_log.open(self._policies.definition_hash)
        if audit_log.recorder is not None:
            self._instrumentation.add_sink(audit_log.recorder)
        return middleware

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop all servers concurrently and wait until all have ended, at most about 6 s.

        A process that does not end by itself is killed.
        """
        self._drop_search_vectors()
        await asyncio.gather(*self._closing_vectors, return_exceptions=True)
        if self._history_keeper is not None:
            await self._history_keeper.close()
            self._history_keeper = None
        await self._upstreams.close()
        self.flights.close()
        await self._auth.close()
        await self._persister.close()
        if self.pins is not None:
            self.pins.close()
        await self.spawner.close()
        if self._audit_log is not None:
            await self._audit_log.close()
        if self._alert_delivery is not None:
            await self._alert_delivery.close()
        if self._log_sink is not None:
            await self._log_sink.close()
        self._watchdog.stop()
        self._instrumentation.close()
        self._broadcaster.close()

    async def add_server(self, name: str, server: ServerLike) -> None:
        """Add a server while the hub runs. Raises `ConfigError` if the name is in use."""
        if name in self._servers:
            raise ConfigError(
                f"duplicate server {name!r}", hint=f"use add_server({name!r}, …, replace=True)", code="E-CONFIG-NAME"
            )
        self._upstreams.add(check_server_name(name), self._with_defaults(name, server))
        self.emit(ServerChanged(name, "added"))

    async def remove_server(self, name: str) -> None:
        """Remove a server and wait until it has stopped. Raises `NotFound` if it is unknown.

        Running calls may finish first; after 30 s the server is stopped anyway.
        """
        require_server(self._servers, name)
        drain_tasks = self._upstreams.remove(name)
        self.emit(ServerChanged(name, "removed"))
        await wait_all(drain_tasks)

    async def replace_server(self, name: str, server: ServerLike) -> None:
        """Change the definition of a server. An equal definition changes nothing.

        The new definition gets new calls at once. Returns when the old server has stopped. Its running calls may finish
        first; after 30 s it is stopped anyway. Raises `NotFound` if the server is unknown.
        """
        new_server = self._with_defaults(name, server)
        require_server(self._servers, name)
        if new_server != self._servers[name]:
            drain_tasks = self._upstreams.replace(name, new_server)
            self.emit(ServerChanged(name, "changed"))
            await wait_all(drain_tasks)

    async def reload(self, config: ConfigSource) -> dict[str, str]:
        """Load a configuration; add, change and remove servers. Unchanged servers keep running.

        Running calls of changed and removed servers may finish, as with `replace_server`.

        Returns:
            "added", "changed" or "removed" by server name.

        Raises:
            ConfigError: The configuration cannot be used; nothing was changed.
        """
        servers, self.config_issues, self._network_policy, self.model_urls = load_servers(
            config, self._timeout, self._retry, self._base_network_policy
        )
        self._configured = dict(servers)
        changes = self._upstreams.reconcile(servers)
        for name, change in changes.items():
            self.emit(ServerChanged(name, change))
        return changes

    def set_denied_tools(self, server: str, names: Iterable[str] | None) -> None:
        """Replace the deny list of a server, at once and without a restart. None restores the configured one.

        Calls that are running may finish. Raises `NotFound` if the server is unknown.
        """
        self._upstreams.set_denied_tools(server, names)

    def _with_defaults(self, name: str, server: ServerLike) -> Server:
        """Return the definition of a server, with the hub's defaults for settings that it lacks.

        Warnings about the definition are logged and added to `config_issues`.
        """
        parsed, found = parse_server(name, server)
        issues = tuple(msgspec.structs.replace(issue, server=name) for issue in found)
        log_issues(issues)
        self.config_issues = (*(each for each in self.config_issues if each.server != name), *issues)
        return with_network_policy(with_defaults(parsed, self._timeout, self._retry), self._network_policy)

    def restart_server(self, name: str) -> None:
        """Restart a server now, in any state. Raises `NotFound` if the server is unknown."""
        self._upstreams.restart(name)

    async def login(
        self, server: str, callback: LoginCallback, *, caller: str = "", redirect_uri: str | None = None
    ) -> None:
        """Let a user log in to a server and store the token, even if one is stored already.

        `redirect_uri` replaces the redirect URI of the config entry. Raises `NotFound` if the server is unknown,
        `AccessDenied` if the login fails or the server has no logins.
        """
        await self._login_service.login(server, callback, caller, redirect_uri)

    async def logout(self, server: str, *, caller: str = "") -> bool:
        """Delete a caller's stored login for a server; revoke it if its issuer supports that.

        Return True if there was one. Raises `NotFound` if the server is unknown, `AccessDenied` if it has no logins.
        """
        return await self._login_service.logout(server, caller)

    async def logout_everywhere(self, caller: str) -> None:
        """Delete the stored logins of a caller for all servers, because the caller no longer exists."""
        await self._login_service.logout_all(caller)

    def _on_login(self, name: str, caller: str) -> None:
        self._login_service.on_login(name, caller)

    # -- calls --------------------------------------------------------------------------------------------------------

    @property
    def log_level(self) -> str | None:
        """Return the lowest level of log messages to ask servers for, in calls of the program.

        None if nobody reads them: a modern server then sends none.
        """
        if self._log_level is not None:
            return self._log_level
        is_read = self._log_sink is not None or self._broadcaster.has_subscribers(ServerLog)
        return DEFAULT_LOG_LEVEL if is_read else None

    def request(self, call: Call) -> Coroutine[Any, Any, CallResult]:
        """Send a prepared call with any MCP method through the middleware chain.

        Returns a coroutine of the result. It raises `CallError` if the call has no result.
        """
        instrumentation = self._instrumentation
        is_observed = instrumentation.enabled if not call.forwarded else instrumentation.enabled_for_forwarded
        return self._observed(call) if is_observed else self._unobserved(call)

    def begin_call(self, name: str, arguments: Json, meta: Json | None, timeout: float | None) -> LibraryFlight | None:
        """Send a tool call without the middleware chain; return an object whose `wait()` returns the result.

        None, with nothing sent, if the call must be sent with `request`.
        """
        return self._library_flights.begin(name, arguments, meta, timeout) if self._upstreams.is_open else None

    def new_call_id(self) -> str:
        """Return a new unique id for a call."""
        return self._instrumentation.new_call_id()

    async def _unobserved(self, call: Call) -> CallResult:
        if not self._upstreams.is_open:
            self._require_open()
        began = self._loop.time()
        try:
            reply = await self._chain(call)
        except CallError as exc:
            if self._library:
                mask_error(exc, self.mask)
                self._hub_log.on_error(exc, may_repeat=self._may_repeat(call, exc))
            raise
        return replace(reply, duration=self._loop.time() - began)

    def _may_repeat(self, call: Call, exc: CallError) -> bool:
        """Return True if it does no harm to make a failed call again, whether it ran or not."""
        if call.method != "tools/call":
            return True  # it reads
        tool = self._catalog.find_tool(exc.server, exc.tool)
        return tool is not None and self._policies.tool_policy(tool).default_effect is not Effect.UNSAFE

    async def _observed(self, call: Call) -> CallResult:
        if not self._upstreams.is_open:
            self._require_open()
        began = self._loop.time()
        return await self._report_end(self._instrumentation.on_start(call), self._chain, began)

    async def _report_end(self, call: Call, handler: CallHandler, began: float) -> CallResult:
        """Run `handler` to get the result of a call, and report the end of the call to sinks, subscribers and tracer.

        `began` is the time when the call began. Raises the `CallError` of a call without a result.
        """
        instrumentation = self._instrumentation
        try:
            reply = await handler(call)
        except CallError as exc:
            if self._library:
                mask_error(exc, self.mask)
            instrumentation.on_error(call, exc, self._loop.time() - began)
            if self._library:
                self._hub_log.on_error(exc, may_repeat=self._may_repeat(call, exc))
            raise
        except BaseException:
            instrumentation.on_cancelled(call, self._loop.time() - began)
            raise
        seconds = self._loop.time() - began
        instrumentation.on_result(call, reply, seconds)
        return replace(reply, duration=seconds)

    async def _ping_server(self, server: str) -> None:
        await self._upstreams.require_upstream(server).ping()

    # -- redaction ----------------------------------------------------------------------------------------------------

    def redact_results(self) -> None:
        """Remove each server's secrets, and the kinds of text in its setting `redact`, from its results from now on."""
        self._dispatcher.redaction = ResultRedaction(lambda: self._servers)
        self._planner.redacts = True

    # -- approvals ----------------------------------------------------------------------------------------------------

    def use_gate(self, gate: CallGate) -> None:
        """Let `gate` decide about every call before it is sent; the gate may ask an administrator or the user.

        Call this method before the hub is opened.
        """
        self._approvals = self._planner.gate = gate
        self._policies.approval_rules = gate.rules_for
        self.on_approval_rules_changed()

    def use_alert_links(self, link_of: Callable[[Alert], str]) -> None:
        """Send a URL with each alert to the webhook: a page about the alert, or "" if it has none."""
        if self._alert_delivery is not None:
            self._alert_delivery.link_of = link_of

    def on_approval_rules_changed(self) -> None:
        """Apply the changed approval rules from the next call of every tool on."""
        self._policies.on_rules_changed()
        self._planner.approval_rules += 1

    async def _wait_for_definition(self, call: Call) -> Call:
        """Wait until the server has sent its tool list. Return the call with the policy of its tool.

        The definition that an earlier run stored is not enough: the user approves the tool that is called now. Raises
        `CallError` if the server has no such tool, does not send its list in time, or the arguments do not match.
        """
        await self._upstreams.wait_list_fetched("tools", call.server, max(0.0, call.deadline - self._now()))
        tool = require_tool(self._catalog, ToolRef(call.server, call.name))
        call = self._policies.attach(call, tool)
        if call.policy.tool_to_check is not None and call.earlier is None:
            self._argument_validator.check(call, tool)
        return call

    def _definition_of(self, server: str, name: str) -> str:
        tool = self._catalog.find_tool(server, name)
        return self.definition_hash(tool) if tool is not None and not tool.stale else ""

    # -- lists and status ---------------------------------------------------------------------------------------------

    def known_tools(self, *, server: str | None = None) -> list[Tool]:
        """Return the tools known now, of `server` or of all servers, without waiting."""
        return self._catalog.tools(server)

    def call_terms(self, name: str) -> CallTerms | None:
        """Return effect class, timeout and idempotency `_meta` key for calls of the tool `name` (as `server.tool`).

        None if the tool is unknown.
        """
        return self._policies.terms(name)

    async def find_tool(self, name: str, timeout: float) -> Tool:
        """Return the tool called `name`: `server.tool`, `server__tool`, or the name alone if only one server has it.

        Waits up to `timeout` seconds for the tools of the server; of all servers, if the name has no server. Raises
        `NotFound`, `AccessDenied` if the tool is denied, `ServerUnavailable` and `CallTimeout`.
        """
        self._require_open()
        if is_bare_name(self._catalog, self._servers, name):
            return await wait_for_bare_name(self._catalog, self._wait_all_tools_known, name, timeout)
        ref, tool = find_tool(self._catalog, self._servers, name)
        if tool is None:
            await self._upstreams.wait_list_fetched("tools", ref.server, timeout)
            tool = require_tool(self._catalog, ref)
        return tool

    async def _wait_all_tools_known(self, timeout: float | None) -> Collection[str]:
        """Wait until the tools of all enabled servers are known, or the time is over. Return these servers.

        None waits as long as a list does, which one bad server delays only once.
        """
        servers = self._upstreams.upstreams.keys()
        unlisted = [name for name in servers if not self._catalog.has_list(name, "tools")]
        await self._upstreams.wait_for_lists("tools", unlisted, timeout, urgent=True)
        return servers

    async def list_items(self, kind: ListKind, server: str | None, wait: float | None) -> list[Item]:
        """Return the tools, prompts, resources or templates of `server`, or of all servers.

        Waits up to `wait` seconds for lists that were not sent yet, and logs which servers are missing. None waits 30 s
        for one server, 2 s for all, and hardly for a server that was late before. If `server` is given, raises
        `NotFound` if it is unknown, `ServerUnavailable` if it fails and `CallTimeout` after the wait.
        """
        self._require_open()
        if server is not None:
            await self._upstreams.wait_list_fetched(kind, server, NAMED_LIST_WAIT_S if wait is None else wait)
        else:
            was_late = {name for name in self._servers if self._upstreams.is_late(name)}
            for name in await self._upstreams.wait_for_lists(kind, list(self._upstreams.upstreams), wait):
                level = logging.DEBUG if name in was_late else logging.WARNING
                _log.log(level, "%s", self.mask(describe_missing(self._upstreams.status(name))))
        return list(self._catalog.items(kind, server))

    def status(self) -> dict[str, ServerStatus]:
        """Return the current status of every server by name."""
        return {name: self._status(name) for name in self._servers}

    def _status(self, name: str) -> ServerStatus:
        status, unchecked = self._upstreams.status(name), self._argument_validator.problems(name)
        status = msgspec.structs.replace(status, problems=(*status.problems, *unchecked)) if unchecked else status
        return mask_status(status, self.mask) if self._library else status

    async def check_health(
        self, server: str | None = None, *, timeout: float = 5.0, start: bool = False
    ) -> dict[str, HealthResult]:
        """Check `server`, or all servers, now. Raises `NotFound` if the server is unknown."""
        self._require_open()
        if server is not None:
            require_server(self._servers, server)
        names = list(self._servers) if server is None else [server]
        results = await self._upstreams.check_health(names, timeout, start=start)
        return {name: mask_status(each, self.mask) for name, each in results.items()} if self._library else results

    @property
    def circuit_breakers(self) -> CircuitBreakers:
        """Return all circuit breakers of the hub, for a cluster node that shares their changes."""
        return self._breakers

    def breaker_status(self) -> dict[tuple[str, str], BreakerStatus]:
        """Return the status of circuit breakers that are not closed or have failures.

        The keys are (server, tool); the tool is "" for the breaker of a whole server.
        """
        return self._breakers.status(self._now())

    def trip_breaker(self, server: str, tool: str = "") -> None:
        """Open the circuit breaker of a server, or of one of its tools, for a minute.

        Raises `NotFound` if the server or the tool is unknown.
        """
        require_server(self._servers, server)
        if tool:
            require_tool(self._catalog, ToolRef(server, tool))
        self._breakers.trip(server, tool, self._now())

    def reset_breaker(self, server: str, tool: str = "") -> None:
        """Close the circuit breaker of a server, or of one of its tools.

        Raises `NotFound` if the server is unknown.
        """
        require_server(self._servers, server)
        self._breakers.reset(server, tool)

    def limiter(self, server: str) -> ConcurrencyLimiter | None:
        """Return the concurrency limiter of a server, or None if the server is unknown."""
        return self._upstreams.limiters.get(server)

    def load(self, server: str) -> tuple[int, int, int]:
        """Return counts of a server: queued calls, running retries, retries denied by the budget."""
        limiter, budget = self._upstreams.limiters.get(server), self._upstreams.retry_budgets.get(server)
        return (limiter.queued if limiter else 0, budget.active if budget else 0, budget.denied if budget else 0)

    async def wait_ready(self, name: str | None = None, *, timeout: float | None = None) -> None:
        """Wait until the server `name`, or every enabled server, is ready.

        Raises `ServerUnavailable` as soon as one fails, and `CallTimeout` after `timeout` seconds.
        """
        self._require_open()
        await self._upstreams.wait_ready(name, timeout)

    async def wait_first_starts(self, timeout: float | None = None) -> None:
        """Wait until the first start of each non-lazy server has succeeded or failed.

        Returns without an error after `timeout` seconds.
        """
        await self._upstreams.wait_first_starts(timeout)

    def events(self, *types: type[Event], masked: bool = False) -> AsyncIterator[Event]:
        """Iterate over events from now on, of these types or of all; `masked` hides secrets in their strings.

        A consumer that is too slow loses events and gets an `EventsMissed` with their number.
        """
        return self._broadcaster.subscribe(*types, mask=self.mask if masked else None)

    def add_sink(self, sink: EventSink) -> None:
        """Deliver every event to `sink` synchronously, until `remove_sink`."""
        self._instrumentation.add_sink(sink)

    def remove_sink(self, sink: EventSink) -> None:
        """Stop delivering events to `sink`."""
        self._instrumentation.remove_sink(sink)

    def enable_tracing(self, provider: TracerProvider | None = None, sample_ratio: float | None = None) -> None:
        """Record calls as OpenTelemetry spans. Requires `toolway[otel]`.

        Args:
            provider: Tracer provider; None uses the global one of the program.
            sample_ratio: Share of calls to record if the caller sent no trace; None lets the provider decide.
        """
        from opentelemetry.trace import get_tracer

        from toolway._version import __version__
        from toolway.telemetry.tracing import OtelTracer

        tracer = get_tracer("toolway", __version__, provider)
        self.set_tracer(OtelTracer(tracer, self._server_attributes, sample_ratio, self.mask))

    def _server_attributes(self, name: str) -> Mapping[str, Any]:
        """Return the span attributes that describe the address and protocol of a server."""
        server, negotiated = self._servers.get(name), self.negotiated(name)
        return server_attributes(server, negotiated.version if negotiated is not None else "")

    def start_run_trace(
        self, run: str, workflow: str, parent: str | None = None, span: StepSpan | None = None
    ) -> WorkflowTrace | None:
        """Start the trace of a workflow run that this process executes; None without tracing."""
        return self._instrumentation.start_run(run, workflow, parent, span)

    def set_tracer(self, tracer: Tracer | None) -> None:
        """Set the tracer that assigns each call to a trace. None turns tracing off."""
        self._instrumentation.set_tracer(tracer)

    def running_calls(self) -> list[Call]:
        """Return the running calls, oldest first. Empty if no sink, subscriber or tracer is active."""
        if not self._instrumentation.enabled:
            return []
        return [*self._instrumentation.running_calls.values(), *self.flights.calls()]

    def find_plan(self, tool: Tool, caller: str) -> Plan | None:
        """Return the plan (decisions made in advance) by which calls of `caller` to `tool` skip the middleware chain.

        None if these calls must be sent with `request`.
        """
        return self._planner.find(tool, caller)

    # -- for the gateway ----------------------------------------------------------------------------------------------

    @property
    def observes_forwarded(self) -> bool:
        """True if a sink, subscriber or tracer observes calls that another node of the cluster forwards here."""
        return self._instrumentation.enabled_for_forwarded

    def new_call_state(self, *, keep_raw: bool, forwarded: bool = False) -> CallState:
        """Create the state of a new call; it records phase timings if calls are observed."""
        instrumentation = self._instrumentation
        return (instrumentation.state_type if not forwarded or instrumentation.enabled_for_forwarded else CallState)(
            keep_raw=keep_raw
        )

    @property
    def catalog(self) -> Catalog:
        """Return the catalog of all known tools, prompts and resources."""
        return self._catalog

    @property
    def tool_search(self) -> ToolSearch:
        """Return the search over the known tools of this hub. It is created at the first use."""
        if self._tool_search is None:
            from toolway.search.tool_search import ToolSearch

            self._tool_search = ToolSearch(
                self._catalog,
                self._server_facts,
                learn=self._search_settings.learn,
                hash_definition=self.definition_hash,
            )
            self._open_search_vectors()
            self._keep_search_history()
        return self._tool_search

    async def open_tool_search(self) -> ToolSearch:
        """Return the search over the known tools of this hub, as `tool_search` does, without blocking the event loop.

        Its modules are imported in a thread: that takes 10 ms and more.
        """
        if self._tool_search is None:
            await asyncio.to_thread(importlib.import_module, "toolway.search.tool_search")
        return self.tool_search

    def share_late_servers(self) -> None:
        """Remember for other programs which servers kept a list waiting. Call this method before the hub is opened."""
        self._persister.shares_late = True

    def store_search_history(self, path: Path) -> None:
        """Store what the tool search learns from calls in the file `path`, so it survives a restart.

        The file is deleted if learning is switched off in the settings.
        """
        if not self._search_settings.learn:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        self._search_history_path = path
        if self._tool_search is not None:
            self._keep_search_history()

    def _keep_search_history(self) -> None:
        if self._search_history_path is not None and self._history_keeper is None:
            from toolway.search.history_file import HistoryKeeper

            assert self._tool_search is not None
            self._history_keeper = HistoryKeeper(self._tool_search, self._search_history_path, self._environment.sleep)

    def use_pins(
        self,
        folder: Path,
        mode_of: Callable[[str], PinMode],
        ignored_of: Callable[[str, str], Sequence[str]] | None = None,
    ) -> None:
        """Compare the definitions that servers send with the pins (approved definitions) in `folder`, from now on.

        `mode_of` returns the setting `pins` of a server, `ignored_of` the parts of an item that are not compared. Call
        this method before the servers are started.
        """
        from toolway.catalog.pin_keeper import PIN_FILE_NAME, PinFile, PinKeeper

        self.set_pins(
            PinKeeper(
                PinFile(folder / PIN_FILE_NAME),
                mode_of,
                self._environment.wall_clock,
                self.review_again,
                self.emit,
                lambda seconds, poll: asyncio.get_running_loop().call_later(seconds, poll),
                ignored_of,
                lambda work, on_done: asyncio.get_running_loop().run_in_executor(None, work).add_done_callback(on_done),
            )
        )

    def set_pins(self, pins: Pins) -> None:
        """Compare the definitions that servers send with these pins (approved definitions) from now on.

        Call this method before the servers are started.
        """
        self._catalog.pins = self.pins = pins
        self._context.on_ready = self.instructions  # reviews them

    def apply_pin_mode(self) -> None:
        """Compare all lists with the pins (approved definitions) again, after the setting `pins` changed."""
        for server in self._catalog.servers():
            self.review_again(server)

    def instructions(self, server: str) -> str:
        """Return the instructions of a server; "" if it has none, is not ready, or they need approval."""
        negotiated = self.negotiated(server)
        return self._catalog.usable_instructions(server, negotiated.instructions) if negotiated is not None else ""

    def review_again(self, server: str) -> None:
        """Compare the received items of a server with its pins (approved definitions) again, after the pins changed."""
        for change in self._catalog.review_again(server):
            self.emit(change)

    def apply_search_settings(self, settings: SearchSettings) -> None:
        """Use these settings for the tool search from now on."""
        previous, self._search_settings = self._search_settings, settings
        if self._tool_search is not None:
            self._tool_search.set_learning(settings.learn)
            if dataclasses.replace(previous, learn=settings.learn) != settings:
                self._open_search_vectors()

    @property
    def search_vectors(self) -> Vectors | None:
        """Return the embedding search of this hub; None if none is configured, or nothing was searched yet."""
        return self._search_vectors

    @property
    def search_model(self) -> str:
        """Return the name of the model that the search uses; "" if it ranks by words alone."""
        return self._search_settings.model

    async def resolve_setting(self, text: str, key: str) -> str:
        """Return the text of a setting with its variables and secret references replaced by their values.

        `key` is the name of the setting in errors. Raises `ConfigError` if a value is not available.
        """
        from toolway.hub.secret_resolution import resolve_text

        return await resolve_text(text, key, self._environment.environ, self.spawner)

    def _open_search_vectors(self) -> None:
        """Let the tool search use the embedding model or endpoint of the settings, in place of the previous one."""
        from toolway.search.meaning import open_vectors

        assert self._tool_search is not None
        settings, environment = self._search_settings, self._environment

        async def get_key() -> str:
            return await self.resolve_setting(settings.key, "search.key")

        self._drop_search_vectors()
        open_store = environment.open_vector_store or partial(open_vector_store, environment.environ)
        self._search_vectors = open_vectors(settings, self._network_policy, get_key, open_store)
        self._tool_search.set_vectors(self._search_vectors)

    def _drop_search_vectors(self) -> None:
        """Close the embedding search of this hub in the background."""
        if self._search_vectors is not None:
            task = asyncio.get_running_loop().create_task(self._search_vectors.close())
            self._closing_vectors.add(task)
            task.add_done_callback(self._closing_vectors.discard)
            self._search_vectors = None

    def _server_facts(self) -> Mapping[str, ServerFacts]:
        """Return facts for the tool search about each server: description, failure, number of unapproved tools."""
        from toolway.search.tool_search import LazyFacts, ServerFacts

        def facts_of(upstream: Upstream) -> ServerFacts:
            negotiated, about = upstream.negotiated, ""
            if negotiated is not None:
                info = negotiated.server_info
                texts = (info.get("title"), info.get("description"), negotiated.instructions)
                about = ". ".join(text for text in texts if isinstance(text, str) and text)
            held = len(self._catalog.held_tools(upstream.name))
            return ServerFacts(about, upstream.state_word == "down", held)

        return LazyFacts(self._upstreams.upstreams, facts_of)

    @property
    def network_policy(self) -> NetworkPolicy:
        """Return the network policy for servers that are added from now on."""
        return self._network_policy

    def has_on_behalf_servers(self) -> bool:
        """Return True if a server is called with tokens that are exchanged for the tokens of its callers."""
        return any(each.auth is not None and each.auth.is_on_behalf for each in self._servers.values())

    def use_subject_tokens(self, source: SubjectTokens) -> None:
        """Set the source of callers' tokens.

        They are exchanged for tokens of the servers that are called on their behalf.
        """
        self._auth.subject_tokens = source

    def own_lists(self, caller: str) -> OwnLists | None:
        """Return the filter for the items that a caller sees of servers called on its behalf.

        None if the server is unknown.
        """
        if self._own_lists_known[0] != self._upstreams.changes:
            found = any(is_on_behalf(each) for each in self._servers.values())
            self._own_lists_known = (self._upstreams.changes, found)
        if not self._own_lists_known[1]:
            return None
        lists, subjects = self._context.caller_lists, self._auth.subject_tokens

        def has_token() -> bool:
            return subjects is not None and subjects.find_subject_token(caller) is not None

        return OwnLists(caller, lists, self._servers, self._catalog.has_list, has_token, self._start_for_caller)

    def _start_for_caller(self, name: str, caller: str) -> Upstream:
        return self._upstreams.per_caller.get_or_start(name, self._servers[name], caller)

    @property
    def servers(self) -> Mapping[str, Server]:
        """Return every configured server by name."""
        return self._servers

    @property
    def configured_servers(self) -> Mapping[str, Server]:
        """Return the servers of the configuration as it was last loaded, without later changes."""
        return self._configured

    @property
    def audit_writer(self) -> AuditWriter | None:
        """Return the writer of the audit log, or None if no log is written."""
        return self._audit_log.writer if self._audit_log is not None else None

    def negotiated(self, server: str) -> NegotiatedProtocol | None:
        """Return the protocol era, version and capabilities negotiated with a server, or None if it is not ready."""
        upstream = self._upstreams.upstreams.get(server)
        return upstream.negotiated if upstream is not None else None

    def server_info(self, server: str) -> ServerInfo | None:
        """Return what a server says about itself; None if it is not connected. Raises `NotFound` if it is unknown."""
        require_server(self._servers, server)
        negotiated = self.negotiated(server)
        if negotiated is None:
            return None
        about = {name: found for name, found in negotiated.server_info.items() if isinstance(found, str)}
        return ServerInfo(
            server,
            about.get("name", ""),
            about.get("version", ""),
            about.get("title", ""),
            negotiated.version,
            negotiated.era,
            negotiated.capabilities,
            self.instructions(server),
        )

    def unavailable_error(self, server: str) -> CallError | None:
        """Return the error of a call to a server that is not ready; None if it is ready, or its tools are known."""
        try:
            upstream = self._upstreams.require_upstream(server)
        except ServerUnavailable as exc:
            return exc
        if upstream.state is State.READY or self._catalog.has_list(server, "tools"):
            return None
        return upstream.create_unavailable_error()

    def server_state(self, server: str) -> StateWord:
        """Return the state of a server, as in `ServerStatus`; "disabled" if it is disabled or unknown."""
        upstream = self._upstreams.upstreams.get(server)
        return upstream.state_word if upstream is not None else "disabled"

    @property
    def server_changes(self) -> int:
        """Return a number that grows whenever a server or its state changes, to find out if anything has changed."""
        return self._context.state_changes + self._upstreams.changes

    def tool_effect(self, tool: Tool) -> Effect:
        """Return the effect class of a listed tool, by settings and annotations."""
        return self._policies.tool_policy(tool).default_effect

    def definition_hash(self, tool: Tool) -> str:
        """Return a hash of a listed tool's definition."""
        return self._policies.tool_policy(tool).definition_hash

    def era(self, server: str) -> Era | None:
        """Return the protocol era of a server, or the last known one if it is not ready."""
        upstream = self._upstreams.upstreams.get(server)
        return upstream.era if upstream is not None else None

    def is_with_peer(self, server: str) -> bool:
        """Return True if the present session of a server is with a peer that answers for it, such as another node."""
        upstream = self._upstreams.upstreams.get(server)
        return upstream is not None and upstream.is_with_peer

    async def wait_for_starting(self) -> None:
        """Wait for the tools of servers that are starting, but not long for those that do not answer."""
        starting = [name for name, each in self._upstreams.upstreams.items() if each.is_starting]
        await self.wait_for_lists(starting, "tools")

    async def wait_for_lists(self, servers: Iterable[str], kind: ListKind, wait: float | None = None) -> None:
        """Wait until each server's list of this kind is known, but not long for servers that do not answer.

        A server that is down is started for it. A list stored by an earlier run counts as known.
        """
        unlisted = [name for name in servers if not self._catalog.has_list(name, kind)]
        await self._upstreams.wait_for_lists(kind, unlisted, wait)

    async def wait_lists_known(
        self, servers: Iterable[str], kind: ListKind, timeout: float, *, urgent: bool = False
    ) -> None:
        """Wait up to `timeout` seconds until each server's list of this kind is known, or the server failed to start.

        A list stored by an earlier run counts as known. If `urgent`, these servers start at once, even if
        many servers are starting. Returns without an error after the timeout.
        """
        await self._upstreams.wait_lists_known(servers, kind, timeout, urgent=urgent)

    async def subscribe(self, server: str, kind: SubscriptionKind, name: str, owner: str) -> None:
        """Subscribe to changes of a resource or a task of a server.

        They arrive as `ResourceUpdated` and `TaskChanged` events. `owner` selects the connection; see
        `subscription_owner`. Raises `CallError` if the server is unknown, unavailable or rejects the subscription.
        """
        await self._upstreams.subscribe(server, kind, name, owner)

    def unsubscribe(self, server: str, kind: SubscriptionKind, name: str, owner: str) -> None:
        """Undo one `subscribe` with the same arguments."""
        self._upstreams.unsubscribe(server, kind, name, owner)

    def ensure_started(self, name: str) -> None:
        """Start a lazy server, even if earlier starts failed. An unknown server is ignored."""
        upstream = self._upstreams.upstreams.get(name)
        if upstream is not None:
            upstream.ensure_started()

    def import_lists(self, name: str, lists: Mapping[str, list[Any]]) -> None:
        """Replace the known tools, prompts and resources of a server by the lists that another node has fetched."""
        self._context.import_lists(name, lists)

    def subscription_owner(self, server: str, caller: str) -> str:
        """Return the caller id if the caller uses a per-caller connection, or "" for the shared one."""
        return self._upstreams.subscription_owner(server, caller)

    def emit(self, event: Event) -> None:
        """Deliver an event to all sinks and subscribers."""
        self._context.emit(event)

    def _require_open(self) -> None:
        if not self._upstreams.is_open:
            raise closed_error()

    def _now(self) -> float:
        return self._loop.time()
