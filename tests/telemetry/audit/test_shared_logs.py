"""Several gateways of one name keep their logs in one PostgreSQL."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Thread

import psycopg
import pytest
from typer.testing import CliRunner

from toolway.auditing import logs_of, redactor_of, sink_of
from toolway.cli.app import app
from toolway.config.audit import AuditSettings
from toolway.telemetry.audit.chronicle import Chronicle
from toolway.telemetry.audit.finding import Wanted, newest
from toolway.telemetry.audit.postgres_shared import SharedPostgresSink, family
from toolway.telemetry.audit.records import INTENT, Fields, encoded
from toolway.telemetry.audit.sink import SinkBroken, SinkInUse
from toolway.telemetry.audit.verify import verify

_names = itertools.count(1)


def _settings(postgres: str) -> AuditSettings:
    return AuditSettings(to="postgresql", address=postgres, name=f"shared-{next(_names)}").in_cluster(b"k" * 32)


@pytest.fixture
def settings(postgres: str) -> AuditSettings:
    return _settings(postgres)


def _begun(settings: AuditSettings) -> tuple[Chronicle, SharedPostgresSink]:
    sink = sink_of(settings)
    assert isinstance(sink, SharedPostgresSink)
    log = Chronicle(sink)
    log.open()
    return log, sink


def _intent(call: str) -> bytes:
    return encoded(INTENT, 1e9, 0.0, {"call": call, "server": "s", "tool": "t"})


def _cut(sink: SharedPostgresSink) -> None:
    """Its process is gone, or the server takes it for gone."""
    assert sink._db is not None
    sink._db.close()


def _read(settings: AuditSettings) -> dict[str, list[Fields]]:
    """All logs of the name, each found to be whole."""
    sink = sink_of(settings, read_only=True)
    sink.open()
    try:
        found = {}
        for each in logs_of(sink, settings):
            verify(each.forward())
            found[each.where.split("'")[1]] = [row.fields() for row in each.forward()]
        return found
    finally:
        sink.close()


def _logs(settings: AuditSettings) -> list[str]:
    return [name.removeprefix(settings.name) for name in _read(settings)]


def test_each_writer_has_a_log_of_its_own_and_the_next_one_goes_on_with_one_that_is_free(settings) -> None:
    writers = [_begun(settings)[0] for _ in range(3)]
    for number, log in enumerate(writers):
        log.write([_intent(f"call-{number}")])
    assert _logs(settings) == ["", "#2", "#3"]
    writers[1].close()
    again, sink = _begun(settings)
    assert sink.where.endswith("#2' in PostgreSQL")
    for log in (writers[0], again, writers[2]):
        log.close()
    assert _logs(settings) == ["", "#2", "#3"]


def test_those_who_begin_at_once_have_different_logs_and_one_makes_the_table(postgres: str) -> None:
    with psycopg.connect(postgres, autocommit=True) as db:
        db.execute("CREATE DATABASE begun_at_once")
    head, _, query = postgres.partition("?")
    address = f"{head.rpartition('/')[0]}/begun_at_once?{query}"
    settings = AuditSettings(to="postgresql", address=address).in_cluster(b"k" * 32)
    together, sinks = Barrier(5), [SharedPostgresSink(address, "gateway") for _ in range(5)]

    def begin(sink: SharedPostgresSink) -> None:
        together.wait()
        Chronicle(sink).open()

    threads = [Thread(target=begin, args=(sink,)) for sink in sinks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({sink.where for sink in sinks}) == 5
    for sink in sinks:
        sink.close()
    assert _logs(settings) == ["", "#2", "#3", "#4", "#5"]


def test_what_a_gateway_left_behind_that_died_is_set_right_by_the_next_one(settings) -> None:
    log, sink = _begun(settings)
    other, _ = _begun(settings)
    log.write([_intent("cut-off")])
    other.write([_intent("under-way")])
    _cut(sink)
    after = Chronicle(sink_of(settings))
    assert [each["call"] for each in after.open().recovered] == ["cut-off"]
    after.close()
    other.close()


def test_a_gateway_that_lost_its_log_begins_another_that_says_what_it_goes_on_with(settings) -> None:
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
    assert sink.where.endswith("#2' in PostgreSQL")
    opened, second = _read(settings)[f"{settings.name}#2"]
    assert opened["after"] == {"seq": before.seq, "hash": before.hash}
    assert second["call"] == "second"
    thief.close()
    log.close()


def test_a_log_that_was_gone_on_with_and_left_again_is_lost_too(settings) -> None:
    log, sink = _begun(settings)
    _cut(sink)
    thief, _ = _begun(settings)
    thief.close()
    with pytest.raises(psycopg.OperationalError):
        log.write([_intent("second")])
    log.write([_intent("second")])
    log.close()
    assert _logs(settings) == ["", "#2"]


def test_a_connection_that_is_lost_costs_no_log(settings) -> None:
    log, sink = _begun(settings)
    _cut(sink)
    with pytest.raises(psycopg.OperationalError):
        log.write([_intent("second")])
    log.write([_intent("second")])
    log.close()
    assert _logs(settings) == [""]


def test_a_log_of_one_gateway_alone_does_not_move(settings, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = replace(settings, shared=False)
    log = Chronicle(sink_of(alone))
    log.open()
    second = sink_of(alone)
    monkeypatch.setattr("toolway.telemetry.audit.postgres.LOCK_WAIT", 0.1)
    with pytest.raises(SinkInUse):
        Chronicle(second).open()
    second.close()
    _cut(log.sink)  # type: ignore[arg-type]
    thief, _ = _begun(settings)
    thief.close()
    with pytest.raises(psycopg.OperationalError):
        log.write([_intent("second")])
    with pytest.raises(SinkBroken):
        log.write([_intent("second")])
    log.sink.close()


def test_there_are_not_more_logs_than_there_may_be(settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolway.telemetry.audit.postgres_shared.MOST", 2)
    writers = [_begun(settings)[0] for _ in range(2)]
    third = SharedPostgresSink(settings.address, settings.name)
    with pytest.raises(SinkInUse, match="all 2 logs"):
        third.open()
    third.close()
    for log in writers:
        log.close()


def test_a_log_that_nobody_has_written_to_yet_hides_none_after_it(settings) -> None:
    first = SharedPostgresSink(settings.address, settings.name)
    first.open()  # and writes nothing yet
    second, _ = _begun(settings)
    assert _logs(settings) == ["#2"]
    second.close()
    assert family(first, "nobody") == []
    first.close()


PROGRAM = """
import asyncio, sys
from toolway import Hub
from toolway.config.audit import AuditSettings
from toolway.testing import fake_server

