"""Maps transport errors to the `CallError` classes that callers get."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from typing import Any, Final

from toolway.config.schema import Server
from toolway.errors import (
    AccessDenied,
    CallError,
    CallTimeout,
    OutcomeUnknown,
    Overloaded,
    ProtocolError,
    ServerUnavailable,
    ToolError,
    ToolwayError,
    invalid_arguments,
)
from toolway.protocol.jsonrpc import classify_error
from toolway.protocol.sanitize import map_texts
from toolway.secrets.detection import is_secret_name
from toolway.secrets.replacer import mask_and_cut
from toolway.types import AuthError, Call, Certainty
from toolway.upstream.status import ServerStatus
from toolway.upstream.transport import SEND_TOO_LATE, JSONRPCError, TransportError

PERSONAL_AUTH_CODE: Final = "E-AUTH-PERSONAL"  # the credential of the connection belongs to another caller
TOKEN_REJECTED_CODE: Final = "E-AUTH-TOKEN"  # the server rejected a fixed token of its entry
MISSING_CREDENTIAL: Final = "set what its document requires"  # hint for an HTTP API: a credential is not configured
_TRANSIENT_STATUSES: Final = (429, 503)  # rejections caused by the current load, not by the request
_MAX_MASKED_ERRORS: Final = 16  # of one chain of causes
_MAX_TOOL_ERROR_CHARS: Final = 500
_ERROR_TEXTS: Final = ("message", "detail", "hint", "reason", "data", "www_authenticate")
_INVALID_RESPONSE_CODES = (
    "E-ANSWER",
    "E-FRAME",
    "E-HTTP-ID",
    "E-HTTP-CONTENT",
    "E-HTTP-PROTOCOL",
    "E-HTTP-LIMIT",
    "E-ROUNDS",
    "E-SERVER-REQUESTS",
    "E-ELICIT-URL",
)
_USELESS_RETRIES: Final = (SEND_TOO_LATE, "E-NO-ANSWER")  # the second would ask the user once more


def call_error(
    exc: TransportError | JSONRPCError, server: str, name: str, not_processed_codes: Container[int] = ()
) -> CallError:
    """Return the `CallError` for an error from the transport or the server.

    `not_processed_codes` are HTTP statuses and JSON-RPC codes that the administrator declared to mean "not processed"
    for this server.
    """
    if isinstance(exc, TransportError) and exc.call_error is not None:
        return exc.call_error
    if isinstance(exc, TransportError) and exc.violations:
        return invalid_arguments(server, name, exc.violations)
    if isinstance(exc, JSONRPCError):
        certainty = _stated_certainty(exc) or classify_error(exc.code)
        is_not_processed = certainty is Certainty.UNKNOWN and exc.code in not_processed_codes
        error: CallError = _from_jsonrpc_error(exc, server, name, Certainty.REJECTED if is_not_processed else certainty)
    else:
        is_not_processed = (
            exc.certainty is not Certainty.NOT_SENT and exc.status is not None and exc.status in not_processed_codes
        )
        error = _from_transport_error(exc, server, name, Certainty.REJECTED if is_not_processed else exc.certainty)
    error.retryable = error.retryable or is_not_processed
    return error


def _stated_certainty(exc: JSONRPCError) -> Certainty | None:
    """Return the certainty that another Toolway gateway put into its error data, or None.

    Only errors with an application code count: JSON-RPC's own codes have their own meaning.
    """
    stated = exc.data.get("executed") if isinstance(exc.data, dict) else None
    if not isinstance(stated, str) or classify_error(exc.code) is not Certainty.EXECUTED:
        return None
    return {"no": Certainty.REJECTED, "unknown": Certainty.UNKNOWN}.get(stated)


def _from_jsonrpc_error(exc: JSONRPCError, server: str, name: str, certainty: Certainty) -> ProtocolError:
    error = ProtocolError(
        f"{server} answered with error {exc.code}",
        rpc_code=exc.code,
        data=exc.data,
        server=server,
        tool=name,
        certainty=certainty,
        attempts=1,
        detail=exc.message,
    )
    data = exc.data if isinstance(exc.data, dict) else {}
    # A request that was rejected for its content would be rejected again.
    error.retryable = certainty is not Certainty.REJECTED and data.get("retryable") is not False
    wait = data.get("retryAfterMs")
    if isinstance(wait, int | float) and wait >= 0:
        error.retry_after = wait / 1000
    return error


def _from_transport_error(exc: TransportError, server: str, name: str, certainty: Certainty) -> CallError:
    error_type, message = _classify(exc, server, certainty)
    error = error_type(
        message,
        server=server,
        tool=name,
        certainty=certainty,
        attempts=1,
        retry_after=exc.retry_after,
        detail=exc.reason,
        hint=exc.hint.replace("toolway login NAME", f"toolway login {server}"),  # a transport does not know its name
        code=exc.code,
    )
    error.retryable = exc.status in _TRANSIENT_STATUSES or (
        certainty is not Certainty.REJECTED and not is_auth_code(exc.code) and exc.code not in _USELESS_RETRIES
    )
    return error


def mask_error(exc: BaseException, mask: Callable[[str], str]) -> None:
    """Mask secrets, in place, in an error and its causes: a traceback shows them all.

    `mask` replaces the known secrets in a string. Strings that a server sent, such as its stderr, may contain secrets.
    `ToolError.result` is data and stays unchanged.
    """
    chain: list[BaseException] = []
    links: list[BaseException | None] = [exc]
    while links and len(chain) < _MAX_MASKED_ERRORS:
        link = links.pop()
        if link is None or link in chain:
            continue
        chain.append(link)
        links += [link.__context__, link.__cause__]
        if isinstance(link, ToolError):
            link.detail = mask_and_cut(link.result.text, _MAX_TOOL_ERROR_CHARS, mask)
        for name in ("args", *_ERROR_TEXTS):
            text: Any = getattr(link, name, None)
            masked = map_texts(text, mask) if text else text
            if name == "args":
                link.args = tuple(masked or ())
            elif masked != text:
                setattr(link, name, masked)


@contextmanager
def masking_errors(mask: Callable[[str], str]) -> Iterator[None]:
    """Mask secrets in an error raised inside the `with` block."""
    try:
        yield
    except ToolwayError as exc:
        mask_error(exc, mask)
        raise


def attempt_timeout_error(server: str, call: Call, seconds: float) -> CallTimeout:
    """Return the error for an attempt that exceeded its time limit of `seconds`."""
    return CallTimeout(
        f"an attempt of {server}.{call.name} timed out after {seconds:g} s",
        phase=call.state.phase,
        server=server,
        tool=call.name,
        certainty=call.state.certainty,
        attempts=1,
        detail="the attempt hit its own time limit, before the call's deadline",
        hint='check the server, or raise "retry": {"attemptTimeout": …}',
    )


def is_auth_code(code: str) -> bool:
    """Return True if the error is about a credential, so retrying at once is useless."""
    return code.startswith("E-AUTH-")


def explain_rejected_token(exc: TransportError, server: Server) -> None:
    """Turn an HTTP 401 or 403 into "token rejected", if the server's entry has a fixed token."""
    if exc.status not in (401, 403) or exc.code != "E-HTTP-STATUS" or MISSING_CREDENTIAL in exc.hint:
        return
    place = _find_token(server)
    if place:
        exc.code = TOKEN_REJECTED_CODE
        exc.hint = (
            f"the server rejected the token in {place} of its entry: renew it"
            if exc.status == 401
            else f"the token in {place} of its entry lacks a permission: extend or renew it"
        )


