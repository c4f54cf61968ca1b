"""Workflows of a gateway: tools for clients of both eras, tasks, rights, files that change, crashes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.gateway.admin.test_openapi import _check as check_reply
from tests.gateway.bridge_lab import Lab, Raw, lab, made
from tests.gateway.program import Program, program, until
from tests.gateway.test_bridge_changes import WITH_TASKS, listening
from tests.parts.pins.test_gateway import toolway
from tests.workflows.effect_server import read_effects
from tests.workflows.kill_runner import SERVER_FILE
from toolway.config.loader import load_file
from toolway.config.settings import GatewaySettings
from toolway.errors import ConfigError
from toolway.gateway.principals import FileApiKeyStore
from toolway.gateway.tool_filter import ToolFilter
from toolway.hub.hub import Hub
from toolway.parts.workflows.file_checks import check_workflows
from toolway.parts.workflows.run_access import GatewayRunAccess
from toolway.parts.workflows.service import JOURNAL_NAME
from toolway.workflows import Workflows
from toolway.workflows.mcp_tools import WorkflowServer
from toolway.workflows.reader import read_value
from toolway.workflows.sqlite_journal import SqliteJournal

pytest.importorskip("cel_expr_python", reason="the extra toolway[workflows] is not installed")
pytestmark = pytest.mark.anyio
Json = dict[str, Any]
INPUTS = {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}}
PAY = {"name": "a", "tool": "s.pay", "params": {"id": "${inputs.id}"}}
REFUND = {"name": "refund", "inputs": INPUTS, "steps": [{"name": "ok", "approve": "Pay?"}, PAY]}
PLAIN = {"name": "plain", "inputs": INPUTS, "steps": [PAY], "outputs": {"paid": "${steps.a.data.id}"}}
WITH_ALL = {**WITH_TASKS, "elicitation": {"form": {}}}


def effect_entry(folder: Path) -> Json:
    return {"command": sys.executable, "args": [str(SERVER_FILE), str(folder / "effects")]}


def effects(folder: Path) -> list[str]:
    return [each["id"] for each in read_effects(folder / "effects")]


@asynccontextmanager
async def serving(folder: Path, *bodies: Json, wait_s: float = 45.0, **options: Any) -> AsyncIterator[Lab]:
    """A gateway with these workflows, in this process."""
    async with lab({"s": effect_entry(folder)}, **options) as found:
        access = GatewayRunAccess(options.get("keyring"), found.gateway.router.may_call, found.gateway.router.may_see)
        async with Workflows(Hub._from_core(found.hub), folder / "runs.db", access=access) as workflows:
            definitions = [read_value(body) for body in bodies]
            server = WorkflowServer(workflows, definitions, wait_s=wait_s, roles=access.roles)
            await found.hub.servers.add("workflows", server)
            await found.hub.servers.wait_ready("workflows", timeout=30)
            yield found


async def until_task(raw: Raw, task: str, status: str) -> Json:
    async with asyncio.timeout(30):
        while True:
            got: Json = (await raw.ask("tasks/get", {"taskId": task}, capabilities=WITH_ALL)).result
            if got["status"] == status:
                return got
            await asyncio.sleep(0.02)


# -- clients ----------------------------------------------------------------------------------------------------------


async def test_client_with_tasks_gets_task_and_answers_form(tmp_path: Path) -> None:
    async with serving(tmp_path, REFUND) as found, found.raw("") as raw:
        begun = (await raw.call("workflows__refund", {"id": "A1"}, capabilities=WITH_ALL)).result
        assert begun["resultType"] == "task" and begun["status"] in ("working", "input_required")
        task = begun["taskId"]
        asks = await until_task(raw, task, "input_required")
        assert asks["inputRequests"]["ok"]["params"]["message"] == "[workflows] Pay?"
        assert effects(tmp_path) == []
        answer = {"ok": {"action": "accept", "content": {"yes": True}}}
        for _ in range(2):  # the second is an acknowledgement without effect
            await raw.ask("tasks/update", {"taskId": task, "inputResponses": answer}, capabilities=WITH_ALL)
        ended = await until_task(raw, task, "completed")
        assert ended["result"]["structuredContent"]["id"] == "A1"
        assert effects(tmp_path) == ["A1"]


async def test_task_can_be_cancelled_and_denial_fails_it(tmp_path: Path) -> None:
    async with serving(tmp_path, REFUND) as found, found.raw("") as raw:
        first = (await raw.call("workflows__refund", {"id": "A1"}, capabilities=WITH_ALL)).result["taskId"]
        await raw.ask("tasks/cancel", {"taskId": first}, capabilities=WITH_ALL)
        await until_task(raw, first, "cancelled")
        second = (await raw.call("workflows__refund", {"id": "A2"}, capabilities=WITH_ALL)).result["taskId"]
        await until_task(raw, second, "input_required")
        answer = {"ok": {"action": "decline"}}
        await raw.ask("tasks/update", {"taskId": second, "inputResponses": answer}, capabilities=WITH_ALL)
        failed = await until_task(raw, second, "failed")
        assert failed["error"]["data"]["code"] == "E-WORKFLOW-DENIED"
        assert effects(tmp_path) == []


async def test_task_subscriber_gets_run_status(tmp_path: Path) -> None:
    async with serving(tmp_path, REFUND) as found, found.raw("") as raw:
        task = (await raw.call("workflows__refund", {"id": "A1"}, capabilities=WITH_ALL)).result["taskId"]
        async with listening(raw, {"taskIds": [task]}, WITH_TASKS) as heard:
            await until(lambda: any(m["status"] == "input_required" for m in heard.of("notifications/tasks")))
            answer = {"ok": {"action": "accept", "content": {"yes": True}}}
            await raw.ask("tasks/update", {"taskId": task, "inputResponses": answer}, capabilities=WITH_ALL)
            await until(lambda: any(m["status"] == "completed" for m in heard.of("notifications/tasks")))


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_client_with_forms_answers_during_the_call(tmp_path: Path, era: str) -> None:
    from mcp.client.context import ClientRequestContext
    from mcp_types import ElicitRequestParams, ElicitResult

    async def answer(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        assert "Pay?" in params.message
        return ElicitResult(action="accept", content={"yes": True})

    async with serving(tmp_path, REFUND) as found, found.client(era, "", elicitation_callback=answer) as client:
        result = await client.call_tool("workflows__refund", {"id": "A1"})
    assert result.structured_content is not None and result.structured_content["id"] == "A1"
    assert effects(tmp_path) == ["A1"]


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_client_without_forms_gets_run_id_to_poll(tmp_path: Path, era: str) -> None:
    slow = {"name": "slow", "inputs": INPUTS, "steps": [{"name": "w", "wait": "1s"}, PAY]}
    async with serving(tmp_path, slow, REFUND, wait_s=0.2) as found, found.client(era, "") as client:
        asks = (await client.call_tool("workflows__refund", {"id": "A1"})).structured_content
        assert asks is not None and asks["state"] == "asks" and asks["asks"][0]["question"] == "Pay?"
        begun = (await client.call_tool("workflows__slow", {"id": "A2"})).structured_content
        assert begun is not None
        got: Json = begun
        while "run" in got:
            got = (await client.call_tool("workflows__run_status", {"run": begun["run"]})).structured_content or {}
        assert got["id"] == "A2" and effects(tmp_path) == ["A2"]


# -- rights -----------------------------------------------------------------------------------------------------------


async def test_run_calls_only_tools_its_starter_may_call(tmp_path: Path) -> None:
    keyring = FileApiKeyStore(tmp_path / "keys.json", "t" * 20)
    flows_only, _ = keyring.create_key_sync("flows", ["flows"], False, 0.0)
    both, _ = keyring.create_key_sync("both", ["flows", "server/s"], False, 0.0)
    toolsets = {"flows": ToolFilter(("workflows.*",))}
    async with serving(tmp_path, PLAIN, keyring=keyring, toolsets=toolsets) as found:
        async with found.raw("", flows_only) as raw:
            denied = (await raw.call("workflows__plain", {"id": "A1"}, capabilities={})).result
            assert denied["isError"] and denied["structuredContent"]["code"] == "E-WORKFLOW-STARTER"
        assert effects(tmp_path) == []
        async with found.raw("", both) as raw:
            paid = (await raw.call("workflows__plain", {"id": "A2"}, capabilities={})).result
            assert paid["structuredContent"] == {"paid": "A2"}


async def test_run_of_revoked_key_is_stuck_and_hidden_from_others(tmp_path: Path) -> None:
    keyring = FileApiKeyStore(tmp_path / "keys.json", "t" * 20)
    token, key = keyring.create_key_sync("starter", None, False, 0.0)
    stranger = made(keyring, "stranger")
    async with serving(tmp_path, REFUND, keyring=keyring) as found:
        async with found.raw("", token) as raw, found.raw("", stranger) as other:
            asks = (await raw.call("workflows__refund", {"id": "A1"}, capabilities={})).result["structuredContent"]
            unseen = (await other.call("workflows__run_status", {"run": asks["run"]}, capabilities={})).result
            assert unseen["isError"] and unseen["structuredContent"]["code"] == "E-WORKFLOW-RUN"
        keyring.revoke_key_sync(key.id)
        async with found.raw("", "t" * 20) as owner:
            status = {"name": "workflows__run_status", "arguments": {"run": asks["run"]}}
            form = (await owner.ask("tools/call", status)).result
            assert form["resultType"] == "input_required"
            yes = {"ok": {"action": "accept", "content": {"yes": True}}}
            more = {"requestState": form["requestState"], "inputResponses": yes}
            ended = (await owner.ask("tools/call", {**status, **more})).result
        assert ended["structuredContent"]["state"] == "stuck"
        assert ended["structuredContent"]["code"] == "E-WORKFLOW-STARTER"
    assert effects(tmp_path) == []


async def test_same_idempotency_key_returns_the_same_run(tmp_path: Path) -> None:
    async with serving(tmp_path, PLAIN) as found, found.raw("") as raw:
        meta = {"toolway/idempotencyKey": "one"}
        for _ in range(3):
            paid = (await raw.call("workflows__plain", {"id": "A1"}, capabilities={}, meta=meta)).result
            assert paid["structuredContent"] == {"paid": "A1"}
    assert effects(tmp_path) == ["A1"]


# -- the program ------------------------------------------------------------------------------------------------------


def write_flow(folder: Path, body: Json) -> None:
    (folder / "flows").mkdir(parents=True, exist_ok=True)
    (folder / "flows" / f"{body['name']}.yaml").write_text(json.dumps(body))


@asynccontextmanager
async def client(run: Program) -> AsyncIterator[Raw]:
    headers = {"authorization": f"Bearer {run.token}"}
    async with httpx2.AsyncClient(headers=headers, trust_env=False, timeout=60) as http:
        yield Raw(http, f"http://127.0.0.1:{run.port}/mcp")


async def command(run: Program, *words: str) -> tuple[str, str]:
    """What `toolway workflow … --gateway URL` tells, and what it prints."""
    gateway = ("--gateway", f"http://127.0.0.1:{run.port}", "--token", run.token)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "toolway.cli", "workflow", *words, *gateway),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err
    return err.decode(), out.decode()


async def tool_names(raw: Raw) -> set[str]:
    return {tool["name"] for tool in (await raw.ask("tools/list")).result["tools"]}


async def test_killed_gateway_resumes_runs_without_double_payment(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    first = {**PAY, "name": "first"}
    slow = {"name": "b", "tool": "s.pay", "params": {"id": "${inputs.id}-b", "delay_after": 600}}
    write_flow(folder, {"name": "two", "inputs": INPUTS, "steps": [first, slow]})
    servers = {"s": effect_entry(folder)}
    block: Json = {"workflows": ["flows/*.yaml"], "audit": {"to": "jsonl", "file": str(folder / "audit.jsonl")}}
    block["alerts"] = {"asksAfter": "100ms"}
    async with program(folder, servers, **block) as run:
        await run.until_ready("workflows")
        async with client(run) as raw:
            await raw.call("workflows__two", {"id": "A1"}, capabilities=WITH_TASKS)
            await until(lambda: effects(folder) == ["A1", "A1-b"])
        run.process.kill()
        await run.ended()
    async with program(folder, servers, **block) as run:
        await run.until_ready("workflows")
        async with asyncio.timeout(30):
            while not (asking := (await run.get("/admin/runs?state=asks"))[1]["runs"]):
                await asyncio.sleep(0.05)
        [row] = asking
        shown = (await run.get(f"/admin/runs/{row['id']}"))[1]
        assert [(each["step"], each["state"]) for each in shown["steps"]] == [("first", "done"), ("b", "unknown")]
        description = (await run.get("/admin/openapi.json"))[1]
        check_reply(description, "RunDetail", shown, "/admin/runs/{id}")
        check_reply(description, "RunList", (await run.get("/admin/runs"))[1], "/admin/runs")
        settled, *_ = [each for each in shown["actions"] if each["action"] == "settle"]
        assert "s.pay is not called again" in settled["effect"]
        await until_alerts(run, {"workflow-asks"})
        body = {**settled["body"], "result": {"id": "seen"}}
        told, shown_text = await command(run, "show", row["id"])
        assert settled["effect"] in told and "unknown" in shown_text
        told, _ = await command(run, "settle", row["id"], "--happened", "--result", '{"id": "seen"}')
        assert told.startswith(settled["effect"])  # before it is done
        async with asyncio.timeout(30):
            while (await run.get(f"/admin/runs/{row['id']}"))[1]["state"] != "done":
                await asyncio.sleep(0.05)
        await until_alerts(run, set())
        assert (await run.request("POST", f"/admin/runs/{row['id']}/settle", body))[0] == 422
        assert (await run.get("/admin/runs/nothing"))[0] == 404
        assert effects(folder) == ["A1", "A1-b"]
        connection_text = await metrics(run)
        assert 'toolway_workflow_runs_total{state="done",workflow="two"} 1.0' in connection_text
        assert await run.stop() == 0
    kinds = [json.loads(line)["kind"] for line in (folder / "audit.jsonl").read_text().splitlines()]
    assert {"run.started", "run.settled", "run.ended"} <= set(kinds)


async def until_alerts(run: Program, kinds: set[str]) -> None:
    async with asyncio.timeout(30):
        while {each["kind"] for each in (await run.get("/admin/alerts"))[1]["alerts"]} - {"outcome-unknown"} != kinds:
            await asyncio.sleep(0.05)


async def metrics(run: Program) -> str:
    async with httpx2.AsyncClient(headers={"authorization": f"Bearer {run.token}"}, trust_env=False) as http:
        return (await http.get(f"http://127.0.0.1:{run.port}/metrics")).text


async def test_workflow_files_reload_and_broken_file_affects_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    write_flow(folder, PLAIN)
    write_flow(folder, {"name": "asking", "steps": [{"name": "ok", "approve": "Continue?"}]})
    (folder / "flows" / "broken.yaml").write_text("steps: 7\n")
    async with program(folder, {"s": effect_entry(folder)}, workflows=["flows/*.yaml"]) as run:
        await run.until_ready("workflows")
        await run.until_logged("broken.yaml")
        called = {"server": "workflows", "tool": "asking", "arguments": {}}
        status, reply = await run.request("POST", "/admin/call", called)
        assert (status, reply["result"]["structuredContent"]["state"]) == (200, "asks")
        async with client(run) as raw:
            assert {"workflows__plain", "s__pay"} <= await tool_names(raw)
            _, config = await run.get("/admin/config")
            assert any("broken" in str(each) or "steps" in each["message"] for each in config["problems"])
            write_flow(folder, {**PLAIN, "name": "later"})
            (folder / "flows" / "plain.yaml").unlink()
            async with asyncio.timeout(30):
                while not (await tool_names(raw) >= {"workflows__later"}):
                    await asyncio.sleep(0.05)
            assert "workflows__plain" not in await tool_names(raw)
            run.write({"s": effect_entry(folder)})  # no workflows any more
            async with asyncio.timeout(30):
                while "workflows__later" in await tool_names(raw):
                    await asyncio.sleep(0.05)
            assert "s__pay" in await tool_names(raw)
        assert await run.stop() == 0


async def test_terminal_approvals_show_and_answer_runs(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    write_flow(folder, {"name": "asking", "steps": [{"name": "ok", "approve": "Continue?"}]})
    async with program(folder, {"s": effect_entry(folder)}, workflows=["flows/*.yaml"]) as run:
        await run.until_ready("workflows")
        called = {"server": "workflows", "tool": "asking", "arguments": {}}
        ids = [
            (await run.request("POST", "/admin/call", called))[1]["result"]["structuredContent"]["run"] for _ in "ab"
        ]
        waiting = (await toolway(run, "approvals", "ls"))["runs"]
        assert {each["id"] for each in waiting} == set(ids)
        assert waiting[0]["gateway"].endswith(f":{run.port}")
        shown = await toolway(run, "approvals", "show", ids[0])
        assert [(each["step"], each["title"]) for each in shown["questions"]] == [("ok", "Continue?")]
        assert await toolway(run, "approvals", "approve", ids[0]) == {"run": ids[0], "stored": True}
        assert await toolway(run, "approvals", "deny", ids[1], "no") == {"run": ids[1], "stored": True}
        async with asyncio.timeout(30):
            while {(await run.get(f"/admin/runs/{id}"))[1]["state"] for id in ids} != {"done", "failed"}:
                await asyncio.sleep(0.05)
        assert (await toolway(run, "approvals", "ls"))["runs"] == []
        unknown = await toolway(run, "approvals", "show", "asking-0123")
        assert unknown["error"]["code"] == "E-WORKFLOW-RUN"


async def test_stopping_gateway_returns_run_to_waiting_client(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    write_flow(folder, {"name": "long", "inputs": INPUTS, "steps": [{"name": "w", "wait": "1h"}, PAY]})
    async with program(folder, {"s": effect_entry(folder)}, workflows=["flows/long.yaml"]) as run:
        await run.until_ready("workflows")
        async with client(run) as raw:
            called = asyncio.create_task(raw.call("workflows__long", {"id": "A1"}, capabilities={}))
            async with asyncio.timeout(30):
                while (await run.get("/admin"))[1]["running"] < 2:  # this request, and the call
                    await asyncio.sleep(0.02)
            run.signal()
            assert (await called).result["structuredContent"]["state"] in ("ready", "running", "waiting")
        assert await run.ended() == 0


async def test_scheduled_workflow_runs_until_schedule_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    scheduled = {"name": "tick", "schedule": {"every": 1, "inputs": {"id": "T"}}, "inputs": INPUTS, "steps": [PAY]}
    write_flow(folder, scheduled)
    async with program(folder, {"s": effect_entry(folder)}, workflows=["flows/*.yaml"]) as run:
        await until(lambda: len(effects(folder)) >= 2, 60)
        write_flow(folder, {key: value for key, value in scheduled.items() if key != "schedule"})
        journal = Workflows.for_reading(SqliteJournal(folder / "state" / JOURNAL_NAME, owner=False))
        async with asyncio.timeout(60):
            while await journal.list_runs("waiting"):
                await asyncio.sleep(0.05)
        await journal._get_journal().close()
        assert await run.stop() == 0
    ended = effects(folder)
    assert set(ended) == {"T"}


# -- configuration ----------------------------------------------------------------------------------------------------


def test_workflow_patterns_are_relative_and_bad_ones_rejected(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {}, "toolway": {"workflows": ["flows/*.yaml", "/etc/one.yaml"]}}))
    assert load_file(file).gateway.workflows == (f"{tmp_path}/flows/*.yaml", "/etc/one.yaml")
    for bad in (["**/x.yaml"], [""], {"a": 1}):
        file.write_text(json.dumps({"mcpServers": {}, "toolway": {"workflows": bad}}))
        with pytest.raises(ConfigError):
            load_file(file)


def test_doctor_reports_broken_workflow_file(tmp_path: Path) -> None:
    write_flow(tmp_path, PLAIN)
    write_flow(tmp_path, {**PLAIN, "name": "run_status"})
    settings = GatewaySettings(workflows=(str(tmp_path / "flows/*.yaml"), str(tmp_path / "gone.yaml")))
    found = {(check.state, check.code) for check in check_workflows(settings)}
    assert found == {("ok", ""), ("fail", "E-WORKFLOW-FILE")}
    assert any("gone.yaml" in check.message for check in check_workflows(settings))
