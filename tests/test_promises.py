"""Every item of the promises table has a test that shows it, or a reason, and every mark names an item."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
ITEMS = {"A": 10, "B": 19, "C": 10, "D": 13, "E": 6}
KEYS = {"kept": set(), "different": {"reason"}}


@pytest.fixture(scope="module")
def promises() -> ModuleType:
    spec = importlib.util.spec_from_file_location("promises", ROOT / "scripts" / "promises.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_item_has_a_sentence_and_needed_reason(promises: ModuleType) -> None:
    table = promises.read_table()
    assert {group: sum(number[0] == group for number in table) for group in ITEMS} == ITEMS
    for number, item in table.items():
        assert item["wanted"].endswith("."), number
        assert item.keys() == {"wanted", "status"} | KEYS[item["status"]], number
        assert len(item.get("reason", "a reason that is long enough")) > 20, number


def test_every_kept_or_different_item_has_a_test(promises: ModuleType) -> None:
    shown = promises.marked_tests()
    table = promises.read_table()
    assert [n for n, item in table.items() if item["status"] in ("kept", "different") and n not in shown] == []


def test_every_mark_names_an_item(promises: ModuleType) -> None:
    table = promises.read_table()
    assert {number: tests for number, tests in promises.marked_tests().items() if number not in table} == {}


def test_marks_of_functions_parameters_and_modules_are_found(
    promises: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """
import pytest
pytestmark = [pytest.mark.anyio, pytest.mark.promise("M1")]
@pytest.mark.promise("F1", "F2")
async def test_one(): ...
class TestGroup:
    @pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.promise("P1"))])
    def test_two(self, x): ...
"""
    (tmp_path / "test_marks.py").write_text(source)
    monkeypatch.setattr(promises, "ROOT", tmp_path)
    monkeypatch.setattr(promises, "TESTS", tmp_path)
    file = "test_marks.py"
    expected = {"M1": [(file, "")], "F1": [(file, "test_one")], "F2": [(file, "test_one")], "P1": [(file, "test_two")]}
    assert promises.marked_tests() == expected
