"""How failures of a link become errors of calls."""

from __future__ import annotations

import pytest

from toolway.errors import (
    AccessDenied,
    CallError,
    Certainty,
    OutcomeUnknown,
    Overloaded,
    ProtocolError,
    ServerUnavailable,
)
from toolway.upstream.error_mapping import call_error
from toolway.upstream.transport import JSONRPCError, TransportError

C0, C1, C2, C3 = Certainty
REFUSALS = [-32700, -32600, -32601, -32602, -32020, -32021, -32022]


def of_fault(certainty: Certainty, unprocessed: tuple[int, ...] = (), **facts: object) -> CallError:
    return call_error(TransportError("it broke", certainty, **facts), "s", "t", unprocessed)  # type: ignore[arg-type]


def of_answer(code: int, data: object = None, unprocessed: tuple[int, ...] = ()) -> CallError:
    return call_error(JSONRPCError(code, "it said", data), "s", "t", unprocessed)


@pytest.mark.parametrize(
    ("certainty", "facts", "kind"),
    [
        (C0, {}, ServerUnavailable),
        (C0, {"code": "E-STDIO-EXIT"}, ServerUnavailable),
        (C2, {}, OutcomeUnknown),
        (C2, {"code": "E-HTTP-CUT"}, OutcomeUnknown),
        (C2, {"code": "E-HTTP-STATUS", "status": 500}, OutcomeUnknown),
        (C2, {"code": "E-HTTP-STATUS", "status": 503}, OutcomeUnknown),
        (C1, {"status": 401}, AccessDenied),
        (C1, {"status": 403}, AccessDenied),
        (C1, {"status": 429}, Overloaded),
        (C1, {"status": 503, "retry_after": 2.0}, Overloaded),
        (C1, {"status": 405}, ProtocolError),
        (C1, {"status": 404, "code": "E-HTTP-SESSION"}, ProtocolError),
        (C1, {"code": "E-HTTP-REDIRECT", "status": 302}, ProtocolError),
        (C2, {"code": "E-ANSWER"}, ProtocolError),
        (C2, {"code": "E-FRAME"}, ProtocolError),
        (C2, {"code": "E-HTTP-ID"}, ProtocolError),
        (C2, {"code": "E-HTTP-CONTENT"}, ProtocolError),
        (C2, {"code": "E-HTTP-PROTOCOL"}, ProtocolError),
        (C2, {"code": "E-HTTP-LIMIT"}, ProtocolError),
        (C2, {"code": "E-ROUNDS"}, ProtocolError),
    ],
)
def test_every_transport_error_has_a_call_error(certainty, facts, kind) -> None:
    error = of_fault(certainty, **facts)
    assert type(error) is kind
    assert (error.certainty, error.executed) == (certainty, certainty.executed)


def test_call_error_keeps_transport_details() -> None:
    error = of_fault(C1, status=429, retry_after=7.0, code="E-HTTP-STATUS", hint="call less often")
    assert (error.server, error.tool, error.retry_after, error.attempts) == ("s", "t", 7.0, 1)
    assert (error.detail, error.hint, error.code) == ("it broke", "call less often", "E-HTTP-STATUS")


@pytest.mark.parametrize("status", [401, 403, 404, 405, 406, 413, 415, 421])
def test_permanent_rejection_is_not_retryable(status) -> None:
    assert not of_fault(C1, status=status).retryable


@pytest.mark.parametrize("status", [429, 503])
def test_temporary_rejection_is_retryable(status) -> None:
    assert of_fault(C1, status=status).retryable


@pytest.mark.parametrize("certainty", [C0, C2])
def test_unsent_and_unknown_errors_are_retryable(certainty) -> None:
    assert of_fault(certainty).retryable


# -- errors of the server ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", REFUSALS)
def test_protocol_rejection_did_not_run_and_is_not_retryable(code) -> None:
    error = of_answer(code)
    assert type(error) is ProtocolError
    assert (error.rpc_code, error.certainty, error.executed, error.retryable) == (code, C1, "no", False)


