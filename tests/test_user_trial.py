"""Every item of what new users met has a test, or says what is missing, and every mark names an item."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def promises() -> ModuleType:
    spec = importlib.util.spec_from_file_location("promises", ROOT / "scripts" / "promises.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_table_has_35_items_with_a_sentence(promises: ModuleType) -> None:
    table = promises.read_trial()
    assert list(table) == [str(number) for number in range(1, 36)]
    for number, item in table.items():
        assert item["wanted"].endswith("."), number
        assert item.keys() <= {"wanted", "missing"}, number


def test_every_item_has_a_test_or_a_missing_note(promises: ModuleType) -> None:
    shown = promises.marked_tests("user_trial")
    table = promises.read_trial()
    assert [number for number, item in table.items() if "missing" not in item and number not in shown] == []


def test_every_mark_names_an_item(promises: ModuleType) -> None:
    assert set(promises.marked_tests("user_trial")) <= set(promises.read_trial())
