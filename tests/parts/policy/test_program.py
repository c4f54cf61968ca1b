"""`toolway serve` with a policy file: no start without it, reloads, `--stdio`, and the commands of `toolway policy`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.gateway.bridge_lab import until
from tests.gateway.program import Program, program
from tests.parts.pins.test_gateway import SCHEMA_SERVER
from toolway import Hub
from toolway.errors import CallError
from toolway.parts.policy.engine import PolicyEngine
from toolway.parts.policy.presets import PRESETS, access_text, preset_text

pytestmark = pytest.mark.anyio

LIMIT = """
@id("all") permit (principal, action, resource);
@id("limit")
forbid (principal, action == Action::"call", resource == Tool::"bank.pay") when { context.args.amount > 100 };
"""


def write_bank(folder: Path) -> dict[str, Any]:
    """Two tools, one with a required integer; return the entry of their server."""
    amount = {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}
    tools = [
        {"name": "pay", "description": "Pays.", "inputSchema": amount},
        {
            "name": "show",
            "description": "Shows.",
            "inputSchema": {"type": "object"},
            "annotations": {"readOnlyHint": True},
        },
    ]
    (folder / "tools.json").write_text(json.dumps(tools))
    arguments = [str(SCHEMA_SERVER), str(folder / "tools.json"), str(folder / "calls.log")]
    return {"command": sys.executable, "args": arguments, "era": "legacy"}


async def toolway(folder: Path, *words: str) -> tuple[int, Any]:
    """Run a command; return its exit code and its JSON."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "toolway.cli", *words, "--json"),
        env={**os.environ, "TOOLWAY_STATE": str(folder / "state"), "XDG_CACHE_HOME": str(folder / "cache")},
        stdout=asyncio.subprocess.PIPE,
        cwd=folder,
    )
    out, _ = await process.communicate()
    return process.returncode or 0, json.loads(out)


async def call(run: Program, era: str, tool: str, **arguments: Any) -> str:
    """Call a tool as a client of this era; return its text, or the message of the error."""
    url = f"http://127.0.0.1:{run.port}/mcp"
    server = {"url": url, "headers": {"Authorization": f"Bearer {run.token}"}, "era": era}
    async with Hub({"gateway": server}, catalog_storage=None) as hub:
        try:
            await hub.wait_ready("gateway")
            return (await hub.call_tool(f"gateway.{tool}", arguments)).text
        except CallError as error:
            return error.detail or error.message


async def test_policy_is_enforced_and_reloaded(tmp_path: Path) -> None:
    file = tmp_path / "policy.cedar"
    file.write_text(LIMIT)
    log, alerts = tmp_path / "audit.jsonl", tmp_path / "alerts"
    settings: Any = {
        "policy": "policy.cedar",
        "audit": {"to": "jsonl", "file": str(log)},
        "alerts": {"folder": str(alerts)},
    }
    async with program(tmp_path, {"bank": write_bank(tmp_path)}, **settings) as run:
        for era in ("modern", "legacy"):
            assert await call(run, era, "bank__pay", amount=5) == "done"
            assert "Unknown tool" in await call(run, era, "bank__pay", amount=500)
        file.write_text('permit (principal, action, resource in Sever::"bank");')
        await until(lambda: "policy file rejected" in run.log)
        assert "Unknown tool" in await call(run, "modern", "bank__pay", amount=500), "the old policy stays"
        await until(lambda: list(alerts.glob("*policy-rejected*")))
        unfit = LIMIT.replace("> 100", 'like "x*"')
        file.write_text(unfit)
        await until(lambda: "expected String but saw Long" in run.log)
        assert await call(run, "modern", "bank__pay", amount=5) == "done"
        file.write_text(
            '@id("reading") permit (principal, action == Action::"call", resource) when { resource.readOnlyHint };'
        )
        await until(lambda: "policy file loaded" in run.log)
        assert await call(run, "modern", "bank__show") == "done"
        assert "bank__pay" in await call(run, "modern", "bank__pay", amount=5)
        await until(lambda: not list(alerts.glob("*policy-rejected*")))
        file.unlink()
        await until(lambda: run.log.count("policy file rejected") == 3)
        assert await call(run, "modern", "bank__show") == "done"
        await run.stop()
    kinds = [json.loads(line)["kind"] for line in log.read_text().splitlines()]
    assert kinds.count("policy.loaded") == 2 and kinds.count("policy.rejected") == 3 and "policy.decision" in kinds
    denied = next(each for each in map(json.loads, log.read_text().splitlines()) if each["kind"] == "policy.decision")
    assert "limit" in json.dumps(denied) and "bank.pay" in json.dumps(denied)


@pytest.mark.parametrize(
    ("text", "more"), [(None, []), ("permit (principal, action, resource) when { resource.nam };", ["--stdio"])]
)
async def test_gateway_does_not_start_without_valid_policy(tmp_path: Path, text: str | None, more: list[str]) -> None:
    if text is not None:
        (tmp_path / "policy.cedar").write_text(text)
    config = {"mcpServers": {"bank": write_bank(tmp_path)}, "toolway": {"policy": "policy.cedar"}}
    (tmp_path / "mcp.json").write_text(json.dumps(config))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "toolway.cli", "serve", "--config", "mcp.json", "--port", "0", *more),
        env={**os.environ, "TOOLWAY_STATE": str(tmp_path / "state")},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=tmp_path,
    )
    out, errors = await process.communicate()
    assert process.returncode == 3 and b"E-POLICY" in errors + out and b"policy.cedar" in errors + out


