"""Audit logs of several gateways with one name in one PostgreSQL database."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Thread

import msgspec
import psycopg
import pytest
from typer.testing import CliRunner

from toolway.audit.chain import AuditChain
from toolway.audit.checkpoints import sign_checkpoint
from toolway.audit.log import create_sink, load_redactor
from toolway.audit.mac import RecordMacs
from toolway.audit.signing import load_signer
from toolway.audit.sink import CALL_INTENT, ChainHead, RecordFields, SinkBroken, SinkInUse, encode_record, link_records
from toolway.cli.app import app
from toolway.cluster.keys import TENANT_KEY_PREFIX
from toolway.config.settings import AuditSettings
from toolway.parts.audit.known_checkpoints import LogCheckpoints
from toolway.parts.audit.postgres import SharedPostgresSink
from toolway.parts.audit.queries import AuditQuery, find_newest, list_logs
from toolway.parts.audit.verify import VerifiedLog, verify_log
from toolway.parts.audit.whole_logs import AlteredLog, WholeLogs

_names = itertools.count(1)


def _settings(postgres: str) -> AuditSettings:
    return AuditSettings(to="postgresql", address=postgres, name=f"shared-{next(_names)}").for_cluster(b"k" * 32)


@pytest.fixture
def settings(postgres: str) -> AuditSettings:
    return _settings(postgres)


def _begun(settings: AuditSettings) -> tuple[AuditChain, SharedPostgresSink]:
    sink = create_sink(settings)
    assert isinstance(sink, SharedPostgresSink)
    log = AuditChain(sink, RecordMacs.load(settings))
    log.open()
    return log, sink


def _intent(call: str) -> bytes:
    return encode_record(CALL_INTENT, 1e9, 0.0, {"call": call, "server": "s", "tool": "t"})


def _cut(sink: SharedPostgresSink) -> None:
    """Close the connection as if its process had ended, and wait until PostgreSQL has released its lock."""
    assert sink._db is not None
    pid = sink._db.info.backend_pid
    sink._db.close()
    with psycopg.connect(sink._address, autocommit=True) as db:
        for _ in range(600):
            if db.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone() is None:
                return
            time.sleep(0.05)
    raise AssertionError("PostgreSQL keeps the closed connection")


def _read(settings: AuditSettings) -> dict[str, list[RecordFields]]:
    """All logs of the name, each found to be whole."""
    sink = create_sink(settings, read_only=True)
    sink.open()
    try:
        found = {}
        for each in list_logs(sink, settings):
            verify_log(each.read_forward())
            found[each.location.split("'")[1]] = [row.fields() for row in each.read_forward()]
        return found
    finally:
        sink.close()


def _logs(settings: AuditSettings) -> list[str]:
    return [name.removeprefix(settings.name) for name in _read(settings)]


def test_each_writer_has_its_own_log_and_reuses_a_free_one(settings) -> None:
    writers = [_begun(settings)[0] for _ in range(3)]
    for number, log in enumerate(writers):
        log.write([_intent(f"call-{number}")])
    assert _logs(settings) == ["", "#2", "#3"]
    writers[1].close()
    again, sink = _begun(settings)
    assert sink.location.endswith("#2' in PostgreSQL")
    for log in (writers[0], again, writers[2]):
        log.close()
    assert _logs(settings) == ["", "#2", "#3"]


def test_concurrent_writers_get_different_logs_and_one_table(postgres: str) -> None:
    with psycopg.connect(postgres, autocommit=True) as db:
        db.execute("CREATE DATABASE begun_at_once")
    head, _, query = postgres.partition("?")
    address = f"{head.rpartition('/')[0]}/begun_at_once?{query}"
    settings = AuditSettings(to="postgresql", address=address).for_cluster(b"k" * 32)
    together, sinks = Barrier(5), [SharedPostgresSink(address, "gateway") for _ in range(5)]

    def begin(sink: SharedPostgresSink) -> None:
        together.wait()
        AuditChain(sink, RecordMacs.load(settings)).open()

    threads = [Thread(target=begin, args=(sink,)) for sink in sinks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({sink.location for sink in sinks}) == 5
    for sink in sinks:
        sink.close()
    assert _logs(settings) == ["", "#2", "#3", "#4", "#5"]


def test_log_of_dead_gateway_is_recovered_by_next_one(settings) -> None:
    log, sink = _begun(settings)
    other, _ = _begun(settings)
    log.write([_intent("cut-off")])
    other.write([_intent("under-way")])
    _cut(sink)
    after = AuditChain(create_sink(settings), RecordMacs.load(settings))
    assert [each["call"] for each in after.open().recovered] == ["cut-off"]
    after.close()
    other.close()


def test_gateway_that_lost_its_log_starts_a_new_linked_one(settings) -> None:
    log, sink = _begun(settings)
    log.write([_intent("first")])
    before = sink.head()
    _cut(sink)
    thief, _ = _begun(settings)
    for _ in range(2):  # the way to the server is noticed to be gone; then it is opened anew
        try:
            log.write([_intent("second")])
        except Exception:
            continue
        break
    assert sink.location.endswith("#2' in PostgreSQL")
    opened, second = _read(settings)[f"{settings.name}#2"]
    assert opened["after"] == {"seq": before.seq, "hash": before.hash}
    assert second["call"] == "second"
    thief.close()
    log.close()


def test_log_continued_and_closed_by_another_writer_is_lost(settings) -> None:
    log, sink = _begun(settings)
    _cut(sink)
    thief, _ = _begun(settings)
    thief.close()
    with pytest.raises(psycopg.OperationalError):
        log.write([_intent("second")])
    log.write([_intent("second")])
    log.close()
    assert _logs(settings) == ["", "#2"]


def test_lost_connection_does_not_lose_the_log(settings) -> None:
    log, sink = _begun(settings)
    _cut(sink)
    with pytest.raises(psycopg.OperationalError):
        log.write([_intent("second")])
    log.write([_intent("second")])
    log.close()
    assert _logs(settings) == [""]


def test_unshared_log_is_not_switched(settings, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = replace(settings, shared_name=False)
    log = AuditChain(create_sink(alone), RecordMacs.load(settings))
    log.open()
    second = create_sink(alone)
    monkeypatch.setattr("toolway.parts.audit.postgres.LOCK_TIMEOUT_S", 0.1)
    with pytest.raises(SinkInUse):
        AuditChain(second, RecordMacs.load(settings)).open()
    second.close()
    _cut(log.sink)  # type: ignore[arg-type]
    thief, _ = _begun(settings)
    thief.close()
    with pytest.raises(psycopg.OperationalError):
        log.write([_intent("second")])
    with pytest.raises(SinkBroken):
        log.write([_intent("second")])
    log.sink.close()


def test_number_of_logs_is_limited(settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolway.parts.audit.postgres.MAX_LOGS", 2)
    writers = [_begun(settings)[0] for _ in range(2)]
    third = SharedPostgresSink(settings.address, settings.name)
    with pytest.raises(SinkInUse, match="all 2 logs"):
        third.open()
    third.close()
    for log in writers:
        log.close()


def test_empty_log_does_not_hide_later_ones(settings) -> None:
    first = SharedPostgresSink(settings.address, settings.name)
    first.open()  # and writes nothing yet
    second, _ = _begun(settings)
    assert _logs(settings) == ["#2"]
    second.close()
    assert first.find_logs("nobody") == []
    first.close()


PROGRAM = """
import asyncio, sys
from toolway import Hub
from toolway.config.settings import AuditSettings
from toolway.testing import fake_server

