"""What an HTTP client gets for each outcome of a call: a status, and a body that says whether the tool ran.

A call whose outcome is unknown is never a 5xx, because proxies and libraries repeat those.
"""

from __future__ import annotations

from typing import Final

from toolway.gateway.caller_paths import PathReply
from toolway.gateway.mcp import errors
from toolway.gateway.mcp.errors import ERROR_DATA_KEY, RpcFailure
from toolway.protocol.constants import (
    INVALID_PARAMS,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    URL_ELICITATION_REQUIRED,
)
from toolway.protocol.jsonrpc import encode_json
from toolway.types import Json

MCP_RESULT_TYPE: Final = "application/vnd.mcp+json"  # a client that accepts only this gets the whole MCP result
#: An answer is for one caller: what it may see and do, and what its call returned.
PRIVATE: Final = ("cache-control", "private, no-store")
_JSON: Final = (("content-type", "application/json"), PRIVATE)
_WHOLE: Final = (("content-type", MCP_RESULT_TYPE), PRIVATE)
_NEEDS_INPUT: Final = frozenset({MISSING_REQUIRED_CLIENT_CAPABILITY, URL_ELICITATION_REQUIRED})
_STATUS_NOT_RUN: Final = {
    errors.QUOTA: 429,
    errors.DENIED: 403,
    errors.APPROVAL_REQUIRED: 403,
    errors.UNAVAILABLE: 503,
    errors.DEADLINE: 503,
    errors.OVERLOADED: 503,
    errors.THROTTLED: 503,
    errors.STORE_UNAVAILABLE: 503,
    errors.SHUTTING_DOWN: 503,
    errors.UPSTREAM_AUTH: 503,
}
_NAMES: Final = {  # fact about a failed call → field of the body
    "code": "code",
    "retryable": "retryable",
    "fix": "hint",
    "approvalId": "approvalId",
    "violations": "violations",
    "omitted": "omitted",
    "callId": "callId",
}
_MIN_RETRY_AFTER_S: Final = 1


def reply_result(result: Json, *, is_whole: bool, is_from_search: bool = False) -> PathReply:
    """Return the response for the result of a call. With `is_whole`, its body is the result as MCP defines it.

    `is_from_search` is True if the tool may be a meta-tool, whose result says whether the tool in it ran.
    """
    status = 200
    structured, text = result.get("structuredContent"), _text_of(result)
    body = structured if "structuredContent" in result else {"text": text}
    if result.get("isError") is True:
        status, executed = 422, "yes"
        if is_from_search and isinstance(structured, dict) and structured.get("executed") == "no":
            status, executed = 400, "no"
        body = {"message": text or "the tool reported an error", "executed": executed}
    return PathReply(status, encode_json(result), _WHOLE) if is_whole else PathReply(status, encode_json(body), _JSON)


def reply_failure(failure: RpcFailure) -> PathReply:
    """Return the response for a call without a result."""
    facts = _facts_of(failure)
    executed = facts.get("executed")
    status = _status_of(failure, executed)
    if executed not in ("no", "unknown", "yes"):
        executed = "unknown" if status == 409 else "no"
    body = {"message": failure.message, "executed": executed}
    body |= {name: facts[fact] for fact, name in _NAMES.items() if fact in facts}
    headers: tuple[tuple[str, str], ...] = _JSON
    wait = failure.retry_after
    if wait is not None or status in (429, 503):
        headers = (*_JSON, ("retry-after", str(max(_MIN_RETRY_AFTER_S, round(wait or 0)))))
    return PathReply(status, encode_json(body), headers)


def reply_rejected(status: int, message: str, *headers: tuple[str, str]) -> PathReply:
    """Return the response to a request that is not a call: nothing was sent for it."""
    return PathReply(status, encode_json({"message": message, "executed": "no"}), (*_JSON, *headers))


def reply_needs_input(what: str) -> PathReply:
    """Return the response for a call that a server began, and cannot finish without input."""
    message = f"the tool {what}, which this API cannot give; call it through /mcp"
    return PathReply(501, encode_json({"message": message, "executed": "yes", "retryable": False}), _JSON)


def reply_unknown(message: str) -> PathReply:
    return PathReply(409, encode_json({"message": message, "executed": "unknown", "retryable": False}), _JSON)


def _status_of(failure: RpcFailure, executed: object) -> int:
    if executed == "unknown":
        return 409
    if failure.code in _NEEDS_INPUT:
        return 501
    if executed == "yes":
        return 422
    if failure.code in _STATUS_NOT_RUN:
        return _STATUS_NOT_RUN[failure.code]
    if failure.code == INVALID_PARAMS and failure.message.startswith("Unknown tool"):
        return 404
    is_rejected = executed == "no" or errors.http_status_for(failure.code) in (400, 404)
    return 400 if is_rejected else 409


def _facts_of(failure: RpcFailure) -> Json:
    """Return what the gateway knows about a failed call. A server's own error has it under a key."""
    data = failure.data
    if not isinstance(data, dict):
        return {}
    own = data.get(ERROR_DATA_KEY)
    return own if isinstance(own, dict) else data


def _text_of(result: Json) -> str:
    content = result.get("content")
    blocks = content if isinstance(content, list) else ()
    return "\n".join(str(each["text"]) for each in blocks if isinstance(each, dict) and "text" in each)
