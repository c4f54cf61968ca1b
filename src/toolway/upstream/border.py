"""Where faults of links become errors of calls: one table, one direction."""

from __future__ import annotations

from toolway.errors import CallError, Denied, OutcomeUnknown, Overloaded, ProtocolError, Unavailable
from toolway.model import Certainty
from toolway.protocol.wire import certainty_of_error
from toolway.upstream.link import Fault, RpcError

_NOT_AN_ANSWER = ("E-ANSWER", "E-FRAME", "E-HTTP-ID", "E-HTTP-CONTENT", "E-HTTP-PROTOCOL", "E-HTTP-LIMIT", "E-ROUNDS")


def call_error(exc: Fault | RpcError, server: str, name: str) -> CallError:
    """The error a caller sees for what happened on a link."""
    if isinstance(exc, RpcError):
        return ProtocolError(
            f"{server} answered with error {exc.code}",
            rpc_code=exc.code,
            data=exc.data,
            server=server,
            tool=name,
            certainty=certainty_of_error(exc.code),
            attempts=1,
            evidence=exc.message,
        )
    kind, what = _kind(exc, server)
    return kind(
        what,
        server=server,
        tool=name,
        certainty=exc.certainty,
        attempts=1,
        retry_after=exc.retry_after,
        evidence=exc.reason,
        fix=exc.fix,
        code=exc.code,
    )


def _kind(exc: Fault, server: str) -> tuple[type[CallError], str]:
    if exc.status in (401, 403):
        return Denied, f"{server} refuses our credentials"
    if exc.status in (429, 503) and exc.certainty is Certainty.C1:
        return Overloaded, f"{server} asks us to wait"
    if exc.code.startswith(_NOT_AN_ANSWER):
        return ProtocolError, f"{server} sent something that is no answer"
    if exc.certainty is Certainty.C2:
        return OutcomeUnknown, f"the call to {server} was lost on the way back: it may have been executed"
    if exc.certainty is Certainty.C1:
        return ProtocolError, f"{server} refused the request"
    return Unavailable, f"{server} cannot be reached"
