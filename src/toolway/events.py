"""Facts that others may watch with `async for event in hub.events()`. Frozen, and never a question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from toolway.errors import Executed

Kind = Literal["tools", "prompts", "resources", "templates"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to one server."""

    server: str


@dataclass(frozen=True, slots=True)
class StateChanged(Event):
    """An upstream moved from one state of its life to another."""

    old: str
    new: str
    why: str


@dataclass(frozen=True, slots=True)
class Connected(Event):
    """A link is up and the era is known."""

    era: str
    protocol: str
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Lost(Event):
    """A link that was up is gone."""

    why: str


@dataclass(frozen=True, slots=True)
class CatalogChanged(Event):
    """A list of a server is not what it was."""

    kind: Kind
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResourceUpdated(Event):
    """A server says that a resource changed."""

    uri: str
    caller: str = ""  # on whose own link it was said; empty for the one that is shared


@dataclass(frozen=True, slots=True)
class TaskChanged(Event):
    """A server says how a task of its own stands."""

    task: Any  # as it was sent, with its `taskId`


@dataclass(frozen=True, slots=True)
class Logged(Event):
    """A server's log message, as it sent it."""

    level: str
    data: Any
    logger: str | None = None
    of_call: bool = False  # the caller whom it concerns has got it
    caller: str = ""  # on whose own link it was said; empty for the one that is shared


@dataclass(frozen=True, slots=True)
class CallFinished(Event):
    """A call reached its one end."""

    method: str
    name: str
    outcome: str  # ok, tool_error, or the code of the error
    executed: Executed
    seconds: float


@dataclass(frozen=True, slots=True)
class LoopStalled(Event):
    """The event loop stands still, or stood, as can be told only now. `server` is empty, for it concerns all."""

    seconds: float  # so far
    where: str  # the stack of its thread

    @property
    def why(self) -> str:
        return (
            f"the event loop has not turned for {self.seconds:.1f} s: something blocks it, and no call, answer or "
            "deadline is looked at meanwhile. Let such work run in a thread, for instance by asyncio.to_thread()."
        )


@dataclass(frozen=True, slots=True)
class LoopResumed(Event):
    """It turns again. `server` is empty."""

    seconds: float  # for which it stood


@dataclass(frozen=True, slots=True)
class EventsMissed(Event):
    """This watcher was too slow: so many events were dropped. `server` is empty."""

    count: int
