"""What a request looks like as bytes. Pure, and strict about what may stand in a line: nothing a caller or a
configuration supplies can end a line or begin another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, NewType
from urllib.parse import urljoin, urlsplit

#: Header lines that have been checked.
HeaderBlock = NewType("HeaderBlock", bytes)

_NO_HEADERS: Final = HeaderBlock(b"")
_FIELDS: Final = re.compile(r"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+: [\t\x20-\x7e]*\r\n)*")
_PATH: Final = re.compile(r"/[!-~]*")
_HOST: Final = re.compile(r"[0-9A-Za-z._~%-]+|[0-9A-Fa-f:.]+")
_PORTS: Final = {"http": 80, "https": 443}
_WITH_BODY: Final = frozenset({"PATCH", "POST", "PUT"})  # an empty one is said to be empty
# Fields that say how a message is framed belong to the client alone.
_OURS: Final = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


class Origin(NamedTuple):
    scheme: str
    host: str  # without brackets
    port: int

    @property
    def authority(self) -> str:
        """What stands in `Host`: the port only where it is not the usual one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes."""

    origin: Origin
    path: str  # with the query

    @classmethod
    def parse(cls, url: str) -> Target:
        """Raises `ValueError` for anything but a plain http or https URL."""
        parts = urlsplit(url)
        if url != url.strip() or parts.scheme not in _PORTS or not parts.hostname:
            raise ValueError(f"not an http or https URL: {_shown(url)}")
        if parts.username is not None or parts.password is not None:
            raise ValueError("a URL with a user name or password; put credentials into a header")
        host = parts.hostname
        if not host.isascii():
            host = host.encode("idna").decode("ascii")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        # urlsplit drops tabs and line ends silently, so the whole text is checked as well.
        if not _HOST.fullmatch(host) or not _PATH.fullmatch(path) or re.search(r"[\x00-\x20\x7f]", url):
            raise ValueError(f"a URL with characters that must be percent-encoded: {_shown(url)}")
        return cls(Origin(parts.scheme, host, parts.port or _PORTS[parts.scheme]), path)

    def join(self, reference: str) -> Target:
        """The target that a `Location` names. Raises `ValueError`."""
        return Target.parse(urljoin(f"{self.origin}{self.path}", reference))


def _shown(url: str) -> str:
    return ascii(url.split("?")[0][:200])


def header_block(headers: Mapping[str, str]) -> HeaderBlock:
    """`headers` as lines. Raises `ValueError` for a name or a value that HTTP does not allow."""
    if not headers:
        return _NO_HEADERS
    text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    # A value with a line end would still match as two good lines; the count tells.
    if _FIELDS.fullmatch(text) is None or text.count("\n") != len(headers):
        raise ValueError(_what_is_wrong(headers))
    for name in headers:
        if name.lower() in _OURS:
            raise ValueError(f"the header {name} is set by the client itself")
    return HeaderBlock(text.encode("ascii"))


def _what_is_wrong(headers: Mapping[str, str]) -> str:
    for name, value in headers.items():
        if _FIELDS.fullmatch(f"{name}: \r\n") is None or "\n" in name:
            return f"not a header name: {name[:80]!a}"
        if _FIELDS.fullmatch(f"x: {value}\r\n") is None or "\n" in value:
            return f"the value of header {name} has characters other than visible ASCII, space and tab"
    return "headers that are none"


class Prepared(NamedTuple):
    """The head of a request, all but the length of its body."""

    head: bytes
    has_body: bool


def prepared(method: str, target: Target, headers: Iterable[HeaderBlock], *, absolute: bool = False) -> Prepared:
    """`absolute` is the form a plain proxy wants."""
    origin = target.origin
    where = f"{origin}{target.path}" if absolute else target.path
    line = f"{method} {where} HTTP/1.1\r\nHost: {origin.authority}\r\n"
    return Prepared(b"".join((line.encode("ascii"), *headers)), method in _WITH_BODY)


def request_bytes(prepared: Prepared, body: bytes) -> bytes:
    """A whole request, ready for one write."""
    if body or prepared.has_body:
        return b"%bContent-Length: %d\r\n\r\n%b" % (prepared.head, len(body), body)
    return prepared.head + b"\r\n"
