"""Sends those tool calls of a program (`Hub.call_tool`) that can skip the middleware chain.

Such a call is a flight (hub/flight.py), which runs on the connection's callbacks. Only the caller's own task waits
for it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from toolway.catalog.catalog import Catalog
from toolway.hub.flight import PIPELINE_META_KEYS, Flight
from toolway.hub.plan import MIN_TIMEOUT_S, Plan, Planner
from toolway.hub.server_logs import LogReaders
from toolway.hub.taken_over import TakenOverCall
from toolway.types import Call, CallResult, Json, ToolResult
from toolway.upstream.transport import RequestExchange

if TYPE_CHECKING:
    from toolway.hub.calls import HubCalls

NO_PLAN_S: Final = 1.0  # seconds to remember that a name has no plan
MAX_NAMES: Final = 10_000


class LibraryFlights:
    """Sends `Hub.call_tool` calls as flights, which run on callbacks, without a task per call.

    It keeps a plan (hub/plan.py) for each tool name, so every decision is made once for all calls to a tool.
    """

    def __init__(self, calls: HubCalls, logs: LogReaders, catalog: Catalog, planner: Planner) -> None:
        self._calls = calls
        self._logs = logs
        self._catalog = catalog
        self._planner = planner
        self._plans: dict[str, Plan] = {}
        self._without_plan: dict[str, float] = {}  # until when

    def begin(self, name: str, arguments: Json, meta: Json | None, timeout: float | None) -> LibraryFlight | None:
        """Send a tool call as a flight, without the middleware chain. Await the flight's `wait()` for the result.

        Return None without sending anything if the call needs the middleware chain.
        """
        if (meta and not PIPELINE_META_KEYS.isdisjoint(meta)) or (timeout is not None and timeout < MIN_TIMEOUT_S):
            return None
        plan = self._plans.get(name)
        if plan is None or not plan.is_valid():
            plan = self._find_plan(name)
            if plan is None:
                return None
        level = self._logs.level
        if level is not None and plan.is_legacy and not plan.session.has_log_level(level):
            return None  # the pipeline sets it, once for the session
        flight = LibraryFlight(self._calls, plan, arguments, meta, timeout)
        flight.log_level = level
        return flight if flight.begin(plan.session.capabilities) else None

    def _find_plan(self, name: str) -> Plan | None:
        self._plans.pop(name, None)
        now = self._calls.flights.now()
        if now < self._without_plan.get(name, 0.0):
            return None
        ref = self._catalog.parse_name(name)
        tool = self._catalog.tool(ref) if ref is not None else None
        plan = self._planner.find(tool, "") if tool is not None else None
        for names in (self._plans, self._without_plan):
            if len(names) >= MAX_NAMES:
                names.clear()  # cheap to find again
        if plan is None:
            self._without_plan[name] = now + NO_PLAN_S
        else:
            self._plans[name] = plan
        return plan


class LibraryFlight(Flight):
    """A program's tool call that runs on callbacks, while the caller's task waits for the result."""

    __slots__ = ("_calls", "_future", "_taken", "_timeout")
    in_library = True

    def __init__(self, calls: HubCalls, plan: Plan, arguments: Json, meta: Json | None, timeout: float | None) -> None:
        flights = calls.flights
        super().__init__(flights, plan, arguments, flights.instrumentation.new_call_id(), meta)
        self._calls = calls
        self._timeout = timeout
        self._future: asyncio.Future[Json | None] = asyncio.get_running_loop().create_future()
        self._taken: TakenOverCall | None = None

    async def wait(self) -> CallResult:
        """Wait for the result. Raises `CallError` if the call ends without one."""
        try:
            result = await self._future
        except asyncio.CancelledError:
            self.take_over()
            if self._taken is not None:
                self._taken.discard()
            raise
        if self._taken is not None:
            return await self._taken.resume()
        assert result is not None
        return ToolResult(self.plan.tool.server, self.plan.tool.name, result, self.seconds)

    def on_intent(self, error: Exception | None) -> None:
        if self._future.done():  # the caller was cancelled, and its task is about to learn it: it must not be sent
            self.take_over()
        super().on_intent(error)

    def arrived(self, result: Json, frame: bytes) -> None:
        if self._future.done():  # the caller was cancelled, and its task is about to learn it
            self.take_over()
        else:
            super().arrived(result, frame)

    def land(self, result: Json, frame: bytes, exchange: RequestExchange) -> None:
        if not self._future.done():
            self._future.set_result(result)

    def hand_over(self, taken: TakenOverCall) -> None:
        self._taken = taken
        if not self._future.done():
            self._future.set_result(None)

    def build_call(self) -> Call:
        tool = self.plan.tool
        state = self._calls.new_call_state(keep_raw=False)
        return Call(
            self.plan.target,
            "tools/call",
            self.params,
            tool.server,
            tool.name,
            self._timeout,
            state=state,
            id=self.call_id,
            log_level=self.log_level,
        )
