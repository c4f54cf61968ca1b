"""Numbers in the README and on the start page match the measurements (scripts/figures.py)."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import figures  # noqa: E402 # a script, found by the path above

PAGES = (figures.README, figures.HOME)
PYTHON = re.compile(r"^```python\n.*?^```$", re.DOTALL | re.MULTILINE)  # programs: CI runs them
TARGET = re.compile(r"\]\([^)]*\)|^\d\. ", re.MULTILINE)  # of a link, and the number of a list item
NUMBER = re.compile(
    r"\d|\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|dozens?|hundreds?)\b", re.IGNORECASE
)
#: Numbers that no measurement changes. Each is checked elsewhere, counts what follows it, or is a name.
OTHER_NUMBERS = (
    "Python 3.11 or newer",  # test_supported_versions_match_the_package
    "Python 3.11 and 3.13",
    "2026-07-28",
    "Apache-2.0",
    "http://127.0.0.1:8765/mcp",
    "order=A-17",
    "Three things we haven't found",
    "a ten-minute tutorial",
    "ten minutes",
    "pay twice",
    "ran twice",
    "things twice",
    "a laptop with a dozen servers",
    "`kill -9`",
    "A2A",
)


def numbers_without_source(page: Path, text: str) -> list[str]:
    """Return each line with a number that is in no sentence of figures.py and no known phrase."""
    text = TARGET.sub("]", PYTHON.sub("", text))
    for sentence in figures.SENTENCES[page]:
        text = figures.pattern(TARGET.sub("]", sentence)).sub("", text)
    for phrase in OTHER_NUMBERS:
        text = text.replace(phrase, "")
    return [line for line in text.splitlines() if NUMBER.search(line)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_numbers_match_the_measurements(page: Path) -> None:
    assert figures.fill(page, page.read_text()) == page.read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_number_has_a_source(page: Path) -> None:
    assert numbers_without_source(page, page.read_text()) == []


def test_changed_number_is_replaced() -> None:
    text = figures.README.read_text()
    wrong = text.replace(figures.figures()["rate"], "99,999")
    assert wrong != text
    assert figures.fill(figures.README, wrong) == text


def test_changed_sentence_is_an_error() -> None:
    text = figures.README.read_text().replace("calls per second and adds", "calls a second and adds")
    with pytest.raises(SystemExit, match="must have this sentence once"):
        figures.fill(figures.README, text)


@pytest.mark.parametrize(
    "claim", ["It is 17 times faster.", "It saves hundreds of calls.", "Used by 3.5 million clients"]
)
def test_number_without_source_is_found(claim: str) -> None:
    assert numbers_without_source(figures.README, figures.README.read_text() + claim + "\n") == [claim]


def test_newer_measurement_changes_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    published = json.loads((ROOT / "bench/workflows/published.json").read_text())
    for row in published["rows"]:
        if row["engine"] == "langgraph":
            row["unsafe_doubled"] = 77
    real = figures._json
    monkeypatch.setattr(figures, "_json", lambda name: published if "workflows" in name else real(name))
    assert "LangGraph 77," in figures.fill(figures.README, figures.README.read_text())


def test_supported_versions_match_the_package() -> None:
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    readme = figures.README.read_text()
    assert package["requires-python"] == ">=3.11" and "Python 3.11 or newer" in readme
    assert (
        "Python 3.11 and 3.13" in readme
        and "with Python 3.11, and a part of it with 3.13" in (ROOT / "docs/reference/platforms.md").read_text()
    )
