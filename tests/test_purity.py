"""The core takes time, chance and the world from outside: what it may not touch by itself, by its syntax."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "toolway"
NOT_PURE = {SOURCE / "middleware" / "idempotency_sqlite.py"}  # a file, with its lock and its clock
PURE = sorted(
    [
        *({*SOURCE.glob("middleware/**/*.py")} - NOT_PURE),
        *SOURCE.glob("protocol/**/*.py"),
        *SOURCE.glob("parts/openapi/document/**/*.py"),
        SOURCE / "catalog" / "catalog.py",
        SOURCE / "hub" / "call_policy.py",
        SOURCE / "http" / "exchange.py",
        SOURCE / "parts" / "identity" / "access_tokens.py",
        *(SOURCE / "upstream" / f"{name}.py" for name in ("state", "start_policy", "error_mapping", "lists", "status")),
        SOURCE / "upstream" / "transports" / "http_responses.py",
    ]
)
WAITING = {SOURCE / "upstream" / "lists.py": "ListSync"}  # the one class of a pure module that may wait by itself
WORLD = frozenset({"time", "random", "socket", "secrets", "os", "subprocess"})
WAITS_AND_CLOCKS = frozenset(
    {"asyncio.sleep", "datetime.now", "datetime.utcnow", "datetime.today", "date.today", "uuid.uuid1", "uuid.uuid4"}
)


def impurities(source: str, waiting: str | None = None) -> list[str]:
    """What a module does that it may not, each with its line. The class `waiting` may use `asyncio.sleep`."""
    tree = ast.parse(source)
    excused = {id(each) for node in tree.body if _is_class(node, waiting) for each in ast.walk(node) if _sleeps(each)}
    nodes = [node for node in ast.walk(tree) if id(node) not in excused]
    return [f"{line}: {what}" for node in nodes for line, what in (*_imports(node), *_uses(node))]


def _is_class(node: ast.AST, name: str | None) -> bool:
    return isinstance(node, ast.ClassDef) and node.name == name


def _sleeps(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and _dotted(node) == "asyncio.sleep"


def _imports(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        module = node.module or ""
        names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
    else:
        return
    for name in names:
        if name.partition(".")[0] in WORLD or _forbidden(name):
            yield node.lineno, f"imports {name}"


def _uses(node: ast.AST) -> Iterator[tuple[int, str]]:
    name = _dotted(node)
    if isinstance(node, ast.Attribute) and (_forbidden(name) or name.partition(".")[0] in WORLD):
        yield node.lineno, f"uses {name}"


def _forbidden(name: str) -> bool:
    return any(name == each or name.endswith(f".{each}") for each in WAITS_AND_CLOCKS)


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return ""


@pytest.mark.parametrize("path", PURE, ids=[str(path.relative_to(SOURCE)) for path in PURE])
def test_core_uses_no_clock_chance_or_world(path: Path) -> None:
    assert impurities(path.read_text(), WAITING.get(path)) == []


def test_modules_that_must_be_pure_exist() -> None:
    assert len(PURE) > 40
    assert [path for path in (*PURE, *NOT_PURE) if not path.is_file()] == []


def test_every_exception_is_needed() -> None:
    assert [path for path in NOT_PURE if not impurities(path.read_text())] == []
    assert [path for path in WAITING if not impurities(path.read_text())] == []


def test_waiting_class_excuses_only_its_own_waits() -> None:
    source = "import asyncio, time\nclass A:\n    x = asyncio.sleep\n    y = time.time\nclass B:\n    x = asyncio.sleep"
    assert impurities(source, "A") == ["1: imports time", "4: uses time.time", "6: uses asyncio.sleep"]


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import os.path",
        "from os import environ",
        "import random as chance",
        "from secrets import token_hex",
        "def f():\n    import socket",
        "import subprocess, json",
        "from asyncio import sleep",
        "import asyncio\nasync def f():\n    await asyncio.sleep(0)",
        "import asyncio\nwait = asyncio.sleep",
        "from datetime import datetime\nx = datetime.now()",
        "import datetime\nx = datetime.datetime.now()",
        "x = time.monotonic()",
        "x = random.random()",
        "import uuid\nx = uuid.uuid4()",
    ],
)
def test_lint_finds_impure_code(source: str) -> None:
    assert impurities(source)


@pytest.mark.parametrize(
    "source",
    [
        "from datetime import UTC, datetime\nx = datetime.fromisoformat('2026-01-01')",
        "from email.utils import parsedate_to_datetime",
        "import asyncio\nasync def f(now, sleep, self):\n    await sleep(self.time())\n    self.random = now()",
        "async def f(loop):\n    async with asyncio.timeout_at(loop.time()):\n        pass",
        '"""time.time() and os.environ are for others."""',
    ],
)
def test_lint_accepts_pure_code(source: str) -> None:
    assert impurities(source) == []
