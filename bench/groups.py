"""All peers before one group of servers: the swift side by side and in turns, the others one after the other."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterable, Iterator

from bench import report
from bench.journal import Journal, Row, place
from bench.launch import Server
from bench.measure import (
    BRIDGE_SECONDS,
    START_SECONDS,
    Gateway,
    NotReadyError,
    gateway,
    idle_memory,
    measure,
    servers,
    settle,
    wait_until_good,
)
from bench.peers import Peer
from bench.plan import Behind, Case, Pace, cases

_FAILURES = (NotReadyError, OSError, subprocess.SubprocessError)
_REST_SECONDS = 0.05


class Told:
    """Writes down and prints what was measured."""

    def __init__(self, kept: Journal) -> None:
        self._kept = kept

    def row(self, row: Row) -> None:
        print(report.line(self._kept.add(row)), flush=True)

    def has(self, row: Row) -> bool:
        return self._kept.has(place(row), row["turn"])

    def part(self, name: str, rows: Iterable[Row]) -> None:
        """A part that is measured whole, or again."""
        done = {"peer": name, "behind": name, "work": "done", "era": "any", "connections": 0, "turn": 0}
        if self.has(done):
            return
        try:
            for row in rows:
                self.row(row)
            self._kept.add(done)
        except _FAILURES as error:
            self.row({**done, "work": "part", "failed": str(error), "errors": 1})


def _row(peer: Peer, behind: Behind, case: Case, turn: int) -> Row:
    return {"peer": peer.name, "behind": str(behind), **case.__dict__, "turn": turn}


def _start(peer: Peer, behind: Behind, turn: int, work: str) -> Row:
    """Where a figure of its start stands: it is the same for every client."""
    return _row(peer, behind, Case(work, next(cases(peer, behind)).era, 1), turn)


def side_by_side(behind: Behind, peers: list[Peer], pace: Pace, told: Told) -> None:
    asked = {peer: list(cases(peer, behind)) for peer in peers}
    asked = {peer: chosen for peer, chosen in asked.items() if chosen}
    rows = [_row(peer, behind, case, turn) for turn in range(pace.turns) for peer in asked for case in asked[peer]]
    if all(map(told.has, rows)):
        return
    with servers(behind) as there, contextlib.ExitStack() as stack:
        ready = _all_started(asked, behind, there, pace.turns, told, stack)
        for turn in range(pace.turns):
            for case in dict.fromkeys(case for peer in ready for case in asked[peer]):
                for peer in list(ready):
                    row = _row(peer, behind, case, turn)
                    if case in asked[peer] and not told.has(row):
                        time.sleep(_REST_SECONDS)
                        _measured(row, ready[peer], case, pace, told)


def _all_started(
    peers: Iterable[Peer],
    behind: Behind,
    there: tuple[Server, ...],
    turns: int,
    told: Told,
    stack: contextlib.ExitStack,
) -> dict[Peer, Gateway]:
    """Each is started as often as there are turns; the last of them stays."""
    ready: dict[Peer, Gateway] = {}
    for turn in range(turns):
        for peer in peers:
            with contextlib.ExitStack() as own:
                try:
                    one = own.enter_context(gateway(peer, there))
                    for row in _first(peer, behind, one, turn):
                        told.row(row)
                except _FAILURES as error:
                    told.row({**_start(peer, behind, turn, "first call"), "failed": str(error), "errors": 1})
                    continue
                if turn == turns - 1:
                    ready[peer] = one
                    stack.push(own.pop_all())
    return ready


def _first(peer: Peer, behind: Behind, one: Gateway, turn: int) -> Iterator[Row]:
    case = next(cases(peer, behind))
    patience = START_SECONDS if behind.era == "both" else BRIDGE_SECONDS
    seconds = wait_until_good(one, Case("echo", case.era, 1), patience)
    if one.process:
        yield {**_start(peer, behind, turn, "first call"), "seconds": seconds}
        yield {**_start(peer, behind, turn, "memory"), "mb": idle_memory(one, case)}


def one_by_one(behind: Behind, peers: list[Peer], pace: Pace, told: Told) -> None:
    asked = {peer: list(cases(peer, behind)) for peer in peers}
    asked = {
        peer: chosen
        for peer, chosen in asked.items()
        if chosen and not all(told.has(_row(peer, behind, case, 0)) for case in chosen)
    }
    if not asked:
        return
    with servers(behind) as there:
        for peer, chosen in asked.items():
            left = [_row(peer, behind, case, turn) for turn in range(pace.turns) for case in chosen]
            left = [row for row in left if not told.has(row)]
            while left:
                left = _in_one_go(peer, behind, there, left, pace, told)


def _in_one_go(
    peer: Peer, behind: Behind, there: tuple[Server, ...], rows: list[Row], pace: Pace, told: Told
) -> list[Row]:
    """The rows that are left when the peer has ended by itself: it is started again for them, as its users would do."""
    try:
        with gateway(peer, there) as one:
            for row in _first(peer, behind, one, 0):
                told.row(row)
            for number, row in enumerate(rows):
                settle(one)
                if number and one.process and one.process.poll() is not None:
                    told.row({**row, "work": f"{row['work']}, before it", "failed": "it ended by itself", "errors": 1})
                    return rows[number:]
                _measured(row, one, Case(row["work"], row["era"], row["connections"]), pace, told)
    except _FAILURES as error:
        told.row({**_start(peer, behind, 0, "first call"), "failed": str(error), "errors": 1})
    return []


def _measured(row: Row, one: Gateway, case: Case, pace: Pace, told: Told) -> None:
    try:
        told.row({**row, **measure(one, case, pace)})
    except NotReadyError as error:
        told.row({**row, "failed": str(error), "errors": 1})
