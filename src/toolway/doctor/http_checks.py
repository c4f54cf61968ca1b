"""HTTP probes of an unreachable server's URL, and the checks based on them.

Probes find redirects, other MCP endpoints and clock skew. Only harmless `ping` requests are sent, with the entry's
headers, and only to the entry's own origin.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import msgspec

from toolway.config.schema import Server
from toolway.doctor import certificates
from toolway.doctor.entry_checks import CheckTarget, format_age, format_entry_keys, store_token_hint
from toolway.doctor.report import Check, split_hint
from toolway.doctor.trial_start import TrialStart
from toolway.http.client import HttpClient, HttpError, HttpTarget
from toolway.part_api import registry
from toolway.protocol import jsonrpc
from toolway.protocol.sanitize import sanitize
from toolway.upstream.transport import Disconnect
from toolway.upstream.transports import streamable_http

PROBE_TIMEOUT_S: Final = 5.0  # seconds for one probe
MAX_BODY_BYTES: Final = 4096  # bytes read of a response
COMMON_PATHS: Final = ("/mcp", "/api/mcp", "/v1/mcp")
MAX_CLOCK_SKEW_S: Final = 120.0  # seconds by which two clocks may differ
_PING_REQUEST: Final = jsonrpc.encode_request(1, "ping", {})
_DEPRECATED_CODE = "E-HTTP-OLD"
_CONNECT_CODES = ("E-HTTP-DNS", "E-HTTP-CONNECT", "E-HTTP-PROXY", "E-HTTP-TIMEOUT")


# -- checks of a failed server, by its error and the probes ------------------------------------------------------------


def check_http_failure(target: CheckTarget, server: Server, trial: TrialStart, probes: Probes) -> Check:
    """Return the failed check that explains why an HTTP server could not be used.

    The cause is derived from `trial.failure`, which must be set, and from the HTTP probes.
    """
    failure = trial.failure
    assert failure is not None
    if "proxy" in failure.reason and failure.code in _CONNECT_CODES:
        return _proxy_failure(server, failure)
    if failure.code == "E-HTTP-ADDRESS":
        return _denied_address(failure)
    if failure.code in _CONNECT_CODES:
        return Check("connect", "fail", failure.reason, hint=_connect_hint(server, failure), code=failure.code)
    if failure.code == "E-HTTP-TLS":
        return _tls_failure(server, failure, probes)
    if probes.speaks_tls:
        return _tls_needed(server, failure)
    if failure.code == "E-TLS-FILE":
        return Check("tls", "fail", failure.reason, hint=failure.hint, code=failure.code)
    if failure.code == "E-WS-HANDSHAKE" and probes.post.is_mcp and server.http_url is not None:
        return _streamable_http_at(server.http_url, failure)
    if server.sse and probes.post.is_mcp:
        return _streamable_http_available(failure)
    if failure.code == "E-SSE-ENDPOINT" or (server.sse and failure.code == "E-SSE-STREAM" and trial.status is None):
        return Check("handshake", "fail", failure.reason, hint=failure.hint, code=failure.code)
    if trial.status in (401, 403):
        return _rejected_credential(target, server, trial.status, failure, probes)
    if failure.code == "E-HTTP-REDIRECT":
        return _redirected(failure, probes)
    if probes.post.content_type == "text/html" or probes.endpoint or trial.status in (404, 405):
        return _no_endpoint(failure, probes)
    for transport in registry.own_transports():
        if other := transport.entry_for_document(probes.post.body, server.http_url or ""):
            message, hint = f"this url has {other[0]}, not an MCP server", "use the API as tools"
            return Check("address", "fail", message, failure.reason, hint, format_entry_keys(other[1]), failure.code)
    hint = failure.hint or _status_hint(trial.status)
    return Check("handshake", "fail", failure.reason, _clock_detail(probes), hint, code=failure.code)


def _status_hint(status: int | None) -> str:
    """Return the hint for a server whose URL answered with this HTTP status.

    `status` is None if the failure was not an HTTP status, but a response that is not MCP.
    """
    if status in (502, 503, 504):
        return "a proxy answers, but the server behind it does not: start that server, or check its log"
    if status is not None and status >= 500:
        return "check the server log, or ask whoever runs it"
    return "check that url is the MCP endpoint; see the server's documentation"


def _tls_needed(server: Server, failure: Disconnect) -> Check:
    url = urlunsplit(urlsplit(server.url or "")._replace(scheme="https" if server.transport != "websocket" else "wss"))
    copy = format_entry_keys({"url": url})
    message = "the address speaks TLS, but url does not start with https"
    return Check("connect", "fail", message, failure.reason, "use https instead of http", copy, failure.code)


def _proxy_failure(server: Server, failure: Disconnect) -> Check:
    host = urlsplit(server.url or "").hostname or ""
    detail = "it is set by HTTP_PROXY, HTTPS_PROXY or ALL_PROXY"
    hint = "fix that variable, or exclude this host"
    return Check("connect", "fail", failure.reason, detail, hint, f"export NO_PROXY={host}", failure.code)


def _denied_address(failure: Disconnect) -> Check:
    """Return the failed check for a server whose address the network policy denies.

    No request was sent, so the server itself may be fine.
    """
    detail = "Toolway connects to public addresses, to IP addresses written in an entry, and to allowed hosts"
    hint, copy = split_hint(failure.hint)
    return Check("connect", "fail", failure.reason, detail, hint, copy, failure.code)


def _connect_hint(server: Server, failure: Disconnect) -> str:
    host = urlsplit(server.url or "").hostname or ""
    if failure.code == "E-HTTP-CONNECT" and (host == "localhost" or host.startswith("127.") or host == "::1"):
        return "start the server that should listen there, or fix url in its entry"
    return failure.hint or "check url, network, VPN and proxy"


def _tls_failure(server: Server, failure: Disconnect, probes: Probes) -> Check:
    parts = urlsplit(server.url or "")
    reason = failure.reason.lower()
    hint, copy = failure.hint, ""
    if "wrong version number" in reason or "record layer" in reason or "http request" in reason:
        plain = parts.scheme.rstrip("s")  # http or ws
        hint = f"the address does not speak TLS: use {plain} instead of {parts.scheme}"
        copy = format_entry_keys({"url": urlunsplit(parts._replace(scheme=plain))})
    elif "expired" in reason:
        hint = certificates.RENEW_HINT
    elif "not yet valid" in reason:
        hint = certificates.CLOCK_HINT
    elif "mismatch" in reason or "not valid for" in reason:
        hint = certificates.OTHER_NAME_HINT
    elif "self-signed" in reason or "self signed" in reason or "issuer" in reason:
        hint = "get the CA certificate from whoever runs the server, and set its path"
        copy = format_entry_keys({"tls": {"caFile": "/path/to/authority.pem"}})
    further, hints = certificates.find_further_problems(
        probes.certificate, parts.hostname or "", reason, datetime.now(UTC)
    )
    message, hint = ", and ".join((failure.reason, *further)), "; then: ".join((*hints, hint))
    return Check("tls", "fail", message, hint=hint, copy=copy, code=failure.code)


def _streamable_http_available(failure: Disconnect) -> Check:
    message = "the server uses Streamable HTTP, but its entry is configured for the older HTTP+SSE transport"
    return Check(
        "handshake",
        "fail",
        message,
        failure.reason,
        "fix its type",
        format_entry_keys({"type": "http"}),
        _DEPRECATED_CODE,
    )


def _streamable_http_at(url: str, failure: Disconnect) -> Check:
    message = "the server uses Streamable HTTP, but its url is a WebSocket URL"
    return Check(
        "handshake", "fail", message, failure.reason, "fix its url", format_entry_keys({"url": url}), failure.code
    )


def check_deprecated_transport(server: Server, probes: Probes) -> Check:
    """Return the check for a working server that uses the deprecated HTTP+SSE transport.

    It is a warning, unless the entry configures this transport and no better endpoint was found.
    """
    message = "the server uses the deprecated HTTP+SSE transport instead of Streamable HTTP"
    if probes.endpoint:
        hint = "use the Streamable HTTP endpoint of the same host"
        keys = {"url": probes.endpoint, **({"type": "http"} if server.sse else {})}
        return Check("transport", "warn", message, "it works for now", hint, format_entry_keys(keys), _DEPRECATED_CODE)
    if server.sse:
        return Check("transport", "ok", "HTTP+SSE, which is deprecated, as configured")
    hint = "ask whoever runs it for a Streamable HTTP URL; until then set the type, which saves two requests"
    return Check(
        "transport", "warn", message, "it works for now", hint, format_entry_keys({"type": "sse"}), _DEPRECATED_CODE
    )


def _rejected_credential(
    target: CheckTarget, server: Server, status: int, failure: Disconnect, probes: Probes
) -> Check:
    header = next((name for name in server.headers if name.lower() == "authorization"), "")
    detail = "\n".join(filter(None, (failure.reason, _format_challenge(probes), _clock_detail(probes))))
    if status == 403:
        message, hint = "the credential lacks permission (403)", "add the missing permissions to the token"
        return Check("auth", "fail", message, detail, hint, code=failure.code)
    if not header:
        if "resource_metadata" in _format_challenge(probes):  # a server with OAuth login names its metadata URL
            return _login_required(failure, detail)
        return Check(
            "auth",
            "fail",
            "the server requires a token (401), and the entry has none",
            detail,
            "get a token from the service, and refer to it in the entry",
            format_entry_keys({"headers": {"Authorization": "Bearer ${TOKEN}"}}),
            failure.code,
        )
    message = f"the server rejects the token in headers.{header} (401)"
    if len(server.headers[header].split()) == 1:
        hint = "add the scheme before the token, most often Bearer"
        copy = format_entry_keys({"headers": {header: "Bearer ${TOKEN}"}})
        return Check("auth", "fail", f"{message}: it has no scheme", detail, hint, copy, failure.code)
    if probes.skew:
        message_with_skew = f"{message}, and this machine's clock is {_format_skew(probes)} the server's"
        return Check(
            "auth", "fail", message_with_skew, detail, "set the clock: token expiry depends on it", code=failure.code
        )
    hint, copy = store_token_hint(target, f"headers.{header}")
    return Check("auth", "fail", message, detail, hint, copy, failure.code)


def _login_required(failure: Disconnect, detail: str) -> Check:
    command = failure.hint if failure.code == "E-AUTH-LOGIN" else ""
    message = "the server requires an OAuth login (401), and you have no valid login"
    hint = "log in; all your programs then share the token" if command else failure.hint
    return Check("auth", "fail", message, detail, hint, command, failure.code)


def _format_challenge(probes: Probes) -> str:
    challenge = probes.post.headers.get("www-authenticate", "")
    return f"WWW-Authenticate: {sanitize(challenge, 200)}" if challenge else ""


def _clock_detail(probes: Probes) -> str:
    if not probes.skew:
        return ""
    return f"this machine's clock is {_format_skew(probes)} the server's: token expiry depends on the clock"


def _format_skew(probes: Probes) -> str:
    return f"{format_age(abs(probes.skew))} {'behind' if probes.skew > 0 else 'ahead of'}"


def _redirected(failure: Disconnect, probes: Probes) -> Check:
    if not probes.location:
        return Check("address", "fail", failure.reason, hint=failure.hint, code=failure.code)
    return Check(
        "address",
        "fail",
        f"the server has moved: it redirects to {sanitize(probes.location, 200)}",
        "tokens are sent only to the configured address",
        "if you trust that address, use it as url",
        format_entry_keys({"url": probes.location}),
        failure.code,
    )


def _no_endpoint(failure: Disconnect, probes: Probes) -> Check:
    title = f" ({probes.post.title})" if probes.post.title else ""
    page = probes.post.content_type == "text/html"
    message = f"a web page{title} is at this url" if page else f"no MCP endpoint at this url ({probes.post.status})"
    if probes.endpoint:
        hint, copy = "use the MCP endpoint of the same host", format_entry_keys({"url": probes.endpoint})
        return Check(
            "address", "fail", f"{message}, not an MCP server" if page else message, "", hint, copy, failure.code
        )
    hint = "find the URL in the server's documentation; it often ends with /mcp"
    return Check(
        "address", "fail", f"{message}, not an MCP server" if page else message, failure.reason, hint, code=failure.code
    )


# -- probes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """HTTP response to one probe (a POST of a `ping`); status 0 if there was no response."""

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def title(self) -> str:
        """Return the title of the response if it is an HTML page; "" if it has none."""
        low = self.body.lower()
        begin, end = low.find(b"<title>"), low.find(b"</title>")
        text = self.body[begin + 7 : end].decode(errors="replace") if 0 <= begin < end else ""
        return sanitize(" ".join(text.split()), 80)

    @property
    def wants_tls(self) -> bool:
        """Return True if the response says that plain HTTP was sent to an HTTPS port.

        nginx, Go and Node.js send such a response.
        """
        low = self.body[:MAX_BODY_BYTES].lower()
        return self.status == 400 and b"https" in low and b"http request" in low

    @property
    def is_mcp(self) -> bool:
        """Return True if a Streamable HTTP endpoint sent the response, even if it is an error."""
        if self.content_type == "text/event-stream":
            return self.status == 200
        if self.content_type != "application/json":
            return False
        try:
            return jsonrpc.parse_message(self.body).kind in ("result", "error")
        except jsonrpc.InvalidMessage:
            return False


@dataclass(frozen=True, slots=True)
class Probes:
    """Results of the HTTP probes of a server: response, MCP endpoint, redirect, clock skew."""

    post: ProbeResult = ProbeResult()
    endpoint: str = ""  # URL of the same origin at which an MCP endpoint answers
    location: str = ""  # redirect target
    skew: float = 0.0  # seconds that our clock is behind the server's
    speaks_tls: bool = False  # the address of an http url expects TLS
    certificate: certificates.CertificateFacts | None = None  # of an https url that gave no response


async def probe_server(server: Server) -> Probes:
    """Send a `ping` to the server's URL and, if that is not an MCP endpoint, to common MCP paths.

    Network errors are not raised: the probe then has status 0.
    """
    client = HttpClient(
        msgspec.structs.replace(
            streamable_http.client_limits_for(server), connect_timeout=min(PROBE_TIMEOUT_S, server.timeout.connect)
        ),
        server.effective_network_policy,
        server.tls,
    )
    try:
        url = server.http_url
        assert url is not None
        post = await _post_ping(client, server, url)
        if post.wants_tls or (not post.status and await _speaks_tls(client, url)):
            return Probes(post, speaks_tls=True)
        if not post.status:
            return Probes(post, certificate=await certificates.fetch_certificate_facts(server, PROBE_TIMEOUT_S))
        endpoint = "" if post.is_mcp else await _find_endpoint(client, server)
        return Probes(post, endpoint, _redirect_target(url, post), _clock_skew(post.headers))
    finally:
        client.close()
        await asyncio.sleep(0)  # the loop closes the sockets in its next iteration


async def _post_ping(client: HttpClient, server: Server, url: str) -> ProbeResult:
    headers, result = streamable_http.build_base_headers(server).post, ProbeResult()
    with suppress(HttpError, TimeoutError, ValueError):
        async with (
            asyncio.timeout(PROBE_TIMEOUT_S),
            client.send("POST", HttpTarget.parse(url), [headers], _PING_REQUEST) as response,
        ):
            result = ProbeResult(response.status, dict(response.headers))
            data = bytearray()
            async for chunk in response:
                data += chunk
                if len(data) >= MAX_BODY_BYTES or result.content_type == "text/event-stream":
                    break
            result = replace(result, body=bytes(data[:MAX_BODY_BYTES]))
    return result


async def _speaks_tls(client: HttpClient, url: str) -> bool:
    """Return True if a server at an http:// URL accepts TLS, with any certificate. No HTTP request is sent to it."""
    parts = urlsplit(url)
    if parts.scheme != "http":
        return False
    with suppress(TimeoutError, ValueError):
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                await client.connect(HttpTarget.parse(urlunsplit(parts._replace(scheme="https"))).origin)
            return True
        except HttpError as exc:
            return exc.code == "E-HTTP-TLS" and "certificate" in exc.reason
    return False


async def _find_endpoint(client: HttpClient, server: Server) -> str:
    assert server.http_url is not None
    parts = urlsplit(server.http_url)
    for path in COMMON_PATHS:
        url = urlunsplit((parts.scheme, parts.netloc, path, "", ""))
        if path != parts.path.rstrip("/") and (await _post_ping(client, server, url)).is_mcp:
            return url
    return ""


def _redirect_target(url: str, result: ProbeResult) -> str:
    if not 300 <= result.status < 400:
        return ""
    try:
        target = HttpTarget.parse(url).join(result.headers.get("location", ""))
    except ValueError:
        return ""
    return f"{target.origin}{target.path}"


def _clock_skew(headers: Mapping[str, str]) -> float:
    with suppress(ValueError, TypeError):
        skew = parsedate_to_datetime(headers["date"]).timestamp() - time.time() if "date" in headers else 0.0
        return skew if abs(skew) > MAX_CLOCK_SKEW_S else 0.0
    return 0.0
