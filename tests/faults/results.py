"""What the tests of the fault matrix showed, row by row."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Row:
    """All that is known of one row."""

    tests: set[str] = field(default_factory=set)  # file::function
    seeds: set[int] = field(default_factory=set)
    passed: int = 0
    failed: int = 0
    known: int = 0  # failed as expected: a fault of ours that has a test already
    failures: set[str] = field(default_factory=set)  # the tests that failed, with their parameters
    skipped: list[str] = field(default_factory=list)  # reasons, those of known faults included
    invariants: set[str] = field(default_factory=set)

    def as_json(self) -> dict[str, Any]:
        return {
            "tests": sorted(self.tests),
            "seeds": sorted(self.seeds),
            "passed": self.passed,
            "failed": self.failed,
            "known": self.known,
            "failures": sorted(self.failures),
            "skipped": sorted(set(self.skipped)),
            "invariants": sorted(self.invariants),
        }


class Results:
    """One per session of pytest. Tests say what they check; the hooks of `conftest.py` say the rest."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self._running: tuple[str, ...] = ()

    def lists(self, rows: tuple[str, ...], test: str) -> None:
        for row in rows:
            self.rows.setdefault(row, Row()).tests.add(test)

    def begins(self, rows: tuple[str, ...], seed: int) -> None:
        self._running = rows
        for row in rows:
            self.rows.setdefault(row, Row()).seeds.add(seed)

    def checked(self, *invariants: str) -> None:
        """The test that runs now has checked these."""
        for row in self._running:
            self.rows[row].invariants.update(invariants)

    def ends(self, rows: tuple[str, ...], outcome: str, reason: str = "", test: str = "") -> None:
        for row in (self.rows[name] for name in rows):
            if outcome == "passed":
                row.passed += 1
            elif outcome == "failed":
                row.failed += 1
                row.failures.add(test)
            else:
                row.known += outcome == "known"
                row.skipped.append(reason)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({name: row.as_json() for name, row in self.rows.items()}, indent=1))


results = Results()
