"""A hub's calls: each `Call` goes through the middleware chain (middleware/chain.py), then hub/dispatch.py.

Ordinary tool calls skip the chain: see hub/plan.py and hub/flight.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from toolway.errors import CallError
from toolway.events import ServerPaused
from toolway.hub.call_policy import CallPolicies
from toolway.hub.dispatch import Dispatcher, OutputValidator
from toolway.hub.environment import HubEnvironment
from toolway.hub.event_stream import Watchdog
from toolway.hub.flight import Flights
from toolway.hub.instrumentation import Instrumentation
from toolway.hub.library_flights import LibraryFlight, LibraryFlights
from toolway.hub.lists import HubLists
from toolway.hub.plan import Planner
from toolway.hub.result_redaction import ResultRedaction, redact_stored
from toolway.hub.servers import HubServers
from toolway.middleware.approval import CallGate, approval
from toolway.middleware.arguments import ArgumentValidator, check_arguments
from toolway.middleware.cache import ResponseCache, response_cache
from toolway.middleware.chain import Answerers, Attempts, CallEntry, Chain, Gates, compose
from toolway.middleware.circuit_breaker import circuit_breaker
from toolway.middleware.concurrency import concurrency
from toolway.middleware.deadline import deadline
from toolway.middleware.idempotency import IdempotencyStore, MemoryIdempotencyStore, idempotency
from toolway.middleware.rate_limit import rate_limit
from toolway.middleware.replay import replay
from toolway.middleware.resolve import require_tool, resolve
from toolway.middleware.retry import retry
from toolway.middleware.single_flight import single_flight
from toolway.telemetry.hub_log import HubLog
from toolway.types import Call, CallHandler, CallResult, CallState, Effect, Json, Middleware, ToolRef
from toolway.upstream.error_mapping import mask_error

if TYPE_CHECKING:
    from toolway.audit.middleware import AuditMiddleware


class HubCalls:
    """Makes a hub's calls. `flights` are the running calls that no coroutine waits for."""

    flights: Flights  # set by `open`

    def __init__(
        self,
        servers: HubServers,
        lists: HubLists,
        policies: CallPolicies,
        instrumentation: Instrumentation,
        environment: HubEnvironment,
        watchdog: Watchdog,
        user_middleware: Sequence[Middleware],
        idempotency_store: IdempotencyStore | None,
        hub_log: HubLog,
        *,
        library: bool,
    ) -> None:
        self._servers = servers
        self._upstreams = upstreams = servers.upstreams
        self._lists = lists
        self._catalog = lists.catalog
        self.policies = policies
        self.instrumentation = instrumentation
        self._environment = environment
        self._watchdog = watchdog
        self._user_middleware = user_middleware
        self._idempotency_store = idempotency_store or MemoryIdempotencyStore(self._now)
        self._hub_log = hub_log
        self._library = library
        self._gate: CallGate | None = None  # None: no call needs an approval
        self._cache = ResponseCache(self._now)
        self._output_validator = OutputValidator()
        self.argument_validator = ArgumentValidator(policies.ignores_null)
        self._dispatcher = Dispatcher(
            upstreams,
            self._catalog,
            self._output_validator,
            self.argument_validator,
            policies,
            upstreams.auth,
            instrumentation,
            environment,
        )
        self.planner = Planner(
            upstreams,
            self._catalog,
            policies,
            upstreams.breakers,
            self.argument_validator,
            upstreams.auth,
            instrumentation,
            enabled=not user_middleware,
        )

    def open(self, audit: AuditMiddleware | None) -> None:
        """Build the middleware chain. Call this in the running event loop, before servers start."""
        self._loop = asyncio.get_running_loop()
        middleware = self._build_middleware(self._idempotency_store, self._loop.time, audit).stages
        self._chain = compose(middleware, self._dispatcher.dispatch)
        self.flights = Flights(
            self._loop.time,
            self.instrumentation,
            self._output_validator,
            self._dispatcher,
            middleware,
            audit,
            self._report_end,
            self._watchdog,
        )
        self.planner.audit = audit
        self._library_flights = LibraryFlights(self, self._servers.logs, self._catalog, self.planner)

    def _build_middleware(
        self, idempotency_store: IdempotencyStore, now: Callable[[], float], audit: Middleware | None
    ) -> Chain:
        policies, upstreams, environment = self.policies, self._upstreams, self._environment
        wait_all = self._lists.waits.wait_all_tools_known
        return Chain(
            CallEntry(
                resolve=resolve(self._catalog, self._servers.entries.keys(), policies.attach, wait_all),
                deadline=deadline(policies.total_timeout, now, self._watchdog.pause_before),
                user_middleware=self._user_middleware,
                idempotency=idempotency(idempotency_store),
            ),
            Gates(
                redaction=redact_stored(self._dispatcher.find_redactor),
                arguments=check_arguments(self.argument_validator),
                approval=approval(self._gate, self._wait_for_definition, self._definition_of)
                if self._gate is not None
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
                    upstreams.retry_budgets.__getitem__,
                    now,
                    environment.random,
                    environment.sleep,
                    self._on_attempt_failed,
                    policies.update,
                ),
                circuit_breaker=circuit_breaker(upstreams.breakers, now, self._ping_server, policies.is_process),
                rate_limit=rate_limit(policies.rate_limits, now, environment.sleep, environment.describe_time),
                concurrency=concurrency(
                    upstreams.limiters.__getitem__,
                    policies.queue_timeout,
                    now,
                    environment.describe_time,
                    self._on_pause,
                ),
            ),
        )

    def _on_pause(self, server: str, seconds: float) -> None:
        self.instrumentation.emit(ServerPaused(server, seconds))

    def _on_attempt_failed(self, call: Call, exc: CallError, retry_delay: float | None) -> None:
        self._hub_log.on_attempt_failed(call, exc, retry_delay)
        self.instrumentation.on_attempt_failed(call, exc, retry_delay)

    async def _ping_server(self, server: str) -> None:
        await self._upstreams.require_upstream(server).ping()

    def on_definition_changed(self, server: str) -> None:
        """Drop cached results and compiled schemas of a server whose definition changed."""
        self._cache.invalidate(server)
        self._output_validator.discard(server)
        self.argument_validator.discard(server)

    # -- calls --------------------------------------------------------------------------------------------------------

    def begin(self, name: str, arguments: Json, meta: Json | None, timeout: float | None) -> LibraryFlight | None:
        """Send a tool call without the middleware chain. Await `wait()` on the returned object to get the result.

        Return None without sending anything if the call must be sent with `request`.
        """
        return self._library_flights.begin(name, arguments, meta, timeout) if self._upstreams.is_open else None

    def request(self, call: Call) -> Coroutine[Any, Any, CallResult]:
        """Send a prepared call, with any MCP method, through the middleware chain.

        Return a coroutine that returns the result. It raises `CallError` if the call ends without one.
        """
        instrumentation = self.instrumentation
        is_observed = instrumentation.enabled if not call.forwarded else instrumentation.enabled_for_forwarded
        return self._observed(call) if is_observed else self._unobserved(call)

    async def _unobserved(self, call: Call) -> CallResult:
        if not self._upstreams.is_open:
            self._upstreams.require_open()
        began = self._loop.time()
        try:
            reply = await self._chain(call)
        except CallError as exc:
            if self._library:
                mask_error(exc, self._hub_log.mask)
                self._hub_log.on_error(exc, may_repeat=self._may_repeat(call, exc))
            raise
        return replace(reply, duration=self._loop.time() - began)

    def _may_repeat(self, call: Call, exc: CallError) -> bool:
        """Return True if it is safe to make a failed call again, whether or not it ran."""
        if call.method != "tools/call":
            return True  # it reads
        tool = self._catalog.find_tool(exc.server, exc.tool)
        return tool is not None and self.policies.tool_policy(tool).default_effect is not Effect.UNSAFE

    async def _observed(self, call: Call) -> CallResult:
        if not self._upstreams.is_open:
            self._upstreams.require_open()
        began = self._loop.time()
        return await self._report_end(self.instrumentation.on_start(call), self._chain, began)

    async def _report_end(self, call: Call, handler: CallHandler, began: float) -> CallResult:
        """Await a call's result from `handler`, and report the call's end to sinks, subscribers, and the tracer.

        `began` is the time when the call began. Raises `CallError` if the call ends without a result.
        """
        instrumentation = self.instrumentation
        try:
            reply = await handler(call)
        except CallError as exc:
            if self._library:
                mask_error(exc, self._hub_log.mask)
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

    def running(self) -> list[Call]:
        """Return the running calls, oldest first. Without a sink, subscriber, or tracer, none are tracked."""
        if not self.instrumentation.enabled:
            return []
        return [*self.instrumentation.running_calls.values(), *self.flights.calls()]

    def new_call_state(self, *, keep_raw: bool, forwarded: bool = False) -> CallState:
        """Create the state for a new call. It times the call's phases if anything observes calls."""
        instrumentation = self.instrumentation
        return (instrumentation.state_type if not forwarded or instrumentation.enabled_for_forwarded else CallState)(
            keep_raw=keep_raw
        )

    # -- redaction and approvals --------------------------------------------------------------------------------------

    def redact_results(self) -> None:
        """From now on, redact results: remove the server's secrets and everything that its `redact` setting lists."""
        self._dispatcher.redaction = ResultRedaction(lambda: self._servers.entries)
        self.planner.redacts = True

    def use_gate(self, gate: CallGate) -> None:
        """Let `gate` decide on every call before it is sent. It may ask an administrator or the user.

        Call this method before the hub is opened.
        """
        self._gate = self.planner.gate = gate
        self.policies.approval_rules = gate.rules_for
        self.on_approval_rules_changed()

    def on_approval_rules_changed(self) -> None:
        """Apply changed approval rules from the next call to each tool on."""
        self.policies.on_rules_changed()
        self.planner.approval_rules += 1

    async def _wait_for_definition(self, call: Call) -> Call:
        """Wait until the server has sent its tool list, and return the call with its tool's current policy.

        A definition stored by an earlier run is not enough, because the user must approve the tool that is called
        now. Raises `CallError` if the server has no such tool, if it does not send its list in time, or if the
        arguments do not match.
        """
        await self._lists.waits.wait_fetched("tools", call.server, max(0.0, call.deadline - self._now()))
        tool = require_tool(self._catalog, ToolRef(call.server, call.name))
        call = self.policies.attach(call, tool)
        if call.policy.tool_to_check is not None and call.earlier is None:
            self.argument_validator.check(call, tool)
        return call

    def _definition_of(self, server: str, name: str) -> str:
        tool = self._catalog.find_tool(server, name)
        return self.policies.tool_policy(tool).definition_hash if tool is not None and not tool.stale else ""

    def _now(self) -> float:
        return self._loop.time()
