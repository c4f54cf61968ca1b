"""A hub's upstreams: the configured servers and their supervised connections.

Changes are synchronous. They await nothing, so each one sees the complete result of the one before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

import msgspec

from toolway._async import gather_all
from toolway.auth.manager import AuthManager
from toolway.catalog.catalog import Catalog
from toolway.catalog.persister import CatalogPersister
from toolway.catalog.tool_access import ToolAccess
from toolway.config.schema import Server
from toolway.errors import ServerUnavailable, closed_error
from toolway.hub.source import server_fingerprint
from toolway.hub.upstream_context import HubUpstreamContext
from toolway.middleware.circuit_breaker import CircuitBreakers
from toolway.middleware.concurrency import ConcurrencyLimiter
from toolway.middleware.resolve import require_server
from toolway.middleware.retry import RetryBudget
from toolway.upstream.context import UpstreamContext
from toolway.upstream.per_caller import CallerUpstreamContext, PerCallerUpstreams
from toolway.upstream.state import StateWord
from toolway.upstream.status import HealthResult, ServerStatus, with_pause
from toolway.upstream.upstream import Upstream

# -------------------- retiring
# Draining of removed or replaced upstreams: running calls finish, then the upstream stops.
#
# A new definition gets new calls at once. It starts next to an old upstream that still has calls, but only after one
# without calls has stopped: two processes may need the same file or port, and an idle one can stop first.


DRAIN_TIMEOUT_S: Final = 30.0  # for running calls, unless their own deadline is earlier
DRAIN_POLL_INTERVAL_S: Final = 0.05  # between two checks for running calls; an event would cost every call


class DrainingUpstreams:
    """Removed or replaced upstreams (server connections) that finish their calls, then stop."""

    def __init__(self, context: UpstreamContext) -> None:
        self._context = CallerUpstreamContext(context)  # their events do not concern the server that now has this name
        self._tasks: dict[asyncio.Task[None], Upstream] = {}

    def add(self, upstreams: Iterable[Upstream]) -> list[asyncio.Task[None]]:
        """Let these upstreams finish their calls, then stop them.

        Return one task per upstream, which ends when it has stopped.
        """
        return [self._add_one(upstream) for upstream in upstreams]

    def _add_one(self, upstream: Upstream) -> asyncio.Task[None]:
        upstream.drain(self._context)
        task = asyncio.get_running_loop().create_task(self._drain(upstream))
        self._tasks[task] = upstream
        task.add_done_callback(self._tasks.pop)
        return task

    async def _drain(self, upstream: Upstream) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + DRAIN_TIMEOUT_S
        while upstream.is_busy and not upstream.is_stopping and loop.time() < until:  # noqa: ASYNC110 - an event costs more
            await asyncio.sleep(DRAIN_POLL_INTERVAL_S)
        await upstream.stop()

    def pending(self, name: str) -> asyncio.Task[None] | None:
        """Return the task that is stopping a server's previous upstream, or None if that upstream has running calls.

        The server's new upstream awaits this task before it starts.
        """
        found = [task for task, upstream in self._tasks.items() if upstream.name == name and not upstream.is_busy]
        return found[-1] if found else None

    async def close(self) -> None:
        """Stop all draining upstreams now, including their running calls."""
        await asyncio.gather(*(upstream.stop() for upstream in self._tasks.values()), return_exceptions=True)
        await asyncio.gather(*self._tasks, return_exceptions=True)


DrainTasks = list[asyncio.Task[None]]  # one per upstream that was replaced or removed and still drains


class UpstreamManager:
    """Starts, replaces and drains the upstreams (supervised connections) of all servers.

    `on_definition_changed` is called with the name of every changed or removed server. `describe_time` returns the
    time of day that is a number of seconds from now.
    """

    def __init__(
        self,
        servers: dict[str, Server],
        context: HubUpstreamContext,
        catalog: Catalog,
        persister: CatalogPersister,
        breakers: CircuitBreakers,
        auth: AuthManager,
        on_definition_changed: Callable[[str], None],
        describe_time: Callable[[float], str],
    ) -> None:
        self.servers = servers
        self.upstreams: dict[str, Upstream] = {}
        self.per_caller = PerCallerUpstreams(context)
        self.limiters: dict[str, ConcurrencyLimiter] = {}
        self.retry_budgets: dict[str, RetryBudget] = {}
        self.is_open = False
        self.changes = 0  # of the servers so far: added, removed or replaced
        self.context = context
        self.catalog = catalog
        self.persister = persister
        self.breakers = breakers
        self.auth = auth
        self._on_definition_changed = on_definition_changed
        self._describe_time = describe_time
        self._draining = DrainingUpstreams(context)
        #: Servers that a list did not get in time, with the time until which it counts.
        self.late: dict[str, float] = {}
        self._run_time_denied: dict[str, tuple[str, ...]] = {}  # deny lists that replace the configured ones

    # -- lifecycle ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.is_open = True
        for name in self.servers:
            self._start_upstream(name)

    async def close(self) -> None:
        """Stop all servers concurrently."""
        self.is_open = False
        upstreams = [*self.upstreams.values(), *self.per_caller.remove()]
        self.upstreams.clear()
        self.changes += 1
        stops = [upstream.stop() for upstream in upstreams]
        await gather_all([*stops, self.per_caller.wait_stopped(), self._draining.close()])

    def add(self, name: str, server: Server) -> None:
        self.servers[name] = server
        if self.is_open:
            self._start_upstream(name)

    def remove(self, name: str) -> DrainTasks:
        del self.servers[name]
        self._run_time_denied.pop(name, None)
        return self._retire(name)

    def replace(self, name: str, server: Server) -> DrainTasks:
        if self._differs_in_tool_lists_only(self.servers[name], server):
            self.servers[name] = server
            self._apply_tool_lists(name)
            return []
        drain_tasks = self._retire(name)
        self.add(name, server)
        return drain_tasks

    def reconcile(self, desired: Mapping[str, Server]) -> dict[str, str]:
        """Add, remove and replace servers to match `desired`.

        Return "added", "removed" or "changed" by server name.
        """
        changes: dict[str, str] = {}
        for name in [name for name in self.servers if name not in desired]:
            changes[name] = "removed"
            self.remove(name)
        for name, server in desired.items():
            if name not in self.servers:
                changes[name] = "added"
                self.add(name, server)
            elif server != self.servers[name]:
                changes[name] = "changed"
                self.replace(name, server)
        return changes

    def set_denied_tools(self, name: str, names: tuple[str, ...] | None) -> None:
        """Replace a server's deny list until it is removed. None restores the configured one."""
        if names is None:
            self._run_time_denied.pop(name, None)
        else:
            self._run_time_denied[name] = names
        if self.is_open:
            self._apply_tool_lists(name)

    @staticmethod
    def _differs_in_tool_lists_only(old: Server, new: Server) -> bool:
        return new == replace(old, allowed_tools=new.allowed_tools, denied_tools=new.denied_tools)

    def _apply_tool_lists(self, name: str) -> None:
        """Apply a server's changed allow and deny lists without a restart.

        Emit an event if its visible tools change.
        """
        changed = self.catalog.set_access(name, self._tool_access(name))
        if changed is not None:
            self.context.emit(changed)

    def _tool_access(self, name: str) -> ToolAccess | None:
        return ToolAccess.from_server(name, self.servers[name], self._run_time_denied.get(name))

    def _start_upstream(self, name: str) -> None:
        self.changes += 1
        self.late.pop(name, None)
        server = self.servers[name]
        fingerprint = server_fingerprint(server)
        self.catalog.add_server(name, self._tool_access(name), fingerprint)
        era_hint = self.persister.load(name, fingerprint)
        if late_for := self.persister.late_for(name):
            self.late[name] = asyncio.get_running_loop().time() + late_for
        self.limiters[name] = ConcurrencyLimiter(server.limits)
        self.retry_budgets[name] = RetryBudget()
        self.breakers.remove_server(name)
        if server.auth is not None and server.auth.is_on_behalf:
            self.auth.per_user_servers.add(name)
            server = replace(server, lazy=True)  # the hub itself has no credential for it
        if server.enabled:
            upstream = self.upstreams[name] = Upstream(name, server, self.context, era_hint)
            upstream.start(after=self._draining.pending(name))

    def _retire(self, name: str) -> DrainTasks:
        """Remove a server's upstreams. They stop after their running calls, or after 30 s.

        Return one task per upstream, which ends when it has stopped.
        """
        self.changes += 1
        upstream = self.upstreams.pop(name, None)
        shared = [upstream] if upstream is not None else []
        self.catalog.remove_server(name)
        self._on_definition_changed(name)
        return self._draining.add([*shared, *self.per_caller.remove(name)])

    def reset_failures(self, name: str) -> None:
        """Reset a server's circuit breakers, rate-limit pauses and failed logins."""
        self.breakers.remove_server(name)
        self.limiters[name].paused_until = 0.0
        self.auth.reset_failures(name)

    def require_open(self) -> None:
        """Raise the closed-hub error unless the hub is open."""
        if not self.is_open:
            raise closed_error()

    # -- lookup -------------------------------------------------------------------------------------------------------

    def require_upstream(self, name: str) -> Upstream:
        """Return the server's upstream that all callers share.

        Raises `NotFound` if the server is unknown, and `ServerUnavailable` if it is disabled or the hub is closed.
        """
        upstream = self.upstreams.get(name)
        if upstream is None or name not in self.servers:
            require_server(self.servers, name)
            reason = "it is disabled" if self.is_open else "the hub is closed"
            raise ServerUnavailable(f"{name} is not running", server=name, detail=reason)
        return upstream

    def uses_per_caller_connections(self, name: str, upstream: Upstream) -> bool:
        """Return True if each caller needs a separate connection to the server.

        Legacy servers (before 2026-07-28) and per-user logins need that.
        """
        server = self.servers[name]
        if server.share_connection or server.transport == "memory":
            return False
        return upstream.era == "legacy" or self.auth.is_per_user(name)

    def status(self, name: str) -> ServerStatus:
        upstream = self.upstreams.get(name)
        if upstream is None:
            state: StateWord = "disabled" if self.is_open else "idle"
            reason = "disabled in its entry" if self.is_open else "the hub is not running"
            return ServerStatus(name, self.servers[name].transport, state, why=reason)
        status = upstream.status()
        pause = self.limiters[name].paused_until - asyncio.get_running_loop().time()
        if pause > 0:
            status = with_pause(status, pause, self._describe_time(pause))
        return msgspec.structs.replace(
            status,
            tools=len(self.catalog.tools(name)),
            denied_tools=self.catalog.count_denied(name),
            stale=self.catalog.is_stale(name),
            problems=self.catalog.problems(name),
        )

    async def check_health(self, names: Iterable[str], timeout: float, *, start: bool) -> dict[str, HealthResult]:
        """Check concurrently whether these servers respond, each within `timeout` seconds.

        If `start` is True, start those that are not running.
        """
        found = {name: HealthResult(name, None, self.status(name).state) for name in names}
        upstreams = [upstream for name in found if (upstream := self.upstreams.get(name)) is not None]
        results = await asyncio.gather(*(each.check_health(timeout, start=start) for each in upstreams))
        return found | {result.server: result for result in results}
