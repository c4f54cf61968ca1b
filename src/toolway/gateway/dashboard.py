"""`/dashboard`: the files of the web page, and the door by which a browser gets its session.

The files are the same for everybody and hold nothing worth knowing; all that a person sees is asked of `/admin`. They
are sent with a policy that lets the page load nothing from elsewhere and run nothing that is written into it.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from importlib.resources import files
from typing import Final

from toolway.gateway.browser import CODE_HEADER, LIFE, Browsers, set_cookie
from toolway.gateway.door import Door, Refused, problem
from toolway.gateway.http.exchange import Exchange
from toolway.gateway.http.messages import JSON, Fields, Request
from toolway.gateway.principals import Principal
from toolway.protocol import wire

PATH: Final = "/dashboard"
SESSION: Final = f"{PATH}/session"
_FILES: Final = f"{PATH}/files/"
_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_SAFE: Final = (
    ("content-security-policy", _POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
)


def is_here(path: str) -> bool:
    return path == PATH or path.startswith(f"{PATH}/")


class Dashboard:
    """`secure` says whether browsers reach us by TLS."""

    def __init__(self, door: Door, browsers: Browsers, secure: Callable[[], bool]) -> None:
        self._door = door
        self._browsers = browsers
        self._secure = secure
        self._files: dict[str, tuple[str, bytes, bytes]] = {}  # by name: type, as it is, packed

    def handle(self, exchange: Exchange) -> None:
        """Answer whoever came by an address of ours. Raises `Refused`."""
        request = exchange.request
        if request.path == SESSION:
            self._session(exchange)
        elif request.method not in ("GET", "HEAD"):
            status, body, fields = problem(405, "only GET")
            exchange.reply(status, body, (*fields, ("allow", "GET, HEAD")))
        elif request.path.startswith(_FILES):
            self._send(exchange, request.path.removeprefix(_FILES), "public, max-age=31536000, immutable")
        else:  # every state of the page has an address
            self._send(exchange, "index.html", "no-cache")

    def _send(self, exchange: Exchange, name: str, cache: str) -> None:
        found = self._file(name)
        if found is None:
            exchange.reply(*problem(404, "there is no such file"))
            return
        kind, plain, packed = found
        fields = [("content-type", kind), ("cache-control", cache), ("vary", "accept-encoding"), *_SAFE]
        if "gzip" in exchange.request.headers.get("accept-encoding", ""):
            exchange.reply(200, packed, [*fields, ("content-encoding", "gzip")])
        else:
            exchange.reply(200, plain, fields)

    def _file(self, name: str) -> tuple[str, bytes, bytes] | None:
        """Read and packed at its first use."""
        known = self._files.get(name)
        if known is None:
            kind = _TYPES.get(name.rpartition(".")[2])
            if kind is None or name not in _names():  # what is not there by this very name is nowhere
                return None
            data = (files("toolway.gateway") / "pages" / name).read_bytes()
            known = self._files[name] = (kind, data, gzip.compress(data, 6, mtime=0))
        return known

    # -- sessions -----------------------------------------------------------------------------------------------------

    def _session(self, exchange: Exchange) -> None:
        """POST: a code, or a token, becomes a session. DELETE: the browser forgets it."""
        request = exchange.request
        host = request.headers.get("host", "")
        if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise Refused(403, "this web page may not use the dashboard")
        if request.method == "DELETE":
            exchange.reply(204, b"", (set_cookie(host, "", seconds=0, secure=self._secure()),))
        elif request.method == "POST":
            cookie, page = self._browsers.begin(self._who(request))
            fields: Fields = (
                ("content-type", JSON),
                ("cache-control", "no-store"),
                set_cookie(host, cookie, seconds=LIFE, secure=self._secure()),
            )
            exchange.reply(200, wire.encode({"page": page}), fields)
        else:
            status, body, more = problem(405, "only POST and DELETE")
            exchange.reply(status, body, (*more, ("allow", "POST, DELETE")))

    def _who(self, request: Request) -> Principal:
        """Raises `Refused`."""
        code = request.headers.get(CODE_HEADER)
        if code is None:
            principal = self._door.who(request)
        else:
            found = self._browsers.redeem(code)
            if found is None:
                raise Refused(401, "this link was used already, or is too old", "open a new one: toolway ui")
            principal = found
        if not principal.admin:
            raise Refused(403, "the dashboard is for administrators", "use the token of this machine")
        return principal


def _names() -> frozenset[str]:
    folder = files("toolway.gateway") / "pages"
    return frozenset(each.name for each in folder.iterdir()) if folder.is_dir() else frozenset()
