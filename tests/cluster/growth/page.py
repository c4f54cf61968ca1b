"""Tables of docs/cluster/sizing.md from the measured figures, and checks of the promised growth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from bench.measured_section import write_section
from tests.cluster.growth.gateway import TOOLS, Held
from tests.cluster.growth.measurement import Figures

PAGE: Final = Path(__file__).resolve().parent.parent.parent.parent / "docs" / "cluster" / "sizing.md"

MOST_STATEMENTS: Final = 3.5  # per node: a poll for instances, a poll for changes, a third of a renewal, a margin
MOST_HEARD: Final = 0.5
ROWS_OF_A_SERVER: Final = 0.2  # per second: its owner checks it every 30 s; the database reads more than it returns
ROWS_OF_A_NODE: Final = 40.0
SMALL: Final = 1000  # rows: PostgreSQL reads such a small table as a whole instead of using an index

_EACH: Final = ("memory MB", "CPU ms/s", "renewals/s", "statements/s", "sent/s", "received/s", "connections")
_ALL: Final = ("transactions/s", "rows/s", "PostgreSQL, cores", "messages/s", "NATS, cores")
_EVENTS: Final = ("all owned", "node fails: moved", "statements", "list changes: known", "statements")


def tables(all_figures: Sequence[Figures], gateways: Sequence[Held] = ()) -> str:
    """Return the tables: cost per node, load on the database and NATS, events, and memory of a gateway per server."""
    return "\n".join(
        [
            *("Per node, idle cluster:", "", *_table(_EACH, all_figures, _each), ""),
            *("All nodes together, idle cluster:", "", *_table(_ALL, all_figures, _all), ""),
            *("Events (statements are per node, in addition to the idle ones):", ""),
            *_table(_EVENTS, all_figures, _events),
            *(("", f"A gateway, per server of its tenant ({TOOLS} tools):", "") if gateways else ()),
            *_held(gateways),
        ]
    )


def _table(columns: Sequence[str], rows: Sequence[Figures], row: Callable[[Figures], Sequence[str]]) -> Iterator[str]:
    yield f"| servers | nodes | {' | '.join(columns)} |"
    yield "|" + "---|" * (len(columns) + 2)
    for figures in rows:
        yield f"| {figures.servers:,} | {figures.replicas} | {' | '.join(row(figures))} |"


def _held(gateways: Sequence[Held]) -> Iterator[str]:
    if gateways:
        yield "| servers | server, KB | lists, KB | all servers, MB | CPU seconds to load all | idle CPU, ms/s |"
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
    moved = "owned none" if math.isnan(f.lost_seconds) else f"{f.lost_seconds:.1f} s"
    lost = f"{f.start_seconds:.1f} s", moved, f"{f.lost_statements:.0f}"
    return *lost, f"{f.change_seconds:.2f} s", f"{f.change_statements:.1f}"


def write(text: str) -> None:
    write_section(PAGE, "growth", text)


def broken(all_figures: Sequence[Figures]) -> list[str]:
    """Return the violations of the promise that no periodic work of a node grows with servers × nodes."""
    found = []
    for f in all_figures:
        name = f"{f.servers:,} servers, {f.replicas} nodes"
        if f.statements > MOST_STATEMENTS:
            found.append(f"{name}: a node sends {f.statements:.1f} statements per second, not {MOST_STATEMENTS}")
        if f.messages_heard > MOST_HEARD:
            found.append(f"{name}: a node receives {f.messages_heard:.1f} messages per second in an idle cluster")
        whole = 2 * min(f.servers, SMALL)  # a poll may read a small table as a whole
        most = f.servers * ROWS_OF_A_SERVER + f.replicas * (ROWS_OF_A_NODE + whole)
        if f.record_rows > most:
            found.append(f"{name}: the database reads {f.record_rows:.0f} rows per second, not {most:.0f}")
    return found
