"""Calls that callbacks began (hub/flight.py) and that a coroutine in the middleware chain took over.

There are two kinds, so one can never be mistaken for the other. A `SentFlight` was sent, so the coroutine can
only wait for its result. An `UnsentFlight` was not sent, because its intent (the audit record written before a call
is sent) was not in the log yet, or because the call would have had to wait. It holds no slot. The chain may send it
as soon as its intent is on disk.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from msgspec.structs import replace

from toolway.hub.dispatch import SentCall
from toolway.hub.plan import Plan
from toolway.types import Call, CallResult, TimedCallState
from toolway.upstream.transport import RequestExchange

if TYPE_CHECKING:
    from toolway.hub.flight import Flights


class TakenOverCall(ABC):
    """A call that callbacks began and a coroutine now waits for."""

    __slots__ = ("_began", "_flights", "_plan", "_resumed", "call", "task")

    def __init__(self, flights: Flights, call: Call, plan: Plan, began: float, started_at: float) -> None:
        """Take over a call from callbacks, and record it as running.

        `began` and `started_at` both say when the call began: by the event loop's clock, and by `phase_clock`.
        """
        self._flights = flights
        self._plan = plan
        self._began = began
        self._resumed = False
        self.task: asyncio.Task[None] | None = None  # in which `resume` runs, if the caller had none
        policy = plan.policy
        self.call = flights.instrumentation.adopt(replace(call, effect=policy.default_effect, policy=policy))
        state = self.call.state
        state.caller = plan.caller
        if isinstance(state, TimedCallState):
            state.effect = policy.default_effect
            state.phase_marks[:] = [(phase, started_at) for phase, _ in state.phase_marks]
        if plan.has_intent:
            flights.require_audit().adopt(self.call)

    async def resume(self) -> CallResult:
        """Wait for the call's result. Raises `CallError` if there is none."""
        self._resumed = True
        return await self._wait()

    def discard(self) -> None:
        """Give up the call and record it as cancelled. Does nothing if `resume` was awaited.

        Called if the caller was cancelled before it could await `resume`.
        """
        if self._resumed:
            return
        self._resumed = True
        self._abandon()
        if self._plan.has_intent:
            self._flights.require_audit().record_cancelled(self.call)
        self._flights.instrumentation.on_cancelled(self.call, self._flights.now() - self._began)

    @abstractmethod
    async def _wait(self) -> CallResult:
        """Wait for the result of the call."""

    @abstractmethod
    def _abandon(self) -> None:
        """Release the call's concurrency slot, and tell its server that the call is cancelled."""


class SentFlight(TakenOverCall):
    """A call that callbacks sent. It keeps its concurrency slot, and the coroutine can only wait for its result."""

    __slots__ = ("_sent",)

    def __init__(
        self,
        flights: Flights,
        call: Call,
        plan: Plan,
        exchange: RequestExchange,
        began: float,
        started_at: float,
        sent_at: float,
    ) -> None:
        super().__init__(flights, call, plan, began, started_at)
        self._sent = SentCall(plan.upstream, plan.session, exchange, plan.tool)
        state = self.call.state
        state.begin_attempt()
        exchange.attach(state)
        if isinstance(state, TimedCallState):
            marks = state.phase_marks
            marks[:] = [(phase, started_at if phase == "queue" else sent_at) for phase, _ in marks]
        plan.session.adopt(self.call)

    async def _wait(self) -> CallResult:
        return await self._flights.resume(self.call, self._sent, self._plan, self._began)

    def _abandon(self) -> None:
        self._plan.limiter.release(self._plan.caller)
        self._plan.session.abandon(self.call, self._sent.exchange)


class UnsentFlight(TakenOverCall):
    """A call that callbacks began but did not send.

    It may be sent once `intent` is done, which means that its audit record is on disk.
    """

    __slots__ = ("_intent",)

    def __init__(
        self, flights: Flights, call: Call, plan: Plan, intent: asyncio.Future[None], began: float, started_at: float
    ) -> None:
        super().__init__(flights, call, plan, began, started_at)
        self._intent = intent

    async def _wait(self) -> CallResult:
        return await self._flights.send(self.call, self._intent, self._began)

    def _abandon(self) -> None:
        """Do nothing, because the call holds no slot and no server has received it."""
