"""The built page is part of the repository: it must be the one that its sources make, and small."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from toolway.outcomes import OUTCOMES
from toolway.upstream.state import StateWord
from toolway.workflows.journal import FINAL_STATES, RUN_STATES

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "src" / "toolway" / "gateway" / "pages"


def test_built_page_matches_its_sources():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "dashboard.py", "check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_built_page_is_small():
    assert sum(len(gzip.compress(file.read_bytes())) for file in PAGES.iterdir()) < 130_000


def test_sources_insert_no_raw_markup():
    for file in (ROOT / "dashboard" / "src").rglob("*.ts*"):
        text = file.read_text()
        for forbidden in ("dangerouslySetInnerHTML", "innerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert forbidden not in text, (file, forbidden)


def test_packages_are_pinned_without_addresses():
    lock = (ROOT / "dashboard" / "package-lock.json").read_text()
    assert '"integrity": "sha512-' in lock and '"resolved"' not in lock
    assert "^" not in (ROOT / "dashboard" / "package.json").read_text()


def test_page_knows_every_run_state():
    states = {page: set(_list_of("STATES", f"pages/{page}.tsx")) for page in ("runs", "agents")}
    assert states["runs"] == RUN_STATES - {"ready"}  # it lasts only until the run is taken
    assert states["agents"] == states["runs"] - {"undoing", "undone"}  # an agent undoes nothing
    tones = dict(
        re.findall(r'(\w+): "(\w+)"', _source("components/run_list.tsx").partition("TONES")[2].partition("}")[0])
    )
    assert {state for state in FINAL_STATES if tones.get(state) == "bad"} == {"failed", "stuck", "damaged"}


def _source(name: str) -> str:
    return (ROOT / "dashboard" / "src" / name).read_text()


def _list_of(name: str, file: str) -> list[str]:
    return re.findall(r'"(\w+)"', _source(file).partition(f"const {name} = [")[2].partition("]")[0])


@pytest.mark.user_trial("9", "11")
def test_page_knows_every_outcome_and_server_state():
    source = _source("format.ts")
    outcomes = source.partition("OUTCOME_TONES: Record<OutcomeWord, Tone> = {")[2].partition("}")[0]
    assert {word.strip('"') for word in re.findall(r'("[\w ]+"|\w+):', outcomes)} == {each.word for each in OUTCOMES}
    states = source.partition("const STATES: Record<string, Tone> = {")[2].partition("}")[0]
    assert set(re.findall(r"(\w+):", states)) == set(get_args(StateWord))


@pytest.mark.user_trial("9")
def test_menu_counts_calls_waiting_for_approval():
    assert 'to === "/approvals" && waiting > 0 && <span className="count"' in _source("app.tsx")
