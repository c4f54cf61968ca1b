"""The life of an upstream: the table is whole, and every way leads to the end."""

from __future__ import annotations

from typing import get_args

import pytest

from toolway.upstream.state import TRANSITIONS, IllegalEvent, State, StateEvent, StateWord, state_word, step


def test_every_state_has_transitions_except_stopped() -> None:
    assert set(TRANSITIONS) == set(State)
    assert [state for state, row in TRANSITIONS.items() if not row] == [State.STOPPED]


def test_every_state_is_reachable_and_stoppable() -> None:
    reached = {State.IDLE}
    while new := {after for state in reached for after in TRANSITIONS[state].values()} - reached:
        reached |= new
    assert reached == set(State)
    for state in set(State) - {State.STOPPING, State.STOPPED}:
        assert step(state, StateEvent.STOP) in (State.STOPPING, State.STOPPED)


def test_every_event_is_used() -> None:
    assert {event for row in TRANSITIONS.values() for event in row} == set(StateEvent)


def test_impossible_event_raises() -> None:
    with pytest.raises(IllegalEvent):
        step(State.IDLE, StateEvent.CONNECTED)


@pytest.mark.user_trial("11")
def test_every_state_has_a_user_facing_word() -> None:
    words = {state: state_word(state, has_failed=False) for state in State}
    assert {state for state, word in words.items() if word == "idle"} == {State.IDLE, State.STOPPING, State.STOPPED}
    assert words[State.STARTING] == words[State.BACKING_OFF] == "starting"  # a requested restart
    failed = {state: state_word(state, has_failed=True) for state in State}
    assert failed[State.STARTING] == failed[State.BACKING_OFF] == failed[State.FAILED] == "down"
    assert failed[State.READY] == "ready"  # it works again
    assert {*words.values(), *failed.values(), "disabled"} == set(get_args(StateWord))
