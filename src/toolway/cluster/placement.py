"""Which node should own a server: rendezvous hashing, so that a node that comes or goes moves only what it must. Pure.

Servers fall into SLOTS slots, and each slot ranks the nodes by weighted scores; a node twice as large gets twice as
many. So the table of a node has as many rows as there are slots, not as there are servers, and a change of the nodes
costs one score for each slot (`join`), or a new ranking of the slots that the lost node stood in (`leave`).

The first of a slot takes its servers at once. The others take what nobody has taken a while later (`patience`): the
first may be full, or think itself alive when it is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

SLOTS: Final = 4096
RANKS: Final = 3  # nodes that are remembered for a slot
STEP: Final = 2.0  # seconds that each next node waits for those before it


@dataclass(frozen=True, slots=True)
class Node:
    id: str
    capacity: int = 100  # servers that it owns at the most; its share grows with it
    labels: frozenset[str] = field(default_factory=frozenset)


def slot_of(tenant: str, server: str, instance: int = 0) -> int:
    """Instances of one server fall into different slots, and so onto different nodes."""
    return int.from_bytes(_digest(f"{tenant}\0{server}\0{instance}"), "big") % SLOTS


def patience(rank: int) -> float:
    """Seconds for which a server must have had no owner before the node of this rank takes it."""
    return rank * STEP


class Ring:
    """The ranking of every slot among some nodes."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._nodes: dict[str, Node] = {}
        self._ranks: list[list[tuple[float, str]]] = [[] for _ in range(SLOTS)]  # the best first
        for node in nodes:
            self.join(node)

    def join(self, node: Node) -> None:
        """Add a node, or take note of its new size."""
        if self._nodes.get(node.id) == node:
            return
        self.leave(node.id)
        self._nodes[node.id] = node
        for slot, ranks in enumerate(self._ranks):
            ranks.append((_score(node, slot), node.id))
            ranks.sort(reverse=True)
            del ranks[RANKS:]

    def leave(self, id: str) -> None:
        if self._nodes.pop(id, None) is None:
            return
        for slot, ranks in enumerate(self._ranks):
            if any(each == id for _, each in ranks):
                best = sorted(((_score(node, slot), node.id) for node in self._nodes.values()), reverse=True)
                self._ranks[slot] = best[:RANKS]

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(self._nodes)

    def ranked(self, slot: int) -> tuple[str, ...]:
        """The nodes that should own what is in this slot, the best first."""
        return tuple(id for _, id in self._ranks[slot])

    def rank(self, slot: int, id: str) -> int | None:
        """The place of a node in a slot; None if others come long before it."""
        return next((place for place, (_, each) in enumerate(self._ranks[slot]) if each == id), None)

    def slots(self, id: str) -> list[tuple[int, int]]:
        """The slots in which a node has a place, and which."""
        found = ((slot, self.rank(slot, id)) for slot in range(SLOTS))
        return [(slot, place) for slot, place in found if place is not None]


def _score(node: Node, slot: int) -> float:
    """Weighted rendezvous hashing: the greatest of these falls on each node in proportion to its capacity."""
    number = int.from_bytes(_digest(f"{slot}\0{node.id}"), "big")
    return -max(node.capacity, 1) / math.log((number + 0.5) / 2**64)


def _digest(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=8).digest()
