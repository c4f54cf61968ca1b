"""Policies in a cluster: the node that a client uses decides, wherever the server runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.node.hop_lab import TOKEN, cluster
from tests.parts.approvals.lab import call
from tests.parts.pins.test_gateway import write_tools

pytestmark = pytest.mark.anyio

POLICY = """
permit (principal == User::"local", action, resource == Tool::"bank.pay");
forbid (principal, action == Action::"call", resource) when { context.args has city && context.args.city == "Rome" };
"""


async def test_both_nodes_apply_the_policy_alike(tmp_path: Path) -> None:
    entry = write_tools(tmp_path, pay="Pays.", send="Sends.")
    async with cluster(tmp_path, {"bank": entry}, policy=POLICY) as made:
        for node in (made.owner("bank"), made.other("bank")):
            for era in ("modern", "legacy"):
                async with node.raw("server/bank", TOKEN) as raw:
                    assert "result" in (await call(raw, era, "pay", {"city": "Bern"})).last
                    for tool, city in (("pay", "Rome"), ("send", "Bern")):
                        answer = await call(raw, era, tool, {"city": city})
                        assert answer.error["message"] == f"Unknown tool: {tool}"
    assert len((tmp_path / "calls.log").read_text().splitlines()) == 4
