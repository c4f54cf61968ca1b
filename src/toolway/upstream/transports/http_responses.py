"""HTTP responses of MCP servers: a result, a rejection, a challenge, or an unknown outcome.

The certainty of an error decides whether a call may be repeated. So only a response that proves that the server did not
process the request counts as REJECTED. Everything else may have been processed (UNKNOWN).

`send_with_auth` sends a request with a credential, and again with a new one after a 401 or 403: a server that rejects
the credential has not executed the request. The functions that classify responses do no I/O.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Final, TypeVar

from toolway.http.client import HeaderBlock, HttpError, HttpResponse, HttpTarget, encode_headers
from toolway.protocol import jsonrpc
from toolway.protocol.sanitize import sanitize
from toolway.secrets.replacer import cut_bytes, cut_text
from toolway.types import AuthChallenge, AuthError, Authorizer, CallState, Certainty, Json
from toolway.upstream.error_mapping import PERSONAL_AUTH_CODE
from toolway.upstream.negotiation import LEGACY_SSE_CODE
from toolway.upstream.transport import JSONRPCError, TransportError, require_may_send

_REJECTED, _UNKNOWN = Certainty.REJECTED, Certainty.UNKNOWN
_REFUSED_HINT: Final = "fix the request; the same one would be rejected again"

# Statuses that mean that the server, or a proxy in front of it, refused the request and did not execute it.
_REJECTION_STATUSES: Final[Mapping[int, tuple[str, str]]] = {
    400: ("refused the request as invalid", _REFUSED_HINT),
    401: (
        "requires a credential, or rejected the one it got",
        "set the server's token under `headers`, or log in: toolway login NAME; in Python: Hub(…, login_callback=…)",
    ),
    403: ("does not allow this", "check the permissions of the credential"),
    404: ("has nothing at this address", "check the path of the url"),
    405: ("accepts no requests at this address", "check the path of the url"),
    406: ("cannot respond in an MCP format", "check that the url is an MCP endpoint"),
    409: ("refused the request because of a conflict", _REFUSED_HINT),
    410: ("no longer has anything at this address", "check the path of the url"),
    413: ("rejected the request as too large", "send less in one call"),
    415: ("does not accept JSON", "check that the url is an MCP endpoint"),
    421: ("is not responsible for this host", "check the host of the url"),
    422: ("refused the request as invalid", _REFUSED_HINT),
    429: ("limits the request rate", "call less often, or wait as long as it asks"),
}
# With one of these, a JSON-RPC error in the body says more than the status.
_EXPLAINED_STATUSES: Final = frozenset({400, 404, 409, 410, 422})
_MAX_EXCERPT_CHARS: Final = 200
_JSON_TYPE: Final = "application/json"


def error_from_http(error: HttpError) -> TransportError:
    """Convert an `HttpError` of the HTTP client to a `TransportError` with the same certainty."""
    return TransportError(error.reason, error.certainty, code=error.code, hint=error.hint)


def media_type(headers: Mapping[str, str]) -> str:
    """Return the media type of a response in lower case, without parameters such as charset."""
    value = headers.get("content-type", "")
    return value if value == _JSON_TYPE else value.partition(";")[0].strip().lower()


def describe_media_type(headers: Mapping[str, str]) -> str:
    """Return a response's media type as the server wrote it, for a message. May contain a secret to mask."""
    return sanitize(headers.get("content-type", "").partition(";")[0].strip(), 80) or "no content type"


def is_same_id(received: jsonrpc.MessageId | None, ours: int) -> bool:
    """Return True if a response's JSON-RPC id is our request id: the same number, not its string form."""
    return type(received) is int and received == ours


def extract_result(message: jsonrpc.Message, id_: int, status: int) -> Json:
    """Return the result in `message`, the response to request `id_`.

    Raises `JSONRPCError` if the message is an error, and `TransportError` if it is not the response to this
    request.
    """
    if message.kind in ("request", "notification"):
        raise TransportError(
            "the server responded with a message that is not a response", _UNKNOWN, code="E-HTTP-CONTENT"
        )
    if not is_same_id(message.id, id_) and not (message.kind == "error" and message.id is None):
        shown = sanitize(repr(message.id), 80)
        raise TransportError(f"the server responded to request {shown} instead of {id_}", _UNKNOWN, code="E-HTTP-ID")
    if message.kind == "error":
        code, text, data = jsonrpc.parse_error(message.body)
        raise JSONRPCError(code, text, data, status=status)
    body: Json = message.body
    return body


def error_for_bad_message(bad: jsonrpc.InvalidMessage) -> TransportError:
    """Return the error for a response that is not a valid JSON-RPC message."""
    reason = f"the server's response is invalid: {bad.reason}"
    return TransportError(reason, _UNKNOWN, code=bad.code or "E-HTTP-CONTENT", hint=bad.hint)


def error_for_long_event(limit: int) -> TransportError:
    """Return the error for a server-sent event of more than `limit` bytes."""
    return TransportError(
        f"the server sent an event of more than {limit} bytes",
        _UNKNOWN,
        code="E-HTTP-LIMIT",
        hint="raise `limits.maxMessageBytes` for this server",
    )


