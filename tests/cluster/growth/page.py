"""The figures as a table of a page, what they say about growth, and whether that is what was promised."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.cluster.growth.cell import Figures
from tests.cluster.growth.gateway import TOOLS, Held

PAGE: Final = Path(__file__).resolve().parent.parent.parent.parent / "docs" / "cluster" / "sizing.md"
BEGIN: Final = "<!-- measured: growth -->"
END: Final = "<!-- end: growth -->"

MOST_STATEMENTS: Final = 3.5  # of a node: one look for places, one for changes, a third of a renewal; and a margin
MOST_HEARD: Final = 0.5
ROWS_OF_A_SERVER: Final = 0.2  # a second: its owner looks at it every 30 s, and the database reads more than it answers
ROWS_OF_A_NODE: Final = 40.0
SMALL: Final = 1000  # rows: PostgreSQL prefers to read such a table whole to using an index

_EACH: Final = ("memory MB", "CPU ms/s", "renewals/s", "statements/s", "sent/s", "heard/s", "connections")
_ALL: Final = ("transactions/s", "rows/s", "PostgreSQL, cores", "messages/s", "NATS, cores")
_EVENTS: Final = ("all owned", "a node dies: moved", "statements", "a list changes: known", "statements")


def tables(all_figures: Sequence[Figures], gateways: Sequence[Held] = ()) -> str:
    """What each node costs, what all of them ask of the engines, what happens when something does; and what a gateway
    holds of every server."""
    return "\n".join(
        [
            *("Each node, while nothing happens:", "", *_table(_EACH, all_figures, _each), ""),
            *("All nodes together:", "", *_table(_ALL, all_figures, _all), ""),
            *("When something happens (statements are those of each node, beside the usual ones):", ""),
            *_table(_EVENTS, all_figures, _events),
            *(("", f"A gateway, for each server of its tenant ({TOOLS} tools):", "") if gateways else ()),
            *_held(gateways),
        ]
    )


def _table(columns: Sequence[str], rows: Sequence[Figures], row: Callable[[Figures], Sequence[str]]) -> Iterator[str]:
    yield f"| servers | replicas | {' | '.join(columns)} |"
    yield "|" + "---|" * (len(columns) + 2)
    for figures in rows:
        yield f"| {figures.servers:,} | {figures.replicas} | {' | '.join(row(figures))} |"


def _held(gateways: Sequence[Held]) -> Iterator[str]:
    if gateways:
        yield "| servers | the server, KB | its lists, KB | all, MB | until all are known, s of CPU | idle, ms/s |"
        yield "|---|---|---|---|---|---|"
    for held in gateways:
        total = held.servers * (held.hub_kb + held.lists_kb) / 1000
        sizes = f"{held.hub_kb:.1f} | {held.lists_kb:.1f} | {total:.0f}"
        yield f"| {held.servers:,} | {sizes} | {held.seconds:.1f} | {held.idle_ms:.1f} |"


def _each(f: Figures) -> Sequence[str]:
    rates = (f.statements, f.messages_sent, f.messages_heard, f.connections)
    return f"{f.memory_mb:.1f}", f"{f.cpu_ms:.1f}", f"{f.renewals:.2f}", *(f"{rate:.1f}" for rate in rates)


def _all(f: Figures) -> Sequence[str]:
    counts = f"{f.record_transactions:.0f}", f"{f.record_rows:.0f}"
    return *counts, f"{f.record_cpu:.2f}", f"{f.nats_messages:.0f}", f"{f.nats_cpu:.2f}"


def _events(f: Figures) -> Sequence[str]:
    moved = "it had none" if math.isnan(f.lost_seconds) else f"{f.lost_seconds:.1f} s"
    lost = f"{f.start_seconds:.1f} s", moved, f"{f.lost_statements:.0f}"
    return *lost, f"{f.change_seconds:.2f} s", f"{f.change_statements:.1f}"


def write(text: str) -> None:
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def broken(all_figures: Sequence[Figures]) -> list[str]:
    """Promises that the figures do not keep: nothing that a node does again and again grows with servers × replicas."""
    found = []
    for f in all_figures:
        name = f"{f.servers:,} servers, {f.replicas} replicas"
        if f.statements > MOST_STATEMENTS:
            found.append(f"{name}: a node makes {f.statements:.1f} statements a second, not {MOST_STATEMENTS}")
        if f.messages_heard > MOST_HEARD:
            found.append(f"{name}: a node hears {f.messages_heard:.1f} messages a second while nothing happens")
        whole = 2 * min(f.servers, SMALL)  # a look may read a small table whole
        most = f.servers * ROWS_OF_A_SERVER + f.replicas * (ROWS_OF_A_NODE + whole)
        if f.record_rows > most:
            found.append(f"{name}: the record reads {f.record_rows:.0f} rows a second, not {most:.0f}")
    return found
