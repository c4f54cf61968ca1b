"""A lease is believed for less time than it was granted for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from toolway.cluster.lease_clock import DEFAULT_LEASE_SETTINGS, LeaseClock

TTL, GIVE_UP = DEFAULT_LEASE_SETTINGS.ttl, DEFAULT_LEASE_SETTINGS.hold


def test_node_without_a_lease_owns_nothing() -> None:
    assert LeaseClock().epoch(0.0) is None


def test_lease_is_held_until_it_expires() -> None:
    tenure = LeaseClock()
    tenure.start(4, requested_at=100.0)
    assert tenure.epoch(100.0 + GIVE_UP - 0.001) == 4
    assert tenure.epoch(100.0 + GIVE_UP) is None
    assert tenure.expires_at() == 100.0 + GIVE_UP


def test_ended_lease_is_over_at_once() -> None:
    tenure = LeaseClock()
    tenure.start(4, requested_at=100.0)
    tenure.end()
    assert tenure.epoch(100.1) is None


def test_late_answer_does_not_shorten_the_lease() -> None:
    tenure = LeaseClock()
    tenure.start(4, requested_at=100.0)
    tenure.extend(requested_at=103.0, now=103.1)
    tenure.extend(requested_at=101.0, now=103.2)
    assert tenure.expires_at() == 103.0 + GIVE_UP


def test_answer_after_expiry_does_not_restore_the_lease() -> None:
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
def test_believed_lease_is_always_valid(renewals: list[tuple[float, float]], now: float) -> None:
    """The database grants TTL from the request at the earliest, so another node starts later than that."""
    tenure = LeaseClock()
    tenure.start(1, 0.0)
    answered = [0.0]
    for asked_at, took in sorted(renewals, key=sum):
        if asked_at + took <= now:
            tenure.extend(asked_at, asked_at + took)
            answered.append(asked_at)
    if tenure.epoch(now) is not None:
        assert now < max(answered) + TTL - (TTL - GIVE_UP)
