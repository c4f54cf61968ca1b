"""OpenTelemetry traces: a span for each call, each attempt, and each longer phase.

    the client's span ─▶ call (SERVER) ─▶ attempt 1 (CLIENT) ─▶ queue, start, send, server …
                                       └▶ attempt 2 (CLIENT) ─▶ the server's spans, by `_meta`

    workflow NAME ─▶ step PATH ─▶ the call of the step
    invoke_agent MODEL ─▶ chat MODEL
                       └▶ execute_tool TOOL ─▶ the call to the tool

The parent context is read from the caller's `_meta`, or in a library from the calling program's current context. It
is passed on in the `_meta` of every attempt. Spans are written when a call has ended, from its call state. They
contain no argument, result, or error text, because such text may be confidential. This module is imported only if
traces are enabled.
"""

from __future__ import annotations

import hashlib
import random
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol

from msgspec.structs import replace
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext, SpanKind, StatusCode, TraceFlags, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from toolway.errors import Executed
from toolway.events import AttemptTiming, CallFinished
from toolway.outcomes import outcome_of
from toolway.secrets.server_secrets import mask_target
from toolway.telemetry import otel_attributes
from toolway.telemetry.otel_attributes import StepSpan
from toolway.types import Call, Json, TimedCallState, phase_clock

MAX_CHOSEN: Final = 1000
MIN_PHASE_SPAN_S: Final = 0.0005  # shorter phases get no span
_PROPAGATOR: Final = TraceContextTextMapPropagator()
_EMPTY_CONTEXT: Final = Context()
_FAILED_STATES: Final = frozenset({"failed", "stuck", "damaged", "unknown", "not_executed"})  # of runs and steps
_ITEM_NUMBER: Final = re.compile(r"\[\d+\]")


class DownstreamRequest(Protocol):
    """The client request that caused a call, with the properties that trace attributes need."""

    @property
    def requested_name(self) -> str: ...  # tool, prompt or resource, as the client named it
    @property
    def request_id(self) -> Any: ...
    @property
    def version(self) -> str: ...
    @property
    def transport(self) -> str: ...  # tcp or pipe


ServerAttributes = Callable[[str], Mapping[str, Any]]  # span attributes of a server, by its name


class OtelTracer:
    """Starts the OpenTelemetry trace of each call of a hub.

    `mask` hides secrets in names and URIs. `sample_ratio` is the recorded share of calls without a parent trace. None
    leaves the choice to the OpenTelemetry sampler.
    """

    def __init__(
        self,
        tracer: Tracer,
        server_attributes: ServerAttributes,
        sample_ratio: float | None = None,
        mask: Callable[[str], str] = lambda text: text,
    ) -> None:
        self.tracer = tracer
        self.mask = mask
        self.server_attributes = server_attributes
        self._sample_ratio = sample_ratio
        self._chosen = 0  # calls that `skip_trace` has chosen to be recorded, and that have no trace yet

    def start_trace(self, call: Call) -> SpanTrace | NoopTrace | None:
        meta = call.params.get("_meta")
        parent = _parent_context(meta) if isinstance(meta, dict) else None
        if parent is None and call.downstream is None:
            ambient = trace.get_current_span().get_span_context()
            parent = contexts.get_current() if ambient.is_valid else None
        if self._sample_ratio is not None:
            if parent is None:
                if self._chosen:
                    self._chosen -= 1
                elif random.random() >= self._sample_ratio:
                    return NoopTrace()
            elif not trace.get_current_span(parent).get_span_context().trace_flags.sampled:
                return None  # the caller's trace context is passed on unchanged
        return SpanTrace(self, call, parent)

    def start_run(
        self, run: str, workflow: str, parent: str | None = None, span: StepSpan | None = None
    ) -> RunTrace | None:
        """Start the span of a workflow run in this process. Return None if the run is not recorded.

        A run that was started within a trace (`parent`) belongs to that trace. Otherwise, if there is a sample ratio,
        the trace id is derived from the run's id. So either all processes that execute the run, one after another,
        add to the same trace, or none of them does.
        """
        caller = _parent_context({otel_attributes.TRACEPARENT_KEY: parent}) if parent is not None else None
        if caller is not None:
            if not trace.get_current_span(caller).get_span_context().trace_flags.sampled:
                return None
            return RunTrace(self.tracer, run, workflow, caller, span)
        if self._sample_ratio is None:
            return RunTrace(self.tracer, run, workflow, _EMPTY_CONTEXT, span)
        digest = hashlib.sha256(run.encode()).digest()
        if int.from_bytes(digest[24:]) >= self._sample_ratio * 2**64:
            return None
        root = SpanContext(int.from_bytes(digest[:16]), int.from_bytes(digest[16:24]), True, TraceFlags(1))
        context = trace.set_span_in_context(trace.NonRecordingSpan(root), _EMPTY_CONTEXT)
        return RunTrace(self.tracer, run, workflow, context, span)

    @property
    def may_skip(self) -> bool:
        """Return True if `skip_trace` may exclude calls, because only a sample of the calls is recorded."""
        return self._sample_ratio is not None and self._sample_ratio < 1.0

    def skip_trace(self, *, in_library: bool) -> str | None:
        """Return an unsampled `traceparent` to send if a call is left out of the traces, or None if it may be recorded.

        This is called first for a call whose caller sent no trace context. If it returns None, call `start_trace`
        next. `in_library` means that the call may belong to the program's current trace.
        """
        ratio = self._sample_ratio
        if ratio is None or (in_library and trace.get_current_span().get_span_context().is_valid):
            return None
        if random.random() < ratio:
            self._chosen = min(self._chosen + 1, MAX_CHOSEN)
            return None
        return _unsampled_context()

    def skipped(self) -> NoopTrace:
        """Return a trace that records nothing, for a call that `skip_trace` has left out.

        The same trace can be used for more attempts of the call.
        """
        return NoopTrace()


