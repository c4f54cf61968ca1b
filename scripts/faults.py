"""Run the fault matrix and print one line of results per row.

    python scripts/faults.py [--seeds N] [--jobs N] [--groups LETTERS] [--rows NAMES] [--cases N] [--write]

Each seed is one round: `--jobs` pytest sessions in parallel, then the tests that must run alone. Failed tests run once
more, alone, and are marked. A crashed session affects only its own tests and is counted. `--write` writes the table to
docs/reliability.md; with `--groups F` only the section of this group, with the date of that run; with
`--rows "A21 A25"` only these rows. Exit code 1 if a test failed or a session crashed.

If TOOLWAY_QUIET is empty, as in CI, bounds on elapsed time are ten times as long (tests/timing.py), and no test must
run alone. Then one more session next to the others runs the tests that share a cluster or a database
(tests/faults/conftest.py).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import promises

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "reliability.md"
SESSION_TIMEOUT_S: Final = 1200.0  # seconds per session
NO_TESTS_EXIT_CODE: Final = 5  # exit code of pytest if a share contains no tests
HEAD: Final = ("row", "what", "seeds", "passed", "invariants")
GROUPS: Final = {
    "A": "stdio",
    "B": "HTTP and SSE",
    "C": "callers",
    "D": "host and storage",
    "E": "no handshake",
    "F": "workflow and agent runs",
    "W": "WebSocket",
}
ABOUT: Final = """\
# Reliability

Faults that the tests inject, and the guarantees that still hold. Every row is one fault. Its tests cause it with
real processes and sockets, next to a healthy server that is called all the time. A section that names its own date
was run at that date; each other section at the date below.
"""
INVARIANTS: Final = """\
After every row, the invariants named in its last column were checked:

- **I1** each call has exactly one outcome, at most one second after its deadline
- **I2** a result reaches the call it belongs to, and no other
- **I3** a non-idempotent effect happens at most once, and exactly once if its call returned a result
- **I4** an effect that happened is never reported as not executed
- **I5** a healthy server next to the faulty one has no errors, and its p99 latency grows by at most 50 ms
- **I6** tasks, descriptors and processes return to their initial number within 10 s
- **I7** memory stays within the limit of the row
- **I9** the audit log, if enabled, is complete: no record was changed, and none is missing
"""


def main() -> int:
    options = _options()
    results: dict[str, Any] = {}
    crashed = 0
    for seed in range(options.seeds):
        crashed += _round(seed, options, results)
    results = {row: each for row, each in results.items() if _is_wanted(row, options)}
    if not results:
        print("no pytest session produced results", file=sys.stderr)
        return 1
    lines = [line for line in _lines(_behaviors(), results) if _is_wanted(line[0], options)]
    print(_table(lines))
    print(_totals(results, crashed))
    if options.write:
        if options.rows:
            PAGE.write_text(_replace_rows(PAGE.read_text(), lines, results, crashed, options))
        elif options.groups:
            PAGE.write_text(_replace_sections(PAGE.read_text(), lines, results, crashed, options))
        else:
            PAGE.write_text(_page(lines, results, crashed, options.seeds))
    return 1 if crashed or any(row["failed"] for row in results.values()) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run the fault matrix and print one line of results per row.")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="number of seeds per test (1)")
    parser.add_argument("--jobs", type=int, default=3, metavar="N", help="parallel pytest sessions (3)")
    parser.add_argument("--only", default="", metavar="EXPRESSION", help="only tests that match (pytest -k)")
    parser.add_argument("--groups", default="", metavar="LETTERS", help=f"only these groups, of {''.join(GROUPS)}")
    parser.add_argument("--rows", default="", metavar="NAMES", help='only these rows, such as "A21 A25"')
    parser.add_argument("--cases", type=int, metavar="N", help="at most N cases of each parametrised test (all)")
    parser.add_argument("--write", action="store_true", help="write docs/reliability.md")
    options = parser.parse_args()
    if set(options.groups) - set(GROUPS):
        parser.error(f"--groups takes letters of {''.join(GROUPS)}")
    if unknown := set(options.rows.split()) - set(_behaviors()):
        parser.error(f"unknown rows: {', '.join(sorted(unknown))}")
    if options.write and (options.only or options.cases):
        parser.error("--write needs whole groups: use --groups or --rows instead of --only and --cases")
    os.environ["TOOLWAY_ROWS"] = options.rows  # for the pytest sessions
    os.environ["TOOLWAY_CASES"] = str(options.cases or "")  # for the pytest sessions
    return options


def _is_wanted(row: str, options: argparse.Namespace) -> bool:
    return row in options.rows.split() if options.rows else row[0] in (options.groups or GROUPS)


def _round(seed: int, options: argparse.Namespace, results: dict[str, Any]) -> int:
    """Run all tests with one seed, add to `results`, and return the number of crashed sessions."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        results_of_sessions: list[dict[str, Any] | None] = []
        for numbers in _turns(options.jobs):
            sessions = [
                Session(Path(folder), seed, f"{number}/{options.jobs}", options.only, _files(options.groups))
                for number in numbers
            ]
            results_of_sessions += [session.wait() for session in sessions]
        round_results: dict[str, Any] = {}
        for found in results_of_sessions:
            _add(round_results, found or {})
        _repeat_failed(Path(folder), seed, round_results)
        _add(results, round_results)
    failed = sum(row["failed"] for row in results.values())
    print(f"seed {seed}: {time.monotonic() - began:.0f} s, {failed} failed so far", file=sys.stderr, flush=True)
    return results_of_sessions.count(None)


