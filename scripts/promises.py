"""The tables of docs/reference/promises.md, from tests/promises.toml, tests/user_trial.toml and the tests' marks."""

from __future__ import annotations

import ast
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
STATUSES = {"kept": "kept", "different": "different on purpose"}


def read_table() -> dict[str, dict[str, Any]]:
    """Return the items of tests/promises.toml by number."""
    return tomllib.loads((TESTS / "promises.toml").read_text(encoding="utf-8"))


def read_trial() -> dict[str, dict[str, str]]:
    """Return the items of tests/user_trial.toml by number."""
    return tomllib.loads((TESTS / "user_trial.toml").read_text(encoding="utf-8"))


def marked_tests(mark: str = "promise") -> dict[str, list[tuple[str, str]]]:
    """Return (file, test) of every test with this mark, by the arguments of the mark. The tests are not imported."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for file in sorted(TESTS.rglob("test_*.py")):
        source = file.read_text(encoding="utf-8")
        if f"mark.{mark}(" in source:
            name = file.relative_to(ROOT).as_posix()
            for number, test in _marks(ast.parse(source, name), name, f"pytest.mark.{mark}"):
                if (name, test) not in found[number]:
                    found[number].append((name, test))
    return dict(found)


def _marks(tree: ast.Module, file: str, mark: str) -> Iterator[tuple[str, str]]:
    """Yield (number, test) for each mark of a module. A mark of the module has an empty test name."""
    pending: list[tuple[ast.AST, str]] = [(tree, "")]
    while pending:
        node, test = pending.pop(0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            test = node.name
        if isinstance(node, ast.Call) and ast.unparse(node.func) == mark:
            for argument in node.args:
                if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
                    raise SystemExit(f"{file}:{node.lineno}: the arguments of {mark} are plain strings")
                yield argument.value, test
        pending += [(child, test) for child in ast.iter_child_nodes(node)]


def summary() -> str:
    """Return the number of items by status."""
    counts = Counter(item["status"] for item in read_table().values())
    return ", ".join(f"{counts[status]} {text}" for status, text in STATUSES.items() if counts[status]) + "."


def items() -> str:
    """Return the table of all items with their status and tests."""
    tests = marked_tests()
    rows = ["| number | expectation | status | tests |", "|---|---|---|---|"]
    for number, item in read_table().items():
        shown = "<br>".join(_link(*each) for each in tests.get(number, ()))
        rows.append(f"| {number} | {_cell(item['wanted'])} | {STATUSES[item['status']]} | {shown or '–'} |")
    return "\n".join(rows)


def reasons(status: str) -> str:
    """Return the table of the items with this status and their reasons."""
    chosen = {number: item for number, item in read_table().items() if item["status"] == status}
    rows = [f"| {number} | {_cell(item['wanted'])} | {_cell(item['reason'])} |" for number, item in chosen.items()]
    return "\n".join(["| number | expectation | reason |", "|---|---|---|", *rows])


def trial() -> str:
    """Return the table of what new users met, with the tests that show that it is mended."""
    tests = marked_tests("user_trial")
    rows = ["| number | expectation | tests |", "|---|---|---|"]
    for number, item in read_trial().items():
        shown = "<br>".join(_link(*each) for each in tests.get(number, ()))
        rows.append(f"| {number} | {_cell(item['wanted'])} | {shown or _cell(item.get('missing', '–'))} |")
    return "\n".join(rows)


def _link(file: str, test: str) -> str:
    return f"[{test or Path(file).name}](../../{file})"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
