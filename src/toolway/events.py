"""Events that a hub emits about its servers, calls and catalog.

Read them with `async for event in hub.events()`, or receive them with `hub.add_sink(sink)`.

Events are immutable and never request an action. They are msgspec structs because every observed call creates one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import msgspec

from toolway.errors import Certainty, Executed
from toolway.outcomes import OutcomeWord, outcome_of
from toolway.types import FailedAttempts, Json, PhaseMarks

AlertKind = Literal[
    "login-needed",
    "token-rejected",
    "rate-limited",
    "server-down",
    "outcome-unknown",
    "audit",
    "definition-on-hold",
    "cluster-database",
    "workflow-asks",
    "workflow-stuck",
    "workflow-damaged",
]
ListKind = Literal["tools", "prompts", "resources", "templates"]


class Event(msgspec.Struct, frozen=True):
    """Base class of all events. `server` is the server that the event is about, or empty.

    Example:
        async for event in hub.events():
            print(event.server, event)
    """

    server: str


class StateChanged(Event, frozen=True):
    """The lifecycle state of a server changed, such as from `starting` to `ready`.

    `old` and `new` are detailed states, as in `ServerStatus.lifecycle`; `state` is the word that users see.

    Example:
        async for event in hub.events(StateChanged):
            print(f"{event.server}: {event.old} → {event.new} {event.reason}")
    """

    old: str
    new: str
    reason: str
    code: str = ""  # of the server's last failure, if there was one
    hint: str = ""  # advice for the administrator
    state: str = ""  # ready, starting, idle, or down, as in `ServerStatus.state`


class Connected(Event, frozen=True):
    """A server connected, and its protocol era and version were negotiated."""

    era: str
    protocol: str
    pid: int | None = None


class Disconnected(Event, frozen=True):
    """The connection to a server was lost, failed its health check, or is being restarted.

    It is not emitted when the hub closes or stops an unused server.
    """

    reason: str
    requested: bool = False  # someone asked for a restart: nothing failed


class HealthChanged(Event, frozen=True):
    """A ready server failed its health check, or passed it again.

    Example:
        async for event in hub.events(HealthChanged):
            print(event.server, "passed" if event.ok else event.reason)
    """

    ok: bool
    reason: str = ""  # why it failed


class ServerPaused(Event, frozen=True):
    """A server requested a pause (`Retry-After`): calls to it are rejected until the pause is over.

    Example:
        async for event in hub.events(ServerPaused):
            print(f"no calls of {event.server} for {event.seconds:.0f} s")
    """

    seconds: float


class CatalogChanged(Event, frozen=True):
    """A tool, prompt, resource or template list of a server changed.

    Example:
        async for event in hub.events(CatalogChanged):
            print(event.server, event.kind, event.added, event.removed, event.changed)
    """

    kind: ListKind
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


class ResourceUpdated(Event, frozen=True):
    """A server reported that the content of a resource changed."""

    uri: str
    caller: str = ""  # caller id if it arrived on a per-caller connection; "" for the shared one


class TaskChanged(Event, frozen=True):
    """A server reported a new status of one of its tasks."""

    task: Any  # as the server sent it, with its `taskId`


class ServerLog(Event, frozen=True):
    """A server's log message, unchanged, or a Toolway warning about one of the server's lists.

    Example:
        async for log in hub.events(ServerLog):
            print(log.server, log.level, log.data)
    """

    level: str
    data: Any
    logger: str | None = None
    delivered_to_caller: bool = False  # already delivered to the caller of the call it belongs to
    caller: str = ""  # caller id if it arrived on a per-caller connection; "" for the shared one


class CallStarted(Event, frozen=True):
    """A call was accepted. `server` is the name that the caller gave, which is not resolved yet.

    Example:
        async for event in hub.events(CallStarted, CallFinished):
            print(event.id, event.name)
    """

    id: str
    method: str
    name: str  # as the caller named it
    caller: str = ""  # caller id; "" for the local owner
    trace_id: str = ""  # the id of the trace it belongs to, as 32 hex digits
    started_at: float = 0.0  # seconds since 1970


class AttemptFinished(Event, frozen=True):
    """One attempt of a call ended, successfully or not.

    Example:
        async for event in hub.events(AttemptFinished):
            print(event.tool, event.number, event.outcome, event.retry_delay)
    """

    id: str  # of the call
    method: str
    tool: str
    number: int  # from 1
    code: str  # as in `CallFinished`
    executed: Executed
    certainty: Certainty
    retry_delay: float | None = None  # seconds until the next attempt; None if there is none

    @property
    def outcome(self) -> OutcomeWord:
        """Return the attempt's outcome in one word, as in `CallFinished`."""
        return outcome_of(self.code, self.executed).word


