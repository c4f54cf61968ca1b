"""What a node should own, by the nodes that it sees. Pure.

Servers that ask for the same labels are a *pool*, and are spread over the nodes that have these labels. A node ranks
the nodes of those pools alone that it could own something of itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from toolway.cluster.placement import RANKS, Node, Ring, in_turn

ALL: Final = ""  # the pool of servers that ask for no label
_BREATH: Final = 8  # nodes that are ranked in one go, in about 10 ms


def pool_of(labels: Iterable[str]) -> str:
    """The name of a pool: its labels in order."""
    return ",".join(sorted(set(labels)))


def fits(node: Node, pool: str) -> bool:
    return node.capacity > 0 and (pool == ALL or node.labels.issuperset(pool.split(",")))


class Plan:
    """For one node, `own`."""

    def __init__(self, own: Node) -> None:
        self._own = own
        self._rings: dict[str, Ring] = {}
        self._slots: dict[str, tuple[int, ...]] = {}  # by pool, those in which we have a rank
        self._turns: dict[str, tuple[tuple[int, ...], ...]] = {}  # by pool and turn, those in which we are the first
        self.version = 0  # grows with every change

    def see(self, nodes: Collection[Node], pools: Iterable[str]) -> Iterator[None]:
        """These are the nodes that may own something, and the pools that there are. It is said in steps, since ranking
        hundreds of nodes takes a while."""
        ours = {pool for pool in (ALL, *pools) if fits(self._own, pool)}
        for pool in self._rings.keys() - ours:
            del self._rings[pool]
        for pool in sorted(ours):
            fitting = {node.id: node for node in nodes if fits(node, pool)}
            ring = self._rings.setdefault(pool, Ring())
            self._leave(ring, ring.ids - fitting.keys())
            for count, node in enumerate(fitting.values(), 1):
                ring.join(node)
                if count % _BREATH == 0:
                    yield
        self._changed()

    def lose(self, ids: Collection[str]) -> None:
        """The leases of these nodes have ended."""
        lost = [self._leave(ring, ids) for ring in self._rings.values()]
        if any(lost):
            self._changed()

    @property
    def pools(self) -> tuple[str, ...]:
        """Those of which we may own something."""
        return tuple(self._rings)

    def slots(self, pool: str) -> tuple[int, ...]:
        """The slots in which we have a rank."""
        if pool not in self._slots and pool in self._rings:
            self._slots[pool] = self._rings[pool].slots(self._own.id)
        return self._slots.get(pool, ())

    def turns(self, pool: str) -> tuple[tuple[int, ...], ...]:
        """For each turn that an instance can have, the slots in which we are the first for it."""
        if pool not in self._turns:
            ours = self.slots(pool)
            self._turns[pool] = tuple(
                tuple(slot for slot in ours if self.first(pool, slot, turn) == self._own.id) for turn in range(RANKS)
            )
        return self._turns[pool]

    def rank(self, pool: str, slot: int, instance: int) -> int | None:
        """Our place in the line for a place; None if others come long before us."""
        line = self._line(pool, slot, instance)
        return line.index(self._own.id) if self._own.id in line else None

    def first(self, pool: str, slot: int, instance: int) -> str | None:
        """The node that should own a place; None if we cannot say."""
        return next(iter(self._line(pool, slot, instance)), None)

    def before(self, pool: str, slot: int, instance: int) -> frozenset[str]:
        """The nodes that come before us in the line for a place."""
        line = self._line(pool, slot, instance)
        return frozenset(line[: line.index(self._own.id)] if self._own.id in line else line)

    def _line(self, pool: str, slot: int, instance: int) -> tuple[str, ...]:
        ring = self._rings.get(pool)
        return in_turn(ring.ranked(slot), instance) if ring is not None else ()

    def _leave(self, ring: Ring, ids: Iterable[str]) -> bool:
        gone = ring.ids.intersection(ids)
        for id in gone:
            ring.leave(id)
        return bool(gone)

    def _changed(self) -> None:
        self._slots.clear()
        self._turns.clear()
        self.version += 1