class RunTrace:
    """Span of a workflow run in this process, with a child span for each step's call."""

    __slots__ = ("_context", "_span", "_tracer")

    def __init__(self, tracer: Tracer, run: str, workflow: str, parent: Context, span: StepSpan | None) -> None:
        self._tracer = tracer
        own = {otel_attributes.ATTR_RUN: run, otel_attributes.ATTR_WORKFLOW: workflow}
        span = span or StepSpan(f"workflow {workflow}", {})
        self._span = tracer.start_span(span.name, context=parent, attributes={**span.attributes, **own})
        self._context = trace.set_span_in_context(self._span, _EMPTY_CONTEXT)

    def start_step(
        self, path: str, attempt: int, span: StepSpan | None = None
    ) -> tuple[dict[str, str], Callable[..., None]]:
        """Start the span of a workflow step.

        Return the trace context for the `_meta` of its call, and a function that ends the span.
        """
        own: dict[str, Any] = {otel_attributes.ATTR_STEP: path, otel_attributes.ATTR_ATTEMPT: attempt}
        # Items of a loop share the name: span names must have few distinct values.
        span = span or StepSpan(f"step {_ITEM_NUMBER.sub('[]', path)}", {})
        started = self._tracer.start_span(
            span.name,
            context=self._context,
            kind=SpanKind.CLIENT if span.is_client else SpanKind.INTERNAL,
            attributes={**span.attributes, **own},
        )
        return _carrier_of(started), partial(_end_run_span, started)

    @property
    def traceparent(self) -> str:
        """Return the `traceparent` of the run's span, which child runs get as their parent."""
        return _carrier_of(self._span)[otel_attributes.TRACEPARENT_KEY]

    def end(self, state: str) -> None:
        """End the span of the workflow run. `state` is the run's state when this process stops executing it."""
        _end_run_span(self._span, state)


def _carrier_of(span: Span) -> dict[str, str]:
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, trace.set_span_in_context(span, _EMPTY_CONTEXT))
    return carrier


def _end_run_span(span: Span, state: str, attributes: Mapping[str, Any] | None = None) -> None:
    span.set_attributes({**(attributes or {}), otel_attributes.ATTR_STATE: state})
    if state in _FAILED_STATES or otel_attributes.ATTR_ERROR_TYPE in (attributes or {}):
        span.set_status(StatusCode.ERROR)
    span.end()


