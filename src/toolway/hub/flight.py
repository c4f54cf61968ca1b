"""The fast path for ordinary tool calls, called flights, which run on callbacks instead of a task.

The methods of a flight:

    begin      check the arguments, then send; or queue the intent, if the audit log needs it first
    on_intent  the intent is on disk: send
    arrived    a plain result: release the slot, record the success, pass the result on, report the call
    failed     anything else arrived, or nothing: the pipeline takes over
    take_over  the caller is gone, or the call is slow or unusual: the pipeline takes over

The intent is the audit record which says that the call is about to be sent. The pipeline is the middleware chain, in
which a coroutine waits for the result.

A flight only does what every call needs. Anything unusual makes it hand the call to the pipeline with `take_over`.
The pipeline gets a `SentFlight`, which owns the flight's slot, and `Flights.resume` can do nothing but wait for it.
The call enters the pipeline below every check that rejects calls, so a call that was sent can neither be sent again
nor be reported as not sent. Only the rules in `middleware/retry.py` may send it again, depending on its certainty.

A call that is waiting for its intent has not been sent and holds nothing. If the pipeline takes it over, it gets an
`UnsentFlight`: `Flights.send` waits for the intent, and then runs the stages of the chain that follow the audit log.

The mechanisms (slots, breakers, rate limits, budget, validators) are the same objects and functions that the chain
uses.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, TypeVar

import msgspec

from toolway._async import settle_future
from toolway.errors import Certainty
from toolway.events import AttemptFinished, CallFinished
from toolway.hub.dispatch import Dispatcher, OutputValidator, SentCall
from toolway.hub.event_stream import Watchdog
from toolway.hub.instrumentation import Instrumentation
from toolway.hub.plan import Plan, add_trace_context
from toolway.hub.result_redaction import THREAD_BYTES
from toolway.hub.taken_over import SentFlight, TakenOverCall, UnsentFlight
from toolway.middleware.chain import compose
from toolway.middleware.circuit_breaker import CLOSED, CircuitBreakerMiddleware, record_success
from toolway.middleware.concurrency import ConcurrencyMiddleware
from toolway.middleware.deadline import DeadlineMiddleware
from toolway.middleware.rate_limit import RateLimitMiddleware, RateWindow, are_free
from toolway.middleware.retry import RetryMiddleware
from toolway.outcomes import OK_CODE, TOOL_ERROR_CODE
from toolway.protocol.constants import LOG_LEVEL_META_KEY
from toolway.secrets.server_secrets import ServerSecrets
from toolway.telemetry.call_batch import SMALL_REQUEST_BYTES
from toolway.types import Call, CallHandler, CallResult, Json, Middleware, phase_clock
from toolway.upstream.session import Session
from toolway.upstream.transport import RequestExchange, TransportError

if TYPE_CHECKING:
    from toolway.audit.middleware import AuditMiddleware

MAX_FLIGHT_S: Final = 1.0  # seconds after which the pipeline takes over: it has deadline, drain and keep-alive
SWEEP_INTERVAL_S: Final = 1.0
#: Keys of a caller's `_meta` that need the pipeline; every other key is passed on.
PIPELINE_META_KEYS: Final = frozenset({"progressToken", "traceparent", "tracestate", "baggage", LOG_LEVEL_META_KEY})
_EXECUTED: Final = Certainty.EXECUTED
_log = logging.getLogger(__name__)


class CallOrigin(NamedTuple):
    """A call's client, endpoint, and timeout, for the cluster node that the call may be forwarded to."""

    principal: str  # id
    principal_name: str
    endpoint: str
    timeout: float | None  # seconds that the client gives the call, if it says so


