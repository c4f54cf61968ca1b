"""Server-sent events, cut in every way."""

from __future__ import annotations

import random
import time
import tracemalloc

import pytest

from tests.timing import within
from toolway.upstream.transports.sse_parser import OVERSIZED_EVENT, EventTooLong, SSEEvent, SSEParser

LIMIT = 10_000


def parse(*chunks: bytes, limit: int = LIMIT) -> list[SSEEvent]:
    stream = SSEParser(limit)
    return [event for chunk in chunks for event in stream.feed(chunk)]


def test_event_ends_at_empty_line() -> None:
    assert parse(b"data: hello\n\n") == [SSEEvent(b"hello", "message", "")]
    assert parse(b"data: hello\n") == []
    assert parse(b"data: hello") == []


def test_all_fields_are_parsed() -> None:
    stream = SSEParser(LIMIT)
    events = stream.feed(b"id: 7\nevent: ping\nretry: 1500\ndata: a\ndata: b\n\ndata: c\n\n")
    assert events == [SSEEvent(b"a\nb", "ping", "7"), SSEEvent(b"c", "message", "7")]
    assert (stream.id, stream.retry) == ("7", 1500)


def test_only_one_space_after_colon_is_stripped() -> None:
    assert [e.data for e in parse(b"data:a\n\ndata:  b\n\ndata\n\ndata:\n\n")] == [b"a", b" b", b"", b""]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_all_line_endings_are_accepted(end: bytes) -> None:
    assert parse(end.join([b"event: x", b"data: 1", b"", b"data: 2", b"", b""])) == [
        SSEEvent(b"1", "x", ""),
        SSEEvent(b"2", "message", ""),
    ]


def test_carriage_return_at_chunk_end_ends_line() -> None:
    stream = SSEParser(LIMIT)
    assert stream.feed(b"data: 1\r\n\r") == [SSEEvent(b"1", "message", "")]
    assert stream.feed(b"\ndata: 2\r") == []
    assert stream.feed(b"\r") == [SSEEvent(b"2", "message", "")]
    assert stream.feed(b"\n\ndata: 3\n\n") == [SSEEvent(b"3", "message", "")]


def test_comments_are_counted_and_skipped() -> None:
    stream = SSEParser(LIMIT)
    assert stream.feed(b": keep-alive\n\n:\n\ndata: x\n: inside\n\n") == [SSEEvent(b"x", "message", "")]
    assert stream.comments == 3


def test_unknown_fields_and_bad_values_are_ignored() -> None:
    stream = SSEParser(LIMIT)
    assert stream.feed(b"retry: soon\nretry: -1\nid: a\0b\nfoo: bar\nevent: only\n\n") == []
    assert (stream.id, stream.retry) == ("", None)
    assert stream.feed(b"retry: 99999999999999999999\ndata: x\n\n") == [SSEEvent(b"x", "message", "")]
    assert stream.retry is None


def test_event_id_applies_when_event_ends() -> None:
    stream = SSEParser(LIMIT)
    stream.feed(b"id: 1\ndata: x\n\nid: 2\ndata: half")
    assert stream.id == "1"
    assert stream.feed(b"\n\n") == [SSEEvent(b"half", "message", "2")]


def test_event_without_data_still_sets_id() -> None:
    stream = SSEParser(LIMIT)
    assert stream.feed(b"id: 9\nretry: 10\n\n") == []
    assert stream.id == "9"


@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_split_byte_order_mark_is_dropped(size: int) -> None:
    data = b"\xef\xbb\xbfdata: x\n\n"
    assert parse(*(data[i : i + size] for i in range(0, len(data), size))) == [SSEEvent(b"x", "message", "")]
    assert parse(b"\xef\xbb", b"data: x\n\n") == []  # not a mark, so a field of an unknown name
    assert parse(b"data: \xef\xbb\xbf\n\n") == [SSEEvent(b"\xef\xbb\xbf", "message", "")]


