"""The budget of retries: a fifth of the attempts, and three at once in any case."""

from __future__ import annotations

import random

import pytest

from toolway.middleware.retry import BUDGET_WINDOW_S, MIN_RETRIES, RETRY_SHARE, RetryBudget


def busy(budget: RetryBudget, now: float) -> None:
    """Take what the floor allows, so only the share is left to decide."""
    while budget.active < MIN_RETRIES:
        assert budget.try_acquire(now)


def taken(budget: RetryBudget, now: float, wanted: int = 1000) -> int:
    return sum(budget.try_acquire(now) for _ in range(wanted))


def test_budget_constants_have_their_documented_values() -> None:
    assert (BUDGET_WINDOW_S, RETRY_SHARE, MIN_RETRIES) == (10, 0.2, 3)


def test_three_parallel_retries_are_always_allowed() -> None:
    budget = RetryBudget()
    assert [budget.try_acquire(0.0) for _ in range(5)] == [True, True, True, False, False]
    assert (budget.active, budget.denied) == (3, 2)


def test_finished_retry_makes_room_in_the_floor() -> None:
    budget = RetryBudget()
    busy(budget, 0.0)
    assert not budget.try_acquire(0.0)
    budget.release()
    assert budget.try_acquire(0.0)
    assert not budget.try_acquire(0.0)


@pytest.mark.parametrize("attempts", [0, 15, 16, 20, 100, 1000])
def test_beyond_the_floor_retries_are_a_fifth_of_attempts(attempts) -> None:
    budget = RetryBudget()
    for _ in range(attempts):
        budget.record_attempt(5.0)
    assert taken(budget, 5.0) == max(MIN_RETRIES, int(RETRY_SHARE * attempts))


def test_attempts_older_than_ten_seconds_are_forgotten() -> None:
    budget = RetryBudget()
    for _ in range(100):
        budget.record_attempt(1.0)
    assert taken(budget, 10.9) == 20
    assert taken(budget, 11.0) == 0  # 17 still run, and their window has no attempts any more
    for _ in range(20):
        budget.release()
    assert taken(budget, 25.0) == MIN_RETRIES


def test_finished_retries_count_within_the_window() -> None:
    budget = RetryBudget()
    for _ in range(50):
        budget.record_attempt(3.0)
    assert taken(budget, 3.0) == 10
    for _ in range(7):
        budget.release()
    assert (budget.active, taken(budget, 4.0)) == (MIN_RETRIES, 0)


def test_clock_going_back_changes_nothing() -> None:
    budget = RetryBudget()
    for _ in range(100):
        budget.record_attempt(50.0)
    assert taken(budget, 40.0, 10) == 10
    assert taken(budget, 50.0) == 10


def test_long_pause_empties_the_window() -> None:
    budget = RetryBudget()
    for _ in range(100):
        budget.record_attempt(1.0)
    busy(budget, 1e9)
    assert not budget.try_acquire(1e9)


def test_storm_of_retries_adds_at_most_a_fifth() -> None:
    dice, budget, made, retries = random.Random(1), RetryBudget(), 0, 0
    busy(budget, 0.0)
    for step in range(20_000):
        now = step / 1000
        made += 1
        budget.record_attempt(now)
        if dice.random() < 0.9 and budget.try_acquire(now):
            retries += 1
            budget.record_attempt(now)
    assert retries <= RETRY_SHARE * (made + retries) + 1
    assert retries >= 0.9 * RETRY_SHARE * (made + retries)
