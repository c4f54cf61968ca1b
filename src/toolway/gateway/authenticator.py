"""Authentication of requests by Host header, Origin header and bearer token.

A denied request never reaches a server, and no request is anonymous.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from toolway.events import AccessEvent, Event
from toolway.gateway.cluster_hooks import NO_CLUSTER, ClusterHooks
from toolway.gateway.credentials import Credentials
from toolway.gateway.local_token import LocalTokenRule
from toolway.gateway.principals import LOCAL_ADMIN, ApiKeyStore, Principal
from toolway.gateway.rate_limit import Rate
from toolway.http.exchange import JSON_TYPE, Headers, HttpRequest
from toolway.protocol.jsonrpc import encode_json
from toolway.types import Json

LOOPBACK_HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")
_HOST_HEADER: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")


class RequestDenied(Exception):
    """Raised when an HTTP request fails authentication; carries the response's HTTP status."""

    def __init__(self, status: int, message: str, hint: str = "", headers: Headers = ()) -> None:
        super().__init__(message)
        self.status = status
        self.body = encode_json(
            {"error": {"message": message, "hint": hint}} if hint else {"error": {"message": message}}
        )
        self.headers: Headers = (("content-type", JSON_TYPE), *headers)


class VerificationPending(RequestDenied):
    """Raised when a token cannot be verified yet, because the answer it depends on is still being fetched.

    That is its issuer's key, or the issuer's answer about the token. `task` fetches it and never raises an error. A
    caller that can wait awaits the task, then verifies the token again. A caller that cannot denies the request with
    status 503.
    """

    def __init__(self, task: asyncio.Task[None], message: str, hint: str, headers: Headers) -> None:
        super().__init__(503, message, hint, headers)
        self.task = task


class ProvenIdentity(NamedTuple):
    """The principal behind a bearer token, and how long the token is valid."""

    principal: Principal
    expires_at: float | None = None  # seconds since 1970; None: until the API keys change
    depends_on_peer: bool = False  # the same token is refused from other addresses


