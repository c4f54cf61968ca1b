"""Restarts: waits that double at random, a limit, and forgetting."""

from __future__ import annotations

from toolway.config.spec import Restart
from toolway.upstream.restarts import Restarts


def test_waits_double_up_to_the_cap_and_are_random_below() -> None:
    restarts = Restarts(Restart(limit=100), dice=lambda: 1.0)
    waits = [restarts.after_end(now=n * 100.0, ready_for=0)[0] for n in range(10)]
    assert waits[:4] == [0.1, 0.2, 0.4, 0.8]
    assert waits[-1] == 30.0
    assert Restarts(Restart(), dice=lambda: 0.5).after_end(0, 0) == (0.05, False)


def test_more_than_five_ends_in_a_minute_is_a_failed_server() -> None:
    restarts = Restarts(Restart(), dice=lambda: 0.0)
    outcomes = [restarts.after_end(now=float(n), ready_for=1.0) for n in range(6)]
    assert [failed for _, failed in outcomes] == [False] * 5 + [True]
    assert outcomes[-1][0] == 300.0


def test_ends_that_are_far_apart_never_fail_a_server() -> None:
    restarts = Restarts(Restart(), dice=lambda: 0.0)
    assert not any(restarts.after_end(now=n * 20.0, ready_for=19.0)[1] for n in range(50))


def test_a_minute_of_health_or_a_person_forgets_earlier_ends() -> None:
    restarts = Restarts(Restart(), dice=lambda: 1.0)
    for n in range(5):
        restarts.after_end(now=float(n), ready_for=0)
    assert restarts.after_end(now=70.0, ready_for=61.0) == (0.1, False)
    restarts.forgive()
    assert restarts.after_end(now=71.0, ready_for=0) == (0.1, False)
    assert restarts.total == 7
