"""Flight: one call under way without a task, driven by callbacks. This file is the life of such a call.

    begin      check, take a slot, send
    arrived    a plain result: release the slot, record the success, pass the result on, report the call
    failed     anything else arrived, or nothing: the pipeline takes over
    left       the caller has gone: the pipeline takes over and is cancelled

A flight does only what every call does. For everything unusual it hands the call to the pipeline, the middleware chain
in which a coroutine waits: `take_over`. The pipeline gets a `SentCall`, and `Flights.resume` can only wait for that. It
enters below every check that rejects calls, and owns the slot of the flight. So a call that was sent can neither be
sent again nor be reported as not sent. Only the rules of `middleware/retry.py` may send it again, by its certainty.

The mechanisms (slots, breakers, budget, validators) are the same objects and functions that the chain uses.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, Final, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from toolway.errors import Certainty
from toolway.events import AttemptFinished, CallFinished
from toolway.hub.dispatch import Dispatcher, OutputValidator, SentCall
from toolway.hub.instrumentation import Instrumentation
from toolway.hub.plan import Plan, add_trace_context
from toolway.middleware.chain import compose
from toolway.middleware.circuit_breaker import CLOSED, CircuitBreakerMiddleware, record_success
from toolway.middleware.concurrency import ConcurrencyMiddleware
from toolway.middleware.deadline import DeadlineMiddleware
from toolway.middleware.retry import RetryMiddleware
from toolway.protocol.constants import LOG_LEVEL_META_KEY
from toolway.telemetry.call_batch import SMALL_REQUEST_BYTES
from toolway.types import Call, CallHandler, CallResult, Json, Middleware, TimedCallState, phase_clock
from toolway.upstream.session import Session
from toolway.upstream.transport import RequestExchange, TransportError

MAX_FLIGHT_S: Final = 1.0  # seconds after which the pipeline takes over: it has deadline, drain and keep-alive
SWEEP_INTERVAL_S: Final = 1.0
#: Keys of a caller's `_meta` that need the pipeline; every other key is passed on.
PIPELINE_META_KEYS: Final = frozenset({"progressToken", "traceparent", "tracestate", "baggage", LOG_LEVEL_META_KEY})
_EXECUTED: Final = Certainty.EXECUTED
_log = logging.getLogger(__name__)


class CallOrigin(NamedTuple):
    """Origin of a call in a cluster: data for the node that it is forwarded to."""

    principal: str  # id
    principal_name: str
    endpoint: str
    request_id: str  # `X-Request-ID` that the client sent
    timeout: float | None  # seconds that the client gives the call, if it says so


class Flight(ABC):
    """One call under way that is driven by callbacks; no coroutine waits for its result."""

    __slots__ = (
        "_began",
        "_exchange",
        "_flights",
        "_is_over",
        "_started_at",
        "arguments",
        "call_id",
        "encoded_arguments",
        "log_level",
        "meta",
        "plan",
        "request_bytes",
    )

    is_forwarded: ClassVar[bool] = False  # another node of a cluster sent the call, and reports it
    in_library: ClassVar[bool] = False  # the caller is a program, whose current trace the call may belong to

    def __init__(self, flights: Flights, plan: Plan, arguments: Json, call_id: str, meta: Json | None = None) -> None:
        self._flights = flights
        self.plan = plan
        self.arguments = arguments
        self.call_id = call_id
        self.meta = meta  # what the caller adds to the `_meta` of the request
        self.log_level: str | None = None  # lowest level of log messages that the caller wants during the call
        self.request_bytes = 0  # number of bytes of the request; 0 if unknown
        self.encoded_arguments = b""  # the arguments as JSON, if the caller sent them as we would
        self._is_over = False
        self._exchange: RequestExchange

    # -- what the side of the caller implements -----------------------------------------------------------------------

    @abstractmethod
    def build_call(self) -> Call:
        """Return the `Call` that the middleware chain would have got, with a new state.

        Its `name` is the tool name that the server uses.
        """

    @abstractmethod
    def land(self, result: Json, frame: bytes, id: int) -> None:
        """Pass the result on to the caller.

        `frame` is the whole response as received, with the JSON-RPC id `id`. It is empty if it contains more than a
        result.
        """

    @abstractmethod
    def hand_over(self, taken: TakenOverCall) -> None:
        """Let a coroutine of the caller await `taken.resume()`. If it never starts, call `taken.discard()`."""

    def origin(self) -> CallOrigin | None:
        """Return where the call entered a cluster; None if it must not be forwarded without the pipeline."""
        return None

    # -- the life of a call -------------------------------------------------------------------------------------------

    def begin(self, capabilities: Json) -> bool:
        """Send the call. Return False, with nothing sent, if it needs the middleware chain."""
        plan, flights = self.plan, self._flights
        limiter = plan.limiter
        if plan.server_breaker.state is not CLOSED or plan.tool_breaker.state is not CLOSED:
            return False
        if limiter.paused_until and limiter.is_paused(flights.now):
            return False
        if plan.validator is not None:
            try:
                if not plan.validator.is_valid(self.arguments, self.request_bytes):
                    return False
            except ValueError:
                return False  # a value that is not JSON
        context: str | None = ""  # of the trace that the call is left out of
        if flights.instrumentation.is_tracing and not self.is_forwarded:
            context = flights.instrumentation.skip_trace(in_library=self.in_library)
        if context is None or not limiter.acquire_nowait(plan.caller):
            return False
        exchange = None
        try:
            meta: msgspec.Raw | Json | None = plan.meta
            if plan.capabilities is not capabilities or plan.log_level is not self.log_level or self.meta is not None:
                meta = plan.meta_for(capabilities, self.meta, self.log_level)
            if context:
                meta = add_trace_context(meta, context)
            params = b""
            if self.encoded_arguments and type(meta) is msgspec.Raw:
                params = b'%b%b,"_meta":%b}' % (plan.params_start, self.encoded_arguments, meta)
            exchange = plan.session.start(
                plan.tool.name,
                self.arguments,
                meta,
                self,
                has_callbacks=not self.in_library,
                encoded_params=params,
            )
        except (TransportError, TypeError, ValueError, OverflowError, RecursionError):
            pass  # nothing was sent; the pipeline says why
        finally:
            if exchange is None:
                limiter.release(plan.caller)
        if exchange is None:
            return False
        self._exchange = exchange
        self._began = now = flights.now()
        self._started_at = phase_clock()
        plan.budget.record_attempt(now)
        flights.add(self)
        if flights.instrumentation.wants_attempts and not self.is_forwarded:
            flights.instrumentation.on_sent(self.build_call())
        return True

    def arrived(self, result: Json, frame: bytes) -> None:
        """Pass a complete, valid result on to the caller; hand any other one to a coroutine.

        Called by the transport.
        """
        plan, flights = self.plan, self._flights
        if (
            "content" not in result
            or result.get("resultType", "complete") != "complete"
            or ("structuredContent" in result and not flights.has_valid_output(plan, result))
        ):
            self.take_over()
            return
        self._is_over = True
        flights.flying.discard(self)
        flights.landed += 1
        now = flights.now()
        plan.limiter.release(plan.caller)
        plan.session.end_flight(now)
        plan.upstream.mark_used(now)
        record_success(plan.server_breaker, plan.tool_breaker, now)
        try:  # an exception must not reach the connection to the server, whose callback this is
            try:
                self.land(result, frame, self._exchange.id)
            finally:
                if flights.instrumentation.enabled and not self.is_forwarded:
                    self._report(result)
        except Exception:
            _log.exception("the result of %s could not be passed on or reported", plan.target)

    def failed(self) -> None:
        """Let a coroutine wait for the outcome of the call. The transport calls it if no plain result has arrived."""
        self.take_over()

    def take_over(self) -> TakenOverCall | None:
        """Hand the call to a coroutine, which waits for its result.

        Return what the coroutine gets; None if the call has ended, or was handed over before.
        """
        if self._is_over:
            return None
        self._is_over = True
        flights = self._flights
        flights.flying.discard(self)
        flights.taken_over += 1
        taken = TakenOverCall(flights, self.build_call(), self.plan, self._exchange, self._began, self._started_at)
        self.hand_over(taken)
        return taken

    # -- details ------------------------------------------------------------------------------------------------------

    @property
    def params(self) -> Json:
        """Return the params of the request, without the `_meta` that each request has."""
        params: Json = {"name": self.plan.tool.name, "arguments": self.arguments}
        if self.meta:
            params["_meta"] = self.meta
        return params

    @property
    def seconds(self) -> float:
        """Return the seconds since the call began."""
        return phase_clock() - self._started_at

    def is_long(self, now: float) -> bool:
        return now - self._began >= MAX_FLIGHT_S

    def _report(self, result: Json) -> None:
        plan, tool, ended, began = self.plan, self.plan.tool, phase_clock(), self._started_at
        seconds = ended - began
        queued = ("queue", began)
        outcome = "tool_error" if result.get("isError") is True else "ok"
        instrumentation = self._flights.instrumentation
        if instrumentation.wants_attempts:
            instrumentation.emit(
                AttemptFinished(tool.server, self.call_id, "tools/call", tool.name, 1, outcome, "yes", _EXECUTED)
            )
        instrumentation.record(
            CallFinished(
                tool.server,
                "tools/call",
                plan.target,
                outcome,
                "yes",
                seconds,
                self.call_id,
                tool.name,
                plan.caller,
                "",
                instrumentation.wall_clock() - seconds,
                1,
                _EXECUTED,
                plan.policy.default_effect,
                phase_marks=(queued, queued, ("send", began), ("server", began)),
                ended_at=ended,
                jsonrpc_id=self._exchange.id,
                params=self.params if self.meta else {"name": tool.name, "arguments": self.arguments},
            ),
            is_small=0 < self.request_bytes <= SMALL_REQUEST_BYTES,
        )


class TakenOverCall:
    """A call that callbacks sent and that a coroutine now waits for. It keeps its concurrency slot."""

    __slots__ = ("_began", "_flights", "_plan", "_resumed", "call", "sent", "task")

    def __init__(
        self, flights: Flights, call: Call, plan: Plan, exchange: RequestExchange, began: float, started_at: float
    ) -> None:
        self._flights = flights
        self._plan = plan
        self._began = began
        self._resumed = False
        self.task: asyncio.Task[None] | None = None  # in which `resume` runs, if the caller had none
        policy = plan.policy
        self.call = flights.instrumentation.adopt(replace(call, effect=policy.default_effect, policy=policy))
        self.sent = SentCall(plan.upstream, plan.session, exchange, plan.tool)
        state = self.call.state
        state.begin_attempt()
        state.caller = plan.caller
        exchange.attach(state)
        if isinstance(state, TimedCallState):
            state.effect = policy.default_effect
            state.phase_marks[:] = [(phase, started_at) for phase, _ in state.phase_marks]
        plan.session.adopt(self.call)

    async def resume(self) -> CallResult:
        """Wait for the result of the call. Raises `CallError` if it has none."""
        self._resumed = True
        return await self._flights.resume(self.call, self.sent, self._plan, self._began)

    def discard(self) -> None:
        """End the call like a cancelled one if `resume` was not awaited: its caller was cancelled before that."""
        if self._resumed:
            return
        self._resumed = True
        self._plan.limiter.release(self._plan.caller)
        self._plan.session.abandon(self.call, self.sent.exchange)
        self._flights.instrumentation.on_cancelled(self.call, self._flights.now() - self._began)


T = TypeVar("T")


def _find(middleware: Sequence[Middleware], kind: type[T]) -> T:
    return next(each for each in middleware if isinstance(each, kind))


class Flights:
    """All flights of a hub: the calls under way that are driven by callbacks instead of coroutines, and their end."""

    def __init__(
        self,
        now: Callable[[], float],
        instrumentation: Instrumentation,
        output_validator: OutputValidator,
        dispatcher: Dispatcher,
        middleware: Sequence[Middleware],
        observe: Callable[[Call, CallHandler, float], Awaitable[CallResult]],
    ) -> None:
        self.now = now
        self.instrumentation = instrumentation
        self.landed = 0  # flights that ended by themselves
        self.taken_over = 0  # flights that the pipeline took over
        self._output_validator = output_validator
        self._dispatcher = dispatcher
        self._deadline = _find(middleware, DeadlineMiddleware)
        self._retry = _find(middleware, RetryMiddleware)
        self._circuit_breaker = _find(middleware, CircuitBreakerMiddleware)
        self._concurrency = _find(middleware, ConcurrencyMiddleware)
        below_retry = middleware[middleware.index(self._retry) + 1 :]
        self._attempt = compose(below_retry, dispatcher.dispatch)  # this can send
        self._observe = observe  # reports the end of a call that began at a given time
        self.flying: set[Flight] = set()  # those under way
        self._loop = asyncio.get_running_loop()
        self._sweep_timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self.flying)

    def calls(self) -> list[Call]:
        """Return the calls under way that callbacks drive, without a task."""
        return [flight.build_call() for flight in self.flying]

    def add(self, flight: Flight) -> None:
        self.flying.add(flight)
        if flight.log_level is not None or flight.plan.is_legacy:
            flight.plan.session.before_message = self._before_message
        if self._sweep_timer is None:
            self._sweep_timer = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep)

    def _before_message(self, session: Session, is_request: bool) -> None:
        """Hand the calls that a server's message may belong to over to coroutines, which then get the message.

        A log message may belong to any call that wants log messages, a request to any call of the session.
        """
        for flight in [each for each in self.flying if each.plan.session is session]:
            if is_request or flight.log_level is not None:
                flight.take_over()

    def _sweep(self) -> None:
        """Hand the calls that have run for a second or more over to coroutines, which watch their deadlines."""
        now = self.now()
        for flight in [each for each in self.flying if each.is_long(now)]:
            flight.take_over()
        self._sweep_timer = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep) if self.flying else None

    def has_valid_output(self, plan: Plan, result: Json) -> bool:
        """Return True if the structured content of a result matches the schema of its tool."""
        return self._output_validator.validate(plan.tool, result) is None

    async def resume(self, call: Call, sent: SentCall, plan: Plan, began: float) -> CallResult:
        """Wait for the result of a call that was sent, through the middleware for deadlines, retries and slots.

        No check that could reject the call runs.
        """

        def wait(call: Call) -> Awaitable[CallResult]:
            return self._dispatcher.resume(call, sent)

        def hold_slot(call: Call) -> Awaitable[CallResult]:
            return self._concurrency.resume(call, wait, plan.limiter)

        def first_attempt(call: Call) -> Awaitable[CallResult]:
            return self._circuit_breaker.resume(call, hold_slot)

        def attempts(call: Call) -> Awaitable[CallResult]:
            return self._retry.resume(call, first_attempt, self._attempt)

        return await self._observe(call, lambda call: self._deadline.resume(call, began, attempts), began)

    def close(self) -> None:
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