class Authenticator:
    """Authenticates HTTP requests by Host header, Origin header and bearer token.

    `hosts` are the accepted host names, `origins` the accepted web origins. If `api_keys` is None, authentication is
    off: every request from this machine with an accepted host and origin comes from the local administrator.
    `local_token_from` are networks, besides this machine, from which the local token is accepted. `credentials` are
    credentials that a part verifies.
    """

    def __init__(
        self,
        api_keys: ApiKeyStore | None,
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
        cluster: ClusterHooks = NO_CLUSTER,
        local_token_from: Iterable[str] = (),
        credentials: Credentials | None = None,
    ) -> None:
        self._api_keys = api_keys
        self.credentials = credentials if credentials is not None else Credentials()
        self.credentials.on_verifier = self._on_verifier
        self.credentials.on_changed = self._increment_version
        self._local_token_from = tuple(local_token_from)
        self._cluster = cluster
        self.version = 0  # grows with every change of API keys, hosts, origins or credentials; caches compare it
        if api_keys is not None:
            api_keys.on_changed(self._increment_version)
        self._bound_address: tuple[str, int] | None = None
        self._advertised_hosts: tuple[str, ...] = ()
        self.configure(hosts, origins)

    def configure(self, hosts: Iterable[str], origins: Iterable[str]) -> None:
        """Accept these values of the Host and Origin headers from now on.

        Loopback, the bound address and the advertised host of the gateway are always accepted too.
        """
        self._increment_version()
        self._configured_hosts, self._configured_origins = tuple(hosts), tuple(origins)
        verifier = self.credentials.verifier
        named = (verifier.resource_host,) if verifier is not None else ()
        self._hosts = frozenset(
            host.lower() for host in (*LOOPBACK_HOSTS, *self._advertised_hosts, *self._configured_hosts, *named)
        )
        self._origins = frozenset(origin.lower().rstrip("/") for origin in self._configured_origins)
        self._local_token_rule = LocalTokenRule(
            self._bound_address[0] if self._bound_address is not None else "",
            self._local_token_from,
        )
        if self._bound_address is not None:
            host, port = self._bound_address
            self._hosts |= {f"[{host}]" if ":" in host else host.lower()}
            for scheme, default_port in (("http", 80), ("https", 443)):
                port_suffix = "" if port == default_port else f":{port}"
                self._origins |= {f"{scheme}://{name}{port_suffix}" for name in self._hosts}

    def _on_verifier(self) -> None:
        """Start accepting a verifier's credentials, and its resource host in Host headers."""
        assert self._api_keys is not None, "a login without authentication would protect nothing"
        self.configure(self._configured_hosts, self._configured_origins)

    def _increment_version(self) -> None:
        self.version += 1

    def set_bound_address(self, host: str, port: int) -> None:
        """Accept Host and Origin headers that name the gateway's listening address."""
        self._bound_address = (host, port)
        self.configure(self._configured_hosts, self._configured_origins)

    def set_advertised_host(self, host: str) -> None:
        """Accept the host name that other cluster nodes use for this gateway in Host headers."""
        self._advertised_hosts = (f"[{host}]" if ":" in host else host.lower(),)
        self.configure(self._configured_hosts, self._configured_origins)

    def check_host_and_origin(self, request: HttpRequest) -> None:
        """Check the Host and Origin headers, to stop DNS rebinding and foreign web pages.

        Raises `RequestDenied` if Host is missing, repeated or unknown, or if Origin is not accepted.
        """
        headers = request.headers
        host = headers.get("host")
        if host is None or "host" in request.repeated_headers:
            raise RequestDenied(400, "exactly one Host header required")
        found = _HOST_HEADER.fullmatch(host)
        if found is None or found[1].lower() not in self._hosts:
            raise RequestDenied(421, "unknown host name", "add it to toolway.gateway.hosts")
        origin = headers.get("origin")
        if origin is not None and (origin.lower() not in self._origins or "origin" in request.repeated_headers):
            raise RequestDenied(403, "origin not allowed", "add it to toolway.gateway.origins")

    def allows_local_token(self, request: HttpRequest) -> bool:
        """Return True if this request may use the local token, or a session that it opened."""
        return self._local_token_rule.allows(request)

    def authenticate_token(self, request: HttpRequest) -> ProvenIdentity:
        """Return the principal of the request's bearer token: local administrator, API key, node or user.

        Raises `RequestDenied` if the token is missing or unknown, `VerificationPending` if it cannot be verified yet.
        If authentication is off, all requests from this machine count as the local administrator's.
        """
        if self._api_keys is None:
            return self._prove_local(request)
        verifier = self.credentials.verifier
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and token and "authorization" not in request.repeated_headers:
            token = token.strip()
            principal = self._api_keys.authenticate(token) or self._cluster.authenticate_node(token)
            if principal is not None and principal.id == LOCAL_ADMIN.id:
                return self._prove_local(request)
            if principal is not None:
                return ProvenIdentity(principal, principal.expires_at)
            if verifier is not None:
                return verifier.authenticate(token)
        raise RequestDenied(
            401,
            "authentication required" if not token else "unknown token",
            "send `Authorization: Bearer …` with an API key; on this machine, `toolway keys local-token` prints a token"
            if verifier is None
            else verifier.hint,
            (self._challenge(),),
        )

    def _prove_local(self, request: HttpRequest) -> ProvenIdentity:
        """Return the local administrator. Raises `RequestDenied` if the request is from elsewhere."""
        if self._local_token_rule.allows(request):
            return ProvenIdentity(LOCAL_ADMIN, depends_on_peer=self._local_token_rule.depends_on_peer)
        if self._api_keys is None:
            raise RequestDenied(
                401, "without authentication, requests through a proxy are rejected", "remove --no-auth"
            )
        raise RequestDenied(
            401,
            "the token of this machine is not accepted from other machines or through a proxy",
            "use an API key, or log in; toolway.gateway.localTokenFrom adds more networks",
            (self._challenge(),),
        )

    def _challenge(self) -> tuple[str, str]:
        verifier = self.credentials.verifier
        return verifier.challenge() if verifier is not None else ("www-authenticate", 'Bearer realm="toolway"')


