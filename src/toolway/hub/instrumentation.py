"""Events and traces for calls. A call that nothing observes skips all of this."""

from __future__ import annotations

import itertools
import logging
import re
import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, cast

from msgspec.structs import replace

from toolway.errors import CallError, Certainty, Overloaded, ProtocolError
from toolway.events import (
    Alert,
    AlertResolved,
    AttemptFinished,
    BatchSink,
    CallFinished,
    CallStarted,
    Event,
    EventSink,
)
from toolway.hub.event_stream import EventBroadcaster
from toolway.outcomes import CANCELLED_CODE, OK_CODE, code_of_result
from toolway.telemetry.call_batch import CallBatch
from toolway.telemetry.otel_attributes import StepSpan
from toolway.types import Call, CallResult, CallState, TimedCallState, phase_clock

_log = logging.getLogger(__name__)
_CALL_EVENTS: Final = (CallStarted, AttemptFinished, CallFinished, Alert)  # a subscriber to these observes calls
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class Trace(Protocol):
    """The span of one call in a distributed trace, implemented by `telemetry/tracing.py`."""

    @property
    def trace_id(self) -> str:
        """Return the trace id, 32 hex digits."""
        ...

    @property
    def span_id(self) -> str:
        """Return the id of the call's own span, 16 hex digits, or "" if it is not recorded."""
        ...

    def inject(self, call: Call) -> Call:
        """Return the call for the next attempt, with the trace context in its `_meta`."""
        ...

    def end(self, event: CallFinished) -> None: ...


class WorkflowTrace(Protocol):
    """The trace of a workflow run in this process."""

    def start_step(
        self, path: str, attempt: int, span: StepSpan | None = None
    ) -> tuple[dict[str, str], Callable[..., None]]:
        """Start the span for a step. By default, it is named after the step's path.

        Return the trace context for the `_meta` of the step's call, and a function that ends the span. Call that
        function with the step's final state and any other attributes.
        """
        ...

    @property
    def traceparent(self) -> str:
        """Return this workflow run's trace context, to pass on to the runs that it starts."""
        ...

    def end(self, state: str) -> None: ...


class Tracer(Protocol):
    """Creates the traces of calls and workflow runs. Its methods return None for those that are not traced."""

    def start_trace(self, call: Call) -> Trace | None: ...

    def start_run(
        self, run: str, workflow: str, parent: str | None = None, span: StepSpan | None = None
    ) -> WorkflowTrace | None:
        """Start a workflow run's trace, or return None if it is not traced.

        `parent` is the `traceparent` of the call or the run that started it.
        """
        ...

    @property
    def may_skip(self) -> bool:
        """Return True if `skip_trace` may exclude calls, because only a sample of them is recorded."""
        ...

    def skip_trace(self, *, in_library: bool) -> str | None:
        """Return the `traceparent` for a new call that sampling leaves out, or None if it may be recorded.

        If the call may be recorded, `start_trace` makes the final decision. `in_library` means that the call comes
        from a program, which may have a current trace.
        """
        ...

    def skipped(self) -> Trace:
        """Return a trace that records nothing, for a call that `skip_trace` excluded."""
        ...


