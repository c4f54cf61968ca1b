"""The breaker: when it opens, for how long, and what closes it again."""

from __future__ import annotations

from itertools import product

import pytest

from tests.middleware.chain_lab import fixed
from toolway.middleware.circuit_breaker import TRANSITIONS, BreakerEvent, BreakerPolicy, BreakerState, CircuitBreaker

CLOSED, OPEN, HALF_OPEN = BreakerState
MIDDLE = 0.5  # dice that leave the pause as it is


def a_breaker(dice: float = MIDDLE) -> CircuitBreaker:
    return CircuitBreaker(fixed(dice))


def opened(now: float = 0.0, dice: float = MIDDLE) -> CircuitBreaker:
    breaker = a_breaker(dice)
    for _ in range(5):
        breaker.record_failure(now)
    assert breaker.state is OPEN
    return breaker


def trial(breaker: CircuitBreaker, now: float, *, good: bool) -> None:
    assert breaker.seconds_until_allowed(now) == 0
    breaker.begin_trial()
    if good:
        breaker.record_success(now)
    else:
        breaker.record_failure(now)


def recover(breaker: CircuitBreaker, now: float) -> None:
    trial(breaker, now, good=True)
    trial(breaker, now, good=True)
    assert breaker.state is CLOSED


def pause_of(breaker: CircuitBreaker, now: float) -> float:
    """Open it at `now`; for how long?"""
    while breaker.state is not OPEN:
        breaker.record_failure(now)
    return breaker.seconds_until_allowed(now)


# -- opening -----------------------------------------------------------------------------------------------------------


def test_default_policy_values() -> None:
    assert BreakerPolicy() == BreakerPolicy(
        max_consecutive_failures=5,
        failure_share=0.5,
        min_attempts=20,
        window_s=10.0,
        initial_open_s=5.0,
        jitter=0.2,
        max_open_s=60.0,
        reset_after_s=300.0,
        trial_successes=2,
        local_success_trust_s=1.0,
    )


def test_transition_table_is_complete() -> None:
    assert set(TRANSITIONS) == set(BreakerState)
    assert {happening for row in TRANSITIONS.values() for happening in row} == set(BreakerEvent)
    assert {after for row in TRANSITIONS.values() for after in row.values()} == set(BreakerState)


def test_new_breaker_allows_everything() -> None:
    breaker = a_breaker()
    assert (breaker.state, breaker.seconds_until_allowed(0.0), breaker.seconds_until_allowed(1e9)) == (CLOSED, 0.0, 0.0)


def test_breaker_opens_at_the_fifth_failure_in_a_row() -> None:
    breaker = a_breaker()
    for n in range(4):
        breaker.record_failure(n * 1000.0)
        assert breaker.state is CLOSED
    breaker.record_failure(4000.0)
    assert (breaker.state, breaker.seconds_until_allowed(4000.0)) == (OPEN, 5.0)


def test_success_resets_the_consecutive_count() -> None:
    breaker = a_breaker()
    for n in range(40):
        breaker.record_failure(n * 100.0)
        if n % 4 == 3:
            breaker.record_success(n * 100.0)
    assert breaker.state is CLOSED


def test_breaker_opens_at_half_failed_of_twenty_in_ten_seconds() -> None:
    breaker = a_breaker()
    for n in range(19):
        (breaker.record_success if n % 2 == 0 else breaker.record_failure)(n / 2)
        assert breaker.state is CLOSED
    breaker.record_failure(9.5)  # the twentieth, and the tenth that failed
    assert breaker.state is OPEN


def test_breaker_stays_closed_below_half_failed() -> None:
    breaker = a_breaker()
    for n in range(300):
        (breaker.record_failure if n % 5 < 2 else breaker.record_success)(n / 100)
    assert breaker.state is CLOSED


def test_breaker_stays_closed_below_twenty_attempts() -> None:
    breaker = a_breaker()
    for n in range(19):
        (breaker.record_failure if n % 3 else breaker.record_success)(n / 100)
    assert breaker.state is CLOSED


def test_attempts_older_than_ten_seconds_do_not_count() -> None:
    breaker = a_breaker()
    for n in range(200):
        (breaker.record_failure if n % 3 else breaker.record_success)(n * 0.53)  # never 20 of them in ten seconds
    assert breaker.state is CLOSED


def test_late_failures_do_not_prolong_the_pause() -> None:
    breaker = opened(0.0)
    for _ in range(50):
        breaker.record_failure(1.0)
    assert breaker.seconds_until_allowed(1.0) == 4.0
    assert breaker.seconds_until_allowed(5.0) == 0.0


# -- how long ----------------------------------------------------------------------------------------------------------


def test_open_breaker_stays_open_and_reports_the_time_left() -> None:
    breaker = opened(100.0)
    assert [breaker.seconds_until_allowed(t) for t in (100.0, 102.0, 104.5)] == [5.0, 3.0, 0.5]
    assert breaker.state is OPEN
    assert breaker.seconds_until_allowed(105.0) == 0.0
    assert breaker.state is HALF_OPEN


