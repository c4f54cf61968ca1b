"""docs/explanation/comparison.md: each cell has a source and a recent date, and no number on the page is typed."""

from __future__ import annotations

import copy
import datetime
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import comparison  # noqa: E402 # a script, found by the path above

TODAY = datetime.datetime.now(datetime.UTC).date()


@pytest.fixture
def sources() -> comparison.Sources:
    """Everything that the page is made from, as copies that a test may change."""
    return copy.deepcopy(comparison.Sources.read())


def test_every_cell_has_a_source_and_a_recent_date() -> None:
    assert comparison.problems(comparison.Sources.read().data, TODAY) == []


def test_every_row_has_a_cell_for_every_project(sources: comparison.Sources) -> None:
    for row in sources.data["row"]:
        assert row.keys() == {"title", "group", *sources.data["projects"]}, row["title"]
        assert all(row[project]["value"] for project in sources.data["projects"]), row["title"]


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        ({"source": ""}, "source"),
        ({"source": "docs/explanation/no-such-page.md"}, "source"),
        ({"source": "https://github.com/stacklok/toolhive/blob/main/README.md"}, "version"),
        ({"checked": TODAY - datetime.timedelta(days=91)}, "90 days"),
        ({"checked": "2026-11-18"}, "day"),
        ({"value": "?", "note": ""}, "note"),
    ],
)
def test_cell_without_proof_is_a_problem(sources: comparison.Sources, cell: dict[str, Any], problem: str) -> None:
    row = sources.data["row"][4]
    row["toolhive"].update(cell)
    assert [each for each in comparison.problems(sources.data, TODAY) if problem in each and row["title"] in each]


def test_claim_about_others_without_source_is_a_problem(sources: comparison.Sources) -> None:
    sources.data["elsewhere"][0]["sources"].clear()
    assert len(comparison.problems(sources.data, TODAY)) == 1


def test_date_90_days_ago_is_recent_enough(sources: comparison.Sources) -> None:
    oldest = min(cell["checked"] for row in sources.data["row"] for cell in row.values() if isinstance(cell, dict))
    assert comparison.problems(sources.data, oldest + datetime.timedelta(days=90)) == []
    assert comparison.problems(sources.data, oldest + datetime.timedelta(days=91)) != []


@pytest.mark.user_trial("13")
def test_page_matches_the_data() -> None:
    assert comparison.PAGE.read_text(encoding="utf-8") == comparison.page()


def test_changed_cell_changes_the_page(sources: comparison.Sources) -> None:
    row = sources.data["row"][4]
    row["mcphub"]["value"] = "in the next version"
    assert f"| {row['title']} | yes |" in comparison.page(sources)
    assert "| in the next version |" in comparison.page(sources)


def test_new_figures_change_every_speed_number(sources: comparison.Sources) -> None:
    """Multiplied figures leave no number in the text about speed but those that are part of a name or of the method."""

    def numbers(text: str) -> list[str]:
        without_dates = re.sub(r"\d{4}-\d\d-\d\d", "", text.partition("## Speed")[2])
        return re.findall(r"(?<![\w,.-])\d[\d,.]*\d(?: s)?", without_dates)

    before = comparison.page(sources)
    for row in sources.figures["rows"]:
        for key in ("rate", "seconds"):
            if row.get(key):
                row[key] *= 3
    sources.figures["date"] = "2030-01-01"
    after = comparison.page(sources)
    assert set(numbers(before)) & set(numbers(after)) == {str(comparison.CONNECTIONS), "200"}
    assert "2030-01-01, [method" in after
    assert len(numbers(before)) > 15


def test_doubled_step_is_on_the_page(sources: comparison.Sources) -> None:
    row = next(row for row in sources.workflows["rows"] if row["engine"] == "toolway-sqlite")
    row["unsafe_doubled"] = 7
    assert f"7 of {row['unsafe']} unsafe steps ran twice" in comparison.page(sources)


def test_bridge_with_errors_does_not_count(sources: comparison.Sources) -> None:
    for row in sources.figures["rows"]:
        if row["peer"] == "fastmcp" and row["behind"] == "http legacy":
            row["errors"] = 3
    shown = next(
        line for line in comparison.page(sources).splitlines() if line.startswith("| New client, old server: t")
    )
    assert [cell.strip() for cell in shown.split("|")][2:4] == ["yes", "–"]


def test_client_count_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "CLIENTS", dict.fromkeys(map(str, range(99))))
    assert comparison.page().count("99 clients") == 2


def test_every_measured_project_has_its_measured_version(sources: comparison.Sources) -> None:
    row = next(row for row in sources.data["row"] if row["title"] == "Version we measured")
    measured = {project for project in sources.data["projects"] if project in sources.figures["peers"]}
    assert {project for project in sources.data["projects"] if row[project]["value"].startswith("%")} == measured


def test_publishing_status_matches_the_roadmap(sources: comparison.Sources) -> None:
    row = next(row for row in sources.data["row"] if row["title"] == "Published packages")
    planned = "PyPI" in (ROOT / "ROADMAP.md").read_text(encoding="utf-8")
    assert (row["toolway"]["value"] == "not yet") == planned
