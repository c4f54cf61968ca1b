"""Mapping of Toolway exceptions to JSON-RPC errors and HTTP statuses.

A server's own error passes unchanged, except that Toolway adds its own information under one key. `OUTCOME_UNKNOWN`
is deliberately HTTP 200, because a 5xx status would invite clients to resend the request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from toolway.catalog.tool_access import TOOL_DENIED_CODE, TOOL_ON_HOLD_CODE
from toolway.errors import (
    AccessDenied,
    CallError,
    CallRefused,
    CallTimeout,
    Certainty,
    InvalidArguments,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    ProtocolError,
    ServerUnavailable,
    StoreUnavailable,
    ToolwayError,
)
from toolway.gateway.mcp.context import name_demanded_visits
from toolway.gateway.rate_limit import Rate
from toolway.middleware.approval import APPROVAL_DENIED_CODE, ApprovalRequired
from toolway.outcomes import APPROVAL_CODE
from toolway.protocol.constants import (
    ERROR_CODE_HTTP_STATUS,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    URL_ELICITATION_REQUIRED,
)
from toolway.protocol.jsonrpc import RESOURCE_NOT_FOUND, encode_json
from toolway.protocol.sanitize import map_texts, sanitize
from toolway.protocol.schema_violations import violation_to_json
from toolway.types import Call, Era, Json

# -- codes and `_meta` keys that clients and other nodes rely on -------------------------------------------------------
# The codes are outside the ranges reserved by the protocol. The comment on a code is its reference documentation.

UNAVAILABLE: Final = -31001  # the server cannot be reached or started
DEADLINE: Final = -31002  # the deadline passed before the request was sent
OVERLOADED: Final = -31003  # too many calls are active in the gateway
QUOTA: Final = -31004  # this principal has too many active requests, or exceeds a rate limit or a limit of a part
OUTCOME_UNKNOWN: Final = -31005  # the call may have run; sent with HTTP 200, so clients do not resend it
THROTTLED: Final = -31006  # the server itself asked the caller to wait
CANCELLED: Final = -31007  # the client cancelled the request
KEY_MISMATCH: Final = -31008  # the idempotency key was used before with other arguments
STORE_UNAVAILABLE: Final = -31009  # the store of idempotency keys, approvals or a part, or the audit log, is unusable
DENIED: Final = -31010  # the call was denied before it was attempted
UPSTREAM_PROTOCOL: Final = -31012  # the server sent an invalid response
SHUTTING_DOWN: Final = -31013  # the gateway is shutting down
APPROVAL_REQUIRED: Final = -31014  # an administrator must approve the call; `approvalId` names the request
UPSTREAM_AUTH: Final = -31015  # the server rejected the gateway's credentials
MOVED: Final = -31016  # between nodes of a cluster: another node owns the server
RESULT_DROPPED: Final = -31017  # an earlier call with this idempotency key ran; its result is no longer kept

#: Key in the data of a server's error, and in `_meta` of a result, under which the gateway adds its own facts.
ERROR_DATA_KEY: Final = "toolway"

#: In `_meta` of a request: the client's timeout in milliseconds.
TIMEOUT_META_KEY: Final = "toolway/timeoutMs"

MAX_SCHEMA_CHARS: Final = 64 * 1024  # of a schema in an answer about wrong arguments

_HTTP_STATUS: Final = {
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
_RETRYABLE_CODES: Final = frozenset(
    {UNAVAILABLE, OVERLOADED, QUOTA, THROTTLED, STORE_UNAVAILABLE, SHUTTING_DOWN, APPROVAL_REQUIRED}
)
#: Denials that end with HTTP 200: a 403 would make clients log in again.
_DENIED_WITH_200: Final = (TOOL_DENIED_CODE, TOOL_ON_HOLD_CODE, APPROVAL_DENIED_CODE)
_MIN_RETRY_AFTER_S: Final = 1.0  # seconds, for `Retry-After` if no better value is known


class RpcFailure(Exception):
    """Raised to answer an MCP request with a JSON-RPC error: code, message, and data."""

    def __init__(
        self, code: int, message: str, data: Any = None, *, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.status = status if status is not None else http_status_for(code)
        self.retry_after = (
            retry_after if retry_after is not None or self.status not in (429, 503) else _MIN_RETRY_AFTER_S
        )


def http_status_for(code: int) -> int:
    """Return the HTTP status for a JSON-RPC error code."""
    return _HTTP_STATUS.get(code) or ERROR_CODE_HTTP_STATUS.get(code, 200)


def failure_from_error(error: CallError, call_id: str, era: Era) -> RpcFailure:
    """Return the JSON-RPC error for a failed call, as a client of this era gets it."""
    if isinstance(error, ProtocolError) and error.rpc_code is not None:
        return _upstream_failure(error, call_id, era)
    code = _rpc_code_for(error)
    data = _error_data(error, call_id)
    data["retryable"] = code in _RETRYABLE_CODES and error.executed == "no"
    if isinstance(error, InvalidArguments):
        data["violations"] = [violation_to_json(each) for each in error.violations]
        data["omitted"] = error.omitted
    if isinstance(error, ApprovalRequired):
        data["approvalId"] = error.approval_id
    status = 200 if error.code in _DENIED_WITH_200 or isinstance(error, CallRefused) else None
    return RpcFailure(code, str(error), data, status=status, retry_after=error.retry_after)


def is_argument_failure(failure: RpcFailure) -> bool:
    """Return True if a call was not sent because its arguments do not match the tool's schema."""
    data = failure.data
    return isinstance(data, dict) and data.get("code") == InvalidArguments.code and ERROR_DATA_KEY not in data


