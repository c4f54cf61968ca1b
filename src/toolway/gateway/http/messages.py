"""What came and what goes: one request, and the head of one response."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Final

import msgspec

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"

Fields = Iterable[tuple[str, str]]

_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}
_BODILESS: Final = (204, 304)  # and so they have no length either


class Request(msgspec.Struct, frozen=True, eq=False):
    """One request, whole. Names of headers are in lower case."""

    method: str
    path: str  # as it came, without the query; never decoded
    query: str
    headers: Mapping[str, str]
    repeated: frozenset[str]  # headers that came more than once; the last one counts
    body: bytes
    peer: str


def head(status: int, fields: Fields, *, length: int | None, close: bool, chunked: bool = True) -> bytes:
    """The head of a response; without a length it is chunked, or ends with the connection."""
    lines = [f"HTTP/1.1 {status} {_PHRASES.get(status, 'Status')}\r\n"]
    lines += [f"{name}: {value}\r\n" for name, value in fields]
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
