"""A gateway that keeps an audit log: accepted and rejected callers, changes, and errors for clients."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from pathlib import Path

import pytest

from tests.audit.log_reader import Records, calls, records
from tests.gateway.load_clients import Connection, Failed, load_client
from tests.gateway.program import Program, program, start, until
from toolway.testing import fake_server

pytestmark = pytest.mark.anyio
CANARY = "canary-5f2b9c"


def log_of(folder: Path) -> Path:
    return folder / "state" / "audit.sqlite"


def audit_records(folder: Path, kind: str) -> Records:
    return records(log_of(folder), kind)


async def ask(run: Program, token: str) -> int:
    connection = await Connection.to(run.port)
    answer = await connection.request("GET", f"/mcp?x={CANARY}", {"authorization": f"Bearer {token}"})
    connection.close()
    return answer.status


async def until_state(run: Program, name: str, state: str) -> None:
    async with asyncio.timeout(60):
        while (await run.servers()).get(name, {}).get("lifecycle") != state:
            await asyncio.sleep(0.05)


async def test_audit_log_records_callers_and_changes_without_secrets(tmp_path: Path) -> None:
    folder = tmp_path / "gateway"
    entry = {**fake_server(), "env": {"API_TOKEN": f"{CANARY}-env"}}
    blurts = ["-c", "import os, sys; sys.exit(os.environ['API_TOKEN'])"]
    dead = {"command": sys.executable, "args": blurts, "env": {"API_TOKEN": f"{CANARY}-stderr"}, "maxRestarts": 0}
    async with program(folder, {"s": entry}, audit={"arguments": True}) as run:
        assert await ask(run, f"{CANARY}-token") == 401
        _, made = await run.request("POST", "/admin/keys", {"name": "bob"})
        client = load_client("modern", run.port, made["token"])
        await client.call("s__counter", {"nonce": "n", "password": f"{CANARY}-argument"})
        await client.call("s__env", {})
        with pytest.raises(Failed):
            await client.call("s__nothing", {})
        client.close()
        assert (await run.request("PUT", "/admin/servers/evil", {"command": "sh", "args": ["-c", CANARY]}))[0] == 422
        run.write({"s": entry, "t": fake_server(), "dead": dead}, audit={"arguments": True})
        await run.until_ready("s", "t")
        await until_state(run, "dead", "failed")
        await run.request("DELETE", f"/admin/keys/{made['id']}")
        assert await run.stop() == 0
    assert [each["why"] for each in audit_records(folder, "auth.rejected")][:1] == ["HTTP 401 at /mcp"]
    assert [each["who"] for each in audit_records(folder, "auth.key_created")] == [made["id"]]
    assert [each["who"] for each in audit_records(folder, "auth.key_revoked")] == [made["id"]]
    assert [(each["server"], each["allowed"]) for each in audit_records(folder, "policy.decision")] == [("evil", False)]
    assert ("t", "added") in [(each["server"], each["what"]) for each in audit_records(folder, "config.change")]
    [given_up] = audit_records(folder, "process.given_up")
    assert given_up["server"] == "dead" and "***" in given_up["why"]
    intent, *_ = calls(log_of(folder))
    assert intent["caller"] and intent["given"]["nonce"] == "n"
    for file in (folder / "state").glob("audit*"):
        assert CANARY.encode() not in file.read_bytes(), file.name


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_unwritable_audit_log_fails_calls_with_an_error(era: str, tmp_path: Path) -> None:
    """The log reaches the size that files of the gateway may have, as on a disk that is full."""
    folder = tmp_path / "gateway"
    async with program(folder, {"s": fake_server()}, audit={"to": "jsonl"}) as run:
        client = load_client(era, run.port, run.token)
        await client.call("s__counter", {})
        size = os.path.getsize(folder / "state" / "audit.jsonl")
        resource.prlimit(run.pid, resource.RLIMIT_FSIZE, (size + 10, -1))
        with pytest.raises(Failed) as caught:
            while True:
                await client.call("s__counter", {})
        assert (caught.value.code, caught.value.executed) == (-31009, "no")
        assert caught.value.status == (503 if era == "modern" else caught.value.status)
        assert caught.value.facts["retryable"] is True and caught.value.facts["code"] == "E-AUDIT"
        assert (await client.call("s__echo", {"text": "x"})).raw["content"]
        resource.prlimit(run.pid, resource.RLIMIT_FSIZE, (-1, -1))
        await until(lambda: "is writable again" in run.log, 20)
        await client.call("s__counter", {})
        client.close()


async def test_gateway_does_not_start_with_an_altered_log(tmp_path: Path) -> None:
    folder = tmp_path / "gateway"
    async with program(folder, {"s": fake_server()}, audit={"to": "jsonl"}) as run:
        assert await run.stop() == 0
    log = folder / "state" / "audit.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(lines[0].replace(b'"pid":', b'"pud":') + b"".join(lines[1:]))
    run = await start(folder, {"s": fake_server()}, audit={"to": "jsonl"})
    assert await run.ended() == 3
    assert run.process.stdout is not None
    said = json.loads(await run.process.stdout.read())
    assert said["error"]["code"] == "E-AUDIT-ALTERED"


async def test_metrics_report_audit_log_health(tmp_path: Path) -> None:
    async with program(tmp_path / "gateway", {"s": fake_server()}, audit=True) as run:
        connection = await Connection.to(run.port)
        answer = await connection.request("GET", "/metrics", {"authorization": f"Bearer {run.token}"})
        connection.close()
        assert await run.stop() == 0
    assert b"toolway_audit_failing 0.0" in answer.body
    assert b"toolway_audit_lost_total 0.0" in answer.body
