"""When another node counts as lost, decided from times alone."""

from __future__ import annotations

from toolway.cluster.heartbeat import HEARTBEAT_INTERVAL_S, HEARTBEAT_TIMEOUT_S, HeartbeatClock


def _look_until(hearing: HeartbeatClock, now: float, end: float) -> float | None:
    """When it was silent for too long, if it was."""
    while now < end:
        wait = hearing.check(now, disconnected=False)
        if not wait:
            return now
        now += wait
    return None


def test_silence_is_detected_after_the_timeout() -> None:
    found = _look_until(HeartbeatClock(0.0), 0.0, 10.0)
    assert found is not None and HEARTBEAT_TIMEOUT_S <= found < HEARTBEAT_TIMEOUT_S + HEARTBEAT_INTERVAL_S


def test_beating_node_is_never_lost() -> None:
    hearing, now = HeartbeatClock(0.0), 0.0
    for step in range(1000):
        if step % 5 == 0:
            hearing.record_heartbeat(now)
        assert hearing.check(now, disconnected=False)
        now += 0.1


def test_disconnected_time_does_not_count_as_silence() -> None:
    hearing = HeartbeatClock(0.0)
    assert hearing.check(0.0, disconnected=False)
    assert hearing.check(30.0, disconnected=True)
    found = _look_until(hearing, 30.0 + HEARTBEAT_INTERVAL_S, 40.0)
    assert found is not None and found - 30.0 >= HEARTBEAT_TIMEOUT_S


def test_after_a_stall_there_is_time_to_read_messages() -> None:
    hearing = HeartbeatClock(0.0)
    assert _look_until(hearing, 0.0, HEARTBEAT_TIMEOUT_S - 0.1) is None
    wait = hearing.check(60.0, disconnected=False)
    assert wait > 0
    hearing.record_heartbeat(60.0 + wait / 2)
    assert hearing.check(60.0 + wait, disconnected=False)


def test_slightly_late_loop_still_detects_silence() -> None:
    hearing, now = HeartbeatClock(0.0), 0.0
    for _ in range(20):
        wait = hearing.check(now, disconnected=False)
        if not wait:
            break
        now += wait + 0.05
    assert now < 2 * HEARTBEAT_TIMEOUT_S
