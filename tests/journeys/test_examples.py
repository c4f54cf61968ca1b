"""The programs in examples/journeys: each follows one way of working with servers from start to end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "journeys"
LIBRARIES = {"toolway.workflows": "cel_expr_python", "toolway.agents": "pydantic_ai"}


def printed_in(program: str) -> list[str]:
    """Return the lines that the comments behind `print` announce; `…` stands between lines, or for the rest of one."""
    shown = re.findall(r"^ *print\(.*\)  # (.*)$", program, re.MULTILINE)
    return [line for each in shown for line in re.split(r" … (?=\S)", each)]


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda file: file.stem)
def test_journey_prints_the_output_in_its_comments(file: Path, tmp_path: Path) -> None:
    program = file.read_text(encoding="utf-8")
    for module, library in LIBRARIES.items():
        if f"from {module} import" in program:
            pytest.importorskip(library, reason=f"an extra of Toolway is not installed: {library}")
    done = subprocess.run(
        [sys.executable, str(file)],
        cwd=tmp_path,
        env={**os.environ, "OPENAI_API_KEY": "none"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    printed, expected = done.stdout.splitlines(), printed_in(program)
    assert len(printed) == len(expected) > 2
    for line, shown in zip(printed, expected, strict=True):
        assert line == shown or (shown.endswith(" …") and line.startswith(shown.removesuffix(" …")))


def test_there_are_five_journeys() -> None:
    assert len(list(FOLDER.glob("*.py"))) == 5
