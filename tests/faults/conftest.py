"""Rows, seeds and results of the fault matrix.

`@pytest.mark.fault("A4", "A5")` names the rows that a test covers. Each such test runs with `TOOLWAY_SEEDS` seeds (1)
from `TOOLWAY_FIRST_SEED` (0), and has the fixtures `seed` and `dice`. At the end of the session, the results go as JSON
to the file `TOOLWAY_FAULTS_OUT`, if set.

Most tests wait most of the time, so several sessions may share the machine: `TOOLWAY_SHARE=1/2` runs every second
test, except the tests of the share `0/2`. If TOOLWAY_QUIET is set, these are the tests with `@pytest.mark.alone`, which
need the machine for themselves. Otherwise they are the tests with a fixture for the whole module, such as a cluster, so
that it is started once. Those with `@pytest.mark.dear` start whole programs, and are run with the first few seeds only.

`TOOLWAY_ROWS="A21 A25"` runs only tests that show one of these rows. `TOOLWAY_CASES=1` runs one case of each
parametrised test.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from tests.faults import fault_lab
from tests.faults.results import results
from tests.timing import QUIET

FEW = 3  # seeds for tests that are dear


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fault(*ids): the rows of the fault matrix that this test covers")
    config.addinivalue_line("markers", "alone: nothing else should run on the machine")
    config.addinivalue_line("markers", f"dear: run with the first {FEW} seeds only")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "matrix" in metafunc.definition.path.parts and "seed" not in metafunc.fixturenames:
        metafunc.fixturenames.append("seed")
    if "seed" in metafunc.fixturenames:
        first, count = int(os.environ.get("TOOLWAY_FIRST_SEED", "0")), int(os.environ.get("TOOLWAY_SEEDS", "1"))
        metafunc.parametrize("seed", range(first, first + count))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not (share := os.environ.get("TOOLWAY_SHARE")):
        return
    number, of = (int(part) for part in share.split("/"))
    wanted = [item for item in items if _seed(item) < FEW or not item.get_closest_marker("dear")]
    if rows := set(os.environ.get("TOOLWAY_ROWS", "").split()):
        wanted = [item for item in wanted if rows & set(_rows(item))]
    wanted = _some_cases(wanted, int(os.environ.get("TOOLWAY_CASES") or len(items)))
    first = [item for item in wanted if (item.get_closest_marker("alone") if QUIET else _has_module_fixture(item))]
    taken = set(first)
    others = [item for item in wanted if item not in taken]
    mine = others[number - 1 :: of] if number else first
    chosen = set(mine)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = mine


def _some_cases(items: Sequence[pytest.Item], most: int) -> list[pytest.Item]:
    """Return at most `most` cases of each test; where to begin depends on its name, so all parameters occur."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept: list[pytest.Item] = []
    for name, each in cases.items():
        first = zlib.crc32(name.encode())
        kept += [each[(first + number) % len(each)] for number in range(min(most, len(each)))]
    return kept


def _has_module_fixture(item: pytest.Item) -> bool:
    assert isinstance(item, pytest.Function)
    return any(each[-1].scope == "module" for each in item._fixtureinfo.name2fixturedefs.values())


@pytest.fixture
def dice(seed: int) -> random.Random:
    return random.Random(seed)


def pytest_collection_finish(session: pytest.Session) -> None:
    for item in session.items:
        if rows := _rows(item):
            results.lists(rows, item.nodeid.partition("[")[0])


def pytest_runtest_setup(item: pytest.Item) -> None:
    if rows := _rows(item):
        results.begins(rows, _seed(item))
    fault_lab.begin(item.nodeid, _seed(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    rows = _rows(item)
    if rows and (report.when == "call" or not report.passed):
        known = report.skipped and hasattr(report, "wasxfail")
        results.ends(rows, "known" if known else report.outcome, _reason(report), item.nodeid)
    return report


def pytest_sessionfinish() -> None:
    out = os.environ.get("TOOLWAY_FAULTS_OUT")
    if out:
        results.write(Path(out))


def _rows(item: pytest.Item) -> tuple[str, ...]:
    return tuple(row for mark in item.iter_markers("fault") for row in mark.args)


def _seed(item: pytest.Item) -> int:
    assert isinstance(item, pytest.Function)
    seed = item.callspec.params.get("seed", 0) if hasattr(item, "callspec") else 0
    assert isinstance(seed, int)
    return seed


def _reason(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return f"known fault: {report.wasxfail}"
    return report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""
