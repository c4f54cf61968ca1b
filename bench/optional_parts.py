"""Cost of optional parts of a gateway: metrics, dashboard, traces, audit log; workers; imports and start.

Part `options` of `bench.run`. `make bench ARGS=telemetry`, `python -m bench.workers` and `make bench ARGS=imports`
measure the same with more output.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from bench import imports, machine, telemetry, workers
from bench.journal import Row
from bench.plan import Case, Pace

_VARIANTS: Final = ("bare", "metrics", "metrics + traces of 1 %", "default settings", "default settings + audit")
_WORKERS: Final = 2
_STARTS: Final = 9
_LOOP: Final = """
import time
began = time.process_time()
for number in range(20_000_000):
    number * number
print(time.process_time() - began)
"""
ONE_BUSY: Final = "fixed loop, one core busy"
BOTH_BUSY: Final = "fixed loop, both cores busy"


def optional_parts(pace: Pace) -> Iterator[Row]:
    yield from _telemetry(pace)
    yield from _fixed_loops(pace)
    with _all_cores():
        yield from _workers(pace)
        yield from _imports()


@contextlib.contextmanager
def _all_cores() -> Iterator[None]:
    """Let processes that are started inside the block use the core of the gateway too."""
    pair, before = machine.cores(), os.sched_getaffinity(0)
    try:
        if pair is not None:
            os.sched_setaffinity(0, pair)
        yield
    finally:
        os.sched_setaffinity(0, before)


def _telemetry(pace: Pace) -> Iterator[Row]:
    with telemetry.run_collector() as collector:
        blocks = telemetry.variants(collector)
        launches = {name: partial(telemetry.launch_variant, blocks[name]) for name in _VARIANTS}
        found = telemetry.measure_variants(pace, launches)
    for name, cases in found.items():
        for case, turns in cases.items():
            for turn, figures in enumerate(turns):
                yield {**_row(f"echo, {name}", turn, case.connections), **figures}


def _workers(pace: Pace) -> Iterator[Row]:
    case = Case("echo", "modern", 64)
    one, several = workers.compare(_WORKERS, case, Pace(pace.turns, 0.5, 2 * pace.seconds, 6 * pace.seconds))
    for name, turns in (("1 process", one), (f"{_WORKERS} workers", several)):
        for turn, each in enumerate(turns):
            # Processes work side by side, so the busiest one limits the rate.
            yield {**_row(f"echo, {name}", turn, 64), "rate": each.rate, "cpu_us": each.busiest_us, "errors": 0}


def _fixed_loops(pace: Pace) -> Iterator[Row]:
    """Yield the CPU time of a loop with one core busy and with two: cores of a virtual machine may share one core."""
    pair = machine.cores()
    if pair is None:
        return
    for turn in range(pace.turns):
        for name, used in ((ONE_BUSY, pair[:1]), (BOTH_BUSY, pair)):
            started = [
                subprocess.Popen(machine.pin_to_core([sys.executable, "-c", _LOOP], core), stdout=subprocess.PIPE)
                for core in used
            ]
            taken = [float(each.communicate(timeout=120)[0]) for each in started]
            yield {**_row(name, turn, 1), "seconds": max(taken)}


def _imports() -> Iterator[Row]:
    for turn, taken in enumerate(imports.measure_imports(_STARTS)):
        for program, seconds in taken.items():
            yield {**_row(program, turn, 1), "seconds": seconds}
    for turn, (clock, _) in enumerate(asyncio.run(imports.measure_starts(_STARTS))):
        yield {**_row("start to the first answer", turn, 1), "seconds": clock}


def _row(work: str, turn: int, connections: int) -> dict[str, Any]:
    return {
        "peer": "toolway",
        "behind": "options",
        "work": work,
        "era": "modern",
        "connections": connections,
        "turn": turn,
    }