class Phase(msgspec.Struct, frozen=True, gc=False):
    """The time that one attempt of a call spent in one phase, such as `connect` or `server`."""

    name: str  # queue, pause, turn, start, connect, auth, send, server, stream, caller or retry
    offset: float  # seconds after the start of the call
    seconds: float


class AttemptTiming(msgspec.Struct, frozen=True):
    """The start, duration, outcome, and phases of one attempt of a call."""

    number: int  # from 1
    offset: float  # seconds after the start of the call
    seconds: float
    code: str  # as in `CallFinished`
    certainty: Certainty
    phases: tuple[Phase, ...]

    @property
    def outcome(self) -> OutcomeWord:
        """Return the attempt's outcome in one word, as in `CallFinished`."""
        return outcome_of(self.code, self.certainty.executed).word


class CallFinished(Event, frozen=True, gc=False):
    """A call ended. Emitted exactly once per call.

    Example:
        async for event in hub.events(CallFinished):
            print(event.server, event.tool, event.outcome, event.seconds)
    """

    method: str
    name: str  # as the caller named it
    code: str  # ok, tool_error, input_required, task, cancelled, or the code of the error
    executed: Executed
    seconds: float
    id: str = ""
    tool: str = ""  # the tool, prompt or URI as the server names it
    caller: str = ""  # caller id; "" for the local owner
    trace_id: str = ""  # the id of the trace it belongs to, as 32 hex digits
    started_at: float = 0.0  # start time: seconds since 1970
    attempts: int = 0
    certainty: Certainty = Certainty.NOT_SENT
    effect: str = ""  # read, idempotent or unsafe; empty if unknown
    source: str = ""  # cache, replay or shared, if the result comes from another call
    message: str = ""  # of the error, like the two below; secrets are masked in `hub.events()`, not for sinks
    detail: str = ""
    hint: str = ""
    phase_marks: PhaseMarks = ()  # when each phase began; empty if the call was not observed from its start
    failed_attempts: FailedAttempts = ()  # the attempts that failed before the last
    ended_at: float = 0.0  # on the clock of the phase marks
    rpc_code: int | None = None  # JSON-RPC error code of the server, if it sent one
    jsonrpc_id: int | None = None  # JSON-RPC id of the last request that was sent
    span_id: str = ""  # the id of the call's span in that trace, as 16 hex digits, if it is recorded
    params: Json | None = None  # as they were sent; never display them unmasked
    retry_after: float | None = None  # seconds that the server asks to wait, if it does
    request_id: str = ""  # `X-Request-ID` that the client of a gateway sent

    @property
    def outcome(self) -> OutcomeWord:
        """Return the call's outcome: ok, tool error, not run, unknown, or waiting."""
        return outcome_of(self.code, self.executed).word

    @property
    def failed(self) -> bool:
        """Return True unless the call succeeded or is waiting for approval or input."""
        return outcome_of(self.code, self.executed).is_failure

    @property
    def attempt_timings(self) -> tuple[AttemptTiming, ...]:
        """Return the outcome and phases of each attempt. Computed on demand, to keep calls fast."""
        return tuple(_split_attempts(self))


def _split_attempts(event: CallFinished) -> list[AttemptTiming]:
    """Split the phase marks (phase, start time) of a call into one timing per attempt.

    Each "queue" mark after the first begins a new attempt.
    """
    marks = event.phase_marks
    if not marks:
        return []
    call_start = marks[0][1]
    starts = [index for index, (phase, _) in enumerate(marks) if phase == "queue" and index]
    timings = []
    for number, start in enumerate(starts, 1):
        last = number == len(starts)
        end = event.ended_at if last else marks[starts[number]][1]
        ends = [at for _, at in marks[start + 1 : starts[number] if not last else None]] + [end]
        phases = tuple(
            Phase(phase, at - call_start, until - at)
            for (phase, at), until in zip(marks[start : start + len(ends)], ends, strict=True)
        )
        failure = next((failure for failure in event.failed_attempts if failure[0] == number), None)
        code, certainty = (failure[1], failure[2]) if failure is not None else (event.code, event.certainty)
        retry_wait = phases[-1].seconds if phases[-1].name == "retry" else 0.0
        attempt_start = marks[start][1]
        timings.append(
            AttemptTiming(number, attempt_start - call_start, end - attempt_start - retry_wait, code, certainty, phases)
        )
    return timings


