"""What the failure of an HTTP server shows, after a closer look at its address."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from toolway.config.spec import Server
from toolway.doctor.entry_checks import entry_text
from toolway.doctor.report import Check, split_fix
from toolway.doctor.starting import Start
from toolway.doctor.values import ago
from toolway.doctor.web import Closer
from toolway.protocol.shown import clean_text
from toolway.upstream.link import Loss

_OLD = "E-HTTP-OLD"
_CONNECT = ("E-HTTP-DNS", "E-HTTP-CONNECT", "E-HTTP-PROXY", "E-HTTP-TIMEOUT")


def of_failure(server: Server, seen: Start, closer: Closer) -> Check:
    """Why an HTTP server cannot be had. `seen.failure` is set."""
    failure = seen.failure
    assert failure is not None
    if "proxy" in failure.reason and failure.code in _CONNECT:
        return _proxy(server, failure)
    if failure.code == "E-HTTP-ADDRESS":
        return _inside(failure)
    if failure.code in _CONNECT:
        return Check("connect", "fail", failure.reason, fix=_start_it(server, failure), code=failure.code)
    if failure.code == "E-HTTP-TLS":
        return _tls(server, failure)
    if server.sse and closer.post.is_mcp:
        return _newer(failure)
    if failure.code == "E-SSE-ENDPOINT":
        return Check("handshake", "fail", failure.reason, fix=failure.fix, code=failure.code)
    if seen.status in (401, 403):
        return _refused(server, seen.status, failure, closer)
    if failure.code == "E-HTTP-REDIRECT":
        return _redirect(failure, closer)
    if closer.post.kind == "text/html" or closer.endpoint or seen.status in (404, 405):
        return _no_endpoint(failure, closer)
    return Check("handshake", "fail", failure.reason, _clock(closer), failure.fix, code=failure.code)


def _proxy(server: Server, failure: Loss) -> Check:
    host = urlsplit(server.url or "").hostname or ""
    said = "it comes from HTTP_PROXY, HTTPS_PROXY or ALL_PROXY"
    fix = "correct that variable, or leave this host out"
    return Check("connect", "fail", failure.reason, said, fix, f"export NO_PROXY={host}", failure.code)


def _inside(failure: Loss) -> Check:
    """Nothing is wrong with the server, as far as can be known: it was not asked."""
    evidence = "Toolway connects to public addresses, to numbers that an entry writes down, and to what you allow"
    fix, copy = split_fix(failure.fix)
    return Check("connect", "fail", failure.reason, evidence, fix, copy, failure.code)


def _start_it(server: Server, failure: Loss) -> str:
    host = urlsplit(server.url or "").hostname or ""
    if failure.code == "E-HTTP-CONNECT" and (host == "localhost" or host.startswith("127.") or host == "::1"):
        return "start the server that should listen there, or correct url in its entry"
    return failure.fix or "check url, network, VPN and proxy"


def _tls(server: Server, failure: Loss) -> Check:
    parts = urlsplit(server.url or "")
    reason = failure.reason.lower()
    fix, copy = failure.fix, ""
    if "wrong version number" in reason or "record layer" in reason or "http request" in reason:
        fix = "the address does not speak TLS: write http instead of https"
        copy = entry_text({"url": urlunsplit(parts._replace(scheme="http"))})
    elif "expired" in reason:
        fix = "its certificate has ended: whoever runs the server must renew it"
    elif "mismatch" in reason or "not valid for" in reason:
        fix = "the certificate is for another name: write that name as the host of url"
    elif "self-signed" in reason or "self signed" in reason or "issuer" in reason:
        fix = "get the certificate of the authority that made it, from whoever runs the server, and name its file"
        copy = "export SSL_CERT_FILE=/path/to/authority.pem"
    return Check("tls", "fail", failure.reason, fix=fix, copy=copy, code=failure.code)


def _newer(failure: Loss) -> Check:
    what = "the server speaks Streamable HTTP, and its entry says HTTP+SSE, the transport before it"
    return Check("handshake", "fail", what, failure.reason, "say what it speaks", entry_text({"type": "http"}), _OLD)


def deprecated(server: Server, closer: Closer) -> Check:
    """A server that works over a transport that is going away."""
    what = "the server speaks HTTP+SSE, the transport before Streamable HTTP, which is deprecated"
    if closer.endpoint:
        fix = "the same host has a Streamable HTTP endpoint: use that"
        keys = {"url": closer.endpoint, **({"type": "http"} if server.sse else {})}
        return Check("transport", "warn", what, "it works for now", fix, entry_text(keys), _OLD)
    if server.sse:
        return Check("transport", "ok", "HTTP+SSE, which is deprecated, as its entry says")
    fix = "ask for its Streamable HTTP address; until there is one, say what it speaks, which saves two requests"
    return Check("transport", "warn", what, "it works for now", fix, entry_text({"type": "sse"}), _OLD)


def _refused(server: Server, status: int, failure: Loss, closer: Closer) -> Check:
    header = next((name for name in server.headers if name.lower() == "authorization"), "")
    evidence = "\n".join(filter(None, (failure.reason, _challenge(closer), _clock(closer))))
    if status == 403:
        what, fix = "the server does not allow this to our credential (403)", "give the token the rights it lacks"
        return Check("auth", "fail", what, evidence, fix, code=failure.code)
    if not header:
        if "resource_metadata" in _challenge(closer):  # a server that has a login says where it is described
            return _no_login(failure, evidence)
        return Check(
            "auth",
            "fail",
            "the server wants a token (401), and the entry has no token",
            evidence,
            "get a token from the service, and name it in the entry",
            entry_text({"headers": {"Authorization": "Bearer ${TOKEN}"}}),
            failure.code,
        )
    what = f"the server refuses the token in headers.{header} (401)"
    if closer.skew:
        said = f"{what}, and this machine's clock is {_apart(closer)} the server's"
        return Check("auth", "fail", said, evidence, "set the clock: tokens end by it", code=failure.code)
    return Check(
        "auth", "fail", what, evidence, "get a new token from the service, and put it there", code=failure.code
    )


def _no_login(failure: Loss, evidence: str) -> Check:
    command = failure.fix if failure.code == "E-AUTH-LOGIN" else ""
    what = "the server wants a login by OAuth (401), and there is none that it takes"
    fix = "log in; every program of yours has the token then" if command else failure.fix
    return Check("auth", "fail", what, evidence, fix, command, failure.code)


def _challenge(closer: Closer) -> str:
    said = closer.post.headers.get("www-authenticate", "")
    return f"WWW-Authenticate: {clean_text(said, 200)}" if said else ""


def _clock(closer: Closer) -> str:
    if not closer.skew:
        return ""
    return f"this machine's clock is {_apart(closer)} the server's: tokens end by the clock"


def _apart(closer: Closer) -> str:
    return f"{ago(abs(closer.skew))} {'behind' if closer.skew > 0 else 'ahead of'}"


def _redirect(failure: Loss, closer: Closer) -> Check:
    if not closer.location:
        return Check("address", "fail", failure.reason, fix=failure.fix, code=failure.code)
    return Check(
        "address",
        "fail",
        f"the server has moved: it redirects to {clean_text(closer.location, 200)}",
        "a token is not sent to another address than the one that was configured",
        "if you trust that address, make it the url",
        entry_text({"url": closer.location}),
        failure.code,
    )


def _no_endpoint(failure: Loss, closer: Closer) -> Check:
    title = f" ({closer.post.title})" if closer.post.title else ""
    page = closer.post.kind == "text/html"
    what = (
        f"a web page{title} answers at this url"
        if page
        else f"no MCP endpoint answers at this url ({closer.post.status})"
    )
    if closer.endpoint:
        fix, copy = "there is an MCP endpoint beside it: use that", entry_text({"url": closer.endpoint})
        return Check("address", "fail", f"{what}, and no MCP server" if page else what, "", fix, copy, failure.code)
    fix = "look up the address in the server's documentation; it often ends with /mcp"
    return Check(
        "address", "fail", f"{what}, and no MCP server" if page else what, failure.reason, fix, code=failure.code
    )
