"""Planned measurements, their order and their duration.

All are plain values, which can be read and tested without a run. Fast peers (the lower bounds, Toolway, Envoy) run at
the same time and are measured in turns, one short round per case, so a disturbance affects all of them. The
other peers need seconds for what a fast peer does in a millisecond, and some need 15 seconds to start. They are
measured one after another, with one round per case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from bench.peers import Peer
from bench.wire import Era

MANY: Final = 18
CONNECTIONS: Final = (1, 16, 64)

Kind: TypeAlias = Literal["http", "stdio"]


@dataclass(frozen=True)
class ServerGroup:
    """The servers behind a gateway."""

    kind: Kind
    count: int = 1
    era: str = "both"
    tools: int = 20
    slow: bool = False  # all but the first start slowly

    def __str__(self) -> str:
        words = [str(self.count)] if self.count > 1 else []
        words += ["slow"] if self.slow else []
        return " ".join([*words, self.kind, *([] if self.era == "both" else [self.era])])


@dataclass(frozen=True)
class Case:
    work: str  # echo, big or list
    era: Era
    connections: int


@dataclass(frozen=True)
class Pace:
    """Duration and repetitions of a measurement."""

    turns: int
    warm: float
    seconds: float
    longest: float = 20.0  # seconds, if a connection has fewer than two results after `seconds`

    def short(self) -> Pace:
        return Pace(self.turns, self.warm, min(self.seconds, 0.5), self.longest)


FAST_PACE: Final = Pace(turns=5, warm=0.2, seconds=0.8)
OTHER_PACE: Final = Pace(turns=1, warm=0.3, seconds=1.0, longest=12.0)
QUICK_PACE: Final = Pace(turns=3, warm=0.2, seconds=0.5)

#: Groups of servers, in the order of measurement.
GROUPS: Final = (
    ServerGroup("http"),
    ServerGroup("stdio"),
    ServerGroup("http", MANY),
    ServerGroup("stdio", MANY),
    ServerGroup("http", era="legacy"),
    ServerGroup("http", era="modern"),
    ServerGroup("stdio", era="legacy"),
    ServerGroup("stdio", era="modern"),
)
#: Parts that measure only Toolway, or Toolway and the SDK.
OWN_PARTS: Final = ("library", "growth", "cold", "clients", "options", "profile")
PARTS: Final = (*map(str, GROUPS), *OWN_PARTS)


def select_parts(words: str) -> list[str]:
    """Return the named parts in their order, or all parts if none is named. Raises `ValueError`."""
    wanted = [word.strip() for word in words.split(",") if word.strip()]
    if unknown := [word for word in wanted if word not in PARTS]:
        raise ValueError(f"unknown part: {', '.join(unknown)}; parts: {', '.join(PARTS)}")
    return [part for part in PARTS if not wanted or part in wanted]


def select_peers(peers: Iterable[Peer], words: str) -> list[Peer]:
    """Return the named peers and all fast peers, because figures are comparable only within a run.

    Raises `ValueError` if a name is unknown.
    """
    peers = list(peers)
    wanted = [word.strip() for word in words.split(",") if word.strip()]
    if unknown := set(wanted) - {peer.name for peer in peers}:
        raise ValueError(f"unknown peer: {', '.join(sorted(unknown))}")
    return [peer for peer in peers if not wanted or peer.fast or peer.name in wanted]


def cases(peer: Peer, behind: ServerGroup) -> Iterator[Case]:
    """Yield the cases that are measured for a peer with these servers."""
    eras: tuple[Era, ...] = peer.eras(behind.kind)
    if behind.count > 1:
        if peer.many and eras:
            yield from (Case("list", eras[0], connections) for connections in (1, 16))
        return
    if behind.era == "both":
        yield from (Case(work, era, n) for era in eras for work in ("echo", "big") for n in CONNECTIONS)
        return
    if not peer.bridges:
        return
    for era in eras:
        # The bridge is compared with clients of the server's own era, measured next to it.
        if peer.fast:
            yield from (Case("echo", era, n) for n in CONNECTIONS)
            yield Case("big", era, 16)
        elif era != behind.era and behind.kind == "http":
            yield Case("echo", era, 16)
