"""Errors for calls that no administrator can be asked about, or whose approval store fails. Nothing was sent."""

from __future__ import annotations

from toolway.errors import AccessDenied, CallError, Certainty, Overloaded, ServerUnavailable
from toolway.parts.approvals.records import MAX_PENDING, MAX_REVIEW_BYTES, StoreError
from toolway.types import Call


def too_long(call: Call, size: int) -> AccessDenied:
    """Return the error for a call whose arguments are too long to review."""
    return AccessDenied(
        f"the arguments of {call.server}.{call.name} are too long to review",
        server=call.server,
        tool=call.name,
        certainty=Certainty.NOT_SENT,
        detail=f"an administrator would have to read {size:,} bytes; the limit is {MAX_REVIEW_BYTES:,}",
        hint=f'send less in one call, or exempt the tool: "{call.server}.{call.name}": "none" in toolway.approve',
        code="E-APPROVAL-SIZE",
    )


def queue_full(call: Call) -> CallError:
    """Return the error for a call that needs approval while too many others are waiting."""
    return Overloaded(
        f"{call.server}.{call.name} needs approval, and too many calls are already waiting",
        server=call.server,
        tool=call.name,
        certainty=Certainty.NOT_SENT,
        retry_after=60.0,
        detail=f"at most {MAX_PENDING} calls wait, half of them from one caller",
        hint="approve or deny waiting calls: toolway approvals ls",
        code="E-APPROVAL-QUEUE",
    )


def store_unavailable(exc: StoreError) -> ServerUnavailable:
    """Return the error for administrators when approval requests cannot be read or written."""
    return ServerUnavailable(
        "approvals are unavailable",
        detail=str(exc)[:300],
        hint="see the gateway log for the cause, then try again",
        code="E-APPROVAL-STORE",
    )
