"""The lifecycle of an upstream, as a table of states and events.

Read this first: the supervisor only waits for these events and follows the table.

idle          not started: lazy, or stopped because there were no calls
starting      the transport is being opened, the era negotiated, the tools listed
ready         calls are sent
backing_off   the server ended or could not be started; the next start is scheduled
failed        too many restarts in a short time; retried rarely, or on request
stopping      being stopped by us
stopped       the end

Users see one of five words, which `state_word` derives: ready, starting, idle, down, and disabled. The states above are
the detail next to the word.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, Literal


class State(enum.StrEnum):
    """Lifecycle states of an upstream."""

    IDLE = "idle"
    STARTING = "starting"
    READY = "ready"
    BACKING_OFF = "backing_off"
    FAILED = "failed"
    STOPPING = "stopping"
    STOPPED = "stopped"


#: State of a server as users see it. A server without an upstream is disabled, or idle if its hub is closed.
StateWord = Literal["ready", "starting", "idle", "down", "disabled"]


def state_word(state: State, *, has_failed: bool) -> StateWord:
    """Return the word that users see for a lifecycle state.

    `has_failed` means that the server failed and has not been ready since. A requested restart is not a failure.
    """
    if state is State.READY:
        return "ready"
    if state in (State.STARTING, State.BACKING_OFF, State.FAILED):
        return "down" if has_failed else "starting"
    return "idle"


class StateEvent(enum.StrEnum):
    """Events that change an upstream's lifecycle state."""

    WANTED = "wanted"  # a call needs the server, or it is not lazy
    CONNECTED = "connected"  # the era is known and the tools are listed
    ENDED = "ended"  # the start failed, the connection was lost, or health checks failed
    GAVE_UP = "gave up"  # as ENDED, but the restart limit is reached
    DUE = "due"  # the scheduled start time is reached, or a restart was requested
    UNUSED = "unused"  # no calls for `idle_timeout` seconds
    STOP = "stop"  # the hub closes, or the server was removed
    GONE = "gone"  # connection and process have ended


TRANSITIONS: Final[Mapping[State, Mapping[StateEvent, State]]] = {
    State.IDLE: {StateEvent.WANTED: State.STARTING, StateEvent.STOP: State.STOPPED},
    State.STARTING: {
        StateEvent.CONNECTED: State.READY,
        StateEvent.ENDED: State.BACKING_OFF,
        StateEvent.GAVE_UP: State.FAILED,
        StateEvent.STOP: State.STOPPING,
    },
    State.READY: {
        StateEvent.ENDED: State.BACKING_OFF,
        StateEvent.GAVE_UP: State.FAILED,
        StateEvent.UNUSED: State.IDLE,
        StateEvent.STOP: State.STOPPING,
    },
    State.BACKING_OFF: {StateEvent.DUE: State.STARTING, StateEvent.STOP: State.STOPPED},
    State.FAILED: {StateEvent.DUE: State.STARTING, StateEvent.STOP: State.STOPPED},
    State.STOPPING: {StateEvent.GONE: State.STOPPED},
    State.STOPPED: {},
}


class IllegalEvent(Exception):
    """Raised for an event that the current lifecycle state does not allow: a bug in Toolway."""


def step(state: State, event: StateEvent) -> State:
    """Return the state after `event`. Raises `IllegalEvent` if there is none."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise IllegalEvent(f"{event} in {state}") from None