class LoopStalled(Event, frozen=True):
    """The event loop is blocked, or was blocked and this is only noticed now. `server` is empty."""

    seconds: float  # so far
    stack: str  # the stack of the loop's thread

    @property
    def summary(self) -> str:
        return (
            f"the event loop has been blocked for {self.seconds:.1f} s: calls, responses, and deadlines are stuck "
            "until it runs again. Run blocking work in a thread, for example with asyncio.to_thread()."
        )


class LoopResumed(Event, frozen=True):
    """The event loop is running again after it was blocked. `server` is empty."""

    seconds: float  # how long it was blocked


class ServerChanged(Event, frozen=True):
    """A server was added, removed, or changed while the hub was running."""

    change: str  # added, removed or changed


class AccessEvent(Event, frozen=True):
    """A request was denied, an API key was created or revoked, or a user logged in or out.

    `server` is set for logins to servers and logouts from them; otherwise it is empty. `token_accepted` is the first
    use of an identity provider's access token; `keys_unavailable` and `keys_available` are about that provider's
    signing keys. A part's actions begin with its name.
    """

    action: str  # rejected, throttled, key_…, login, logout, token_accepted, logins_ended, keys_…, or of a part
    reason: str = ""
    principal_id: str = ""  # API key id or caller id


class PolicyDecision(Event, frozen=True):
    """A gateway rule allowed or denied an action, such as a call or adding a server.

    The rule `admission` is about adding a server. A rule that begins with `policy` comes from the gateway's policy
    file, and denied a call.
    """

    rule: str
    allowed: bool
    reason: str = ""
    item: str = ""  # the tool, prompt or resource that was called
    principal_id: str = ""


class PolicyChanged(Event, frozen=True):
    """The gateway's policy file was loaded, or could not be used.

    `rejected` means that the file is invalid, so the policies that were loaded before stay in force. `unfit` means
    that a policy does not fit a tool's arguments, so the calls it covers are denied.
    """

    action: str  # loaded, rejected or unfit
    reason: str = ""
    file: str = ""
    digest: str = ""  # SHA-256 of the policies in use


class PartCondition(Event, frozen=True):
    """A condition in a part that needs a user's attention began or ended. While it lasts, it is an `Alert`."""

    kind: str  # such as policy-rejected
    is_open: bool = True
    message: str = ""
    detail: str = ""
    hint: str = ""
    tool: str = ""
    call: str = ""  # id of what it is about, if several such conditions of one server can be open
    caller: str = ""


class DefinitionReviewed(Event, frozen=True):
    """A tool definition no longer matches its pin, matches it again, or was accepted."""

    action: str  # on_hold, noted (it is used), released (it is as pinned again, or gone) or accepted
    kind: str  # tools, prompts, templates or instructions
    name: str
    reason: str = ""  # changed, new, not accepted or suspicious
    digest: str = ""  # SHA-256 of the definition
    finding: str = ""  # of the content rules, the first one
    who: str = ""  # principal id of who accepted it; "" for the command line
    held: int = 0  # definitions of the server on hold after this


class ApprovalChanged(Event, frozen=True):
    """A call's approval changed: someone was asked, someone decided, or the call used the decision."""

    action: str  # asked, approved, denied, used, rejected (a used, foreign or outdated answer, a full queue) or expired
    by: str  # client or admin
    id: str  # of the request
    tool: str
    caller: str = ""  # caller id; "" for the local owner
    who: str = ""  # id of the administrator; "" for the local token
    reason: str = ""
    digest: str = ""  # SHA-256 of the name and the arguments
    call: str = ""  # call id


class AuditFailed(Event, frozen=True):
    """The audit log cannot be written, so calls that change something are rejected.

    `server` is empty.
    """

    reason: str


class AuditResumed(Event, frozen=True):
    """The audit log can be written again. `server` is empty."""

    lost_records: int  # records that could not be buffered


