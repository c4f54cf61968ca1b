"""Lines out of bytes: whole, in order, in linear time, and bounded."""

from __future__ import annotations

import random

from toolway.upstream.transports.stdio import StderrTail
from toolway.upstream.transports.stdio_pipes import OVERSIZED_HEAD_BYTES, Framer, OversizedLine


def test_chunk_boundaries_do_not_change_lines() -> None:
    lines = [bytes([65 + n % 26]) * (n % 50) for n in range(200)]
    data = b"".join(line + b"\n" for line in lines)
    dice = random.Random(7)
    for _ in range(20):
        framer, out, at = Framer(1000), [], 0
        while at < len(data):
            size = dice.randint(1, 120)
            out += framer.feed(data[at : at + size])
            at += size
        assert out == lines


def test_oversized_line_is_reported_once_and_skipped() -> None:
    framer = Framer(100)
    assert framer.feed(b"x" * 60) == []
    (over,) = framer.feed(b"y" * 60)
    assert isinstance(over, OversizedLine)
    assert over.head == (b"x" * 60 + b"y" * 60)[:OVERSIZED_HEAD_BYTES]
    assert framer.feed(b"z" * 500) == []
    assert framer.feed(b"z\nnext\n") == [b"next"]


def test_oversized_line_in_one_chunk_is_reported() -> None:
    assert [type(x) for x in Framer(10).feed(b"x" * 11 + b"\nok\n")] == [OversizedLine, bytes]


def test_endless_line_uses_no_memory() -> None:
    framer = Framer(1000)
    for _ in range(100):
        framer.feed(b"x" * 1000)
    assert framer.skipped == 100_000
    assert framer.partial_head == b""


def test_zero_length_tail_keeps_nothing() -> None:
    tail = StderrTail(0)
    tail.feed(b"lost")
    assert tail.text() == ""


def test_tail_of_small_writes_keeps_the_last() -> None:
    tail = StderrTail(100)
    for n in range(10_000):
        tail.feed(b"%d " % (n % 10))
    assert tail.text() == "…" + ("0 1 2 3 4 5 6 7 8 9 " * 5).rstrip()


def test_tail_of_short_lines_keeps_the_last() -> None:
    tail = StderrTail(100)
    for n in range(10_000):
        tail.feed(b"%d\n" % (n % 10))
    assert tail.text() == "…" + ("0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n" * 5).rstrip()


def test_stdout_line_is_inserted_between_stderr_lines() -> None:
    tail = StderrTail(10_000)
    tail.feed(b"first\nsec")
    tail.add_line(b"noise")
    tail.feed(b"ret\nlast")
    assert tail.text() == "first\nnoise\nsecret\nlast"
    tail.add_line(b"x" * 2000)
    assert tail.text() == f"first\nnoise\nsecret\n{'x' * 1000}…\nlast"
