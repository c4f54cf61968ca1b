"""Preferred owners of servers by rendezvous hashing, and one node's placement plan. No I/O.

A node that joins or leaves moves as few servers as possible.

Servers are hashed into SLOTS slots, and each slot ranks the nodes by weighted scores; a node of double capacity gets
twice as many servers. So the table has a row per slot, not per server. Adding a node costs one score per slot;
removing one ranks again only the slots in which it had a rank.

The first node of a slot claims its servers at once. The next ones claim unowned servers later (`claim_delay`): the
first may be full, or consider itself alive although it is not. The instances of one server rotate through the ranks:
the second instance prefers the second node. So RANKS instances run on different nodes if there are enough nodes.

Servers that require the same labels form a *pool*, and are spread over the nodes that have these labels. A node ranks
only the pools of which it could own a server itself.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from struct import unpack
from typing import Final

SLOTS: Final = 4096
RANKS: Final = 3  # nodes ranked per slot
CLAIM_STEP_S: Final = 1.5  # seconds that each next rank waits for the ranks before it: longer than a poll interval
ORPHAN_CLAIM_STEP_S: Final = 0.5  # the same if the owner has died: the nodes ranked before may have died as well
DEFAULT_POOL: Final = ""  # pool of the servers that require no label
_SLOTS_PER_HASH: Final = 8  # slots per hash: one digest holds the numbers of 8 slots
_RANKING_BATCH: Final = 8  # nodes ranked in one step, in about 10 ms


@dataclass(frozen=True, slots=True)
class Node:
    """A cluster node as placement sees it: its id, capacity (maximum of servers) and labels."""

    id: str
    capacity: int = 100  # maximum number of servers; its share is proportional
    labels: frozenset[str] = field(default_factory=frozenset)


def slot_for(tenant: str, server: str, index: int = 0) -> int:
    """Return a server instance's hash slot, which decides which nodes may own it.

    `RANKS` instances of one server share a slot, and each prefers a different one of its ranked nodes.
    """
    name = f"{tenant}\0{server}\0{index // RANKS}"
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") % SLOTS


def rotate_for_instance(ranked: Sequence[str], index: int) -> tuple[str, ...]:
    """Return a hash slot's ranked nodes in one instance's order of preference.

    Each instance starts at another node, so the instances of one server are spread over nodes.
    """
    offset = index % RANKS % len(ranked) if ranked else 0
    return (*ranked[offset:], *ranked[:offset])


def claim_delay(rank: int | None, step: float = CLAIM_STEP_S) -> float:
    """Return how many seconds an instance must be unowned before a node of this rank claims it.

    Better-ranked nodes claim first. `rank` is None for a node that is not ranked for the instance.
    """
    return (RANKS + 1 if rank is None else rank) * step


def pool_for(labels: Iterable[str]) -> str:
    """Return the name of the pool of servers that require these node labels: the labels, sorted and comma-separated."""
    return ",".join(sorted(set(labels)))


def can_own_pool(node: Node, pool: str) -> bool:
    """Return True if a node can own servers of a pool: it has capacity, and all labels that the pool requires."""
    return node.capacity > 0 and (pool == DEFAULT_POOL or node.labels.issuperset(pool.split(",")))


class PlacementPlan:
    """Ranking of the live nodes for each server instance, as seen by `own_node`."""

    def __init__(self, own_node: Node) -> None:
        self._own_node = own_node
        self._rings: dict[str, Ring] = {}
        self._slots: dict[str, tuple[int, ...]] = {}  # by pool: slots in which this node has a rank
        self._claimable: dict[str, tuple[tuple[int, ...], ...]] = {}  # by pool, rotation: slots that prefer this node
        self.version = 0  # grows with every change

    def update(self, nodes: Collection[Node], pools: Iterable[str]) -> Iterator[None]:
        """Update the rankings for the current nodes that may own servers, and for the current pools (label sets).

        It is a generator that yields between steps, so the event loop can run: ranking hundreds of nodes takes a
        while.
        """
        own_pools = {pool for pool in (DEFAULT_POOL, *pools) if can_own_pool(self._own_node, pool)}
        for pool in self._rings.keys() - own_pools:
            del self._rings[pool]
        for pool in sorted(own_pools):
            fitting = {node.id: node for node in nodes if can_own_pool(node, pool)}
            ring = self._rings.setdefault(pool, Ring())
            self._remove_from(ring, ring.node_ids - fitting.keys())
            for count, node in enumerate(fitting.values(), 1):
                ring.add_node(node)
                if count % _RANKING_BATCH == 0:
                    yield
        self._invalidate()

    def remove_nodes(self, ids: Collection[str]) -> None:
        """Remove nodes whose leases have ended from all pools' rankings."""
        lost = [self._remove_from(ring, ids) for ring in self._rings.values()]
        if any(lost):
            self._invalidate()

    @property
    def pools(self) -> tuple[str, ...]:
        """Return the pools (label sets) whose servers this node may own."""
        return tuple(self._rings)

    def ranked_slots(self, pool: str) -> tuple[int, ...]:
        """Return the hash slots of a pool in which this node is one of the ranked nodes."""
        if pool not in self._slots and pool in self._rings:
            self._slots[pool] = self._rings[pool].slots_for(self._own_node.id)
        return self._slots.get(pool, ())

    def claimable_slots(self, pool: str) -> tuple[tuple[int, ...], ...]:
        """Return the hash slots of a pool for which this node is the first choice.

        Item n of the result is for a server's instances whose number modulo `RANKS` is n.
        """
        if pool not in self._claimable:
            ours = self.ranked_slots(pool)
            self._claimable[pool] = tuple(
                tuple(slot for slot in ours if self.preferred_node(pool, slot, rotation) == self._own_node.id)
                for rotation in range(RANKS)
            )
        return self._claimable[pool]

    def rank(self, pool: str, slot: int, index: int) -> int | None:
        """Return this node's rank for a server instance (0 is best), or None."""
        ranked = self._ranked_nodes(pool, slot, index)
        return ranked.index(self._own_node.id) if self._own_node.id in ranked else None

    def preferred_node(self, pool: str, slot: int, index: int) -> str | None:
        """Return the id of the node that should own a server instance.

        Return None if the pool is unknown or has no nodes.
        """
        return next(iter(self._ranked_nodes(pool, slot, index)), None)

    def ranked_before(self, pool: str, slot: int, index: int) -> frozenset[str]:
        """Return the ids of the nodes ranked before this node for a server instance."""
        ranked = self._ranked_nodes(pool, slot, index)
        return frozenset(ranked[: ranked.index(self._own_node.id)] if self._own_node.id in ranked else ranked)

    def _ranked_nodes(self, pool: str, slot: int, index: int) -> tuple[str, ...]:
        ring = self._rings.get(pool)
        return rotate_for_instance(ring.ranked(slot), index) if ring is not None else ()

    def _remove_from(self, ring: Ring, ids: Iterable[str]) -> bool:
        removed = ring.node_ids.intersection(ids)
        for id in removed:
            ring.remove_node(id)
        return bool(removed)

    def _invalidate(self) -> None:
        self._slots.clear()
        self._claimable.clear()
        self.version += 1


