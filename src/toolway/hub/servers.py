"""A hub's servers: adds, changes, and restarts them, and reports their state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import msgspec

from toolway._async import wait_all, wait_until_settled, with_timeout
from toolway.config.schema import ServerLike, check_server_name, check_tool_names
from toolway.errors import CallError, ConfigError, ServerUnavailable
from toolway.events import ServerChanged
from toolway.hub.configured_servers import ConfiguredServers
from toolway.hub.logins import LoginService
from toolway.hub.server_logs import LogReaders
from toolway.hub.source import ConfigSource
from toolway.hub.upstreams import UpstreamManager
from toolway.middleware.circuit_breaker import BreakerStatus
from toolway.middleware.resolve import require_server, require_tool
from toolway.secrets.replacer import Mask
from toolway.types import Era, ToolRef
from toolway.upstream.negotiation import NegotiatedProtocol
from toolway.upstream.state import State, StateWord
from toolway.upstream.status import HealthResult, ServerInfo, ServerStatus, mask_status


class HubServers:
    """Manages the servers of a hub.

    `entries` maps each server's name to its definition. `mask` hides secrets in what is returned; None hides nothing.
    """

    def __init__(
        self,
        config: ConfiguredServers,
        upstreams: UpstreamManager,
        logs: LogReaders,
        unchecked: Callable[[str], tuple[str, ...]],
        mask: Mask | None,
    ) -> None:
        self.config = config
        self.upstreams = upstreams
        self.entries = upstreams.servers
        self.breakers = upstreams.breakers
        self.logins = LoginService(upstreams)
        self.logs = logs
        self._unchecked = unchecked  # problems of a server's schemas: arguments that are not checked
        self._mask = mask
        self._emit = upstreams.context.emit

    # -- changes ------------------------------------------------------------------------------------------------------

    async def add(self, name: str, server: ServerLike) -> None:
        """Add a server while the hub is running. Raises `ConfigError` if the name is taken."""
        if name in self.entries:
            raise ConfigError(
                f"duplicate server {name!r}", hint=f"use add_server({name!r}, …, replace=True)", code="E-CONFIG-NAME"
            )
        self.upstreams.add(check_server_name(name), self.config.complete(name, server))
        self._emit(ServerChanged(name, "added"))

    async def remove(self, name: str) -> None:
        """Remove a server and wait until it has stopped. Raises `NotFound` if it is unknown.

        Running calls may finish first; after 30 s the server is stopped anyway.
        """
        require_server(self.entries, name)
        drain_tasks = self.upstreams.remove(name)
        self._emit(ServerChanged(name, "removed"))
        await wait_all(drain_tasks)

    async def replace(self, name: str, server: ServerLike) -> None:
        """Change a server's definition. Does nothing if the new definition is equal.

        New calls use the new definition at once. Returns when the old server has stopped. Calls still running on it
        may finish first; after 30 s it is stopped anyway. Raises `NotFound` if the server is unknown.
        """
        new_server = self.config.complete(name, server)
        require_server(self.entries, name)
        if new_server != self.entries[name]:
            drain_tasks = self.upstreams.replace(name, new_server)
            self._emit(ServerChanged(name, "changed"))
            await wait_all(drain_tasks)

    async def reload(self, config: ConfigSource) -> dict[str, str]:
        """Load a configuration; add, change and remove servers. Unchanged servers keep running.

        Running calls to changed and removed servers may finish, as with `replace`.

        Returns:
            "added", "changed" or "removed" by server name.

        Raises:
            ConfigError: The configuration cannot be used; nothing was changed.
        """
        self.config.load(config)
        changes = self.upstreams.reconcile(self.config.servers)
        for name, change in changes.items():
            self._emit(ServerChanged(name, change))
        return changes

    def set_denied_tools(self, server: str, names: Iterable[str] | None) -> None:
        """Replace a server's deny list until it is removed, effective at once and without a restart.

        None restores the configured list. Running calls may finish. Raises `NotFound` if the server is unknown, and
        `ConfigError` if `names` is not a list of strings.
        """
        require_server(self.entries, server)
        self.upstreams.set_denied_tools(server, None if names is None else check_tool_names("names", names))

    def restart(self, name: str) -> None:
        """Restart a server now, in any state, and reset its circuit breakers and login failures.

        Raises `NotFound` if the server is unknown, and `ServerUnavailable` if it is disabled or the hub is closed.
        """
        self.upstreams.require_upstream(name).restart()
        self.upstreams.late.pop(name, None)
        self.upstreams.reset_failures(name)

    def ensure_started(self, name: str) -> None:
        """Start a lazy server, even if earlier starts failed. Unknown servers are ignored."""
        upstream = self.upstreams.upstreams.get(name)
        if upstream is not None:
            upstream.ensure_started()

    # -- waiting ------------------------------------------------------------------------------------------------------

    async def wait_ready(self, name: str | None = None, *, timeout: float | None = None) -> None:
        """Wait until the server `name`, or every enabled server, is ready.

        Raises `ServerUnavailable` as soon as one fails, and `CallTimeout` after `timeout` seconds.
        """
        upstreams = self.upstreams
        upstreams.require_open()
        chosen = [upstreams.require_upstream(name)] if name is not None else list(upstreams.upstreams.values())
        waiting = asyncio.gather(*(each.wait_ready(urgent=name is not None) for each in chosen))
        await with_timeout(timeout, waiting, name or "not every server")

    async def wait_first_starts(self, timeout: float | None = None) -> None:
        """Wait until each non-lazy server's first start has succeeded or failed.

        Returns without an error after `timeout` seconds, even if some have not.
        """
        chosen = [each for each in self.upstreams.upstreams.values() if not each.server.lazy]
        await wait_until_settled(timeout, [asyncio.ensure_future(each.wait_first_start()) for each in chosen])

    # -- status -------------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, ServerStatus]:
        """Return the current status of every server by name."""
        return {name: self._status(name) for name in self.entries}

    def _status(self, name: str) -> ServerStatus:
        status, unchecked = self.upstreams.status(name), self._unchecked(name)
        status = msgspec.structs.replace(status, problems=(*status.problems, *unchecked)) if unchecked else status
        return mask_status(status, self._mask) if self._mask is not None else status

    async def check_health(
        self, server: str | None = None, *, timeout: float = 5.0, start: bool = False
    ) -> dict[str, HealthResult]:
        """Check `server`, or all servers, right now. Raises `NotFound` if the server is unknown."""
        self.upstreams.require_open()
        if server is not None:
            require_server(self.entries, server)
        names = list(self.entries) if server is None else [server]
        results = await self.upstreams.check_health(names, timeout, start=start)
        mask = self._mask
        return {name: mask_status(each, mask) for name, each in results.items()} if mask is not None else results

    def info(self, server: str) -> ServerInfo | None:
        """Return a server's description of itself, or None if not connected. Raises `NotFound` if it is unknown."""
        require_server(self.entries, server)
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

    def negotiated(self, server: str) -> NegotiatedProtocol | None:
        """Return the protocol era, version and capabilities negotiated with a server, or None if it is not ready."""
        upstream = self.upstreams.upstreams.get(server)
        return upstream.negotiated if upstream is not None else None

    def instructions(self, server: str) -> str:
        """Return a server's instructions, or "" if it has none, is not ready, or they need review."""
        negotiated = self.negotiated(server)
        if negotiated is None:
            return ""
        return self.upstreams.catalog.usable_instructions(server, negotiated.instructions)

    def era(self, server: str) -> Era | None:
        """Return a server's protocol era, or the last known one if the server is not ready."""
        upstream = self.upstreams.upstreams.get(server)
        return upstream.era if upstream is not None else None

    def is_with_peer(self, server: str) -> bool:
        """Return True if a server's current session is with a peer that stands in for it, such as another node."""
        upstream = self.upstreams.upstreams.get(server)
        return upstream is not None and upstream.is_with_peer

    def state(self, server: str) -> StateWord:
        """Return a server's state, as in `ServerStatus`, or "disabled" if it is disabled or unknown."""
        upstream = self.upstreams.upstreams.get(server)
        return upstream.state_word if upstream is not None else "disabled"

    @property
    def changes(self) -> int:
        """Return a number that grows whenever a server or its state changes."""
        return self.upstreams.context.state_changes + self.upstreams.changes

    def unavailable_error(self, server: str) -> CallError | None:
        """Return the error for a call to a server that is not ready, or None if the server or its tools can be used."""
        try:
            upstream = self.upstreams.require_upstream(server)
        except ServerUnavailable as exc:
            return exc
        if upstream.state is State.READY or self.upstreams.catalog.has_list(server, "tools"):
            return None
        return upstream.create_unavailable_error()

    def load(self, server: str) -> tuple[int, int, int]:
        """Return a server's counters: queued calls, running retries, retries denied by the budget."""
        limiter, budget = self.upstreams.limiters.get(server), self.upstreams.retry_budgets.get(server)
        return (limiter.queued if limiter else 0, budget.active if budget else 0, budget.denied if budget else 0)

    # -- circuit breakers ---------------------------------------------------------------------------------------------

    def breaker_status(self) -> dict[tuple[str, str], BreakerStatus]:
        """Return the status of circuit breakers that are not closed or have counted failures.

        The keys are (server, tool). The breaker for a whole server has "" as its tool.
        """
        return self.breakers.status(asyncio.get_running_loop().time())

    def trip_breaker(self, server: str, tool: str = "") -> None:
        """Open the circuit breaker of a server, or of one of its tools, for a minute.

        Raises `NotFound` if the server or the tool is unknown.
        """
        require_server(self.entries, server)
        if tool:
            require_tool(self.upstreams.catalog, ToolRef(server, tool))
        self.breakers.trip(server, tool, asyncio.get_running_loop().time())

    def reset_breaker(self, server: str, tool: str = "") -> None:
        """Close the circuit breaker of a server, or of one of its tools.

        Raises `NotFound` if the server is unknown.
        """
        require_server(self.entries, server)
        self.breakers.reset(server, tool)
