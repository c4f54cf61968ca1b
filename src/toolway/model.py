"""The values that travel through Toolway, and the protocols by which its parts meet.

Nothing here waits, reads a clock or touches the world. What every call copies is a struct, because copying a frozen
dataclass costs ten times as much.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from toolway.errors import Certainty as Certainty
from toolway.errors import ToolFailed

Json: TypeAlias = dict[str, Any]

#: Called with (progress, total or None, message or None) while a call runs.
OnProgress: TypeAlias = Callable[[float, float | None, str | None], None]

#: Called with (method, params) of a notification of the server that belongs to a call.
OnNotice: TypeAlias = Callable[[str, Json], None]

Era: TypeAlias = Literal["modern", "handshake"]

#: Of phases. Not the loop's, which some loops turn once a millisecond.
clock = time.perf_counter
MOST_MARKS = 500  # of a call whose server asks and asks

#: (phase, when it began), by a clock of its own
Marks: TypeAlias = Sequence[tuple[str, float]]

#: (number, outcome, certainty) of a try that failed
Slips: TypeAlias = Sequence[tuple[int, str, Certainty]]


class ToolRef(msgspec.Struct, frozen=True):
    """The identity of a tool: the configured server's name and the tool's own name."""

    server: str
    tool: str

    def __str__(self) -> str:
        return f"{self.server}.{self.tool}"


class Effect(enum.StrEnum):
    """May a call be run again?"""

    READ = "read"  # it changes nothing
    IDEMPOTENT = "idempotent"  # running it twice does what running it once does
    UNSAFE = "unsafe"  # each run counts


class Attempt(msgspec.Struct, eq=False):
    """How far a call got. The part that learns a fact writes it here, at once, so that whoever ends the call from
    outside (deadline, cancellation) can still tell the truth about it."""

    certainty: Certainty = Certainty.C0  # of the try under way
    phase: str = "queue"  # what it waits for: see `resilience/deadline.py`
    number: int = 0  # tries begun
    worst: Certainty = Certainty.C0  # of the tries before
    keeps_bytes: bool = False  # whoever calls would pass the answer on as it came
    caller: str = ""  # whose call it is, where it is not the owner's: another's credential is not for it
    encoded: memoryview | None = None  # the result of the last answer as it came, where that is wanted and known
    leader: Attempt | None = None  # the call is answered by another one, which this is the attempt of
    wire_id: int | None = None  # of the last request that was sent
    give_back_slot: Callable[[], None] | None = None  # while one is held
    late: Callable[[Json], None] | None = None  # who wants an answer that comes when the call has ended
    told: Any = None  # what another node must know of the call, where it is sent to one
    _asking: int = 0  # questions that the caller has not answered yet
    _asking_since: float = 0.0
    _asked: float = 0.0  # seconds the caller took to answer earlier ones

    def fresh(self) -> Attempt:
        """One of the same kind for the same work, which has its own record."""
        return Attempt()

    def connecting(self) -> None:
        """There is no connection yet: one is being made."""
        self.phase = "connect"

    def failed(self, outcome: str, certainty: Certainty) -> None:
        """Hear what became of a try; kept where somebody listens."""

    def sent(self) -> None:
        """The first byte has left: from now on it may have been executed."""
        self.certainty = Certainty.C2
        self.phase = "server"

    def begin(self) -> None:
        """A new try begins; what the earlier ones may have done is kept."""
        if self.certainty is not Certainty.C0:
            self.worst = max(self.worst, self.certainty)
            self.certainty = Certainty.C0
        self.phase = "queue"
        self.encoded = None
        self.number += 1

    def judge(self) -> Certainty:
        """How sure we are about the call as a whole."""
        own = max(self.worst, self.certainty)
        return own if self.leader is None else max(own, self.leader.judge())

    def ask_begins(self, now: float) -> None:
        """The server waits for the caller. That costs the call none of its time, and others none of their slots."""
        if not self._asking:
            self._asking_since = now
        self._asking += 1
        self.leave_slot()

    def ask_ends(self, now: float) -> None:
        self._asking -= 1
        if not self._asking:
            self._asked += now - self._asking_since

    def asked(self, now: float) -> float:
        """Seconds in which the caller himself was waited for."""
        own = self._asked + (now - self._asking_since if self._asking else 0.0)
        return own if self.leader is None else max(own, self.leader.asked(now))

    @property
    def is_asked(self) -> bool:
        """Whether the caller has an open question."""
        return self._asking > 0

    @property
    def was_asked(self) -> bool:
        """Whether the caller was asked anything."""
        return self._asking > 0 or self._asked > 0

    def leave_slot(self) -> None:
        give_back, self.give_back_slot = self.give_back_slot, None
        if give_back is not None:
            give_back()

    @property
    def made(self) -> int:
        """Tries that were begun for the call."""
        return self.number if self.leader is None else max(self.number, self.leader.made)

    @property
    def where(self) -> str:
        """The phase of whatever is being waited for."""
        return self.phase if self.leader is None else self.leader.where


class TimedAttempt(Attempt, eq=False):
    """An attempt that remembers when each of its phases began, for those who listen; others do not pay for it."""

    marks: list[tuple[str, float]] = msgspec.field(default_factory=lambda: [("queue", clock())])
    slips: Slips = ()
    trace: Any = None  # what a tracer keeps for the call
    effect: str = ""  # of the call, once it is known

    @property  # type: ignore[misc]  # the same to everybody who reads or writes it
    def phase(self) -> str:
        return self.marks[-1][0]

    @phase.setter
    def phase(self, value: str) -> None:
        self.marks.append((value, clock()))

    def fresh(self) -> TimedAttempt:
        other = TimedAttempt()
        other.trace = self.trace
        return other

    def history(self) -> Marks:
        """When its phases began, or those of the call that it was answered by, from when it came itself."""
        leader = self.leader
        if not isinstance(leader, TimedAttempt):
            return self.marks
        came = self.marks[0][1]
        return [self.marks[0], *((phase, max(at, came)) for phase, at in leader.marks[1:])]

    def failed(self, outcome: str, certainty: Certainty) -> None:
        self.slips = (*self.slips, (self.number, outcome, certainty))

    def ask_begins(self, now: float) -> None:
        if not self.is_asked and len(self.marks) < MOST_MARKS:
            self.marks.append(("caller", clock()))
        super().ask_begins(now)

    def ask_ends(self, now: float) -> None:
        super().ask_ends(now)
        if not self.is_asked and len(self.marks) < MOST_MARKS:
            before = next(phase for phase, _ in reversed(self.marks) if phase != "caller")
            self.marks.append((before, clock()))


class Asks(Protocol):
    """What a server may ask back while it works: elicitation, sampling, roots."""

    @property
    def capabilities(self) -> Json:
        """The client capabilities to declare: only what can be answered."""
        ...

    async def answer(self, server: str, method: str, params: Json) -> Json:
        """The result for the server. Raises `LookupError` where nobody can answer, `AskRefused` for a refusal."""
        ...


class AskRefused(Exception):
    """Whoever was asked answered with an error, which is for the server."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


