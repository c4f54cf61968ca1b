"""Calls that wait until an administrator approves them: one call, once, as it was shown."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.bridge_lab import made
from tests.gateway.full_server import FullHttp
from tests.parts.approvals.lab import ERAS, Asking, Clock, asking, call, refusal
from toolway import Hub, ProtocolError
from toolway.events import CallFinished
from toolway.gateway.principals import FileApiKeyStore
from toolway.middleware.approval import ApprovalRequired
from toolway.parts.approvals import records
from toolway.parts.approvals.admin import SCHEMAS
from toolway.parts.approvals.records import ShownArgument
from toolway.telemetry.logging import LogSink
from toolway.telemetry.metrics import Metrics, summarize_stats
from toolway.telemetry.recent_calls import CallQuery, RecentCalls, call_to_json
from toolway.types import Json
from toolway.workflows import Workflows, step_planner
from toolway.workflows.journal import FINAL_STATES

pytestmark = pytest.mark.anyio

BY_ADMIN: Json = {"bank.echo": "admin"}
PAY: Json = {"text": "pay 100"}
WAITS = (-31014, "E-APPROVAL")


async def approve(lab: Asking, answer: Any) -> str:
    id_: str = answer.error["data"]["approvalId"]
    await lab.gate.decide(id_, "approved", "")
    return id_


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("server_era", ERAS)
async def test_approved_call_runs_once(tmp_path: Path, era: str, server_era: str) -> None:
    async with asking(tmp_path, BY_ADMIN, era=server_era) as lab, lab.raw("server/bank") as raw:
        first = await call(raw, era, "echo", PAY)
        assert refusal(first) == WAITS and first.error["data"]["retryAfterMs"] > 0 and first.status == 200
        again = await call(raw, era, "echo", PAY)
        assert again.error["data"]["approvalId"] == first.error["data"]["approvalId"], "one request for one call"
        (shown,) = await lab.waiting()
        assert (shown.server, shown.tool, shown.arguments) == ("bank", "echo", [ShownArgument("text", '"pay 100"')])
        assert lab.executed() == 0
        await approve(lab, first)
        assert (await call(raw, era, "echo", PAY)).result["content"][0]["text"] == "pay 100"
        third = await call(raw, era, "echo", PAY)
        assert refusal(third) == WAITS and third.error["data"]["approvalId"] != first.error["data"]["approvalId"]
        assert lab.executed() == 1
        assert lab.actions == ["asked", "approved", "used", "asked"]


@pytest.mark.parametrize("era", ERAS)
async def test_approval_does_not_cover_any_other_call(tmp_path: Path, era: str) -> None:
    keyring = FileApiKeyStore(tmp_path / "keys.json", "tw_owner")
    rules = {"bank.echo": "admin", "bank.ask": "admin"}
    async with (
        asking(tmp_path, rules, keyring=keyring) as lab,
        lab.raw("server/bank", made(keyring, "anna")) as raw,
        lab.raw("server/bank", made(keyring, "ben")) as other,
    ):
        await approve(lab, await call(raw, era, "echo", PAY))
        for who, name, arguments in (
            (raw, "echo", {"text": "pay 900"}),
            (raw, "echo", {**PAY, "confirm": True}),
            (raw, "echo", {**PAY, "approvalId": "any"}),
            (raw, "ask", PAY),
            (other, "echo", PAY),
        ):
            assert refusal(await call(who, era, name, arguments)) == WAITS
        assert lab.executed() == lab.executed("ask") == 0


@pytest.mark.parametrize("era", ERAS)
async def test_denied_call_reports_the_reason(tmp_path: Path, era: str) -> None:
    async with asking(tmp_path, BY_ADMIN) as lab, lab.raw("server/bank") as raw:
        id_ = (await call(raw, era, "echo", PAY)).error["data"]["approvalId"]
        await lab.gate.decide(id_, "denied", "", "not on Fridays")
        denied = await call(raw, era, "echo", PAY)
        assert refusal(denied) == (-31010, "E-APPROVAL-DENIED") and "not on Fridays" in denied.error["message"]
        assert lab.executed() == 0 and await lab.waiting() == []


async def test_approval_expires(tmp_path: Path) -> None:
    clock = Clock()
    async with asking(tmp_path, BY_ADMIN, now=clock) as lab, lab.raw("server/bank") as raw:
        await approve(lab, await call(raw, "modern", "echo", PAY))
        clock.moved += records.APPROVAL_LIFETIME_S + 1
        second = await call(raw, "modern", "echo", PAY)
        assert refusal(second) == WAITS
        clock.moved += records.APPROVAL_LIFETIME_S + 1
        with pytest.raises(Exception, match="unknown or expired"):
            await approve(lab, second)
        assert refusal(await call(raw, "modern", "echo", PAY)) == WAITS
        assert lab.executed() == 0 and lab.actions.count("expired") == 1


async def test_changed_tool_needs_new_approval(tmp_path: Path) -> None:
    async with asking(tmp_path, BY_ADMIN) as lab, lab.raw("server/bank") as raw:
        await approve(lab, await call(raw, "modern", "echo", PAY))
        tool = lab.hub.lists.catalog.find_tool("bank", "echo")
        assert tool is not None
        changed = [{**each.raw, "description": "Other."} for each in lab.hub.lists.catalog.tools("bank")]
        lab.hub.lists.catalog.replace("bank", "tools", changed)
        assert refusal(await call(raw, "modern", "echo", PAY)) == WAITS
        lab.hub.lists.catalog.replace("bank", "tools", [{**each, "description": "Third."} for each in changed])
        assert lab.executed() == 0


async def test_one_of_many_identical_calls_uses_the_approval(tmp_path: Path) -> None:
    async with asking(tmp_path, BY_ADMIN) as lab, lab.raw("server/bank") as raw:
        await approve(lab, await call(raw, "modern", "echo", PAY))
        answers = await asyncio.gather(*(call(raw, "modern", "echo", PAY) for _ in range(20)))
        assert sum("result" in each.last for each in answers) == 1
        assert lab.executed() == 1 and len(await lab.waiting()) == 1


@pytest.mark.parametrize("era", ERAS)
async def test_approvals_survive_restart_and_are_used_once(tmp_path: Path, era: str) -> None:
    async with FullHttp("modern") as fake:
        async with asking(tmp_path, BY_ADMIN, fake=fake) as lab, lab.raw("server/bank") as raw:
            id_ = (await call(raw, era, "echo", PAY)).error["data"]["approvalId"]
        async with asking(tmp_path, BY_ADMIN, fake=fake) as lab, lab.raw("server/bank") as raw:
            await lab.gate.decide(id_, "approved", "")
        async with asking(tmp_path, BY_ADMIN, fake=fake) as lab, lab.raw("server/bank") as raw:
            assert "result" in (await call(raw, era, "echo", PAY)).last
        async with asking(tmp_path, BY_ADMIN, fake=fake) as lab, lab.raw("server/bank") as raw:
            assert refusal(await call(raw, era, "echo", PAY)) == WAITS
            assert lab.executed() == 1


@pytest.mark.parametrize("change", ["state = 'approved'", "caller = 'x'", "sealed = 'x'", "until = until + 9000"])
async def test_changed_row_approves_nothing(tmp_path: Path, change: str) -> None:
    async with asking(tmp_path, BY_ADMIN) as lab, lab.raw("server/bank") as raw:
        await call(raw, "modern", "echo", PAY)
        with sqlite3.connect(tmp_path / "approvals.sqlite") as db:
            db.execute(f"UPDATE approvals SET {change}")
        assert refusal(await call(raw, "modern", "echo", PAY)) == WAITS
        assert lab.executed() == 0


async def test_restored_row_is_not_used_again(tmp_path: Path) -> None:
    async with asking(tmp_path, BY_ADMIN) as lab, lab.raw("server/bank") as raw:
        await approve(lab, await call(raw, "modern", "echo", PAY))
        with sqlite3.connect(tmp_path / "approvals.sqlite") as db:
            rows = db.execute("SELECT * FROM approvals").fetchall()
        assert "result" in (await call(raw, "modern", "echo", PAY)).last
        with sqlite3.connect(tmp_path / "approvals.sqlite") as db:
            db.executemany("INSERT OR REPLACE INTO approvals VALUES (?, ?, ?, ?, ?, ?)", rows)
        assert refusal(await call(raw, "modern", "echo", PAY)) == (-31010, "E-APPROVAL-DENIED")
        assert lab.executed() == 1


async def test_unusable_store_rejects_calls(tmp_path: Path) -> None:
    (tmp_path / "approvals.sqlite").write_text("no database" * 100)
    async with asking(tmp_path, BY_ADMIN) as lab, lab.raw("server/bank") as raw:
        assert refusal(await call(raw, "modern", "echo", PAY)) == (-31009, "E-APPROVAL-STORE")
        assert lab.executed() == 0


async def test_full_queue_rejects_and_one_caller_gets_half_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MAX_PENDING", 6)
    keyring = FileApiKeyStore(tmp_path / "keys.json", "tw_owner")
    async with asking(tmp_path, BY_ADMIN, keyring=keyring) as lab:
        codes = []
        for name in ("anna", "ben", "carl"):
            async with lab.raw("server/bank", made(keyring, name)) as raw:
                codes += [refusal(await call(raw, "modern", "echo", {"text": str(each)})) for each in range(4)]
        full = (-31003, "E-APPROVAL-QUEUE")
        assert codes == [*[WAITS] * 3, full, *[WAITS] * 3, full, *[full] * 4]
        assert lab.executed() == 0 and len(await lab.waiting()) == 6


async def test_200_calls_can_wait_at_once(tmp_path: Path) -> None:
    async with asking(tmp_path, BY_ADMIN) as lab, lab.raw("server/bank") as raw:
        calls = [{"text": str(number)} for number in range(200)]
        asked = await asyncio.gather(*(call(raw, "modern", "echo", each) for each in calls))
        assert len({each.error["data"]["approvalId"] for each in asked}) == len(await lab.waiting()) == 200
        for each, arguments in zip(asked[:20], calls, strict=False):
            await approve(lab, each)
            assert "result" in (await call(raw, "modern", "echo", arguments)).last
        assert lab.executed() == 20 and len(await lab.waiting()) == 180


# -- ways to a server -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
async def test_call_tool_of_search_endpoint_needs_approval(tmp_path: Path, era: str) -> None:
    async with asking(tmp_path, BY_ADMIN) as lab, lab.raw("search") as raw:
        wrapped = {"name": "bank__echo", "arguments": PAY}
        first = await call(raw, era, "call_tool", wrapped)
        assert refusal(first) == WAITS and lab.executed() == 0
        await approve(lab, first)
        assert "result" in (await call(raw, era, "call_tool", wrapped)).last
        assert lab.executed() == 1


async def test_playground_and_hub_calls_need_approval(tmp_path: Path) -> None:
    async with asking(tmp_path, BY_ADMIN) as lab, lab.raw() as raw:
        body = {"server": "bank", "tool": "echo", "arguments": PAY}
        reply = await raw.http.post(f"{lab.base}/admin/call", json=body)
        assert reply.json()["error"]["code"] == "E-APPROVAL"
        hub = Hub._from_core(lab.hub)  # as steps of workflows and agents use it
        with pytest.raises(ApprovalRequired):
            await hub.call_tool("bank.echo", PAY)
        assert lab.executed() == 0


async def test_hub_behind_gateway_reports_call_did_not_run(tmp_path: Path) -> None:
    async with asking(tmp_path, BY_ADMIN) as lab:
        entry = {"url": f"{lab.base}/mcp", "headers": {"Authorization": "Bearer tw_owner"}}
        async with Hub({"gateway": entry}) as hub:
            with pytest.raises(ProtocolError) as refused:
                await hub.call_tool("gateway.bank__echo", PAY)
        assert (refused.value.rpc_code, refused.value.executed) == (-31014, "no")
        assert lab.executed() == 0


async def test_workflow_step_waits_for_approval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cel_expr_python", reason="the extra toolway[workflows] is not installed")
    monkeypatch.setattr(step_planner, "HOLD_POLL_S", 0.05)
    steps = [{"name": name, "tool": "bank.echo", "params": PAY | {"n": name}} for name in ("yes", "no")]
    async with asking(tmp_path, BY_ADMIN) as lab:
        async with Workflows(Hub._from_core(lab.hub), tmp_path / "runs.db") as workflows:
            run = await workflows.start({"steps": steps})
            (request,) = await waiting(lab, 1)
            assert lab.executed() == 0 and (await run.status()).state not in FINAL_STATES
        async with Workflows(Hub._from_core(lab.hub), tmp_path / "runs.db") as workflows:  # as after a restart
            await lab.gate.decide(request.id, "approved", "")
            (other,) = await waiting(lab, 1, besides=request.id)
            assert lab.executed() == 1
            await lab.gate.decide(other.id, "denied", "too much")
            async with asyncio.timeout(30):
                async for ended in workflows.watch(run.id):
                    if ended.state in FINAL_STATES:
                        break
            assert (ended.state, (ended.error or {})["code"]) == ("failed", "E-APPROVAL-DENIED")
            assert lab.executed() == 1


async def waiting(lab: Asking, count: int, besides: str = "") -> list[records.ApprovalRequest]:
    """Wait for that many other pending requests, and return them."""
    async with asyncio.timeout(30):
        while True:
            found = [each for each in await lab.gate.list_requests() if each.state == "pending" and each.id != besides]
            if len(found) == count:
                return found
            await asyncio.sleep(0.02)


async def test_task_needs_approval_once(tmp_path: Path) -> None:
    tasks: Json = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
    async with asking(tmp_path, {"bank.start_task": "admin"}) as lab, lab.raw("server/bank") as raw:
        first = await call(raw, "modern", "start_task", {}, capabilities=tasks)
        await approve(lab, first)
        task = (await call(raw, "modern", "start_task", {}, capabilities=tasks)).result["taskId"]
        assert (await raw.ask("tasks/get", {"taskId": task}, capabilities=tasks)).result["status"] == "working"
        assert lab.executed("start_task") == 1


async def test_administrator_answers_over_http(tmp_path: Path) -> None:
    keyring = FileApiKeyStore(tmp_path / "keys.json", "tw_owner")
    boss, _ = keyring.create_key_sync("boss", None, True, 0.0)
    async with asking(tmp_path, BY_ADMIN, keyring=keyring) as lab, lab.raw("server/bank", boss) as raw:

        async def admin(token: str, method: str, path: str, body: Json | None = None) -> tuple[int, Any]:
            url, headers = f"{lab.base}/admin/approvals{path}", {"authorization": f"Bearer {token}"}
            reply = await raw.http.request(method, url, json=body, headers=headers)
            return reply.status_code, reply.json()

        id_ = (await call(raw, "modern", "echo", PAY)).error["data"]["approvalId"]
        status, found = await admin("tw_owner", "GET", "")
        assert status == 200 and [each["id"] for each in found["requests"]] == [id_]
        status, shown = await admin("tw_owner", "GET", f"/{id_}")
        assert shown.keys() == SCHEMAS["Approval"]["properties"].keys()
        assert (shown["caller"], shown["arguments"]) == ("boss", [{"name": "text", "value": '"pay 100"', "note": ""}])
        status, error = await admin(boss, "POST", f"/{id_}", {"yes": True})
        assert (status, error["error"]["code"]) == (422, "E-APPROVAL-OWN"), "no caller approves its own call"
        assert (await admin(made(keyring, "guest"), "POST", f"/{id_}", {"yes": True}))[0] == 403
        assert (await admin("tw_owner", "POST", f"/{id_}", {"yes": "yes"}))[0] == 400
        assert (await admin("tw_owner", "POST", "/unknown", {"yes": True}))[0] == 404
        assert (await admin("tw_owner", "POST", f"/{id_}", {"yes": True, "note": "ok"}))[1]["state"] == "approved"
        assert (await admin("tw_owner", "POST", f"/{id_}", {"yes": False}))[0] == 404, "it was answered"
        assert "result" in (await call(raw, "modern", "echo", PAY)).last


# -- rules ------------------------------------------------------------------------------------------------------------


@pytest.mark.fast_path
async def test_call_has_a_cached_plan_only_without_a_rule(tmp_path: Path) -> None:
    async with asking(tmp_path, BY_ADMIN) as lab, lab.raw("server/bank") as raw:
        assert "result" in (await call(raw, "modern", "declared", {})).last
        echo, other = (lab.hub.lists.catalog.find_tool("bank", name) for name in ("echo", "declared"))
        assert echo is not None and other is not None
        plan = lab.hub.calls.planner.find(other, "")
        assert plan is not None and lab.hub.calls.planner.find(echo, "") is None
        from toolway.parts.approvals.rules import parse_approve

        assert lab.gate.set_rules(parse_approve({"bank.declared": "admin"}))
        lab.hub.calls.on_approval_rules_changed()
        assert not plan.is_valid() and lab.hub.calls.planner.find(other, "") is None
        assert refusal(await call(raw, "modern", "declared", {})) == WAITS
        assert "result" in (await call(raw, "modern", "echo", PAY)).last


async def test_condition_on_arguments_decides_and_errors_ask(tmp_path: Path) -> None:
    pytest.importorskip("cel_expr_python")
    rules = {"bank.declared": {"by": "admin", "when": "args.amount > 100 || args.to.exists(x, x == 'evil')"}}
    async with asking(tmp_path, rules) as lab, lab.raw("server/bank") as raw:
        small = {"amount": 5, "to": ["anna"]}
        assert "result" in (await call(raw, "modern", "declared", small)).last
        for arguments in ({**small, "amount": 500}, {**small, "to": ["evil"]}, {"amount": "500"}, {}):
            assert refusal(await call(raw, "modern", "declared", arguments)) == WAITS
        assert lab.executed("declared") == 1


async def test_prompts_and_resources_need_no_approval(tmp_path: Path) -> None:
    async with asking(tmp_path, {"*": "admin"}) as lab, lab.raw("server/bank") as raw:
        answer = await raw.ask("resources/list", {})
        assert "result" in answer.last
        uri = answer.result["resources"][0]["uri"]
        assert "result" in (await raw.ask("resources/read", {"uri": uri})).last


@pytest.mark.user_trial("9")
async def test_call_waiting_for_approval_is_not_a_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    metrics, recent = Metrics(), RecentCalls()
    async with asking(tmp_path, BY_ADMIN) as lab, lab.raw("server/bank") as raw:
        for sink in (metrics, LogSink()):
            lab.hub.instrumentation.add_sink(sink)
        events = lab.hub.events(CallFinished)
        first = await call(raw, "modern", "echo", PAY)
        recent.on_calls([event async for event in first_of(events)])
        await approve(lab, first)
        await call(raw, "modern", "echo", PAY)
        minutes = summarize_stats(metrics.minutes().values(), time.time())
        series = metrics.store.series["bank", "tools/call", "echo"]
    assert (minutes["calls"], minutes["errors"]) == (2, 0)
    assert set(series.outcomes) == {("waiting", "E-APPROVAL"), ("ok", "")}
    (waited,) = map(call_to_json, recent.find_newest())
    assert (waited["outcome"], waited["failed"], waited["code"]) == ("waiting", False, "E-APPROVAL")
    assert recent.find_newest(CallQuery(failed=True)) == []
    lines = [(each.levelname, each.getMessage()) for each in caplog.records if each.name == "toolway.calls"]
    assert lines == [("INFO", "call is waiting"), ("INFO", "call")]


async def first_of(events: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for event in events:
        yield event
        return