class NoopTrace:
    """Trace of a call that sampling left out: it creates no spans.

    Its trace context has no `sampled` flag, so the server does not record the call either.
    """

    __slots__ = ()
    trace_id = span_id = ""  # no spans exist

    def inject(self, call: Call) -> Call:
        """Return the call with an unsampled trace context in its `_meta`.

        Every attempt gets new random ids, because no trace with these ids exists.
        """
        return _with_trace_context(call, {otel_attributes.TRACEPARENT_KEY: _unsampled_context()})

    def end(self, event: CallFinished) -> None:
        """Do nothing, because a call that is not sampled has no spans to end."""


def _unsampled_context() -> str:
    """Return a `traceparent` with random ids whose `sampled` flag is not set."""
    digits = f"{random.getrandbits(192) | 1 << 64 | 1:048x}"
    return f"00-{digits[:32]}-{digits[32:]}-00"


class SpanTrace:
    """Recorded trace of one call: a span for the call, and a child span for each attempt."""

    __slots__ = ("_attempt_spans", "_clock_offset_ns", "_context", "_span", "_tracer", "span_id", "trace_id")

    def __init__(self, tracer: OtelTracer, call: Call, parent: Context | None) -> None:
        self._tracer = tracer
        self._clock_offset_ns = time.time_ns() - round(phase_clock() * 1e9)  # offset of the phase clock
        self._attempt_spans: dict[int, Span] = {}  # by number
        target = call.downstream.requested_name or call.target if call.downstream is not None else call.target
        target = mask_target(call.server, call.method, target, tracer.mask)
        self._span = tracer.tracer.start_span(
            otel_attributes.span_name(call.method, target),
            context=parent if parent is not None else _EMPTY_CONTEXT,
            kind=SpanKind.SERVER if call.downstream is not None else SpanKind.INTERNAL,
            attributes=_call_attributes(call, target),
        )
        self._context = trace.set_span_in_context(self._span, _EMPTY_CONTEXT)
        span_context = self._span.get_span_context()
        self.trace_id = f"{span_context.trace_id:032x}"
        self.span_id = f"{span_context.span_id:016x}" if span_context.trace_flags.sampled else ""

    def inject(self, call: Call) -> Call:
        """Return the call with the trace context of the current attempt in its `_meta`.

        The server's spans become children of the attempt's span. An attempt that is sent twice, because nothing
        ran, keeps its span.
        """
        attempt = call.state
        if attempt.attempt_number not in self._attempt_spans:
            started = next((at for phase, at in reversed(_phase_marks(attempt)) if phase == "queue"), phase_clock())
            self._start_attempt_span(attempt.attempt_number, call.server, call.method, call.name, started)
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(
            carrier, trace.set_span_in_context(self._attempt_spans[attempt.attempt_number], _EMPTY_CONTEXT)
        )
        return _with_trace_context(call, carrier)

    def _start_attempt_span(self, number: int, server: str, method: str, name: str, started: float) -> None:
        name = mask_target(server, method, name, self._tracer.mask)
        self._attempt_spans[number] = self._tracer.tracer.start_span(
            otel_attributes.span_name(method, name),
            context=self._context,
            kind=SpanKind.CLIENT,
            attributes={
                **otel_attributes.request_attributes(method, name),
                otel_attributes.ATTR_SERVER: server,
                **self._tracer.server_attributes(server),
            },
            start_time=self._to_ns(started),
        )

    def end(self, event: CallFinished) -> None:
        if self.span_id:
            zero = event.phase_marks[0][1] if event.phase_marks else event.ended_at
            for each in event.attempt_timings:
                if each.number not in self._attempt_spans:  # the attempt failed before it was sent
                    self._start_attempt_span(each.number, event.server, event.method, event.tool, zero + each.offset)
                self._end_attempt_span(self._attempt_spans[each.number], each, zero, event)
        for span in self._attempt_spans.values():
            if span.is_recording():
                span.end(self._to_ns(event.ended_at))
        self._end_call_span(event)

    def _end_attempt_span(self, span: Span, attempt: AttemptTiming, zero: float, event: CallFinished) -> None:
        context = trace.set_span_in_context(span, _EMPTY_CONTEXT)
        for phase in attempt.phases:
            if phase.seconds >= MIN_PHASE_SPAN_S and phase.name != "retry":
                started = zero + phase.offset
                child = self._tracer.tracer.start_span(
                    phase.name,
                    context=context,
                    attributes={otel_attributes.ATTR_PHASE: phase.name},
                    start_time=self._to_ns(started),
                )
                child.end(self._to_ns(started + phase.seconds))
        span.set_attributes(
            {otel_attributes.ATTR_ATTEMPT: attempt.number, otel_attributes.ATTR_CERTAINTY: attempt.certainty.code}
        )
        if event.jsonrpc_id is not None and attempt.number == event.attempts:
            span.set_attribute(otel_attributes.ATTR_REQUEST_ID, str(event.jsonrpc_id))
        _set_status(
            span, attempt.code, attempt.certainty.executed, event.rpc_code if attempt.number == event.attempts else None
        )
        span.end(self._to_ns(zero + attempt.offset + attempt.seconds))

    def _end_call_span(self, event: CallFinished) -> None:
        span = self._span
        span.set_attributes(
            {
                otel_attributes.ATTR_SERVER: event.server,
                otel_attributes.ATTR_EXECUTED: event.executed,
                otel_attributes.ATTR_ATTEMPTS: event.attempts,
            }
        )
        if event.source:
            span.set_attribute(otel_attributes.ATTR_SOURCE, event.source)
        _set_status(span, event.code, event.executed, event.rpc_code)
        span.end(self._to_ns(event.ended_at))

    def _to_ns(self, moment: float) -> int:
        return self._clock_offset_ns + round(moment * 1e9)


