"""Outcomes of calls: one word per call, the same wherever calls are shown, counted, or logged.

    word         failure  metric label  log line              audit values
    ok           no       ok            call                  ok
    tool error   yes      tool_error    tool error            tool_error, protocol_error
    not run      yes      not_run       call did not run      not_executed, rejected
    unknown      yes      unknown       call may have run     unknown
    waiting      no       waiting       call is waiting       input_required, task

`calls`, the dashboard, metrics, traces, the log, and the audit log all use this module, so they agree.
A call that needs an approval or input, or that became a task, has not failed: it is `waiting`.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from toolway.errors import Executed

OutcomeWord = Literal["ok", "tool error", "not run", "unknown", "waiting"]

#: What a call has in place of an error code if it has a result, or if its caller cancelled it.
OK_CODE: Final = "ok"
TOOL_ERROR_CODE: Final = "tool_error"
CANCELLED_CODE: Final = "cancelled"
INPUT_REQUIRED_CODE: Final = "input_required"
TASK_CODE: Final = "task"
APPROVAL_CODE: Final = "E-APPROVAL"  # the call needs approval
_WAITING_CODES: Final = frozenset({APPROVAL_CODE, INPUT_REQUIRED_CODE, TASK_CODE})
_RESULT_CODES: Final = frozenset({OK_CODE, TOOL_ERROR_CODE, INPUT_REQUIRED_CODE, TASK_CODE})
_CALLER_CODES: Final = frozenset({CANCELLED_CODE, "E-NOT-FOUND"})  # the caller's doing: not worth a warning


class CallOutcome(NamedTuple):
    """One row of the table above."""

    word: OutcomeWord
    label: str  # in metrics
    is_failure: bool
    log_line: str
    is_warning: bool  # the log line is a warning


OK: Final = CallOutcome("ok", "ok", False, "call", False)
TOOL_ERROR: Final = CallOutcome("tool error", "tool_error", True, "tool error", False)
NOT_RUN: Final = CallOutcome("not run", "not_run", True, "call did not run", True)
UNKNOWN: Final = CallOutcome("unknown", "unknown", True, "call may have run", True)
WAITING: Final = CallOutcome("waiting", "waiting", False, "call is waiting", False)
OUTCOMES: Final = (OK, TOOL_ERROR, NOT_RUN, UNKNOWN, WAITING)
_BY_EXECUTED: Final[dict[Executed, CallOutcome]] = {"no": NOT_RUN, "unknown": UNKNOWN, "yes": TOOL_ERROR}


def outcome_of(code: str, executed: Executed) -> CallOutcome:
    """Return the outcome of a call that ended with `code`: one of the codes above, or an error's code.

    `executed` says whether the call ran. A call that ran and ended with an error of its server is a tool error.
    """
    if code == OK_CODE:
        return OK
    if code in _WAITING_CODES:
        return WAITING
    return TOOL_ERROR if code == TOOL_ERROR_CODE else _BY_EXECUTED[executed]


def deserves_warning(code: str, executed: Executed) -> bool:
    """Return True if the call deserves a warning in the log, unless the caller caused this end."""
    return outcome_of(code, executed).is_warning and code not in _CALLER_CODES


def error_code(code: str) -> str:
    """Return the error code a call ended with, `cancelled`, or "" if it has a result."""
    return "" if code in _RESULT_CODES else code


def code_of_result(result_type: object, *, is_error: bool) -> str:
    """Return the code for a result of this `resultType`. Unknown types count as complete."""
    if is_error:
        return TOOL_ERROR_CODE
    return result_type if result_type in (INPUT_REQUIRED_CODE, TASK_CODE) else OK_CODE


def audit_value(code: str, executed: Executed, *, from_server: bool, is_rejected: bool) -> str:
    """Return the audit log's exact value for a call.

    `from_server`: the server answered with a JSON-RPC error. `is_rejected`: Toolway turned the call down, for its name,
    its arguments, or missing rights.
    """
    if code in _RESULT_CODES:
        return code
    if code == APPROVAL_CODE:
        return INPUT_REQUIRED_CODE
    if executed == "unknown":
        return "unknown"
    if executed == "yes" or from_server:
        return "protocol_error"
    return "rejected" if is_rejected else "not_executed"
