"""What an HTTP response says about a request: an answer, a refusal, or neither. Pure.

The certainty of a refusal decides whether a call may be repeated, so the rule is: only what proves that the server did
not process the request counts as refused (C1); everything else may have been processed (C2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from toolway.model import Certainty, Json
from toolway.protocol import wire
from toolway.protocol.retry_after import parse_retry_after
from toolway.upstream.finding import OLD
from toolway.upstream.link import Fault, RpcError
from toolway.upstream.transports.http1.client import HttpFault, Target

_C1, _C2 = Certainty.C1, Certainty.C2

# Statuses by which a server, or what stands before it, says that it did not process the request.
_REFUSALS: Final[Mapping[int, tuple[str, str]]] = {
    401: (
        "wants credentials, or other ones",
        "give the server's token under `headers`, or let the hub log in: Hub(…, login=…)",
    ),
    403: ("does not allow this", "check what the credential is allowed to do"),
    405: ("takes no requests at this address", "check the path of the url"),
    406: ("cannot answer in a form that MCP knows", "check that the url is an MCP endpoint"),
    413: ("finds the request too large", "send less in one call"),
    415: ("does not take JSON", "check that the url is an MCP endpoint"),
    421: ("is not responsible for this host", "check the host of the url"),
    429: ("wants fewer requests", "call less often, or wait as long as it asks"),
}
_SHOWN: Final = 200
_JSON: Final = "application/json"


def from_http_fault(fault: HttpFault) -> Fault:
    return Fault(fault.reason, fault.certainty, code=fault.code, fix=fault.fix)


def media_type(headers: Mapping[str, str]) -> str:
    value = headers.get("content-type", "")
    return value if value == _JSON else value.partition(";")[0].strip().lower()


def same_id(seen: wire.Id | None, ours: int) -> bool:
    """Some servers turn our number into text; we send no text, so there is no doubt."""
    return seen == ours or seen == str(ours)


def result_of(message: wire.Message, id_: int, status: int) -> Json:
    """The result that `message` brings to request `id_`. Raises `RpcError`, or `Fault` where it is not its answer."""
    if message.kind in ("request", "notification"):
        raise Fault("the server answered with a message that is no answer", _C2, code="E-HTTP-CONTENT")
    if not same_id(message.id, id_) and not (message.kind == "error" and message.id is None):
        shown = wire.clean_text(repr(message.id), 80)
        raise Fault(f"the server answered request {shown} instead of {id_}", _C2, code="E-HTTP-ID")
    if message.kind == "error":
        code, text, data = wire.error_fields(message.body)
        raise RpcError(code, text, data, status=status)
    body: Json = message.body
    return body


def bad_message(bad: wire.BadMessage) -> Fault:
    reason = f"the server's answer is not acceptable: {bad.reason}"
    return Fault(reason, _C2, code=bad.code or "E-HTTP-CONTENT", fix=bad.fix)


def too_long(limit: int) -> Fault:
    return Fault(
        f"the server sent an event of more than {limit} bytes",
        _C2,
        code="E-HTTP-LIMIT",
        fix="raise `limits.frame` of this server",
    )


def older_transport() -> Fault:
    """A server that begins the older transport, whatever the method of the request."""
    return Fault(
        "the server answered a POST with the beginning of HTTP+SSE, the transport before Streamable HTTP",
        _C1,
        code=OLD,
        status=405,
        fix='set "type": "sse" for this server',
    )


def cut(how: str) -> Fault:
    return Fault(how, _C2, code="E-HTTP-CUT")


def no_answer(status: int, headers: Mapping[str, str], start: bytes) -> Fault:
    """A success that carries no answer."""
    kind = media_type(headers) or "no content type"
    return Fault(
        f"the server answered {status} with {wire.clean_text(kind, 80)} instead of an MCP answer{excerpt(start)}",
        _C2,
        code="E-HTTP-CONTENT",
        status=status,
        fix="check that the url is an MCP endpoint; web pages and proxies answer like this",
    )


def refusal(
    status: int, headers: Mapping[str, str], body: bytes, id_: int | None, *, in_session: bool
) -> Fault | RpcError:
    """The failure that a status of 400 and more stands for. `body` may be cut off."""
    error = _rpc_error(headers, body, id_)
    mentions_session = error is not None and "session" in error.message.lower()
    if in_session and (status == 404 or (status == 400 and mentions_session)):
        return Fault(f"the server no longer knows the session ({status})", _C1, code="E-HTTP-SESSION", status=status)
    retry_after = parse_retry_after(headers.get("retry-after"), headers.get("date"))
    detail = f": {error.message[:_SHOWN]}" if error is not None else excerpt(body)
    if status in _REFUSALS:
        what, fix = _REFUSALS[status]
        certainty = _C1
    elif error is not None and status < 500:
        return RpcError(error.code, error.message, error.data, status=status)
    else:
        what, fix = "failed", ""
        certainty = _C1 if status == 503 and retry_after is not None else _C2
    return Fault(
        f"the server {what} ({status}){detail}",
        certainty,
        code="E-HTTP-STATUS",
        status=status,
        retry_after=retry_after,
        fix=fix,
        challenge=headers.get("www-authenticate"),
    )


def refused_notice(status: int, headers: Mapping[str, str], body: bytes, *, in_session: bool) -> Fault:
    """The same for a message that has no answer, so that an error cannot be one either."""
    problem = refusal(status, headers, body, None, in_session=in_session)
    if isinstance(problem, Fault):
        return problem
    certainty = wire.certainty_of_error(problem.code)
    return Fault(
        f"the server refused a notification: {problem.message}", certainty, code="E-HTTP-STATUS", status=status
    )


def _rpc_error(headers: Mapping[str, str], body: bytes, id_: int | None) -> RpcError | None:
    if media_type(headers) != "application/json":
        return None
    try:
        message = wire.parse(body)
    except wire.BadMessage:
        return None
    if message.kind != "error" or not (message.id is None or (id_ is not None and same_id(message.id, id_))):
        return None
    return RpcError(*wire.error_fields(message.body))


def redirect(target: Target, status: int, headers: Mapping[str, str]) -> Target:
    """Where to send the request again. Raises `Fault` where the redirect is not to be followed."""
    location = headers.get("location", "")
    try:
        new = target.join(location) if location else None
    except ValueError:
        new = None
    if new is not None and status in (307, 308) and new.origin == target.origin:
        return new
    where = f"{new.origin}{new.path.partition('?')[0]}" if new is not None else "nowhere"
    raise Fault(
        f"the server redirects to {wire.clean_text(where, _SHOWN)} ({status}), which is not followed",
        _C1,
        code="E-HTTP-REDIRECT",
        status=status,
        fix="if you trust that address, make it the server's url",
    )


def redirect_loop() -> Fault:
    return Fault("the server redirects again and again", _C1, code="E-HTTP-REDIRECT", fix="check the url")


def excerpt(body: bytes) -> str:
    """The beginning of what was said, to be put behind a reason."""
    text = " ".join(wire.clean_text(body[: 4 * _SHOWN].decode("utf-8", "replace"), _SHOWN).split())
    return f": {text}" if text else ""
