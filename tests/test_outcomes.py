"""One table maps every way in which a call can end to its outcome."""

from __future__ import annotations

import pytest

from toolway.outcomes import (
    NOT_RUN,
    OK,
    OUTCOMES,
    TOOL_ERROR,
    UNKNOWN,
    WAITING,
    audit_value,
    code_of_result,
    deserves_warning,
    error_code,
    outcome_of,
)

pytestmark = pytest.mark.user_trial("9")


@pytest.mark.parametrize(
    ("code", "executed", "outcome", "audit"),
    [
        ("ok", "yes", OK, "ok"),
        ("tool_error", "yes", TOOL_ERROR, "tool_error"),
        ("E-PROTOCOL", "yes", TOOL_ERROR, "protocol_error"),
        ("E-TIMEOUT", "no", NOT_RUN, "not_executed"),
        ("cancelled", "no", NOT_RUN, "not_executed"),
        ("E-TIMEOUT", "unknown", UNKNOWN, "unknown"),
        ("cancelled", "unknown", UNKNOWN, "unknown"),
        ("E-APPROVAL", "no", WAITING, "input_required"),
        ("E-APPROVAL-DENIED", "no", NOT_RUN, "not_executed"),
        ("task", "yes", WAITING, "task"),
        ("input_required", "yes", WAITING, "input_required"),
    ],
)
def test_each_call_end_has_one_outcome(code, executed, outcome, audit):
    assert outcome_of(code, executed) is outcome
    assert audit_value(code, executed, from_server=False, is_rejected=False) == audit


def test_only_failures_count_as_failed():
    assert {each.word for each in OUTCOMES if each.is_failure} == {"tool error", "not run", "unknown"}
    assert {each.word: each.label for each in OUTCOMES} == {each.word: each.word.replace(" ", "_") for each in OUTCOMES}
    assert len({each.log_line for each in OUTCOMES}) == len(OUTCOMES)


def test_cancelled_call_is_not_a_warning():
    assert deserves_warning("E-TIMEOUT", "no") and deserves_warning("E-TIMEOUT", "unknown")
    assert not any(deserves_warning(code, "no") for code in ("cancelled", "E-NOT-FOUND", "E-APPROVAL", "ok"))


def test_result_has_no_error_code():
    assert [error_code(each) for each in ("ok", "tool_error", "task", "cancelled", "E-TIMEOUT")] == [
        "",
        "",
        "",
        "cancelled",
        "E-TIMEOUT",
    ]
    assert [code_of_result(each, is_error=False) for each in ("complete", "task", "input_required", "new", None)] == [
        "ok",
        "task",
        "input_required",
        "ok",
        "ok",
    ]
    assert code_of_result("complete", is_error=True) == "tool_error"


def test_audit_value_shows_whether_the_server_rejected():
    assert audit_value("E-ARGUMENTS", "no", from_server=False, is_rejected=True) == "rejected"
    assert audit_value("E-PROTOCOL", "no", from_server=True, is_rejected=False) == "protocol_error"
