"""Facts that others may watch with `async for event in hub.events()`, or hear at once with `hub.listen(sink)`.

Frozen, and never a question. Structs, because a call that is listened to makes one.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

import msgspec

from toolway.errors import Certainty, Executed
from toolway.model import Json, Marks, Slips

Kind = Literal["tools", "prompts", "resources", "templates"]


class Event(msgspec.Struct, frozen=True):
    """Something that happened to one server."""

    server: str


class StateChanged(Event, frozen=True):
    """An upstream moved from one state of its life to another."""

    old: str
    new: str
    why: str


class Connected(Event, frozen=True):
    """A link is up and the era is known."""

    era: str
    protocol: str
    pid: int | None = None


class Lost(Event, frozen=True):
    """A link that was up is gone."""

    why: str


class CatalogChanged(Event, frozen=True):
    """A list of a server is not what it was."""

    kind: Kind
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


class ResourceUpdated(Event, frozen=True):
    """A server says that a resource changed."""

    uri: str
    caller: str = ""  # on whose own link it was said; empty for the one that is shared


class TaskChanged(Event, frozen=True):
    """A server says how a task of its own stands."""

    task: Any  # as it was sent, with its `taskId`


class Logged(Event, frozen=True):
    """A server's log message, as it sent it."""

    level: str
    data: Any
    logger: str | None = None
    of_call: bool = False  # the caller whom it concerns has got it
    caller: str = ""  # on whose own link it was said; empty for the one that is shared


class CallStarted(Event, frozen=True):
    """A call has come. Which server it is for is known as far as the caller said."""

    id: str
    method: str
    name: str  # as the caller asked for it
    caller: str = ""  # whose call it is: the authorization context; empty for the owner
    trace: str = ""  # the id of the trace it belongs to, as 32 hex digits
    at: float = 0.0  # seconds since 1970


class AttemptFinished(Event, frozen=True):
    """One try of a call has ended, well or badly."""

    id: str  # of the call
    method: str
    tool: str
    number: int  # from 1
    outcome: str  # as in `CallFinished`
    executed: Executed
    certainty: Certainty
    wait: float | None = None  # seconds until the next try, where there is one


class Phase(msgspec.Struct, frozen=True, gc=False):
    """For how long a try waited for one thing."""

    name: str  # queue, pause, turn, start, connect, auth, send, server, stream, caller or retry
    began: float  # seconds after the call came
    seconds: float


class Try(msgspec.Struct, frozen=True):
    """One try of a call, as its timings tell of it."""

    number: int  # from 1
    began: float  # seconds after the call came
    seconds: float
    outcome: str
    certainty: Certainty
    phases: tuple[Phase, ...]


class CallFinished(Event, frozen=True):
    """A call reached its one end."""

    method: str
    name: str  # as the caller asked for it
    outcome: str  # ok, tool_error, cancelled, or the code of the error
    executed: Executed
    seconds: float
    id: str = ""
    tool: str = ""  # the tool, prompt or URI as the server knows it
    caller: str = ""  # whose call it was: the authorization context; empty for the owner
    trace: str = ""  # the id of the trace it belongs to, as 32 hex digits
    at: float = 0.0  # when it came: seconds since 1970
    attempts: int = 0
    certainty: Certainty = Certainty.C0
    effect: str = ""  # read, idempotent or unsafe; empty where nobody found out
    source: str = ""  # cache, replay or shared, where the answer is that of another call
    what: str = ""  # of an error, like the two below; not masked
    evidence: str = ""
    fix: str = ""
    marks: Marks = ()  # when each phase began; empty where nobody listened when it came
    slips: Slips = ()  # the tries that failed before the last
    end: float = 0.0  # on the clock of `marks`
    rpc_code: int | None = None  # the number of the server's error, where it gave one
    wire_id: int | None = None  # of the last request that was sent
    span: str = ""  # the id of its own span in that trace, as 16 hex digits, where it is recorded
    params: Json | None = None  # as they were sent; never to be shown as they are

    @property
    def failed(self) -> bool:
        return self.outcome != "ok"

    @property
    def tries(self) -> tuple[Try, ...]:
        """What became of each try, and where its time went. Found out when asked for, not while a call waits."""
        return tuple(_tries(self))


def _tries(fact: CallFinished) -> list[Try]:
    """Every mark of "queue" after the first begins a try."""
    marks = fact.marks
    if not marks:
        return []
    zero = marks[0][1]
    starts = [index for index, (phase, _) in enumerate(marks) if phase == "queue" and index]
    found = []
    for number, start in enumerate(starts, 1):
        last = number == len(starts)
        end = fact.end if last else marks[starts[number]][1]
        ends = [at for _, at in marks[start + 1 : starts[number] if not last else None]] + [end]
        phases = tuple(
            Phase(phase, at - zero, until - at)
            for (phase, at), until in zip(marks[start : start + len(ends)], ends, strict=True)
        )
        slip = next((slip for slip in fact.slips if slip[0] == number), None)
        outcome, certainty = (slip[1], slip[2]) if slip is not None else (fact.outcome, fact.certainty)
        pause = phases[-1].seconds if phases[-1].name == "retry" else 0.0
        began = marks[start][1]
        found.append(Try(number, began - zero, end - began - pause, outcome, certainty, phases))
    return found


class LoopStalled(Event, frozen=True):
    """The event loop stands still, or stood, as can be told only now. `server` is empty, for it concerns all."""

    seconds: float  # so far
    where: str  # the stack of its thread

    @property
    def why(self) -> str:
        return (
            f"the event loop has not turned for {self.seconds:.1f} s: something blocks it, and no call, answer or "
            "deadline is looked at meanwhile. Let such work run in a thread, for instance by asyncio.to_thread()."
        )


class LoopResumed(Event, frozen=True):
    """It turns again. `server` is empty."""

    seconds: float  # for which it stood


class ServerChanged(Event, frozen=True):
    """A server was added, removed or changed while we run."""

    what: str  # added, removed or changed


class Access(Event, frozen=True):
    """Who may come in has changed, or somebody was not let in. `server` is that of a login, else empty."""

    what: str  # refused, throttled, key_created, key_revoked, login or logout
    why: str = ""
    who: str = ""  # the id of a key, or a caller


class Decided(Event, frozen=True):
    """A rule allowed something, or refused it."""

    rule: str
    allowed: bool
    why: str = ""


class AuditFailed(Event, frozen=True):
    """The audit log cannot be written: calls that change something are refused. `server` is empty."""

    why: str


class AuditResumed(Event, frozen=True):
    """It can again. `server` is empty."""

    lost: int  # records that had no place meanwhile


class CallRecovered(Event, frozen=True):
    """The audit log of an earlier run has a call that was begun and never ended: nobody knows what became of it."""

    id: str
    tool: str
    caller: str = ""


class EventsMissed(Event, frozen=True):
    """This watcher was too slow: so many events were dropped. `server` is empty."""

    count: int


class Sink(Protocol):
    """Hears of everything at once, in the middle of the work: it returns quickly and never waits. What it raises is
    logged, and changes nothing."""

    def on_call(self, fact: CallFinished) -> None: ...

    def on_event(self, fact: Event) -> None:
        """All other facts. `CallStarted` and `AttemptFinished` only where the sink `wants_steps`."""
        ...

    @property
    def wants_steps(self) -> bool: ...

    # `wants_brought = True` asks for calls, too, that another gateway of a cluster brought: that one tells of them.
    # `wants_calls = False` says that a sink hears of servers alone: then calls cost nothing for its sake.
