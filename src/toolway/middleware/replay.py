"""Replay middleware: answers a call with the outcome of an earlier call that had the same idempotency key.

`idempotency` finds the earlier call and attaches it (`Call.earlier`), but does not answer. The gates run in between, so
a caller gets a stored result only if it may still make the call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from toolway.errors import CallError, Certainty
from toolway.types import Call, CallHandler, CallResult, Middleware


class EarlierCall(NamedTuple):
    """An earlier call with the same idempotency key, whose outcome answers this call."""

    certainty: Certainty  # whether the earlier call ran
    approved_by: str  # who approved it: "client" or "admin"; "" if it needed no approval
    answer: Callable[[], CallResult]  # returns its result, or raises its error

    def is_approved_by(self, by: str) -> bool:
        """Return True if the earlier call's approval is enough where `by` ("client" or "admin") must decide.

        An approval allows a call to run once. One approval is enough, because a replay does not run the call again.
        """
        return self.approved_by in (by, "admin")


def replay() -> Middleware:
    """Return middleware that answers a call with the outcome of its earlier call, if it has one."""

    def middleware(call: Call, next: CallHandler) -> Awaitable[CallResult]:
        return next(call) if call.earlier is None else answer(call.earlier)

    async def answer(earlier: EarlierCall) -> CallResult:
        return earlier.answer()

    return middleware


def refuse_replay(error: CallError, earlier: EarlierCall | None) -> None:
    """Change a gate's error about a call that already ran to say that only its result is withheld."""
    if earlier is None or error.executed != "no":
        return
    error.certainty = earlier.certainty
    ran = "ran" if earlier.certainty is Certainty.EXECUTED else "may have run"
    error.detail = "; ".join(filter(None, (error.detail, f"an earlier call with this key {ran}: its result is held")))