async def main() -> None:
    settings = AuditSettings(to="postgresql", address=sys.argv[1], name=sys.argv[2]).for_cluster(b"k" * 32)
    async with Hub({"s": fake_server()}, audit_log=settings) as hub:
        await hub.wait_ready()
        print("ready", flush=True)
        sys.stdin.readline()  # the other is ready too
        for number in range(40):
            name = f"{sys.argv[3]}-{number}"
            await hub.call_tool("s.counter", {"nonce": name}, idempotency_key=name)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def two_gateways(postgres: str) -> AuditSettings:
    """Logs that two processes have written at once."""
    settings = _settings(postgres)
    command = [sys.executable, "-c", PROGRAM, settings.address, settings.name]
    with (
        subprocess.Popen([*command, "a"], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one,
        subprocess.Popen([*command, "b"], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as two,
    ):
        for each in (one, two):
            assert each.stdout is not None and each.stdout.readline() == "ready\n"
        for each in (one, two):
            assert each.stdin is not None
            each.stdin.write("go\n")
            each.stdin.flush()
        assert [each.wait(60) for each in (one, two)] == [0, 0]
    return settings


def test_logs_of_two_processes_are_intact_with_equal_digests(two_gateways: AuditSettings) -> None:
    found = _read(two_gateways)
    assert len(found) == 2
    for log in found.values():
        kinds = [each["kind"] for each in log]
        assert kinds.count("call.intent") == kinds.count("call.outcome") == 40
    sink = create_sink(two_gateways, read_only=True)
    sink.open()
    digest = load_redactor(two_gateways, create=False).digest("a-7")
    fit = [each for log in list_logs(sink, two_gateways) for each in find_newest(log, AuditQuery({"key": digest}), 10)]
    sink.close()
    assert [each["kind"] for each in fit] == ["call.intent"]


@pytest.fixture
def configured(two_gateways: AuditSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AuditSettings:
    """The same, named by the file that the command line finds."""
    file = tmp_path / "mcp.json"
    audit = {"to": "postgresql", "address": two_gateways.address, "name": two_gateways.name}
    file.write_text(json.dumps({"mcpServers": {}, "toolway": {"audit": audit}}))
    monkeypatch.setenv("TOOLWAY_CONFIG", str(file))
    return two_gateways


def test_cli_reads_all_logs(configured: AuditSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLWAY_CLUSTER_KEY", f"{TENANT_KEY_PREFIX}default:{(b'k' * 32).hex()}")

    def toolway(*words: str) -> str:
        result = CliRunner().invoke(app, ["audit", *words], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    logs = json.loads(toolway("verify", "--json"))["logs"]
    assert [(each["intents"], each["open"]) for each in logs] == [(40, 0), (40, 0)]
    for each in logs:
        assert each["where"] in toolway("verify", "--head", each["head"])
    records = json.loads(toolway("ls", "--json", "--kind", "call.intent", "-n", "60"))["records"]
    assert len(records) == 60
    assert [each["time"] for each in records] == sorted(each["time"] for each in records)
    (intent,) = json.loads(toolway("ls", "--json", "--key", "b-3", "--kind", "call.intent"))["records"]
    assert intent["tool"] == "counter"
    lines = [json.loads(line) for line in toolway("export", "--kind", "call.outcome").splitlines()]
    assert len(lines) == 80


def test_changed_record_in_any_log_is_detected(configured: AuditSettings) -> None:
    named = "SELECT seq FROM toolway_audit WHERE log = %s AND body LIKE '%%counter%%' ORDER BY seq LIMIT 1 OFFSET 4"
    change = "UPDATE toolway_audit SET body = replace(body, %s, %s) WHERE log = %s AND seq = %s"
    log = f"{configured.name}#2"
    with psycopg.connect(configured.address, autocommit=True) as db:
        found = db.execute(named, [log]).fetchone()
        assert found is not None
        db.execute(change, ["counter", "harmless", log, found[0]])
        result = CliRunner().invoke(app, ["audit", "verify"], catch_exceptions=False)
        db.execute(change, ["harmless", "counter", log, found[0]])
    assert result.exit_code == 9 and "#2" in result.stderr and f"record {found[0]}" in result.stderr


@pytest.mark.attack("A2-NA3")
def test_removed_cluster_log_is_detected_by_checkpoints(settings: AuditSettings, tmp_path: Path) -> None:
    """It is found by checkpoints that were kept elsewhere, and a log that a node continues elsewhere is not refused."""
    signer = load_signer(settings)
    given = tmp_path / "received.jsonl"
    begun = [(AuditChain(create_sink(settings), RecordMacs.load(settings))) for _ in range(3)]
    for number, log in enumerate(begun):
        log.open()
        log.write([_intent(f"call-{number}")])
        signed = sign_checkpoint(log.sink.location, log.head, "2026-11-17", signer.public.id, signer.sign)
        with given.open("ab") as out:
            out.write(msgspec.json.encode(signed) + b"\n")
    for log in begun:
        log.close()

    def verify() -> dict[str, VerifiedLog]:
        return WholeLogs(settings, None, LogCheckpoints(settings, given, ())).verify()

    assert len(verify()) == 3
    with psycopg.connect(settings.address, autocommit=True) as db:
        db.execute("DELETE FROM toolway_audit WHERE log = %s", (f"{settings.name}#2",))
    with pytest.raises(AlteredLog, match="is missing"):
        verify()


def test_log_continued_in_another_log_is_intact(settings: AuditSettings) -> None:
    first = AuditChain(create_sink(settings), RecordMacs.load(settings))
    first.open()
    named = {"seq": first.head.seq, "hash": first.head.hash}
    sinks = [create_sink(replace(settings, shared_name=False, name=f"{settings.name}#{n}")) for n in (2, 3)]
    for sink, after in zip(sinks, (named, {**named, "hash": "0" * 64}), strict=True):
        sink.open()
        opened = encode_record("log.open", 1e9, 0.0, {"after": after})
        sink.append(link_records(ChainHead(), [opened], RecordMacs.load(settings).add))
        sink.close()
    first.close()
    with pytest.raises(AlteredLog, match=r"#3.*replaced another one"):
        WholeLogs(settings, None, LogCheckpoints(settings, None, ())).verify()
    with psycopg.connect(settings.address, autocommit=True) as db:
        db.execute("DELETE FROM toolway_audit WHERE log = %s", (f"{settings.name}#3",))
    assert len(WholeLogs(settings, None, LogCheckpoints(settings, None, ())).verify()) == 2
