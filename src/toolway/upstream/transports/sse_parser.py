"""Incremental parser for server-sent events: bytes in, events out.

Rule 1. Time is linear in the bytes fed, for any chunk sizes: unfinished data grows in place and is never re-read.
Rule 2. Memory is bounded: an event, including its unfinished line, over `limit` bytes raises `EventTooLong`. If other
        requests share the stream (`skip_oversized`), it is reported once with its first bytes, and skipped.
Rule 3. A line ends at CR, LF or CRLF. A CR at the end of a chunk ends its line at once; an LF after it belongs to it.

    parser = SSEParser(limit=8 * 1024 * 1024)
    for event in parser.feed(chunk):
        handle(event.data)
"""

from __future__ import annotations

from typing import Final, NamedTuple

_BOM: Final = b"\xef\xbb\xbf"
_COLON: Final = ord(":")
_LF: Final = ord("\n")
_MAX_NAME_CHARS: Final = 1024  # characters of an event's type or id
_OVERSIZED_HEAD_BYTES: Final = 4096  # bytes kept of a skipped event: enough to read an id
OVERSIZED_EVENT: Final = "too long"  # type of a skipped event, compared by identity: a server may send the same word
_MAX_RETRY_DIGITS: Final = 9


class EventTooLong(Exception):
    """Raised when a server-sent event grows beyond the limit of the parser."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"an event of more than {limit} bytes")
        self.limit = limit


class SSEEvent(NamedTuple):
    """One server-sent event. `id` is the last id set on the stream, as the standard requires."""

    data: bytes
    type: str
    id: str


class SSEParser:
    """Incremental parser of one stream of server-sent events."""

    __slots__ = (
        *(
            "_after_cr",
            "_data",
            "_event",
            "_bom_prefix",
            "_id",
            "_limit",
            "_line",
            "_oversized_heads",
            "_skip_oversized",
        ),
        *("comments", "id", "retry", "skipped"),
    )

    def __init__(self, limit: int, id: str = "", *, skip_oversized: bool = False) -> None:
        self.comments = 0  # number of comment lines, which servers send as keep-alive
        self.id = id  # id of the last finished event, for resumption
        self.retry: int | None = None  # reconnection delay in milliseconds, if the server has set one
        self.skipped = 0  # bytes skipped of the current oversized event; 0 if there is none
        self._skip_oversized = skip_oversized
        self._oversized_heads: list[bytes] = []  # first bytes of oversized events that are not reported yet
        self._limit = limit
        self._bom_prefix: bytes | None = b""  # first bytes, until it is clear if they are a byte order mark
        self._line = bytearray()  # unfinished line
        self._data = bytearray()  # data lines of the unfinished event, each with its newline
        self._event = ""
        self._id = id
        self._after_cr = False

    @property
    def has_partial_event(self) -> bool:
        """Return True if an event was only partly received so far."""
        return bool(self._data or self._line)

    def feed(self, chunk: bytes) -> list[SSEEvent]:
        """Return the events that `chunk` completes.

        Raises `EventTooLong` if an event exceeds the limit and oversized events are not skipped.
        """
        if self._bom_prefix is not None:
            chunk = self._without_bom(chunk)
        if not chunk:
            return []
        if self._after_cr and chunk[0] == _LF:
            chunk = chunk[1:]
        self._after_cr = chunk[-1:] == b"\r"
        lines = chunk.splitlines()
        tail = b"" if chunk[-1:] in (b"\n", b"\r", b"") else lines.pop()
        if self._line and lines:
            self._fits_limit(lines[0])
            lines[0] = bytes(self._line) + lines[0]
            self._line.clear()
        events: list[SSEEvent] = []
        for line in lines:
            if line:
                self._parse_line(line)
            else:
                self._finish_event(events)
        if tail and self._fits_limit(tail):
            self._line += tail
        if self._oversized_heads:
            events += [SSEEvent(head, OVERSIZED_EVENT, self.id) for head in self._oversized_heads]
            self._oversized_heads.clear()
        return events

    def _without_bom(self, chunk: bytes) -> bytes:
        assert self._bom_prefix is not None
        seen = self._bom_prefix + chunk
        if len(seen) < len(_BOM) and _BOM.startswith(seen):
            self._bom_prefix = seen
            return b""
        self._bom_prefix = None
        return seen.removeprefix(_BOM)

    def _fits_limit(self, more: bytes) -> bool:
        """Return True if `more` bytes fit into the current event, or False if the event is skipped.

        Raises `EventTooLong` if oversized events are not skipped.
        """
        if not self.skipped and len(self._data) + len(self._line) + len(more) <= self._limit:
            return True
        if not self._skip_oversized:
            raise EventTooLong(self._limit)
        if not self.skipped:
            self._oversized_heads.append(
                b"".join(
                    (
                        self._data[:_OVERSIZED_HEAD_BYTES],
                        self._line[:_OVERSIZED_HEAD_BYTES],
                        more[:_OVERSIZED_HEAD_BYTES],
                    )
                )[:_OVERSIZED_HEAD_BYTES]
            )
            self._data.clear()
        self._line[:] = b":"  # the rest of its line must not be parsed as an empty line, which would end the event
        self.skipped += len(more)
        return False

    def _parse_line(self, line: bytes) -> None:
        if line[0] == _COLON:
            self.comments += 1
            return
        if not self._fits_limit(line):
            self._line.clear()
            return
        name, colon, value = line.partition(b":")
        if colon and value[:1] == b" ":
            value = value[1:]
        if name == b"data":
            self._data += value
            self._data += b"\n"
        elif name == b"event":
            self._event = value[:_MAX_NAME_CHARS].decode("utf-8", "replace")
        elif name == b"id":
            if b"\0" not in value and len(value) <= _MAX_NAME_CHARS:
                self._id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit() and len(value) <= _MAX_RETRY_DIGITS:
            self.retry = int(value)

    def _finish_event(self, events: list[SSEEvent]) -> None:
        self.id = self._id
        self.skipped = 0
        if self._data:
            events.append(SSEEvent(bytes(self._data[:-1]), self._event or "message", self.id))
            self._data.clear()
        self._event = ""
