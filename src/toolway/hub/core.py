"""The engine of a hub: it builds, opens and closes everything behind `Hub`.

Used by `Hub` and by the gateway. `HubCore` builds the parts in `__init__` and starts them in `__aenter__`.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from toolway.auth.encrypted_token_store import default_token_store
from toolway.auth.manager import AuthManager
from toolway.auth.token_store import DEFAULT_TOKENS
from toolway.callbacks import FunctionCallbacks
from toolway.catalog.catalog import Catalog
from toolway.catalog.persister import CatalogPersister
from toolway.catalog.storage import CatalogStorage
from toolway.config.locations import own_folders
from toolway.config.masking import create_mask
from toolway.config.schema import Server
from toolway.config.settings import AuditSettings, alert_settings_from
from toolway.events import Alert, Event
from toolway.hub.call_policy import CallPolicies
from toolway.hub.calls import HubCalls
from toolway.hub.configured_servers import ConfiguredServers
from toolway.hub.core_options import LoginOptions, Reporting, ServerDefaults
from toolway.hub.environment import HubEnvironment
from toolway.hub.event_stream import EventBroadcaster, Watchdog
from toolway.hub.instrumentation import Instrumentation
from toolway.hub.lists import HubLists
from toolway.hub.server_logs import LogReaders
from toolway.hub.servers import HubServers
from toolway.hub.source import (
    DEFAULT_CATALOG,
    ConfigSource,
    default_runtime_dir,
    open_catalog_storage,
)
from toolway.hub.upstream_context import HubUpstreamContext
from toolway.hub.upstreams import UpstreamManager
from toolway.middleware.circuit_breaker import CircuitBreakers
from toolway.middleware.idempotency import IdempotencyStore
from toolway.middleware.user_middleware import user_middleware
from toolway.telemetry.alerts import AlertDelivery, AlertDetector
from toolway.telemetry.hub_log import HubLog
from toolway.telemetry.otel_attributes import server_attributes
from toolway.types import ClientCallbacks, Middleware
from toolway.upstream.error_mapping import mask_error
from toolway.upstream.process.spawner import Spawner

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from toolway.audit.log import AuditLog
    from toolway.audit.middleware import AuditMiddleware
    from toolway.audit.writer import AuditWriter
    from toolway.search.tool_search import ServerFacts, ToolSearch
    from toolway.upstream.upstream import Upstream


class HubCore:
    """A hub's engine: `servers` supervises the servers, `lists` knows what they offer, and `calls` calls them.

    Programs use `Hub`, which has a smaller interface with examples. The arguments are the same as in `Hub`, except:

    Args:
        callbacks: Answers the requests of all servers (elicitation, sampling, roots). None rejects them.
        library: True if a `Hub` uses this engine: it logs calls and servers, and its hints name methods of `Hub`.
        environment: Replacements for randomness, sleep, and transports, for tests and the cluster.
    """

    def __init__(
        self,
        config: ConfigSource = None,
        *,
        defaults: ServerDefaults = ServerDefaults(),  # noqa: B008 - it is frozen
        callbacks: ClientCallbacks | None = None,
        logins: LoginOptions = LoginOptions(),  # noqa: B008 - it is frozen
        idempotency_store: IdempotencyStore | None = None,
        catalog_storage: str | os.PathLike[str] | CatalogStorage | None = DEFAULT_CATALOG,
        reporting: Reporting = Reporting(),  # noqa: B008 - it is frozen
        middleware: Sequence[Middleware] = (),
        library: bool = False,
        environment: HubEnvironment | None = None,
    ) -> None:
        self._environment = environment = environment if environment is not None else HubEnvironment()
        self.mask = create_mask(lambda: entries)  # hides secrets of the server entries in strings from servers
        stages = user_middleware(middleware, lambda exc: mask_error(exc, self.mask))
        configured = ConfiguredServers(config, defaults)
        entries = dict(configured.servers)
        self._broadcaster = EventBroadcaster()
        self.instrumentation = Instrumentation(self._broadcaster, environment.wall_clock)
        self._watchdog = Watchdog(self.instrumentation.emit, environment.stall_threshold)
        self.spawner = Spawner(default_runtime_dir(environment.environ), own_folders(environment.environ))
        self._upstreams = self._build_upstreams(
            entries,
            callbacks if callbacks is not None else FunctionCallbacks(None, None, None),
            logins,
            catalog_storage,
        )
        #: Delivers an event to all sinks and subscribers.
        self.emit: Callable[[Event], None] = self._upstreams.context.emit
        self._logs = LogReaders(self._broadcaster, reporting.log_callback, reporting.log_level, self.mask)
        self.policies = CallPolicies(entries, self._upstreams.catalog)
        self._library = library
        self._hub_log = HubLog(self.mask, lambda call: self.policies.retry_policy(call).max_attempts)
        self.servers = HubServers(
            configured,
            self._upstreams,
            self._logs,
            lambda name: self.calls.argument_validator.problems(name),
            self.mask if library else None,
        )
        self.lists = HubLists(self.servers, environment, self.mask)
        self.calls = HubCalls(
            self.servers,
            self.lists,
            self.policies,
            self.instrumentation,
            environment,
            self._watchdog,
            stages,
            idempotency_store,
            self._hub_log,
            library=library,
        )
        self._build_reporting(reporting)
        self._tool_search: ToolSearch | None = None
        #: called with the tool search when it is created, on first use
        self.on_tool_search: Callable[[ToolSearch], None] = lambda search: None

    def _build_upstreams(
        self,
        entries: dict[str, Server],
        callbacks: ClientCallbacks,
        logins: LoginOptions,
        catalog_storage: str | os.PathLike[str] | CatalogStorage | None,
    ) -> UpstreamManager:
        environment, tokens = self._environment, logins.tokens
        if tokens is DEFAULT_TOKENS:
            tokens = default_token_store(environment.environ)
        self._auth = AuthManager(
            logins.callback, tokens, on_login=lambda name, caller: self.servers.logins.on_login(name, caller)
        )
        catalog = Catalog()
        storage = open_catalog_storage(catalog_storage, environment.environ)
        self._persister = CatalogPersister(catalog, storage, lambda event: self.emit(event))
        breakers = CircuitBreakers(environment.random)
        context = HubUpstreamContext(
            environment,
            callbacks,
            self.spawner,
            self._auth,
            entries,
            catalog,
            self._persister,
            breakers,
            self.instrumentation,
        )
        return UpstreamManager(
            entries,
            context,
            catalog,
            self._persister,
            breakers,
            self._auth,
            self._on_definition_changed,
            environment.describe_time,
        )

    def _on_definition_changed(self, server: str) -> None:
        self._upstreams.context.caller_lists.forget(server)
        self.calls.on_definition_changed(server)

    def _build_reporting(self, reporting: Reporting) -> None:
        policy = self.servers.config.network_policy
        self._audit_log: AuditLog | None = None
        if reporting.audit_log is not None:
            from toolway.audit.log import AuditLog

            settings = AuditSettings.from_location(reporting.audit_log)
            self._audit_log = AuditLog(settings, self.emit, self.servers.entries, policy)
        if self._logs.sink is not None:
            self.instrumentation.add_sink(self._logs.sink)
        self.alert_detector = AlertDetector(
            self.emit, self.mask, wants_calls=reporting.alerts is not None, for_library=self._library
        )
        self.instrumentation.add_sink(self.alert_detector)
        self._alert_delivery: AlertDelivery | None = None
        if reporting.alerts is not None:
            self._alert_delivery = AlertDelivery(alert_settings_from(reporting.alerts), policy)
            self.instrumentation.add_sink(self._alert_delivery)

    # -- lifecycle ----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._library:
            self._hub_log.read_level()
            self.instrumentation.add_sink(self._hub_log)
        if self._alert_delivery is not None:  # before the audit log, which reports calls that a crash left open
            for key, at in await self._alert_delivery.start():
                self.alert_detector.add_known(key, at)
        try:
            audit = await self._open_audit(self._audit_log) if self._audit_log is not None else None
        except BaseException:
            if self._alert_delivery is not None:
                await self._alert_delivery.close()
            raise
        self.calls.open(audit)
        self._watchdog.start()
        self._upstreams.start()
        return self

    async def _open_audit(self, audit_log: AuditLog) -> AuditMiddleware:
        """Open the audit log. Raises `ConfigError` if it is damaged or not writable."""
        middleware = await audit_log.open(self.policies.definition_hash)
        if audit_log.recorder is not None:
            self.instrumentation.add_sink(audit_log.recorder)
        return middleware

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop all servers at once and wait up to about 6 s for them to exit.

        A process that does not exit by itself is killed.
        """
        await self._upstreams.close()
        self.calls.flights.close()
        await self._auth.close()
        await self._persister.close()
        if self.lists.pins is not None:
            self.lists.pins.close()
        await self.spawner.close()
        if self._audit_log is not None:
            await self._audit_log.close()
        if self._alert_delivery is not None:
            await self._alert_delivery.close()
        if self._logs.sink is not None:
            await self._logs.sink.close()
        self._watchdog.stop()
        self.instrumentation.close()
        self._broadcaster.close()

    # -- observation --------------------------------------------------------------------------------------------------

    def events(self, *types: type[Event], masked: bool = False) -> AsyncIterator[Event]:
        """Iterate over events from now on, of these types or all; `masked` hides secrets in their strings.

        A slow consumer loses events and gets an `EventsMissed` with the count.
        """
        return self._broadcaster.subscribe(*types, mask=self.mask if masked else None)

    def enable_tracing(self, provider: TracerProvider | None = None, sample_ratio: float | None = None) -> None:
        """Record calls as OpenTelemetry spans. Requires `toolway[otel]`.

        Args:
            provider: Tracer provider; None uses the program's global one.
            sample_ratio: Share of calls to record if the caller sent no trace context; None lets the provider decide.
        """
        from opentelemetry.trace import get_tracer

        from toolway._version import __version__
        from toolway.telemetry.tracing import OtelTracer

        tracer = get_tracer("toolway", __version__, provider)
        self.instrumentation.set_tracer(OtelTracer(tracer, self._server_attributes, sample_ratio, self.mask))

    def _server_attributes(self, name: str) -> Mapping[str, Any]:
        """Return the span attributes that describe a server's address and protocol."""
        server, negotiated = self.servers.entries.get(name), self.servers.negotiated(name)
        return server_attributes(server, negotiated.version if negotiated is not None else "")

    @property
    def audit_writer(self) -> AuditWriter | None:
        """Return the audit log writer, or None without an audit log."""
        return self._audit_log.writer if self._audit_log is not None else None

    def use_alert_links(self, link_of: Callable[[Alert], str]) -> None:
        """Add a URL to each alert that is sent to the webhook: a page about the alert, or "" if there is none."""
        if self._alert_delivery is not None:
            self._alert_delivery.link_of = link_of

    async def resolve_setting(self, text: str, key: str) -> str:
        """Return the value of a setting with its variables and secret references replaced.

        `key` is the setting's name in errors. Raises `ConfigError` if a value is not available.
        """
        from toolway.hub.secret_resolution import resolve_text

        return await resolve_text(text, key, self._environment.environ, self.spawner)

    # -- search -------------------------------------------------------------------------------------------------------

    @property
    def tool_search(self) -> ToolSearch:
        """Return the search over this hub's known tools, created on first use."""
        if self._tool_search is None:
            from toolway.search.tool_search import ToolSearch

            self._tool_search = ToolSearch(
                self.lists.catalog,
                self._server_facts,
                hash_definition=lambda tool: self.policies.tool_policy(tool).definition_hash,
            )
            self.on_tool_search(self._tool_search)
        return self._tool_search

    async def open_tool_search(self) -> ToolSearch:
        """Return the same search as `tool_search`, without blocking the event loop.

        The search modules are imported in a thread, because that takes 10 ms or more.
        """
        if self._tool_search is None:
            await asyncio.to_thread(importlib.import_module, "toolway.search.tool_search")
        return self.tool_search

    def _server_facts(self) -> Mapping[str, ServerFacts]:
        """Return what tool search needs to know about each server: description, failure, unreviewed tools."""
        from toolway.search.tool_search import LazyFacts, ServerFacts

        def facts_of(upstream: Upstream) -> ServerFacts:
            negotiated, about = upstream.negotiated, ""
            if negotiated is not None:
                info = negotiated.server_info
                texts = (info.get("title"), info.get("description"), negotiated.instructions)
                about = ". ".join(text for text in texts if isinstance(text, str) and text)
            held = len(self.lists.catalog.held_tools(upstream.name))
            return ServerFacts(about, upstream.state_word == "down", held)

        return LazyFacts(self.servers.upstreams.upstreams, facts_of)
