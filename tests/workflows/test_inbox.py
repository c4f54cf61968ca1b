"""`toolway approvals`: one list of what waits, from a journal on this machine and from a gateway."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.workflows.effect_server import read_effects
from tests.workflows.kill_runner import SERVER_FILE

pytest.importorskip("cel_expr_python", reason="the extra toolway[workflows] is not installed")
FLOW = """
steps:
  - {name: ok, approve: {title: "Pay ${inputs.id}?"}}
  - {name: pay, tool: s.pay, params: {id: "${inputs.id}"}}
"""
TWO_QUESTIONS = """
steps:
  - parallel:
      left: [{name: a, approve: "First?"}]
      right: [{name: b, approve: "Second?"}]
"""


class Terminal:
    """Commands of one user, without a gateway."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        server = {"command": sys.executable, "args": [str(SERVER_FILE), str(folder / "effects")]}
        (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"s": server}}))
        (folder / "flow.yaml").write_text(FLOW)
        self.environment = {**os.environ, "HOME": str(folder), "TOOLWAY_STATE": str(folder / "state")}

    def run(self, *words: str, exit_code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "toolway.cli", *words],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == exit_code, done.stdout + done.stderr
        return done

    def json(self, *words: str, exit_code: int = 0) -> Any:
        return json.loads(self.run(*words, "--json", exit_code=exit_code).stdout)

    def begin(self, *words: str) -> str:
        flow = self.json("workflow", "run", "flow.yaml", "id=A1", "-c", "mcp.json", *words, exit_code=9)
        return str(flow["id"])


def test_inbox_without_journal_and_gateway_is_empty(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    assert terminal.json("approvals", "ls") == {"enabled": False, "requests": [], "runs": []}
    assert "nothing is waiting" in terminal.run("approvals", "ls").stderr
    assert not list((tmp_path / "state").rglob("runs.db")), "a look creates no journal"
    unknown = terminal.json("approvals", "approve", "flow-0123", exit_code=1)["error"]
    assert (unknown["code"], unknown["hint"]) == ("E-WORKFLOW-RUN", "see what is waiting: toolway approvals ls")
    assert terminal.json("approvals", "approve", "0123456789", exit_code=4)["error"]["code"] == "E-GATEWAY"


def test_inbox_shows_and_approves_a_local_workflow_step(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    run = terminal.begin()
    (row,) = terminal.json("approvals", "ls")["runs"]
    assert (row["id"], row["kind"], row["gateway"]) == (run, "workflow", None)
    assert [(each["step"], each["title"], each["state"]) for each in row["questions"]] == [("ok", "Pay A1?", "pending")]
    listed = terminal.run("approvals", "ls")
    assert run in listed.stdout and "Pay A1?" in listed.stdout
    assert f"toolway approvals show {run}" in listed.stderr
    shown = terminal.run("approvals", "show", run)
    assert "Pay A1?" in shown.stdout and f"toolway approvals deny {run} --step ok" in shown.stderr
    stored = terminal.run("approvals", "approve", run, "fine", "--step", "ok").stderr
    assert "The run continues with the next step." in stored
    assert f"toolway workflow resume {run}" in stored
    assert terminal.json("approvals", "show", run)["questions"][0]["state"] == "answered"
    assert terminal.json("workflow", "resume", run, "-c", "mcp.json")["state"] == "done"
    assert [each["id"] for each in read_effects(tmp_path / "effects")] == ["A1"]
    assert terminal.json("approvals", "ls")["runs"] == []


def test_inbox_denies_step_with_reason_and_calls_nothing(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    run = terminal.begin()
    assert terminal.json("approvals", "deny", run, "not on Fridays") == {"run": run, "stored": True}
    terminal.run("workflow", "resume", run, "-c", "mcp.json", exit_code=5)
    ended = terminal.json("workflow", "show", run)
    assert ended["state"] == "failed" and "not on Fridays" in json.dumps(ended["messages"])
    assert read_effects(tmp_path / "effects") == []


def test_inbox_reads_the_named_journal(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    run = terminal.begin("--journal", "mine.db")
    assert terminal.json("approvals", "ls")["runs"] == []
    assert [each["id"] for each in terminal.json("approvals", "ls", "--journal", "mine.db")["runs"]] == [run]
    hint = terminal.run("approvals", "show", run, "--journal", "mine.db").stderr
    assert f"toolway approvals approve {run} --step ok --journal mine.db" in hint
    assert terminal.json("approvals", "approve", run, exit_code=1)["error"]["code"] == "E-WORKFLOW-RUN"
    terminal.json("approvals", "approve", run, "--journal", "mine.db")
    both = ("approvals", "ls", "--journal", "mine.db", "--gateway", "http://127.0.0.1:1")
    assert "--gateway and --journal" in terminal.json(*both, exit_code=2)["error"]["message"]


def test_inbox_needs_the_step_if_a_run_has_two_questions(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    (tmp_path / "flow.yaml").write_text(TWO_QUESTIONS)
    run = terminal.begin()
    steps = [each["step"] for each in terminal.json("approvals", "show", run)["questions"]]
    assert len(steps) == 2
    refused = terminal.json("approvals", "approve", run, exit_code=1)["error"]
    assert refused["code"] == "E-WORKFLOW-ASKS"
    terminal.json("approvals", "approve", run, "--step", steps[0])
    states = {each["step"]: each["state"] for each in terminal.json("approvals", "show", run)["questions"]}
    assert states == {steps[0]: "answered", steps[1]: "pending"}