def test_chunk_boundaries_do_not_matter() -> None:
    rng = random.Random(7)
    pieces = [b"data: a", b"data:b", b"id: 1", b"event: e", b": c", b"", b"", b"retry: 5", b"x", b"\xc3\xbc: \xff"]
    for _ in range(300):
        data = b"".join(rng.choice(pieces) + rng.choice([b"\n", b"\r", b"\r\n"]) for _ in range(20))
        cuts = sorted(rng.randrange(len(data)) for _ in range(rng.randrange(30)))
        parts = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        assert parse(*parts) == parse(data)


@pytest.mark.parametrize(
    "endless",
    [b"data: " + b"x" * 100, b"x" * 100, b"data: y\n" * 10, b"data:\n" * 20, b"event: " + b"z" * 100],
    ids=["data", "nameless", "lines", "empty lines", "event"],
)
def test_endless_event_raises_at_limit(endless: bytes) -> None:
    stream = SSEParser(LIMIT)
    fed = 0
    with pytest.raises(EventTooLong):
        while fed < 20 * LIMIT:
            fed += len(endless)
            stream.feed(endless)
    assert fed < 15 * LIMIT


def test_event_just_under_limit_is_accepted() -> None:
    assert parse(b"data: " + b"x" * 9_990 + b"\n\n")[0].data == b"x" * 9_990
    with pytest.raises(EventTooLong):
        parse(b"data: " + b"x" * LIMIT + b"\n\n")


def test_time_and_memory_are_linear() -> None:
    data = b"data: " + b"x" * 1_000_000 + b"\n\n"
    parts = [data[i : i + 20] for i in range(0, len(data), 20)]
    stream = SSEParser(8_000_000)
    tracemalloc.start()
    began = time.process_time()
    events = [event for part in parts for event in stream.feed(part)]
    took = time.process_time() - began
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(events[0].data) == 1_000_000
    assert took < within(10)
    assert peak < 6_000_000


def test_many_comments_are_skipped_quickly() -> None:
    stream = SSEParser(LIMIT)
    began = time.process_time()
    for _ in range(10):
        assert stream.feed(b":\n" * 100_000) == []
    assert time.process_time() - began < within(5)
    assert stream.comments == 1_000_000


def shared(*chunks: bytes, limit: int = 100) -> list[SSEEvent]:
    stream = SSEParser(limit, skip_oversized=True)
    return [event for chunk in chunks for event in stream.feed(chunk)]


def test_oversized_event_is_reported_once_and_skipped() -> None:
    long = b'data: {"id":7,"result":"' + b"x" * 500 + b'"}\n'
    whole = b"data: before\n\n" + long + long + b"\ndata: after\n\n"
    for size in (1, 2, 7, 50, 333, len(whole)):
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
        told, before, after = sorted(shared(*pieces), key=lambda event: event.type is not OVERSIZED_EVENT)
        assert (before.data, after.data) == (b"before", b"after"), size
        assert told.type is OVERSIZED_EVENT and told.data.removeprefix(b"data: ").startswith(b'{"id":7,"result":"')


def test_end_of_oversized_line_does_not_end_its_event() -> None:
    events = shared(b"data: " + b"x" * 200, b"\n", b"data: of the same event\n", b"\n", b"data: next\n\n")
    assert [event.data for event in events if event.type is not OVERSIZED_EVENT] == [b"next"]


def test_skipped_bytes_are_counted_and_not_kept() -> None:
    stream = SSEParser(100, skip_oversized=True)
    for _ in range(1000):
        stream.feed(b"data: " + b"x" * 1000)
    assert stream.skipped > 900_000
    assert len(stream._line) + len(stream._data) < 200
    stream.feed(b"\n\n")
    assert stream.skipped == 0
    assert stream.feed(b"data: fine\n\n") == [SSEEvent(b"fine", "message", "")]
