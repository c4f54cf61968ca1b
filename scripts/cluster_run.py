"""The long checks of a cluster: NATS × 3, PostgreSQL, three real `toolway serve --cluster`, and what is done to them.

    python scripts/cluster_run.py                          everything, at full size
    python scripts/cluster_run.py short                    little of most of it, in a minute or so
    python scripts/cluster_run.py kills [--times 20] [--every 5]
    python scripts/cluster_run.py pause [--seconds 30]
    python scripts/cluster_run.py budgets [--calls 100000]

Each prints what it found, and fails where a promise was broken. In network namespaces where they can be made, which
takes root; else on loopback, without what needs a network that can be cut.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for `tests`, which is not a package of ours

from tests.faults.cluster import budgets, cost, logins, repeats, scenarios
from tests.faults.cluster.cluster import Cluster, cluster
from tests.faults.cluster.engines import missing_engines
from tests.faults.cluster.engines_setup import why_no_namespaces
from tests.faults.cluster.load import LIMIT, LONG
from tests.faults.cluster.runs import Act, Report, under_load

Options = argparse.Namespace
Check = Callable[[Options], Awaitable[list[Report]]]

ACTS: dict[str, Callable[[Options], Act | None]] = {
    "plain": lambda options: None,
    "kills": lambda options: scenarios.kills(options.times, options.every, options.seed),
    "nats": lambda options: scenarios.nats_kills(options.seconds or 5),
    "postgres": lambda options: scenarios.postgres_restarts(options.seconds or 2),
    "pause": lambda options: scenarios.pause(options.seconds or 30, options.seed),
    "cut-nats": lambda options: scenarios.cut_from_nats(options.seconds or 15),
    "cut-postgres": lambda options: scenarios.cut_from_postgres(options.seconds or 20),
    "cut-replicas": lambda options: scenarios.cut_from_each_other(options.seconds or 15),
    "rolling": lambda options: scenarios.rolling_restart(),
}
SHORT = {"plain": 0.0, "nats": 1.0, "postgres": 1.0, "cut-nats": 3.0, "cut-replicas": 3.0, "kills": 0.0, "rolling": 0.0}
TITLES = {
    "plain": "calls through all replicas",
    "kills": "kill -9 of a random replica, again and again",
    "nats": "kill -9 of each NATS server in turn",
    "postgres": "PostgreSQL crashes, and is restarted",
    "pause": "a replica stands still (SIGSTOP)",
    "cut-nats": "a replica is cut off from NATS",
    "cut-postgres": "a replica is cut off from PostgreSQL",
    "cut-replicas": "two replicas are cut off from each other",
    "rolling": "all replicas are restarted, one after the other",
}


async def check_acts(acts: dict[str, float], options: Options) -> list[Report]:
    """One cluster, and one act after the other, each for so many seconds."""
    apart = not options.loopback and why_no_namespaces() is None
    if not apart:
        print(f"on loopback: {why_no_namespaces() or 'as asked'}", flush=True)
    reports = []
    with _folder(options) as folder:
        async with cluster(folder, options.servers, apart=apart) as made:
            print(f"servers by replica: {made.spread()}\n", flush=True)
            for name, options.seconds in acts.items():
                if name.startswith("cut") and not apart:
                    print(f"{TITLES[name]}: skipped, namespaces are not available\n", flush=True)
                    continue
                reports.append(await _act(made, name, options))
    return reports


async def _act(made: Cluster, name: str, options: Options) -> Report:
    limit = LONG if name in ("plain", "rolling") else LIMIT
    act = ACTS[name](options)
    report = await under_load(made, TITLES[name], act, options.calls, options.clients, options.seed, limit)
    print(f"{report}\n", flush=True)
    return report


async def check_repeats(options: Options) -> list[Report]:
    with _folder(options) as folder:
        async with cluster(folder, 6, apart=False) as made:
            return [_told(await repeats.run(made, options.times))]


async def check_hop(options: Options) -> list[Report]:
    with _folder(options) as folder:
        return [_told(await cost.hop(folder, options.times, options.seconds or 2))]


async def check_stateless(options: Options) -> list[Report]:
    with _folder(options) as folder:
        return [_told(await cost.stateless(folder, options.times, options.seconds or 2))]


async def check_logins(options: Options) -> list[Report]:
    with _folder(options) as folder:
        return [_told(await logins.run(folder, 4 * options.times))]


async def check_budgets(options: Options) -> list[Report]:
    with _folder(options) as folder:
        return [_told(await budgets.run(folder, options.calls, options.clients))]


@contextmanager
def _folder(options: Options) -> Iterator[Path]:
    """A folder for one cluster, with the logs of its replicas."""
    folder = Path(tempfile.mkdtemp(prefix="toolway-cluster-"))
    try:
        yield folder
    finally:
        if options.keep:
            print(f"logs and effects are in {folder}", flush=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _told(report: Report) -> Report:
    print(f"{report}\n", flush=True)
    return report


async def check_all(options: Options) -> list[Report]:
    options.times = 20
    reports = await check_acts(dict.fromkeys(ACTS, 0.0), options)
    options.times = 5
    return [
        *reports,
        *await check_repeats(options),
        *await check_hop(options),
        *await check_stateless(options),
        *await check_logins(options),
        *await check_budgets(options),
    ]


async def check_short(options: Options) -> list[Report]:
    options.calls, options.servers, options.clients, options.times = 500, 6, 12, 1
    return await check_acts(SHORT, options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    checks: dict[str, Check] = {
        "all": check_all,
        "short": check_short,
        "repeats": check_repeats,
        "hop": check_hop,
        "stateless": check_stateless,
        "logins": check_logins,
        "budgets": check_budgets,
    }
    parser.add_argument("check", nargs="*", default=["all"], metavar="CHECK", help=", ".join([*checks, *ACTS]))
    parser.add_argument("--times", type=int, default=0, help="kills, repeats or turns (20, 5, 5)")
    parser.add_argument("--every", type=float, default=5.0, help="seconds from one kill to the next (5)")
    parser.add_argument("--seconds", type=float, default=0.0, help="how long a fault lasts")
    parser.add_argument("--calls", type=int, default=20_000, help="at least (20000)")
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--servers", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--loopback", action="store_true", help="no namespaces")
    parser.add_argument("--keep", action="store_true", help="leave logs and effects where they are")
    options = parser.parse_args()
    if unknown := set(options.check) - {*checks, *ACTS}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if missing := missing_engines():
        parser.error(missing)
    reports = asyncio.run(_run(options, checks))
    broken = [report.name for report in reports if report.wrong]
    print(f"promises broken in {len(broken)} of {len(reports)}: {'; '.join(broken)}" if broken else "all promises kept")
    sys.exit(bool(broken))


async def _run(options: Options, checks: dict[str, Check]) -> list[Report]:
    reports = []
    times = options.times
    if acts := [name for name in options.check if name in ACTS]:
        options.times = times or 20
        reports += await check_acts(dict.fromkeys(acts, options.seconds), options)
    for name in options.check:
        if name in checks:
            options.times = times or 5
            reports += await checks[name](options)
    return reports


if __name__ == "__main__":
    main()
