"""docs/reference/platforms.md shows what the checks of today showed, on all systems."""

from __future__ import annotations

import pytest

from tests.platforms.checks import GROUPS, all_checks
from tests.platforms.results import PLATFORMS, read_results

CHECKS = {each.name: each for each in all_checks()}


@pytest.mark.parametrize("platform", PLATFORMS)
def test_published_result_has_every_check(platform: str) -> None:
    """A check that is new or reworded is not a claim about a system: run `make windows`, `macos` or `linux`."""
    result = read_results(platform)
    assert result is not None
    assert {each["check"] for each in result["checks"]} == CHECKS.keys()


@pytest.mark.parametrize("platform", PLATFORMS)
def test_published_result_has_no_failure(platform: str) -> None:
    result = read_results(platform)
    assert result is not None
    assert {each["result"] for each in result["checks"]} <= {"works", "message", "gap", "not run"}


def test_every_group_has_checks_and_quick_run_covers_most() -> None:
    assert {each.group for each in CHECKS.values()} == set(GROUPS)
    assert len({each.group for each in CHECKS.values() if each.quick}) >= 7
