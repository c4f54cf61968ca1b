"""Measurements of all peers with one group of servers.

Fast peers are measured in turns, the other peers one after another.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterable, Iterator

from bench import report
from bench.journal import Journal, Row, row_key
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
    wait_until_ready,
)
from bench.peers import Peer
from bench.plan import Case, Pace, ServerGroup, cases

_FAILURES = (NotReadyError, OSError, subprocess.SubprocessError)
_REST_SECONDS = 0.05


class Recorder:
    """Writes measurements to the journal and prints them."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def record(self, row: Row) -> None:
        print(report.line(self._journal.add(row)), flush=True)

    def has(self, row: Row) -> bool:
        return self._journal.has(row_key(row), row["turn"])

    def record_part(self, name: str, rows: Iterable[Row]) -> None:
        """Record a part that is measured completely or, after a failure, again from its start."""
        done = {"peer": name, "behind": name, "work": "done", "era": "any", "connections": 0, "turn": 0}
        if self.has(done):
            return
        try:
            for row in rows:
                self.record(row)
            self._journal.add(done)
        except _FAILURES as error:
            self.record({**done, "work": "part", "failed": str(error), "errors": 1})


def _row(peer: Peer, behind: ServerGroup, case: Case, turn: int) -> Row:
    return {"peer": peer.name, "behind": str(behind), **case.__dict__, "turn": turn}


def _start_row(peer: Peer, behind: ServerGroup, turn: int, work: str) -> Row:
    """Return the row of a start measurement, which is the same for every client."""
    return _row(peer, behind, Case(work, next(cases(peer, behind)).era, 1), turn)


def side_by_side(behind: ServerGroup, peers: list[Peer], pace: Pace, recorder: Recorder) -> None:
    planned = {peer: list(cases(peer, behind)) for peer in peers}
    planned = {peer: chosen for peer, chosen in planned.items() if chosen}
    rows = [_row(peer, behind, case, turn) for turn in range(pace.turns) for peer in planned for case in planned[peer]]
    if all(map(recorder.has, rows)):
        return
    with servers(behind) as upstreams, contextlib.ExitStack() as stack:
        ready = _start_all(planned, behind, upstreams, pace.turns, recorder, stack)
        for turn in range(pace.turns):
            for case in dict.fromkeys(case for peer in ready for case in planned[peer]):
                for peer in list(ready):
                    row = _row(peer, behind, case, turn)
                    if case in planned[peer] and not recorder.has(row):
                        time.sleep(_REST_SECONDS)
                        _measure_case(row, ready[peer], case, pace, recorder)


def _start_all(
    peers: Iterable[Peer],
    behind: ServerGroup,
    upstreams: tuple[Server, ...],
    turns: int,
    recorder: Recorder,
    stack: contextlib.ExitStack,
) -> dict[Peer, Gateway]:
    """Start each peer once per turn and return the gateways of the last turn, still running."""
    ready: dict[Peer, Gateway] = {}
    for turn in range(turns):
        for peer in peers:
            with contextlib.ExitStack() as gateway_stack:
                try:
                    one = gateway_stack.enter_context(gateway(peer, upstreams))
                    for row in _measure_start(peer, behind, one, turn):
                        recorder.record(row)
                except _FAILURES as error:
                    recorder.record({**_start_row(peer, behind, turn, "first call"), "failed": str(error), "errors": 1})
                    continue
                if turn == turns - 1:
                    ready[peer] = one
                    stack.push(gateway_stack.pop_all())
    return ready


def _measure_start(peer: Peer, behind: ServerGroup, one: Gateway, turn: int) -> Iterator[Row]:
    case = next(cases(peer, behind))
    timeout_s = START_SECONDS if behind.era == "both" else BRIDGE_SECONDS
    seconds = wait_until_ready(one, Case("echo", case.era, 1), timeout_s)
    if one.process:
        yield {**_start_row(peer, behind, turn, "first call"), "seconds": seconds}
        yield {**_start_row(peer, behind, turn, "memory"), "mb": idle_memory(one, case)}


def one_by_one(behind: ServerGroup, peers: list[Peer], pace: Pace, recorder: Recorder) -> None:
    planned = {peer: list(cases(peer, behind)) for peer in peers}
    planned = {
        peer: chosen
        for peer, chosen in planned.items()
        if chosen and not all(recorder.has(_row(peer, behind, case, 0)) for case in chosen)
    }
    if not planned:
        return
    with servers(behind) as upstreams:
        for peer, chosen in planned.items():
            left = [_row(peer, behind, case, turn) for turn in range(pace.turns) for case in chosen]
            left = [row for row in left if not recorder.has(row)]
            while left:
                left = _measure_until_exit(peer, behind, upstreams, left, pace, recorder)


def _measure_until_exit(
    peer: Peer, behind: ServerGroup, upstreams: tuple[Server, ...], rows: list[Row], pace: Pace, recorder: Recorder
) -> list[Row]:
    """Measure rows until the peer exits; return the remaining rows, for which it must be started again."""
    try:
        with gateway(peer, upstreams) as one:
            for row in _measure_start(peer, behind, one, 0):
                recorder.record(row)
            for number, row in enumerate(rows):
                settle(one)
                if number and one.process and one.process.poll() is not None:
                    recorder.record(
                        {**row, "work": f"{row['work']}, before it", "failed": "the process exited", "errors": 1}
                    )
                    return rows[number:]
                _measure_case(row, one, Case(row["work"], row["era"], row["connections"]), pace, recorder)
    except _FAILURES as error:
        recorder.record({**_start_row(peer, behind, 0, "first call"), "failed": str(error), "errors": 1})
    return []


def _measure_case(row: Row, one: Gateway, case: Case, pace: Pace, recorder: Recorder) -> None:
    try:
        recorder.record({**row, **measure(one, case, pace)})
    except NotReadyError as error:
        recorder.record({**row, "failed": str(error), "errors": 1})