def argument_result(failure: RpcFailure, name: str, schema: Json) -> Json:
    """Return the error result of a tool call that was not sent because of wrong arguments.

    Its text tells a model how to fix the call. It has no `structuredContent`, because clients check that against the
    tool's output schema.
    """
    text = f"{failure.message}\n{schema_text(name, schema)}"
    return {"content": [{"type": "text", "text": text}], "isError": True, "_meta": {ERROR_DATA_KEY: failure.data}}


def schema_text(name: str, schema: Json) -> str:
    """Return the line with a tool's schema, for a model whose call was not sent."""
    encoded = encode_json(schema).decode()
    return f"Not sent. Schema of {name}: {encoded if len(encoded) <= MAX_SCHEMA_CHARS else 'too large to show here'}"


def mask_failure(failure: RpcFailure, mask: Callable[[str], str]) -> RpcFailure:
    """Mask the secrets in a failed call's error, because its strings may come from a server, and return it."""
    failure.message = mask(failure.message)
    failure.data = map_texts(failure.data, mask)
    return failure


def to_json_rpc(error: ToolwayError) -> dict[str, Any]:
    """Convert a Toolway error to the JSON-RPC error with which a gateway answers.

    Args:
        error: The error of a call, or any other error of Toolway.

    Returns:
        An object with `code`, `message` and `data`. The data says whether the call ran, and has the error code.

    Example:
        except ToolwayError as error:
            response = {"jsonrpc": "2.0", "id": request["id"], "error": to_json_rpc(error)}
    """
    if not isinstance(error, CallError):
        error = CallError(error.message, detail=error.detail, hint=error.hint, code=error.code)
    failure = failure_from_error(error, "", "modern")
    return {"code": failure.code, "message": failure.message, "data": failure.data}


def shutdown_failure(call: Call) -> RpcFailure:
    """Return the error for a call that was cancelled because the gateway is shutting down."""
    data = _call_data(call, "E-SHUTTING-DOWN")
    if data["executed"] == "no":
        return RpcFailure(SHUTTING_DOWN, "gateway shut down before the call was sent", data)
    return RpcFailure(OUTCOME_UNKNOWN, "gateway shut down during the call: it may have run", data)


def too_many_pending_failure(call: Call) -> RpcFailure:
    """Return the error for a call that needs client input but exceeds the limit on pending calls."""
    message = "too many calls are waiting for client input; this call was cancelled while the server was running it"
    return RpcFailure(OUTCOME_UNKNOWN, message, _call_data(call, "E-CROWDED"))


def rate_limit_failure(rate: Rate, wait: float) -> RpcFailure:
    """Return the error for a call that exceeds its API key's rate limit."""
    data: Json = {
        "executed": "no",
        "certainty": Certainty.NOT_SENT.code,
        "retryable": True,
        "attempts": 0,
        "code": "E-RATE",
        "retryAfterMs": max(1, round(wait * 1000)),
    }
    message = f"rate limit of {rate} exceeded: retry in {wait:.1f} s"
    return RpcFailure(QUOTA, message, data, retry_after=wait)


