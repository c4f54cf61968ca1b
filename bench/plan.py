"""What is measured, in which order, and for how long: plain values, so that it can be read and tested without a run.

The swift (the limits, ourselves, Envoy) stand side by side and take turns, one short round each, case by case: what
disturbs the machine disturbs all of them alike. The others need seconds for what the swift do in a millisecond, and
some need a quarter of a minute to start; they have one round of each case, one after the other.
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
class Behind:
    """The servers behind a gateway."""

    kind: Kind
    count: int = 1
    era: str = "both"
    tools: int = 20
    slow: bool = False  # all but the first take long to start

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
    """How long one is measured."""

    turns: int
    warm: float
    seconds: float
    longest: float = 20.0  # for who has not given two answers on each connection by then

    def short(self) -> Pace:
        return Pace(self.turns, self.warm, min(self.seconds, 0.5), self.longest)


SWIFT: Final = Pace(turns=3, warm=0.2, seconds=0.8)
OTHERS: Final = Pace(turns=1, warm=0.3, seconds=1.0, longest=12.0)
QUICK: Final = Pace(turns=3, warm=0.2, seconds=0.5)

#: Groups of servers, in the order in which they are measured.
GROUPS: Final = (
    Behind("http"),
    Behind("stdio"),
    Behind("http", MANY),
    Behind("stdio", MANY),
    Behind("http", era="handshake"),
    Behind("http", era="modern"),
    Behind("stdio", era="handshake"),
    Behind("stdio", era="modern"),
)
#: What only we, or we and the SDK, are asked.
OWN_PARTS: Final = ("library", "growth", "cold", "clients")
PARTS: Final = (*map(str, GROUPS), *OWN_PARTS)


def chosen_parts(words: str) -> list[str]:
    """The parts that are named, in their own order; all, where none is. Raises `ValueError`."""
    wanted = [word.strip() for word in words.split(",") if word.strip()]
    if unknown := [word for word in wanted if word not in PARTS]:
        raise ValueError(f"no such part: {', '.join(unknown)}; there are: {', '.join(PARTS)}")
    return [part for part in PARTS if not wanted or part in wanted]


def chosen_peers(peers: Iterable[Peer], words: str) -> list[Peer]:
    """Who is named, and the swift beside him: a figure means something beside those of the same hour. Raises
    `ValueError`."""
    peers = list(peers)
    wanted = [word.strip() for word in words.split(",") if word.strip()]
    if unknown := set(wanted) - {peer.name for peer in peers}:
        raise ValueError(f"no such peer: {', '.join(sorted(unknown))}")
    return [peer for peer in peers if not wanted or peer.swift or peer.name in wanted]


def cases(peer: Peer, behind: Behind) -> Iterator[Case]:
    """What one peer is asked before these servers."""
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
        # The clients of the server's own era stand beside the others: a bridge is measured by them.
        if peer.swift:
            yield from (Case("echo", era, n) for n in CONNECTIONS)
            yield Case("big", era, 16)
        elif era != behind.era and behind.kind == "http":
            yield Case("echo", era, 16)
