"""Errors as clients see them: our exceptions → JSON-RPC codes and HTTP statuses. One table.

What a server itself answered passes unchanged, with what we
know about it added under one key. `OUTCOME_UNKNOWN` is deliberately HTTP 200: a 5xx would invite a resend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from mcp_types.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS

from toolway.errors import (
    CallError,
    Certainty,
    Denied,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    ProtocolError,
    TimedOut,
    Unavailable,
)
from toolway.gateway.codes import (
    DEADLINE,
    DENIED,
    KEY_MISMATCH,
    MOVED,
    OURS,
    OUTCOME_UNKNOWN,
    OVERLOADED,
    QUOTA,
    SHUTTING_DOWN,
    STORE_UNAVAILABLE,
    THROTTLED,
    UNAVAILABLE,
    UPSTREAM_AUTH,
    UPSTREAM_PROTOCOL,
)
from toolway.gateway.rates import Rate
from toolway.model import Call, Era, Json
from toolway.protocol.wire import RESOURCE_NOT_FOUND, clean_text

_STATUS: Final = {
    UNAVAILABLE: 503,
    DEADLINE: 504,
    OVERLOADED: 503,
    QUOTA: 429,
    THROTTLED: 503,
    KEY_MISMATCH: 422,
    STORE_UNAVAILABLE: 503,
    DENIED: 403,
    SHUTTING_DOWN: 503,
    MOVED: 409,
}
_RETRYABLE: Final = frozenset({UNAVAILABLE, OVERLOADED, QUOTA, THROTTLED, STORE_UNAVAILABLE, SHUTTING_DOWN})
_LEAST_WAIT: Final = 1.0  # seconds, for `Retry-After` where nobody knows better


class Failure(Exception):
    """A request that is answered with an error."""

    def __init__(
        self, code: int, message: str, data: Any = None, *, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.status = status if status is not None else status_of(code)
        self.retry_after = retry_after if retry_after is not None or self.status not in (429, 503) else _LEAST_WAIT


def status_of(code: int) -> int:
    """The HTTP status for a JSON-RPC error code."""
    return _STATUS.get(code) or ERROR_CODE_HTTP_STATUS.get(code, 200)


def of_error(error: CallError, call_id: str, era: Era) -> Failure:
    """What a client of this era is told about a call that brought no answer."""
    if isinstance(error, ProtocolError) and error.rpc_code is not None:
        return _passed_on(error, call_id, era)
    code = _code(error)
    facts = _facts(error, call_id)
    facts["retryable"] = code in _RETRYABLE and error.executed == "no"
    return Failure(code, str(error), facts, retry_after=error.retry_after)


def of_ended(call: Call) -> Failure:
    """What a client is told about a call that we cut off, because the gateway ends."""
    facts = _facts_of(call, "E-SHUTTING-DOWN")
    if facts["executed"] == "no":
        return Failure(SHUTTING_DOWN, "the gateway ended before the call was sent", facts)
    return Failure(OUTCOME_UNKNOWN, "the gateway ended while the call ran: it may have been executed", facts)


def of_crowded(call: Call) -> Failure:
    """What a client is told about a call whose server asks it something, and which cannot be kept until it answers."""
    what = "too many calls wait for answers of their clients, so this one was given up in mid-call"
    return Failure(OUTCOME_UNKNOWN, what, _facts_of(call, "E-CROWDED"))


def of_rate(rate: Rate, wait: float) -> Failure:
    """What a client is told that calls more often than its key allows."""
    facts: Json = {
        "executed": "no",
        "certainty": Certainty.C0.name,
        "retryable": True,
        "attempts": 0,
        "code": "E-RATE",
        "retryAfterMs": max(1, round(wait * 1000)),
    }
    what = f"this key may call {rate}, and has done so: again in {wait:.1f} s"
    return Failure(QUOTA, what, facts, retry_after=wait)


def _facts_of(call: Call, code: str) -> Json:
    certainty = call.attempt.judge()
    return {
        "executed": certainty.executed,
        "certainty": certainty.name,
        "retryable": certainty.executed == "no",
        "attempts": call.attempt.made,
        "upstream": call.server,
        "code": code,
        "callId": call.id,
    }


def _passed_on(error: ProtocolError, call_id: str, era: Era) -> Failure:
    """The server's own error, with what we know added."""
    code = error.rpc_code
    assert code is not None
    if era == "modern" and code == RESOURCE_NOT_FOUND:
        code = INVALID_PARAMS
    data = error.data
    facts = _facts(error, call_id)
    if data is None:
        data = {OURS: facts}
    elif isinstance(data, dict):
        data = {**data, OURS: facts}
    return Failure(code, clean_text(error.evidence or error.what, 2000), data)


def _facts(error: CallError, call_id: str) -> Json:
    facts: Json = {
        "executed": error.executed,
        "certainty": (error.certainty or Certainty.C0).name,
        "retryable": False,
        "attempts": error.attempts,
        "upstream": error.server,
        "code": error.code,
    }
    if error.fix:
        facts["fix"] = error.fix
    if error.retry_after is not None:
        facts["retryAfterMs"] = round(error.retry_after * 1000)
    if call_id:
        facts["callId"] = call_id
    return facts


_BY_NAME: Final = {
    "E-KEY-MISMATCH": KEY_MISMATCH,
    "E-KEY-STORE": STORE_UNAVAILABLE,
    "E-AUDIT": STORE_UNAVAILABLE,
    "E-DENIED": DENIED,
}
_CODES: Final[tuple[tuple[type[CallError], Callable[[CallError], int]], ...]] = (
    (NotFound, lambda error: INVALID_PARAMS),
    (OutcomeUnknown, lambda error: OUTCOME_UNKNOWN),
    (TimedOut, lambda error: DEADLINE if error.executed == "no" else OUTCOME_UNKNOWN),
    (Overloaded, lambda error: THROTTLED if error.certainty is Certainty.C1 else OVERLOADED),
    (Unavailable, lambda error: UNAVAILABLE if error.executed == "no" else OUTCOME_UNKNOWN),
    (Denied, lambda error: _BY_NAME.get(error.code, UPSTREAM_AUTH)),
    (ProtocolError, lambda error: UPSTREAM_PROTOCOL),
)


def _code(error: CallError) -> int:
    if error.code in _BY_NAME:
        return _BY_NAME[error.code]
    return next((code(error) for kind, code in _CODES if isinstance(error, kind)), INTERNAL_ERROR)
