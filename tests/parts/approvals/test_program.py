"""`toolway serve` with rules for approvals, and `toolway approvals`: answers of an administrator, over a kill."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.bridge_lab import until
from tests.gateway.program import Program, program
from tests.parts.pins.test_gateway import read_metrics, toolway, write_tools
from toolway import Hub
from toolway.errors import ProtocolError

pytestmark = pytest.mark.anyio


async def call(run: Program, era: str, **arguments: Any) -> Any:
    """Call the tool as a client of this era; return its text, or the data of the error."""
    server = {
        "url": f"http://127.0.0.1:{run.port}/mcp",
        "headers": {"Authorization": f"Bearer {run.token}"},
        "era": era,
    }
    async with Hub({"gateway": server}, catalog_storage=None) as hub:
        try:
            return (await hub.call_tool("gateway.bank__pay", arguments)).text
        except ProtocolError as error:
            return error.data


@pytest.mark.parametrize("era", ["modern", pytest.param("legacy", marks=pytest.mark.slow)])
async def test_approvals_in_terminal_survive_a_killed_gateway(tmp_path: Path, era: str) -> None:
    entry = write_tools(tmp_path, pay="Pays.")
    settings: Any = {"approve": {"bank.*": "admin"}, "audit": {"to": "jsonl", "file": str(tmp_path / "audit.jsonl")}}
    async with program(tmp_path, {"bank": entry}, **settings) as run:
        waits = await call(run, era, city="Bern")
        id_ = waits["approvalId"]
        assert (waits["code"], waits["executed"], waits["retryable"]) == ("E-APPROVAL", "no", True)
        assert [each["id"] for each in (await toolway(run, "approvals", "ls"))["requests"]] == [id_]
        shown = await toolway(run, "approvals", "show", id_)
        assert (shown["tool"], shown["caller"], shown["state"]) == ("pay", "local", "pending")
        assert shown["arguments"] == [{"name": "city", "value": '"Bern"', "note": ""}]
        assert (await toolway(run, "approvals", "approve", id_, "fine"))["state"] == "approved"
        assert (await toolway(run, "approvals", "deny", id_))["error"]["code"] == "E-NOT-FOUND", "it was answered"
        other = (await call(run, era, city="Rome"))["approvalId"]
        assert (await toolway(run, "approvals", "deny", other, "too far"))["state"] == "denied"
        assert "toolway_approvals_pending 0.0" in await read_metrics(run)
        run.signal(signal.SIGKILL)
        await run.ended()
    async with program(tmp_path, {"bank": entry}, **settings) as run:
        assert await call(run, era, city="Bern") == "done"
        assert (await call(run, era, city="Bern"))["code"] == "E-APPROVAL", "it was used"
        assert (await call(run, era, city="Rome"))["code"] == "E-APPROVAL-DENIED"
        metrics = await read_metrics(run)
        assert 'toolway_approvals_total{action="used",server="bank"} 1.0' in metrics
        assert "toolway_approvals_pending 1.0" in metrics
        rules = {"bank.*": {"by": "admin", "when": "args.city =="}}
        run.write({"bank": entry}, **(settings | {"approve": rules}))
        await until(lambda: "toolway.approve" in run.log)
        assert (await call(run, era, city="Oslo"))["code"] == "E-APPROVAL", "the old rules stay"
        run.write({"bank": entry}, **(settings | {"approve": {}}))
        await until(lambda: "configuration reloaded" in run.log)
        assert await call(run, era, city="Oslo") == "done"
    assert [json.loads(line) for line in (tmp_path / "calls.log").read_text().splitlines()] == [
        {"city": "Bern"},
        {"city": "Oslo"},
    ]
    records = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    kinds = [each["kind"] for each in records if str(each.get("kind")).startswith("approval.")]
    asked = ["approval.asked", "approval.approved", "approval.asked", "approval.denied"]
    assert kinds == [*asked, "approval.used", "approval.asked", "approval.asked"]
