"""A lease is believed for less time than it was granted for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from toolway.cluster.lease_clock import DEFAULT_LEASE_SETTINGS, LeaseClock

TTL, GIVE_UP = DEFAULT_LEASE_SETTINGS.ttl, DEFAULT_LEASE_SETTINGS.hold


def test_without_a_grant_a_node_owns_nothing() -> None:
    assert LeaseClock().epoch(0.0) is None


def test_a_lease_is_held_until_it_is_given_up_and_no_longer() -> None:
    tenure = LeaseClock()
    tenure.start(4, requested_at=100.0)
    assert tenure.epoch(100.0 + GIVE_UP - 0.001) == 4
    assert tenure.epoch(100.0 + GIVE_UP) is None
    assert tenure.expires_at() == 100.0 + GIVE_UP


def test_what_the_record_no_longer_knows_is_over_at_once() -> None:
    tenure = LeaseClock()
    tenure.start(4, requested_at=100.0)
    tenure.end()
    assert tenure.epoch(100.1) is None


def test_a_late_answer_shortens_nothing() -> None:
    tenure = LeaseClock()
    tenure.start(4, requested_at=100.0)
    tenure.extend(requested_at=103.0, now=103.1)
    tenure.extend(requested_at=101.0, now=103.2)
    assert tenure.expires_at() == 103.0 + GIVE_UP


def test_an_answer_that_comes_when_all_was_given_up_brings_nothing_back() -> None:
    tenure = LeaseClock()
    tenure.start(4, requested_at=100.0)
    tenure.extend(requested_at=103.0, now=100.0 + GIVE_UP + 0.1)
    assert tenure.epoch(100.0 + GIVE_UP + 0.1) is None
    tenure.extend(requested_at=107.2, now=107.3)
    assert tenure.epoch(107.3) is None
    tenure.start(5, requested_at=108.0)
    assert tenure.epoch(108.1) == 5


@given(
    renewals=st.lists(st.tuples(st.floats(0, 60), st.floats(0, 12)), max_size=20),
    now=st.floats(0, 80),
)
def test_who_believes_in_a_lease_has_one_whatever_the_answers_took(
    renewals: list[tuple[float, float]], now: float
) -> None:
    """The record grants TTL from when it was asked at the earliest, so somebody else begins later than that."""
    tenure = LeaseClock()
    tenure.start(1, 0.0)
    answered = [0.0]
    for asked_at, took in sorted(renewals, key=sum):
        if asked_at + took <= now:
            tenure.extend(asked_at, asked_at + took)
            answered.append(asked_at)
    if tenure.epoch(now) is not None:
        assert now < max(answered) + TTL - (TTL - GIVE_UP)
