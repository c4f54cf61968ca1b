"""Restarts: waits that double at random, a limit, and forgetting."""

from __future__ import annotations

import pytest

from toolway.config.schema import RestartPolicy
from toolway.upstream.start_policy import RestartBackoff


@pytest.mark.promise("D7")
def test_delays_double_up_to_cap_with_jitter() -> None:
    restarts = RestartBackoff(RestartPolicy(max_restarts=100), random=lambda: 1.0)
    waits = [restarts.next_delay(now=n * 100.0, ready_for=0)[0] for n in range(10)]
    assert waits[:4] == [0.1, 0.2, 0.4, 0.8]
    assert waits[-1] == 30.0
    assert RestartBackoff(RestartPolicy(), random=lambda: 0.5).next_delay(0, 0) == (0.05, False)


@pytest.mark.promise("D7")
def test_sixth_crash_in_a_minute_fails_server() -> None:
    restarts = RestartBackoff(RestartPolicy(), random=lambda: 0.0)
    outcomes = [restarts.next_delay(now=float(n), ready_for=1.0) for n in range(6)]
    assert [failed for _, failed in outcomes] == [False] * 5 + [True]
    assert outcomes[-1][0] == 300.0


def test_rare_crashes_never_fail_server() -> None:
    restarts = RestartBackoff(RestartPolicy(), random=lambda: 0.0)
    assert not any(restarts.next_delay(now=n * 20.0, ready_for=19.0)[1] for n in range(50))


def test_healthy_minute_or_reset_clears_crash_count() -> None:
    restarts = RestartBackoff(RestartPolicy(), random=lambda: 1.0)
    for n in range(5):
        restarts.next_delay(now=float(n), ready_for=0)
    assert restarts.next_delay(now=70.0, ready_for=61.0) == (0.1, False)
    restarts.reset()
    assert restarts.next_delay(now=71.0, ready_for=0) == (0.1, False)
    assert restarts.total == 7
