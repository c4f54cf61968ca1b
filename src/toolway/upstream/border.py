"""Where faults of links become errors of calls: one table, one direction."""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import Final

from toolway.errors import CallError, Denied, OutcomeUnknown, Overloaded, ProtocolError, Unavailable
from toolway.model import Certainty, NotAuthorized
from toolway.protocol.wire import certainty_of_error
from toolway.upstream.link import Fault, RpcError
from toolway.upstream.status import Status

PERSONAL: Final = "E-AUTH-PERSONAL"  # the credential of a link is not the caller's
_PASSING: Final = (429, 503)  # refusals that say something about now, not about the request
_NOT_AN_ANSWER = ("E-ANSWER", "E-FRAME", "E-HTTP-ID", "E-HTTP-CONTENT", "E-HTTP-PROTOCOL", "E-HTTP-LIMIT", "E-ROUNDS")


def call_error(exc: Fault | RpcError, server: str, name: str, unprocessed: Container[int] = ()) -> CallError:
    """The error a caller sees for what happened on a link. `unprocessed` are statuses and codes by which this server,
    by its operator's word, says that it has done nothing."""
    if isinstance(exc, Fault) and exc.error is not None:
        return exc.error
    if isinstance(exc, RpcError):
        certainty = certainty_of_error(exc.code)
        promised = certainty is Certainty.C2 and exc.code in unprocessed
        error: CallError = _answered(exc, server, name, Certainty.C1 if promised else certainty)
    else:
        promised = exc.certainty is Certainty.C2 and exc.status is not None and exc.status in unprocessed
        error = _failed(exc, server, name, Certainty.C1 if promised else exc.certainty)
    error.retryable = error.retryable or promised
    return error


def _answered(exc: RpcError, server: str, name: str, certainty: Certainty) -> ProtocolError:
    error = ProtocolError(
        f"{server} answered with error {exc.code}",
        rpc_code=exc.code,
        data=exc.data,
        server=server,
        tool=name,
        certainty=certainty,
        attempts=1,
        evidence=exc.message,
    )
    data = exc.data if isinstance(exc.data, dict) else {}
    # A request that was refused for what it says is refused again.
    error.retryable = certainty is not Certainty.C1 and data.get("retryable") is not False
    wait = data.get("retryAfterMs")
    if isinstance(wait, int | float) and wait >= 0:
        error.retry_after = wait / 1000
    return error


def _failed(exc: Fault, server: str, name: str, certainty: Certainty) -> CallError:
    kind, what = _kind(exc, server, certainty)
    error = kind(
        what,
        server=server,
        tool=name,
        certainty=certainty,
        attempts=1,
        retry_after=exc.retry_after,
        evidence=exc.reason,
        fix=exc.fix,
        code=exc.code,
    )
    error.retryable = exc.status in _PASSING or (certainty is not Certainty.C1 and not no_credential(exc.code))
    return error


def no_credential(code: str) -> bool:
    """Whoever keeps the credentials has none: trying again at once finds the same."""
    return code.startswith("E-AUTH-")


def no_valid_credential(server: str) -> str:
    return f"there is no valid credential for {server}"


def unavailable(status: Status, code: str, *, for_good: bool) -> CallError:
    """The error of a call that was not sent, because its server is not ready; `code` is that of what it last failed
    with. `for_good`: it has been removed or replaced."""
    server = status.server
    if no_credential(code) and code != "E-AUTH-SERVER" and not for_good:
        error: CallError = Denied(no_valid_credential(server), server=server, evidence=status.why)
        error.retryable = False  # it waits for a person
    else:
        error = Unavailable(f"{server} is not available", server=server, evidence=status.why)
        error.retry_after = status.next_retry
    error.certainty, error.fix, error.code = Certainty.C0, status.fix, code or error.code
    return error


@contextmanager
def denied(server: str) -> Iterator[None]:
    """Raises `Denied` where there is no credential for a server."""
    try:
        yield
    except NotAuthorized as exc:
        raise call_error(Fault(exc.reason, Certainty.C0, code=exc.code, fix=exc.fix), server, "") from None


def _kind(exc: Fault, server: str, certainty: Certainty) -> tuple[type[CallError], str]:
    if no_credential(exc.code):
        return Denied, no_valid_credential(server)
    if exc.status in (401, 403):
        return Denied, f"{server} refuses our credentials"
    if exc.status in _PASSING and certainty is Certainty.C1:
        return Overloaded, f"{server} asks us to wait"
    if exc.code == "E-NO-ANSWER":
        return ProtocolError, f"{server} asks for input that nobody gives"
    if exc.code.startswith(_NOT_AN_ANSWER):
        return ProtocolError, f"{server} sent something that is no answer"
    if certainty is Certainty.C2:
        return OutcomeUnknown, f"the call to {server} was lost on the way back: it may have been executed"
    if certainty is Certainty.C1:
        return ProtocolError, f"{server} refused the request"
    return Unavailable, f"{server} cannot be reached"
