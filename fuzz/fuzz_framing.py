"""Fuzz target: a byte stream gives the same lines however it is cut, and none over the limit."""

from __future__ import annotations

from harness import Bytes, fuzz, instrumented

with instrumented(__name__ == "__main__"):
    from toolway.upstream.transports.stdio_pipes import OVERSIZED_HEAD_BYTES, Framer, OversizedLine


def check(data: bytes) -> None:
    source = Bytes(data)
    limit, size = 1 + source.number(255) * 8, 1 + source.number(63)
    framer = Framer(limit)
    found = [line for chunk in source.chunks(size) for line in framer.feed(chunk)]
    *lines, unfinished = source.rest.split(b"\n")
    expected = lines if len(unfinished) <= limit else [*lines, unfinished]
    assert len(found) == len(expected)
    for got, line in zip(found, expected, strict=True):
        if isinstance(got, OversizedLine):
            assert len(line) > limit
            assert line.startswith(got.head) and len(got.head) >= min(OVERSIZED_HEAD_BYTES, limit)
        else:
            assert got == line and len(got) <= limit
    assert unfinished.startswith(framer.partial_head)
    assert framer.skipped == (len(unfinished) if len(unfinished) > limit else 0)


if __name__ == "__main__":
    fuzz(check, longest=512)
