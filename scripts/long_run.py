"""Long checks of the hub: faults, restarts, steady load, misbehaving servers, cost of a call.

    python scripts/long_run.py history [--calls 50000] [--seed 1]
    python scripts/long_run.py soak [--seconds 300] [--rate 200] [--write]
    python scripts/long_run.py cycles [--cycles 100]
    python scripts/long_run.py neighbour [--seconds 10]
    python scripts/long_run.py restarts [--restarts 5] [--down 0.1] [--kind modern]
    python scripts/long_run.py cost

Each prints a report and fails if a guarantee was violated. The short forms are tests in tests/long. `soak --write`
writes the report to docs/long-runs.md.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for `bench` and `tests`, which are not installed

from bench.measured_section import write_section
from tests.long import cost, cycles, history, neighbour, restarts, soak

LONG_RUNS: Final = Path(__file__).resolve().parent.parent / "docs" / "long-runs.md"
Check = Callable[[argparse.Namespace], Awaitable[bool]]


async def check_history(options: argparse.Namespace) -> bool:
    report = await history.run(options.calls, options.seed)
    print(report)
    return not report.wrong


async def check_soak(options: argparse.Namespace) -> bool:
    report = await soak.run(options.seconds, options.rate, options.warm_up, options.seed)
    print(report)
    if options.write:
        rows = "\n".join(f"| {name} | {value} |" for name, value in report.rows().items())
        write_section(LONG_RUNS, "soak", f"| | |\n|---|---|\n{rows}")
    return not report.broken and not report.left


async def check_cycles(options: argparse.Namespace) -> bool:
    report = await cycles.run(options.cycles)
    print(report)
    return not report.left


async def check_neighbour(options: argparse.Namespace) -> bool:
    report = await neighbour.run(options.seconds)
    print(report)
    return all(row.harmless for row in report.rows)


async def check_restarts(options: argparse.Namespace) -> bool:
    kinds = tuple(options.kind or restarts.KINDS)
    report = await restarts.run(options.restarts, options.down, kinds)
    print(report)
    return report.worst <= restarts.GOAL_S


async def check_cost(options: argparse.Namespace) -> bool:
    print(await cost.instantly())
    print(await cost.over_a_pipe())
    in_process = await cost.in_process()
    print(in_process)
    print(f"goal: {cost.GOAL:.2f} of the bare call over the in-process transport; reached {in_process.ratio:.2f}")
    return in_process.ratio >= cost.GOAL


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="CHECK")

    def command(name: str, check: Check, **settings: float) -> argparse.ArgumentParser:
        subparser = commands.add_parser(name)
        subparser.set_defaults(check=check)
        for setting, default in settings.items():
            subparser.add_argument(f"--{setting.replace('_', '-')}", type=type(default), default=default)
        return subparser

    command("history", check_history, calls=50_000, seed=1)
    soak_parser = command("soak", check_soak, seconds=300.0, rate=200.0, warm_up=60.0, seed=1)
    soak_parser.add_argument("--write", action="store_true", help="write the report to docs/long-runs.md")
    command("cycles", check_cycles, cycles=100)
    command("neighbour", check_neighbour, seconds=10.0)
    restarts_parser = command("restarts", check_restarts, restarts=5, down=0.1)
    restarts_parser.add_argument("--kind", action="append", choices=restarts.KINDS)
    command("cost", check_cost)
    options = parser.parse_args()
    sys.exit(not asyncio.run(options.check(options)))


if __name__ == "__main__":
    main()
