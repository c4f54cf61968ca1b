"""Budgets of keys and groups: what is counted, what is refused, and what survives."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.edge_lab import Edge, edge, handshake, message_of, modern
from toolway.config.settings import parse_gateway
from toolway.errors import ConfigError
from toolway.events import Event
from toolway.gateway.principals import FileApiKeyStore, Principal
from toolway.part_api.database import SqliteDatabase
from toolway.parts.budgets import Budgets
from toolway.parts.budgets.call_budgets import (
    MAX_OPEN_S,
    PROBE_INTERVAL_S,
    BudgetExceeded,
    CallBudgets,
    LedgerUnavailable,
)
from toolway.parts.budgets.ledger import (
    BudgetAccount,
    BudgetLease,
    LeaseRequest,
    LedgerError,
    MemoryLedger,
    StoredLedger,
    StoredUse,
    decide_lease,
)
from toolway.parts.budgets.runtime import BudgetsRuntime
from toolway.parts.budgets.settings import BudgetRules, BudgetSettings, CallBudget, parse_budgets


def SqliteLedger(path: Path) -> StoredLedger:
    return StoredLedger(SqliteDatabase(path, Budgets()))


def budgets_of(found: Edge) -> CallBudgets:
    return found.gateway.parts.runtime("budgets", BudgetsRuntime).budgets


DAY = 1_800_057_600  # the start of a day of UTC, and 10 days before the end of its month


def _account(text: str, holder: str = "key k") -> BudgetAccount:
    return BudgetAccount(holder, "*", CallBudget.parse(text))


@pytest.mark.parametrize("text", ["5000/day", "1/minute", "100/hour", "7/month", "500MB/day", "3GB/month", "1B/minute"])
def test_budget_is_an_amount_per_period(text: str) -> None:
    assert str(CallBudget.parse(text)) == text


@pytest.mark.parametrize("text", ["", "5", "0/day", "-1/day", "5/week", "1.5/day", "5MB", "5 /day", "9999999GB/day"])
def test_invalid_budget_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="invalid budget"):
        CallBudget.parse(text)


def test_periods_start_at_utc_boundaries() -> None:
    at = DAY + 3600 * 5 + 61
    assert CallBudget.parse("1/minute").period_at(at) == (DAY + 3600 * 5 + 60, DAY + 3600 * 5 + 120)
    assert CallBudget.parse("1/hour").period_at(at) == (DAY + 3600 * 5, DAY + 3600 * 6)
    assert CallBudget.parse("1/day").period_at(at) == (DAY, DAY + 86_400)
    start, end = CallBudget.parse("1/month").period_at(at)
    assert start <= DAY < end and (end - start) in (28 * 86_400, 29 * 86_400, 30 * 86_400, 31 * 86_400)
    december = 1_797_000_000  # 2026-12-11
    assert CallBudget.parse("1/month").period_at(december)[1] == 1_798_761_600  # 2027-01-01


def test_budget_setting_has_groups_patterns_and_amounts() -> None:
    settings = parse_gateway(
        {"budgets": {"eng": {"*": "20000/day", "openai.*": ["500/day", "1GB/day"]}}, "budgetsFail": "open"}, {}
    ).parts["budgets"]
    assert settings.budgets["eng"]["openai.*"] == (CallBudget.parse("500/day"), CallBudget.parse("1GB/day"))
    assert settings.budgets_fail == "open" and BudgetSettings().budgets_fail == "closed"
    wrongs: tuple[Any, ...] = (
        {"eng": "5/day"},
        {"eng": {"*": "5/week"}},
        {"eng": {"*": 5}},
        {"eng": {"x": "5/day"}},
        [],
        "5/day",
    )
    for wrong in wrongs:
        with pytest.raises(ConfigError):
            parse_budgets(wrong)
    with pytest.raises(ConfigError, match="same unit and period"):
        parse_budgets({"eng": {"*": ["5/day", "6/day"]}})
    with pytest.raises(ConfigError, match="unknown key"):
        parse_gateway({"budget": {}}, {})
    with pytest.raises(ConfigError):
        parse_gateway({"budgetsFail": "ajar"}, {})


def test_call_counts_for_its_groups_and_the_everyone_group() -> None:
    rules = BudgetRules(
        parse_budgets({"eng": {"*": "9/day", "a.*": "3/day"}, "*": {"b.*": "2/day"}, "x": {"*": "1/day"}})
    )
    assert [(group, pattern) for group, pattern, _ in rules.find(["eng"], "a.echo")] == [("eng", "*"), ("eng", "a.*")]
    assert [(group, pattern) for group, pattern, _ in rules.find([], "b.echo")] == [("*", "b.*")]
    assert rules.find([], "a.echo") == []


def test_lease_stays_within_budget_and_resets_each_period() -> None:
    account, stored, granted = _account("100/day"), None, 0
    for _ in range(500):
        lease, stored = decide_lease(stored, LeaseRequest(account, 30), DAY + 5.0)
        granted += lease.units
    lease, stored = decide_lease(stored, LeaseRequest(account, 30), DAY + 5.0)
    assert granted == 100 and lease.units == 0 and lease.seconds_left == 86_395.0
    assert decide_lease(stored, LeaseRequest(account, 8), DAY + 86_400.0)[0].units == 8
    back = decide_lease(StoredUse(DAY + 86_400, 100), LeaseRequest(account, 8), DAY + 5.0)[0]
    assert back.units == 0  # a clock that was set back gives nothing
    returned, _ = decide_lease(stored, LeaseRequest(account, 0, -10, DAY), DAY + 6.0)
    assert returned.used == 90
    late, _ = decide_lease(StoredUse(DAY + 86_400, 5), LeaseRequest(account, 0, -10, DAY), DAY + 86_401.0)
    assert late.used == 5  # units of an earlier period count nothing


class _Ledger(MemoryLedger):
    """A ledger that fails on request."""

    fails = False

    async def lease(self, requests: Sequence[LeaseRequest]) -> Mapping[str, BudgetLease]:
        if self.fails:
            raise LedgerError("no disk")
        return await super().lease(requests)


class _Lab:
    def __init__(self, **more: Any) -> None:
        self.now, self.events = 100.0, list[Event]()
        self.ledger = _Ledger(lambda: DAY + self.now)
        self.budgets = CallBudgets(self.ledger, self.events.append, now=lambda: self.now)

    async def count(self, accounts: Sequence[BudgetAccount], calls: int) -> int:
        taken = 0
        for _ in range(calls):
            try:
                await self.budgets.take(accounts)
            except (BudgetExceeded, LedgerUnavailable):
                break
            taken += 1
        return taken


@pytest.mark.anyio
async def test_budget_is_spent_to_the_last_call() -> None:
    lab, accounts = _Lab(), [_account("100/day"), _account("40/hour", "group eng")]
    assert await lab.count(accounts, 1000) == 40
    lab.now += 3600
    assert await lab.count(accounts, 1000) == 40
    lab.now += 3600
    assert await lab.count(accounts, 1000) == 20
    with pytest.raises(BudgetExceeded) as caught:
        await lab.budgets.take(accounts)
    assert caught.value.account.holder == "key k" and caught.value.resets_at == DAY + 86_400
    used = await lab.budgets.read(accounts)
    assert [used[each.id].used for each in accounts] == [100, 20]
    await lab.budgets.close()


@pytest.mark.anyio
async def test_concurrent_calls_stay_within_budget() -> None:
    lab, account = _Lab(), _account("100/day")
    outcomes = await asyncio.gather(*(lab.budgets.take([account]) for _ in range(300)), return_exceptions=True)
    assert sum(each is None for each in outcomes) == 100
    assert all(each is None or isinstance(each, BudgetExceeded) for each in outcomes)
    await lab.budgets.close()


@pytest.mark.anyio
async def test_lost_ledger_spends_lease_then_rejects_calls() -> None:
    lab, account = _Lab(), _account("1000/day")
    await lab.budgets.take([account])
    lab.ledger.fails = True
    left = await lab.count([account], 1000)
    assert 0 < left < 20
    with pytest.raises(LedgerUnavailable):
        await lab.budgets.take([account])
    lab.ledger.fails = False
    lab.now += PROBE_INTERVAL_S
    assert await lab.count([account], 50) == 50
    await lab.budgets.close()


@pytest.mark.anyio
async def test_open_budgets_allow_calls_for_an_hour_and_count_later() -> None:
    lab, account = _Lab(), _account("1000/day")
    lab.budgets.set_rules({}, fails_open=True)
    lab.ledger.fails = True
    assert await lab.count([account], 30) == 30
    lab.now += MAX_OPEN_S
    assert await lab.count([account], 30) == 0
    assert [getattr(each, "action", "") for each in lab.events] == ["budgets_open", "budgets_closed"]
    lab.ledger.fails = False
    lab.now += PROBE_INTERVAL_S
    assert await lab.count([account], 1) == 1
    assert (await lab.budgets.read([account]))[account.id].used == 31
    await lab.budgets.close()


@pytest.mark.anyio
async def test_exhausted_budget_stays_exhausted_without_ledger() -> None:
    lab, account = _Lab(), _account("5/day")
    lab.budgets.set_rules({}, fails_open=True)
    assert await lab.count([account], 10) == 5
    lab.ledger.fails = True
    lab.now += 5
    assert await lab.count([account], 10) == 0
    await lab.budgets.close()


@pytest.mark.anyio
async def test_usage_survives_restart_and_kill(tmp_path: Path) -> None:
    account = _account("100/day")
    first = CallBudgets(SqliteLedger(tmp_path / "b.sqlite"))
    for _ in range(30):
        await first.take([account])
    await first.close()  # returns what it did not use
    second = CallBudgets(SqliteLedger(tmp_path / "b.sqlite"))
    assert (await second.read([account]))[account.id].used == 30
    await second.take([account])
    third = CallBudgets(SqliteLedger(tmp_path / "b.sqlite"))  # the second was killed: what it held counts as used
    taken = 0
    with pytest.raises(BudgetExceeded):
        for _ in range(200):
            await third.take([account])
            taken += 1
    assert 50 < taken <= 69
    await third.close()
    await second.close()


@pytest.mark.anyio
async def test_key_budget_is_enforced_in_both_eras(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        budgets = (CallBudget.parse("6/day"),)
        token, key = found.keyring.create_key_sync("ci", None, False, 0.0, budgets=budgets)
        assert found.keyring.authenticate(token) == FileApiKeyStore(tmp_path / "keys.json", "x").principal_for(key.id)
        session = {"Mcp-Session-Id": await found.initialize(token=token)}
        for _ in range(3):
            assert "result" in await found.call("a__echo", {"text": "x"}, token=token)
            call = handshake("tools/call", {"name": "a__echo", "arguments": {"text": "x"}})
            assert "result" in message_of(await found.ask("POST", "/mcp", call, session, token=token))
        before = found.calls("a")
        body, fields = modern("tools/call", {"name": "a__echo", "arguments": {"text": "x"}})
        answer = await found.ask("POST", "/mcp", body, fields, token=token)
        assert answer.status == 429 and 0 < int(answer.headers["retry-after"]) <= 86_400
        refused = message_of(answer)["error"]
        assert refused["code"] == -31004 and "budget of 6/day" in refused["message"]
        facts = refused["data"]
        assert (facts["executed"], facts["code"], facts["budget"]) == ("no", "E-BUDGET", "6/day")
        assert facts["resetAt"].endswith("T00:00:00Z") and facts["fix"]
        assert found.calls("a") == before
        assert await found.tools(token=token)  # a list is free
        assert "result" in await found.call("a__echo", {"text": "x"})  # the owner has no budget
        shown = message_of(await found.ask("GET", "/admin/budgets"))["budgets"]
        assert [(each["name"], each["used"], each["amount"]) for each in shown] == [("ci", 6, 6)]


@pytest.mark.anyio
@pytest.mark.parametrize("plans", ["on", "off"])
async def test_call_with_wrong_arguments_is_counted(
    tmp_path: Path, plans: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLWAY_PLANS", plans)
    async with edge(tmp_path) as found:
        token, _ = found.keyring.create_key_sync("ci", None, False, 0.0, budgets=(CallBudget.parse("6/day"),))
        for _ in range(3):  # the later ones could be flights
            assert "result" in await found.call("a__echo", {"text": "x"}, token=token)
            wrong = (await found.call("a__echo", {"text": 7}, token=token))["result"]
            assert wrong["isError"] and wrong["_meta"]["toolway"]["code"] == "E-ARGUMENTS"
        assert found.calls("a") == 3
        spent = await found.call("a__echo", {"text": 7}, token=token)
        assert spent["error"]["data"]["code"] == "E-BUDGET"


@pytest.mark.anyio
async def test_group_shares_budget_and_pattern_limits_its_tools(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        budgets_of(found).set_rules(parse_budgets({"both": {"a.*": "4/day"}}), fails_open=False)
        one, two = found.key("both"), found.key("both")
        for token in (one, two, one, two):
            assert "result" in await found.call("a__echo", {"text": "x"}, token=token)
        for token in (one, two):
            assert (await found.call("a__echo", {"text": "x"}, token=token))["error"]["data"]["of"] == "toolset both"
            assert "result" in await found.call("b__echo", {"text": "x"}, token=token)
        assert "result" in await found.call("a__echo", {"text": "x"}, token=found.key())  # in no group


@pytest.mark.anyio
async def test_result_bytes_are_counted(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        token, _ = found.keyring.create_key_sync("ci", None, False, 0.0, budgets=(CallBudget.parse("10KB/day"),))
        sent, answer = 0, dict[str, Any]()
        for _ in range(20):
            answer = await found.call("a__echo", {"text": "x" * 3000}, token=token)
            if "error" in answer:
                break
            sent += 1
        assert sent == 2 and answer["error"]["data"]["budget"] == "10KB/day"  # the last one may exceed it
        shown = message_of(await found.ask("GET", "/admin/budgets"))["budgets"]
        assert 12_000 <= shown[0]["used"] < 14_000


@pytest.mark.anyio
async def test_concurrency_limit_of_key_is_enforced(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        token, _ = found.keyring.create_key_sync("ci", None, False, 0.0, concurrent=2)
        budgets, principal = budgets_of(found), found.keyring.authenticate(token)
        assert principal is not None and budgets.enter(principal) and budgets.enter(principal)
        refused = (await found.call("a__echo", {"text": "x"}, token=token))["error"]
        assert (refused["code"], refused["data"]["code"]) == (-31004, "E-CONCURRENT")
        budgets.leave(principal)
        for _ in range(5):
            assert "result" in await found.call("a__echo", {"text": "x"}, token=token)
        budgets.leave(principal)
        assert budgets._active == {}


def test_concurrency_limit_is_split_among_nodes() -> None:
    async def check() -> None:
        budgets = CallBudgets(node_count=lambda: 3)
        principal = Principal("k", "k", "key:k", attributes=(("concurrent", "7"),))
        assert budgets.enter(principal) and budgets.enter(principal)
        with pytest.raises(Exception, match="2"):
            budgets.enter(principal)

    asyncio.run(check())


def test_invalid_concurrency_limit_is_rejected(tmp_path: Path) -> None:
    keyring = FileApiKeyStore(tmp_path / "keys.json", "tw_owner-of-this")
    with pytest.raises(ConfigError, match="concurrent"):
        keyring.create_key_sync("ci", None, False, time.time(), concurrent=0)


def test_key_file_keeps_format_and_unknown_limit_rejects_key(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    keyring = FileApiKeyStore(file, "tw_owner-of-this")
    token, _ = keyring.create_key_sync("ci", None, False, 0.0, budgets=["5/day"], concurrent=3)
    stored = json.loads(file.read_text())["keys"][0]
    assert stored["budgets"] == [{"amount": 5, "period": "day", "unit": "calls"}] and stored["concurrent"] == 3
    assert "attributes" not in stored
    file.write_text(json.dumps({"format": 1, "keys": [{**stored, "lunar": 1}]}))
    assert FileApiKeyStore(file, "tw_owner-of-this").authenticate(token) is None
