"""The tutorial docs/tutorial/workflows.md: its files and commands, as a reader uses them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("cel_expr_python", reason="the extra toolway[workflows] is not installed")
PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "workflows.md"


def test_tutorial_survives_a_kill_and_pays_once(tmp_path: Path) -> None:
    text = PAGE.read_text()
    for name, kind in (("bank.py", "python"), ("mcp.json", "json"), ("pay.yaml", "yaml")):
        found = re.search(rf"```{kind}\n(.*?)```", text, re.DOTALL)
        assert found is not None
        (tmp_path / name).write_text(found[1].replace('"python3"', json.dumps(sys.executable)))
    environment = {**os.environ, "HOME": str(tmp_path), "TOOLWAY_STATE": str(tmp_path / "state")}
    payments = tmp_path / "payments.txt"

    def start(command: str) -> subprocess.Popen[str]:
        words = command.removesuffix(" &").split()[1:]
        pipe = subprocess.PIPE
        line = [sys.executable, "-m", "toolway.cli", *words]
        return subprocess.Popen(line, cwd=tmp_path, env=environment, stdout=pipe, stderr=pipe, text=True)

    commands = re.findall(r"^\$ (toolway .*)$", text, re.MULTILINE)
    check, run, ls, resume, settle, resume_again = commands
    checked = start(check)
    assert "asks you" in checked.communicate(timeout=120)[0]
    process = start(run)
    deadline = time.monotonic() + 60
    while not payments.exists() or not payments.read_text():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.communicate()
    listed = json.loads(start(f"{ls} --json").communicate(timeout=120)[0])["runs"]
    assert [each["state"] for each in listed] == ["running"]
    out = ""
    for command, code in ((resume, 9), (settle, 0), (resume_again, 0)):
        step = start(command.replace("RUN", listed[0]["id"]))
        out, err = step.communicate(timeout=120)
        assert step.returncode == code, err
    assert json.loads(out) == {"paid": "A-17"}
    assert payments.read_text() == "A-17\n"