def preflight_headers(request: HttpRequest) -> Headers:
    """Return the response headers for a CORS preflight whose Origin has already been checked."""
    requested = request.headers.get("access-control-request-headers", "")
    return (
        *cors_headers(request),
        ("access-control-allow-methods", "GET, POST, DELETE"),
        ("access-control-allow-headers", requested if requested.isprintable() and requested.isascii() else ""),
        ("access-control-max-age", "600"),
    )


def cors_headers(request: HttpRequest) -> Headers:
    """Return the CORS headers for a response to a request whose Origin has already been checked."""
    origin = request.headers.get("origin")
    if origin is None:
        return ()
    return (
        ("access-control-allow-origin", origin),  # already checked against the accepted origins
        ("access-control-expose-headers", "mcp-session-id, mcp-protocol-version, www-authenticate, x-request-id"),
        ("vary", "origin"),
    )


def json_error(status: int, message: str, **facts: object) -> tuple[int, bytes, Headers]:
    """Return an error response for a request outside MCP, as (status, JSON body, headers)."""
    body: Json = {"error": {"message": message, **facts}}
    return status, encode_json(body), (("content-type", JSON_TYPE),)


# -- events for denied requests and throttled keys --------------------------------------------------------------------
# Some are emitted individually, the rest only as a count: an attacker may cause many.

MAX_DENIALS_PER_SECOND: Final = 10  # events per second
THROTTLE_EVENT_INTERVAL_S: Final = 60.0  # seconds between two events about the same throttled key
MAX_THROTTLED_KEYS: Final = 1000  # keys for which the time of the last event is stored


class DenialLog:
    """Emits an event per denied request, at most `MAX_DENIALS_PER_SECOND` each second."""

    def __init__(self, emit: Callable[[Event], None], now: Callable[[], float] = time.monotonic) -> None:
        self._emit = emit
        self._now = now
        self._second = 0
        self._emitted = 0
        self._suppressed = 0

    def add(self, status: int, path: str) -> None:
        second = int(self._now())
        if second != self._second:
            self._second, self._emitted = second, 0
        if self._emitted >= MAX_DENIALS_PER_SECOND:
            self._suppressed += 1
            return
        self._emitted += 1
        more = f", and {self._suppressed} earlier ones" if self._suppressed else ""
        self._suppressed = 0
        self._emit(AccessEvent("", "rejected", f"HTTP {status} at {path[:200]}{more}"))


class ThrottleLog:
    """Emits an event when a principal exceeds a limit, at most one per principal and minute."""

    def __init__(self, emit: Callable[[Event], None], now: Callable[[], float] = time.monotonic) -> None:
        self._emit = emit
        self._now = now
        self._keys: dict[str, tuple[float, int]] = {}  # key id → time of the last event, calls rejected since

    def add(self, key: str, rate: Rate | str, kind: str = "rate limit") -> None:
        now = self._now()
        last_emitted, suppressed = self._keys.get(key, (-THROTTLE_EVENT_INTERVAL_S, 0))
        if now - last_emitted < THROTTLE_EVENT_INTERVAL_S:
            self._keys[key] = (last_emitted, suppressed + 1)
            return
        more = f", and {suppressed} earlier calls rejected" if suppressed else ""
        self._emit(AccessEvent("", "throttled", f"{kind} of {rate} exceeded{more}", principal_id=key))
        self._keys.pop(key, None)
        self._keys[key] = (now, 0)
        if len(self._keys) > MAX_THROTTLED_KEYS:
            del self._keys[next(iter(self._keys))]  # the key with the oldest event
