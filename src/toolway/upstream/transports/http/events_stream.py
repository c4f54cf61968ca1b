"""Server-sent events: bytes in, events out, nothing else.

Rule 1. Time is linear in the bytes fed, however they are cut: what is unfinished grows in place and is never re-read.
Rule 2. What is kept is bounded: an event, its unfinished line included, beyond `limit` bytes raises `EventTooLong`.
        Where others wait for the same stream (`skips`), it is told once by its first bytes, and passed over.
Rule 3. A line ends at CR, LF or CRLF. A CR that ends a chunk ends its line at once; an LF that follows belongs to it.

    stream = EventStream(limit=8 * 1024 * 1024)
    for event in stream.feed(chunk):
        handle(event.data)
"""

from __future__ import annotations

from typing import Final, NamedTuple

_BOM: Final = b"\xef\xbb\xbf"
_COLON: Final = ord(":")
_LF: Final = ord("\n")
_MAX_NAME: Final = 1024  # characters kept of an event's type or id
_HEAD: Final = 4096  # bytes of an event that is passed over: enough to read an id
TOO_LONG: Final = "too long"  # the type of such an event, known by identity: a server may send the same word
_MAX_RETRY_DIGITS: Final = 9


class EventTooLong(Exception):
    """An event grew beyond the limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"an event of more than {limit} bytes")
        self.limit = limit


class Event(NamedTuple):
    """One event. `id` is the last one the stream gave, as the standard has it."""

    data: bytes
    event: str
    id: str


class EventStream:
    """The state between two chunks of one stream."""

    __slots__ = (
        *("_after_cr", "_data", "_event", "_head", "_id", "_limit", "_line", "_over", "_skips"),
        *("comments", "id", "retry", "skipped"),
    )

    def __init__(self, limit: int, id: str = "", *, skips: bool = False) -> None:
        self.comments = 0  # lines that were comments: a server's sign of life
        self.id = id  # the id of the last finished event: what a resumption names
        self.retry: int | None = None  # milliseconds the server wants a reconnection to wait
        self.skipped = 0  # bytes of the event that is being passed over; 0 where there is none
        self._skips = skips
        self._over: list[bytes] = []  # how events began that are too long, until that is told
        self._limit = limit
        self._head: bytes | None = b""  # the first bytes, until they can be told from a byte order mark
        self._line = bytearray()  # a line whose end has not come yet
        self._data = bytearray()  # data lines of the unfinished event, each with its newline
        self._event = ""
        self._id = id
        self._after_cr = False

    @property
    def begun(self) -> bool:
        """Whether an event has begun and not ended."""
        return bool(self._data or self._line)

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` finishes. Raises `EventTooLong`."""
        if self._head is not None:
            chunk = self._without_bom(chunk)
        if not chunk:
            return []
        if self._after_cr and chunk[0] == _LF:
            chunk = chunk[1:]
        self._after_cr = chunk[-1:] == b"\r"
        lines = chunk.splitlines()
        tail = b"" if chunk[-1:] in (b"\n", b"\r", b"") else lines.pop()
        if self._line and lines:
            self._fits(lines[0])
            lines[0] = bytes(self._line) + lines[0]
            self._line.clear()
        events: list[Event] = []
        for line in lines:
            if line:
                self._take(line)
            else:
                self._finish(events)
        if tail and self._fits(tail):
            self._line += tail
        if self._over:
            events += [Event(head, TOO_LONG, self.id) for head in self._over]
            self._over.clear()
        return events

    def _without_bom(self, chunk: bytes) -> bytes:
        assert self._head is not None
        seen = self._head + chunk
        if len(seen) < len(_BOM) and _BOM.startswith(seen):
            self._head = seen
            return b""
        self._head = None
        return seen.removeprefix(_BOM)

    def _fits(self, more: bytes) -> bool:
        """Whether there is room for `more` of the event. Raises `EventTooLong`."""
        if not self.skipped and len(self._data) + len(self._line) + len(more) <= self._limit:
            return True
        if not self._skips:
            raise EventTooLong(self._limit)
        if not self.skipped:
            self._over.append(b"".join((self._data[:_HEAD], self._line[:_HEAD], more[:_HEAD]))[:_HEAD])
            self._data.clear()
        self._line[:] = b":"  # what is left of its line is no empty one, which would end the event
        self.skipped += len(more)
        return False

    def _take(self, line: bytes) -> None:
        if line[0] == _COLON:
            self.comments += 1
            return
        if not self._fits(line):
            self._line.clear()
            return
        name, colon, value = line.partition(b":")
        if colon and value[:1] == b" ":
            value = value[1:]
        if name == b"data":
            self._data += value
            self._data += b"\n"
        elif name == b"event":
            self._event = value[:_MAX_NAME].decode("utf-8", "replace")
        elif name == b"id":
            if b"\0" not in value and len(value) <= _MAX_NAME:
                self._id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit() and len(value) <= _MAX_RETRY_DIGITS:
            self.retry = int(value)

    def _finish(self, events: list[Event]) -> None:
        self.id = self._id
        self.skipped = 0
        if self._data:
            events.append(Event(bytes(self._data[:-1]), self._event or "message", self.id))
            self._data.clear()
        self._event = ""
