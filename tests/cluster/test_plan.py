"""Which pools a node may own something of, and its rank there."""

from __future__ import annotations

from toolway.cluster.placement import SLOTS, Node, Ring
from toolway.cluster.plan import ALL, Plan, fits, pool_of

A, B, C = Node("a", labels=frozenset({"eu"})), Node("b", labels=frozenset({"eu", "gpu"})), Node("c")


def _plan(own: Node, *nodes: Node, pools: tuple[str, ...] = ()) -> Plan:
    plan = Plan(own)
    for _ in plan.see(nodes, pools):
        pass
    return plan


def test_a_pool_is_its_labels_in_order() -> None:
    assert pool_of(["gpu", "eu", "gpu"]) == "eu,gpu"
    assert pool_of([]) == ALL
    assert [fits(node, "eu,gpu") for node in (A, B, C)] == [False, True, False]
    assert [fits(node, ALL) for node in (A, B, C, Node("d", capacity=0))] == [True, True, True, False]


def test_a_node_ranks_the_nodes_of_its_own_pools_alone() -> None:
    plan = _plan(A, A, B, C, pools=("eu", "gpu"))
    assert set(plan.pools) == {ALL, "eu"}
    assert {plan.first("eu", slot, 0) for slot in range(SLOTS)} == {"a", "b"}
    assert plan.first("gpu", 7, 0) is None and plan.rank("gpu", 7, 0) is None and plan.slots("gpu") == ()
    assert plan.slots(ALL) == tuple(range(SLOTS))  # one of three has a rank everywhere


def test_ranks_are_those_of_the_ring_turned_by_the_instance() -> None:
    plan, ring = _plan(A, A, B, C), Ring([A, B, C])
    for slot in range(50):
        line = ring.ranked(slot)
        assert [plan.first(ALL, slot, instance) for instance in range(4)] == [*line, line[0]]
        assert plan.rank(ALL, slot, 0) == line.index("a")


def test_a_slot_of_our_turn_is_one_in_which_we_are_the_first() -> None:
    for others in ((A,), (A, B), (A, B, C), (A, B, C, Node("d"))):
        plan = _plan(A, *others)
        for turn, slots in enumerate(plan.turns(ALL)):
            assert set(slots) == {slot for slot in range(SLOTS) if plan.first(ALL, slot, turn) == "a"}
    plan = _plan(A, A, B, C)
    assert plan.turns("nothing") == ((), (), ())
    plan.lose({"b", "c"})
    assert plan.turns(ALL) == (tuple(range(SLOTS)),) * 3


def test_only_a_change_is_one() -> None:
    plan = _plan(A, A, B, C)
    version = plan.version
    plan.lose({"nobody"})
    assert plan.version == version
    plan.lose({"b", "c"})
    assert plan.version > version
    assert {plan.first(ALL, slot, 0) for slot in range(SLOTS)} == {"a"}


def test_a_pool_that_is_no_more_is_forgotten() -> None:
    plan = _plan(B, A, B, pools=("gpu",))
    for _ in plan.see([A, B], ()):
        pass
    assert plan.pools == (ALL,)


def test_hundreds_of_nodes_are_ranked_in_steps() -> None:
    steps = list(Plan(A).see([A, *(Node(f"n-{number}") for number in range(100))], ()))
    assert len(steps) >= 10
