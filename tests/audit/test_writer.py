"""Audit writer in the event loop, with a scripted sink."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from toolway.audit import writer as module
from toolway.audit.mac import RecordMacs
from toolway.audit.sink import ChainHead, SinkBroken, StoredRecord, encode_fields
from toolway.audit.writer import AuditUnavailable, AuditWriter
from toolway.parts.audit.verify import verify_log

pytestmark = pytest.mark.anyio


class MemorySink:
    """Rows in memory. `gate` holds up writing; `fault` is raised by it."""

    location = "memory"

    def __init__(self) -> None:
        self.rows: list[StoredRecord] = []
        self.groups: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.fault: Exception | None = None
        self.keeps_what_failed = False

    def open(self) -> None:
        return None

    def head(self) -> ChainHead:
        return ChainHead(self.rows[-1].seq, self.rows[-1].hash) if self.rows else ChainHead()

    def append(self, rows: list[StoredRecord]) -> None:
        self.gate.wait(10)
        if self.fault is not None:
            if self.keeps_what_failed:
                self.rows += rows
            raise self.fault
        self.rows += rows
        self.groups.append(len(rows))

    def read_forward(self, after: int = 0) -> Iterator[StoredRecord]:
        return iter([row for row in self.rows if row.seq > after])

    def read_backward(self) -> Iterator[StoredRecord]:
        return iter(self.rows[::-1])

    def prunable(self, before: str) -> ChainHead | None:
        return None

    def remove(self, through: int) -> None: ...

    def close(self) -> None: ...

    def kinds(self) -> list[str]:
        verify_log(self.rows)
        return [row.fields()["kind"] for row in self.rows]


async def opened(sink: MemorySink, **options: float) -> AuditWriter:
    ledger = AuditWriter(sink, RecordMacs(b"k" * 32), **options)  # type: ignore[arg-type]
    await ledger.open()
    return ledger


async def until_well(ledger: AuditWriter) -> None:
    async with asyncio.timeout(10):
        while ledger.failure is not None:
            await asyncio.sleep(0.01)


async def test_records_that_arrive_during_a_write_form_one_group() -> None:
    sink = MemorySink()
    ledger = await opened(sink)
    sink.gate.clear()
    first = ledger.commit(b"test", encode_fields({}))
    await asyncio.sleep(0.05)
    others = [ledger.commit(b"test", encode_fields({"n": number})) for number in range(500)]
    assert not first.done()
    sink.gate.set()
    await asyncio.gather(first, *others)
    assert sink.groups == [1, 1, 500]  # the first is what opening wrote
    await ledger.close()
    assert sink.kinds()[-1] == "log.close"


async def test_record_without_waiter_joins_next_write() -> None:
    sink = MemorySink()
    ledger = await opened(sink)
    for number in range(100):
        ledger.enqueue(b"test", encode_fields({"n": number}))
    assert len(sink.rows) == 1
    async with asyncio.timeout(30):
        while len(sink.groups) < 2:
            await asyncio.sleep(0.01)
    assert sink.groups == [1, 100]
    await ledger.close()


async def test_full_buffer_rejects_intents_and_counts_lost_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BUFFERED_RECORDS", 50)
    sink = MemorySink()
    ledger = await opened(sink)
    sink.gate.clear()
    ledger.enqueue(b"test", encode_fields({}))
    await asyncio.sleep(0.1)
    for _ in range(60):
        ledger.enqueue(b"test", encode_fields({}))
    assert ledger.lost == 10
    with pytest.raises(AuditUnavailable, match="too many"):
        ledger.commit(b"test", encode_fields({}))
    sink.gate.set()
    await until_well(ledger)
    await ledger.flush()
    resumed = [row.fields() for row in sink.rows if row.fields()["kind"] == "log.resumed"]
    assert [each["lost"] for each in resumed] == [10]
    await ledger.commit(b"test", encode_fields({}))
    await ledger.close()


@pytest.mark.parametrize("stored", [False, True])
async def test_retry_detects_whether_failed_write_was_stored(stored: bool) -> None:
    sink = MemorySink()
    ledger = await opened(sink)
    sink.fault, sink.keeps_what_failed = OSError("fsync"), stored
    with pytest.raises(AuditUnavailable):
        await ledger.commit(b"test", encode_fields({"n": 1}))
    sink.fault = None
    await until_well(ledger)
    await ledger.commit(b"test", encode_fields({"n": 2}))
    await ledger.close()
    assert sink.kinds().count("test") == 1 + stored


async def test_replaced_log_is_not_continued() -> None:
    sink = MemorySink()
    ledger = await opened(sink)
    await ledger.commit(b"test", encode_fields({}))
    sink.fault = OSError("disk")
    with pytest.raises(AuditUnavailable):
        await ledger.commit(b"test", encode_fields({}))
    sink.rows.pop()
    sink.fault = None
    await asyncio.sleep(0.5)
    assert ledger.failure is not None
    with pytest.raises(AuditUnavailable):
        ledger.commit(b"test", encode_fields({}))
    with pytest.raises(SinkBroken, match="does not end with"):
        ledger._chain.write([b"{}"])
    await ledger.close()


async def test_removed_log_restarts_with_link_to_its_predecessor() -> None:
    sink = MemorySink()
    ledger = await opened(sink)
    await ledger.commit(b"test", encode_fields({}))
    before = sink.head()
    sink.fault = OSError("moved away")
    with pytest.raises(AuditUnavailable):
        await ledger.commit(b"test", encode_fields({}))
    sink.rows.clear()
    sink.fault = None
    await until_well(ledger)
    assert sink.rows[0].fields()["after"] == {"seq": before.seq, "hash": before.hash}
    await ledger.close()
    verify_log(sink.rows)


async def test_cancelled_waiter_does_not_affect_others() -> None:
    sink = MemorySink()
    ledger = await opened(sink)
    sink.gate.clear()
    waiting = [asyncio.ensure_future(_await(ledger.commit(b"test", encode_fields({})))) for _ in range(10)]
    await asyncio.sleep(0.05)
    for task in waiting[::2]:
        task.cancel()
    sink.gate.set()
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert [each is None for each in done] == [False, True] * 5
    await ledger.close()


async def test_failing_callback_does_not_affect_others() -> None:
    sink = MemorySink()
    ledger = await opened(sink)
    written: list[Exception | None] = []

    def fail(error: Exception | None) -> None:
        raise RuntimeError("broken")

    ledger.start_commit(b"test", encode_fields({}), fail)
    ledger.start_commit(b"test", encode_fields({}), written.append)
    await ledger.commit(b"test", encode_fields({}))
    assert written == [None]
    await ledger.close()


async def _await(future: asyncio.Future[None]) -> None:
    await future


async def test_close_does_not_wait_for_a_dead_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSE_TIMEOUT_S", 0.2)
    sink = MemorySink()
    ledger = await opened(sink)
    sink.gate.clear()
    ledger.enqueue(b"test", encode_fields({}))
    ended: list[AuditUnavailable | None] = []
    ledger.start_commit(b"test", encode_fields({"n": 1}), ended.append)
    await asyncio.sleep(0.05)
    ledger.start_commit(b"test", encode_fields({"n": 2}), ended.append)  # of the next group
    async with asyncio.timeout(30):
        await ledger.close()
    assert [str(each) for each in ended] == ["the audit log is closed"] * 2
    sink.gate.set()
    await asyncio.sleep(0.1)
    assert len(ended) == 2  # the write that ends later is not reported again
