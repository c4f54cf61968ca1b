"""The audit stage: what changes something is sent only when it stands in the log that it will be.

It stands where a call is about to be made for the first time: after keys, cache and dedup, which may answer it without
making it, and before retry, because one intent stands for all tries of a call.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

from toolway.errors import CallError, Certainty, Unavailable
from toolway.model import Call, Next, Reply, Stage
from toolway.telemetry.audit.book import Book, needs_intent
from toolway.telemetry.audit.ledger import LogUnavailable

CODE = "E-AUDIT"


def audit(book: Book) -> Stage:
    def stage(call: Call, next: Next) -> Awaitable[Reply]:
        if needs_intent(call):
            return intended(call, next)
        try:
            book.check_read()
        except LogUnavailable as exc:
            raise _refused(call, exc) from None
        return next(call)

    async def intended(call: Call, next: Next) -> Reply:
        call.attempt.late = partial(book.late, call)
        try:
            try:
                await book.intend(call)
            except LogUnavailable as exc:
                raise _refused(call, exc) from None
            reply = await next(call)
        except CallError as exc:
            book.failed(call, exc)
            raise
        except BaseException:
            book.cut_off(call)
            raise
        book.answered(call, reply)
        return reply

    return stage


def _refused(call: Call, exc: LogUnavailable) -> Unavailable:
    error = Unavailable(
        f"the audit log cannot be written, so {call.server}.{call.name} was not called",
        server=call.server,
        tool=call.name,
        certainty=Certainty.C0,
        evidence=str(exc),
        fix="make room on the disk of the log, or see what is wrong with it: toolway audit verify",
        code=CODE,
    )
    error.retryable = False
    return error
