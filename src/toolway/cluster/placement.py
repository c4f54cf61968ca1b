"""Which node should own a server: rendezvous hashing, so that a node that comes or goes moves only what it must. Pure.

Servers fall into SLOTS slots, and each slot ranks the nodes by weighted scores; a node twice as large gets twice as
many. So the table of a node has as many rows as there are slots, not as there are servers, and a change of the nodes
costs one score for each slot (`join`), or a new ranking of the slots that the lost node stood in (`leave`).

The first of a slot takes its servers at once. The others take what nobody has taken a while later (`patience`): the
first may be full, or think itself alive when it is not. The instances of one server take turns: the second begins with
the second node, so that RANKS of them are on different nodes where there are as many.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from struct import unpack
from typing import Final

SLOTS: Final = 4096
RANKS: Final = 3  # nodes that are remembered for a slot
STEP: Final = 1.5  # seconds that each next node waits for those before it: longer than they need to look
HURRY: Final = 0.5  # the same where the owner has died: those before may have died as well
_BLOCK: Final = 8  # slots whose numbers come from one hash


@dataclass(frozen=True, slots=True)
class Node:
    id: str
    capacity: int = 100  # programs that it runs at the most; its share grows with it
    labels: frozenset[str] = field(default_factory=frozenset)


def slot_of(tenant: str, server: str, instance: int = 0) -> int:
    """RANKS instances of one server share a slot, where they take turns."""
    name = f"{tenant}\0{server}\0{instance // RANKS}"
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") % SLOTS


def in_turn(ranked: Sequence[str], instance: int) -> tuple[str, ...]:
    """The nodes of a slot as this instance of a server prefers them."""
    first = instance % RANKS % len(ranked) if ranked else 0
    return (*ranked[first:], *ranked[:first])


def patience(rank: int | None, step: float = STEP) -> float:
    """Seconds for which a server must have had no owner before the node of this rank takes it; None is any node."""
    return (RANKS + 1 if rank is None else rank) * step


class Ring:
    """The ranking of every slot among some nodes."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._nodes: dict[str, Node] = {}
        self._ranks: list[list[tuple[float, str]]] = [[] for _ in range(SLOTS)]  # the best first
        self._least = [0.0] * SLOTS  # the score of the last rank: whoever has less is not looked at
        for node in nodes:
            self.join(node)

    def join(self, node: Node) -> None:
        """Add a node, or take note of its new size."""
        if self._nodes.get(node.id) == node:
            return
        self.leave(node.id)
        self._nodes[node.id] = node
        scores = _scores(node)
        better = [slot for slot, least in enumerate(self._least) if scores[slot] >= least]
        for slot in better:
            self._rank(slot, [*self._ranks[slot], (scores[slot], node.id)])

    def leave(self, id: str) -> None:
        if self._nodes.pop(id, None) is None:
            return
        for slot, ranks in enumerate(self._ranks):
            if any(each == id for _, each in ranks):
                self._rank(slot, [(_score(node, slot), node.id) for node in self._nodes.values()])

    def _rank(self, slot: int, scored: list[tuple[float, str]]) -> None:
        best = self._ranks[slot] = sorted(scored, reverse=True)[:RANKS]
        self._least[slot] = best[-1][0] if len(best) == RANKS else 0.0

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(self._nodes)

    def ranked(self, slot: int) -> tuple[str, ...]:
        """The nodes that should own what is in this slot, the best first."""
        return tuple(id for _, id in self._ranks[slot])

    def slots(self, id: str) -> tuple[int, ...]:
        """The slots in which a node has a rank."""
        return tuple(slot for slot, ranks in enumerate(self._ranks) if any(each == id for _, each in ranks))


def _scores(node: Node) -> list[float]:
    """Of every slot, by weighted rendezvous hashing: the greatest falls on each node in proportion to its capacity. Of
    the numbers as many bits are used as make a fraction that is never 1."""
    numbers = unpack(f">{SLOTS}Q", b"".join(_digest(node.id, block) for block in range(SLOTS // _BLOCK)))
    weight, log = -max(node.capacity, 1), math.log
    return [weight / log(((number >> 12) + 0.5) / 2**52) for number in numbers]


def _score(node: Node, slot: int) -> float:
    """The same of one slot."""
    at = slot % _BLOCK * 8
    number = int.from_bytes(_digest(node.id, slot // _BLOCK)[at : at + 8], "big")
    return -max(node.capacity, 1) / math.log(((number >> 12) + 0.5) / 2**52)


def _digest(id: str, block: int) -> bytes:
    return blake2b(id.encode(), digest_size=8 * _BLOCK, salt=block.to_bytes(2, "big")).digest()
