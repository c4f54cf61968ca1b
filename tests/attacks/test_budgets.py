"""Spend more than a budget or a rate allows."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.gateway.edge_lab import edge, message_of
from toolway.gateway.rate_limit import Rate
from toolway.parts.budgets.runtime import BudgetsRuntime
from toolway.parts.budgets.settings import CallBudget, parse_budgets

pytestmark = pytest.mark.anyio


@pytest.mark.attack("R4-6")
async def test_budget_and_rate_apply_to_the_admin_api(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        found.gateway.parts.runtime("budgets", BudgetsRuntime).budgets.set_rules(
            parse_budgets({"*": {"b.*": "2/day"}}), fails_open=False
        )
        token, _ = found.keyring.create_key_sync("ops", None, True, 0.0, budgets=(CallBudget.parse("3/day"),))

        async def outcomes(server: str, token: str) -> list[str]:
            body = {"server": server, "tool": "echo", "arguments": {"text": "x"}}
            answers = [message_of(await found.ask("POST", "/admin/call", body, token=token)) for _ in range(4)]
            return [each["error"]["code"] if "error" in each else "ok" for each in answers]

        assert await outcomes("a", token) == ["ok", "ok", "ok", "E-BUDGET"]
        owner = found.key(admin=True)
        assert await outcomes("b", owner) == ["ok", "ok", "E-BUDGET", "E-BUDGET"]
        assert (found.calls("a"), found.calls("b")) == (3, 2)
        limited, _ = found.keyring.create_key_sync("slow", None, True, 0.0, Rate.parse("1/h"))
        assert await outcomes("a", limited) == ["ok", "E-RATE", "E-RATE", "E-RATE"]
        (made,) = message_of(await found.ask("GET", "/admin/calls?limit=1"))["calls"]
        again = await found.ask("POST", f"/admin/calls/{made['id']}/replay", {"confirm": True}, token=limited)
        assert message_of(again)["error"]["code"] == "E-RATE"


@pytest.mark.attack("A2-held-1")
async def test_parallel_calls_do_not_exceed_a_budget(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        token, _ = found.keyring.create_key_sync("ci", None, False, 0.0, budgets=(CallBudget.parse("25/day"),))
        calls = [found.call(f"{'ab'[number % 2]}__echo", {"text": "x"}, token=token) for number in range(80)]
        answers = await asyncio.gather(*calls)
        assert sum("result" in each for each in answers) == 25 == found.calls("a") + found.calls("b")
        assert {each["error"]["data"]["code"] for each in answers if "error" in each} == {"E-BUDGET"}
