"""The loop's side of the log, over a sink that does what it is told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from toolway.telemetry.audit import ledger as module
from toolway.telemetry.audit.ledger import Ledger, LogUnavailable
from toolway.telemetry.audit.records import Head, Row, rest_of
from toolway.telemetry.audit.sink import SinkBroken
from toolway.telemetry.audit.verify import verify

pytestmark = pytest.mark.anyio


class MemorySink:
    """Rows in memory. `gate` holds up writing; `fault` is raised by it."""

    where = "memory"

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.groups: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.fault: Exception | None = None
        self.keeps_what_failed = False

    def open(self) -> None:
        return None

    def head(self) -> Head:
        return Head(self.rows[-1].seq, self.rows[-1].hash) if self.rows else Head()

    def append(self, rows: list[Row]) -> None:
        self.gate.wait(10)
        if self.fault is not None:
            if self.keeps_what_failed:
                self.rows += rows
            raise self.fault
        self.rows += rows
        self.groups.append(len(rows))

    def forward(self, after: int = 0) -> Iterator[Row]:
        return iter([row for row in self.rows if row.seq > after])

    def backward(self) -> Iterator[Row]:
        return iter(self.rows[::-1])

    def removable(self, before: str) -> Head | None:
        return None

    def remove(self, through: int) -> None: ...

    def close(self) -> None: ...

    def kinds(self) -> list[str]:
        verify(self.rows)
        return [row.fields()["kind"] for row in self.rows]


async def opened(sink: MemorySink, **options: float) -> Ledger:
    ledger = Ledger(sink, **options)  # type: ignore[arg-type]
    await ledger.open()
    return ledger


async def until_well(ledger: Ledger) -> None:
    async with asyncio.timeout(10):
        while ledger.trouble is not None:
            await asyncio.sleep(0.01)


async def test_what_comes_while_the_disk_is_busy_is_one_group() -> None:
    sink = MemorySink()
    ledger = await opened(sink)
    sink.gate.clear()
    first = ledger.intend(b"test", rest_of({}))
    await asyncio.sleep(0.05)
    others = [ledger.intend(b"test", rest_of({"n": number})) for number in range(500)]
    assert not first.done()
    sink.gate.set()
    await asyncio.gather(first, *others)
    assert sink.groups == [1, 1, 500]  # the first is what opening wrote
    await ledger.close()
    assert sink.kinds()[-1] == "log.close"


async def test_a_note_is_written_soon_and_costs_no_write_of_its_own() -> None:
    sink = MemorySink()
    ledger = await opened(sink)
    for number in range(100):
        ledger.note(b"test", rest_of({"n": number}))
    assert len(sink.rows) == 1
    await asyncio.sleep(0.2)
    assert sink.groups == [1, 100]
    await ledger.close()


async def test_a_full_buffer_refuses_intents_and_counts_what_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUFFER", 50)
    sink = MemorySink()
    ledger = await opened(sink)
    sink.gate.clear()
    ledger.note(b"test", rest_of({}))
    await asyncio.sleep(0.1)
    for _ in range(60):
        ledger.note(b"test", rest_of({}))
    assert ledger.lost == 10
    with pytest.raises(LogUnavailable, match="too many"):
        ledger.intend(b"test", rest_of({}))
    sink.gate.set()
    await until_well(ledger)
    await ledger.flush()
    resumed = [row.fields() for row in sink.rows if row.fields()["kind"] == "log.resumed"]
    assert [each["lost"] for each in resumed] == [10]
    await ledger.intend(b"test", rest_of({}))
    await ledger.close()


@pytest.mark.parametrize("stored", [False, True])
async def test_whether_a_write_that_failed_was_stored_is_found_out(stored: bool) -> None:
    sink = MemorySink()
    ledger = await opened(sink)
    sink.fault, sink.keeps_what_failed = OSError("fsync"), stored
    with pytest.raises(LogUnavailable):
        await ledger.intend(b"test", rest_of({"n": 1}))
    sink.fault = None
    await until_well(ledger)
    await ledger.intend(b"test", rest_of({"n": 2}))
    await ledger.close()
    assert sink.kinds().count("test") == 1 + stored


async def test_a_log_that_is_not_the_one_that_was_written_is_not_gone_on_with() -> None:
    sink = MemorySink()
    ledger = await opened(sink)
    await ledger.intend(b"test", rest_of({}))
    sink.fault = OSError("disk")
    with pytest.raises(LogUnavailable):
        await ledger.intend(b"test", rest_of({}))
    sink.rows.pop()
    sink.fault = None
    await asyncio.sleep(0.5)
    assert ledger.trouble is not None
    with pytest.raises(LogUnavailable):
        ledger.intend(b"test", rest_of({}))
    with pytest.raises(SinkBroken, match="does not end with"):
        ledger._chronicle.write([b"{}"])
    await ledger.close()


async def test_a_log_that_was_taken_away_is_begun_anew_and_says_after_what() -> None:
    sink = MemorySink()
    ledger = await opened(sink)
    await ledger.intend(b"test", rest_of({}))
    before = sink.head()
    sink.fault = OSError("moved away")
    with pytest.raises(LogUnavailable):
        await ledger.intend(b"test", rest_of({}))
    sink.rows.clear()
    sink.fault = None
    await until_well(ledger)
    assert sink.rows[0].fields()["after"] == {"seq": before.seq, "hash": before.hash}
    await ledger.close()
    verify(sink.rows)


async def test_whoever_stops_waiting_harms_nobody() -> None:
    sink = MemorySink()
    ledger = await opened(sink)
    sink.gate.clear()
    waiting = [asyncio.ensure_future(_await(ledger.intend(b"test", rest_of({})))) for _ in range(10)]
    await asyncio.sleep(0.05)
    for task in waiting[::2]:
        task.cancel()
    sink.gate.set()
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert [each is None for each in done] == [False, True] * 5
    await ledger.close()


async def _await(future: asyncio.Future[None]) -> None:
    await future


async def test_closing_does_not_wait_for_a_dead_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSING", 0.2)
    sink = MemorySink()
    ledger = await opened(sink)
    sink.gate.clear()
    ledger.note(b"test", rest_of({}))
    async with asyncio.timeout(2):
        await ledger.close()
    sink.gate.set()
