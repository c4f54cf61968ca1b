"""Handlers for changes made by other nodes; announces our own ownership changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Final

from toolway.cluster.db.instances import Ownership, ServerInstance
from toolway.cluster.db.tokens import DbTokenStore
from toolway.cluster.node_context import NodeContext
from toolway.cluster.replication.change_feed import ChangeFeed
from toolway.cluster.replication.config import ConfigSource
from toolway.config.loader import LoadedConfig
from toolway.hub.servers import HubServers
from toolway.middleware.circuit_breaker import CircuitBreakers
from toolway.types import Json

MAX_ANNOUNCED: Final = 200  # acquisitions announced in one message
BREAKER_MESSAGE_KIND: Final = "breakers"
_MAX_TOOL_NAME_CHARS: Final = 300  # characters of a name

ApplyConfig = Callable[[LoadedConfig], Awaitable[None]]


class ChangeHandlers:
    """Applies other nodes' changes to this node's hub.

    `apply_config` applies a changed configuration, which is attributed to `file`.
    """

    def __init__(
        self,
        context: NodeContext,
        config_source: ConfigSource,
        token_store: DbTokenStore,
        servers: HubServers,
        file: str,
        apply_config: ApplyConfig,
    ) -> None:
        self._context = context
        self._config_source = config_source
        self._token_store = token_store
        self._servers = servers
        self._file = file
        self._apply_config = apply_config

    def register(self, feed: ChangeFeed, *, shares_config: bool = True) -> None:
        """Register all handlers with the change feed. Call this before the feed starts.

        `shares_config` is False if each node reads the configuration itself.
        """
        if shares_config:
            feed.on_change("registry", self._on_config_changed)
        feed.on_change("lists", self._on_catalog_changed)
        feed.on_change("logins", self._on_logins_changed)
        feed.on_message("instances", self._on_ownership_changed)
        feed.on_message("restart", self._on_restart_requested)
        SharedBreakers(self._servers.breakers, lambda: self._servers.entries, self._context.router.has_owner).register(
            feed
        )

    async def _on_config_changed(self, since: int) -> None:
        found = await self._config_source.reload(self._file)
        if found is not None:
            await self._apply_config(found)

    async def _on_catalog_changed(self, since: int) -> None:
        for server in await self._context.shared_catalog.refresh(since):
            self._context.router.on_catalog_changed(server)

    async def _on_logins_changed(self, since: int) -> None:
        await self._token_store.load_revisions()

    def _on_ownership_changed(self, body: Json) -> None:
        acquired = body.get("took")
        if isinstance(acquired, list):
            self._context.owner_cache.update(
                Ownership(ServerInstance(t, s, i), node, fence) for t, s, i, node, fence in acquired
            )
        if not acquired:
            self._context.wake()  # a node joined, or released an instance

    def _on_restart_requested(self, body: Json) -> None:
        """Restart a server at the request of another node, if this node owns the server."""
        server = body.get("server")
        if isinstance(server, str) and self._context.owns(server):
            self._servers.restart(server)


def announce_ownership(feed: ChangeFeed, acquired: Sequence[Ownership], released: Sequence[Ownership]) -> None:
    """Publish to the other nodes which server instances this node acquired.

    At most MAX_ANNOUNCED acquisitions are announced, to keep the message small. Nodes find the other owners in the
    database on demand. Releases are announced by a message without instances.
    """
    rows = [
        [each.instance.tenant, each.instance.server, each.instance.index, each.node, each.fence]
        for each in acquired[:MAX_ANNOUNCED]
    ]
    feed.publish("instances", {"took": rows})


class SharedBreakers:
    """Circuit breakers shared by all nodes of a cluster: if a server fails at one, all avoid it.

    If a server has an owner node, all calls go through it, and a failed call to the owner says nothing about the
    server, so only the breakers of single tools are published. A manual change applies everywhere. Messages are not
    stored: a node that missed one finds out from its own calls.

    `servers()` returns the configured servers. `has_owner(server)` returns True if only the owner calls a server.
    """

    def __init__(
        self, breakers: CircuitBreakers, servers: Callable[[], Collection[str]], has_owner: Callable[[str], bool]
    ) -> None:
        self._breakers = breakers
        self._servers = servers
        self._has_owner = has_owner

    def register(self, feed: ChangeFeed) -> None:
        """Connect the circuit breakers of this node to the change feed, in both directions."""
        feed.on_message(BREAKER_MESSAGE_KIND, self.handle_message)
        self._breakers.on_opened = partial(self._publish_opened, feed)
        self._breakers.on_manual_change = partial(self._publish_manual_change, feed)

    def _publish_opened(self, feed: ChangeFeed, server: str, tool: str, wait: float) -> None:
        if tool or not self._has_owner(server):
            feed.publish(
                BREAKER_MESSAGE_KIND, {"server": server, "tool": tool, "wait": round(wait, 3), "manual": False}
            )

    def _publish_manual_change(self, feed: ChangeFeed, server: str, tool: str, wait: float) -> None:
        feed.publish(BREAKER_MESSAGE_KIND, {"server": server, "tool": tool, "wait": round(wait, 3), "manual": True})

    def handle_message(self, message: Json) -> None:
        """Apply a circuit-breaker change that another node published. Invalid messages are ignored."""
        server, tool, wait = message.get("server"), message.get("tool"), message.get("wait")
        if not isinstance(server, str) or not isinstance(tool, str) or len(tool) > _MAX_TOOL_NAME_CHARS:
            return
        if server not in self._servers() or not isinstance(wait, int | float) or not wait >= 0:
            return
        now = asyncio.get_running_loop().time()
        self._breakers.apply_remote(server, tool, wait, now, manual=message.get("manual") is True)
