"""Calls from one Python process: the hub next to the SDK client, and HTTP clients without MCP.

All have the same layout: the process on the gateway's core, the upstream server on the other core. Number of calls in
flight and checks of the results are the same. Measured with uvloop and with asyncio's own loop.
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
from bench.plan import Kind, Pace, ServerGroup

IN_FLIGHT = 64
LOOPS = ("uvloop", "asyncio")
KINDS: tuple[Kind, ...] = ("stdio", "http")


def library(pace: Pace, loops: tuple[str, ...] = LOOPS) -> Iterator[Row]:
    for kind in KINDS:
        with servers(ServerGroup(kind)) as upstreams:
            address = upstreams[0].url or shlex.join(upstreams[0].command)
            for turn in range(pace.turns):
                for loop in loops:
                    for client_name in ("sdk", "hub"):
                        yield _row(client_name, kind, f"library, {loop}", IN_FLIGHT, turn, address, loop, pace)


def clients(pace: Pace) -> Iterator[Row]:
    with servers(ServerGroup("http")) as upstreams:
        for turn in range(pace.turns):
            for in_flight in (1, IN_FLIGHT):
                for client_name in ("httpx2", "http1", "bare"):
                    yield _row(client_name, "http", "post", in_flight, turn, upstreams[0].url, "uvloop", pace)


def _row(
    client_name: str, kind: Kind, work: str, in_flight: int, turn: int, address: str, loop: str, pace: Pace
) -> Row:
    options = ["--loop", loop, "--in-flight", str(in_flight), "--warm", str(pace.warm), "--seconds", str(pace.seconds)]
    command = [sys.executable, "-m", "bench.client_load", client_name, address, *options]
    command = machine.pin_to_core(command, machine.core_for("gateway"))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    row: Row = {"peer": client_name, "behind": kind, "work": work, "era": "any", "connections": in_flight, "turn": turn}
    if done.returncode:
        return {**row, "failed": done.stderr.strip()[-300:], "errors": 1}
    return {**row, **json.loads(done.stdout)}
