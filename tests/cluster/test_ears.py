"""When another node counts as lost, decided from times alone."""

from __future__ import annotations

from toolway.cluster.ears import BEAT, SILENCE, Hearing


def _look_until(hearing: Hearing, now: float, end: float) -> float | None:
    """When it was silent for too long, if it was."""
    while now < end:
        wait = hearing.look(now, deaf=False)
        if not wait:
            return now
        now += wait
    return None


def test_silence_is_known_in_time_and_not_before() -> None:
    found = _look_until(Hearing(0.0), 0.0, 10.0)
    assert found is not None and SILENCE <= found < SILENCE + BEAT


def test_who_beats_is_never_lost() -> None:
    hearing, now = Hearing(0.0), 0.0
    for step in range(1000):
        if step % 5 == 0:
            hearing.heard(now)
        assert hearing.look(now, deaf=False)
        now += 0.1


def test_what_could_not_be_heard_does_not_count() -> None:
    hearing = Hearing(0.0)
    assert hearing.look(0.0, deaf=False)
    assert hearing.look(30.0, deaf=True)
    found = _look_until(hearing, 30.0 + BEAT, 40.0)
    assert found is not None and found - 30.0 >= SILENCE


def test_after_a_standstill_there_is_time_to_read_what_came() -> None:
    hearing = Hearing(0.0)
    assert _look_until(hearing, 0.0, SILENCE - 0.1) is None
    wait = hearing.look(60.0, deaf=False)
    assert wait > 0
    hearing.heard(60.0 + wait / 2)
    assert hearing.look(60.0 + wait, deaf=False)


def test_a_loop_that_is_always_a_little_late_still_notices() -> None:
    hearing, now = Hearing(0.0), 0.0
    for _ in range(20):
        wait = hearing.look(now, deaf=False)
        if not wait:
            break
        now += wait + 0.05
    assert now < 2 * SILENCE
