"""Lines out of bytes: whole, in order, in linear time, and bounded."""

from __future__ import annotations

import random
import time

from toolway.upstream.transports.stdio.framing import HEAD, Framer, Oversized


def test_lines_are_the_same_however_the_bytes_are_cut() -> None:
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


def test_a_line_over_the_limit_is_reported_once_and_skipped() -> None:
    framer = Framer(100)
    assert framer.feed(b"x" * 60) == []
    (over,) = framer.feed(b"y" * 60)
    assert isinstance(over, Oversized)
    assert over.head == (b"x" * 60 + b"y" * 60)[:HEAD]
    assert framer.feed(b"z" * 500) == []
    assert framer.feed(b"z\nnext\n") == [b"next"]


def test_a_long_line_in_one_piece_is_reported_too() -> None:
    assert [type(x) for x in Framer(10).feed(b"x" * 11 + b"\nok\n")] == [Oversized, bytes]


def test_an_endless_line_takes_no_memory() -> None:
    framer = Framer(1000)
    for _ in range(100):
        framer.feed(b"x" * 1000)
    assert framer.skipped == 100_000
    assert framer.partial == b""


def test_time_grows_with_the_bytes_and_not_with_their_square() -> None:
    def seconds(chunks: int) -> float:
        framer = Framer(1 << 30)
        began = time.perf_counter()
        for _ in range(chunks):
            framer.feed(b"x" * 1024)
        framer.feed(b"\n")
        return time.perf_counter() - began

    seconds(1000)
    assert seconds(16_000) < 64 * max(seconds(1000), 0.0005)
