"""`toolway agent`, as a user uses it: run, deny and approve, resume, show, replay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim is not installed")

from tests.workflows.effect_server import read_effects
from tests.workflows.kill_runner import SERVER_FILE
from toolway.testing.fake_llm import FakeLLM, ToolUse, Turn

TURNS: list[Turn | str] = [
    Turn(text="I pay.", calls=[ToolUse("s__pay", {"id": "p1"}), ToolUse("s__pay", {"id": "p2"})]),
    "Paid once.",
]


@pytest.mark.slow
@pytest.mark.user_trial("16")
def test_run_deny_approve_resume_show_and_replay(tmp_path: Path) -> None:
    server = {"command": sys.executable, "args": [str(SERVER_FILE), str(tmp_path / "effects")]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"s": server}}))
    environment = {**os.environ, "HOME": str(tmp_path), "TOOLWAY_STATE": str(tmp_path / "state"), "OPENAI_API_KEY": "x"}

    def start(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "toolway.cli", *([] if words[0] == "approvals" else ["agent"]), *words],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def agent(*words: str, exit_code: int = 0) -> Any:
        done = start(*words, "--json")
        assert done.returncode == exit_code, done.stderr
        return json.loads(done.stdout)

    with FakeLLM(TURNS) as llm:
        model = ("--model", "openai-chat:gpt-4o", "--base-url", llm.openai_url)
        asked = agent("run", "Pay it", *model, "--budget", "1usd,5calls", "-c", "mcp.json", exit_code=9)
        run = asked["run"]
        assert asked["asks"][0]["title"] == 's.pay {"id":"p1"}'
        (waiting,) = agent("approvals", "ls")["runs"]
        assert (waiting["id"], waiting["kind"], waiting["name"]) == (run, "agent", "Pay it")
        (question,) = agent("approvals", "show", run)["questions"]
        assert (question["tool"], question["effect"], question["arguments"]) == ("s.pay", "unsafe", '{"id": "p1"}')
        assert f"toolway agent resume {run}" in start("approvals", "deny", run, "not this one").stderr
        assert agent("resume", run, exit_code=9)["asks"][0]["title"] == 's.pay {"id":"p2"}'
        next_command = f"toolway agent resume {run} -c {tmp_path / 'mcp.json'}"
        assert next_command in start("approvals", "approve", run).stderr
        shown = start("show", run).stderr
        assert "answered: s.pay" in shown
        assert next_command in shown
        assert agent("resume", run)["output"] == "Paid once."
        assert len(llm.requests) == 2
        assert "not this one" in llm.requests[1].results[0].text
    assert [each["id"] for each in read_effects(tmp_path / "effects")] == ["p2"]
    assert [each["id"] for each in agent("ls")["runs"]] == [run]
    messages = agent("show", run)["messages"]
    assert [each["role"] for each in messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert [(each["tool"], each["executed"]) for each in messages[2:4]] == [("s.pay", "no"), ("s.pay", "yes")]
    assert "toolway agent ls" in start("show", "nothing").stderr
    assert agent("replay", run) == {"run": run, "state": "done", "same": True, "missing": []}