class Flight(ABC):
    """One flight: a tool call that runs on callbacks, without a coroutine that waits for its result."""

    __slots__ = (
        "_began",
        "_capabilities",
        "_exchange",
        "_flights",
        "_intent",
        "_is_over",
        "_sent_at",
        "_started_at",
        "_trace_context",
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
        self._exchange: RequestExchange | None = None  # None: the call was not sent
        self._intent: asyncio.Future[None] | None = None  # of a call that was taken over before it was sent

    # -- what the side of the caller implements -----------------------------------------------------------------------

    @abstractmethod
    def build_call(self) -> Call:
        """Return this call as a `Call` with a new state, as the middleware chain needs it.

        Its `name` is the tool name that the server uses.
        """

    @abstractmethod
    def land(self, result: Json, frame: bytes, exchange: RequestExchange) -> None:
        """Deliver the call's result to the caller.

        `frame` is the whole response as received; it is empty if the response contains more than a result.
        """

    @abstractmethod
    def hand_over(self, taken: TakenOverCall) -> None:
        """Hand the call over to a coroutine of the caller, which must await `taken.resume()`.

        If that coroutine never starts, `taken.discard()` must be called.
        """

    def origin(self) -> CallOrigin | None:
        """Return the client data to forward in a cluster, or None if the middleware chain must forward the call."""
        return None

    # -- the life of a call -------------------------------------------------------------------------------------------

    def begin(self, capabilities: Json) -> bool:
        """Send the call. If the audit log needs a record first, queue that; `on_intent` then sends the call.

        Return False without doing anything if the call needs the middleware chain.
        """
        plan, flights = self.plan, self._flights
        if plan.is_admitted is not None and not plan.is_admitted():
            return False
        if plan.validator is not None:
            try:
                if not plan.validator.is_valid(self.arguments, self.request_bytes):
                    return False
            except ValueError:
                return False  # a value that is not JSON
        self._capabilities = capabilities
        self._trace_context: str | None = ""  # of the trace that the call is left out of
        if flights.instrumentation.is_tracing and not self.is_forwarded:
            self._trace_context = flights.instrumentation.skip_trace(in_library=self.in_library)
            if self._trace_context is None:
                return False
        self._began = now = flights.now()
        if now >= flights.watchdog.calm_until and not self.in_library:
            return False  # the client may have waited already: the pipeline knows how much time is left
        audit = plan.audit
        if audit is not None and audit.needs_intent:
            self._started_at = phase_clock()
            if not audit.start_intent(self.call_id, self.arguments, self.on_intent):
                return False  # the pipeline rejects the call
        elif audit is not None and not audit.is_writable:
            return False  # the call only reads: the pipeline decides whether it may pass
        elif self._send_request(now):
            self._started_at = self._sent_at
        else:
            return False
        flights.add(self)
        if flights.instrumentation.wants_attempts and not self.is_forwarded:
            flights.instrumentation.on_sent(self.build_call())
        return True

    def on_intent(self, error: Exception | None) -> None:
        """Send the call now that its intent (the audit record announcing it) is on disk.

        If the call cannot be sent, pass it to a coroutine. `error` is set if the intent could not be written. Called
        by the audit log.
        """
        if self._intent is None and error is None:
            try:
                now = self._flights.now()
                if self.plan.is_valid() and not self.is_long(now) and self._send_request(now):
                    return
            except Exception as exc:
                _log.exception("%s could not be sent", self.plan.target)
                error = exc
        if self._intent is None:
            self._intent = asyncio.get_running_loop().create_future()
            self.take_over()
        settle_future(self._intent, error)

    def _send_request(self, now: float) -> bool:
        """Take one of the server's concurrency slots and send the call.

        Return False, without taking a slot or sending anything, if the call would have to wait.
        """
        plan, flights = self.plan, self._flights
        limiter = plan.limiter
        if plan.server_breaker.state is not CLOSED or plan.tool_breaker.state is not CLOSED:
            return False
        if limiter.paused_until and limiter.is_paused(flights.now):
            return False
        windows: Sequence[RateWindow] = ()
        if plan.policy.rate_limits:
            windows = flights.rate_limit.windows(plan.tool.server, plan.policy.rate_limits)
            if not are_free(windows, now):
                return False
        if not limiter.acquire_nowait(plan.caller):
            return False
        exchange, capabilities, context = None, self._capabilities, self._trace_context
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
        self._sent_at = phase_clock()
        for window in windows:
            window.reserve(now)
        plan.budget.record_attempt(now)
        return True

    def arrived(self, result: Json, frame: bytes) -> None:
        """Deliver a plain result to the caller, or hand any other result over to a coroutine.

        The transport calls this when the result has arrived.
        """
        plan, flights, exchange = self.plan, self._flights, self._exchange
        assert exchange is not None
        if (
            "content" not in result
            or result.get("resultType", "complete") != "complete"
            or ("structuredContent" in result and not flights.has_valid_output(plan, result))
        ):
            self.take_over()
            return
        if plan.secrets.forms and _may_have_secret(plan.secrets, frame, exchange):
            self.take_over()  # the pipeline redacts it
            return
        self._is_over = True
        flights.flying.pop(self, None)
        flights.landed += 1
        now = flights.now()
        plan.limiter.release(plan.caller)
        plan.session.end_flight(now)
        plan.upstream.mark_used(now)
        record_success(plan.server_breaker, plan.tool_breaker, now)
        code = TOOL_ERROR_CODE if result.get("isError") is True else OK_CODE
        try:  # an exception must not reach the connection to the server, whose callback this is
            if plan.audit is not None and plan.has_intent:
                plan.audit.record_result(self.call_id, code)
            try:
                self.land(result, frame, exchange)
            finally:
                if flights.instrumentation.enabled and not self.is_forwarded:
                    self._report(code, exchange)
        except Exception:
            _log.exception("the result of %s could not be passed on or reported", plan.target)

    def failed(self) -> None:
        """Hand the call over to a coroutine, which finds out how it ended.

        The transport calls this when something other than a plain result arrived, or nothing did.
        """
        self.take_over()

    def take_over(self) -> TakenOverCall | None:
        """Stop handling this call with callbacks, so a coroutine can continue it in the middleware chain.

        Return what the coroutine needs to send the call or, if it was sent, to wait for its result. Return None if
        the call has ended or another coroutine has already taken it over.
        """
        if self._is_over:
            return None
        self._is_over = True
        flights = self._flights
        flights.flying.pop(self, None)
        flights.taken_over += 1
        call, exchange, began, started_at = self.build_call(), self._exchange, self._began, self._started_at
        taken: TakenOverCall
        if exchange is not None:
            taken = SentFlight(flights, call, self.plan, exchange, began, started_at, self._sent_at)
        else:
            if self._intent is None:
                self._intent = asyncio.get_running_loop().create_future()
            taken = UnsentFlight(flights, call, self.plan, self._intent, began, started_at)
        self.hand_over(taken)
        return taken

    # -- details ------------------------------------------------------------------------------------------------------

    @property
    def params(self) -> Json:
        """Return the request's parameters, without the `_meta` that every request gets."""
        params: Json = {"name": self.plan.tool.name, "arguments": self.arguments}
        if self.meta:
            params["_meta"] = self.meta
        return params

    @property
    def seconds(self) -> float:
        """Return the seconds since the call began."""
        return phase_clock() - self._started_at

    @property
    def is_sent(self) -> bool:
        """Return True if the call was sent, or False if it waits for its audit record."""
        return self._exchange is not None

    def is_long(self, now: float) -> bool:
        return now - self._began >= MAX_FLIGHT_S

    def _report(self, code: str, exchange: RequestExchange) -> None:
        plan, tool, ended, began, sent = self.plan, self.plan.tool, phase_clock(), self._started_at, self._sent_at
        seconds = ended - began
        queued = ("queue", began)
        instrumentation = self._flights.instrumentation
        if instrumentation.wants_attempts:
            instrumentation.emit(
                AttemptFinished(tool.server, self.call_id, "tools/call", tool.name, 1, code, "yes", _EXECUTED)
            )
        instrumentation.record(
            CallFinished(
                tool.server,
                "tools/call",
                plan.target,
                code,
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
                phase_marks=(queued, queued, ("send", sent), ("server", sent)),
                ended_at=ended,
                jsonrpc_id=exchange.id,
                params=self.params if self.meta else {"name": tool.name, "arguments": self.arguments},
            ),
            is_small=0 < self.request_bytes <= SMALL_REQUEST_BYTES,
        )


def _may_have_secret(secrets: ServerSecrets, frame: bytes, exchange: RequestExchange) -> bool:
    """Return True if a result may contain one of its server's secrets, or is too complex to check quickly."""
    encoded = frame or exchange.received
    if not encoded or len(encoded) > THREAD_BYTES:
        return True
    return secrets.may_be_in(bytes(encoded))


T = TypeVar("T")


def _find(middleware: Sequence[Middleware], kind: type[T]) -> T:
    return next(each for each in middleware if isinstance(each, kind))


class Flights:
    """A hub's running calls that callbacks drive (flights), and how coroutines take them over."""

    def __init__(
        self,
        now: Callable[[], float],
        instrumentation: Instrumentation,
        output_validator: OutputValidator,
        dispatcher: Dispatcher,
        middleware: Sequence[Middleware],
        audit: AuditMiddleware | None,
        observe: Callable[[Call, CallHandler, float], Awaitable[CallResult]],
        watchdog: Watchdog,
    ) -> None:
        self.now = now
        self.watchdog = watchdog
        self.instrumentation = instrumentation
        self.landed = 0  # flights that ended by themselves
        self.taken_over = 0  # flights that the pipeline took over
        self._output_validator = output_validator
        self._dispatcher = dispatcher
        self._deadline = _find(middleware, DeadlineMiddleware)
        self._retry = _find(middleware, RetryMiddleware)
        self._circuit_breaker = _find(middleware, CircuitBreakerMiddleware)
        self._concurrency = _find(middleware, ConcurrencyMiddleware)
        self.rate_limit = _find(middleware, RateLimitMiddleware)
        self._audit = audit
        below_audit = middleware[middleware.index(audit) + 1 :] if audit is not None else ()
        self._below_audit = compose(below_audit, dispatcher.dispatch)  # this can send
        below_retry = middleware[middleware.index(self._retry) + 1 :]
        self._attempt = compose(below_retry, dispatcher.dispatch)  # this can send
        self._observe = observe  # reports the end of a call that began at a given time
        self.flying: dict[Flight, None] = {}  # calls in flight, oldest first
        self._loop = asyncio.get_running_loop()
        self._sweep_timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self.flying)

    def calls(self) -> list[Call]:
        """Return the calls that callbacks currently drive."""
        return [flight.build_call() for flight in self.flying]

    def add(self, flight: Flight) -> None:
        self.flying[flight] = None
        if flight.log_level is not None or flight.plan.is_legacy:
            flight.plan.session.before_message = self._before_message
        if self._sweep_timer is None:
            self._sweep_timer = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep)

    def _before_message(self, session: Session, is_request: bool) -> None:
        """Hand calls over to coroutines before a server message arrives that only those can handle.

        A log message may belong to any call that wants log messages, and a request to any call in the session.
        """
        for flight in [each for each in self.flying if each.is_sent and each.plan.session is session]:
            if is_request or flight.log_level is not None:
                flight.take_over()

    def _sweep(self) -> None:
        """Hand calls that have run for a second or more over to coroutines, which watch the deadlines."""
        now = self.now()
        for flight in [each for each in self.flying if each.is_long(now)]:
            flight.take_over()
        self._sweep_timer = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep) if self.flying else None

    def has_valid_output(self, plan: Plan, result: Json) -> bool:
        """Return True if a result's structured content matches its tool's schema."""
        return self._output_validator.validate(plan.tool, result) is None

    async def resume(self, call: Call, sent: SentCall, plan: Plan, began: float) -> CallResult:
        """Wait for the result of a call that was sent, respecting its deadline, retries, and slot.

        Checks that could reject the call do not run.
        """

        def wait(call: Call) -> Awaitable[CallResult]:
            return self._dispatcher.resume(call, sent)

        def hold_slot(call: Call) -> Awaitable[CallResult]:
            return self._concurrency.resume(call, wait, plan.limiter)

        def first_attempt(call: Call) -> Awaitable[CallResult]:
            return self._circuit_breaker.resume(call, hold_slot, began)

        def attempts(call: Call) -> Awaitable[CallResult]:
            return self._retry.resume(call, first_attempt, self._attempt)

        def recorded(call: Call) -> Awaitable[CallResult]:
            return self.require_audit().resume(call, attempts)

        below_deadline = recorded if plan.has_intent else attempts
        return await self._observe(call, lambda call: self._deadline.resume(call, began, below_deadline), began)

    async def send(self, call: Call, intent: asyncio.Future[None], began: float) -> CallResult:
        """Send a call once its intent (the audit record announcing it) is on disk, and wait for its result.

        The call was already accepted and its arguments checked, so it only passes the stages of the middleware chain
        that follow the audit log. It is not sent if its deadline has passed by then because the process was paused.
        """

        def in_time(call: Call) -> Awaitable[CallResult]:
            self._deadline.require_time(call)
            return self._below_audit(call)

        def recorded(call: Call) -> Awaitable[CallResult]:
            return self.require_audit().resume(call, in_time, intent)

        return await self._observe(call, lambda call: self._deadline.resume(call, began, recorded), began)

    def require_audit(self) -> AuditMiddleware:
        """Return the audit log middleware.

        Only call this for a call that has an intent, because only then is there an audit log.
        """
        assert self._audit is not None
        return self._audit

    def close(self) -> None:
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
