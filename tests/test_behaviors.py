"""Every row of the fault matrix is listed with the tests that show it, and every test that shows one is listed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROWS = {"A": 29, "B": 30, "C": 14, "D": 18, "E": 8, "F": 30, "W": 13}


@pytest.fixture(scope="module")
def listed() -> dict[str, Any]:
    with open(ROOT / "tests" / "behaviors.toml", "rb") as file:
        return tomllib.load(file)


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The rows that tests say they show, as pytest collects them."""
    out = tmp_path_factory.mktemp("rows") / "rows.json"
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", "tests/faults"]
    environ = {**os.environ, "TOOLWAY_FAULTS_OUT": str(out)}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout
    return {row: set(found["tests"]) for row, found in json.loads(out.read_text()).items()}


def test_every_row_is_listed_once_and_in_order(listed: dict[str, Any]):
    assert list(listed) == [f"{group}{number + 1}" for group, count in ROWS.items() for number in range(count)]


def test_every_row_has_a_sentence_and_either_tests_or_a_reason(listed: dict[str, Any]):
    for row, entry in listed.items():
        assert entry["text"], row
        assert entry.keys() <= {"text", "tests", "later"}, row
        assert bool(entry.get("tests")) != bool(entry.get("later")), row


def test_every_listed_test_exists_with_the_mark_of_its_row(listed: dict[str, Any], marked: dict[str, set[str]]):
    missing = {row: set(entry.get("tests", ())) - marked.get(row, set()) for row, entry in listed.items()}
    assert {row: tests for row, tests in missing.items() if tests} == {}


def test_every_marked_test_is_listed(listed: dict[str, Any], marked: dict[str, set[str]]):
    unlisted = {row: tests - set(listed.get(row, {}).get("tests", ())) for row, tests in marked.items()}
    assert {row: tests for row, tests in unlisted.items() if tests} == {}
