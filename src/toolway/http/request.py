"""Encoding of HTTP requests for the client.

No I/O. Strict about line content: no input can end a line or start another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, NewType
from urllib.parse import urljoin, urlsplit

#: Encoded header lines that have been validated.
HeaderBlock = NewType("HeaderBlock", bytes)

_NO_HEADERS: Final = HeaderBlock(b"")
_HEADER_LINES: Final = re.compile(r"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+: [\t\x20-\x7e]*\r\n)*")
_PATH: Final = re.compile(r"/[!-~]*")
_HOST: Final = re.compile(r"[0-9A-Za-z._~%-]+|[0-9A-Fa-f:.]+")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_METHODS_WITH_BODY: Final = frozenset({"PATCH", "POST", "PUT"})  # an empty body is sent with Content-Length: 0
# Only the client itself sets headers that define the framing.
_FRAMING_HEADERS: Final = frozenset(
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
    """Scheme, host and port of a URL."""

    scheme: str
    host: str  # without brackets
    port: int

    @property
    def authority(self) -> str:
        """Return the value of the `Host` header: the host, and the port if it is not the default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """Origin and path of a request, with the query."""

    origin: Origin
    path: str  # with the query

    @classmethod
    def parse(cls, url: str) -> HttpTarget:
        """Parse an http or https URL.

        Raises `ValueError` if it has another scheme, a user name, or characters that must be percent-encoded.
        """
        parts = urlsplit(url)
        if url != url.strip() or parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
            raise ValueError(f"not an http or https URL: {_shown_url(url)}")
        if parts.username is not None or parts.password is not None:
            raise ValueError("a URL with a user name or password; put credentials into a header")
        host = parts.hostname
        if not host.isascii():
            host = host.encode("idna").decode("ascii")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        # urlsplit drops tabs and line ends silently, so the whole text is checked as well.
        if not _HOST.fullmatch(host) or not _PATH.fullmatch(path) or re.search(r"[\x00-\x20\x7f]", url):
            raise ValueError(f"a URL with characters that must be percent-encoded: {_shown_url(url)}")
        return cls(Origin(parts.scheme, host, parts.port or _DEFAULT_PORTS[parts.scheme]), path)

    def join(self, reference: str) -> HttpTarget:
        """Return the target of a `Location` header, which may be relative to this target.

        Raises `ValueError` if it is not a valid http or https URL.
        """
        return HttpTarget.parse(urljoin(f"{self.origin}{self.path}", reference))


def _shown_url(url: str) -> str:
    return ascii(url.split("?")[0][:200])


def encode_headers(headers: Mapping[str, str]) -> HeaderBlock:
    """Return the bytes of HTTP header lines.

    Raises `ValueError` for a name or value that HTTP does not allow, and for headers that the client sets itself.
    """
    if not headers:
        return _NO_HEADERS
    text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    # A value with a line end would match as two valid lines; the count detects it.
    if _HEADER_LINES.fullmatch(text) is None or text.count("\n") != len(headers):
        raise ValueError(_header_problem(headers))
    for name in headers:
        if name.lower() in _FRAMING_HEADERS:
            raise ValueError(f"the header {name} is set by the client itself")
    return HeaderBlock(text.encode("ascii"))


def _header_problem(headers: Mapping[str, str]) -> str:
    for name, value in headers.items():
        if _HEADER_LINES.fullmatch(f"{name}: \r\n") is None or "\n" in name:
            return f"not a header name: {name[:80]!a}"
        if _HEADER_LINES.fullmatch(f"x: {value}\r\n") is None or "\n" in value:
            return f"the value of header {name} has characters other than visible ASCII, space and tab"
    return "invalid headers"


class RequestTemplate(NamedTuple):
    """Encoded request line and headers without `Content-Length`, reusable for several bodies."""

    head: bytes
    has_body: bool


def encode_head(
    method: str, target: HttpTarget, headers: Iterable[HeaderBlock], *, absolute: bool = False
) -> RequestTemplate:
    """Encode the head of a request: request line and headers.

    If `absolute` is set, the request line has the whole URL, as a proxy for plain HTTP expects.
    """
    origin = target.origin
    request_target = f"{origin}{target.path}" if absolute else target.path
    line = f"{method} {request_target} HTTP/1.1\r\nHost: {origin.authority}\r\n"
    return RequestTemplate(b"".join((line.encode("ascii"), *headers)), method in _METHODS_WITH_BODY)


def encode_request(template: RequestTemplate, body: bytes) -> bytes:
    """Return the bytes of a whole request (head, Content-Length and body), for one write."""
    if body or template.has_body:
        return b"%bContent-Length: %d\r\n\r\n%b" % (template.head, len(body), body)
    return template.head + b"\r\n"