@pytest.mark.parametrize(("dice", "factor"), [(0.0, 0.8), (0.5, 1.0), (0.999999, 1.2)])
def test_each_pause_doubles_with_a_fifth_of_jitter(dice, factor) -> None:
    breaker, now, pauses = a_breaker(dice), 0.0, []
    for _ in range(4):
        pauses.append(pause_of(breaker, now))
        now += pauses[-1]
        recover(breaker, now)
    assert pauses == pytest.approx([factor * pause for pause in (5, 10, 20, 40)], rel=1e-4)


@pytest.mark.parametrize("dice", [0.0, 0.5])
def test_no_pause_is_longer_than_a_minute(dice) -> None:
    assert longest_pause(dice) <= 60.0


def test_no_jittered_pause_is_longer_than_a_minute() -> None:
    assert longest_pause(0.999) <= 60.0 + 1e-9  # of adding to the clock


def longest_pause(dice: float) -> float:
    breaker, now, pauses = a_breaker(dice), 0.0, []
    for _ in range(10):
        pauses.append(pause_of(breaker, now))
        now += pauses[-1]
        assert breaker.seconds_until_allowed(now) == 0
    return max(pauses)


def test_server_down_for_days_keeps_the_longest_pause() -> None:
    breaker, now = a_breaker(), 0.0
    for _ in range(3000):
        now += pause_of(breaker, now)
        assert breaker.seconds_until_allowed(now) == 0
    assert pause_of(breaker, now) == 60.0


def test_failed_trial_reopens_for_longer() -> None:
    breaker = opened(0.0)
    trial(breaker, 5.0, good=False)
    assert (breaker.state, breaker.seconds_until_allowed(5.0)) == (OPEN, 10.0)


def test_five_minutes_closed_reset_the_pause() -> None:
    breaker = opened(0.0)
    recover(breaker, 5.0)
    assert pause_of(breaker, 304.9) == pytest.approx(10.0)
    recover(breaker, 320.0)
    assert pause_of(breaker, 620.0) == pytest.approx(5.0)


def test_five_minutes_of_failed_trials_do_not_reset_the_pause() -> None:
    breaker, now = opened(0.0), 0.0
    for _ in range(8):
        now += breaker.seconds_until_allowed(now)
        trial(breaker, now, good=False)
    assert now > 300
    assert breaker.seconds_until_allowed(now) == 60.0


# -- closing -----------------------------------------------------------------------------------------------------------


def test_two_successful_trials_close_the_breaker() -> None:
    breaker = opened(0.0)
    trial(breaker, 5.0, good=True)
    assert breaker.state is HALF_OPEN
    trial(breaker, 6.0, good=True)
    assert breaker.state is CLOSED


def test_successful_trials_must_be_in_a_row() -> None:
    breaker = opened(0.0)
    trial(breaker, 5.0, good=True)
    trial(breaker, 6.0, good=False)
    trial(breaker, 20.0, good=True)
    assert breaker.state is HALF_OPEN


def test_only_one_trial_runs_at_a_time() -> None:
    breaker = opened(0.0)
    assert breaker.seconds_until_allowed(5.0) == 0
    breaker.begin_trial()
    assert breaker.seconds_until_allowed(5.0) > 0
    assert breaker.seconds_until_allowed(50.0) > 0
    breaker.record_success(50.0)
    assert breaker.seconds_until_allowed(50.0) == 0


def test_inconclusive_trial_allows_another() -> None:
    breaker = opened(0.0)
    breaker.seconds_until_allowed(5.0)
    breaker.begin_trial()
    breaker.end_trial()
    assert (breaker.state, breaker.seconds_until_allowed(5.0)) == (HALF_OPEN, 0)


def test_reclosed_breaker_counts_from_zero() -> None:
    breaker = opened(0.0)
    for _ in range(4):
        breaker.record_failure(1.0)
    recover(breaker, 5.0)
    for _ in range(4):
        breaker.record_failure(5.5)
    assert breaker.state is CLOSED
    breaker.record_failure(5.5)
    assert breaker.state is OPEN


@pytest.mark.parametrize(("share", "good"), list(product([0.5, 0.25], [10, 0])))
def test_custom_policy_is_applied(share, good) -> None:
    breaker = CircuitBreaker(
        fixed(MIDDLE),
        BreakerPolicy(max_consecutive_failures=1000, failure_share=share, min_attempts=20, trial_successes=1),
    )
    for _ in range(good):
        breaker.record_success(1.0)
    needed = 0
    while breaker.state is CLOSED:
        breaker.record_failure(1.0)
        needed += 1
    assert needed == max(20 - good, 10 if share == 0.5 and good else 0)
    trial(breaker, 6.0, good=True)
    assert breaker.state is CLOSED


