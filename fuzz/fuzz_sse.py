"""Fuzz target: event streams give the events of the HTML standard, however they are cut, and none over the limit."""

from __future__ import annotations

import contextlib
import re

from harness import Bytes, fuzz, instrumented

with instrumented(__name__ == "__main__"):
    from toolway.upstream.transports.sse_parser import EventTooLong, SSEEvent, SSEParser

LARGE = 1 << 20
_END = re.compile(b"\r\n|\r|\n")


def check(data: bytes) -> None:
    source = Bytes(data)
    limit, size = 8 + source.number(255), 1 + source.number(31)
    whole, pieces = SSEParser(LARGE), SSEParser(LARGE)
    found = whole.feed(source.rest)
    assert [event for chunk in source.chunks(size) for event in pieces.feed(chunk)] == found
    assert (whole.id, whole.retry, whole.comments) == (pieces.id, pieces.retry, pieces.comments)
    assert found == _by_the_standard(source.rest)
    small = SSEParser(limit)
    with contextlib.suppress(EventTooLong):
        for chunk in source.chunks(size):
            for event in small.feed(chunk):
                assert len(event.data) <= limit


def _by_the_standard(data: bytes) -> list[SSEEvent]:
    """Return the events by the algorithm of the HTML standard, without limits of time and memory."""
    events: list[SSEEvent] = []
    value, kind, last_id = bytearray(), "", ""
    *lines, _ = _END.split(data.removeprefix(b"\xef\xbb\xbf"))
    for line in lines:
        name, _, content = line.partition(b":")
        content = content.removeprefix(b" ")
        if not line:
            if value:
                events.append(SSEEvent(bytes(value[:-1]), kind or "message", last_id))
            value, kind = bytearray(), ""
        elif name == b"data":
            value += content + b"\n"
        elif name == b"event":
            kind = content[:1024].decode("utf-8", "replace")
        elif name == b"id" and b"\0" not in content and len(content) <= 1024:
            last_id = content.decode("utf-8", "replace")
    return events


if __name__ == "__main__":
    fuzz(check, longest=512)
