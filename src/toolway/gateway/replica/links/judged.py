"""Errors of another node of ours → the errors that the call ended with there, so that callers hear the same."""

from __future__ import annotations

from typing import Any, Final

from toolway.errors import (
    CallError,
    Certainty,
    Denied,
    OutcomeUnknown,
    Overloaded,
    ProtocolError,
    TimedOut,
    Unavailable,
)
from toolway.gateway import codes
from toolway.upstream.link import MOVED, NOT_HERE, RpcError

#: The owner has not begun with it, and somebody else will.
NOT_THERE: Final = frozenset({codes.MOVED, codes.SHUTTING_DOWN})
_KINDS: Final[dict[int, type[CallError]]] = {
    codes.UNAVAILABLE: Unavailable,
    codes.DEADLINE: TimedOut,
    codes.OVERLOADED: Overloaded,
    codes.QUOTA: Overloaded,
    codes.OUTCOME_UNKNOWN: OutcomeUnknown,
    codes.THROTTLED: Overloaded,
    codes.CANCELLED: OutcomeUnknown,
    codes.KEY_MISMATCH: ProtocolError,
    codes.STORE_UNAVAILABLE: Unavailable,
    codes.DENIED: Denied,
    codes.UPSTREAM_PROTOCOL: ProtocolError,
    codes.UPSTREAM_AUTH: Denied,
}


def was_not_here(exc: RpcError) -> bool:
    """Whether the node lost the server before it could begin with the call."""
    facts = exc.data if isinstance(exc.data, dict) else {}
    return facts.get("code") in (MOVED, NOT_HERE) and facts.get("executed") == "no"


def judged(exc: RpcError, server: str, name: str) -> CallError | None:
    """None for an error of the server itself, which passes as it is."""
    kind = _KINDS.get(exc.code)
    facts = exc.data if isinstance(exc.data, dict) else {}
    if kind is None or "executed" not in facts:
        return None
    code, fix = str(facts.get("code") or ""), str(facts.get("fix") or "")
    error = kind(
        exc.message.removesuffix(f" [{code}]").removesuffix(f" → {fix}"),  # they are put there again
        server=server,
        tool=name,
        certainty=_certainty(facts.get("certainty")),
        attempts=1,
        retry_after=_seconds(facts.get("retryAfterMs")),
        fix=fix,
        code=code,
    )
    error.retryable = facts.get("retryable") is True or kind is OutcomeUnknown
    return error


def _certainty(name: Any) -> Certainty:
    """What is not said is not known."""
    return Certainty[name] if name in Certainty.__members__ else Certainty.C2


def _seconds(milliseconds: Any) -> float | None:
    return milliseconds / 1000 if isinstance(milliseconds, int | float) and milliseconds >= 0 else None
