"""Run every test with an `attack` mark and print a line for each finding: mended, held, known or FAILED.

    python scripts/attacks.py           all tests with the mark
    python scripts/attacks.py --here    only those in tests/attacks

Other arguments go to pytest. The findings are in tests/attacks/findings.toml, known weaknesses in SECURITY.md.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections import Counter, defaultdict
from pathlib import Path

import promises
import pytest

ROOT = Path(__file__).resolve().parent.parent


def read_findings() -> dict[str, dict[str, str]]:
    """Return the findings of tests/attacks/findings.toml by id."""
    return tomllib.loads((ROOT / "tests" / "attacks" / "findings.toml").read_text(encoding="utf-8"))


def section(title: str) -> str:
    """Return the text of a section of SECURITY.md, or nothing if there is none."""
    _, _, rest = (ROOT / "SECURITY.md").read_text(encoding="utf-8").partition(f"\n## {title}\n")
    return rest.partition("\n## ")[0]


def known_weaknesses() -> dict[str, str]:
    """Return the reason of each weakness that SECURITY.md documents, by id."""
    return {
        each: line
        for line in section("Known weaknesses").splitlines()
        if line.startswith("- ")
        for each in re.findall(r"\b(?:[BW]\d+|BUG|held-\d+)\b", line)
    }


class Outcomes:
    """pytest plugin that counts the outcomes of tests by finding."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        self._ids: dict[str, list[str]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            self._ids[item.nodeid] = [str(each) for mark in item.iter_markers("attack") for each in mark.args]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            for each in self._ids.get(report.nodeid, ()):
                self.counts[each][report.outcome] += 1


def verdict(finding: str, counts: Counter[str], known: str, reason: str) -> str:
    """Return the word for a finding, from the outcomes of its tests."""
    if counts["failed"]:
        return "FAILED"
    if counts["passed"]:
        return "held" if "held" in finding else "mended"
    if counts["skipped"]:
        return "skipped"
    return "known" if known else "no test" if reason else "MISSING"


def main(arguments: list[str]) -> int:
    here = "--here" in arguments
    tests = {test for found in promises.marked_tests("attack").values() for test in found}
    files = sorted({file for file, _ in tests if not here or file.startswith("tests/attacks/")})
    outcomes = Outcomes()
    rest = [each for each in arguments if each != "--here"]
    code = int(pytest.main(["-q", "-m", "attack", *rest, *(str(ROOT / each) for each in files)], [outcomes]))
    known = known_weaknesses()
    verdicts: Counter[str] = Counter()
    print()
    for finding, entry in read_findings().items():
        counts = outcomes.counts[finding]
        word = verdict(finding, counts, known.get(finding, ""), entry.get("reason", ""))
        if here and word == "MISSING":
            continue
        verdicts[word] += 1
        number = sum(counts.values())
        print(f"{finding:9} {word:8} {number:3} {'test ' if number == 1 else 'tests'}  {entry['wants']}")
    print("\n" + ", ".join(f"{number} {word}" for word, number in verdicts.most_common()))
    return code or int(bool(verdicts["FAILED"] or verdicts["MISSING"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
