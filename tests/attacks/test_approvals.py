"""Attacks on the approver of a call: what is not shown, and what only looks masked."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.edge_lab import modern
from tests.gateway.load_clients import Connection
from tests.gateway.program import Program, program
from tests.parts.approvals.lab import asking, call, refusal
from tests.parts.pins.test_gateway import toolway

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
SECRET = "Tq7v/Lm2Xk9Zp4Rw8Yb6Nc1Vd"

#: A server that writes down what it is sent.
SERVER = """
import json, os, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    tool = {"name": "pay", "inputSchema": {"type": "object"}}
    result = {"initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                             "serverInfo": {"name": "bank", "version": "1"}},
              "tools/list": {"tools": [tool]}, "tools/call": {"content": []}}.get(message["method"], {})
    if message["method"] == "tools/call":
        with open(sys.argv[1], "a") as file:
            file.write(json.dumps(message["params"]) + "\\n")
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


def entry(folder: Path) -> Json:
    (folder / "server.py").write_text(SERVER)
    args = [str(folder / "server.py"), str(folder / "sent.jsonl")]
    return {"command": sys.executable, "args": args, "env": {"API_TOKEN": SECRET, "PROJECT": "payments"}}


async def pay(run: Program, arguments: Json, meta: Json | None = None) -> Json:
    body, fields = modern("tools/call", {"name": "bank__pay", "arguments": arguments})
    body["params"]["_meta"] |= meta or {}
    connection = await Connection.to(run.port)
    try:
        fields |= {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        fields |= {"authorization": f"Bearer {run.token}"}
        answer = await connection.request("POST", "/mcp", fields, json.dumps(body).encode())
        found: Json = json.loads(answer.body.removeprefix(b"event: message\ndata: "))
        return found
    finally:
        connection.close()


def digest_of(arguments: Json, **others: Any) -> str:
    """The digest of what is sent, as docs/howto/approvals.md describes it."""
    sent = {"name": "pay", "arguments": arguments, **others}
    return hashlib.sha256(
        json.dumps(sent, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    ).hexdigest()


async def show_in_terminal(run: Program, id_: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "toolway.cli", "approvals", "show", id_),
        env={"PATH": "/usr/bin:/bin", "HOME": str(run.folder), "TOOLWAY_STATE": str(run.folder / "state")},
        stdout=asyncio.subprocess.PIPE,
    )
    return (await process.communicate())[0].decode()


@pytest.mark.attack("A2-W6")
async def test_approval_covers_all_arguments_of_a_long_call(tmp_path: Path) -> None:
    hidden = "IBAN of the attacker"
    arguments: Json = {f"part{number:03}": "ordinary " * 30 for number in range(100)}
    arguments["text"] = "x" * 20_000 + hidden
    async with program(tmp_path, {"bank": entry(tmp_path)}, approve={"bank.*": "admin"}) as run:
        id_ = (await pay(run, arguments))["error"]["data"]["approvalId"]
        (row,) = (await run.get("/admin/approvals"))[1]["requests"]
        assert not row["complete"] and row["digest"] == digest_of(arguments)
        whole = (await run.get(f"/admin/approvals/{id_}"))[1]
        assert whole["complete"] and whole["digest"] == row["digest"]
        assert {each["name"]: json.loads(each["value"]) for each in whole["arguments"]} == arguments
        shown = await show_in_terminal(run, id_)
        assert hidden in shown and "part099 = " in shown and f"sha256 {digest_of(arguments)[:16]}" in shown
        await toolway(run, "approvals", "approve", id_)
        other = {**arguments, "text": arguments["text"] + "!"}
        assert (await pay(run, other))["error"]["data"]["code"] == "E-APPROVAL", "the approval is for another digest"
        assert "result" in await pay(run, arguments)
        (sent,) = [json.loads(line) for line in (tmp_path / "sent.jsonl").read_text().splitlines()]
        assert digest_of(sent["arguments"]) == whole["digest"]


@pytest.mark.attack("A2-S12")
async def test_approval_shows_and_covers_meta(tmp_path: Path) -> None:
    arguments: Json = {"amount": 1}
    meta = {"bank.example/payee": "the attacker", "io.modelcontextprotocol/payee": SECRET}
    ordinary = {"progressToken": 7, "traceparent": f"00-{'1' * 32}-{'2' * 16}-01", "toolway/timeoutMs": 30_000}
    async with program(tmp_path, {"bank": entry(tmp_path)}, approve={"bank.*": "admin"}) as run:
        id_ = (await pay(run, arguments, meta))["error"]["data"]["approvalId"]
        whole = (await run.get(f"/admin/approvals/{id_}"))[1]
        assert [(each["name"], each["value"]) for each in whole["arguments"]] == [
            ("amount", "1"),
            ("request._meta.bank.example/payee", '"the attacker"'),
            ("request._meta.io.modelcontextprotocol/payee", '"***"'),
        ]
        assert whole["digest"] == digest_of(arguments, _meta=meta)
        assert "the attacker" in await show_in_terminal(run, id_)
        plain = (await pay(run, arguments, ordinary))["error"]["data"]["approvalId"]
        assert (await run.get(f"/admin/approvals/{plain}"))[1]["digest"] == digest_of(arguments)
        await toolway(run, "approvals", "approve", plain)
        for other in (meta, {"bank.example/payee": "somebody else"}):
            assert (await pay(run, arguments, other))["error"]["data"]["code"] == "E-APPROVAL"
        assert "result" in await pay(run, arguments, {**ordinary, "progressToken": 8})
        await toolway(run, "approvals", "approve", id_)
        assert "result" in await pay(run, arguments, meta)
        sent = [json.loads(line)["_meta"] for line in (tmp_path / "sent.jsonl").read_text().splitlines()]
        assert [each.get("bank.example/payee") for each in sent] == [None, "the attacker"]


@pytest.mark.attack("A2-W6")
async def test_secrets_in_a_call_are_masked_and_named_in_its_approval(tmp_path: Path) -> None:
    arguments = {"a": SECRET, "b": f"to {SECRET}", "c": "***", "d": "payments", "e": SECRET.replace("/", "%2F")}
    async with program(tmp_path, {"bank": entry(tmp_path)}, approve={"bank.*": "admin"}) as run:
        id_ = (await pay(run, arguments))["error"]["data"]["approvalId"]
        found = (await run.get(f"/admin/approvals/{id_}"))[1]["arguments"]
        shown = await show_in_terminal(run, id_)
        assert [(each["value"], each["note"]) for each in found] == [
            ('"***"', "equals the secret API_TOKEN of server bank"),
            ('"to ***"', "contains the secret API_TOKEN of server bank"),
            ('"***"', ""),
            ('"***"', "equals the secret PROJECT of server bank"),
            ('"***"', "equals the secret API_TOKEN of server bank"),
        ]
        assert shown.count("equals the secret API_TOKEN of server bank") == 2
        assert SECRET[:4] not in json.dumps(found) + shown


@pytest.mark.attack("A2-W6")
async def test_call_too_long_to_review_is_rejected_and_not_stored(tmp_path: Path) -> None:
    async with program(tmp_path, {"bank": entry(tmp_path)}, approve={"bank.*": "admin"}) as run:
        error = (await pay(run, {"text": "x" * 70_000}))["error"]["data"]
        assert (error["code"], error["executed"]) == ("E-APPROVAL-SIZE", "no")
        assert (await run.get("/admin/approvals"))[1]["requests"] == []
        assert not (tmp_path / "sent.jsonl").exists()


@pytest.mark.attack("A2-W6")
@pytest.mark.parametrize(
    "text", ["\\" * 10_000, "\U0001f600" * 16_000, "\u202e" * 10_000, "\\" * 16_000 + "é" * 16_000]
)
async def test_long_approval_request_is_stored_whole(tmp_path: Path, text: str) -> None:
    """What is accepted for a review is stored and shown."""
    async with asking(tmp_path, {"bank.*": "admin"}) as lab, lab.raw("server/bank") as raw:
        id_ = (await call(raw, "modern", "echo", {"text": text})).error["data"]["approvalId"]
        found = await lab.gate.get_request(id_)
        assert json.loads(found.arguments[0].value) == text


@pytest.mark.attack("R4-held-1")
async def test_approval_does_not_cover_lookalike_arguments(tmp_path: Path) -> None:
    rules = {"bank.echo": "admin"}
    async with asking(tmp_path, rules) as lab, lab.raw("server/bank") as raw:
        shown = {"text": "caf\u00e9", "amount": 1, "to": {"a": 0, "b": [1, 2]}}
        first = await call(raw, "modern", "echo", shown)
        await lab.gate.decide(first.error["data"]["approvalId"], "approved", "")
        for other in (
            {**shown, "text": "cafe\u0301"},
            {**shown, "text": "caf\u00e9\u200b"},
            {**shown, "amount": 1.0},
            {**shown, "amount": True},
            {**shown, "amount": "1"},
            {**shown, "to": {"a": -0.0, "b": [1, 2]}},
            {**shown, "to": {"a": 0, "b": [2, 1]}},
            {**shown, "more": None},
        ):
            assert refusal(await call(raw, "modern", "echo", other)) == (-31014, "E-APPROVAL"), other
        assert lab.executed() == 0
        same = {"to": {"b": [1, 2], "a": 0}, "amount": 1, "text": "caf\u00e9"}
        assert not (await call(raw, "modern", "echo", same)).result["isError"] and lab.executed() == 1


@pytest.mark.attack("A2-held-7")
async def test_approval_is_used_once_by_parallel_calls(tmp_path: Path) -> None:
    async with asking(tmp_path, {"bank.*": "admin"}) as lab, lab.raw("server/bank") as raw:
        arguments = {"text": "pay"}
        first = await call(raw, "modern", "echo", arguments)
        await lab.gate.decide(first.error["data"]["approvalId"], "approved", "")
        answers = await asyncio.gather(*(call(raw, "modern", "echo", arguments) for _ in range(30)))
        assert sum("result" in each.last for each in answers) == 1 == lab.executed()