class Ring:
    """Ranking of the nodes of one pool in every hash slot, by weighted rendezvous hashing."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._nodes: dict[str, Node] = {}
        self._ranks: list[list[tuple[float, str]]] = [[] for _ in range(SLOTS)]  # best first
        self._min_scores = [0.0] * SLOTS  # score of the last rank: a node with a lower score is skipped
        for node in nodes:
            self.add_node(node)

    def add_node(self, node: Node) -> None:
        """Add a node, or replace it if its capacity or labels changed."""
        if self._nodes.get(node.id) == node:
            return
        self.remove_node(node.id)
        self._nodes[node.id] = node
        scores = _score_all_slots(node)
        better = [slot for slot, min_score in enumerate(self._min_scores) if scores[slot] >= min_score]
        for slot in better:
            self._rank(slot, [*self._ranks[slot], (scores[slot], node.id)])

    def remove_node(self, id: str) -> None:
        """Remove a node, and rank again the hash slots in which it had a rank."""
        if self._nodes.pop(id, None) is None:
            return
        for slot, ranks in enumerate(self._ranks):
            if any(each == id for _, each in ranks):
                self._rank(slot, [(_score_slot(node, slot), node.id) for node in self._nodes.values()])

    def _rank(self, slot: int, scored: list[tuple[float, str]]) -> None:
        best = self._ranks[slot] = sorted(scored, reverse=True)[:RANKS]
        self._min_scores[slot] = best[-1][0] if len(best) == RANKS else 0.0

    @property
    def node_ids(self) -> frozenset[str]:
        return frozenset(self._nodes)

    def ranked(self, slot: int) -> tuple[str, ...]:
        """Return the ids of the nodes that should own the servers of this hash slot, best first."""
        return tuple(id for _, id in self._ranks[slot])

    def slots_for(self, id: str) -> tuple[int, ...]:
        """Return the hash slots in which a node is one of the ranked nodes."""
        return tuple(slot for slot, ranks in enumerate(self._ranks) if any(each == id for _, each in ranks))


def _score_all_slots(node: Node) -> list[float]:
    """Return the weighted rendezvous score of a node for every hash slot.

    A node wins slots in proportion to its capacity. Only 52 bits of each hash are used, so the fraction is never 1.
    """
    numbers = unpack(f">{SLOTS}Q", b"".join(_digest(node.id, block) for block in range(SLOTS // _SLOTS_PER_HASH)))
    weight, log = -max(node.capacity, 1), math.log
    return [weight / log(((number >> 12) + 0.5) / 2**52) for number in numbers]


def _score_slot(node: Node, slot: int) -> float:
    """Return the weighted rendezvous score of a node for one hash slot."""
    offset = slot % _SLOTS_PER_HASH * 8
    number = int.from_bytes(_digest(node.id, slot // _SLOTS_PER_HASH)[offset : offset + 8], "big")
    return -max(node.capacity, 1) / math.log(((number >> 12) + 0.5) / 2**52)


def _digest(id: str, block: int) -> bytes:
    return blake2b(id.encode(), digest_size=8 * _SLOTS_PER_HASH, salt=block.to_bytes(2, "big")).digest()