class Instrumentation:
    """Creates the events and traces for calls, and delivers them to sinks and subscribers.

    `enabled` is the only check on the hot path; the other methods run only if it is True.
    """

    def __init__(self, broadcaster: EventBroadcaster, wall_clock: Callable[[], float] = time.time) -> None:
        self._broadcaster = broadcaster
        self.wall_clock = wall_clock  # seconds since 1970
        broadcaster.on_subscriptions_changed = self._update_flags
        self._sinks: tuple[EventSink, ...] = ()
        self._batch = CallBatch()  # finished calls for the sinks that take batches
        self._success_sinks: tuple[EventSink, ...] = ()  # sinks that get each successful call at once
        self._failure_sinks: tuple[EventSink, ...] = ()  # sinks that get every other call at once
        self._has_call_subscribers = False
        self._forwarded_sinks: tuple[EventSink, ...] = ()  # for calls that another node forwarded
        self._tracer: Tracer | None = None
        self._id_prefix = secrets.token_hex(4)  # prefix of generated call ids
        self._call_numbers = itertools.count(1)
        self._waiting: deque[tuple[Event, bool]] = deque()  # events to deliver, and whether each was forwarded
        self._is_delivering = False
        self.running_calls: dict[int, Call] = {}  # by the identity of their states, oldest first
        self.state_type: type[CallState] = CallState  # class of the state of new calls
        self.enabled = False
        self.enabled_for_forwarded = False
        self.version = 0  # grows with every change of the observers
        self.is_tracing = False
        self.wants_attempts = False  # an observer wants to know when calls start and attempts end
        self._update_flags()

    def add_sink(self, sink: EventSink) -> None:
        """Deliver events to `sink` from now on. Does nothing if `sink` was already added."""
        if not any(each is sink for each in self._sinks):
            self._batch.deliver()
            self._sinks = (*self._sinks, sink)
            self._update_flags()

    def remove_sink(self, sink: EventSink) -> None:
        self._batch.deliver()
        self._sinks = tuple(each for each in self._sinks if each is not sink)
        self._update_flags()

    def close(self) -> None:
        """Deliver the finished calls that are still waiting in a batch."""
        self._batch.close()

    def start_run(
        self, run: str, workflow: str, parent: str | None = None, span: StepSpan | None = None
    ) -> WorkflowTrace | None:
        """Start the trace of a workflow run, or return None without a tracer."""
        return self._tracer.start_run(run, workflow, parent, span) if self._tracer is not None else None

    def set_tracer(self, tracer: Tracer | None) -> None:
        self._tracer = tracer
        self._update_flags()

    @property
    def allows_flights(self) -> bool:
        """Return True if calls may skip the middleware chain: no tracer is set, or it only records a sample."""
        return self._tracer is None or self._tracer.may_skip

    def skip_trace(self, *, in_library: bool) -> str | None:
        """Return the `traceparent` for a new call that sampling leaves out.

        Return None if the call may be recorded, or if no tracer is set (see `is_tracing`).
        """
        return self._tracer.skip_trace(in_library=in_library) if self._tracer is not None else None

    def _update_flags(self) -> None:
        self.version += 1
        has_subscribers = any(self._broadcaster.has_subscribers(kind) for kind in _CALL_EVENTS)
        has_call_sinks = any(getattr(sink, "wants_calls", True) for sink in self._sinks)
        self._forwarded_sinks = tuple(sink for sink in self._sinks if getattr(sink, "wants_forwarded", False))
        self._batch.sinks = tuple(cast(BatchSink, sink) for sink in self._sinks if hasattr(sink, "on_calls"))
        for batch_sink in self._batch.sinks:
            batch_sink.take_waiting = self._batch.deliver
        self._failure_sinks = tuple(sink for sink in self._sinks if not hasattr(sink, "on_calls"))
        self._success_sinks = tuple(sink for sink in self._failure_sinks if getattr(sink, "wants_successes", True))
        self._has_call_subscribers = self._broadcaster.has_subscribers(CallFinished)
        self.enabled = has_subscribers or has_call_sinks or self._tracer is not None
        self.enabled_for_forwarded = has_subscribers or bool(self._forwarded_sinks) or self._tracer is not None
        self.state_type = TimedCallState if self.enabled else CallState
        self.is_tracing = self._tracer is not None
        self.wants_attempts = any(sink.wants_attempts for sink in self._sinks) or any(
            self._broadcaster.has_subscribers(kind) for kind in (CallStarted, AttemptFinished)
        )

    def emit(self, event: Event, *, forwarded: bool = False) -> None:
        """Deliver an event (not `CallFinished`) to sinks and subscribers.

        If a sink emits an event itself, that event is delivered after the one that caused it. `forwarded` means that
        another node forwarded the call, so only sinks with `wants_forwarded` get the event.
        """
        self._waiting.append((event, forwarded))
        if not self._is_delivering:
            self._deliver_waiting()

    def _deliver_waiting(self) -> None:
        self._is_delivering = True
        try:
            while self._waiting:
                event, forwarded = self._waiting.popleft()
                for sink in self._sinks if not forwarded else self._forwarded_sinks:
                    try:
                        sink.on_event(event)
                    except Exception:
                        _log.exception("event sink failed")
                self._broadcaster.emit(event)
                if isinstance(event, Alert | AlertResolved):
                    self._update_flags()  # the alert detector wants successful calls only while one may end an alert
        finally:
            self._is_delivering = False

    # -- one call -----------------------------------------------------------------------------------------------------

    def on_start(self, call: Call) -> Call:
        """Record that a call started, and return the call with an id.

        Record its end with `on_result`, `on_error`, or `on_cancelled`.
        """
        # A call of the library has no id yet, and its state is not referenced elsewhere.
        if not call.id:
            call = replace(call, id=self.new_call_id(), state=TimedCallState())
        state = call.state
        self.running_calls[id(state)] = call
        # A call that started before it was observed has no timed state.
        if self._tracer is not None and isinstance(state, TimedCallState):
            state.trace = self._tracer.start_trace(call)
        if self.wants_attempts:
            trace, now = _trace_id(call), self.wall_clock()
            event = CallStarted(_server_name(call), call.id, call.method, call.target, call.caller, trace, now)
            self.emit(event, forwarded=call.forwarded)
        return call

    def adopt(self, call: Call) -> Call:
        """Record as running a call that skipped the middleware chain, and return the call with an id.

        The call keeps its state. The function that calls `adopt` must also record the call's end.
        """
        if not call.id:
            call = replace(call, id=self.new_call_id())
        self.running_calls[id(call.state)] = call
        if self._tracer is not None and isinstance(call.state, TimedCallState):
            call.state.trace = self._tracer.skipped()
        return call

    def on_sent(self, call: Call) -> None:
        """Emit `CallStarted` for a call that skipped the middleware chain.

        Call this only if `wants_attempts` is True.
        """
        self.emit(CallStarted(call.server, call.id, call.method, call.target, call.caller, "", self.wall_clock()))

    def new_call_id(self) -> str:
        return f"{self._id_prefix}{next(self._call_numbers):x}"

    def on_dispatch(self, call: Call) -> Call:
        """Record that an attempt is being sent, and return the call with the trace context in its `_meta`."""
        state = call.state
        if isinstance(state, TimedCallState):
            state.effect = call.effect
            if state.trace is not None:
                return cast(Trace, state.trace).inject(call)
        return call

    def on_result(self, call: Call, reply: CallResult, seconds: float) -> None:
        code = code_of_result(reply.raw.get("resultType"), is_error=reply.is_error)
        source = "cache" if reply.from_cache else "replay" if reply.replayed else ""
        if self.wants_attempts:
            self._emit_attempt(call, reply.server, reply.name, code, Certainty.EXECUTED, None)
        self._finish(call, reply.server, reply.name, code, Certainty.EXECUTED, seconds, source)

    def on_error(self, call: Call, exc: CallError, seconds: float) -> None:
        """Record that a call ended with an error.

        `on_attempt_failed` has already reported its last attempt.
        """
        certainty = exc.certainty if exc.certainty is not None else Certainty.NOT_SENT
        server = exc.server or call.server
        self._finish(call, server, exc.tool, exc.code, certainty, seconds, error=exc)

    def on_cancelled(self, call: Call, seconds: float) -> None:
        """Record that the caller cancelled a call."""
        self._finish(call, _server_name(call), call.name, CANCELLED_CODE, call.state.overall_certainty(), seconds)

    def on_attempt_failed(self, call: Call, exc: CallError, retry_delay: float | None) -> None:
        """Record a failed attempt of a call.

        The next attempt follows after `retry_delay` seconds; None means that this was the last attempt.
        """
        certainty = exc.certainty if exc.certainty is not None else Certainty.NOT_SENT
        call.state.record_failed_attempt(exc.code, certainty)
        if self.wants_attempts:
            self._emit_attempt(call, call.server, call.name, exc.code, certainty, retry_delay)

    def _emit_attempt(
        self, call: Call, server: str, name: str, code: str, certainty: Certainty, retry_delay: float | None
    ) -> None:
        number = call.state.attempts
        if number:
            executed = certainty.executed
            event = AttemptFinished(server, call.id, call.method, name, number, code, executed, certainty, retry_delay)
            self.emit(event, forwarded=call.forwarded)

    def _finish(
        self,
        call: Call,
        server: str,
        name: str,
        code: str,
        certainty: Certainty,
        seconds: float,
        source: str = "",
        error: CallError | None = None,
    ) -> None:
        state, now = call.state, phase_clock()
        self.running_calls.pop(id(state), None)
        timed_state = state if isinstance(state, TimedCallState) else None
        if timed_state is not None:
            seconds = now - timed_state.phase_marks[0][1]
        event = CallFinished(  # positional arguments are faster, and every observed call pays for this
            server,
            call.method,
            call.target,
            code,
            certainty.executed,
            seconds,
            call.id,
            name,
            call.caller,
            _trace_id(call),
            self.wall_clock() - seconds,
            state.attempts,
            certainty,
            timed_state.effect if timed_state is not None else "",
            source or ("shared" if state.shared_with is not None else ""),
            error.message if error is not None else "",
            error.detail if error is not None else "",
            error.hint if error is not None else "",
            timed_state.phase_history() if timed_state is not None else (),
            timed_state.failed_attempts if timed_state is not None else (),
            now,
            error.rpc_code if isinstance(error, ProtocolError) else None,
            state.jsonrpc_id if state.shared_with is None else state.shared_with.jsonrpc_id,
            cast(Trace, timed_state.trace).span_id if timed_state is not None and timed_state.trace is not None else "",
            call.params,
            error.retry_after if isinstance(error, Overloaded | ProtocolError) else None,
            state.request_id,
        )
        if timed_state is not None and timed_state.trace is not None:
            cast(Trace, timed_state.trace).end(event)
        self.record(event, forwarded=call.forwarded)

    def record(self, event: CallFinished, *, forwarded: bool = False, is_small: bool = False) -> None:
        """Report a finished call to all sinks and subscribers.

        Sinks that need each call at once get it now. Metrics and the dashboard get calls in batches, so for them the
        call is only appended to a list. `is_small` means that neither the request nor any string in the event is
        longer than `SMALL_REQUEST_BYTES` (telemetry/call_batch.py), so the event's size need not be measured.
        """
        if forwarded:
            self._deliver_call(event, self._forwarded_sinks)
            return
        sinks = self._success_sinks if event.code == OK_CODE else self._failure_sinks
        if sinks or self._has_call_subscribers:
            self._deliver_call(event, sinks)
        if self._batch.sinks:
            self._batch.add(event, is_small=is_small)

    def _deliver_call(self, event: CallFinished, sinks: tuple[EventSink, ...]) -> None:
        self._is_delivering = True
        try:
            for sink in sinks:
                try:
                    sink.on_call(event)
                except Exception:
                    _log.exception("event sink failed")
            if self._has_call_subscribers:
                self._broadcaster.emit(event)
        finally:
            self._is_delivering = False
        if self._waiting:
            self._deliver_waiting()


def _server_name(call: Call) -> str:
    """Return the name of a call's server: as resolved, or else the part of the target before the first dot."""
    return call.server or call.target.partition(".")[0]


def _trace_id(call: Call) -> str:
    """Return the trace id of a call, from our tracer or from the caller's `traceparent`."""
    trace = call.state.trace if isinstance(call.state, TimedCallState) else None
    if trace is not None:
        return cast(Trace, trace).trace_id
    meta = call.params.get("_meta")
    parent = meta.get("traceparent") if isinstance(meta, dict) else None
    return parent[3:35] if isinstance(parent, str) and _TRACEPARENT.fullmatch(parent) else ""
