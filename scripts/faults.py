"""Run the fault matrix and print what it showed, one line a row.

    python scripts/faults.py [--seeds N] [--write]

`--write` puts the same table into docs/reliability.md. The exit code is 1 where a test failed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "reliability.md"
HEAD: Final = ("row", "what", "seeds", "passed", "invariants")
GROUPS: Final = {"A": "stdio", "B": "HTTP and SSE", "C": "callers", "D": "host and storage"}
ABOUT: Final = """\
# Reliability

What is broken on purpose, and what holds meanwhile. Every row is a fault; its tests make it happen, with real processes
and sockets, beside a healthy server that is called all the time.
"""
INVARIANTS: Final = """\
After every row the invariants named in its last column were checked:

- **I1** each call has one outcome, within its deadline and a second
- **I2** an answer reaches the call it belongs to, and no other
- **I3** an effect that must not be repeated happens at most once, and once if its call was answered
- **I4** an effect that happened is never reported as not executed
- **I5** a healthy neighbour has no error, and its p99 grows by 50 ms at most
- **I6** tasks, descriptors and processes are back to what they were within 10 s
- **I7** memory stays within the limit of the row
"""


def main() -> int:
    options = _options()
    results, code = _run(options.seeds, options.only)
    if not results:
        print(f"pytest ended with {code} and left no results", file=sys.stderr)
        return 1
    lines = _lines(_behaviours(), results)
    print(_table(lines))
    print(_totals(results))
    if options.write:
        PAGE.write_text(_page(lines, results, options.seeds))
    return 1 if code or any(row["failed"] for row in results.values()) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run the fault matrix and print one line a row.")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="run every test with so many seeds (1)")
    parser.add_argument("--only", default="", metavar="EXPRESSION", help="only the tests that pytest -k finds")
    parser.add_argument("--write", action="store_true", help="write docs/reliability.md")
    return parser.parse_args()


def _run(seeds: int, only: str) -> tuple[dict[str, Any], int]:
    """The results by row, and the exit code of pytest. What pytest says goes to stderr."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "results.json"
        environ = {**os.environ, "TOOLWAY_SEEDS": str(seeds), "TOOLWAY_FAULTS_OUT": str(out)}
        command = [sys.executable, "-m", "pytest", "-q", "tests/faults/matrix", "-k", only]
        code = subprocess.run(command, cwd=ROOT, env=environ, stdout=sys.stderr).returncode
        return (json.loads(out.read_text()) if out.exists() else {}), code


def _behaviours() -> dict[str, Any]:
    with open(ROOT / "tests" / "behaviours.toml", "rb") as file:
        return tomllib.load(file)


def _lines(behaviours: dict[str, Any], results: dict[str, Any]) -> list[tuple[str, ...]]:
    return [_line(row, entry, results.get(row)) for row, entry in behaviours.items()]


def _line(row: str, entry: dict[str, Any], result: dict[str, Any] | None) -> tuple[str, ...]:
    if "later" in entry:
        return row, entry["text"], "–", f"later: {entry['later']}", ""
    if result is None or not result["seeds"]:
        return row, entry["text"], "–", "not run", ""
    passed = f"{result['passed']}/{result['passed'] + result['failed'] + result['known']}"
    passed = "; ".join([passed, *result["skipped"]])
    return row, entry["text"], str(result["seeds"]), passed, _short(result["invariants"])


def _short(invariants: list[str]) -> str:
    """I1 I2 I3 I5 as I1-I3 I5."""
    runs: list[list[int]] = []
    for number in sorted(int(name[1:]) for name in invariants):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return " ".join(f"I{first}" if first == last else f"I{first}-I{last}" for first, last in runs)


def _table(lines: list[tuple[str, ...]]) -> str:
    cells = [HEAD, *lines]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEAD))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)


def _totals(results: dict[str, Any]) -> str:
    ran = [row for row in results.values() if row["seeds"]]
    whole = [row for row in ran if row["passed"] and not row["failed"] and not row["known"]]
    passed, failed, known = (sum(row[key] for row in ran) for key in ("passed", "failed", "known"))
    return (
        f"{len(whole)} of {len(ran)} rows that were run hold: {passed} checks passed, {failed} failed, "
        f"{known} show a known fault."
    )


def _page(lines: list[tuple[str, ...]], results: dict[str, Any], seeds: int) -> str:
    later = sum(line[3].startswith("later") for line in lines)
    facts = (
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, commit {_commit()}",
        _machine(),
        f"printed by `python scripts/faults.py --seeds {seeds} --write`",
    )
    parts = [
        ABOUT.strip(),
        f"{_totals(results)} {later} of {len(lines)} rows wait for a part that does not exist yet.",
        "\n".join(f"- {fact}" for fact in facts),
        INVARIANTS.strip(),
    ]
    for group, title in GROUPS.items():
        chosen = [line for line in lines if line[0].startswith(group)]
        parts.append(f"## {group}: {title}\n\n{_markdown(chosen)}")
    return "\n\n".join(parts) + "\n"


def _markdown(lines: list[tuple[str, ...]]) -> str:
    rows = [HEAD, ("---",) * len(HEAD), *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in rows)


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return found.stdout.strip() or "unknown"


def _machine() -> str:
    return (
        f"Python {platform.python_version()}, {platform.system()} {platform.release().split('-')[0]} "
        f"on {platform.machine()}, {os.cpu_count()} cores"
    )


if __name__ == "__main__":
    sys.exit(main())
