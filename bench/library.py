"""Parts in which one Python process calls: the hub beside the SDK's client, and the HTTP clients below them.

Both have the same layout: one process on the core of the gateway, the lean server on the other core; the same number of
calls under way, the same check of every answer; with uvloop, and with the loop of Python.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator

from bench import machine
from bench.install import ROOT
from bench.journal import Row
from bench.measure import servers
from bench.plan import Behind, Kind, Pace

IN_FLIGHT = 64
LOOPS = ("uvloop", "asyncio")
KINDS: tuple[Kind, ...] = ("stdio", "http")


def library(pace: Pace, loops: tuple[str, ...] = LOOPS) -> Iterator[Row]:
    for kind in KINDS:
        with servers(Behind(kind)) as there:
            where = there[0].url or shlex.join(there[0].command)
            for turn in range(pace.turns):
                for loop in loops:
                    for who in ("sdk", "hub"):
                        yield _row(who, kind, f"library, {loop}", IN_FLIGHT, turn, where, loop, pace)


def clients(pace: Pace) -> Iterator[Row]:
    with servers(Behind("http")) as there:
        for turn in range(pace.turns):
            for in_flight in (1, IN_FLIGHT):
                for who in ("httpx2", "http1", "bare"):
                    yield _row(who, "http", "post", in_flight, turn, there[0].url, "uvloop", pace)


def _row(who: str, kind: Kind, work: str, in_flight: int, turn: int, where: str, loop: str, pace: Pace) -> Row:
    options = ["--loop", loop, "--in-flight", str(in_flight), "--warm", str(pace.warm), "--seconds", str(pace.seconds)]
    command = [sys.executable, "-m", "bench.caller", who, where, *options]
    command = machine.pinned(command, machine.core_of("gateway"))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    row: Row = {"peer": who, "behind": kind, "work": work, "era": "any", "connections": in_flight, "turn": turn}
    if done.returncode:
        return {**row, "failed": done.stderr.strip()[-300:], "errors": 1}
    return {**row, **json.loads(done.stdout)}