def _call_attributes(call: Call, target: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        **otel_attributes.request_attributes(call.method, target),
        otel_attributes.ATTR_CALL_ID: call.id,
    }
    if call.caller:
        attributes[otel_attributes.ATTR_CALLER] = call.caller
    downstream: DownstreamRequest | None = call.downstream
    if downstream is not None:
        attributes[otel_attributes.ATTR_TRANSPORT] = downstream.transport
        if downstream.transport == "tcp":
            attributes[otel_attributes.ATTR_NETWORK_PROTOCOL] = "http"
        if downstream.request_id is not None:
            attributes[otel_attributes.ATTR_REQUEST_ID] = str(downstream.request_id)
        if downstream.version:
            attributes[otel_attributes.ATTR_PROTOCOL_VERSION] = downstream.version
    return attributes


def _set_status(span: Span, code: str, executed: Executed, rpc_code: int | None) -> None:
    """Set the error status of a span if the outcome counts as a failure.

    The attribute `error.type` is the server's JSON-RPC error code if there is one, or else `code`.
    """
    if not outcome_of(code, executed).is_failure:
        return
    span.set_attribute(otel_attributes.ATTR_ERROR_TYPE, str(rpc_code) if rpc_code is not None else code)
    if rpc_code is not None:
        span.set_attribute(otel_attributes.ATTR_STATUS_CODE, str(rpc_code))
    span.set_status(StatusCode.ERROR)


def _phase_marks(attempt: Any) -> list[tuple[str, float]]:
    return attempt.phase_marks if isinstance(attempt, TimedCallState) else []


def _parent_context(meta: Json) -> Context | None:
    """Return the trace context in the caller's `_meta`, or None if it is missing or invalid."""
    parent, state = meta.get(otel_attributes.TRACEPARENT_KEY), meta.get(otel_attributes.TRACESTATE_KEY)
    if not isinstance(parent, str) or otel_attributes.TRACEPARENT_PATTERN.fullmatch(parent) is None:
        return None
    carrier = {otel_attributes.TRACEPARENT_KEY: parent}
    if isinstance(state, str) and len(state) <= otel_attributes.MAX_TRACESTATE_CHARS:
        carrier[otel_attributes.TRACESTATE_KEY] = state
    found = _PROPAGATOR.extract(carrier, _EMPTY_CONTEXT)
    return found if trace.get_current_span(found).get_span_context().is_valid else None


def _with_trace_context(call: Call, carrier: Mapping[str, str]) -> Call:
    """Return a copy of the call with the trace context `carrier` in its `_meta`.

    Existing `_meta` keys stay, such as baggage. Only an old trace context is replaced.
    """
    meta = call.params.get("_meta")
    other_meta = (
        {key: value for key, value in meta.items() if key != otel_attributes.TRACESTATE_KEY}
        if isinstance(meta, dict)
        else {}
    )
    return replace(call, params={**call.params, "_meta": {**other_meta, **carrier}})
