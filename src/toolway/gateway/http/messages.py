"""What came and what goes: one request, and the head of one response."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"

Fields = Iterable[tuple[str, str]]

JSON_FIELDS: Final = (("content-type", JSON),)
_USUAL: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"

_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}
_BODILESS: Final = (204, 304)  # and so they have no length either


class Notes:
    """What was concluded from a head alone. Requests with equal heads share it."""

    __slots__ = ("admitted", "checked")

    def __init__(self) -> None:
        self.admitted: Any = None  # by the door
        self.checked: Any = None  # by the era


class Request(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One request, whole. Names of headers are in lower case."""

    method: str
    path: str  # as it came, without the query; never decoded
    query: str
    headers: Mapping[str, str]
    repeated: frozenset[str]  # headers that came more than once; the last one counts
    body: bytes
    peer: str
    notes: Notes = msgspec.field(default_factory=Notes)

    def with_body(self, body: bytes, peer: str) -> Request:
        """The same head with another body, from another client perhaps."""
        return Request(self.method, self.path, self.query, self.headers, self.repeated, body, peer, self.notes)


def head(status: int, fields: Fields, *, length: int | None, close: bool, chunked: bool = True) -> bytes:
    """The head of a response; without a length it is chunked, or ends with the connection."""
    if status == 200 and fields is JSON_FIELDS and not close and length is not None:
        return _USUAL % length
    lines = [_LINES[status]] if status in _LINES else [f"HTTP/1.1 {status} Status\r\n"]
    for name, value in fields:
        lines.append(f"{name}: {value}\r\n")
    if length is not None:
        if status not in _BODILESS:
            lines.append(f"content-length: {length}\r\n")
    elif chunked:
        lines.append("transfer-encoding: chunked\r\n")
    lines.append("connection: close\r\n\r\n" if close else "\r\n")
    return "".join(lines).encode("latin-1")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK: Final = b"0\r\n\r\n"
