"""Agent steps of workflow files, as a user uses them: with an approval and a `kill -9` in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim is not installed")
pytest.importorskip("cel_expr_python", reason="the extra toolway[workflows] is not installed")

from tests.workflows.effect_server import read_effects
from tests.workflows.kill_runner import SERVER_FILE
from toolway.testing.fake_llm import FakeLLM, ToolUse, Turn

FLOW = """
steps:
  - {name: seen, tool: s.list}
  - name: pay
    agent:
      prompt: "Pay ${inputs.id}. Paid before: ${steps.seen.data}"
      model: openai-chat:gpt-4o
      base_url: URL
      tools: s.pay
      budget: 1usd,5calls
    assign: answer
outputs: {answer: "${answer}", text: "${steps.pay.text}"}
"""
TURNS: list[Turn | str] = [
    Turn(calls=[ToolUse("s__pay", {"id": "p1", "delay_after": 60})]),
    "It may have been paid.",
]


class Commands:
    """`toolway` in a folder with one server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        server = {"command": sys.executable, "args": [str(SERVER_FILE), str(folder / "effects")]}
        (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"s": server}}))
        own = {"HOME": str(folder), "TOOLWAY_STATE": str(folder / "state"), "OPENAI_API_KEY": "x"}
        self._environment = {**os.environ, **own}

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "toolway.cli", *words, "--json"],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, exit_code: int = 0) -> Any:
        process = self.start(*words)
        out, err = process.communicate(timeout=120)
        assert process.returncode == exit_code, err
        return json.loads(out)


@pytest.mark.slow
def test_agent_step_resumes_after_kill_9(tmp_path: Path) -> None:
    commands = Commands(tmp_path)
    with FakeLLM(TURNS) as llm:
        document = json.loads((tmp_path / "mcp.json").read_text())
        (tmp_path / "mcp.json").write_text(json.dumps({**document, "toolway": {"modelUrls": [llm.openai_url]}}))
        (tmp_path / "flow.yaml").write_text(FLOW.replace("URL", llm.openai_url))
        rows = commands.run("workflow", "check", "flow.yaml", "-c", "mcp.json")["steps"]
        assert rows[1]["tool"] == "agent openai-chat:gpt-4o"
        assert "no unsafe call is repeated" in rows[1]["after_crash"]

        run = ("workflow", "run", "flow.yaml", "id=p1", "--key", "k", "-c", "mcp.json")
        asked = commands.run(*run, exit_code=9)
        [child] = asked["children"]
        assert asked["state"] == "waiting"
        assert child["asks"][0]["title"] == 's.pay {"id":"p1","delay_after":60}'
        commands.run("approvals", "approve", child["id"])

        process = commands.start(*run)
        deadline = time.monotonic() + 100
        while not read_effects(tmp_path / "effects"):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()

        ended = commands.run(*run)
        assert ended["id"] == asked["id"]
        assert ended["output"] == {"answer": "It may have been paid.", "text": "It may have been paid."}
        assert len(llm.requests) == 2
        assert "may have run" in llm.requests[1].results[0].text
    assert [each["id"] for each in read_effects(tmp_path / "effects")] == ["p1"]
    steps = {each["path"]: each for each in commands.run("workflow", "show", ended["id"])["steps"]}
    assert steps["pay"]["body"]["run"] == child["id"]
