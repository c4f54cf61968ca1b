"""What a run of a cluster must show, from three logs: reported outcomes, effects of servers, and owners.

Besides I1 to I4 (`toolway.testing.history`):

    lost     an answer is lost only where the replica that was asked was struck
    unknown  an outcome is unknown only where a struck replica was asked, or owned the server; or where a call that
             waited for the next owner of such a server reached it so late that its time was over
             on a busy machine (tests/timing.py) also where a node lost its lease because it could not renew it in time,
             or where the time of the call was over
    owners   no two gateways use one server at once: the effects of their processes do not alternate, and nobody has one
             outside the time in which the record says that the server is its own
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Final

from tests.faults.cluster.load import NO_ANSWER, Trip
from tests.faults.cluster.observation import FOREVER, Tenure

NOTICED: Final = 1.5  # seconds within which the others know of a replica that is dead or hung
MOVES: Final = 12.0  # seconds within which a server of a replica that died has another
BLUR: Final = 1.0  # seconds by which the record, as we see it, and the moment of an effect may differ


@dataclass
class Strike:
    """Something done to replicas. Of a pair, only calls that pass between the two are concerned."""

    what: str
    replicas: frozenset[str]
    since: float
    until: float = FOREVER
    pair: bool = False

    def concerns(self, trip: Trip, owners: frozenset[str]) -> bool:
        if trip.began > self.until + NOTICED or trip.ended < self.since:
            return False
        if self.pair:
            return trip.entry in self.replicas and bool(owners & (self.replicas - {trip.entry}))
        return trip.entry in self.replicas or bool(owners & self.replicas)


@dataclass(frozen=True)
class Effect:
    server: str
    gateway: int  # pid
    process: int  # pid of the server itself
    at: float
    nonce: str


def effects_in(file: Path) -> list[Effect]:
    found = []
    for line in file.read_text().splitlines() if file.exists() else ():
        who, _, nonce = line.rpartition("\t")
        server, gateway, process, at = who.split()
        found.append(Effect(server, int(gateway), int(process), float(at), nonce))
    return sorted(found, key=lambda effect: effect.at)


def replica_of(node: str) -> str:
    """Nodes are called by the name of their replica, and something random."""
    return node.rpartition("-")[0]


class Owners:
    """Which replicas owned a server in a span of time."""

    def __init__(self, tenures: Iterable[Tenure]) -> None:
        self._of: dict[str, list[Tenure]] = defaultdict(list)
        for tenure in tenures:
            self._of[tenure.server].append(tenure)

    def next_after(self, server: str, at: float) -> float:
        """When the next owner of a server began, after that time."""
        return min((tenure.since for tenure in self._of[server] if tenure.since > at), default=FOREVER)

    def within(self, server: str, since: float, until: float) -> frozenset[str]:
        return frozenset(replica_of(tenure.node) for tenure in self.tenures(server, since, until))

    def tenures(self, server: str, since: float, until: float) -> list[Tenure]:
        return [tenure for tenure in self._of[server] if tenure.since <= until and tenure.until >= since]


def wrong_answers(
    trips: Sequence[Trip], strikes: Sequence[Strike], owners: Owners, *, busy: bool = False
) -> Iterator[str]:
    struck: set[str] = set()  # keys whose outcome is unknown for a reason, so it stays unknown
    for trip in sorted(trips, key=lambda trip: trip.began):
        near = owners.within(trip.server, trip.began - BLUR, trip.ended)
        lost = trip.how.startswith("lost")
        if trip.executed != "unknown" and not lost:
            continue
        if (
            any(strike.concerns(trip, frozenset() if lost else near) for strike in strikes)
            or (not lost and any(waited_without_answer(trip, strike, owners) for strike in strikes))
            or (busy and is_explained_by_slowness(trip, owners))
        ):
            struck.add(trip.nonce)
        elif not (trip.keyed and trip.nonce in struck and not lost):
            kind = "lost" if lost else "unknown"
            yield f"{kind}: {trip.nonce} to {trip.server} of {','.join(near) or 'nobody'} by {trip.entry}: {trip.how}"


def waited_without_answer(trip: Trip, strike: Strike, owners: Owners) -> bool:
    """Whether its time was over just after its server had another owner than one that was struck."""
    if not owners.within(trip.server, strike.since, strike.since) & strike.replicas:
        return False
    begun = owners.next_after(trip.server, strike.since)
    return "E-TIMEOUT" in trip.how and trip.began < begun < trip.ended and begun < strike.until + MOVES


def is_explained_by_slowness(trip: Trip, owners: Owners) -> bool:
    """Whether nothing is wrong but that the machine was slow: a call, or the renewal of its owner's lease, was late.

    A node that could not renew its lease closes its servers. In the record they stay its own if nobody else was faster.
    """
    late = "E-TIMEOUT" in trip.how or trip.how == NO_ANSWER or "closed by us" in trip.how
    return late or len(owners.tenures(trip.server, trip.began - BLUR, trip.ended + BLUR)) != 1


def two_owners(effects: Iterable[Effect], replicas: Mapping[int, str], owners: Owners) -> Iterator[str]:
    """`replicas` are by the pid of their gateways."""
    by_server: dict[str, list[Effect]] = defaultdict(list)
    for effect in effects:
        by_server[effect.server].append(effect)
    for server, some in by_server.items():
        runs = [next(group) for _, group in groupby(some, key=lambda effect: effect.process)]
        seen: set[int] = set()
        for first in runs:
            if first.process in seen:
                yield f"owners: {server} was used by {replicas.get(first.gateway)} and another in turns, {first.nonce}"
            seen.add(first.process)
        yield from _outside(server, some, replicas, owners)


def _outside(server: str, some: list[Effect], replicas: Mapping[int, str], owners: Owners) -> Iterator[str]:
    for effect in some:
        who = replicas.get(effect.gateway, "?")
        near = owners.within(server, effect.at - BLUR, effect.at + BLUR)
        if who not in near:
            yield f"owners: {server} was used by {who} while it was of {','.join(near) or 'nobody'}, {effect.nonce}"


def moves(tenures: Iterable[Tenure], strike: Strike) -> dict[str, float]:
    """How long each server of a struck replica was without another owner, from the strike on."""
    by_server: dict[str, list[Tenure]] = defaultdict(list)
    for tenure in tenures:
        by_server[tenure.server].append(tenure)
    found = {}
    for server, some in by_server.items():
        before = [each for each in some if each.since <= strike.since < each.until]
        if before and replica_of(before[0].node) in strike.replicas:
            after = [each.since for each in some if each.since > strike.since and each.node != before[0].node]
            found[server] = min(after, default=FOREVER) - strike.since
    return found


def longest_gap(tenures: Iterable[Tenure]) -> tuple[float, str]:
    """For how long a server had no owner at the most, between two that it had."""
    by_server: dict[str, list[Tenure]] = defaultdict(list)
    for tenure in tenures:
        by_server[tenure.server].append(tenure)
    gaps = [
        (after.since - before.until, server) for server, some in by_server.items() for before, after in pairwise(some)
    ]
    return max(gaps, default=(0.0, ""))
