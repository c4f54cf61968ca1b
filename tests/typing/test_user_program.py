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


def run_mypy(program: Path) -> tuple[int, str]:
    """Check a program outside the tree, so no exception for tests applies, with the cache of `make types`."""
    return run(sys.executable, "-m", "mypy", "--strict", str(program))


def test_mypy_strict_accepts_user_program(tmp_path: Path) -> None:
    code, text = run_mypy(Path(shutil.copy(PROGRAM, tmp_path)))
    assert code == 0, text


def test_mypy_detects_a_mistake(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(PROGRAM.read_text().replace("max_attempts=3", "attempts=3"))
    code, text = run_mypy(wrong)
    assert code == 1 and "attempts" in text


@pytest.mark.skipif(not PYRIGHT.exists() and not shutil.which("pyright"), reason="not installed: make pyright")
def test_pyright_accepts_user_program() -> None:
    command = str(PYRIGHT) if PYRIGHT.exists() else "pyright"
    code, text = run(command, "--pythonpath", sys.executable, str(PROGRAM))
    assert code == 0, text
