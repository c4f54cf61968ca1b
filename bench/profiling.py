"""Where the CPU time of a call goes: the gateway under load, by function.

    python -m bench.profiling [--behind http] [--work echo] [--era modern] [--connections 16] [--seconds 2] [--top 25]

The profiler makes small functions look dearer than they are; for what a call costs, see `make bench`. Starting up is
not counted: the profiler is switched on and off by signals.
"""

from __future__ import annotations

import argparse
import os
import pstats
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench import machine
from bench.install import build_tools
from bench.launch import Launch, Place
from bench.measure import NotReadyError, measure, servers, started, wait_until_good
from bench.peers import by_name
from bench.plan import GROUPS, Case, Pace

WRITTEN_SECONDS: Final = 10.0
_WRAPPED: Final = """
import cProfile, signal, sys
from toolway.cli import main
out, sys.argv = sys.argv[1], ["toolway", *sys.argv[2:]]
profile = cProfile.Profile()
signal.signal(signal.SIGUSR1, lambda *_: profile.enable())
signal.signal(signal.SIGUSR2, lambda *_: (profile.disable(), profile.dump_stats(out)))
main()
"""


def main() -> None:
    options = _options()
    build_tools()
    machine.stand_aside()
    behind = next(one for one in GROUPS if str(one) == options.behind)
    case = Case(options.work, options.era, options.connections)
    with servers(behind) as there, tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name:
        out = Path(name) / "profile"
        toolway = by_name("toolway")
        launch = _wrapped(toolway.launch(Place(there, machine.free_port(), Path(name), toolway.home)), out)
        with started(launch, Path(name)) as one:
            assert one.process is not None
            wait_until_good(one, Case("echo", case.era, 1))
            measure(one, case, Pace(1, 0.0, 0.5))
            os.kill(one.process.pid, signal.SIGUSR1)
            figures = measure(one, case, Pace(1, 0.0, options.seconds))
            os.kill(one.process.pid, signal.SIGUSR2)
            _wait_for(out)
            print(f"{figures['calls']} calls, {figures['cpu_us']:.0f} CPU-µs each with the profiler", flush=True)
            pstats.Stats(str(out)).strip_dirs().sort_stats("tottime").print_stats(options.top)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--behind", default="http", choices=[str(one) for one in GROUPS])
    parser.add_argument("--work", default="echo", choices=("echo", "big", "list"))
    parser.add_argument("--era", default="modern", choices=("modern", "handshake"))
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--top", type=int, default=25)
    return parser.parse_args()


def _wrapped(launch: Launch, out: Path) -> Launch:
    return replace(launch, command=[sys.executable, "-c", _WRAPPED, str(out), *launch.command[1:]])


def _wait_for(out: Path) -> None:
    end = time.monotonic() + WRITTEN_SECONDS
    while not out.exists() or not out.stat().st_size:
        if time.monotonic() > end:
            raise NotReadyError("the profile was not written")
        time.sleep(0.1)
    time.sleep(0.2)  # it is written in one go, but not at once


if __name__ == "__main__":
    main()
