"""What was called, what was answered and what really happened, in order."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import TypeVar

from toolway.errors import Executed
from toolway.types import Effect


@dataclass(frozen=True, slots=True)
class Entry:
    at: float


@dataclass(frozen=True, slots=True)
class Begun(Entry):
    """A call, and what was promised to its caller."""

    call: str
    server: str
    tool: str
    effect: Effect  # that the hub may see in it at most
    nonce: str
    limit: float  # seconds it may take
    attempts: int  # it may make
    key: str | None = None
    shared: bool = False  # others may have the same nonce, and one answer may be for all of them
    sure: bool = False  # nothing goes wrong with its server


@dataclass(frozen=True, slots=True)
class Ended(Entry):
    """How a call ended, as its caller saw it."""

    call: str
    outcome: str  # ok, tool_error, cancelled, broken, or the code of the error
    executed: Executed
    attempts: int = 0
    nonce: str | None = None  # that the answer carried
    again: bool = False  # the answer comes from an earlier call
    phase: str = ""  # in which its time was over
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Reported(Entry):
    """How a call ended, as reported to watchers of the hub."""

    target: str
    outcome: str
    executed: Executed
    call: str = ""  # if its arguments say so


@dataclass(frozen=True, slots=True)
class Sent(Entry):
    """A request of a call left us."""

    server: str
    nonce: str
    call: str  # empty for a shared one


@dataclass(frozen=True, slots=True)
class Done(Entry):
    """A server did what a tool does."""

    server: str
    nonce: str
    call: str  # empty for a shared one
    sent: float  # when the request that caused it left us


@dataclass(frozen=True, slots=True)
class Progress(Entry):
    """A caller got progress of its call."""

    call: str
    nonce: str


@dataclass(frozen=True, slots=True)
class Struck(Entry):
    """Something went wrong."""

    server: str
    what: str


@dataclass(frozen=True, slots=True)
class Moved(Entry):
    """An upstream changed its state."""

    server: str
    old: str
    new: str
    why: str


@dataclass(frozen=True, slots=True)
class Cut(Entry):
    """We closed a link while calls were running on it. `opened` is the time when we opened it."""

    server: str
    calls: int
    opened: float


@dataclass(frozen=True, slots=True)
class Act(Entry):
    """Somebody did something to a server, or to the hub."""

    server: str
    what: str


E = TypeVar("E", bound=Entry)


class History:
    def __init__(self, now: Callable[[], float], front: str = "hub") -> None:
        self.now = now
        self.front = front  # what was called
        self.entries: list[Entry] = []
        self.landed = 0  # calls without a task that ended by themselves
        self.taken_over = 0  # those that the pipeline took over
        self.leftovers: list[str] = []  # what was still held when nothing was running
        self.complaints: list[str] = []  # unexpected exceptions and log records

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)

    def of(self, kind: type[E]) -> Iterator[E]:
        return (entry for entry in self.entries if isinstance(entry, kind))

    def faults(self) -> Counter[str]:
        return Counter(entry.what for entry in self.of(Struck))

    def outcomes(self) -> Counter[str]:
        return Counter(entry.outcome for entry in self.of(Ended))

    def lines(self) -> Iterator[str]:
        yield from (line(entry) for entry in self.entries)
        yield from (f"left: {what}" for what in self.leftovers)
        yield from (f"complaint: {what}" for what in self.complaints)

    def digest(self) -> str:
        """The same for the same run, and for no other."""
        return hashlib.sha256("\n".join(self.lines()).encode()).hexdigest()


def line(entry: Entry) -> str:
    facts = ((field.name, getattr(entry, field.name)) for field in fields(entry) if field.name != "at")
    shown = " ".join(f"{name}={value}" for name, value in facts if value not in ("", None, False))
    return f"{entry.at!r} {type(entry).__name__.lower()} {shown}"
