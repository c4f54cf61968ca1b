"""The audit log through kills, full disks, and damage."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.audit.log_reader import calls, records
from tests.faults.fault_lab import lab, server
from tests.faults.results import results
from tests.gateway.kill_runs import KillRuns
from tests.timing import within
from toolway import Hub, ServerUnavailable
from toolway.audit.file_sinks import SqliteSink
from toolway.audit.journal import Journal
from toolway.audit.sink import StoredRecord, encode_fields
from toolway.audit.writer import AuditWriter
from toolway.errors import ConfigError
from toolway.hub.core_options import Reporting
from toolway.testing import fake_server

pytestmark = pytest.mark.anyio


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few hundred kilobytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def ledger_of(hub: Hub) -> AuditWriter:
    assert hub._core._audit_log is not None and hub._core._audit_log.writer is not None
    return hub._core._audit_log.writer


@pytest.mark.fault("D3")
@pytest.mark.dear
@pytest.mark.parametrize("to", ["sqlite", "jsonl"])
async def test_calls_of_a_killed_gateway_are_accounted_for(to: str, tmp_path: Path, seed: int) -> None:
    log = KillRuns(tmp_path, seed, to)
    found = [await log.kill_once(1.0) for _ in range(3)]
    assert not [wrong for each in found for wrong in each.wrong]
    assert sum(each.open for each in found), "every call had ended when the gateway was killed"
    results.checked("I3", "I4", "I6", "I9")


@pytest.mark.fault("D4")
async def test_full_disk_stops_unsafe_calls_only(small_disk: Path) -> None:
    log = small_disk / "audit.sqlite"
    async with lab({"bad": server()}, reporting=Reporting(log)) as bench:
        (await bench.call("bad.counter")).expect(None)
        ledger = ledger_of(bench.hub)
        await ledger.flush()
        _fill(small_disk)
        await bench.until(lambda: ledger.failure is not None or _poke(bench.hub), 10)
        refused = await bench.call("bad.counter")
        refused.expect(ServerUnavailable, "no")
        assert refused.error is not None and refused.error.code == "E-AUDIT"
        assert bench.happened(refused) == 0
        (await bench.call("bad.counter", idempotency_key="k")).expect(ServerUnavailable, "no")
        (await bench.call("bad.echo")).expect(None)
        (small_disk / "filler").unlink()
        await bench.until(lambda: ledger.failure is None, 10)
        (await bench.call("bad.counter")).expect(None)
        await ledger.flush()
        kept = calls(log)
    told = [each for each in kept if each.get("code") == "E-AUDIT"]
    assert len(told) == 2 and {each["outcome"] for each in told} == {"not_executed"}
    assert [each["tool"] for each in kept].count("echo") >= 1, "reads during the failure are in the log"
    results.checked("I9")


def _fill(disk: Path) -> None:
    with (disk / "filler").open("wb") as file, suppress(OSError):
        while True:
            os.write(file.fileno(), b"x" * 1024)


def _make_read_only(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)


def _poke(hub: Hub) -> bool:
    """Let something be written: a log that has nothing to write does not notice."""
    ledger_of(hub).enqueue(b"test.poke", encode_fields({"text": "x" * 2000}))
    return False


class Disk:
    """The disk of a log and its journal, which answers with an I/O error, or slowly."""

    fault: Exception | None = None
    slow = 0.0

    @classmethod
    def use(cls) -> None:
        time.sleep(cls.slow)
        if cls.fault is not None:
            raise cls.fault


class SlowLog(SqliteSink):
    def append(self, rows: list[StoredRecord]) -> None:
        Disk.use()
        super().append(rows)


class SlowJournal(Journal):
    def append(self, first: int, records: list[bytes]) -> None:
        Disk.use()
        super().append(first, records)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> type[Disk]:
    monkeypatch.setattr("toolway.audit.file_sinks.SqliteSink", SlowLog)
    monkeypatch.setattr("toolway.audit.log.Journal", SlowJournal)
    monkeypatch.setattr(Disk, "fault", None)
    monkeypatch.setattr(Disk, "slow", 0.0)
    return Disk


BROKEN = OSError(5, "Input/output error")
READ_ONLY = sqlite3.OperationalError("attempt to write a readonly database")


@pytest.mark.fault("D4")
@pytest.mark.parametrize("fault", [BROKEN, READ_ONLY], ids=["io-error", "read-only"])
async def test_failing_disk_rejects_calls_until_it_recovers(fault: Exception, disk: type[Disk], tmp_path: Path) -> None:
    log = tmp_path / "audit.sqlite"
    async with lab({"bad": server()}, reporting=Reporting(log)) as bench:
        disk.fault = fault
        refused = [bench.start("bad.counter") for _ in range(20)]
        for each in await asyncio.gather(*refused):
            each.expect(ServerUnavailable, "no")
            assert bench.happened(each) == 0
        (await bench.call("bad.echo")).expect(None)
        disk.fault = None
        ledger = ledger_of(bench.hub)
        await bench.until(lambda: ledger.failure is None, 10)
        (await bench.call("bad.counter")).expect(None)
        await ledger.flush()
    resumed = records(log, "log.resumed")
    assert resumed and str(fault) in resumed[0]["why"] and resumed[0]["lost"] == 0
    results.checked("I9")


@pytest.mark.fault("D4")
async def test_read_only_disk_stops_the_start_with_an_error(small_disk: Path) -> None:
    _make_read_only(small_disk)
    with pytest.raises(ConfigError) as caught:
        async with Hub({"s": fake_server()}, audit_log=small_disk / "audit.sqlite"):
            pass
    assert caught.value.code == "E-AUDIT-OPEN"
    assert "Read-only file system" in caught.value.detail


@pytest.mark.fault("D4")
async def test_reads_stop_when_the_log_is_unwritable_for_long(
    disk: type[Disk], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolway.audit.recorder.READ_GRACE_S", 0.5)
    async with Hub({"bad": fake_server()}, audit_log=tmp_path / "audit.sqlite") as hub:
        await hub.wait_ready()
        disk.fault = BROKEN
        with pytest.raises(ServerUnavailable):
            await hub.call_tool("bad.counter")
        await hub.call_tool("bad.echo")
        await asyncio.sleep(0.6)
        with pytest.raises(ServerUnavailable, match="audit log cannot be written"):
            await hub.call_tool("bad.echo")
        disk.fault = None
        async with asyncio.timeout(10):
            while ledger_of(hub).failure is not None:
                await asyncio.sleep(0.05)
        await hub.call_tool("bad.echo")


@pytest.mark.fault("D4")
async def test_slow_disk_delays_only_calls_logged_before_sending(disk: type[Disk], tmp_path: Path) -> None:
    log = tmp_path / "audit.sqlite"
    async with lab({"bad": server()}, reporting=Reporting(log)) as bench:
        disk.slow = 5.0
        slow = [bench.start("bad.counter") for _ in range(20)]
        await asyncio.sleep(0.1)
        assert (await bench.call("bad.echo")).expect(None).seconds < within(1.0)
        done = await asyncio.gather(*slow)
        assert all(each.expect(None).seconds < within(12) for each in done), "they did not share a write"
        assert min(each.seconds for each in done) > 4.5
        disk.slow = 0.0
        await ledger_of(bench.hub).flush()
    results.checked("I9")


@pytest.mark.fault("D4")
async def test_hanging_disk_rejects_calls_after_write_timeout(disk: type[Disk], tmp_path: Path) -> None:
    async with lab({"bad": server()}, reporting=Reporting(tmp_path / "audit.sqlite")) as bench:
        ledger = ledger_of(bench.hub)
        ledger._write_timeout = 0.5
        disk.slow = 2.0
        refused = await bench.call("bad.counter")
        assert refused.expect(ServerUnavailable, "no").seconds < within(1.5)
        assert bench.happened(refused) == 0
        disk.slow = 0.0
        await bench.until(lambda: ledger.failure is None, 10)
        (await bench.call("bad.counter")).expect(None)


@pytest.mark.fault("D5")
async def test_torn_last_record_is_set_aside_and_log_continues(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    async with Hub({"s": fake_server()}, audit_log=log) as hub:
        await hub.call_tool("s.counter")
    whole = log.read_bytes()
    log.write_bytes(whole[: len(whole) - 40])
    async with lab({"bad": server()}, reporting=Reporting(log)) as bench:
        (await bench.call("bad.counter")).expect(None)
        await ledger_of(bench.hub).flush()
    (torn,) = records(log, "log.torn")
    assert Path(torn["moved_to"]).read_bytes() == whole[: len(whole) - 40].splitlines()[-1]
    assert torn["bytes"] == len(Path(torn["moved_to"]).read_bytes())
    results.checked("I9")


@pytest.mark.fault("D5")
async def test_torn_database_write_is_undone_and_log_continues(tmp_path: Path) -> None:
    log = tmp_path / "audit.sqlite"
    copy = tmp_path / "copy" / "audit.sqlite"
    copy.parent.mkdir()
    async with Hub({"s": fake_server()}, audit_log=log) as hub:
        await hub.call_tool("s.counter")
        await ledger_of(hub).flush()
        for file in tmp_path.glob("audit.sqlite*"):
            shutil.copy(file, copy.parent)  # as a power cut leaves them
    wal = copy.with_name("audit.sqlite-wal")
    os.truncate(wal, wal.stat().st_size - 100)
    async with lab({"bad": server()}, reporting=Reporting(copy)) as bench:
        (await bench.call("bad.counter")).expect(None)
        await ledger_of(bench.hub).flush()
    assert len(records(copy, "log.open")) == 2
    results.checked("I9")


@pytest.mark.fault("D5")
@pytest.mark.parametrize("name", ["audit.sqlite", "audit.jsonl"])
async def test_flipped_bit_stops_the_start_and_reports_the_record(name: str, tmp_path: Path, seed: int) -> None:
    log = tmp_path / name
    async with Hub({"s": fake_server()}, audit_log=log) as hub:
        for number in range(20):
            await hub.call_tool("s.counter", {"nonce": str(number)})
    data = bytearray(log.read_bytes())
    places = [at for at in range(len(data)) if data.startswith(b'"kind":"call.intent"', at)]
    data[places[len(places) // 2 + seed % 5] + 9] ^= 1 << seed % 7
    log.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        async with Hub({"s": fake_server()}, audit_log=log):
            pass
    assert caught.value.code == "E-AUDIT-ALTERED"
    assert "record" in caught.value.detail and "toolway audit verify" in caught.value.hint
    results.checked("I9")
