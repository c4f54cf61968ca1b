"""What every place of a log must do."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from toolway.telemetry.audit.chronicle import Chronicle
from toolway.telemetry.audit.jsonl import JsonlSink
from toolway.telemetry.audit.records import Head, chained, encoded
from toolway.telemetry.audit.sink import Sink, SinkBroken, SinkInUse
from toolway.telemetry.audit.sqlite import SqliteSink
from toolway.telemetry.audit.verify import Altered, verify

Make = Callable[..., Sink]


def entries(count: int, at: float = 1_000_000_000.0) -> list[bytes]:
    return [encoded("test", at + number, number, {"text": f'ü "{number}" \n'}) for number in range(count)]


def filled(sink: Sink, count: int = 5) -> Sink:
    sink.open()
    sink.append(chained(sink.head(), entries(count)))
    return sink


def test_what_was_appended_is_read_in_both_directions(make: Make) -> None:
    sink = filled(make(), 2500)
    assert [row.seq for row in sink.forward()] == list(range(1, 2501))
    assert [row.seq for row in sink.forward(2498)] == [2499, 2500]
    assert [row.seq for row in sink.backward()] == list(range(2500, 0, -1))
    assert next(sink.forward()).fields()["text"] == 'ü "0" \n'
    verify(sink.forward())
    sink.close()


def test_a_log_is_gone_on_with(make: Make) -> None:
    filled(make()).close()
    sink = filled(make())
    assert verify(sink.forward()).head == sink.head()
    assert sink.head().seq == 10
    sink.close()


def test_only_one_writes_at_a_time(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolway.telemetry.audit.postgres.LOCK_WAIT", 0.1)
    first = filled(make())
    second = make()
    with pytest.raises(SinkInUse):
        second.open()
    second.close()
    reader = make(read_only=True)
    reader.open()
    assert len(list(reader.forward())) == 5
    reader.close()
    first.close()
    second.open()
    second.close()


def test_an_empty_log_has_the_first_head(make: Make) -> None:
    sink = make()
    sink.open()
    assert sink.head() == Head()
    assert list(sink.forward()) == list(sink.backward()) == []
    sink.close()


@pytest.mark.parametrize("make", ["sqlite", "postgres"], indirect=True)
def test_rows_are_appended_all_or_none(make: Make) -> None:
    sink = filled(make(), 3)
    rows = chained(Head(1), entries(5))  # 2 and 3 are there already
    with pytest.raises(Exception, match=r"(?i)unique"):
        sink.append(rows)
    assert sink.head().seq == 3
    sink.close()


@pytest.mark.parametrize("make", ["sqlite", "postgres"], indirect=True)
def test_old_records_are_removed_and_the_log_says_so(make: Make) -> None:
    sink = filled(make(), 10)
    log = Chronicle(sink, wall=lambda: 1_000_000_000.0 + 104)
    log._head = sink.head()
    assert log.remove_old(keep=100.0)
    left = [row.seq for row in sink.forward()]
    assert left == [5, 6, 7, 8, 9, 10, 11]
    assert verify(sink.forward()).first == 5
    assert not log.remove_old(keep=100.0)
    log.close()


def test_old_files_are_removed_and_the_log_says_so(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "audit.jsonl", largest=1)
    sink.open()
    for number in range(6):
        sink.append(chained(sink.head(), entries(1, 1_000_000_000.0 + number)))
    assert len(list(tmp_path.glob("*.jsonl"))) == 6
    log = Chronicle(sink, wall=lambda: 1_000_000_000.0 + 103)
    log._head = sink.head()
    assert log.remove_old(keep=100.0)
    assert [row.seq for row in sink.forward()] == [4, 5, 6, 7]
    assert [row.seq for row in sink.forward(5)] == [6, 7]
    verify(sink.forward())
    log.close()
    again = JsonlSink(tmp_path / "audit.jsonl", largest=1)
    again.open()
    assert again.head().seq == 8  # what `close` wrote
    again.close()


def test_a_beginning_that_was_cut_off_by_hand_is_found(make: Make) -> None:
    sink = filled(make(), 10)
    with pytest.raises(Altered, match="what was before it is missing"):
        verify(sink.forward(4))
    sink.close()


@pytest.mark.parametrize("end", [b'{"seq":6,"prev":"00', b"\0" * 300, b'{"seq":6}\n', b"\n\n"])
def test_a_last_line_that_was_written_in_part_is_set_aside(end: bytes, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    filled(JsonlSink(path)).close()
    with path.open("ab") as file:
        file.write(end)
    sink = JsonlSink(path)
    torn = sink.open()
    assert torn is not None and torn.size == len(end)
    assert Path(torn.kept).read_bytes() == end
    assert verify(sink.forward()).head.seq == 5
    sink.close()
    assert JsonlSink(path).open() is None


def test_a_short_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = filled(JsonlSink(tmp_path / "audit.jsonl"))
    real = os.write

    def half(file: int, data: bytes) -> int:
        monkeypatch.setattr(os, "write", full)
        return real(file, data[:10])

    def full(file: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(OSError, match="No space"):
        sink.append(chained(sink.head(), entries(1)))
    assert verify(sink.forward()).head == sink.head()
    sink.close()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "audit.sqlite").write_bytes(b"hello" * 1000)
    sink = SqliteSink(tmp_path / "audit.sqlite")
    with pytest.raises(SinkBroken, match="not a database"):
        sink.open()
    sink.close()


def test_a_page_of_the_database_that_was_overwritten_is_found(tmp_path: Path) -> None:
    path = tmp_path / "audit.sqlite"
    filled(SqliteSink(path), 2000).close()
    with path.open("r+b") as file:
        file.seek(10 * 4096)
        file.write(b"\xff" * 4096)
    sink = SqliteSink(path)
    with pytest.raises((SinkBroken, Altered)):
        sink.open()
        verify(sink.forward())
    sink.close()


def test_the_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    for sink in (SqliteSink(tmp_path / "a" / "audit.sqlite"), JsonlSink(tmp_path / "b" / "audit.jsonl")):
        filled(sink).close()
    assert {path.stat().st_mode & 0o077 for path in tmp_path.rglob("*")} == {0}


def test_a_group_is_on_disk_when_append_returns(tmp_path: Path) -> None:
    sink = SqliteSink(tmp_path / "audit.sqlite")
    filled(sink)
    db = sink._db
    assert db is not None
    assert db.execute("PRAGMA synchronous").fetchone() == (2,)
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    sink.close()
    with closing(sqlite3.connect(tmp_path / "audit.sqlite")) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