def _repeat_failed(folder: Path, seed: int, results: dict[str, Any]) -> None:
    """Run failed tests once more, alone, because parallel sessions can disturb tests that measure time.

    A test that passes then counts as passed, and as passed at the second attempt.
    """
    failures = sorted({test for row in results.values() for test in row["failures"]})
    found = Session(folder, seed, "", "", failures).wait() if failures else None
    for name, row in results.items():
        passed = (found or {}).get(name, {}).get("passed", 0)
        row["failed"] -= passed
        row["passed"] += passed
        row["again"] = passed


def _turns(jobs: int) -> list[list[int]]:
    """Return the shares that run side by side, turn after turn: on a quiet machine, share 0 runs alone."""
    shares = list(range(1, jobs + 1))
    return [shares, [0]] if os.environ.get("TOOLWAY_QUIET") else [[0, *shares]]


def _files(groups: str) -> list[str]:
    """Return the files with the tests of some groups; the folder of all tests if `groups` is empty."""
    if not groups:
        return [str(Path("tests", "faults", "matrix"))]
    return sorted(
        {file for row, tests in promises.marked_tests("fault").items() if row[0] in groups for file, _ in tests}
    )


class Session:
    """One pytest run over a share of the tests. Its output is printed to stderr when it ends."""

    def __init__(self, folder: Path, seed: int, share: str, only: str, tests: Sequence[str]) -> None:
        self._name = f"seed {seed}, {f'share {share}' if share else 'once more'}"
        self._out = folder / f"{share.replace('/', '-') or 'again'}.json"
        self._output = self._out.with_suffix(".txt").open("w+")
        environ = {
            **os.environ,
            "TOOLWAY_FIRST_SEED": str(seed),
            "TOOLWAY_SEEDS": "1",
            "TOOLWAY_SHARE": share,
            "TOOLWAY_FAULTS_OUT": str(self._out),
        }
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-m", "", *tests, "-k", only]
        command += ["-p", "no:cacheprovider"]  # parallel sessions would share the cache
        self._process = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=self._output, stderr=self._output)

    def wait(self) -> dict[str, Any] | None:
        """Wait for the end and return the results by row, or None if the session crashed."""
        try:
            code = self._process.wait(SESSION_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        with self._output:
            self._output.seek(0)
            print(f"{self._name}\n{self._output.read()}", file=sys.stderr, flush=True)
        if code in (0, 1, NO_TESTS_EXIT_CODE) and self._out.exists():
            found: dict[str, Any] = json.loads(self._out.read_text())
            return found
        return None


def _add(results: dict[str, Any], found: dict[str, Any]) -> None:
    for name, row in found.items():
        known = results.setdefault(name, {key: type(value)() for key, value in row.items()})
        for key, value in row.items():
            known[key] = sorted({*known[key], *value}) if isinstance(value, list) else known[key] + value


def _behaviors() -> dict[str, Any]:
    with open(ROOT / "tests" / "behaviors.toml", "rb") as file:
        return tomllib.load(file)


def _lines(behaviors: dict[str, Any], results: dict[str, Any]) -> list[tuple[str, ...]]:
    return [_line(row, entry, results.get(row)) for row, entry in behaviors.items()]


def _line(row: str, entry: dict[str, Any], result: dict[str, Any] | None) -> tuple[str, ...]:
    if "later" in entry:
        return row, entry["text"], "–", f"later: {entry['later']}", ""
    if result is None or not result["seeds"]:
        return row, entry["text"], "–", "not run", ""
    passed = f"{result['passed']}/{result['passed'] + result['failed'] + result['known']}"
    again = [f"{result['again']} of them at the second attempt"] if result["again"] else []
    passed = "; ".join([passed, *again, *result["skipped"]])
    return row, entry["text"], str(len(result["seeds"])), passed, _short(result["invariants"])


def _short(invariants: list[str]) -> str:
    """Shorten I1 I2 I3 I5 to I1-I3 I5."""
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


def _totals(results: dict[str, Any], crashed: int) -> str:
    ran = [row for row in results.values() if row["seeds"]]
    whole = [row for row in ran if row["passed"] and not row["failed"] and not row["known"]]
    passed, failed, known, again = (sum(row[key] for row in ran) for key in ("passed", "failed", "known", "again"))
    return (
        f"{len(whole)} of {len(ran)} executed rows hold: {passed} checks passed, {again} of them at the second "
        f"attempt, run alone; {failed} failed, "
        f"{known} show a known fault{f', {crashed} sessions crashed' if crashed else ''}."
    )


def _page(lines: list[tuple[str, ...]], results: dict[str, Any], crashed: int, seeds: int) -> str:
    later = sum(line[3].startswith("later") for line in lines)
    parts = [
        ABOUT.strip(),
        f"{_totals(results, crashed)} {later} of {len(lines)} rows need a feature that does not exist yet.",
        _facts(f"--seeds {seeds} --write"),
        INVARIANTS.strip(),
        *(_section(group, lines) for group in GROUPS),
    ]
    return "\n\n".join(parts) + "\n"


def _replace_sections(
    page: str, lines: list[tuple[str, ...]], results: dict[str, Any], crashed: int, options: argparse.Namespace
) -> str:
    """Return the page with new sections for the groups that were run. Each says when and how it was run."""
    head, *old = page.split("\n## ")
    sections = {section[0]: f"## {section.strip()}" for section in old}
    whole_run = head.partition("After every row")[0].strip().split("\n\n")[-2:]  # its totals and facts
    for group in options.groups:
        totals = _totals({row: each for row, each in results.items() if row[0] == group}, crashed)
        facts = _facts(f"--seeds {options.seeds} --groups {options.groups} --write")
        sections[group] = _section(group, lines, f"{totals}\n\n{facts}\n\n")
    parts = [ABOUT.strip(), *whole_run, INVARIANTS.strip(), *(sections[group] for group in GROUPS if group in sections)]
    return "\n\n".join(parts) + "\n"


def _replace_rows(
    page: str, lines: list[tuple[str, ...]], results: dict[str, Any], crashed: int, options: argparse.Namespace
) -> str:
    """Return the page with new lines for the rows that were run, and with the date and totals of this run."""
    for line in lines:
        row = _markdown_row(line).replace("\\", "\\\\")  # a backslash has a meaning in the replacement
        page = re.sub(rf"^\| {line[0]} \|.*$", row, page, flags=re.MULTILINE)
    later = len(re.findall(r"^\|.*\| later: ", page, re.MULTILINE))
    page = re.sub(r"\d+ of (\d+) rows need a feature", rf"{later} of \1 rows need a feature", page)
    names = ", ".join(line[0] for line in lines)
    dates, _, command = _facts(f'--seeds {options.seeds} --rows "{options.rows}" --write').splitlines()
    fact = f"- rows {names}: {dates[2:]}, {command[2:]}: {_totals(results, crashed)}"
    kept = re.sub(rf"^- rows {re.escape(names)}: .*\n", "", page, flags=re.MULTILINE)
    return re.sub(r"^(- printed by `.*`)$", lambda found: f"{found[1]}\n{fact}", kept, count=1, flags=re.MULTILINE)


def _section(group: str, lines: list[tuple[str, ...]], about: str = "") -> str:
    chosen = [line for line in lines if line[0].startswith(group)]
    return f"## {group}: {GROUPS[group]}\n\n{about}{_markdown(chosen)}"


def _facts(arguments: str) -> str:
    facts = (
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, commit {_commit()}",
        _machine(),
        f"printed by `python scripts/faults.py {arguments}`",
    )
    return "\n".join(f"- {fact}" for fact in facts)


def _markdown(lines: list[tuple[str, ...]]) -> str:
    return "\n".join(map(_markdown_row, (HEAD, ("---",) * len(HEAD), *lines)))


def _markdown_row(line: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"


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
