"""Traces by OpenTelemetry: a span for each call, for each try of it, and for each phase that took a while.

    client's own span ─▶ call (SERVER) ─▶ try 1 (CLIENT) ─▶ queue, start, send, server …
                                       └▶ try 2 (CLIENT) ─▶ the server's own spans, by `_meta`

The context comes from the caller's `_meta`, or from where the library was called, and goes on in the `_meta` of every
try. Spans are written when a call has ended, from what its attempt remembers. No argument, result or error text is in
them: such text may hold what nobody wants to see in a trace. Loaded where traces are asked for.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from msgspec.structs import replace
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from toolway.events import CallFinished, Try
from toolway.model import Call, Json, TimedAttempt, clock
from toolway.telemetry import naming

SHORTEST: Final = 0.0005  # seconds of a phase that is a span of its own
_W3C: Final = TraceContextTextMapPropagator()
_NOWHERE: Final = Context()


class Origin(Protocol):
    """The request of a client that a call was made for, as far as its trace tells of it."""

    @property
    def asked(self) -> str: ...  # for what, in the client's words
    @property
    def request_id(self) -> Any: ...
    @property
    def version(self) -> str: ...
    @property
    def transport(self) -> str: ...  # tcp or pipe


Place = Callable[[str], Mapping[str, Any]]  # what is known of a server: the attributes of where it is


class OtelTracer:
    """`ratio` is the share of calls without a trace of their own that is recorded; None leaves that to the tracer."""

    def __init__(self, tracer: Tracer, place: Place, ratio: float | None = None) -> None:
        self.tracer = tracer
        self.place = place
        self._ratio = ratio

    def begin(self, call: Call) -> Recorded | Unrecorded | None:
        meta = call.params.get("_meta")
        parent = _parent(meta) if isinstance(meta, dict) else None
        if parent is None and call.origin is None:
            ambient = trace.get_current_span().get_span_context()
            parent = contexts.get_current() if ambient.is_valid else None
        if self._ratio is not None:
            if parent is None:
                if random.random() >= self._ratio:
                    return Unrecorded()
            elif not trace.get_current_span(parent).get_span_context().trace_flags.sampled:
                return None  # what the caller sent is passed on as it is
        return Recorded(self, call, parent)


class Unrecorded:
    """A trace that nobody records. Those behind us are told that."""

    __slots__ = ()
    id = span = ""  # there is nothing to be found

    def stamped(self, call: Call) -> Call:
        """Every try is told so under a number of its own: nobody will look for it."""
        number = random.getrandbits(192) | 1 << 64 | 1
        digits = f"{number:048x}"
        return _with(call, {naming.TRACEPARENT: f"00-{digits[:32]}-{digits[32:]}-00"})

    def ended(self, fact: CallFinished) -> None:
        """Nothing to write."""


class Recorded:
    """One call and its spans."""

    __slots__ = ("_context", "_owner", "_span", "_tries", "_zero", "id", "span")

    def __init__(self, owner: OtelTracer, call: Call, parent: Context | None) -> None:
        self._owner = owner
        self._zero = time.time_ns() - round(clock() * 1e9)  # of our clock of phases
        self._tries: dict[int, Span] = {}  # by number
        target = call.origin.asked or call.target if call.origin is not None else call.target
        self._span = owner.tracer.start_span(
            naming.span_name(call.method, target),
            context=parent if parent is not None else _NOWHERE,
            kind=SpanKind.SERVER if call.origin is not None else SpanKind.INTERNAL,
            attributes=_of_call(call, target),
        )
        self._context = trace.set_span_in_context(self._span, _NOWHERE)
        facts = self._span.get_span_context()
        self.id = f"{facts.trace_id:032x}"
        self.span = f"{facts.span_id:016x}" if facts.trace_flags.sampled else ""

    def stamped(self, call: Call) -> Call:
        """The next try has a span of its own, which the server's spans are below. A try that is sent twice, because
        nothing was executed, is one."""
        attempt = call.attempt
        if attempt.number not in self._tries:
            began = next((at for phase, at in reversed(_marks(attempt)) if phase == "queue"), clock())
            self._begin_try(attempt.number, call.server, call.method, call.name, began)
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, trace.set_span_in_context(self._tries[attempt.number], _NOWHERE))
        return _with(call, carrier)

    def _begin_try(self, number: int, server: str, method: str, name: str, began: float) -> None:
        self._tries[number] = self._owner.tracer.start_span(
            naming.span_name(method, name),
            context=self._context,
            kind=SpanKind.CLIENT,
            attributes={**naming.about(method, name), naming.SERVER: server, **self._owner.place(server)},
            start_time=self._at(began),
        )

    def ended(self, fact: CallFinished) -> None:
        if self.span:
            zero = fact.marks[0][1] if fact.marks else fact.end
            for each in fact.tries:
                if each.number not in self._tries:  # it did not get so far as to be sent
                    self._begin_try(each.number, fact.server, fact.method, fact.tool, zero + each.began)
                self._end_try(self._tries[each.number], each, zero, fact)
        for span in self._tries.values():
            if span.is_recording():
                span.end(self._at(fact.end))
        self._end_call(fact)

    def _end_try(self, span: Span, each: Try, zero: float, fact: CallFinished) -> None:
        inside = trace.set_span_in_context(span, _NOWHERE)
        for phase in each.phases:
            if phase.seconds >= SHORTEST and phase.name != "retry":
                began = zero + phase.began
                child = self._owner.tracer.start_span(
                    phase.name, context=inside, attributes={naming.PHASE: phase.name}, start_time=self._at(began)
                )
                child.end(self._at(began + phase.seconds))
        span.set_attributes({naming.ATTEMPT: each.number, naming.CERTAINTY: each.certainty.name})
        if fact.wire_id is not None and each.number == fact.attempts:
            span.set_attribute(naming.REQUEST, str(fact.wire_id))
        _judge(span, each.outcome, fact.rpc_code if each.number == fact.attempts else None)
        span.end(self._at(zero + each.began + each.seconds))

    def _end_call(self, fact: CallFinished) -> None:
        span = self._span
        span.set_attributes(
            {naming.SERVER: fact.server, naming.EXECUTED: fact.executed, naming.ATTEMPTS: fact.attempts}
        )
        if fact.source:
            span.set_attribute(naming.SOURCE, fact.source)
        _judge(span, fact.outcome, fact.rpc_code)
        span.end(self._at(fact.end))

    def _at(self, moment: float) -> int:
        return self._zero + round(moment * 1e9)


def _of_call(call: Call, target: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {**naming.about(call.method, target), naming.CALL: call.id}
    if call.caller:
        attributes[naming.CALLER] = call.caller
    origin: Origin | None = call.origin
    if origin is not None:
        attributes[naming.TRANSPORT] = origin.transport
        if origin.transport == "tcp":
            attributes[naming.APPLICATION] = "http"
        if origin.request_id is not None:
            attributes[naming.REQUEST] = str(origin.request_id)
        if origin.version:
            attributes[naming.PROTOCOL] = origin.version
    return attributes


def _judge(span: Span, outcome: str, rpc_code: int | None) -> None:
    """An error is named by the number of the server, where it gave one, and by our code where it did not."""
    if outcome == "ok":
        return
    span.set_attribute(naming.ERROR, str(rpc_code) if rpc_code is not None else outcome)
    if rpc_code is not None:
        span.set_attribute(naming.STATUS, str(rpc_code))
    span.set_status(StatusCode.ERROR)


def _marks(attempt: Any) -> list[tuple[str, float]]:
    return attempt.marks if isinstance(attempt, TimedAttempt) else []


def _parent(meta: Json) -> Context | None:
    """What a caller says about his trace; None where that is nothing that can be used."""
    parent, state = meta.get(naming.TRACEPARENT), meta.get(naming.TRACESTATE)
    if not isinstance(parent, str) or naming.PARENT.fullmatch(parent) is None:
        return None
    carrier = {naming.TRACEPARENT: parent}
    if isinstance(state, str) and len(state) <= naming.LONGEST_STATE:
        carrier[naming.TRACESTATE] = state
    found = _W3C.extract(carrier, _NOWHERE)
    return found if trace.get_current_span(found).get_span_context().is_valid else None


def _with(call: Call, carrier: Mapping[str, str]) -> Call:
    """The call with this in its `_meta`, and all else that its caller put there: baggage passes as it is."""
    meta = call.params.get("_meta")
    kept = {key: value for key, value in meta.items() if key != naming.TRACESTATE} if isinstance(meta, dict) else {}
    return replace(call, params={**call.params, "_meta": {**kept, **carrier}})
