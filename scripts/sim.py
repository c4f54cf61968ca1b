#!/usr/bin/env python3
"""Simulate the core in virtual time; each seed determines the calls and the faults of the servers.

python scripts/sim.py --seeds 500 --calls 200     run all seeds, and some of them twice
python scripts/sim.py --seed 17 -v                run one seed and print its history
python scripts/sim.py --front gateway             clients before a gateway with slow servers, which is shut down
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.sim.checks import check, vague  # noqa: E402  needs the path set above
from tests.sim.history import Begun, Done, History  # noqa: E402
from tests.sim.run import run  # noqa: E402
from tests.sim.scenario import FRONTS, Front  # noqa: E402
from toolway.hub.plan import SWITCH  # noqa: E402

SHOWN = 5  # printed violations per seed


@dataclass(frozen=True, slots=True)
class Result:
    """Summary of one simulation."""

    seed: int
    front: Front
    digest: str
    calls: int
    effects: int
    vague: int
    flights: tuple[int, int]  # landed, and taken over
    outcomes: Counter[str]
    faults: Counter[str]
    violations: tuple[str, ...]


def result(case: tuple[int, Front], calls: int) -> Result:
    seed, front = case
    history = run(seed, calls, front)
    return Result(
        seed=seed,
        front=front,
        digest=history.digest(),
        calls=sum(1 for _ in history.of(Begun)),
        effects=sum(1 for _ in history.of(Done)),
        vague=vague(history),
        flights=(history.landed, history.taken_over),
        outcomes=history.outcomes(),
        faults=history.faults(),
        violations=tuple(map(str, check(history))),
    )


def results(cases: Iterable[tuple[int, Front]], calls: int, jobs: int) -> Iterator[Result]:
    """Yield the results in the order of the cases, even if later ones end first.

    A process ends after 400 cases: the memory of a simulated gateway is not all freed, and makes later runs slower.
    """
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=100) as pool:
        yield from pool.imap(partial(result, calls=calls), cases, chunksize=4)


def main() -> int:
    options = parse_options()
    os.environ[SWITCH] = options.plans  # the processes inherit it
    fronts: tuple[Front, ...] = FRONTS if options.front in ("all", "turns") else (options.front,)
    if options.seed is not None:
        return max(run_one(options.seed, options.calls, front, options.verbose) for front in fronts)
    began = time.monotonic()
    found = []
    seeds = range(options.start, options.start + options.seeds)
    if options.front == "turns":
        cases: list[tuple[int, Front]] = [(seed, FRONTS[seed % len(FRONTS)]) for seed in seeds]
    else:
        cases = [(seed, front) for seed in seeds for front in fronts]
    for each in results(cases, options.calls, options.jobs):
        found.append(each)
        print_violations(each, options.calls)
    report(found, time.monotonic() - began)
    same = check_reproducible(found, options.twice, options.calls, options.jobs)
    return 0 if same and not any(each.violations for each in found) else 1


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Simulate the core in virtual time.")
    parser.add_argument("--seeds", type=int, default=500, help="number of seeds")
    parser.add_argument("--start", type=int, default=0, help="first seed")
    parser.add_argument("--calls", type=int, default=200, help="calls per seed")
    parser.add_argument("--jobs", type=int, default=2, help="parallel processes")
    parser.add_argument("--twice", type=int, default=20, help="seeds to run again, to check that runs are reproducible")
    parser.add_argument("--seed", type=int, help="run only this seed")
    fronts = ("all", "turns", *FRONTS)
    parser.add_argument("--front", choices=fronts, default="all", help="what is called; turns: one of them per seed")
    parser.add_argument("--plans", choices=("on", "off"), default="on", help="off: every call uses the whole chain")
    parser.add_argument("-v", "--verbose", action="store_true", help="print the history of the seed")
    return parser.parse_args()


def run_one(seed: int, calls: int, front: Front, verbose: bool) -> int:
    history: History = run(seed, calls, front)
    if verbose:
        print(*history.lines(), sep="\n")
    violations = [str(each) for each in check(history)]
    print(f"seed {seed}, {front}: {dict(history.outcomes())}, digest {history.digest()[:16]}")
    print(*violations or ["no violations"], sep="\n")
    return 1 if violations else 0


def print_violations(each: Result, calls: int) -> None:
    if each.violations:
        again = f"--seed {each.seed} --calls {calls} --front {each.front} -v"
        print(f"seed {each.seed} fails; reproduce: python scripts/sim.py {again}")
        print(*(f"    {line.splitlines()[0]}" for line in each.violations[:SHOWN]), sep="\n", flush=True)


def report(found: list[Result], seconds: float) -> None:
    outcomes = sum((each.outcomes for each in found), Counter[str]())
    faults = sum((each.faults for each in found), Counter[str]())
    failed = [each for each in found if each.violations]
    print(f"{len(found)} runs in {seconds:.0f} s ({len(found) / seconds:.1f} per second)")
    print(f"calls      {sum(each.calls for each in found)}")
    print(f"effects    {sum(each.effects for each in found)}")
    landed, taken_over = (sum(each.flights[n] for each in found) for n in range(2))
    print(f"flights    {landed} landed, {taken_over} taken over")
    print("outcomes   " + ", ".join(f"{name} {number}" for name, number in outcomes.most_common()))
    print("faults     " + ", ".join(f"{name} {number}" for name, number in faults.most_common()))
    print(f"reported as unknown although nothing was sent: {sum(each.vague for each in found)}")
    print(f"violations {sum(len(each.violations) for each in found)} in {len(failed)} runs")
    print(f"digest     {hashlib.sha256(''.join(each.digest for each in found).encode()).hexdigest()}")


def check_reproducible(found: list[Result], number: int, calls: int, jobs: int) -> bool:
    """Return True if a sample of the seeds, run again in other processes, gives equal histories."""
    sample = found[:: max(1, len(found) // number)][:number] if number else []
    again = list(results([(each.seed, each.front) for each in sample], calls, jobs)) if sample else []
    differing = [
        (first.seed, first.front) for first, second in zip(sample, again, strict=True) if first.digest != second.digest
    ]
    print(f"run twice  {len(sample)} runs: " + (f"these differ: {differing}" if differing else "identical"))
    return not differing


if __name__ == "__main__":
    sys.exit(main())
