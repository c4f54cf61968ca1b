"""Servers spread by capacity, and a node that comes or goes moves only its share."""

from __future__ import annotations

from collections import Counter

import pytest

from toolway.cluster.placement import CLAIM_STEP_S, RANKS, SLOTS, Node, Ring, claim_delay, rotate_for_instance, slot_for

SERVERS = [slot_for("", f"server-{number}") for number in range(10_000)]


def _owners(ring: Ring) -> list[str]:
    return [ring.ranked(slot)[0] for slot in SERVERS]


def _nodes(count: int) -> list[Node]:
    return [Node(f"node-{number}") for number in range(count)]


def test_servers_are_spread_evenly() -> None:
    shares = Counter(_owners(Ring(_nodes(10))))
    assert len(shares) == 10
    assert min(shares.values()) > 600 and max(shares.values()) < 1400


def test_node_twice_as_large_owns_twice_as_many() -> None:
    shares = Counter(_owners(Ring([Node("small", 100), Node("large", 200)])))
    assert 1.6 < shares["large"] / shares["small"] < 2.4


def test_joining_node_takes_only_its_share() -> None:
    nodes = _nodes(10)
    ring = Ring(nodes[:9])
    before = _owners(ring)
    ring.add_node(nodes[9])
    moved = [(old, new) for old, new in zip(before, _owners(ring), strict=True) if old != new]
    assert {new for _, new in moved} == {"node-9"}
    assert 600 < len(moved) < 1400


def test_leaving_node_gives_only_its_share_to_all() -> None:
    ring = Ring(_nodes(10))
    before = _owners(ring)
    ring.remove_node("node-3")
    moved = [(old, new) for old, new in zip(before, _owners(ring), strict=True) if old != new]
    assert {old for old, _ in moved} == {"node-3"}
    assert len({new for _, new in moved}) == 9


def test_ranks_do_not_depend_on_join_order() -> None:
    one, other = Ring(_nodes(8)), Ring(reversed(_nodes(12)))
    for number in range(8, 12):
        other.remove_node(f"node-{number}")
    assert [one.ranked(slot) for slot in range(SLOTS)] == [other.ranked(slot) for slot in range(SLOTS)]


def test_rank_depth_is_bounded_by_nodes_and_limit() -> None:
    assert Ring().ranked(0) == ()
    assert len(Ring(_nodes(2)).ranked(7)) == 2
    ring = Ring(_nodes(9))
    assert len(ring.ranked(7)) == RANKS
    assert ring.slots_for("node-4") == tuple(slot for slot in range(SLOTS) if "node-4" in ring.ranked(slot))
    assert ring.slots_for("nobody") == ()


def test_claim_delay_grows_with_the_rank() -> None:
    assert [claim_delay(rank) for rank in (0, 1, 2, None)] == [0, CLAIM_STEP_S, 2 * CLAIM_STEP_S, 4 * CLAIM_STEP_S]


@pytest.mark.parametrize(("nodes", "instances", "different"), [(2, 2, 2), (3, 3, 3), (20, 3, 3), (3, 5, 3), (1, 2, 1)])
def test_instances_of_a_server_are_on_different_nodes(nodes: int, instances: int, different: int) -> None:
    ring = Ring(_nodes(nodes))
    for number in range(200):
        lines = [rotate_for_instance(ring.ranked(slot_for("", f"s-{number}", each)), each) for each in range(instances)]
        assert len({line[0] for line in lines}) == different
        assert all(set(line) == set(ring.ranked(slot_for("", f"s-{number}", each))) for each, line in enumerate(lines))


def test_five_instances_are_mostly_on_different_nodes() -> None:
    ring = Ring(_nodes(20))
    spread = [
        len({rotate_for_instance(ring.ranked(slot_for("", f"s-{number}", each)), each)[0] for each in range(5)})
        for number in range(200)
    ]
    assert sum(spread) / len(spread) > 0.85 * 5


def test_tenants_have_different_slots() -> None:
    assert slot_for("a", "b") != slot_for("ab", "")
