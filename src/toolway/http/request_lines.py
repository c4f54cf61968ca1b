"""Checks request lines against their only valid form, because the parser accepts more.

llhttp skips any number of spaces between method, target, and version, but a proxy in front of the gateway may read
such a line differently. The parser does not report where in its input a request begins, so `RequestLines` keeps track
of that.
"""

from __future__ import annotations

_HEAD_END = b"\r\n\r\n"


class RequestLines:
    """The bytes fed to a parser, and where the current request begins in them."""

    __slots__ = ("_begin", "_body", "_bytes")

    def __init__(self) -> None:
        self._bytes = b""  # of this packet, and of earlier ones with parts of the head being read
        self._begin: int | None = 0  # of the request being read; None: somewhere behind a chunked body
        self._body = 0  # where the body of the request being read begins or continues

    def start_packet(self, data: bytes) -> None:
        """Take the bytes that the parser is fed next."""
        self._bytes += data
        self._body = 0

    def is_valid(self, line: bytes) -> bool:
        """Return True if the head that was just read begins with this line. Empty lines may precede the line."""
        found, begin = self._bytes, self._begin
        if begin is None:
            begin = found.find(b"\n" + line) + 1
        while found[begin : begin + 1] in (b"\r", b"\n"):
            begin += 1
        self._body = found.find(_HEAD_END, begin) + len(_HEAD_END)
        return found.startswith(line, begin)

    def end_request(self, body_bytes: int, *, is_chunked: bool) -> None:
        """Record the end of a request of whose body `body_bytes` were in this packet."""
        self._begin = None if is_chunked else self._body + body_bytes

    def end_packet(self, *, in_head: bool) -> None:
        """Forget what the parser has consumed, except a head that is not complete yet."""
        if not in_head:
            self._bytes, self._begin = b"", 0
        elif self._begin:
            self._bytes, self._begin = self._bytes[self._begin :], 0
