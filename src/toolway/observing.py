"""Facts of calls, for those who watch or listen. Where nobody does, a call is not even looked at."""

from __future__ import annotations

import itertools
import logging
import re
import secrets
import time
from typing import Final, Protocol, cast

from msgspec.structs import replace

from toolway.errors import CallError, Certainty, ProtocolError
from toolway.events import AttemptFinished, CallFinished, CallStarted, Event, Sink
from toolway.model import Attempt, Call, Reply, TimedAttempt, clock
from toolway.watchers import Watchers

_log = logging.getLogger(__name__)
_CALLS: Final = (CallStarted, AttemptFinished, CallFinished)
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class Trace(Protocol):
    """The trace of one call."""

    @property
    def id(self) -> str:
        """32 hex digits."""
        ...

    @property
    def span(self) -> str:
        """16 hex digits of the span of the call itself; empty where it is not recorded."""
        ...

    def stamped(self, call: Call) -> Call:
        """The call as the next try sends it: its `_meta` says which trace it belongs to."""
        ...

    def ended(self, fact: CallFinished) -> None: ...


class Tracer(Protocol):
    def begin(self, call: Call) -> Trace | None: ...


class Observer:
    """`on` is what a call asks; everything else is for those calls that were answered yes."""

    def __init__(self, watchers: Watchers) -> None:
        self._watchers = watchers
        watchers.on_change = self._look
        self._sinks: tuple[Sink, ...] = ()
        self._sinks_of_brought: tuple[Sink, ...] = ()  # of calls that another gateway brought
        self._tracer: Tracer | None = None
        self._run = secrets.token_hex(4)  # begins the ids of calls that have none
        self._count = itertools.count(1)
        self.running: dict[int, Call] = {}  # by the identity of their attempts, in the order in which they came
        self.attempt: type[Attempt] = Attempt  # what a call is to be made with
        self.on = False
        self.on_brought = False
        self._steps = False
        self._look()

    def listen(self, sink: Sink) -> None:
        self._sinks = (*self._sinks, sink)
        self._look()

    def leave(self, sink: Sink) -> None:
        self._sinks = tuple(each for each in self._sinks if each is not sink)
        self._look()

    def trace_with(self, tracer: Tracer | None) -> None:
        self._tracer = tracer
        self._look()

    @property
    def traces(self) -> bool:
        return self._tracer is not None

    def _look(self) -> None:
        watched = any(self._watchers.want(kind) for kind in _CALLS)
        heard = any(getattr(sink, "wants_calls", True) for sink in self._sinks)
        self._sinks_of_brought = tuple(sink for sink in self._sinks if getattr(sink, "wants_brought", False))
        self.on = watched or heard or self._tracer is not None
        self.on_brought = watched or bool(self._sinks_of_brought) or self._tracer is not None
        self.attempt = TimedAttempt if self.on else Attempt
        self._steps = any(sink.wants_steps for sink in self._sinks) or any(
            self._watchers.want(kind) for kind in (CallStarted, AttemptFinished)
        )

    def emit(self, fact: Event, *, brought: bool = False) -> None:
        """Something that is not the end of a call."""
        for sink in self._sinks if not brought else self._sinks_of_brought:
            try:
                sink.on_event(fact)
            except Exception:
                _log.exception("a sink of facts failed")
        self._watchers.emit(fact)

    # -- one call -----------------------------------------------------------------------------------------------------

    def begin(self, call: Call) -> Call:
        """A call comes, and has an id from now on. Its end must be told."""
        if not call.id:  # of the library, where nobody else holds on to the attempt
            call = replace(call, id=f"{self._run}{next(self._count):x}", attempt=TimedAttempt())
        attempt = call.attempt
        self.running[id(attempt)] = call
        if self._tracer is not None and isinstance(attempt, TimedAttempt):  # others came before anybody listened
            attempt.trace = self._tracer.begin(call)
        if self._steps:
            trace = _trace_of(call)
            fact = CallStarted(_server(call), call.id, call.method, call.target, call.caller, trace, time.time())
            self.emit(fact, brought=call.brought)
        return call

    def reached(self, call: Call) -> Call:
        """A try has got to its server: the call as it is to be sent."""
        attempt = call.attempt
        if isinstance(attempt, TimedAttempt):
            attempt.effect = call.effect
            if attempt.trace is not None:
                return cast(Trace, attempt.trace).stamped(call)
        return call

    def answered(self, call: Call, reply: Reply, seconds: float) -> None:
        """It ends with an answer."""
        outcome = "tool_error" if reply.is_error else "ok"
        source = "cache" if reply.from_cache else "replay" if reply.replayed else ""
        if self._steps:
            self._try_ended(call, reply.server, reply.name, outcome, Certainty.C3, None)
        self._end(call, reply.server, reply.name, outcome, Certainty.C3, seconds, source)

    def failed(self, call: Call, exc: CallError, seconds: float) -> None:
        """It ends with an error, whose last try `try_failed` has told of."""
        certainty = exc.certainty if exc.certainty is not None else Certainty.C0
        server = exc.server or call.server
        self._end(call, server, exc.tool, exc.code, certainty, seconds, error=exc)

    def abandoned(self, call: Call, seconds: float) -> None:
        """Whoever called does not wait for it any more."""
        self._end(call, _server(call), call.name, "cancelled", call.attempt.judge(), seconds)

    def try_failed(self, call: Call, exc: CallError, wait: float | None) -> None:
        """A try failed, and there will be another after `wait`, or none."""
        certainty = exc.certainty if exc.certainty is not None else Certainty.C0
        call.attempt.failed(exc.code, certainty)
        if self._steps:
            self._try_ended(call, call.server, call.name, exc.code, certainty, wait)

    def _try_ended(
        self, call: Call, server: str, name: str, outcome: str, certainty: Certainty, wait: float | None
    ) -> None:
        number = call.attempt.made
        if number:
            executed = certainty.executed
            fact = AttemptFinished(server, call.id, call.method, name, number, outcome, executed, certainty, wait)
            self.emit(fact, brought=call.brought)

    def _end(
        self,
        call: Call,
        server: str,
        name: str,
        outcome: str,
        certainty: Certainty,
        seconds: float,
        source: str = "",
        error: CallError | None = None,
    ) -> None:
        attempt, now = call.attempt, clock()
        self.running.pop(id(attempt), None)
        timed = attempt if isinstance(attempt, TimedAttempt) else None
        if timed is not None:
            seconds = now - timed.marks[0][1]
        fact = CallFinished(  # by position: every call that somebody hears of pays for this
            server,
            call.method,
            call.target,
            outcome,
            certainty.executed,
            seconds,
            call.id,
            name,
            call.caller,
            _trace_of(call),
            time.time() - seconds,
            attempt.made,
            certainty,
            timed.effect if timed is not None else "",
            source or ("shared" if attempt.leader is not None else ""),
            error.what if error is not None else "",
            error.evidence if error is not None else "",
            error.fix if error is not None else "",
            timed.history() if timed is not None else (),
            timed.slips if timed is not None else (),
            now,
            error.rpc_code if isinstance(error, ProtocolError) else None,
            attempt.wire_id if attempt.leader is None else attempt.leader.wire_id,
            cast(Trace, timed.trace).span if timed is not None and timed.trace is not None else "",
            call.params,
        )
        if timed is not None and timed.trace is not None:
            cast(Trace, timed.trace).ended(fact)
        for sink in self._sinks if not call.brought else self._sinks_of_brought:
            try:
                sink.on_call(fact)
            except Exception:
                _log.exception("a sink of facts failed")
        if self._watchers.want(CallFinished):
            self._watchers.emit(fact)


def _server(call: Call) -> str:
    """Which server is meant, as far as the caller's own words tell."""
    return call.server or call.target.partition(".")[0]


def _trace_of(call: Call) -> str:
    """The trace that a call belongs to: ours, or the one that its caller named."""
    trace = call.attempt.trace if isinstance(call.attempt, TimedAttempt) else None
    if trace is not None:
        return cast(Trace, trace).id
    meta = call.params.get("_meta")
    parent = meta.get("traceparent") if isinstance(meta, dict) else None
    return parent[3:35] if isinstance(parent, str) and _TRACEPARENT.fullmatch(parent) else ""
