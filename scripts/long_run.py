"""Long checks of the hub: faults, restarts, steady load, misbehaving servers, cost of a call.

    python scripts/long_run.py history [--calls 50000] [--seed 1]
    python scripts/long_run.py soak [--seconds 300] [--rate 200]
    python scripts/long_run.py cycles [--cycles 100]
    python scripts/long_run.py neighbour [--seconds 10]
    python scripts/long_run.py cost

Each prints a report and fails if a guarantee was violated. The short forms are tests in tests/long.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for `tests`, which is not an installed package

from tests.long import cost, cycles, history, neighbour, soak

Check = Callable[[argparse.Namespace], Awaitable[bool]]


async def check_history(options: argparse.Namespace) -> bool:
    report = await history.run(options.calls, options.seed)
    print(report)
    return not report.wrong


async def check_soak(options: argparse.Namespace) -> bool:
    report = await soak.run(options.seconds, options.rate, options.warm_up, options.seed)
    print(report)
    return not report.broken and not report.left


async def check_cycles(options: argparse.Namespace) -> bool:
    report = await cycles.run(options.cycles)
    print(report)
    return not report.left


async def check_neighbour(options: argparse.Namespace) -> bool:
    report = await neighbour.run(options.seconds)
    print(report)
    return all(row.harmless for row in report.rows)


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

    def command(name: str, check: Check, **settings: float) -> None:
        subparser = commands.add_parser(name)
        subparser.set_defaults(check=check)
        for setting, default in settings.items():
            subparser.add_argument(f"--{setting.replace('_', '-')}", type=type(default), default=default)

    command("history", check_history, calls=50_000, seed=1)
    command("soak", check_soak, seconds=300.0, rate=200.0, warm_up=60.0, seed=1)
    command("cycles", check_cycles, cycles=100)
    command("neighbour", check_neighbour, seconds=10.0)
    command("cost", check_cost)
    options = parser.parse_args()
    sys.exit(not asyncio.run(options.check(options)))


if __name__ == "__main__":
    main()
