"""Long checks of the gateway, each with a real `toolway serve`.

    python scripts/gateway_run.py history [--calls 50000] [--seed 1]
    python scripts/gateway_run.py held [--calls 1000] [--listens 1000] [--seconds 10]
    python scripts/gateway_run.py endings [--times 20]
    python scripts/gateway_run.py overload [--seconds 60]

Each prints a report and fails if a guarantee was violated. The short forms are tests in tests/gateway.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for `tests`, which is not an installed package

from tests.gateway import held_calls, load_run, overload
from tests.gateway.shutdown_runs import end_under_load

Check = Callable[[argparse.Namespace], Awaitable[bool]]


async def check_history(options: argparse.Namespace) -> bool:
    report = await load_run.run(options.calls, options.seed, options.clients)
    print(report)
    return not report.wrong


async def check_held(options: argparse.Namespace) -> bool:
    report = await held_calls.run(options.calls, options.listens, options.seconds)
    print(report)
    return report.whole


async def check_endings(options: argparse.Namespace) -> bool:
    wrong = 0
    for number in range(options.times):
        with tempfile.TemporaryDirectory() as folder:
            ending = await end_under_load(Path(folder) / "run", options.seed + number)
        print(f"{number + 1}: {ending}", flush=True)
        wrong += len(ending.wrong)
    print(f"violations: {wrong}")
    return not wrong


async def check_overload(options: argparse.Namespace) -> bool:
    report = await overload.run(options.seconds)
    print(report)
    return report.kept >= 0.9 and report.slowest(0.99) <= 0.05 and report.recovery <= 5 and not report.other


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="CHECK")

    def command(name: str, check: Check, **settings: float) -> None:
        subparser = commands.add_parser(name)
        subparser.set_defaults(check=check)
        for setting, default in settings.items():
            subparser.add_argument(f"--{setting}", type=type(default), default=default)

    command("history", check_history, calls=50_000, clients=50, seed=1)
    command("held", check_held, calls=1000, listens=1000, seconds=10.0)
    command("endings", check_endings, times=20, seed=1)
    command("overload", check_overload, seconds=60.0)
    options = parser.parse_args()
    sys.exit(not asyncio.run(options.check(options)))


if __name__ == "__main__":
    main()
