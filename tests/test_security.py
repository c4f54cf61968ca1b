"""SECURITY.md and the attacks: every promise has its test, every finding its test or a documented reason."""

from __future__ import annotations

import ast
import importlib.util
import sys
import tomllib
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
BROKEN, WEAK, HELD, ADVISORIES = 11, 19, 79, 55
INTRODUCTION = (
    "Each sentence is held by the tests that [tests/security.toml](tests/security.toml) names. "
    "`make attacks` runs every attack we know."
)


@pytest.fixture(scope="module")
def attacks() -> ModuleType:
    scripts = str(ROOT / "scripts")
    sys.path.insert(0, scripts)
    try:
        spec = importlib.util.spec_from_file_location("attacks", ROOT / "scripts" / "attacks.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(scripts)
    return module


@cache
def functions_of(file: str) -> frozenset[str]:
    path = ROOT / file
    if not path.is_file():
        return frozenset()
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, functions))


def exists(test: str) -> bool:
    file, _, name = test.partition("::")
    return name in functions_of(file)


def test_every_promise_has_tests_that_exist() -> None:
    promises = tomllib.loads((ROOT / "tests" / "security.toml").read_text(encoding="utf-8"))["promise"]
    assert len(promises) > 50
    for promise in promises:
        assert promise["tests"], promise["text"]
        assert [each for each in promise["tests"] if not exists(each)] == [], promise["text"]


def test_page_has_exactly_the_tested_promises(attacks: ModuleType) -> None:
    """Sentence by sentence, under the same topics, in the same order."""
    introduction, *topics = attacks.section("What we promise").split("\n### ")
    assert " ".join(introduction.split()) == INTRODUCTION  # a promise before the first topic would have no test
    shown = {topic: " ".join(text.split()) for topic, _, text in (each.partition("\n") for each in topics)}
    assert len(shown) == len(topics)
    expected: dict[str, list[str]] = {}
    for promise in tomllib.loads((ROOT / "tests" / "security.toml").read_text(encoding="utf-8"))["promise"]:
        expected.setdefault(promise["topic"], []).append(promise["text"])
    assert list(shown.items()) == [(topic, " ".join(texts)) for topic, texts in expected.items()]


def test_page_has_at_most_150_lines() -> None:
    assert len((ROOT / "SECURITY.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_findings_are_complete(attacks: ModuleType) -> None:
    expected = (
        [f"B{n + 1}" for n in range(BROKEN)]
        + [f"W{n + 1}" for n in range(WEAK)]
        + ["BUG", *(f"H{n + 1}" for n in range(4))]
    )
    expected += [f"held-{n + 1}" for n in range(HELD)]
    findings = attacks.read_findings()
    assert [
        finding for finding in findings if not finding.startswith(("R2-", "R3-", "R4-", "A2-"))
    ] == expected  # later rounds
    for finding, entry in findings.items():
        assert entry.keys() <= {"wants", "reason"}, finding
        assert len(entry.get("reason", "a reason that is long enough")) > 20, finding


def test_every_finding_has_a_test_or_a_documented_reason(attacks: ModuleType) -> None:
    marked = attacks.promises.marked_tests("attack")
    findings = attacks.read_findings()
    settled = {finding for finding, entry in findings.items() if "reason" in entry}
    settled |= marked.keys() | attacks.known_weaknesses().keys()
    assert sorted(findings.keys() - settled) == []


def test_every_mark_names_a_finding(attacks: ModuleType) -> None:
    assert attacks.promises.marked_tests("attack").keys() - attacks.read_findings().keys() == set()


def test_every_advisory_has_an_existing_test_or_a_reason() -> None:
    rows = tomllib.loads((ROOT / "tests" / "advisories.toml").read_text(encoding="utf-8"))
    assert list(rows) == [str(number + 1) for number in range(ADVISORIES)]
    for row, entry in rows.items():
        assert entry.keys() - {"tests", "reason"} == {"advisory", "text"}, row
        assert bool(entry.get("tests")) != bool(entry.get("reason")), row
        assert [each for each in entry.get("tests", ()) if not exists(each)] == [], row


def test_every_advisory_test_is_listed(attacks: ModuleType) -> None:
    rows = tomllib.loads((ROOT / "tests" / "advisories.toml").read_text(encoding="utf-8"))
    marked = {
        (row, f"{file}::{name}")
        for row, tests in attacks.promises.marked_tests("advisory").items()
        for file, name in tests
    }
    assert marked - {(row, test) for row, entry in rows.items() for test in entry.get("tests", ())} == set()


def test_linter_rejects_code_that_executes_text() -> None:
    """No eval, exec, pickle, marshal or shell, no tags of YAML, and no template engine that does not escape."""
    lint = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]["lint"]
    rules = {"S102", "S301", "S302", "S307", "S506", "S602", "S604", "S605", "S609", "S701", "S702"}
    assert rules <= set(lint["select"])
    ignored = {*lint["ignore"], *(rule for found in lint["per-file-ignores"].values() for rule in found)}
    assert rules & ignored == set() and "S" not in ignored