def error_for_legacy_sse() -> TransportError:
    """Return the error for a server that answers a POST with the first event of HTTP+SSE.

    HTTP+SSE is the transport of 2024-11-05, which preceded Streamable HTTP.
    """
    return TransportError(
        "the server answered a POST with HTTP+SSE, the transport before Streamable HTTP",
        _REJECTED,
        code=LEGACY_SSE_CODE,
        status=405,
        hint='set "type": "sse" for this server',
    )


def error_for_truncation(reason: str) -> TransportError:
    """Return the error for an event stream that ended before the response to the request."""
    return TransportError(reason, _UNKNOWN, code="E-HTTP-CUT")


def error_for_missing_response(status: int, headers: Mapping[str, str], start: bytes) -> TransportError:
    """Return the error for a success status without an MCP response, such as a web page."""
    kind = describe_media_type(headers)
    return TransportError(
        f"the server responded {status} with {kind} instead of an MCP response{body_excerpt(start)}",
        _UNKNOWN,
        code="E-HTTP-CONTENT",
        status=status,
        hint="check that the url is an MCP endpoint; web pages and proxies respond like this",
    )


def error_for_status(
    status: int, headers: Mapping[str, str], body: bytes, id_: int | None, *, in_session: bool
) -> TransportError | JSONRPCError:
    """Return the error for an HTTP status of 400 or more. `body` may be truncated.

    It is the JSON-RPC error in the body, if there is one and the status is below 500. Otherwise, and if the status
    itself explains the rejection (such as 401) or the session is lost, it is a `TransportError`.
    """
    error = _parse_rpc_error(headers, body, id_)
    mentions_session = error is not None and "session" in error.message.lower()
    if in_session and (status == 404 or (status == 400 and mentions_session)):
        return TransportError(
            f"the server no longer knows the session ({status})", _REJECTED, code="E-HTTP-SESSION", status=status
        )
    retry_after = parse_retry_after(headers.get("retry-after"), headers.get("date"))
    detail = f": {cut_text(error.message, _MAX_EXCERPT_CHARS)}" if error is not None else body_excerpt(body)
    has_known_meaning = status in _REJECTION_STATUSES and status not in _EXPLAINED_STATUSES
    if error is not None and status < 500 and not has_known_meaning:
        return JSONRPCError(error.code, error.message, error.data, status=status)
    if status in _REJECTION_STATUSES:
        problem, hint = _REJECTION_STATUSES[status]
        certainty = _REJECTED
    else:
        problem, hint = "failed", ""
        certainty = _REJECTED if status == 503 and retry_after is not None else _UNKNOWN
    return TransportError(
        f"the server {problem} ({status}){detail}",
        certainty,
        code="E-HTTP-STATUS",
        status=status,
        retry_after=retry_after,
        hint=hint,
        www_authenticate=headers.get("www-authenticate"),
    )


def error_for_notification(status: int, headers: Mapping[str, str], body: bytes, *, in_session: bool) -> TransportError:
    """Return the error for a notification that the server rejected with an HTTP status.

    It is always a `TransportError`, because a notification has no JSON-RPC response.
    """
    error = error_for_status(status, headers, body, None, in_session=in_session)
    if isinstance(error, TransportError):
        return error
    certainty = jsonrpc.classify_error(error.code)
    return TransportError(
        f"the server rejected a notification: {error.message}", certainty, code="E-HTTP-STATUS", status=status
    )


def _parse_rpc_error(headers: Mapping[str, str], body: bytes, id_: int | None) -> JSONRPCError | None:
    if media_type(headers) != "application/json":
        return None
    try:
        message = jsonrpc.parse_message(body)
    except jsonrpc.InvalidMessage:
        return None
    if message.kind != "error" or not (message.id is None or (id_ is not None and is_same_id(message.id, id_))):
        return None
    return JSONRPCError(*jsonrpc.parse_error(message.body))


def follow_redirect(target: HttpTarget, status: int, headers: Mapping[str, str]) -> HttpTarget:
    """Return the target of a redirect with status 307 or 308 within the same origin.

    Raises `TransportError` for every other redirect, which must not be followed.
    """
    location = headers.get("location", "")
    try:
        new = target.join(location) if location else None
    except ValueError:
        new = None
    if new is not None and status in (307, 308) and new.origin == target.origin:
        return new
    shown_target = f"{new.origin}{new.path.partition('?')[0]}" if new is not None else "nowhere"
    raise TransportError(
        f"the server redirects to {sanitize(shown_target, _MAX_EXCERPT_CHARS)} ({status}), which is not followed",
        _REJECTED,
        code="E-HTTP-REDIRECT",
        status=status,
        hint="if you trust that address, make it the server's url",
    )


def error_for_redirect_loop() -> TransportError:
    """Return the error for a server that redirects one request too many times."""
    return TransportError(
        "the server redirects too many times", _REJECTED, code="E-HTTP-REDIRECT", hint="check the url"
    )


