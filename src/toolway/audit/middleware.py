"""Audit middleware: before a call with side effects is sent, its intent is on disk.

The middleware runs immediately before a call's first attempt. Idempotency keys, cache, and deduplication run earlier,
because they may answer a call without making it. Retry runs later, so one intent covers all attempts of a call.

A flight (hub/flight.py) has no coroutine that could wait. So `PlannedAudit` queues its intent, and a callback sends the
flight.
"""

from __future__ import annotations

from collections.abc import Awaitable

from toolway.audit.recorder import AuditRecorder, encode_outcome, needs_intent
from toolway.audit.writer import AuditUnavailable, CommitCallback
from toolway.errors import CallError, Certainty, ServerUnavailable
from toolway.types import Call, CallHandler, CallResult, Json

AUDIT_ERROR_CODE = "E-AUDIT"


class AuditMiddleware:
    """Records the intents and outcomes of calls in the audit log, as a middleware.

    Only calls that may change something or have an idempotency key get an intent.
    """

    def __init__(self, recorder: AuditRecorder) -> None:
        self._recorder = recorder

    def __call__(self, call: Call, next: CallHandler) -> Awaitable[CallResult]:
        if needs_intent(call):
            self.adopt(call)
            return self.resume(call, next, self._recorder.record_intent(call))
        try:
            self._recorder.check_read_allowed()
        except AuditUnavailable as exc:
            raise _unavailable_error(call, exc) from None
        return next(call)

    def plan(self, call: Call) -> PlannedAudit:
        """Return the writer of audit records for flights by the same caller to the same tool.

        Flights are calls without a coroutine.
        """
        return PlannedAudit(self._recorder, call)

    def adopt(self, call: Call) -> None:
        """Record a call's result in the audit log even if it arrives after the call has ended.

        The caller must then use `resume` or `record_cancelled`.
        """
        call.state.on_late_result = self._recorder.late_result_handler(call)

    async def resume(self, call: Call, next: CallHandler, intent: Awaitable[None] | None = None) -> CallResult:
        """Await a call's result by calling `next`, and record the call's outcome in the audit log.

        The call's intent is already on disk, or it is once `intent` is done, and `next` is not called before that.
        Raises `ServerUnavailable` if the intent could not be written.
        """
        try:
            if intent is not None:
                try:
                    await intent
                except AuditUnavailable as exc:
                    raise _unavailable_error(call, exc) from None
            reply = await next(call)
        except CallError as exc:
            self._recorder.record_error(call, exc)
            raise
        except BaseException:
            self._recorder.record_cancelled(call)
            raise
        self._recorder.record_result(call, reply)
        return reply

    def record_cancelled(self, call: Call) -> None:
        """Record the outcome of a call that was cancelled before `resume` was called."""
        self._recorder.record_cancelled(call)


class PlannedAudit:
    """Writes audit records for one caller's flights to one tool.

    A flight is a call without a coroutine (hub/flight.py). Most fields of the records are the same, so they are encoded
    only once.
    """

    __slots__ = ("_outcomes", "_recorder", "_server", "_shared", "needs_intent")

    def __init__(self, recorder: AuditRecorder, call: Call) -> None:
        self._recorder = recorder
        self._server = call.server
        self._shared = recorder.shared_fields(call)
        self._outcomes = {
            outcome: encode_outcome(self._shared, outcome, Certainty.EXECUTED, 1) for outcome in ("ok", "tool_error")
        }
        self.needs_intent = needs_intent(call)

    @property
    def is_writable(self) -> bool:
        """Return True if the audit log can be written now.

        If it cannot, calls go through `AuditMiddleware`, which rejects those that may change something.
        """
        return self._recorder.is_writable

    def start_intent(self, id: str, arguments: Json, on_done: CommitCallback) -> bool:
        """Queue a call's intent record. `on_done` is called once, when the record is on disk or cannot be written.

        Return False without calling `on_done` if the log cannot be written now, or if the arguments are not JSON.
        """
        try:
            self._recorder.start_intent(id, self._shared, self._server, arguments, on_done)
        except (AuditUnavailable, TypeError, ValueError, OverflowError, RecursionError):
            return False
        return True

    def record_result(self, id: str, outcome: str) -> None:
        """Record the outcome, "ok" or "tool_error", of a call that got its result after one attempt."""
        self._recorder.record_outcome(id, self._outcomes[outcome])


def _unavailable_error(call: Call, exc: AuditUnavailable) -> ServerUnavailable:
    error = ServerUnavailable(
        f"audit log cannot be written, so {call.server}.{call.name} was not called",
        server=call.server,
        tool=call.name,
        certainty=Certainty.NOT_SENT,
        detail=str(exc),
        hint="free some disk space, or check the log: toolway audit verify",
        code=AUDIT_ERROR_CODE,
    )
    error.retryable = False
    return error