def not_sent(code: str, wait: float, fix: str) -> Json:
    """Return the error data for a call that a limit rejected before it was sent."""
    return {
        "executed": "no",
        "certainty": Certainty.NOT_SENT.code,
        "retryable": True,
        "attempts": 0,
        "code": code,
        "fix": fix,
        "retryAfterMs": max(1, round(wait * 1000)),
    }


def _call_data(call: Call, code: str) -> Json:
    certainty = call.state.overall_certainty()
    return {
        "executed": certainty.executed,
        "certainty": certainty.code,
        "retryable": certainty.executed == "no",
        "attempts": call.state.attempts,
        "upstream": call.server,
        "code": code,
        "callId": call.id,
    }


def _upstream_failure(error: ProtocolError, call_id: str, era: Era) -> RpcFailure:
    """Return the server's own JSON-RPC error, with the gateway's information added to its data."""
    code = error.rpc_code
    assert code is not None
    if era == "modern" and code == RESOURCE_NOT_FOUND:
        code = INVALID_PARAMS
    data = error.data
    facts = _error_data(error, call_id)
    if data is None:
        data = {ERROR_DATA_KEY: facts}
    elif isinstance(data, dict):
        named = name_demanded_visits(error.server, data) if code == URL_ELICITATION_REQUIRED else data
        data = {**named, ERROR_DATA_KEY: facts}
    return RpcFailure(code, sanitize(error.detail or error.message, 2000), data)


def _error_data(error: CallError, call_id: str) -> Json:
    data: Json = {
        "executed": error.executed,
        "certainty": (error.certainty or Certainty.NOT_SENT).code,
        "retryable": False,
        "attempts": error.attempts,
        "upstream": error.server,
        "code": error.code,
    }
    if error.hint:
        data["fix"] = error.hint
    if error.retry_after is not None:
        data["retryAfterMs"] = round(error.retry_after * 1000)
    if call_id:
        data["callId"] = call_id
    return data


_RPC_CODE_BY_ERROR_CODE: Final = {
    "E-KEY-MISMATCH": KEY_MISMATCH,
    "E-KEY-STORE": STORE_UNAVAILABLE,
    "E-KEY-RESULT": RESULT_DROPPED,
    "E-AUDIT": STORE_UNAVAILABLE,
    "E-DENIED": DENIED,
    TOOL_DENIED_CODE: DENIED,
    TOOL_ON_HOLD_CODE: DENIED,
    APPROVAL_CODE: APPROVAL_REQUIRED,
    APPROVAL_DENIED_CODE: DENIED,
    "E-APPROVAL-STORE": STORE_UNAVAILABLE,
}
_RPC_CODE_BY_TYPE: Final[tuple[tuple[type[CallError], Callable[[CallError], int]], ...]] = (
    (CallRefused, lambda error: DENIED),
    (StoreUnavailable, lambda error: STORE_UNAVAILABLE),
    (NotFound, lambda error: INVALID_PARAMS),
    (InvalidArguments, lambda error: INVALID_PARAMS),
    (OutcomeUnknown, lambda error: OUTCOME_UNKNOWN),
    (CallTimeout, lambda error: DEADLINE if error.executed == "no" else OUTCOME_UNKNOWN),
    (Overloaded, lambda error: THROTTLED if error.certainty is Certainty.REJECTED else OVERLOADED),
    (ServerUnavailable, lambda error: UNAVAILABLE if error.executed == "no" else OUTCOME_UNKNOWN),
    (AccessDenied, lambda error: _RPC_CODE_BY_ERROR_CODE.get(error.code, UPSTREAM_AUTH)),
    (ProtocolError, lambda error: UPSTREAM_PROTOCOL),
)


def _rpc_code_for(error: CallError) -> int:
    if error.code in _RPC_CODE_BY_ERROR_CODE:
        return _RPC_CODE_BY_ERROR_CODE[error.code]
    return next((code(error) for kind, code in _RPC_CODE_BY_TYPE if isinstance(error, kind)), INTERNAL_ERROR)
