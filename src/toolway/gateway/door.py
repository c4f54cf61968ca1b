"""Who gets in, decided before anything else is done: the address they used, the page they come from, the token.

Refusing costs no contact with any server. There is no identity to fall back to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from toolway.gateway.http.messages import JSON, Fields, Request
from toolway.gateway.principals import OWNER, KnownKeys, Principal
from toolway.model import Json
from toolway.protocol.wire import encode

LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")


class Refused(Exception):
    """A request that goes no further."""

    def __init__(self, status: int, what: str, fix: str = "", fields: Fields = ()) -> None:
        super().__init__(what)
        self.status = status
        self.body = encode({"error": {"what": what, "fix": fix}} if fix else {"error": {"what": what}})
        self.fields = (("content-type", JSON), *fields)


class Door:
    """`hosts` are the names under which clients may call us, `origins` the web pages that may. Without a keyring, and
    only then, everybody who gets so far is the owner."""

    def __init__(self, keyring: KnownKeys | None, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self._keyring = keyring
        self._changes = 0
        self.nodes: Callable[[str], Principal | None] | None = None  # in a cluster: which node shows this token
        self._at: tuple[str, int] | None = None
        self._advertised: tuple[str, ...] = ()
        self.know(hosts, origins)

    def know(self, hosts: Iterable[str], origins: Iterable[str]) -> None:
        """Let in by these names, and those pages, from now on."""
        self._changes += 1
        self._named, self._pages = tuple(hosts), tuple(origins)
        self._hosts = frozenset(host.lower() for host in (*LOOPBACK, *self._advertised, *self._named))
        self._origins = frozenset(origin.lower().rstrip("/") for origin in self._pages)
        if self._at is not None:
            host, port = self._at
            self._hosts |= {f"[{host}]" if ":" in host else host.lower()}
            for scheme, usual in (("http", 80), ("https", 443)):
                place = "" if port == usual else f":{port}"
                self._origins |= {f"{scheme}://{name}{place}" for name in self._hosts}

    @property
    def version(self) -> int:
        """Grows with every change of who gets in."""
        return self._changes + (self._keyring.changes if self._keyring is not None else 0)

    def stands_at(self, host: str, port: int) -> None:
        """Where we listen is a name of ours, and pages that come from there are our own."""
        self._at = (host, port)
        self.know(self._named, self._pages)

    def also_called(self, host: str) -> None:
        """The other nodes of a cluster know us by this name."""
        self._advertised = (f"[{host}]" if ":" in host else host.lower(),)
        self.know(self._named, self._pages)

    def check_address(self, request: Request) -> None:
        """Against pages that reach for a server on the visitor's own machine. Raises `Refused`."""
        headers = request.headers
        host = headers.get("host")
        if host is None or "host" in request.repeated:
            raise Refused(400, "a request names its host, once")
        found = _HOST.fullmatch(host)
        if found is None or found[1].lower() not in self._hosts:
            raise Refused(421, "this gateway is not known by that host name", "add it to toolway.gateway.hosts")
        origin = headers.get("origin")
        if origin is not None and (origin.lower() not in self._origins or "origin" in request.repeated):
            raise Refused(403, "this web page may not use the gateway", "add its origin to toolway.gateway.origins")

    def who(self, request: Request) -> Principal:
        """Who asks, by the token alone. Raises `Refused`."""
        if self._keyring is None:
            return OWNER
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        principal = None
        if scheme.lower() == "bearer" and token and "authorization" not in request.repeated:
            principal = self._keyring.who(token.strip())
            if principal is None and self.nodes is not None:
                principal = self.nodes(token.strip())
        if principal is None:
            raise Refused(
                401,
                "this gateway wants a token" if not token else "the token is not known here",
                "send `Authorization: Bearer …`; `toolway token` shows the one of this machine",
                (("www-authenticate", 'Bearer realm="toolway"'),),
            )
        return principal


def preflight(request: Request) -> Fields:
    """What a browser is told that asks before it sends, from an origin that may."""
    asked = request.headers.get("access-control-request-headers", "")
    return (
        *cors(request),
        ("access-control-allow-methods", "GET, POST, DELETE"),
        ("access-control-allow-headers", asked if asked.isprintable() and asked.isascii() else ""),
        ("access-control-max-age", "600"),
    )


def cors(request: Request) -> Fields:
    origin = request.headers.get("origin")
    if origin is None:
        return ()
    return (
        ("access-control-allow-origin", origin),  # which was found on our list
        ("access-control-expose-headers", "mcp-session-id, mcp-protocol-version, www-authenticate"),
        ("vary", "origin"),
    )


def problem(status: int, what: str, **facts: object) -> tuple[int, bytes, Fields]:
    """A refusal outside of MCP, as JSON."""
    body: Json = {"error": {"what": what, **facts}}
    return status, encode(body), (("content-type", JSON),)