async def test_stdio_client_is_the_local_user(tmp_path: Path) -> None:
    text = 'permit (principal == User::"local", action, resource == Tool::"bank.show");'
    (tmp_path / "policy.cedar").write_text(text)
    config = {"mcpServers": {"bank": write_bank(tmp_path)}, "toolway": {"policy": "policy.cedar"}}
    (tmp_path / "mcp.json").write_text(json.dumps(config))
    command = {"command": sys.executable, "args": ["-m", "toolway.cli", "serve", "--stdio", "--config", "mcp.json"]}
    entry = {**command, "cwd": str(tmp_path), "env": {"TOOLWAY_STATE": str(tmp_path / "state")}}
    async with Hub({"gateway": entry}, catalog_storage=None) as hub:
        await hub.wait_ready("gateway")
        assert [tool.name for tool in await hub.list_tools()] == ["bank__show"]
        assert (await hub.call_tool("gateway.bank__show", {})).text == "done"


async def test_commands_check_explain_and_test_a_policy(tmp_path: Path) -> None:
    config = {"mcpServers": {"bank": write_bank(tmp_path)}, "toolway": {"policy": "policy.cedar"}}
    (tmp_path / "mcp.json").write_text(json.dumps(config))
    named = ("--config", "mcp.json")
    (tmp_path / "policy.cedar").write_text(LIMIT)
    assert await toolway(tmp_path, "policy", "check", *named) == (
        0,
        {
            "file": str(tmp_path / "policy.cedar"),
            "policies": 2,
            "tools": 2,
            **{key: [] for key in ("unknown", "unfit", "unreachable", "unused")},
            "ok": True,
        },
    )
    code, why = await toolway(tmp_path, "policy", "why", "alice", "bank.pay", "--args", '{"amount": 500}', *named)
    assert code == 0 and not why["allowed"] and [each["id"] for each in why["policies"]] == ["limit"]
    assert "context.args.amount" in why["policies"][0]["text"].replace("(", "").replace(")", "").replace(
        '["amount"]', ".amount"
    )
    code, why = await toolway(tmp_path, "policy", "why", "alice", "bank.show", "--group", "eng", *named)
    assert code == 0 and why["allowed"] and [each["id"] for each in why["policies"]] == ["all"]
    rows = """
    - {user: alice, tool: bank.pay, args: {amount: 5}, expect: allow}
    - {user: alice, tool: bank.pay, args: {amount: 500}, expect: deny}
    - {user: alice, tool: bank.pay, expect: deny}
    """
    (tmp_path / "table.yaml").write_text(dedent(rows))
    code, found = await toolway(tmp_path, "policy", "test", "table.yaml", *named)
    assert code == 0 and found["ok"] and len(found["tests"]) == 3
    (tmp_path / "table.json").write_text(json.dumps([{"user": "a", "tool": "bank.show", "expect": "deny"}]))
    code, found = await toolway(tmp_path, "policy", "test", "table.json", *named)
    assert code == 9 and found["failed"] == 1 and found["tests"][0]["reason"] == "permitted by all"

    (tmp_path / "policy.cedar").write_text(
        '@id("typo") permit (principal, action, resource in Server::"bnak");'
        '@id("tool") permit (principal, action, resource == Tool::"bank.shw");'
        '@id("unfit") forbid (principal, action == Action::"call", resource) when { context.args.amount like "x*" };'
    )
    code, found = await toolway(tmp_path, "policy", "check", *named)
    assert code == 9 and not found["ok"]
    assert [(each["name"], each["suggestion"]) for each in found["unknown"]] == [
        ('Server::"bnak"', "bank"),
        ('Tool::"bank.shw"', "bank.show"),
    ]
    assert found["unreachable"] == ["bank.pay", "bank.show"] and found["unused"] == ["typo", "tool"]
    assert {each["tool"] for each in found["unfit"]} == {"bank.pay", "bank.show"}
    (tmp_path / "policy.cedar").write_text("permit (")
    code, found = await toolway(tmp_path, "policy", "check", *named)
    assert code == 3 and found["error"]["code"] == "E-POLICY"
    code, found = await toolway(tmp_path, "doctor", *named)
    assert any(
        check["name"] == "policy" and check["state"] == "fail" for each in found["subjects"] for check in each["checks"]
    )


async def test_presets_are_valid(tmp_path: Path) -> None:
    access = {"eng": ["bank.*", "!bank.pay"], "*": ["bank.show"]}
    for text in (*map(preset_text, PRESETS), access_text(access)):
        assert len(PolicyEngine(text).policies) > 1
    config: Any = {"mcpServers": {}, "toolway": {}}
    (tmp_path / "mcp.json").write_text(json.dumps(config))
    code, found = await toolway(tmp_path, "policy", "new", "--preset", "groups", "--config", "mcp.json")
    assert (code, found) == (0, {"file": "policy.cedar", "preset": "groups"})
    assert (tmp_path / "policy.cedar").read_text() == preset_text("groups")
    code, _ = await toolway(tmp_path, "policy", "new", "--config", "mcp.json")
    assert code == 2, "a file is never overwritten"
