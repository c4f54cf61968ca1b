"""Set of upstreams of a hub: the configured servers and their running upstreams (supervised connections).

Changes are synchronous: none awaits anything, so each sees the complete result of the previous one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

import msgspec

from toolway._async import gather_all, wait_until_settled, with_timeout
from toolway.auth.manager import AuthManager
from toolway.catalog.catalog import Catalog
from toolway.catalog.persister import CatalogPersister
from toolway.catalog.storage import LATE_MEMORY_S
from toolway.catalog.tool_access import ToolAccess
from toolway.config.schema import Server, check_tool_names
from toolway.errors import ServerUnavailable
from toolway.events import ListKind
from toolway.hub.source import server_fingerprint
from toolway.middleware.circuit_breaker import CircuitBreakers
from toolway.middleware.concurrency import ConcurrencyLimiter
from toolway.middleware.resolve import require_server
from toolway.middleware.retry import RetryBudget
from toolway.upstream.context import UpstreamContext
from toolway.upstream.per_caller import CallerUpstreamContext, PerCallerUpstreams
from toolway.upstream.state import State, StateWord
from toolway.upstream.status import HealthResult, ServerStatus, with_pause
from toolway.upstream.subscriptions import SubscriptionKind
from toolway.upstream.upstream import Upstream

LIST_WAIT_S: Final = 2.0  # seconds that a list of several servers waits for servers that have not answered yet
LATE_LIST_WAIT_S: Final = 0.25  # the same for a server that was late before
NAMED_LIST_WAIT_S: Final = 30.0  # seconds that the list of one server waits for it

# -------------------- retiring
# Draining of removed or replaced upstreams: running calls finish, then the upstream stops.
#
# A new definition gets new calls at once. It starts next to an old upstream that still has calls, but only after one
# without calls has stopped: two processes may need the same file or port, and an idle one needs no overlap.


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
        """Return the task that stops the previous upstream of a server, if that has no running calls; else None.

        The new upstream of the server awaits this task before it starts.
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

    `on_definition_changed` is called with the name of every changed or removed server.
    """

    def __init__(
        self,
        servers: dict[str, Server],
        context: UpstreamContext,
        catalog: Catalog,
        persister: CatalogPersister,
        breakers: CircuitBreakers,
        auth: AuthManager,
        on_definition_changed: Callable[[str], None],
    ) -> None:
        self.servers = servers
        self.upstreams: dict[str, Upstream] = {}
        self.per_caller = PerCallerUpstreams(context)
        self.limiters: dict[str, ConcurrencyLimiter] = {}
        self.retry_budgets: dict[str, RetryBudget] = {}
        self.is_open = False
        self.changes = 0  # of the servers so far: added, removed or replaced
        self.describe_time: Callable[[float], str] = lambda seconds: f"in {seconds:.0f} s"  # clock time in `seconds`
        self.per_caller_in_cluster: Callable[[str], bool] | None = None  # only in a cluster: see `HubEnvironment`
        self._context = context
        self._catalog = catalog
        self._persister = persister
        self._breakers = breakers
        self._auth = auth
        self._on_definition_changed = on_definition_changed
        self._draining = DrainingUpstreams(context)
        self._late: dict[
            str, float
        ] = {}  # servers that a list did not get in time, with the time until which it counts
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
        """Add, remove and replace servers until the configured servers are `desired`.

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

    def set_denied_tools(self, name: str, names: Iterable[str] | None) -> None:
        """Replace the deny list of a server until it is removed. None restores the configured one.

        Raises `NotFound` if the server is unknown, `ConfigError` if `names` is not a list of strings.
        """
        require_server(self.servers, name)
        if names is None:
            self._run_time_denied.pop(name, None)
        else:
            self._run_time_denied[name] = check_tool_names("names", names)
        if self.is_open:
            self._apply_tool_lists(name)

    @staticmethod
    def _differs_in_tool_lists_only(old: Server, new: Server) -> bool:
        return new == replace(old, allowed_tools=new.allowed_tools, denied_tools=new.denied_tools)

    def _apply_tool_lists(self, name: str) -> None:
        """Apply the changed allow and deny lists of a server without a restart.

        Emit an event if its visible tools change.
        """
        changed = self._catalog.set_access(name, self._tool_access(name))
        if changed is not None:
            self._context.emit(changed)

    def _tool_access(self, name: str) -> ToolAccess | None:
        return ToolAccess.from_server(name, self.servers[name], self._run_time_denied.get(name))

    def _start_upstream(self, name: str) -> None:
        self.changes += 1
        self._late.pop(name, None)
        server = self.servers[name]
        fingerprint = server_fingerprint(server)
        self._catalog.add_server(name, self._tool_access(name), fingerprint)
        era_hint = self._persister.load(name, fingerprint)
        if late_for := self._persister.late_for(name):
            self._late[name] = asyncio.get_running_loop().time() + late_for
        self.limiters[name] = ConcurrencyLimiter(server.limits)
        self.retry_budgets[name] = RetryBudget()
        self._breakers.remove_server(name)
        if server.auth is not None and server.auth.is_on_behalf:
            self._auth.per_user_servers.add(name)
            server = replace(server, lazy=True)  # the hub itself has no credential for it
        if server.enabled:
            upstream = self.upstreams[name] = Upstream(name, server, self._context, era_hint)
            upstream.start(after=self._draining.pending(name))

    def _retire(self, name: str) -> DrainTasks:
        """Remove the upstreams of a server. They stop after their running calls, at most 30 s.

        Return one task per upstream, which ends when it has stopped.
        """
        self.changes += 1
        upstream = self.upstreams.pop(name, None)
        shared = [upstream] if upstream is not None else []
        self._catalog.remove_server(name)
        self._on_definition_changed(name)
        return self._draining.add([*shared, *self.per_caller.remove(name)])

    def restart(self, name: str) -> None:
        """Restart a server now, in any state, and reset its circuit breakers and login failures.

        Raises `NotFound` if the server is unknown, `ServerUnavailable` if it is disabled or the hub is closed.
        """
        self.require_upstream(name).restart()
        self._late.pop(name, None)
        self.reset_failures(name)

    def reset_failures(self, name: str) -> None:
        """Forget the failures of a server: reset its circuit breakers, rate-limit pauses and failed logins."""
        self._breakers.remove_server(name)
        self.limiters[name].paused_until = 0.0
        self._auth.reset_failures(name)

    # -- lookup -------------------------------------------------------------------------------------------------------

    def require_upstream(self, name: str) -> Upstream:
        """Return the upstream of a server that all callers share.

        Raises `NotFound` if the server is unknown, `ServerUnavailable` if it is disabled or the hub is closed.
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
        return upstream.era == "legacy" or self._auth.is_per_user(name)

    def subscription_owner(self, server: str, caller: str) -> str:
        """Return the caller id if the caller's subscriptions use a per-caller connection, else ""."""
        if self.uses_per_caller_connections(server, self.require_upstream(server)):
            return caller
        is_per_caller = (
            self.per_caller_in_cluster is not None
            and self.per_caller_in_cluster(server)
            and not self.servers[server].share_connection
        )
        return caller if is_per_caller else ""

    async def subscribe(self, server: str, kind: SubscriptionKind, name: str, owner: str) -> None:
        upstream = self.require_upstream(server)
        if owner:
            upstream = self.per_caller.get_or_start(server, self.servers[server], owner)
        await upstream.subscribe(kind, name)

    def unsubscribe(self, server: str, kind: SubscriptionKind, name: str, owner: str) -> None:
        upstream = self.per_caller.get(server, owner) if owner else self.upstreams.get(server)
        if upstream is not None:
            upstream.subscriptions.remove(kind, name)

    def status(self, name: str) -> ServerStatus:
        upstream = self.upstreams.get(name)
        if upstream is None:
            state: StateWord = "disabled" if self.is_open else "idle"
            reason = "disabled in its entry" if self.is_open else "the hub is not running"
            return ServerStatus(name, self.servers[name].transport, state, why=reason)
        status = upstream.status()
        pause = self.limiters[name].paused_until - asyncio.get_running_loop().time()
        if pause > 0:
            status = with_pause(status, pause, self.describe_time(pause))
        return msgspec.structs.replace(
            status,
            tools=len(self._catalog.tools(name)),
            denied_tools=self._catalog.count_denied(name),
            stale=self._catalog.is_stale(name),
            problems=self._catalog.problems(name),
        )

    async def check_health(self, names: Iterable[str], timeout: float, *, start: bool) -> dict[str, HealthResult]:
        """Check now if these servers respond, all at once, each within `timeout` seconds.

        `start` starts those that do not run.
        """
        found = {name: HealthResult(name, None, self.status(name).state) for name in names}
        upstreams = [upstream for name in found if (upstream := self.upstreams.get(name)) is not None]
        results = await asyncio.gather(*(each.check_health(timeout, start=start) for each in upstreams))
        return found | {result.server: result for result in results}

    # -- waiting ------------------------------------------------------------------------------------------------------

    async def wait_list_fetched(self, kind: ListKind, server: str, timeout: float) -> None:
        """Wait until `server` has sent its list of this kind.

        Raises `ServerUnavailable` if it fails and `CallTimeout` after `timeout` seconds.
        """
        await with_timeout(timeout, self._wait_for_list(self.require_upstream(server), kind), server)

    async def wait_lists_known(self, servers: Iterable[str], kind: ListKind, timeout: float, *, urgent: bool) -> None:
        """Wait up to `timeout` seconds until each server's list of this kind is known, or the server failed to start.

        A list stored by an earlier run counts as known. If `urgent`, these servers start at once, even if
        many servers are starting. Returns without an error after the timeout.
        """
        unlisted = [name for name in servers if not self._catalog.has_list(name, kind)]
        await self.wait_for_lists(kind, unlisted, timeout, urgent=urgent)

    async def wait_for_lists(
        self, kind: ListKind, servers: Iterable[str], wait: float | None, *, urgent: bool = False
    ) -> list[str]:
        """Wait until these servers have sent their lists of this kind or have failed. Return those that have not sent.

        A server that is down is started for it. Waits at most `wait` seconds. None waits 2 s, and hardly for servers
        that kept a list waiting in the last minutes: so one server that does not answer delays lists once.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        waits = {
            name: asyncio.ensure_future(self._wait_for_list(self.upstreams[name], kind, urgent=urgent))
            for name in servers
            if name in self.upstreams
        }
        late = [each for name, each in waits.items() if wait is None and self.is_late(name)]
        others = [each for each in waits.values() if each not in late]
        try:
            if late:
                await asyncio.wait(waits.values(), timeout=LATE_LIST_WAIT_S)
            if others:
                left = (LIST_WAIT_S if wait is None else wait) - (clock() - began)
                await asyncio.wait(others, timeout=max(left, 0.0))
        finally:
            missing = [name for name, each in waits.items() if not self._has_answered(name, kind, each)]
            await wait_until_settled(0, [*waits.values()])
        if wait is None:
            for name in [each for each in missing if not self.is_late(each)]:
                self._late[name] = clock() + LATE_MEMORY_S
                if self.upstreams[name].state is State.STARTING:  # one that fails says so quickly in the next program
                    self._persister.mark_late(name)
        return missing

    def _has_answered(self, name: str, kind: ListKind, waiting: asyncio.Future[None]) -> bool:
        return waiting.exception() is None if waiting.done() else self._catalog.is_complete(name, kind)

    def is_late(self, name: str) -> bool:
        """Return True if a server kept a list waiting in the last minutes."""
        return asyncio.get_running_loop().time() < self._late.get(name, 0.0)

    async def _wait_for_list(self, upstream: Upstream, kind: ListKind, *, urgent: bool = True) -> None:
        await upstream.wait_list_fetched(kind, urgent=urgent)
        await self._catalog.wait_pins_stored(upstream.name)

    async def wait_ready(self, name: str | None, timeout: float | None) -> None:
        """Wait until the server `name`, or every enabled server, is ready.

        Raises `ServerUnavailable` as soon as one fails, and `CallTimeout` after `timeout` seconds.
        """
        chosen = [self.require_upstream(name)] if name is not None else list(self.upstreams.values())
        waiting = asyncio.gather(*(u.wait_ready(urgent=name is not None) for u in chosen))
        await with_timeout(timeout, waiting, name or "not every server")

    async def wait_first_starts(self, timeout: float | None) -> None:
        """Wait until the first start of each non-lazy server has succeeded or failed.

        Returns without an error after `timeout` seconds.
        """
        chosen = [u for u in self.upstreams.values() if not u.server.lazy]
        await wait_until_settled(timeout, [asyncio.ensure_future(u.wait_first_start()) for u in chosen])
