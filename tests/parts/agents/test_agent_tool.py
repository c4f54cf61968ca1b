"""Configured agents: tools of `toolway serve`, `toolway agent run --agent NAME`; and the example of the guide."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim is not installed")
pytest.importorskip("cel_expr_python", reason="the extra toolway[workflows] is not installed")

from tests.agents.test_workflow_steps import Commands
from tests.gateway.program import program
from tests.parts.workflows.test_gateway import WITH_ALL, client, effect_entry, tool_names, until_task
from tests.workflows.effect_server import read_effects
from toolway.config.loader import parse_config
from toolway.errors import ConfigError
from toolway.testing.fake_llm import FakeLLM, ToolUse, Turn

ROOT = Path(__file__).parents[3]
TURNS: list[Turn | str] = [Turn(calls=[ToolUse("s__pay", {"id": "p1"})]), "Paid."]


def listed(llm: FakeLLM) -> dict[str, Any]:
    """The setting by which an address that a file names may get the key."""
    return {"modelUrls": [llm.openai_url]}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
async def test_configured_agent_is_a_tool_with_task_and_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with FakeLLM(TURNS) as llm:
        agent = {"model": "openai-chat:gpt-4o", "baseUrl": llm.openai_url, "budget": "1usd,3calls", "tools": ["*"]}
        async with program(tmp_path, {"s": effect_entry(tmp_path)}, agents={"cashier": agent}, **listed(llm)) as run:
            await run.until_ready("workflows")
            async with client(run) as raw:
                assert "workflows__cashier" in await tool_names(raw)
                begun = (await raw.call("workflows__cashier", {"prompt": "Pay"}, capabilities=WITH_ALL)).result
                asks = await until_task(raw, begun["taskId"], "input_required")
                [(path, form)] = asks["inputRequests"].items()
                assert form["params"]["message"] == '[workflows] s.pay {"id":"p1"}'
                answer = {path: {"action": "accept", "content": {"yes": True}}}
                await raw.ask(
                    "tasks/update", {"taskId": begun["taskId"], "inputResponses": answer}, capabilities=WITH_ALL
                )
                result = (await until_task(raw, begun["taskId"], "completed"))["result"]
        assert result["content"][0]["text"] == result["structuredContent"]["output"] == "Paid."
        assert result["structuredContent"]["usage"]["requests"] == 2
        offered = {each["function"]["name"] for each in llm.requests[0].body["tools"]}
    assert "s__pay" in offered and "workflows__cashier" not in offered  # an agent does not start agents
    assert [each["id"] for each in read_effects(tmp_path / "effects")] == ["p1"]


@pytest.mark.slow
def test_command_runs_configured_agent(tmp_path: Path) -> None:
    commands = Commands(tmp_path)
    with FakeLLM(["Hello."]) as llm:
        document = json.loads((tmp_path / "mcp.json").read_text())
        agent = {"model": "openai-chat:gpt-4o", "baseUrl": llm.openai_url, "instructions": "Be brief.", "tools": []}
        document["toolway"] = {"agents": {"greeter": agent}, **listed(llm)}
        (tmp_path / "mcp.json").write_text(json.dumps(document))
        assert commands.run("agent", "run", "Hi", "--agent", "greeter", "-c", "mcp.json")["output"] == "Hello."
        assert "Be brief." in json.dumps(llm.requests[0].body)
    commands.run("agent", "run", "Hi", "--agent", "nobody", "-c", "mcp.json", exit_code=2)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"model": "a:b", "tols": []}, "did you mean tools"),
        ({"model": "a:b", "budget": "much"}, "not a valid budget limit"),
        ({"tools": ["s.*"]}, "model"),
        ("a:b", "must be an object"),
    ],
)
def test_invalid_agent_entry_is_explained(entry: Any, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_config(json.dumps({"mcpServers": {}, "toolway": {"agents": {"x": entry}}}), "mcp.json", {})
    assert words in str(raised.value)


def test_guide_example_runs(tmp_path: Path) -> None:
    text = (ROOT / "examples/agents/agent.py").read_text()
    assert text in (ROOT / "docs/howto/agents.md").read_text()
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"notes": effect_entry(tmp_path)}}))
    turns: list[Turn | str] = [Turn(calls=[ToolUse("notes__pay", {"id": "milk"})]), "Added."]
    with FakeLLM(turns) as llm:
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples/agents/agent.py"), "openai-chat:gpt-4o", llm.openai_url],
            cwd=tmp_path,
            env={**os.environ, "OPENAI_API_KEY": "none"},
            input="y\n",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout == 'notes.pay {"id":"milk"}? [y/n] Added.\n'
    assert [each["id"] for each in read_effects(tmp_path / "effects")] == ["milk"]