async def main() -> None:
    settings = AuditSettings(to="postgresql", address=sys.argv[1], name=sys.argv[2]).in_cluster(b"k" * 32)
    async with Hub({"s": fake_server()}, audit=settings) as hub:
        await hub.wait_ready()
        print("ready", flush=True)
        sys.stdin.readline()  # the other is ready too
        for number in range(40):
            await hub.call_tool("s.counter", {"nonce": f"{sys.argv[3]}-{number}"}, key=f"{sys.argv[3]}-{number}")

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


def test_logs_of_two_processes_are_whole_and_complete_and_their_digests_agree(two_gateways: AuditSettings) -> None:
    found = _read(two_gateways)
    assert len(found) == 2
    for log in found.values():
        kinds = [each["kind"] for each in log]
        assert kinds.count("call.intent") == kinds.count("call.outcome") == 40
    sink = sink_of(two_gateways, read_only=True)
    sink.open()
    digest = redactor_of(two_gateways, make=False).digest("a-7")
    fit = [each for log in logs_of(sink, two_gateways) for each in newest(log, Wanted({"key": digest}), 10)]
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


def test_the_command_line_reads_all_of_them(configured: AuditSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLWAY_CLUSTER_KEY", (b"k" * 32).hex())

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


def test_a_record_that_was_changed_in_any_of_them_is_found(configured: AuditSettings) -> None:
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
