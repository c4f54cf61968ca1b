"""`toolway audit` over logs that hubs have written."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from toolway import Hub
from toolway.audit.file_sinks import JsonlSink, SqliteSink
from toolway.audit.journal import Journal
from toolway.audit.mac import load_audit_key
from toolway.config.settings import AuditSettings
from toolway.gateway.state_dir import RunningGateway, StateDir
from toolway.testing import fake_server

KEY = "order-4711"


@pytest.fixture(params=["sqlite", "jsonl"])
def log(request, machine):
    """The log where a gateway would keep it, and a file of servers that asks for it."""
    machine.write(".config/toolway/mcp.json", {"mcpServers": {}, "toolway": {"audit": {"to": request.param}}})
    settings = AuditSettings(to=request.param).with_folder(machine.home / ".local/state/toolway/gateway")

    async def fill():
        async with Hub({"s": fake_server()}, audit_log=settings) as hub:
            await hub.wait_ready()
            await hub.call_tool("s.counter", {"nonce": "1"}, idempotency_key=KEY)
            await hub.call_tool("s.echo", {"text": "x"})
            await hub.call_tool("s.fail", raise_on_error=False)

    asyncio.run(fill())
    return settings


def test_intact_log_verifies(log, machine):
    result = machine.toolway("audit", "verify")
    assert result.exit_code == 0
    assert result.stdout.startswith("intact: ")
    facts = json.loads(machine.toolway("audit", "verify", "--json").stdout)
    assert (facts["intact"], facts["intents"], facts["open"]) == (True, 1, 0)
    assert machine.toolway("audit", "verify", "--head", facts["head"]).exit_code == 0


def test_journal_only_records_are_listed_and_exported(log, machine):
    sink = {"sqlite": SqliteSink, "jsonl": JsonlSink}[log.to](log.file, read_only=True)
    sink.open()
    run = next(row.fields()["run"] for row in sink.read_forward() if "run" in row.fields())
    sink.close()
    journal = Journal(log.file, load_audit_key(log))
    journal.start(run)
    journal.append(900, [b'{"entry":900,"kind":"test"}', b'{"entry":901,"kind":"test"}'])  # as a killed gateway
    journal.close()
    result = machine.toolway("audit", "verify")
    assert result.exit_code == 0 and "2 more records are in the journal" in result.stdout
    assert json.loads(machine.toolway("audit", "verify", "--json").stdout)["unstored"] == 2
    listed = json.loads(machine.toolway("audit", "ls", "--kind", "test", "--json").stdout)["records"]
    exported = map(json.loads, machine.toolway("audit", "export", "--kind", "test").stdout.splitlines())
    expected = [{"entry": number, "kind": "test", "unstored": True} for number in (900, 901)]
    assert listed == list(exported) == expected
    signed = machine.toolway("audit", "export", "--sign", "--kind", "test").stdout.splitlines()
    assert list(map(json.loads, signed[:-1])) == expected
    [file] = Path(log.file).parent.glob("*.journal-*")
    file.write_bytes(file.read_bytes().replace(b'"entry":900', b'"entry":800') + b"x" * 100)
    assert machine.toolway("audit", "verify").exit_code == 9


def test_flipped_bit_is_reported(log, machine):
    data = bytearray(Path(log.file).read_bytes())
    data[data.index(b'"kind":"call.intent"') + 9] ^= 4
    Path(log.file).write_bytes(data)
    result = machine.toolway("audit", "verify")
    assert result.exit_code == 9
    assert "E-AUDIT-ALTERED" in result.stderr and "record" in result.stderr
    error = json.loads(machine.toolway("audit", "verify", "--json").stdout)["error"]
    assert error["code"] == "E-AUDIT-ALTERED"


def test_truncated_log_is_detected_with_known_head(log, machine):
    head = json.loads(machine.toolway("audit", "verify", "--json").stdout)["head"]
    if log.to == "sqlite":
        with closing(sqlite3.connect(log.file)) as db, db:
            db.execute("DELETE FROM records WHERE seq > 5")
    else:
        lines = Path(log.file).read_bytes().splitlines(keepends=True)
        Path(log.file).write_bytes(b"".join(lines[:5]))
    found = machine.toolway("audit", "verify")  # by the checkpoint that was noted next to the key
    assert found.exit_code == 9 and "its end was removed" in found.stderr
    for note in Path(log.signing_key_file).parent.glob("*.checkpoints-*"):
        note.unlink()
    assert machine.toolway("audit", "verify").exit_code == 0
    result = machine.toolway("audit", "verify", "--head", head)
    assert result.exit_code == 9
    assert "removed from the end" in result.stderr
    assert machine.toolway("audit", "verify", "--head", "nonsense").exit_code == 2


def test_records_are_listed_and_filtered(log, machine):
    def listed(*words):
        return json.loads(machine.toolway("audit", "ls", "--json", *words).stdout)["records"]

    assert [each["kind"] for each in listed("--kind", "call", "--tool", "counter")] == ["call.intent", "call.outcome"]
    [found] = listed("--key", KEY)
    assert found["kind"] == "call.intent"
    assert [each["outcome"] for each in listed("--call", found["call"], "--kind", "call.outcome")] == ["ok"]
    assert [each["tool"] for each in listed("--outcome", "tool_error")] == ["fail"]
    assert listed("--server", "other") == []
    assert len(listed("-n", "2")) == 2
    assert listed("--since", "1h") == listed()
    assert machine.toolway("audit", "ls", "--since", "soon").exit_code == 2
    table = machine.toolway("audit", "ls").stdout
    assert "s.counter" in table and KEY not in table
    assert "no record matches" in machine.toolway("audit", "ls", "--server", "other").stderr


def test_export_has_every_record_with_its_hash(log, machine, tmp_path):
    lines = machine.toolway("audit", "export").stdout.splitlines()
    records = [json.loads(line) for line in lines]
    assert [each["seq"] for each in records] == list(range(1, len(records) + 1))
    assert all(after["prev"] == before["hash"] for before, after in itertools.pairwise(records))
    machine.toolway("audit", "export", "-o", str(tmp_path / "out.jsonl"), "--kind", "call")
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 4
    assert (tmp_path / "out.jsonl").stat().st_mode & 0o077 == 0
    moved = machine.toolway("audit", "export", "--to", str(tmp_path / "out.jsonl"))
    assert moved.exit_code == 2 and "--output FILE" in moved.stderr


def test_signed_export_verifies_with_public_key_alone(log, machine, tmp_path):
    file, key = str(tmp_path / "out.jsonl"), str(tmp_path / "public.pem")
    Path(key).write_text(machine.toolway("audit", "key").stdout)
    span = ("--from", "2020-01-01", "--to", "2100-01-01T00:00:00+01:00")
    assert machine.toolway("audit", "export", "--sign", *span, "-o", file).exit_code == 0
    result = machine.toolway("audit", "check", file, "--key", key)
    assert result.exit_code == 0 and result.stdout.startswith("intact: ")
    facts = json.loads(machine.toolway("audit", "check", file, "--key", key, "--json").stdout)
    assert facts["size"] == len(Path(file).read_text().splitlines()) - 1
    assert facts["selection"] == {"from": "2020-01-01T00:00:00.000000Z", "to": "2099-12-31T23:00:00.000000Z"}
    call = next(json.loads(line)["call"] for line in Path(file).read_text().splitlines() if "call.intent" in line)
    Path(tmp_path / "proof").write_text(machine.toolway("audit", "prove", file, call).stdout)
    assert len((tmp_path / "proof").read_text().splitlines()) == 2  # intent and outcome
    assert "intact: 2 of" in machine.toolway("audit", "check", str(tmp_path / "proof"), "--key", key).stdout
    Path(file).write_bytes(Path(file).read_bytes().replace(b'"outcome":"ok"', b'"outcome":"no"', 1))
    altered = machine.toolway("audit", "check", file, "--key", key)
    assert altered.exit_code == 9 and "E-AUDIT-ALTERED" in altered.stderr
    assert machine.toolway("audit", "prove", file, call).exit_code == 9


def test_export_without_signing_key_writes_no_file(log, machine, tmp_path):
    file = tmp_path / "out.jsonl"
    Path(log.signing_key_file).unlink()
    result = machine.toolway("audit", "export", "--sign", "-o", str(file))
    assert result.exit_code == 9 and "E-AUDIT-KEY" in result.stderr
    assert not file.exists() and list(tmp_path.iterdir()) == [each for each in tmp_path.iterdir() if each.is_dir()]
    assert machine.toolway("audit", "export", "--sign").stdout == ""


def test_altered_log_is_not_signed(log, machine, tmp_path):
    data = bytearray(Path(log.file).read_bytes())
    data[data.index(b'"kind":"call.intent"') + 9] ^= 4
    Path(log.file).write_bytes(data)
    result = machine.toolway("audit", "export", "--sign", "-o", str(tmp_path / "out.jsonl"))
    assert result.exit_code == 9 and not (tmp_path / "out.jsonl").exists()


def test_missing_log_hints_at_configuration(machine):
    result = machine.toolway("audit", "verify")
    assert result.exit_code == 3
    assert "E-AUDIT-NONE" in result.stderr


def test_running_gateways_config_file_locates_the_log(log, machine):
    """The commands run in a folder with a project file that is not trusted, as with `serve -c mcp.json`."""
    named = machine.write("named.json", {"mcpServers": {}, "toolway": {"audit": {"to": log.to}}})
    (machine.project / "mcp.json").write_text('{"mcpServers": {"x": {"command": "x"}}}')
    machine.write(".config/toolway/mcp.json", {"mcpServers": {}})
    state = StateDir(machine.home / ".local/state/toolway/gateway")
    assert machine.toolway("audit", "verify").exit_code == 3
    state.write_running(RunningGateway("http://127.0.0.1:1", os.getpid(), str(named)))
    result = machine.toolway("audit", "verify")
    assert result.exit_code == 0 and result.stdout.startswith("intact: ")


def audit_check(machine, name="audit"):
    facts = json.loads(machine.toolway("doctor", "--json").stdout)
    checks = [check for subject in facts["subjects"] for check in subject["checks"] if check["name"] == name]
    return checks[0] if checks else None


def test_doctor_checks_the_log(log, machine):
    found = audit_check(machine)
    assert found["state"] == "ok" and "intact" in found["message"]
    data = bytearray(Path(log.file).read_bytes())
    data[data.index(b'"kind":"call.intent"') + 9] ^= 4
    Path(log.file).write_bytes(data)
    found = audit_check(machine)
    assert (found["state"], found["code"], found["copy"]) == ("fail", "E-AUDIT-ALTERED", "toolway audit verify")


def test_doctor_reports_future_log_and_open_alerts(machine):
    block = {"audit": True, "alerts": True}
    machine.write(".config/toolway/mcp.json", {"mcpServers": {}, "toolway": block})
    assert "will be created" in audit_check(machine)["message"]
    assert audit_check(machine, "alerts") is None
    machine.write(".local/state/toolway/gateway/alerts/20261115T120000Z-server-down-x.md", "# x")
    found = audit_check(machine, "alerts")
    assert found["state"] == "warn" and "server-down-x" in found["detail"]