def body_excerpt(body: bytes) -> str:
    """Return a short, sanitized start of an error response's body, to append to a message."""
    text = " ".join(sanitize(cut_bytes(body, 4 * _MAX_EXCERPT_CHARS), _MAX_EXCERPT_CHARS).split())
    return f": {text}" if text else ""


# -- Retry-After ------------------------------------------------------------------------------------------------------

_RETRY_SECONDS: Final = re.compile(r"[0-9]{1,10}(?:\.[0-9]{1,6})?")
_MAX_DATE_CHARS: Final = 64


def parse_retry_after(value: str | None, date: str | None) -> float | None:
    """Return the seconds of a Retry-After header, or None if it is missing, invalid or in the past.

    If it is a date, it is compared with the `date` header of the response.
    """
    if value is None:
        return None
    value = value.strip()
    if _RETRY_SECONDS.fullmatch(value):
        return float(value)
    until, now = _parse_http_date(value), _parse_http_date(date)
    if until is None or now is None or until < now:
        return None
    return (until - now).total_seconds()


def _parse_http_date(text: str | None) -> datetime | None:
    if text is None or len(text) > _MAX_DATE_CHARS:
        return None
    from email.utils import parsedate_to_datetime  # slow to import

    try:
        moment = parsedate_to_datetime(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


# -- requests with a credential ---------------------------------------------------------------------------------------

T = TypeVar("T")

NO_AUTH_HEADER: Final = encode_headers({})
MAX_NEW_CREDENTIALS: Final = 4  # new credentials for one request
CHALLENGE_STATUSES: Final = (401, 403)


async def send_with_auth(
    authorizer: Authorizer,
    operation: str,
    send: Callable[[HeaderBlock], Awaitable[T]],
    call_state: CallState | None = None,
    rejected: TransportError | None = None,
) -> T:
    """Call `send` with the Authorization header and return its result.

    `rejected` is the 401 for an earlier attempt without a credential, which is not repeated.

    After a challenge (401 or 403), `send` is called again with a new credential. Raises `TransportError` if the
    caller has no credential, if the server still rejects it, or if `send` fails.
    """
    if call_state is not None and call_state.caller and not authorizer.allows(call_state.caller):
        raise TransportError(
            "the credential of this connection belongs to another caller", Certainty.NOT_SENT, code=PERSONAL_AUTH_CODE
        )
    replaced_after_401 = False  # a 401 is answered with a new credential only once
    for is_last in [False] * MAX_NEW_CREDENTIALS + [True]:
        if call_state is not None:
            call_state.phase = "auth"
        sent = await fetch_auth_header(authorizer)
        if call_state is not None:
            call_state.phase = "send"
        try:
            if rejected is not None and not sent:
                raise rejected
            return await send(_auth_header_block(sent))
        except TransportError as error:
            rejected = None
            if error.status not in CHALLENGE_STATUSES or error.certainty is not Certainty.REJECTED:
                raise
            challenge = AuthChallenge(error.status, error.www_authenticate or "", sent, operation)
            if is_last or (replaced_after_401 and error.status == 401):
                authorizer.on_rejected(challenge)
                raise
            replaced_after_401 = replaced_after_401 or error.status == 401
            if call_state is not None:
                call_state.certainty = Certainty.NOT_SENT  # the rejected request did not run
                call_state.phase = "auth"
            if not await _obtain_new_credential(authorizer, challenge, call_state):
                raise
    raise AssertionError("the last round returns or raises")


async def fetch_auth_header(authorizer: Authorizer) -> str:
    """Return the value of the Authorization header, or an empty string to send none.

    Raises `TransportError` (not sent) if the credential cannot be loaded or refreshed.
    """
    try:
        return await authorizer.authorization_header()
    except AuthError as exc:
        raise TransportError(exc.reason, Certainty.NOT_SENT, code=exc.code, hint=exc.hint) from None


async def _obtain_new_credential(
    authorizer: Authorizer, challenge: AuthChallenge, call_state: CallState | None
) -> bool:
    """Answer a challenge with a new credential. Return False without a new one to try.

    The user's time for a login does not count toward the call's deadline. Raises `TransportError` if the login or
    refresh fails.
    """
    clock = asyncio.get_running_loop().time
    waits_for_user = call_state is not None and authorizer.is_interactive
    if call_state is not None and waits_for_user:
        call_state.begin_user_wait(clock())
    try:
        return await authorizer.on_challenge(challenge)
    except AuthError as exc:
        status = challenge.status
        raise TransportError(exc.reason, Certainty.REJECTED, code=exc.code, status=status, hint=exc.hint) from None
    finally:
        if call_state is not None and waits_for_user:
            call_state.end_user_wait(clock())


def _auth_header_block(value: str) -> HeaderBlock:
    return encode_headers({"Authorization": value}) if value else NO_AUTH_HEADER


def watch_send(response: HttpResponse, call_state: CallState) -> None:
    """Connect an HTTP request to its call's state, to show whether it waits for a connection.

    Right before its first byte is sent, `require_may_send` checks that it is not too late.
    """
    response.on_dial = call_state.mark_connecting
    if call_state.may_send is not None:
        response.before_send = partial(require_may_send, call_state)