def _find_token(server: Server) -> str:
    """Return the config key of a server's fixed token, such as `headers.Authorization`, or ""."""
    found = [name for name in server.headers if name.lower() == "authorization" or is_secret_name(name)]
    if found:
        return f"headers.{min(found, key=lambda name: name.lower() != 'authorization')}"
    return server.transport_settings.token_key if server.transport_settings is not None else ""


def no_credential_message(server: str) -> str:
    return f"no valid credential for {server}"


def unavailable_error(status: ServerStatus, code: str, *, permanent: bool) -> CallError:
    """Return the error for a call that was not sent because its server is not ready.

    `code` comes from the server's last failure. `permanent` means that the server was removed or replaced.
    """
    server = status.server
    if is_auth_code(code) and code != "E-AUTH-SERVER" and not permanent:
        error: CallError = AccessDenied(no_credential_message(server), server=server, detail=status.why)
        error.retryable = False  # a user must log in first
    else:
        error = ServerUnavailable(f"{server} is not available", server=server, detail=status.why)
        error.retry_after = status.next_retry
    error.certainty, error.hint, error.code = Certainty.NOT_SENT, status.hint, code or error.code
    return error


@contextmanager
def raising_access_denied(server: str) -> Iterator[None]:
    """Convert an `AuthError` inside the `with` block into the `AccessDenied` that a caller gets."""
    try:
        yield
    except AuthError as exc:
        raise call_error(
            TransportError(exc.reason, Certainty.NOT_SENT, code=exc.code, hint=exc.hint), server, ""
        ) from None


def _classify(exc: TransportError, server: str, certainty: Certainty) -> tuple[type[CallError], str]:
    if exc.code == TOKEN_REJECTED_CODE:
        return AccessDenied, f"{server} rejected the token of its entry"
    if is_auth_code(exc.code):
        return AccessDenied, no_credential_message(server)
    if exc.status in (401, 403):
        return AccessDenied, f"{server} rejected the credential"
    if exc.status in _TRANSIENT_STATUSES and certainty is Certainty.REJECTED:
        return Overloaded, f"{server} is overloaded"
    if exc.code == "E-NO-ANSWER":
        return ProtocolError, f"{server} requires input that is not available"
    if exc.code.startswith(_INVALID_RESPONSE_CODES):
        return ProtocolError, f"{server} sent an invalid response"
    if certainty is Certainty.UNKNOWN and exc.status is not None:
        return OutcomeUnknown, f"{server} answered with HTTP {exc.status}: the call may have run"
    if certainty is Certainty.UNKNOWN:
        return OutcomeUnknown, f"connection to {server} lost: the call may have run"
    if certainty is Certainty.REJECTED:
        return ProtocolError, f"{server} rejected the request"
    return ServerUnavailable, f"{server} is unreachable"
