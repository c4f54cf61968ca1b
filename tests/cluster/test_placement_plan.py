"""Which pools a node may own something of, and its rank there."""

from __future__ import annotations

from toolway.cluster.placement import DEFAULT_POOL, SLOTS, Node, PlacementPlan, Ring, can_own_pool, pool_for

A, B, C = Node("a", labels=frozenset({"eu"})), Node("b", labels=frozenset({"eu", "gpu"})), Node("c")


def _plan(own: Node, *nodes: Node, pools: tuple[str, ...] = ()) -> PlacementPlan:
    plan = PlacementPlan(own)
    for _ in plan.update(nodes, pools):
        pass
    return plan


def test_pool_is_named_by_its_sorted_labels() -> None:
    assert pool_for(["gpu", "eu", "gpu"]) == "eu,gpu"
    assert pool_for([]) == DEFAULT_POOL
    assert [can_own_pool(node, "eu,gpu") for node in (A, B, C)] == [False, True, False]
    assert [can_own_pool(node, DEFAULT_POOL) for node in (A, B, C, Node("d", capacity=0))] == [True, True, True, False]


def test_node_ranks_only_the_nodes_of_its_own_pools() -> None:
    plan = _plan(A, A, B, C, pools=("eu", "gpu"))
    assert set(plan.pools) == {DEFAULT_POOL, "eu"}
    assert {plan.preferred_node("eu", slot, 0) for slot in range(SLOTS)} == {"a", "b"}
    assert (
        plan.preferred_node("gpu", 7, 0) is None and plan.rank("gpu", 7, 0) is None and plan.ranked_slots("gpu") == ()
    )
    assert plan.ranked_slots(DEFAULT_POOL) == tuple(range(SLOTS))  # one of three has a rank everywhere


def test_ranks_are_those_of_the_ring_rotated_by_instance() -> None:
    plan, ring = _plan(A, A, B, C), Ring([A, B, C])
    for slot in range(50):
        line = ring.ranked(slot)
        assert [plan.preferred_node(DEFAULT_POOL, slot, instance) for instance in range(4)] == [*line, line[0]]
        assert plan.rank(DEFAULT_POOL, slot, 0) == line.index("a")


def test_claimable_slots_are_those_with_the_node_first() -> None:
    for others in ((A,), (A, B), (A, B, C), (A, B, C, Node("d"))):
        plan = _plan(A, *others)
        for turn, slots in enumerate(plan.claimable_slots(DEFAULT_POOL)):
            assert set(slots) == {slot for slot in range(SLOTS) if plan.preferred_node(DEFAULT_POOL, slot, turn) == "a"}
    plan = _plan(A, A, B, C)
    assert plan.claimable_slots("nothing") == ((), (), ())
    plan.remove_nodes({"b", "c"})
    assert plan.claimable_slots(DEFAULT_POOL) == (tuple(range(SLOTS)),) * 3


def test_version_grows_only_with_a_change() -> None:
    plan = _plan(A, A, B, C)
    version = plan.version
    plan.remove_nodes({"nobody"})
    assert plan.version == version
    plan.remove_nodes({"b", "c"})
    assert plan.version > version
    assert {plan.preferred_node(DEFAULT_POOL, slot, 0) for slot in range(SLOTS)} == {"a"}


def test_unused_pool_is_forgotten() -> None:
    plan = _plan(B, A, B, pools=("gpu",))
    for _ in plan.update([A, B], ()):
        pass
    assert plan.pools == (DEFAULT_POOL,)


def test_hundreds_of_nodes_are_ranked_in_steps() -> None:
    steps = list(PlacementPlan(A).update([A, *(Node(f"n-{number}") for number in range(100))], ()))
    assert len(steps) >= 10
