"""Approvals in a cluster: asked at one node, answered at another, used once by all."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.cluster.node.hop_lab import TOKEN, Node, cluster
from tests.gateway.bridge_lab import Answer
from tests.parts.approvals.lab import accept, ask, call, refusal, reply
from tests.parts.pins.test_gateway import write_tools

pytestmark = pytest.mark.anyio


async def pay(node: Node, city: str) -> Answer:
    async with node.raw("server/bank", TOKEN) as raw:
        return await call(raw, "modern", "pay", {"city": city})


async def test_approval_and_answer_are_used_once_across_nodes(tmp_path: Path) -> None:
    entry = write_tools(tmp_path, pay="Pays.", send="Sends.")
    rules = {"bank.pay": "admin", "bank.send": "client"}
    async with cluster(tmp_path, {"bank": entry}, approve=rules) as made:
        owner, other = made.owner("bank"), made.other("bank")
        for city, asked_at, answered_at in (("Bern", owner, other), ("Rome", other, owner)):
            first = await pay(asked_at, city)
            assert refusal(first) == (-31014, "E-APPROVAL")
            await answered_at.gate.decide(first.error["data"]["approvalId"], "approved", "")
            answers = await asyncio.gather(*(pay(node, city) for node in (owner, other) * 4))
            assert sum("result" in each.last for each in answers) == 1
        async with owner.raw("server/bank", TOKEN) as one, other.raw("server/bank", TOKEN) as two:
            question = await ask(one, "send", {"city": "Oslo"})
            replies = await asyncio.gather(
                *(reply(raw, question, accept(), "send", {"city": "Oslo"}) for raw in (one, two) * 4)
            )
            assert sum("result" in each.last for each in replies) == 1
    executed = sorted(json.loads(line)["city"] for line in (tmp_path / "calls.log").read_text().splitlines())
    assert executed == ["Bern", "Oslo", "Rome"]