class ClusterDatabaseRefused(Event, frozen=True):
    """The cluster database contains data that no node wrote, or has been rolled back."""

    reason: str


class ClusterDatabaseAccepted(Event, frozen=True):
    """The cluster database is fully accepted again. `server` is empty."""


class CallRecovered(Event, frozen=True):
    """The audit log from an earlier run contains a call that never finished. Its outcome is unknown."""

    id: str
    tool: str
    caller: str = ""


class RunChanged(Event, frozen=True):
    """The state of a workflow run changed. `server` is `workflows`."""

    run: str
    workflow: str
    state: str
    seconds: float = 0.0  # since the run was created
    questions: int = 0  # open questions to a user
    caller: str = ""  # caller id of the starter; "" for the local owner
    code: str = ""  # of the error, if the run failed


class RunStepEnded(Event, frozen=True):
    """A tool call in a workflow step ended."""

    run: str
    workflow: str
    step: str
    tool: str
    outcome: str  # done, failed, not_executed or unknown
    seconds: float = 0.0


class RunAction(Event, frozen=True):
    """A user or program started, answered, settled, resumed, or cancelled a workflow run."""

    run: str
    action: str  # started, approved, denied, answered, settled, resumed or cancelled
    step: str = ""
    who: str = ""  # caller id or name; "" for the local owner


class RunAsks(Event, frozen=True):
    """A workflow run has been waiting a long time for a user's answer."""

    run: str
    workflow: str
    question: str
    seconds: float


class Alert(Event, frozen=True):
    """A problem that a user must resolve, with the fix in `hint`. Emitted once per cause.

    Secrets are masked. An unresolved problem is reported again after a day.

    Example:
        async for alert in hub.events(Alert):
            print(alert.server, alert.message, alert.hint)
    """

    kind: AlertKind | str  # another text is the condition of a part
    message: str
    detail: str = ""
    hint: str = ""
    tool: str = ""
    call: str = ""  # call id
    caller: str = ""  # caller id; "" for the local owner
    at: float = 0.0  # seconds since 1970

    @property
    def key(self) -> str:
        """Return what identifies the problem: kind, server, and call id. Repeated alerts share it."""
        parts = [self.kind, self.server, self.call]
        return "-".join(re.sub(r"[^A-Za-z0-9_]+", "-", word)[:80] for word in parts if word)


class AlertResolved(Event, frozen=True):
    """An alert's problem cleared by itself, for example because the server reconnected.

    Example:
        async for alert in hub.events(Alert, AlertResolved):
            print("resolved" if isinstance(alert, AlertResolved) else alert.message, alert.key)
    """

    key: str  # of the alert


class EventsMissed(Event, frozen=True):
    """A subscriber to `hub.events()` was too slow, so `count` events were dropped.

    `server` is empty.

    Example:
        async for event in hub.events():
            if isinstance(event, EventsMissed):
                print(f"{event.count} events were dropped")
    """

    count: int


class EventSink(Protocol):
    """Receives events synchronously, while calls are running.

    It must return quickly and never block. An exception it raises is logged and has no other effect.

    Optional attributes: `wants_forwarded = True` also requests calls that another node forwarded and reports itself.
    `wants_calls = False` says that the sink does not need call events, so calls skip the work for it.
    `wants_successes = False` says that `on_call` only needs calls that did not succeed.

    Example:
        class CountFailures:
            wants_attempts = False
            failed = 0

            def on_call(self, event: CallFinished) -> None:
                self.failed += event.failed

            def on_event(self, event: Event) -> None:
                pass


        remove = hub.add_sink(CountFailures())
    """

    def on_call(self, event: CallFinished) -> None: ...

    def on_event(self, event: Event) -> None:
        """Receive every event except `CallFinished`, which `on_call` receives.

        To receive `CallStarted` and `AttemptFinished`, `wants_attempts` must be True.
        """
        ...

    @property
    def wants_attempts(self) -> bool: ...


class BatchSink(EventSink, Protocol):
    """Event sink that receives finished calls in batches, which costs less per call than `on_call`.

    A call arrives at most 30 calls or one second late. Its large arguments and long strings are left out.
    """

    take_waiting: Callable[[], None]  # set by the hub; delivers all waiting calls. Call it before counts are read

    def on_calls(self, calls: Sequence[CallFinished]) -> None:
        """Receive finished calls, in the order they ended. `on_call` is not called for them."""
        ...
