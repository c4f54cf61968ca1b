"""The judge of clusters finds what must not be, and nothing else."""

from __future__ import annotations

from pathlib import Path

from tests.faults.cluster.load import Trip
from tests.faults.cluster.observation import Tenure
from tests.faults.cluster.verdict import (
    Effect,
    Owners,
    Strike,
    effects_in,
    longest_gap,
    moves,
    two_owners,
    wrong_answers,
)

PIDS = {1: "a", 2: "b"}


def trip(entry: str, began: float, ended: float, how: str = "-31005", *, nonce: str = "n", keyed: bool = False) -> Trip:
    return Trip(nonce, "s", entry, began, keyed, ended, "unknown", how)


def owned(*spans: tuple[str, float, float]) -> Owners:
    return Owners(Tenure("s", f"{who}-00", number, since, until) for number, (who, since, until) in enumerate(spans))


def effect(gateway: int, at: float, process: int | None = None) -> Effect:
    return Effect("s", gateway, process or gateway * 10, at, f"n{at}")


def test_unknown_outcome_requires_a_struck_replica():
    owners = owned(("b", 0, 100))
    kill = Strike("kill", frozenset("b"), 10.0, 10.0)
    assert not list(wrong_answers([trip("a", 9.5, 10.4)], [kill], owners))
    assert list(wrong_answers([trip("a", 8.0, 9.0)], [kill], owners)), "before it"
    assert list(wrong_answers([trip("a", 12.0, 13.0)], [kill], owners)), "long after it"
    assert list(wrong_answers([trip("a", 9.5, 10.4)], [kill], owned(("c", 0, 100)))), "elsewhere"
    assert list(wrong_answers([trip("a", 9.5, 10.4)], [], owners))


def test_lost_answer_requires_strike_on_asked_replica():
    kill = Strike("kill", frozenset("b"), 10.0, 10.0)
    owners = owned(("b", 0, 100))
    assert not list(wrong_answers([trip("b", 9.9, 10.1, "lost: reset")], [kill], owners))
    assert list(wrong_answers([trip("a", 9.9, 10.1, "lost: reset")], [kill], owners))


def test_keyed_unknown_outcome_may_persist_on_other_replica():
    kill = Strike("kill", frozenset("b"), 10.0, 10.0)
    first = trip("b", 9.9, 10.1, "lost: reset", keyed=True)
    assert not list(wrong_answers([first, trip("a", 20, 21, keyed=True)], [kill], owned(("c", 0, 100))))
    assert list(wrong_answers([first, trip("a", 20, 21, keyed=True, nonce="m")], [kill], owned(("c", 0, 100))))


def test_call_waiting_for_next_owner_may_time_out():
    kill = Strike("kill", frozenset("b"), 10.0, 10.0)
    owners = owned(("b", 0, 20), ("c", 20, 100))
    late = trip("a", 15.5, 20.5, "timed out after 5 s [E-TIMEOUT]")
    assert not list(wrong_answers([late], [kill], owners))
    assert list(wrong_answers([late], [kill], owned(("c", 0, 100)))), "its server was not struck"
    assert list(wrong_answers([trip("a", 20.5, 25.5, "[E-TIMEOUT]")], [kill], owners)), "it had its owner all the time"
    assert list(wrong_answers([trip("a", 15.5, 20.5)], [kill], owners)), "its time was not over"


def test_busy_unknown_outcome_needs_timeout_or_lost_lease():
    owners, moved = owned(("b", 0, 100)), owned(("b", 0, 20), ("c", 20.5, 100))
    late = trip("a", 15.5, 20.5, "timed out after 5 s [E-TIMEOUT]")
    assert not list(wrong_answers([late], [], owners, busy=True))
    assert not list(wrong_answers([trip("a", 19.5, 20.1)], [], moved, busy=True)), "its owner changed"
    assert not list(wrong_answers([trip("a", 19.5, 20.1, "closed by us")], [], owners, busy=True)), "a lease ended"
    assert list(wrong_answers([trip("a", 19.5, 20.1)], [], owners, busy=True)), "it had one owner all the time"
    assert list(wrong_answers([trip("a", 15.5, 16.5, "lost: reset")], [], owners, busy=True))


def test_pair_cut_explains_only_calls_between_the_pair():
    cut = Strike("cut", frozenset("ab"), 10.0, 20.0, pair=True)
    assert not list(wrong_answers([trip("a", 12, 13)], [cut], owned(("b", 0, 100))))
    assert list(wrong_answers([trip("a", 12, 13)], [cut], owned(("a", 0, 100))))
    assert list(wrong_answers([trip("a", 12, 13)], [cut], owned(("c", 0, 100))))


def test_effects_alternating_between_two_gateways_are_found():
    both = owned(("a", 0, 100), ("b", 0, 100))
    assert not list(two_owners([effect(1, 1), effect(1, 2), effect(2, 3)], PIDS, both))
    assert list(two_owners([effect(1, 1), effect(2, 2), effect(1, 3)], PIDS, both))
    assert not list(two_owners([effect(1, 1), effect(2, 2), effect(1, 3, process=99)], PIDS, both)), "it began anew"


def test_effect_outside_its_owners_tenure_is_found():
    owners = owned(("a", 0, 10), ("b", 15, 30))
    assert not list(two_owners([effect(1, 9), effect(2, 16)], PIDS, owners))
    assert list(two_owners([effect(1, 12)], PIDS, owners))
    assert list(two_owners([effect(2, 5)], PIDS, owners))


def test_time_without_an_owner_is_measured():
    tenures = [Tenure("s", "a-00", 1, 0, 20), Tenure("s", "c-00", 2, 21), Tenure("t", "b-00", 1, 0)]
    assert moves(tenures, Strike("kill", frozenset("a"), 10.0)) == {"s": 11.0}
    assert longest_gap(tenures) == (1.0, "s")


def test_effects_are_read_in_time_order(tmp_path: Path):
    (tmp_path / "effects").write_text("s 1 10 2.5\tn-2\ns 1 10 1.5\tn-1\n")
    assert effects_in(tmp_path / "effects") == [Effect("s", 1, 10, 1.5, "n-1"), Effect("s", 1, 10, 2.5, "n-2")]