@dataclass(frozen=True, slots=True)
class Refusal:
    """A server wants another credential than the one it was sent, if any."""

    status: int  # 401 or 403
    challenge: str  # the WWW-Authenticate header; may be empty
    sent: str = field(repr=False)  # the Authorization header that it refused; empty where none was sent
    what: str = ""  # what was asked for: the method, and the tool where there is one


class Authorizer(Protocol):
    """Keeps the credential for one server. What it keeps is for that server's origin alone."""

    @property
    def idle(self) -> bool:
        """Whether there is nothing to send, as far as is known: then nothing is asked before the server wants it."""
        ...

    def wake(self) -> None:
        """Hear that the server wants a credential."""
        ...

    def serves(self, caller: str) -> bool:
        """Whether the credential is for calls of this caller; what the hub does for itself has none."""
        ...

    @property
    def interactive(self) -> bool:
        """Whether a person may be asked to log in, which takes a person's time."""
        ...

    async def authorization(self) -> str:
        """The Authorization header for the next request, or nothing. Waits only where a new token is due. Raises
        `NotAuthorized`."""
        ...

    async def challenged(self, refusal: Refusal) -> bool:
        """Whether there is another credential now, with which the request is to be sent once more. All who were
        refused the same credential share one new one. Raises `NotAuthorized`."""
        ...

    def refused_again(self, refusal: Refusal) -> None:
        """Hear that the new credential was refused too, which is final."""
        ...


