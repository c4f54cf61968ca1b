"""`/dashboard`: the web page's static files, and browser logins.

The files are public and contain no data, because the page fetches everything from `/admin`. Their content security
policy forbids inline scripts and resources from other sites.
"""

from __future__ import annotations

import gzip
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Final

import msgspec

from toolway.gateway.authenticator import Authenticator, RequestDenied, json_error
from toolway.gateway.principals import LOCAL_ADMIN, ApiKeyStore, Principal
from toolway.gateway.sealing import Sealer
from toolway.http.exchange import JSON_TYPE, Exchange, Headers, HttpRequest
from toolway.protocol import jsonrpc
from toolway.secrets.encrypted_file import write_private

_log = logging.getLogger("toolway.gateway")

DASHBOARD_PATH: Final = "/dashboard"
SESSION_PATH: Final = f"{DASHBOARD_PATH}/session"
_ASSETS_PREFIX: Final = f"{DASHBOARD_PATH}/files/"
PREFIX_HEADER: Final = "x-forwarded-prefix"
_PREFIX: Final = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,63}){1,8}")
_CONTENT_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
_CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_SECURITY_HEADERS: Final = (
    ("content-security-policy", _CONTENT_SECURITY_POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
)


def is_dashboard_path(path: str) -> bool:
    return path == DASHBOARD_PATH or path.startswith(f"{DASHBOARD_PATH}/")


class DashboardEndpoint:
    """Handles all `/dashboard` requests: static files, and browser logins and logouts.

    `uses_tls` returns True if browsers reach the gateway over TLS.
    """

    def __init__(
        self, authenticator: Authenticator, browser_sessions: BrowserSessions, uses_tls: Callable[[], bool]
    ) -> None:
        self._authenticator = authenticator
        self._browser_sessions = browser_sessions
        self._uses_tls = uses_tls
        self._files: dict[str, tuple[str, bytes, bytes]] = {}  # by name: content type, plain bytes, gzip bytes

    def handle(self, exchange: Exchange) -> None:
        """Answer a `/dashboard` request whose Host and Origin headers have already been checked.

        Raises `RequestDenied` if a login fails.
        """
        request = exchange.request
        if request.path == SESSION_PATH:
            self._handle_session(exchange)
        elif request.method not in ("GET", "HEAD"):
            status, body, fields = json_error(405, "method not allowed: use GET")
            exchange.reply(status, body, (*fields, ("allow", "GET, HEAD")))
        elif request.path.startswith(_ASSETS_PREFIX):
            self._send_file(exchange, request.path.removeprefix(_ASSETS_PREFIX), "public, max-age=31536000, immutable")
        else:  # every view of the page has its own path, all served by the same document
            self._send_file(exchange, "index.html", "no-cache", _read_prefix(request))

    def _send_file(self, exchange: Exchange, name: str, cache_control: str, prefix: str = "") -> None:
        found = self._load_file(name)
        if found is None:
            exchange.reply(*json_error(404, "file not found"))
            return
        kind, plain, compressed = found
        if prefix:
            plain = plain.replace(b'"' + _ASSETS_PREFIX.encode(), f'"{prefix}{_ASSETS_PREFIX}'.encode())
            compressed = gzip.compress(plain, 6, mtime=0)
        fields = [
            ("content-type", kind),
            ("cache-control", cache_control),
            ("vary", f"accept-encoding, {PREFIX_HEADER}"),
            *_SECURITY_HEADERS,
        ]
        if "gzip" in exchange.request.headers.get("accept-encoding", ""):
            exchange.reply(200, compressed, [*fields, ("content-encoding", "gzip")])
        else:
            exchange.reply(200, plain, fields)

    def _load_file(self, name: str) -> tuple[str, bytes, bytes] | None:
        """Return a dashboard file's content type, plain bytes, and gzip bytes, or None if it is unknown.

        The file is read and compressed on first use.
        """
        known = self._files.get(name)
        if known is None:
            kind = _CONTENT_TYPES.get(name.rpartition(".")[2])
            if kind is None or name not in _asset_names():  # an exact name only: no path can leave the folder
                return None
            data = (files("toolway.gateway") / "pages" / name).read_bytes()
            known = self._files[name] = (kind, data, gzip.compress(data, 6, mtime=0))
        return known

    # -- sessions -----------------------------------------------------------------------------------------------------

    def _handle_session(self, exchange: Exchange) -> None:
        """Log a browser in (POST with a one-time code or a token) or out (DELETE with the page key).

        Raises `RequestDenied` if the request is cross-origin or not from an administrator.
        """
        request = exchange.request
        host, prefix = request.headers.get("host", ""), _read_prefix(request)
        if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise RequestDenied(403, "origin may not use the dashboard")
        if request.method == "DELETE":
            self._browser_sessions.end(request)
            exchange.reply(204, b"", (cookie_header(host, "", seconds=0, secure=self._uses_tls(), prefix=prefix),))
        elif request.method == "POST":
            cookie, page_key = self._browser_sessions.start(self._authenticate_admin(request))
            fields: Headers = (
                ("content-type", JSON_TYPE),
                ("cache-control", "no-store"),
                cookie_header(host, cookie, seconds=SESSION_LIFETIME_S, secure=self._uses_tls(), prefix=prefix),
            )
            exchange.reply(200, jsonrpc.encode_json({"page": page_key}), fields)
        else:
            status, body, more = json_error(405, "method not allowed: use POST or DELETE")
            exchange.reply(status, body, (*more, ("allow", "POST, DELETE")))

    def _authenticate_admin(self, request: HttpRequest) -> Principal:
        """Return the administrator behind a login request's one-time code or bearer token.

        Raises `RequestDenied` if the code or token is invalid, or its principal is not an administrator.
        """
        code = request.headers.get(CODE_HEADER)
        if code is None:
            principal = self._authenticator.authenticate_token(request).principal
        else:
            found = self._browser_sessions.redeem(code)
            if found is None:
                raise RequestDenied(401, "dashboard link used or expired", "create a new one: toolway ui")
            if found.id == LOCAL_ADMIN.id and not self._authenticator.allows_local_token(request):
                raise RequestDenied(
                    403,
                    "this link works only in a browser on the gateway's machine",
                    "enter an API key of an administrator",
                )
            principal = found
        if not principal.admin or principal.is_user:  # a session ends with its API key, and a user has none
            raise RequestDenied(403, "administrator access required", "use this machine's local token")
        return principal


def _read_prefix(request: HttpRequest) -> str:
    """Return the path prefix under which a proxy serves the gateway, such as `/toolway`, or "" if there is none.

    The proxy sends it in a header, which an attacker's link cannot set. A value that is not a plain path is ignored.
    """
    value = request.headers.get(PREFIX_HEADER, "").rstrip("/")
    return value if _PREFIX.fullmatch(value) else ""


def _asset_names() -> frozenset[str]:
    folder = files("toolway.gateway") / "pages"
    return frozenset(each.name for each in folder.iterdir()) if folder.is_dir() else frozenset()


# -- browser sessions -------------------------------------------------------------------------------------------------
# `toolway ui` requests a code and puts it in the fragment (`#`) of a link, which is never logged or sent to a server.
# The page posts the code and receives two halves of a session: a cookie that scripts cannot read, and a page key that
# only pages of this origin can read. The cookie alone is not enough, because browsers send it to every port of a host.
# The page key alone is not enough, because a script could leak it. The cookie is sealed and contains the hash of the
# page key and of the token or API key that opened the session, so the gateway stores nothing but unused codes, and the
# sessions that were ended before their time. The page key is sealed too: only a real one can be added to those.

BROWSER_SESSION_KIND: Final = "browser"
PAGE_KEY_KIND: Final = "page"
CODE_LIFETIME_S: Final = 120.0  # seconds in which a link must be opened
SESSION_LIFETIME_S: Final = 12 * 3600.0  # seconds of a session
MAX_CODES: Final = 64  # unused codes; the oldest is dropped
MAX_ENDED_SESSIONS: Final = 10_000  # ended before their time; the one that expires first is dropped
CODE_HEADER: Final = "x-toolway-code"
PAGE_KEY_HEADER: Final = "x-toolway-page"


class EndedSessions:
    """Browser sessions that were logged out. Each is remembered until it would have expired.

    They are also stored in `file`, to survive a restart. If `file` is None, they are only kept in memory.
    """

    def __init__(self, file: Path | None = None, now: Callable[[], float] = time.time) -> None:
        self._file = file
        self._now = now
        self._until: dict[str, float] = {}  # by digest of the page key
        self.on_add: Callable[[str], None] = lambda digest: None
        if file is not None:
            with suppress(OSError, ValueError):  # an unreadable file must not keep the gateway from starting
                self._until = msgspec.json.decode(file.read_bytes(), type=dict[str, float])
        self._drop_expired()

    def __contains__(self, digest: object) -> bool:
        return digest in self._until

    def __len__(self) -> int:
        return len(self._until)

    def add(self, digest: str, until: float, *, save: bool = True) -> None:
        """Remember a logged-out session by its digest, until it would have expired."""
        self._until[digest] = until
        if len(self._until) > MAX_ENDED_SESSIONS:
            self._drop_expired()
        if len(self._until) > MAX_ENDED_SESSIONS:
            del self._until[min(self._until, key=self._until.__getitem__)]
        self.on_add(digest)
        if save and self._file is not None:
            try:
                write_private(self._file, msgspec.json.encode(self._until))
            except OSError as exc:
                _log.warning("ended dashboard sessions are known until a restart only: %s", exc)

    def _drop_expired(self) -> None:
        now = self._now()
        self._until = {digest: until for digest, until in self._until.items() if until > now}


class BrowserSessions:
    """Browser logins to the dashboard: issues one-time codes and authenticates sessions.

    A session needs a cookie and a page key, which is a secret that the page sends in a header. It ends at logout, or
    when the token or API key that opened it does; `on_end` is then called with the session's digest and the time when
    it would have expired. `api_keys` is None if authentication is off.
    """

    def __init__(
        self,
        sealer: Sealer,
        api_keys: ApiKeyStore | None,
        now: Callable[[], float],
        ended: EndedSessions | None = None,
        on_end: Callable[[str, float], None] = lambda digest, until: None,
    ) -> None:
        self._sealer = sealer
        self._api_keys = api_keys
        self._now = now
        self._ended = ended if ended is not None else EndedSessions(now=now)
        self._on_end = on_end
        self._codes: OrderedDict[str, tuple[float, Principal]] = OrderedDict()

    def issue_code(self, principal: Principal) -> str:
        """Return a one-time code that logs a browser in as this principal within `CODE_LIFETIME_S`."""
        code = secrets.token_urlsafe(24)
        self._codes[_sha256_hex(code)] = (self._now() + CODE_LIFETIME_S, principal)
        while len(self._codes) > MAX_CODES:
            self._codes.popitem(last=False)
        return code

    def redeem(self, code: str) -> Principal | None:
        """Consume a one-time code and return its principal; None if unknown, used or expired."""
        expires_at, principal = self._codes.pop(_sha256_hex(code), (0.0, None))
        return self._current_principal(principal.id) if principal is not None and self._now() < expires_at else None

    def start(self, principal: Principal) -> tuple[str, str]:
        """Start a browser session. Return its cookie value and the page key for its requests."""
        until = self._now() + SESSION_LIFETIME_S
        page_key = self._sealer.seal(PAGE_KEY_KIND, [secrets.token_urlsafe(12), until], SESSION_LIFETIME_S)
        facts = [principal.id, _sha256_hex(page_key), self._credential_hash(principal.id)]
        return self._sealer.seal(BROWSER_SESSION_KIND, facts, SESSION_LIFETIME_S), page_key

    def end(self, request: HttpRequest) -> None:
        """End the browser session whose page key the request carries, on every node. Invalid keys are ignored."""
        page_key = request.headers.get(PAGE_KEY_HEADER, "")
        found = self._sealer.open(PAGE_KEY_KIND, page_key)
        if found is not None:
            digest = _sha256_hex(page_key)
            self._ended.add(digest, found[1])
            self._on_end(digest, found[1])

    def authenticate(self, request: HttpRequest) -> Principal | None:
        """Return the principal of a same-origin request with valid cookie and page key, or None."""
        headers = request.headers
        if headers.get("sec-fetch-site", "same-origin") != "same-origin" or PAGE_KEY_HEADER in request.repeated_headers:
            return None
        sealed = _read_cookie(headers.get("cookie", ""), cookie_name(headers.get("host", "")))
        found = self._sealer.open(BROWSER_SESSION_KIND, sealed) if sealed else None
        if not isinstance(found, list) or len(found) != 3:
            return None
        id_, digest, credential = found
        if not hmac.compare_digest(_sha256_hex(headers.get(PAGE_KEY_HEADER, "")), str(digest)):
            return None
        if digest in self._ended or not hmac.compare_digest(self._credential_hash(str(id_)), str(credential)):
            return None
        return self._current_principal(str(id_))

    def _credential_hash(self, id_: str) -> str:
        return self._api_keys.credential_hash(id_) if self._api_keys is not None else ""

    def _current_principal(self, id_: str) -> Principal | None:
        """Return the principal with this id and its current rights, or None if its API key was revoked."""
        if id_ == LOCAL_ADMIN.id:
            return LOCAL_ADMIN
        return self._api_keys.principal_for(id_) if self._api_keys is not None else None


def session_digest(request: HttpRequest) -> str:
    """Return the digest that identifies a request's browser session. The digest cannot be used to log in."""
    return _sha256_hex(request.headers.get(PAGE_KEY_HEADER, ""))


def cookie_name(host: str) -> str:
    """Return the name of the session cookie for this Host header.

    The name includes the port. Browsers send a host's cookies to all of its ports, so two gateways need different
    names.
    """
    port = host.rpartition(":")[2]
    return f"toolway-{port}" if port.isdigit() else "toolway"


def cookie_header(host: str, value: str, *, seconds: float, secure: bool, prefix: str = "") -> tuple[str, str]:
    path = f"Path={prefix}/admin"
    parts = [f"{cookie_name(host)}={value}", path, f"Max-Age={seconds:.0f}", "HttpOnly", "SameSite=Strict"]
    return "set-cookie", "; ".join([*parts, "Secure"] if secure else parts)


def _read_cookie(header: str, name: str) -> str:
    found = [value for each in header.split(";") for key, _, value in [each.strip().partition("=")] if key == name]
    return found[0] if len(found) == 1 else ""


def _sha256_hex(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