def test_manual_trip_opens_any_state_for_the_longest_time() -> None:
    half_open = opened()
    assert half_open.seconds_until_allowed(50.0) == 0.0 and half_open.state is HALF_OPEN
    for breaker in (a_breaker(), opened(), half_open):
        breaker.trip(100.0)
        facts = breaker.status(100.0)
        assert facts.state is OPEN and facts.retry_in_s == BreakerPolicy().max_open_s
        assert breaker.seconds_until_allowed(100.0 + BreakerPolicy().max_open_s) == 0.0 and breaker.state is HALF_OPEN


def test_status_counts_recorded_outcomes() -> None:
    breaker = a_breaker()
    breaker.record_success(1.0)
    breaker.record_failure(1.0)
    facts = breaker.status(1.0)
    assert (facts.state, facts.retry_in_s, facts.consecutive_failures, facts.attempts, facts.failures) == (
        CLOSED,
        0.0,
        1,
        2,
        1,
    )


# -- what other gateways say -------------------------------------------------------------------------------------------


def test_remote_report_opens_a_breaker_without_own_results() -> None:
    breaker = a_breaker()
    assert breaker.apply_remote(3.0, 100.0)
    assert (breaker.state, breaker.seconds_until_allowed(100.0)) == (OPEN, 3.0)
    recover(breaker, 103.0)


def test_local_success_outweighs_remote_reports_for_a_second() -> None:
    breaker = a_breaker()
    breaker.record_success(100.0)
    assert not breaker.apply_remote(3.0, 100.9)
    assert breaker.state is CLOSED
    assert breaker.apply_remote(3.0, 101.1)


def test_local_failure_confirms_a_remote_report() -> None:
    breaker = a_breaker()
    breaker.record_success(100.0)
    breaker.record_failure(100.1)
    assert breaker.apply_remote(3.0, 100.2)


def test_open_or_half_open_breaker_ignores_remote_reports() -> None:
    breaker = opened()
    assert not breaker.apply_remote(60.0, 1.0)
    assert breaker.seconds_until_allowed(1.0) == 4.0
    assert breaker.seconds_until_allowed(5.0) == 0.0 and breaker.state is HALF_OPEN
    assert not breaker.apply_remote(60.0, 5.0)


@pytest.mark.parametrize(("said", "believed"), [(1e9, 60.0), (-5.0, 0.0)])
def test_remote_pause_is_limited(said: float, believed: float) -> None:
    breaker = a_breaker()
    assert breaker.apply_remote(said, 0.0)
    assert breaker.seconds_until_allowed(0.0) == believed


def test_remote_report_does_not_lengthen_local_pauses() -> None:
    breaker = a_breaker()
    breaker.apply_remote(3.0, 0.0)
    recover(breaker, 3.0)
    assert pause_of(breaker, 4.0) == 5.0


# -- a server that is away ---------------------------------------------------------------------------------------------


def lose(breaker: CircuitBreaker, now: float, times: int = 5) -> None:
    for number in range(times):
        breaker.record_failure(now + number / 100, lost_since=now + number / 100)


@pytest.mark.attack("A2-D5")
def test_calls_lost_together_count_once() -> None:
    breaker = a_breaker()
    for number in range(1000):
        breaker.record_failure(10.0 + number / 1e6, lost_since=9.0 + number / 1e4)
    assert (breaker.state, breaker.status(10.0).failures) == (CLOSED, 1)
    breaker.record_failure(10.5, lost_since=10.4)
    assert breaker.status(10.5).failures == 2


@pytest.mark.attack("A2-D5")
@pytest.mark.parametrize("dice", [0.0, 0.5, 0.999])
def test_pause_of_an_absent_server_stays_below_a_second(dice: float) -> None:
    breaker, now = a_breaker(dice), 0.0
    for _ in range(50):
        lose(breaker, now)
        for _ in range(3):
            wait = breaker.seconds_until_allowed(now + 0.04)
            assert 0.7 <= wait <= 1.0
            now += 0.04 + wait
            assert breaker.seconds_until_allowed(now) == 0.0
            breaker.begin_trial()
            breaker.record_failure(now, lost_since=now, refused=True)
        now += breaker.seconds_until_allowed(now)
        recover(breaker, now)
        breaker.record_success(now)
        now += 1.0


def test_pause_of_a_server_answering_only_probes_grows() -> None:
    breaker, now, pauses = a_breaker(), 0.0, []
    for _ in range(4):
        lose(breaker, now)
        pauses.append(breaker.seconds_until_allowed(now + 0.04))
        now += 0.04 + pauses[-1]
        recover(breaker, now)
    assert pauses == pytest.approx([0.9, 5.0, 10.0, 20.0])


def test_refused_connections_keep_the_short_pause_after_probes() -> None:
    breaker, now = a_breaker(), 0.0
    for _ in range(5):
        for number in range(5):
            breaker.record_failure(now + number / 100, lost_since=now + number / 100, refused=True)
        assert breaker.seconds_until_allowed(now + 0.04) == pytest.approx(0.9)
        now += 1.0
        recover(breaker, now)
