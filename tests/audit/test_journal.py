"""Journal in front of the audit log: what is on disk, and what a killed process leaves behind."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.audit.log_reader import read_unstored
from toolway.audit import writer as module
from toolway.audit.file_sinks import JsonlSink, SqliteSink
from toolway.audit.journal import Journal, JournalBroken
from toolway.audit.mac import RecordMacs, load_audit_key
from toolway.audit.sink import AuditSink, encode_fields
from toolway.audit.writer import AuditUnavailable, AuditWriter
from toolway.config.settings import AuditSettings
from toolway.parts.audit.verify import verify_log

pytestmark = pytest.mark.anyio
RUN = "ab" * 16
KEY = b"k" * 64
Make = Callable[[], AuditSink]


def filled(log: Path, groups: int = 3, **options: Any) -> Journal:
    """A journal with groups of two records each."""
    journal = Journal(log, KEY, **options)
    journal.start(RUN)
    for group in range(groups):
        first = 2 * group + 1
        journal.append(first, [b'{"entry":%d}' % number for number in (first, first + 1)])
    journal.close()
    return journal


def segments(log: Path) -> list[Path]:
    return sorted(log.parent.glob(f"{log.name}.journal-*"))


def numbers(journal: Journal) -> list[int]:
    found = journal.read()
    assert found is not None and found.run == RUN
    assert [json.loads(record)["entry"] for _, record in found.entries] == [number for number, _ in found.entries]
    return [number for number, _ in found.entries]


def test_groups_are_read_as_written(tmp_path: Path) -> None:
    journal = filled(tmp_path / "a.sqlite")
    assert numbers(journal) == [1, 2, 3, 4, 5, 6] and journal.left_run() == RUN
    [file] = segments(tmp_path / "a.sqlite")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    journal.remove_all()
    assert journal.read() is None and journal.left_run() == "" and segments(tmp_path / "a.sqlite") == []


@pytest.mark.parametrize("cut", [1, 20, 40, 60])
def test_incomplete_last_group_is_dropped(cut: int, tmp_path: Path) -> None:
    journal = filled(tmp_path / "a.sqlite")
    [file] = segments(tmp_path / "a.sqlite")
    os.truncate(file, file.stat().st_size - cut)
    assert numbers(journal) == [1, 2, 3, 4]
    found = journal.read()
    assert found is not None and found.torn_bytes > 0


def test_changed_group_is_detected(tmp_path: Path) -> None:
    journal = filled(tmp_path / "a.sqlite")
    [file] = segments(tmp_path / "a.sqlite")
    data = file.read_bytes()
    file.write_bytes(data.replace(b'{"entry":3}', b'{"entry":9}'))
    with pytest.raises(JournalBroken, match="was changed"):
        journal.read()
    file.write_bytes(data)
    assert Journal(tmp_path / "a.sqlite", b"another key").left_run() == RUN
    with pytest.raises(JournalBroken):
        Journal(tmp_path / "a.sqlite", b"another key").read()


def test_removed_segment_is_detected_and_stored_ones_deleted(tmp_path: Path) -> None:
    journal = filled(tmp_path / "a.sqlite", 4, max_segment_bytes=1)
    assert len(segments(tmp_path / "a.sqlite")) == 4
    journal.remove_through(3)  # the second segment has 3 and 4
    assert numbers(journal) == [3, 4, 5, 6, 7, 8]
    journal.remove_through(8)
    assert numbers(journal) == [7, 8]  # the current segment stays
    journal = filled(tmp_path / "b.sqlite", 4, max_segment_bytes=1)
    segments(tmp_path / "b.sqlite")[1].unlink()
    with pytest.raises(JournalBroken, match="does not follow"):
        journal.read()


def test_failed_write_does_not_count_even_if_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "a.sqlite", KEY)
    journal.start(RUN)
    journal.append(1, [b'{"entry":1}'])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", lambda file: (_ for _ in ()).throw(OSError("input/output error")))
        for _ in range(3):
            with pytest.raises(OSError, match="input"):
                journal.append(2, [b'{"entry":2,"rejected":true}', b'{"entry":3}'])
    assert len(segments(tmp_path / "a.sqlite")) == 1  # attempts leave no files behind
    journal.append(2, [b'{"entry":2}'])
    assert numbers(journal) == [1, 2]
    found = journal.read()
    assert found is not None and b"rejected" not in b"".join(record for _, record in found.entries)


def test_short_write_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, journal = os.write, Journal(tmp_path / "a.sqlite", KEY)
    journal.start(RUN)
    journal.append(1, [b'{"entry":1}'])
    monkeypatch.setattr(os, "write", lambda file, data: real(file, bytes(data)[:10]))
    with pytest.raises(OSError, match="only 10 of"):
        journal.append(2, [b'{"entry":2}'])
    assert numbers(journal) == [1]


# -- in front of a log ------------------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "jsonl"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> AuditSettings:
    return AuditSettings(to=request.param).with_folder(tmp_path)


def sink_of(settings: AuditSettings, **options: Any) -> AuditSink:
    return (SqliteSink if settings.to == "sqlite" else JsonlSink)(settings.file, **options)


async def opened(settings: AuditSettings) -> AuditWriter:
    macs = RecordMacs.load(settings)
    writer = AuditWriter(sink_of(settings), macs, journal=Journal(settings.file, load_audit_key(settings)))
    await writer.open()
    return writer


async def kill(writer: AuditWriter) -> None:
    """Leave everything as a killed process does: release the lock, and stop writing."""
    await writer._store_thread.run(writer._chain.sink.close, 5)
    for timer in (writer._timer, writer._store_timer):
        if timer is not None:
            timer.cancel()
    writer._thread.stop()
    writer._store_thread.stop()
    writer._closed = True


def stored(settings: AuditSettings) -> list[dict[str, Any]]:
    sink = sink_of(settings, read_only=True)
    sink.open()
    try:
        verify_log(sink.read_forward(), macs=RecordMacs.load(settings))
        return [row.fields() for row in sink.read_forward()]
    finally:
        sink.close()


def waiting(settings: AuditSettings) -> list[int]:
    sink = sink_of(settings, read_only=True)
    sink.open()
    try:
        return [fields["n"] for fields in read_unstored(settings, sink)]
    finally:
        sink.close()


def numbers_in(records: list[dict[str, Any]]) -> list[int]:
    return [each["n"] for each in records if each["kind"] == "test"]


async def test_journal_of_killed_process_is_stored_once(
    settings: AuditSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STORE_DELAY_S", 3600)
    writer = await opened(settings)
    for number in (1, 2):
        await writer.commit(b"test", encode_fields({"n": number}))
    await writer.flush()
    for number in (3, 4):
        await writer.commit(b"test", encode_fields({"n": number}))
    await kill(writer)
    assert numbers_in(stored(settings)) == [1, 2] and waiting(settings) == [3, 4]
    with monkeypatch.context() as patch:  # the next start is killed after it stored the journal
        patch.setattr(Journal, "remove_all", lambda self: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            await opened(settings)
    assert numbers_in(stored(settings)) == [1, 2, 3, 4] and waiting(settings) == []
    last = await opened(settings)
    await last.close()
    assert numbers_in(stored(settings)) == [1, 2, 3, 4]
    assert [each["kind"] for each in stored(settings)][-1] == "log.close"
    assert segments(Path(settings.file)) == []


async def test_intent_only_in_journal_is_recovered(settings: AuditSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STORE_DELAY_S", 3600)
    writer = await opened(settings)
    await writer.commit(b"call.intent", encode_fields({"call": "c1", "server": "s", "tool": "t"}))
    await writer.commit(b"call.intent", encode_fields({"call": "c2", "server": "s", "tool": "t"}))
    writer.enqueue(b"call.outcome", encode_fields({"call": "c1"}))
    await writer.commit(b"test", encode_fields({"n": 1}))
    await kill(writer)
    await (await opened(settings)).close()
    found = [(each["call"], each["outcome"]) for each in stored(settings) if each.get("recovered")]
    assert found == [("c2", "unknown")]


async def test_journal_of_another_log_is_set_aside(settings: AuditSettings) -> None:
    log = Path(settings.file)
    await (await opened(settings)).close()
    filled(log)
    await (await opened(settings)).close()
    assert [file.name for file in segments(log)] == [f"{log.name}.journal-of-abababab-00000001"]
    [torn] = [each for each in stored(settings) if each["kind"] == "log.torn"]
    assert torn["moved_to"].endswith("00000001")


async def test_changed_journal_prevents_start(settings: AuditSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STORE_DELAY_S", 3600)
    writer = await opened(settings)
    for number in (1, 2, 3):
        await writer.commit(b"test", encode_fields({"n": number}))
    await kill(writer)
    [file] = segments(Path(settings.file))
    file.write_bytes(file.read_bytes().replace(b'"n":2', b'"n":7'))
    with pytest.raises(JournalBroken):
        await opened(settings)


async def test_failing_log_rejects_calls_and_loses_nothing(
    settings: AuditSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await opened(settings)
    kind = type(writer._chain.sink)
    with monkeypatch.context() as patch:
        patch.setattr(kind, "append", lambda self, rows: (_ for _ in ()).throw(OSError("no space left")))
        await writer.commit(b"test", encode_fields({"n": 1}))
        async with asyncio.timeout(10):
            while writer.failure is None:
                await asyncio.sleep(0.01)
        with pytest.raises(AuditUnavailable, match="no space"):
            writer.commit(b"test", encode_fields({"n": 2}))
        writer.enqueue(b"test", encode_fields({"n": 3}))
    async with asyncio.timeout(10):
        while writer.failure is not None:
            await asyncio.sleep(0.01)
    await writer.flush()  # in one group, intents come before records
    await writer.commit(b"test", encode_fields({"n": 4}))
    await writer.close()
    records = stored(settings)
    assert numbers_in(records) == [1, 3, 4]
    [resumed] = [each for each in records if each["kind"] == "log.resumed"]
    assert "no space" in resumed["why"] and resumed["lost"] == 0


async def test_full_journal_disk_rejects_calls_until_writable(
    settings: AuditSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await opened(settings)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", lambda self, first, records: (_ for _ in ()).throw(OSError("no space left")))
        with pytest.raises(AuditUnavailable):
            await writer.commit(b"test", encode_fields({"n": 1}))
        assert writer.failure is not None and "no space" in writer.failure.reason
    async with asyncio.timeout(10):
        while writer.failure is not None:
            await asyncio.sleep(0.01)
    await writer.commit(b"test", encode_fields({"n": 2}))
    await writer.close()
    assert numbers_in(stored(settings)) == [2]


async def test_slow_log_limits_journal_growth(settings: AuditSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNSTORED", 10)
    monkeypatch.setattr(module, "STORE_DELAY_S", 3600)
    writer = await opened(settings)
    for number in range(10):
        await writer.commit(b"test", encode_fields({"n": number}))
    late = writer.commit(b"test", encode_fields({"n": 10}))
    await asyncio.sleep(0.1)
    assert not late.done()
    writer._start_store()
    await late
    await writer.close()
    assert numbers_in(stored(settings)) == list(range(11))
