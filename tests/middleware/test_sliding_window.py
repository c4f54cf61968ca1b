"""Recent attempts: counted as they ended, for as long as the window, in bounded memory."""

from __future__ import annotations

import pytest

from toolway.middleware.circuit_breaker import WINDOW_SLOTS, SlidingWindow


def test_attempts_outside_the_window_do_not_count() -> None:
    recent = SlidingWindow(10.0)
    recent.record_failure(0.0)
    recent.record_success(5.0)
    recent.record_failure(9.0)
    assert recent.count(9.9) == (3, 2)
    assert recent.count(10.0) == (2, 1)
    assert recent.count(19.0) == (0, 0)


def test_cleared_attempts_do_not_count() -> None:
    recent = SlidingWindow(10.0)
    recent.record_failure(0.0)
    recent.clear()
    assert recent.count(0.0) == (0, 0)
    recent.record_success(0.0)
    assert recent.count(0.0) == (1, 0)


@pytest.mark.parametrize("rate", [1, 10, 100, 1000])
def test_many_attempts_use_bounded_memory_and_are_counted(rate) -> None:
    recent = SlidingWindow(10.0)
    for n in range(100 * rate):
        recent.record_success(n / rate)
        assert len(recent) <= WINDOW_SLOTS + 1
    now = (100 * rate - 1) / rate
    ended, failures = recent.count(now)
    assert failures == 0
    assert ended == pytest.approx(10 * rate, abs=rate / 20 + 1)


def test_successes_alone_are_forgotten_too() -> None:
    recent = SlidingWindow(10.0)
    for n in range(100):
        recent.record_success(n * 1.0)
    assert len(recent) == 10
