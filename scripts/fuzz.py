"""Fuzz the parsers of foreign bytes: coverage-guided first, then random changes of the corpus that this leaves.

    python scripts/fuzz.py [TARGET …] [--seconds 60] [--inputs N] [--write]

Without `--inputs`, only the coverage-guided part runs, for `--seconds` each. With `--inputs 10000000`, both parts
together check at least so many inputs per target. Failing inputs and the grown corpus are in build/fuzz. `--write`
writes a row per target to docs/long-runs.md. Exit code 1 if an input failed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for `bench`, which is not installed

from bench.machine import measured_commit
from bench.measured_section import read_section, write_section

ROOT: Final = Path(__file__).resolve().parent.parent
FOUND: Final = ROOT / "build" / "fuzz"
PAGE: Final = ROOT / "docs" / "long-runs.md"
COLUMNS: Final = ("parser", "coverage-guided", "changed at random", "all inputs", "failures", "measured")
PARSERS: Final = {
    "framing": "lines of a stdio server",
    "envelope": "JSON-RPC messages",
    "sse": "event streams",
    "headers": "HTTP error responses",
    "config": "configuration files",
    "openapi": "OpenAPI documents",
}


@dataclass(frozen=True)
class Counts:
    """Numbers of inputs that were checked for one target."""

    guided: int
    mutated: int

    def row(self, target: str) -> str:
        """Return the row of the page."""
        measured = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, commit {measured_commit()}"
        numbers = " | ".join(f"{number:,}" for number in (self.guided, self.mutated, self.guided + self.mutated))
        return f"| {PARSERS[target]} | {numbers} | 0 | {measured} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(PARSERS)}; all if none is named")
    parser.add_argument("--seconds", type=int, default=60, metavar="N", help="of the coverage-guided part (60)")
    parser.add_argument("--inputs", type=int, default=0, metavar="N", help="least number of inputs per target")
    parser.add_argument("--write", action="store_true", help="write the rows to docs/long-runs.md")
    options = parser.parse_args()
    if unknown := set(options.targets) - set(PARSERS):
        parser.error(f"unknown target: {', '.join(sorted(unknown))}")
    for target in options.targets or PARSERS:
        guided = _run_guided(target, options.seconds)
        mutated = _run_mutations(target, options.inputs - guided) if guided is not None else None
        if guided is None or mutated is None:
            return 1
        counts = Counts(guided, mutated)
        print(f"{target}: {guided:,} coverage-guided, {mutated:,} changed at random, 0 failures", flush=True)
        if options.write:
            write_row(target, counts.row(target))
    return 0


def _run_guided(target: str, seconds: int) -> int | None:
    """Return the number of inputs, or None if one failed."""
    grown = FOUND / target
    grown.mkdir(parents=True, exist_ok=True)
    limits = [f"-max_total_time={seconds}", "-verbosity=0", "-print_final_stats=1"]
    folders = [f"-artifact_prefix={FOUND}/{target}-", str(grown), str(_corpus(target))]
    command = [sys.executable, str(ROOT / "fuzz" / f"fuzz_{target}.py"), *limits, *folders]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    counted = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    if done.returncode or not counted:
        print(done.stderr, file=sys.stderr)
        return None
    return int(counted[1])


def _run_mutations(target: str, inputs: int) -> int | None:
    """Return the number of inputs, or None if one failed."""
    if inputs <= 0:
        return 0
    folders = ["--corpus", str(_corpus(target)), str(FOUND / target)]
    command = [sys.executable, str(ROOT / "fuzz" / "mutations.py"), target, f"--inputs={inputs}", *folders]
    done = subprocess.run([*command, f"--found={FOUND}"], stdout=subprocess.PIPE, text=True, check=False)
    return None if done.returncode else int(json.loads(done.stdout)["inputs"])


def _corpus(target: str) -> Path:
    return ROOT / "fuzz" / "corpus" / target


def write_row(target: str, row: str, page: Path = PAGE) -> None:
    """Write the row of a target, and keep the rows of the others."""
    lines = read_section(page, "fuzz").splitlines()
    rows = {name: line for line in lines for name in _targets_of(line)} | {target: row}
    head = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    write_section(page, "fuzz", "\n".join([*head, *(rows[name] for name in PARSERS if name in rows)]), stamp=False)


def _targets_of(line: str) -> Iterator[str]:
    yield from (name for name, title in PARSERS.items() if line.startswith(f"| {title} |"))


if __name__ == "__main__":
    sys.exit(main())
