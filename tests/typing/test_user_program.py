"""Type checkers accept a program of a user over the public names."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("user_program.py")
ROOT = PROGRAM.parents[2]
PYRIGHT = ROOT / ".pyright" / "node_modules" / ".bin" / "pyright"  # installed by `make pyright`


def run(*command: str) -> tuple[int, str]:
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    return result.returncode, result.stdout + result.stderr


@pytest.fixture(scope="module")
def mypy(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command, with one cache for all tests here: without one, each would check all of Toolway."""
    cache = tmp_path_factory.mktemp("mypy")
    return [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={cache}"]


def test_mypy_strict_accepts_it(mypy: list[str]) -> None:
    code, text = run(*mypy, str(PROGRAM))
    assert code == 0, text


def test_mypy_sees_a_mistake(mypy: list[str], tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(PROGRAM.read_text().replace("max_attempts=3", "attempts=3"))
    code, text = run(*mypy, str(wrong))
    assert code == 1 and "attempts" in text


@pytest.mark.skipif(not PYRIGHT.exists() and not shutil.which("pyright"), reason="not installed: make pyright")
def test_pyright_accepts_it() -> None:
    command = str(PYRIGHT) if PYRIGHT.exists() else "pyright"
    code, text = run(command, "--pythonpath", sys.executable, str(PROGRAM))
    assert code == 0, text
