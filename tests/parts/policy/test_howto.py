"""The example of docs/howto/policies.md: its policies are valid, and its table of tests passes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.parts.pins.test_gateway import SCHEMA_SERVER
from tests.parts.policy.test_program import toolway

pytestmark = pytest.mark.anyio

PAGE = (Path(__file__).parents[3] / "docs/howto/policies.md").read_text()


def example(name: str) -> str:
    found = re.search(rf"<!-- example: {name} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


async def test_howto_example_passes(tmp_path: Path) -> None:
    amount = {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}
    tools: list[Any] = [
        {"name": "transfer", "inputSchema": amount},
        {"name": "balance", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
    ]
    (tmp_path / "tools.json").write_text(json.dumps(tools))
    arguments = [str(SCHEMA_SERVER), str(tmp_path / "tools.json"), str(tmp_path / "calls.log")]
    bank = {"command": sys.executable, "args": arguments, "era": "legacy"}
    (tmp_path / "mcp.json").write_text(
        json.dumps({"mcpServers": {"bank": bank}, "toolway": {"policy": "policy.cedar"}})
    )
    (tmp_path / "policy.cedar").write_text(example("policy"))
    (tmp_path / "table.yaml").write_text(example("table"))
    code, found = await toolway(tmp_path, "policy", "check", "--config", "mcp.json")
    assert (code, found["ok"], found["policies"], found["tools"]) == (0, True, 4, 2)
    code, found = await toolway(tmp_path, "policy", "test", "table.yaml", "--config", "mcp.json")
    assert code == 0 and len(found["tests"]) == 7 and found["failed"] == 0, found
