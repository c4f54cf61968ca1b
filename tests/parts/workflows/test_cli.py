"""`toolway workflow`, as a user uses it: run, approve, kill -9, settle, resume."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.workflows.effect_server import read_effects
from tests.workflows.kill_runner import SERVER_FILE

pytest.importorskip("cel_expr_python", reason="the extra toolway[workflows] is not installed")
FLOW = """
steps:
  - {name: ok, approve: {title: "Pay ${inputs.id}?"}}
  - {name: pay, tool: s.pay, params: {id: "${inputs.id}", delay_after: 30}}
  - {name: once, tool: s.pay_once, key: honored, params: {id: "${inputs.id}"}}
outputs: {paid: "${steps.pay.data.id}"}
"""


class Terminal:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        server = {"command": sys.executable, "args": [str(SERVER_FILE), str(folder / "effects")]}
        (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"s": {**server, "idempotencyMetaKey": "key"}}}))
        (folder / "flow.yaml").write_text(FLOW)
        self.environment = {**os.environ, "HOME": str(folder), "TOOLWAY_STATE": str(folder / "state")}

    def start(self, *words: str) -> subprocess.Popen[str]:
        group = [] if words[0] == "approvals" else ["workflow"]
        return subprocess.Popen(
            [sys.executable, "-m", "toolway.cli", *group, *words],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, exit_code: int = 0) -> str:
        process = self.start(*words)
        out, err = process.communicate(timeout=120)
        assert process.returncode == exit_code, err
        return out

    def json(self, *words: str, exit_code: int = 0) -> Any:
        return json.loads(self.run(*words, "--json", exit_code=exit_code))


@pytest.mark.slow
def test_run_approve_kill_settle_and_resume(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    steps = terminal.json("check", "flow.yaml", "-c", "mcp.json")["steps"]
    assert [each["after_crash"] for each in steps] == ["asks you", "repeated with the same key"]
    run = terminal.json("run", "flow.yaml", "id=A1", "-c", "mcp.json", exit_code=9)["id"]
    assert [each["id"] for each in terminal.json("ls", "--state", "asks")["runs"]] == [run]
    terminal.run("approvals", "approve", run)

    process = terminal.start("resume", run, "-c", "mcp.json")
    limit = time.monotonic() + 60
    while not read_effects(tmp_path / "effects") and time.monotonic() < limit:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()

    shown = terminal.json("show", run)
    assert [(each["path"], each["state"]) for each in shown["steps"]] == [("ok", "done"), ("pay", "begun")]
    asked = terminal.json("resume", run, "-c", "mcp.json", exit_code=9)
    assert [(each["path"], each["kind"]) for each in asked["asks"]] == [("pay", "unknown")]
    terminal.run("settle", run, "pay", "--happened", "--result", '{"id": "A1"}')
    assert terminal.json("resume", run, "-c", "mcp.json")["output"] == {"paid": "A1"}
    assert [each["tool"] for each in read_effects(tmp_path / "effects")] == ["pay", "pay_once"]
    assert "done (settle)" in terminal.run("show", run)


def test_errors_name_the_line_and_the_run(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    (tmp_path / "bad.yaml").write_text("steps:\n  - {tool: s.pay, parms: {}}\n")
    error = terminal.json("check", "bad.yaml", "-c", "mcp.json", exit_code=3)["error"]
    assert (error["code"], error["line"]) == ("E-WORKFLOW-FILE", 2)
    assert terminal.json("show", "nope", exit_code=1)["error"]["code"] == "E-WORKFLOW-RUN"


CODE = """
from toolway.workflows import workflow

@workflow
async def flow(run, id):
    await run.call("s.pay", {"id": id})
    await run.approve(f"Pay {id} again?")
    return (await run.call("s.pay", {"id": id})).data["id"]
"""


def test_python_workflow_needs_its_code_to_resume(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    (tmp_path / "flow.py").write_text(CODE)
    run = terminal.json("run", "flow.py:flow", "id=A1", "-c", "mcp.json", exit_code=9)["id"]
    terminal.run("approvals", "approve", run)
    terminal.run("resume", run, "-c", "mcp.json", exit_code=2)
    assert terminal.json("resume", run, "--code", "flow.py", "-c", "mcp.json")["output"] == "A1"
    assert [each["id"] for each in read_effects(tmp_path / "effects")] == ["A1", "A1"]
    terminal.run("run", "flow.py:other", "-c", "mcp.json", exit_code=3)


@pytest.mark.user_trial("16")
def test_run_resumes_with_its_original_configuration(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    flow = FLOW.replace(", delay_after: 30", "")
    (tmp_path / "flow.yaml").write_text(flow)
    process = terminal.start("run", "flow.yaml", "id=A1", "-c", "mcp.json")
    _, hints = process.communicate(timeout=120)
    assert process.returncode == 9
    (approve,) = re.findall(r"toolway (approvals approve .*?)   \(or deny\)", hints)
    terminal.folder = tmp_path / "elsewhere"  # here, no file names the server
    terminal.folder.mkdir()
    process = terminal.start(*shlex.split(approve))
    _, hints = process.communicate(timeout=120)
    (resume,) = re.findall(r"toolway workflow (resume .*)", hints)
    assert resume.endswith(f" -c {tmp_path / 'mcp.json'}")
    run = shlex.split(resume)[1]
    assert terminal.json("resume", run)["output"] == {"paid": "A1"}  # also without -c
    assert [each["tool"] for each in read_effects(tmp_path / "effects")] == ["pay", "pay_once"]


@pytest.mark.user_trial("16")
def test_unknown_server_makes_run_stuck(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    (tmp_path / "flow.yaml").write_text(
        "steps:\n  - {name: look, tool: nobody.look, effect: read, retry: {tries: 100, wait: 1h}}\n"
    )
    failed = terminal.json("run", "flow.yaml", "-c", "mcp.json", exit_code=5)
    assert (failed["state"], failed["error"]["message"]) == ("stuck", "unknown server 'nobody'")
