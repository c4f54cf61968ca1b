"""What a hub gives its upstreams (server connections): transports, and where to send events and lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from toolway.auth.manager import AuthManager
from toolway.catalog.catalog import Catalog
from toolway.catalog.masked_items import mask_items
from toolway.catalog.persister import CatalogPersister
from toolway.config.masking import find_environment_secrets, find_named_values, find_result_secrets
from toolway.config.schema import Server
from toolway.config.secrets import needs_resolution
from toolway.events import CatalogChanged, Connected, Event, ListKind, StateChanged
from toolway.hub.caller_lists import CallerLists, has_own_lists
from toolway.hub.environment import HubEnvironment
from toolway.hub.instrumentation import Instrumentation
from toolway.hub.secret_resolution import DeferredTransport, resolve_secrets
from toolway.middleware.circuit_breaker import CircuitBreakers
from toolway.protocol.headers import check_header_schema
from toolway.secrets.server_secrets import secrets_of
from toolway.types import ClientCallbacks, Era, Json
from toolway.upstream.process.spawner import Spawner
from toolway.upstream.start_policy import StartLimiter
from toolway.upstream.transport import Transport


class HubUpstreamContext:
    """Everything that a hub's upstreams (server connections) need from it."""

    def __init__(
        self,
        environment: HubEnvironment,
        callbacks: ClientCallbacks,
        spawner: Spawner,
        auth: AuthManager,
        servers: Mapping[str, Server],
        catalog: Catalog,
        persister: CatalogPersister,
        breakers: CircuitBreakers,
        instrumentation: Instrumentation,
    ) -> None:
        self.callbacks = callbacks
        self.start_limiter = StartLimiter(max(4, 2 * environment.cores))
        self._environment = environment
        self._spawner = spawner
        self._auth = auth
        self._servers = servers
        self._catalog = catalog
        self._persister = persister
        self._breakers = breakers
        self._instrumentation = instrumentation
        self.caller_lists = CallerLists()
        self.state_changes = 0  # of all upstreams so far
        self.on_ready: Callable[[str], object] | None = None  # called with a server that became ready

    @property
    def random(self) -> Callable[[], float]:
        return self._environment.random

    # -- transports ---------------------------------------------------------------------------------------------------

    def open_transport(self, name: str, server: Server, caller: str = "") -> Transport:
        if self._environment.wrap_transport is not None:
            return self._environment.wrap_transport(
                name, caller, partial(self._open_local_transport, name, server, caller)
            )
        return self._open_local_transport(name, server, caller)

    def _open_local_transport(self, name: str, server: Server, caller: str) -> Transport:
        if not needs_resolution(server):
            return self._create_transport(name, server, caller)

        async def create_with_secrets() -> Transport:
            resolved = await resolve_secrets(
                server, self._environment.environ, self._spawner, on_secret=secrets_of(name).add
            )
            return self._create_transport(name, resolved, caller)

        return DeferredTransport(create_with_secrets)

    async def resolve_secrets(self, server: Server) -> Server:
        """Return the server's definition with secret references and variables replaced by their values.

        Raises `ToolwayError` if a secret or variable is not available.
        """
        return (
            await resolve_secrets(server, self._environment.environ, self._spawner)
            if needs_resolution(server)
            else server
        )

    def _create_transport(self, name: str, server: Server, caller: str) -> Transport:
        known = secrets_of(name)
        for secret in find_result_secrets(server):
            known.add(secret)
        known.set_environment(find_environment_secrets())
        known.set_names(find_named_values(server))
        authorizer = self._auth.authorizer(name, server, caller)
        return self._environment.create_transport(name, server, self._spawner, self._environment.environ, authorizer)

    # -- events and lists ---------------------------------------------------------------------------------------------

    def emit(self, event: Event) -> None:
        if isinstance(event, Connected):
            self._breakers.on_reconnect(event.server)
        elif isinstance(event, StateChanged):
            self.state_changes += 1
            if self.on_ready is not None and event.new == "ready":
                self.on_ready(event.server)
        self._instrumentation.emit(event)

    def update_list(
        self, server: str, kind: ListKind, items: list[Any], problems: list[str], era: Era
    ) -> CatalogChanged | None:
        check_tool = None
        server_config = self._servers.get(server)  # None while the server is being removed
        if kind == "tools" and era == "modern" and server_config is not None and server_config.transport == "http":
            check_tool = _check_header_params
        changed = self._catalog.replace(server, kind, items, problems, check_item=check_tool)
        self._persister.schedule_save(server, era)
        return changed

    def has_caller_lists(self, server: str) -> bool:
        return has_own_lists(self._servers.get(server))

    def update_caller_list(
        self, server: str, caller: str, kind: ListKind, items: list[Any], problems: list[str], era: Era
    ) -> CatalogChanged | None:
        known = self.caller_lists.names(server, kind, caller)
        # Masked now: the token of this caller may be forgotten when the next caller gets its list.
        items, skipped = mask_items(server, kind, items)
        listed = self.caller_lists.record(server, kind, caller, items)
        changed = self.update_list(server, kind, listed, [*problems, *skipped], era)
        if self.caller_lists.names(server, kind, caller) != known:
            self._catalog.generation += 1  # what this caller sees has changed, even if the catalog has not
            if changed is None:
                changed = CatalogChanged(server, kind)
        if changed is not None:
            self.emit(changed)
        return changed

    def pinned_digests(self, server: str, tools: list[Any]) -> dict[str, str]:
        digests = self._catalog.pinned_digests(server, tools)
        self._catalog.generation += bool(digests)  # a plan for the calls of the connection was made without them
        return digests

    def is_pinned(self, server: str, tool: str, digest: str) -> bool:
        return not digest or self._catalog.is_pinned(server, tool, digest)

    def is_list_missing(self, server: str, kind: ListKind) -> bool:
        return self._auth.is_per_user(server) and not self._catalog.has_list(server, kind)


def _check_header_params(tool: Json) -> str | None:
    """Return what is wrong with the mapping from a tool's arguments to HTTP headers, or None if it is usable."""
    return check_header_schema(tool["inputSchema"])
