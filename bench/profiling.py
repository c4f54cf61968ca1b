"""CPU time of the gateway under load, by function; for the page of the benchmark, by part of the code.

    python -m bench.profiling [--behind http] [--work echo] [--era modern] [--connections 16] [--seconds 2] [--top 25]

The profiler exaggerates the cost of small functions. For the cost of a call, see `make bench`. The start is not
included: signals switch the profiler on and off.
"""

from __future__ import annotations

import argparse
import os
import pstats
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bench import machine
from bench.install import build_tools
from bench.journal import Row
from bench.launch import Launch, LaunchContext
from bench.measure import NotReadyError, measure, servers, started, wait_until_ready
from bench.peers import get_peer
from bench.plan import GROUPS, Case, Pace

WRITTEN_SECONDS: Final = 10.0
_PROFILED_MAIN: Final = """
import cProfile, signal, sys
from toolway.cli import main
out, sys.argv = sys.argv[1], ["toolway", *sys.argv[2:]]
profile = cProfile.Profile()
signal.signal(signal.SIGUSR1, lambda *_: profile.enable())
signal.signal(signal.SIGUSR2, lambda *_: (profile.disable(), profile.dump_stats(out)))
main()
"""


#: Profiles of the page: a server behind the gateway, and a case.
_PUBLISHED: Final = (("http", "echo"), ("stdio", "echo"), ("http", "big"))
_CODECS: Final = ("msgspec", "orjson", "json.decoder", "json.encoder", "'encode' of", "'decode' of")


def main() -> None:
    options = _options()
    build_tools()
    machine.leave_gateway_core()
    case = Case(options.work, options.era, options.connections)
    stats, figures = _profile(options.behind, case, options.seconds)
    print(f"{figures['calls']} calls, {figures['cpu_us']:.0f} CPU-µs per call with the profiler", flush=True)
    stats.strip_dirs().sort_stats("tottime").print_stats(options.top)


def profile(pace: Pace) -> Iterator[Row]:
    """Yield the share of each part of the code in the CPU time of a call, for the cases of the page."""
    for behind, work in _PUBLISHED:
        stats, figures = _profile(behind, Case(work, "modern", 16), 2 * pace.seconds)
        seconds, calls = Counter[str](), Counter[str]()
        for function, (_, count, own, *_) in stats.stats.items():  # type: ignore[attr-defined]  # typeshed lacks it
            part = _part_of(function)
            seconds[part] += own
            calls[part] += count
        for part, own in seconds.most_common():
            yield {
                "peer": "toolway",
                "behind": behind,
                "work": f"profile of {work}: {part}",
                "era": "modern",
                "connections": 16,
                "turn": 0,
                "share": own / seconds.total(),
                "items": calls[part] / max(figures["calls"], 1),
            }


def _part_of(function: tuple[str, int, str]) -> str:
    """Return the part of the code that a function of a profile belongs to."""
    file, _, name = function
    _, found, rest = file.rpartition("/src/toolway/")
    if found:
        return f"toolway/{rest.split('/')[0].removesuffix('.py')}"
    if any(codec in f"{file} {name}" for codec in _CODECS):
        return "reading and writing JSON (C)"
    if "httptools" in f"{file} {name}":
        return "parsing HTTP (C)"
    if any(word in name for word in ("socket", "uvloop", "posix", "'send'", "'recv'")):
        return "sockets and pipes (C)"
    return "other built-in functions (C)" if file == "~" else "standard library"


def _profile(behind_name: str, case: Case, seconds: float) -> tuple[pstats.Stats, dict[str, Any]]:
    behind = next(one for one in GROUPS if str(one) == behind_name)
    with servers(behind) as upstreams, tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name:
        out = Path(name) / "profile"
        toolway = get_peer("toolway")
        launch = _with_profiler(
            toolway.launch(LaunchContext(upstreams, machine.free_port(), Path(name), toolway.home)), out
        )
        with started(launch, Path(name)) as one:
            assert one.process is not None
            wait_until_ready(one, Case("echo", case.era, 1))
            measure(one, case, Pace(1, 0.0, 0.5))
            os.kill(one.process.pid, signal.SIGUSR1)
            figures = measure(one, case, Pace(1, 0.0, seconds))
            os.kill(one.process.pid, signal.SIGUSR2)
            _wait_for(out)
            return pstats.Stats(str(out)), figures


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--behind", default="http", choices=[str(one) for one in GROUPS])
    parser.add_argument("--work", default="echo", choices=("echo", "big", "list"))
    parser.add_argument("--era", default="modern", choices=("modern", "legacy"))
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--top", type=int, default=25)
    return parser.parse_args()


def _with_profiler(launch: Launch, out: Path) -> Launch:
    return replace(launch, command=[sys.executable, "-c", _PROFILED_MAIN, str(out), *launch.command[1:]])


def _wait_for(out: Path) -> None:
    end = time.monotonic() + WRITTEN_SECONDS
    while not out.exists() or not out.stat().st_size:
        if time.monotonic() > end:
            raise NotReadyError("the profile was not written")
        time.sleep(0.1)
    time.sleep(0.2)  # the file appears before it is complete


if __name__ == "__main__":
    main()
