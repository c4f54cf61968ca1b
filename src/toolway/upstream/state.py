"""The life of an upstream, as a table. Read this first: the supervisor only waits for these events and obeys.

idle          not started: lazy, or stopped because nobody called
starting      link being opened, era being found, tools being listed
ready         calls go through
backing_off   the server ended or could not be started; the next try has a time
failed        too many restarts in a short time; tried again rarely, or on command
stopping      being stopped by us
stopped       the end
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final


class State(enum.StrEnum):
    IDLE = "idle"
    STARTING = "starting"
    READY = "ready"
    BACKING_OFF = "backing_off"
    FAILED = "failed"
    STOPPING = "stopping"
    STOPPED = "stopped"


class Event(enum.StrEnum):
    WANTED = "wanted"  # somebody calls, or it is to run from the beginning
    CONNECTED = "connected"  # the era is known and the tools are listed
    ENDED = "ended"  # the start failed, or the link was lost, or health was missed
    GAVE_UP = "gave up"  # the same, once too often
    DUE = "due"  # the time of the next try has come, or a person asked for it
    UNUSED = "unused"  # nobody called for `idle_stop` seconds
    STOP = "stop"  # we are closing, or the server was removed
    GONE = "gone"  # link and process are gone


TRANSITIONS: Final[Mapping[State, Mapping[Event, State]]] = {
    State.IDLE: {Event.WANTED: State.STARTING, Event.STOP: State.STOPPED},
    State.STARTING: {
        Event.CONNECTED: State.READY,
        Event.ENDED: State.BACKING_OFF,
        Event.GAVE_UP: State.FAILED,
        Event.STOP: State.STOPPING,
    },
    State.READY: {
        Event.ENDED: State.BACKING_OFF,
        Event.GAVE_UP: State.FAILED,
        Event.UNUSED: State.IDLE,
        Event.STOP: State.STOPPING,
    },
    State.BACKING_OFF: {Event.DUE: State.STARTING, Event.STOP: State.STOPPED},
    State.FAILED: {Event.DUE: State.STARTING, Event.STOP: State.STOPPED},
    State.STOPPING: {Event.GONE: State.STOPPED},
    State.STOPPED: {},
}


class IllegalEvent(Exception):
    """An event that cannot happen in this state: a fault of ours."""


def step(state: State, event: Event) -> State:
    """The state that follows. Raises `IllegalEvent`."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise IllegalEvent(f"{event} in {state}") from None


def diagram() -> str:
    """The table as a Mermaid state diagram, for the documentation."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.IDLE}"]
    for state, row in TRANSITIONS.items():
        lines += [f"    {state} --> {after}: {event}" for event, after in row.items()]
    lines.append(f"    {State.STOPPED} --> [*]")
    return "\n".join(lines)