@pytest.mark.parametrize("code", [-32603, -32000, -32001, -32099, -32768, -32500])
def test_other_protocol_errors_have_unknown_outcome(code) -> None:
    error = of_answer(code)
    assert (error.certainty, error.executed, error.retryable) == (C2, "unknown", True)


@pytest.mark.parametrize("code", [0, 1, -1, -31999, -32769, 404, 10**18])
def test_application_error_ran(code) -> None:
    assert (of_answer(code).certainty, of_answer(code).executed) == (C3, "yes")


def test_code_message_and_data_pass_through_unchanged() -> None:
    error = of_answer(-5, {"why": ["a"]})
    assert isinstance(error, ProtocolError)
    assert (error.rpc_code, error.detail, error.data) == (-5, "it said", {"why": ["a"]})


def test_server_can_mark_error_as_not_retryable() -> None:
    assert not of_answer(-32603, {"retryable": False}).retryable
    for other in (True, None, "no", 0):
        assert of_answer(-32603, {"retryable": other}).retryable


@pytest.mark.parametrize(
    ("wait", "seconds"), [(1500, 1.5), (0, 0.0), (0.5, 0.0005), (-1, None), ("5", None), (None, None), ([1], None)]
)
def test_server_can_set_retry_delay(wait, seconds) -> None:
    assert of_answer(-32603, {"retryAfterMs": wait}).retry_after == seconds


@pytest.mark.parametrize("data", [None, "x", 7, [], ["retryable", False]])
def test_error_data_of_any_type_is_accepted(data) -> None:
    error = of_answer(-32603, data)
    assert (error.retryable, error.retry_after) == (True, None)


# -- the operator's word -----------------------------------------------------------------------------------------------


def test_configured_status_or_code_means_did_not_run() -> None:
    by_status = of_fault(C2, (503,), code="E-HTTP-STATUS", status=503)
    by_code = of_answer(-32603, unprocessed=(-32603,))
    for error in (by_status, by_code):
        assert (error.certainty, error.executed, error.retryable) == (C1, "no", True)


def test_configured_unprocessed_status_is_not_outcome_unknown() -> None:
    error = of_fault(C2, (503,), code="E-HTTP-STATUS", status=503)
    assert not isinstance(error, OutcomeUnknown)
    assert "may have run" not in str(error)


@pytest.mark.parametrize("code", ["E-HTTP-CUT", "E-STDIO-EXIT", "E-ANSWER"])
def test_lost_call_stays_unknown_under_any_settings(code) -> None:
    assert of_fault(C2, (0, 500, 503, -32603), code=code).certainty is C2


def test_application_error_stays_ran_under_any_settings() -> None:
    assert of_answer(5, unprocessed=(5,)).certainty is C3


def test_other_statuses_and_codes_are_not_changed() -> None:
    assert of_fault(C2, (503,), status=500).certainty is C2
    assert of_answer(-32603, unprocessed=(-32000,)).certainty is C2


def test_unanswered_server_request_is_not_outcome_unknown() -> None:
    error = of_fault(C2, code="E-NO-ANSWER")
    assert error.certainty is C2
    assert not isinstance(error, OutcomeUnknown | ServerUnavailable)


@pytest.mark.parametrize(
    ("code", "data", "certainty"),
    [
        (-31014, {"executed": "no"}, C1),  # another gateway refused the call
        (-31012, {"executed": "unknown"}, C2),
        (-31012, {"executed": "yes"}, C3),
        (-31012, {"executed": False}, C3),
        (-31012, None, C3),
        (-32603, {"executed": "no"}, C2),  # the code has its own meaning
        (-32602, {"executed": "yes"}, C1),
    ],
)
def test_certainty_from_another_gateway_is_kept(code: int, data: object, certainty: Certainty) -> None:
    assert of_answer(code, data).certainty is certainty


def test_login_hint_names_the_server() -> None:
    error = of_fault(C1, status=401, code="E-HTTP-STATUS", hint="log in: toolway login NAME; in Python: …")
    assert error.hint == "log in: toolway login s; in Python: …"
