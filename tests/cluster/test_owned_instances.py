"""What a node holds: begun once, ended once, and not taken up again by an answer that is older than it seems."""

from __future__ import annotations

from toolway.cluster.db.instances import Ownership, ServerInstance
from toolway.cluster.ownership import OwnedInstances


class OwnershipLog:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_acquired(self, ownership: Ownership) -> None:
        self.lines.append(f"begin {ownership.instance.server} {ownership.fence}")

    async def drain(self, ownership: Ownership) -> None: ...

    def on_lost(self, ownership: Ownership) -> None:
        self.lines.append(f"end {ownership.instance.server} {ownership.fence}")


def _held(server: str, fence: int, *, cost: int = 1, recalled: bool = False) -> Ownership:
    return Ownership(ServerInstance("acme", server), "n", fence, cost=cost, recalled=recalled)


def _holdings(*held: Ownership) -> tuple[OwnedInstances, OwnershipLog]:
    ownership_log = OwnershipLog()
    holdings = OwnedInstances(ownership_log)
    holdings.add(held)
    ownership_log.lines.clear()
    return holdings, ownership_log


def test_stale_answer_does_not_restore_a_released_instance() -> None:
    a = _held("a", 1)
    holdings, ownership_log = _holdings(a)
    assert holdings.release(a) and not holdings.release(a)
    holdings.resync([a], released=holdings.pending_releases)  # the database was read before the release was stored
    assert ownership_log.lines == ["end a 1"] and len(holdings) == 0
    holdings.confirm_released(1)
    holdings.resync([_held("a", 2)], released=holdings.pending_releases)
    assert ownership_log.lines == ["end a 1", "begin a 2"]


def test_resync_ends_missing_instances_and_starts_new_ones() -> None:
    holdings, ownership_log = _holdings(_held("a", 1), _held("b", 1))
    holdings.resync([_held("b", 2), _held("c", 1)], released=())
    assert ownership_log.lines == ["end a 1", "end b 1", "begin b 2", "begin c 1"]


def test_load_is_the_cost_of_all_instances() -> None:
    holdings, _ = _holdings(_held("a", 1), _held("b", 1, cost=0))
    assert holdings.load == 1
    holdings.resync([_held("a", 1), _held("b", 1, cost=0), _held("c", 1)], released=())
    assert holdings.load == 2
    holdings.resync([_held("a", 1, cost=0), _held("b", 1, cost=0), _held("c", 1)], released=())
    assert holdings.load == 1
    holdings.lose_all()
    assert holdings.load == 0 and list(holdings) == []


def test_recalled_instance_is_marked_and_continues() -> None:
    holdings, ownership_log = _holdings(_held("a", 1))
    holdings.update([_held("a", 1, recalled=True), _held("other", 1, recalled=True)])
    assert [held.recalled for held in holdings] == [True] and ownership_log.lines == []


def test_moved_instance_is_reported_once_its_release_is_stored() -> None:
    a, b = _held("a", 1), _held("b", 1)
    holdings, _ = _holdings()
    told: list[tuple[list[Ownership], list[Ownership]]] = []
    holdings.on_changed = lambda took, lost: told.append((list(took), list(lost)))
    holdings.add([a, b])
    holdings.release(a)
    assert told == [([a, b], [])]  # the record does not know it yet
    holdings.confirm_released(1)
    holdings.lose_all()
    assert told == [([a, b], []), ([], [a]), ([], [b])]
