"""Gain of `toolway serve --workers N`: calls of one gateway process and of several, side by side.

    python -m bench.workers [--workers 2] [--turns 5] [--seconds 2.0] [--connections 64] [--least 1.5]

Both gateways run at the same time with the same HTTP server and are measured in turns; the medians count. Nothing is
pinned to a core. The load generator and the server run on the same machine and take their share of its cores: their CPU
time per call is printed. So `rate` is what this machine does with all of it, and `by CPU` is what the gateway itself
gains: the calls per CPU second of the busiest worker, relative to the single process. `by CPU` also holds on a machine
that is not quiet. Needs a C compiler. Exit code 1 if `rate`, or with `--by-cpu` the gain by CPU, is below `--least`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest import mock

from bench import fast_peers, machine
from bench.install import build_tools
from bench.launch import Launch, LaunchContext
from bench.measure import UPSTREAM, Gateway, gateway, measure, servers, wait_until_ready
from bench.peers import Peer
from bench.plan import Case, Pace, ServerGroup

_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Turn:
    """One measurement of one gateway."""

    rate: float  # calls a second
    cpu_us: float  # CPU time of the gateway per call, all processes
    busiest_us: float  # CPU time of its busiest process per call
    shares: tuple[float, ...]  # share of each worker in the CPU time, smallest first
    load_us: float  # CPU time of the load generator per call
    upstream_us: float  # CPU time of the server per call


def launch(workers: int, context: LaunchContext) -> Launch:
    made = fast_peers.toolway(context)
    return replace(made, command=[*made.command, "--workers", str(workers)]) if workers > 1 else made


def cpu_by_process(root: int) -> dict[int, float]:
    """Return the CPU seconds of a process and of each of its descendants."""
    found = {}
    for pid in machine.process_tree(root):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found[pid] = sum(map(int, fields[11:13])) / _TICK
    return found


def upstream_cpu() -> float:
    total = 0.0
    for pid, seconds in cpu_by_process(os.getpid()).items():
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/exe") == str(UPSTREAM):
                total += seconds
    return total


def run_turn(one: Gateway, case: Case, pace: Pace) -> Turn:
    assert one.process is not None
    own, upstream = cpu_by_process(one.process.pid), upstream_cpu()
    load = resource.getrusage(resource.RUSAGE_CHILDREN)
    figures = measure(one, case, pace)
    used = {pid: cpu - own.get(pid, 0.0) for pid, cpu in cpu_by_process(one.process.pid).items()}
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = sorted(cpu for cpu in used.values() if cpu > 0.02 * max(used.values()))
    # These include the calls of the warm-up, which the load generator does not count.
    calls = max(1.0, sum(seconds) * 1e6 / figures["cpu_us"])
    load_seconds = after.ru_utime + after.ru_stime - load.ru_utime - load.ru_stime
    return Turn(
        figures["rate"],
        figures["cpu_us"],
        max(seconds) * 1e6 / calls,
        tuple(round(each / sum(seconds), 2) for each in seconds),
        load_seconds * 1e6 / calls,
        (upstream_cpu() - upstream) * 1e6 / calls,
    )


def compare(workers: int, case: Case, pace: Pace) -> tuple[list[Turn], list[Turn]]:
    """Measure one process and several in turns. Return the turns of each."""
    with (
        mock.patch.object(machine, "cores", return_value=None),
        servers(ServerGroup("http")) as upstreams,
        contextlib.ExitStack() as stack,
    ):
        ready = []
        for count in (1, workers):
            peer = Peer("toolway", f"workers {count}", partial(launch, count), "")
            ready.append(stack.enter_context(gateway(peer, upstreams)))
            wait_until_ready(ready[-1], Case("echo", "modern", 1))
        found: tuple[list[Turn], list[Turn]] = ([], [])
        for _ in range(pace.turns):
            for one, turns in zip(ready, found, strict=True):
                turns.append(run_turn(one, case, pace))
        return found


def median(turns: Sequence[Turn], name: str) -> float:
    return float(statistics.median(getattr(turn, name) for turn in turns))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--least", type=float, default=1.5)
    parser.add_argument("--by-cpu", action="store_true", help="compare by CPU time, for a machine that is not quiet")
    options = parser.parse_args()
    build_tools()
    case = Case("echo", "modern", options.connections)
    one, several = compare(options.workers, case, Pace(options.turns, 0.5, options.seconds, options.seconds * 3))
    for name, turns in (("1 process", one), (f"{options.workers} workers", several)):
        shares = " / ".join(str(share) for share in turns[-1].shares)
        print(
            f"{name:>10}: {median(turns, 'rate'):8,.0f} calls/s, {median(turns, 'cpu_us'):6.1f} CPU-µs a call, busiest"
            f" process {median(turns, 'busiest_us'):6.1f}, shares {shares}; load {median(turns, 'load_us'):5.1f},"
            f" server {median(turns, 'upstream_us'):5.1f}"
        )
    rate = statistics.median(b.rate / a.rate for a, b in zip(one, several, strict=True))
    by_cpu = statistics.median(a.busiest_us / b.busiest_us for a, b in zip(one, several, strict=True))
    print(f"{options.workers} workers to 1: rate {rate:.2f}, by CPU {by_cpu:.2f}")
    print(json.dumps({"workers": options.workers, "rate": round(rate, 2), "by_cpu": round(by_cpu, 2)}))
    return 0 if (by_cpu if options.by_cpu else rate) >= options.least else 1


if __name__ == "__main__":
    sys.exit(main())
