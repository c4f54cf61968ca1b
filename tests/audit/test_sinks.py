"""Requirements that every audit sink meets, and the registry of sinks."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from toolway.audit.chain import AuditChain
from toolway.audit.file_sinks import JsonlSink, SqliteSink
from toolway.audit.log import AUDIT_SINKS, create_sink
from toolway.audit.mac import RecordMacs
from toolway.audit.sink import AuditSink, ChainHead, SinkBroken, SinkInUse, encode_record, link_records
from toolway.audit.verify import TamperedLog
from toolway.config.settings import AUDIT_LOG_KINDS, AuditSettings
from toolway.part_api import registry
from toolway.parts.audit.verify import verify_log

Make = Callable[..., AuditSink]


def entries(count: int, at: float = 1_000_000_000.0) -> list[bytes]:
    return [encode_record("test", at + number, number, {"text": f'ü "{number}" \n'}) for number in range(count)]


def filled(sink: AuditSink, count: int = 5) -> AuditSink:
    sink.open()
    sink.append(link_records(sink.head(), entries(count)))
    return sink


def test_registry_has_a_sink_for_every_kind_of_log(tmp_path: Path) -> None:
    assert {*AUDIT_SINKS, *registry.audit_sinks()} == set(AUDIT_LOG_KINDS)
    for kind in ("sqlite", "jsonl"):
        sink = filled(create_sink(AuditSettings(to=kind, file=str(tmp_path / kind))))
        assert sink.head().seq == 5
        sink.close()


def test_appended_records_are_read_in_both_directions(make: Make) -> None:
    sink = filled(make(), 2500)
    assert [row.seq for row in sink.read_forward()] == list(range(1, 2501))
    assert [row.seq for row in sink.read_forward(2498)] == [2499, 2500]
    assert [row.seq for row in sink.read_backward()] == list(range(2500, 0, -1))
    assert next(sink.read_forward()).fields()["text"] == 'ü "0" \n'
    verify_log(sink.read_forward())
    sink.close()


def test_reopened_log_continues(make: Make) -> None:
    filled(make()).close()
    sink = filled(make())
    assert verify_log(sink.read_forward()).head == sink.head()
    assert sink.head().seq == 10
    sink.close()


def test_log_has_one_writer_at_a_time(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolway.parts.audit.postgres.LOCK_TIMEOUT_S", 0.1)
    first = filled(make())
    second = make()
    with pytest.raises(SinkInUse):
        second.open()
    second.close()
    reader = make(read_only=True)
    reader.open()
    assert len(list(reader.read_forward())) == 5
    reader.close()
    first.close()
    second.open()
    second.close()


def test_empty_log_has_the_first_head(make: Make) -> None:
    sink = make()
    sink.open()
    assert sink.head() == ChainHead()
    assert list(sink.read_forward()) == list(sink.read_backward()) == []
    sink.close()


@pytest.mark.parametrize("make", ["sqlite", "postgres"], indirect=True)
def test_rows_are_appended_all_or_none(make: Make) -> None:
    sink = filled(make(), 3)
    rows = link_records(ChainHead(1), entries(5))  # 2 and 3 are there already
    with pytest.raises(Exception, match=r"(?i)unique"):
        sink.append(rows)
    assert sink.head().seq == 3
    sink.close()


@pytest.mark.parametrize("make", ["sqlite", "postgres"], indirect=True)
def test_old_records_are_pruned_and_pruning_is_recorded(make: Make) -> None:
    sink = filled(make(), 10)
    log = AuditChain(sink, RecordMacs(b"k" * 32), wall_clock=lambda: 1_000_000_000.0 + 104)
    log._head = sink.head()
    assert log.prune(keep_s=100.0)
    left = [row.seq for row in sink.read_forward()]
    assert left == [5, 6, 7, 8, 9, 10, 11]
    assert verify_log(sink.read_forward()).first_seq == 5
    assert not log.prune(keep_s=100.0)
    log.close()


def test_old_files_are_pruned_and_pruning_is_recorded(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "audit.jsonl", max_file_bytes=1)
    sink.open()
    for number in range(6):
        sink.append(link_records(sink.head(), entries(1, 1_000_000_000.0 + number)))
    assert len(list(tmp_path.glob("*.jsonl"))) == 6
    log = AuditChain(sink, RecordMacs(b"k" * 32), wall_clock=lambda: 1_000_000_000.0 + 103)
    log._head = sink.head()
    assert log.prune(keep_s=100.0)
    assert [row.seq for row in sink.read_forward()] == [4, 5, 6, 7]
    assert [row.seq for row in sink.read_forward(5)] == [6, 7]
    verify_log(sink.read_forward())
    log.close()
    again = JsonlSink(tmp_path / "audit.jsonl", max_file_bytes=1)
    again.open()
    assert again.head().seq == 8  # what `close` wrote
    again.close()


def test_manually_removed_beginning_is_detected(make: Make) -> None:
    sink = filled(make(), 10)
    with pytest.raises(TamperedLog, match="the records before it are missing"):
        verify_log(sink.read_forward(4))
    sink.close()


@pytest.mark.parametrize("end", [b'{"seq":6,"prev":"00', b"\0" * 300, b'{"seq":6}\n', b"\n\n"])
def test_partial_last_line_is_moved_away(end: bytes, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    filled(JsonlSink(path)).close()
    with path.open("ab") as file:
        file.write(end)
    sink = JsonlSink(path)
    torn = sink.open()
    assert torn is not None and torn.size == len(end)
    assert Path(torn.moved_to).read_bytes() == end
    assert verify_log(sink.read_forward()).head.seq == 5
    sink.close()
    assert JsonlSink(path).open() is None


def test_short_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = filled(JsonlSink(tmp_path / "audit.jsonl"))
    real = os.write

    def half(file: int, data: bytes) -> int:
        monkeypatch.setattr(os, "write", full)
        return real(file, data[:10])

    def full(file: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(OSError, match="No space"):
        sink.append(link_records(sink.head(), entries(1)))
    assert verify_log(sink.read_forward()).head == sink.head()
    sink.close()


def test_file_that_is_not_a_database_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "audit.sqlite").write_bytes(b"hello" * 1000)
    sink = SqliteSink(tmp_path / "audit.sqlite")
    with pytest.raises(SinkBroken, match="not a database"):
        sink.open()
    sink.close()


def test_overwritten_database_page_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "audit.sqlite"
    filled(SqliteSink(path), 2000).close()
    with path.open("r+b") as file:
        file.seek(10 * 4096)
        file.write(b"\xff" * 4096)
    sink = SqliteSink(path)
    with pytest.raises((SinkBroken, TamperedLog)):
        sink.open()
        verify_log(sink.read_forward())
    sink.close()


def test_log_files_are_private(tmp_path: Path) -> None:
    for sink in (SqliteSink(tmp_path / "a" / "audit.sqlite"), JsonlSink(tmp_path / "b" / "audit.jsonl")):
        filled(sink).close()
    assert {path.stat().st_mode & 0o077 for path in tmp_path.rglob("*")} == {0}


def test_group_is_on_disk_when_append_returns(tmp_path: Path) -> None:
    sink = SqliteSink(tmp_path / "audit.sqlite")
    filled(sink)
    db = sink._db
    assert db is not None
    assert db.execute("PRAGMA synchronous").fetchone() == (2,)
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    sink.close()
    with closing(sqlite3.connect(tmp_path / "audit.sqlite")) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