class NotAuthorized(Exception):
    """There is no credential for a server, and none could be had. Never carries a secret."""

    def __init__(self, reason: str, *, code: str, fix: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code
        self.fix = fix


class Call(msgspec.Struct, frozen=True, eq=False):
    """One call on its way through the pipeline. Stages pass on a changed copy, never a changed call."""

    target: str  # what the caller asked for: "server.tool", or a name or URI with `server` given
    method: str  # the MCP method
    params: Json
    server: str = ""  # filled in by `resolve`, like `name`
    name: str = ""  # the tool, prompt or URI as the server knows it
    timeout: float | None = None  # seconds the caller grants; None = the server's setting
    deadline: float = 0.0  # on the loop's clock; filled in by `deadline`
    on_progress: OnProgress | None = None
    effect: Effect = Effect.UNSAFE  # filled in by `resolve`
    repeatable: bool | None = None  # the caller's word that it may run again
    retries: int | None = None  # retries the caller allows; None = the server's setting
    key: str | None = None  # the caller's idempotency key
    caller: str = ""  # whose call it is: the authorization context; empty for the library's own caller
    attempt: Attempt = msgspec.field(default_factory=Attempt)
    id: str = ""  # by which the caller can name it later
    asks: Asks | None = None  # who answers what the server asks in mid-call; None = whoever answers for the hub
    capabilities: Json | None = None  # what the caller declared that he can be asked; None = as `asks` says
    hands_back: bool = False  # give `input_required` to the caller instead of answering it
    on_notice: OnNotice | None = None  # log messages that belong to the call
    log_level: str | None = None  # from which level on
    origin: Any = None  # the request of a client that it was made for, for a trace of it; None in a library
    brought: bool = False  # by another gateway of ours, which tells of it: each call is counted once
    terms: Any = None  # what `rules` found out about it, for its own later questions; filled in by `resolve`


class Reply(msgspec.Struct, frozen=True):
    """The answer to a call. `raw` is the server's result, untouched; the rest are views of it."""

    server: str
    name: str
    raw: Json
    seconds: float = 0.0
    attempts: int = 1
    from_cache: bool = False
    replayed: bool = False  # the stored outcome of an earlier call with the same idempotency key
    encoded: memoryview | None = None  # `raw` as it came, for callers who asked to keep it

    @property
    def is_error(self) -> bool:
        """The tool ran and says that it failed."""
        return self.raw.get("isError") is True

    @property
    def content(self) -> list[Json]:
        """The content blocks of a tool's result."""
        return _objects(self.raw.get("content"))

    @property
    def text(self) -> str:
        """All text of the answer, joined by newlines: content blocks, resource contents or prompt messages."""
        blocks = self.content or self.contents or [m["content"] for m in self.messages if "content" in m]
        return "\n".join(b["text"] for b in blocks if isinstance(b, dict) and isinstance(b.get("text"), str))

    @property
    def data(self) -> Any:
        """The structured content of a tool's result, or None."""
        return self.raw.get("structuredContent")

    @property
    def contents(self) -> list[Json]:
        """The contents of a resource that was read."""
        return _objects(self.raw.get("contents"))

    @property
    def messages(self) -> list[Json]:
        """The messages of a prompt."""
        return _objects(self.raw.get("messages"))

    def raise_for_error(self) -> Reply:
        """Return this reply, or raise `ToolFailed` if the tool said that it failed."""
        if self.is_error:
            raise ToolFailed(
                f"{self.server}.{self.name} failed",
                reply=self,
                server=self.server,
                tool=self.name,
                attempts=self.attempts,
                certainty=Certainty.C3,
                evidence=self.text[:500],
            )
        return self


def _objects(value: Any) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


Next: TypeAlias = Callable[[Call], Awaitable[Reply]]
#: One step of the pipeline: looks at a call, passes it on (or not), looks at what comes back.
Stage: TypeAlias = Callable[[Call, Next], Awaitable[Reply]]


class Caller(Protocol):
    """Whatever can call a tool: a Hub, a gateway far away, a fake."""

    async def call_tool(self, name: str, arguments: Mapping[str, Any] | None = None) -> Reply: ...
