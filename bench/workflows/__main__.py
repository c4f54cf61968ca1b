"""Workflow engines side by side, and the limits of Toolway's own engine.

    python -m bench.workflows                     full form: 15 minutes on a quiet machine, installations apart
    python -m bench.workflows --quick             50 runs with 3 kills for each engine
    python -m bench.workflows --only dbos-sqlite  some engines; the results of the others are kept
    python -m bench.workflows --publish           no run: write bench/workflows/published.json and docs/benchmarks.md

Writes `bench/results/workflows.json` after each engine. An engine that cannot be installed is reported and skipped.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import signal
import sys
import time
from typing import Any

from bench import page
from bench.install import ROOT, InstallError
from bench.machine import describe_machine
from bench.workflows import section
from bench.workflows.compare import FULL, QUICK, Sizes, compare, effect_server
from bench.workflows.engines import ENGINES, Engine, install, version
from bench.workflows.limits import measure_limits

OUT = ROOT / "bench" / "results" / "workflows.json"
BUDGET_S = 40 * 60.0  # without installations; an engine that would begin later is left out and reported


def main() -> None:
    options = _options()
    if not options.publish:
        _run(options)
    result = json.loads(OUT.read_text())
    print(section.text(result))
    if options.publish:
        section.PUBLISHED.write_text(section.as_text(result))
        page.write()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.workflows", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--only", default="", metavar="NAMES", help=f"of {', '.join(each.name for each in ENGINES)}, limits"
    )
    parser.add_argument("--seed", type=int, default=1, help="for the times of the kills")
    parser.add_argument("--publish", action="store_true", help="write the docs page from the last run")
    return parser.parse_args()


def _run(options: argparse.Namespace) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # to stop started processes too
    wanted = [name for name in options.only.split(",") if name]
    sizes = QUICK if options.quick else FULL
    engines = [each for each in ENGINES if not wanted or each.name in wanted]
    load = os.getloadavg()[0]
    uninstalled = _install_all(engines)
    began = time.monotonic()
    result: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "load": round(load, 1),  # before the run
        "seed": options.seed,
        "sizes": sizes.__dict__,
        "absent": {},
        "versions": {},
        "rows": [],
        "limits": [],
    }
    if wanted and OUT.exists():
        known = json.loads(OUT.read_text())
        result |= {key: known[key] for key in ("absent", "versions", "rows", "limits")}
    OUT.parent.mkdir(exist_ok=True)

    def keep(**values: Any) -> None:
        result.update(values)
        OUT.write_text(section.as_text(result))

    if not wanted or "limits" in wanted:
        limits: list[Any] = []
        for limit in measure_limits(options.quick):
            print(f"{limit.name}: {limit.measured} (target {limit.wanted})", flush=True)
            limits.append(limit._asdict())
            keep(limits=limits)
    with effect_server() as url:
        for engine in engines:
            rows = [row for row in result["rows"] if row["engine"] != engine.name]
            absent = {name: why for name, why in result["absent"].items() if name != engine.name}
            left = BUDGET_S - (time.monotonic() - began)
            try:
                if engine.name in uninstalled:
                    raise uninstalled[engine.name]
                row = _compare(engine, url, sizes, options.seed, left)
                print(json.dumps(row), flush=True)
                order = [each.name for each in ENGINES]
                rows = sorted([*rows, row], key=lambda each: order.index(each["engine"]))
                keep(rows=rows, absent=absent, versions={**result["versions"], engine.name: version(engine)})
            except InstallError as error:
                absent[engine.name] = (str(error).strip() or "it does not start").splitlines()[-1][:200]
                print(f"{engine.name}: {absent[engine.name]}", flush=True)
                keep(rows=rows, absent=absent)
    keep(minutes=round((time.monotonic() - began) / 60, 1))
    print(f"\n{result['minutes']:.1f} minutes\n", flush=True)


def _install_all(engines: list[Engine]) -> dict[str, InstallError]:
    """Install the engines before anything is measured. Return the errors of those that cannot be installed."""
    errors: dict[str, InstallError] = {}
    for engine in engines:
        try:
            install(engine)
        except InstallError as error:
            errors[engine.name] = error
    return errors


def _compare(engine: Engine, url: str, sizes: Sizes, seed: int, left: float) -> dict[str, Any]:
    if left < 30:
        raise InstallError("no time was left for it")
    return compare(engine, url, dataclasses.replace(sizes, limit=min(sizes.limit, left)), seed)


if __name__ == "__main__":
    main()
