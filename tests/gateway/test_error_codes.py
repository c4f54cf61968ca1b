"""JSON-RPC errors of Toolway's exceptions: one table for the gateway and for programs that use the library."""

from __future__ import annotations

import pytest

from toolway import (
    ArgumentViolation,
    CallTimeout,
    ConfigError,
    NotFound,
    OutcomeUnknown,
    ProtocolError,
    ServerUnavailable,
    ToolwayError,
    to_json_rpc,
)
from toolway.errors import Certainty, invalid_arguments


@pytest.mark.promise("D23", "D22")
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotFound("unknown tool 'x'", hint="did you mean y?"), -32602),
        (ServerUnavailable("it is down", certainty=Certainty.NOT_SENT), -31001),
        (CallTimeout("timed out", phase="start", certainty=Certainty.NOT_SENT), -31002),
        (CallTimeout("timed out", phase="server", certainty=Certainty.UNKNOWN), -31005),
        (OutcomeUnknown("lost", certainty=Certainty.UNKNOWN), -31005),
        (ConfigError("no such file"), -32603),
    ],
)
def test_exception_becomes_a_json_rpc_error_with_its_data(error: ToolwayError, code: int) -> None:
    converted = to_json_rpc(error)
    assert (converted["code"], converted["data"]["code"]) == (code, error.code)
    assert error.message in converted["message"]
    assert converted["data"]["executed"] == getattr(error, "executed", "no")
    assert converted["data"].get("fix", "") == error.hint


@pytest.mark.promise("D23", "C13")
def test_invalid_arguments_become_invalid_params_with_violations() -> None:
    error = invalid_arguments("s", "t", (ArgumentViolation("$.a", "is missing", "a string", "aa"),), 2)
    converted = to_json_rpc(error)
    assert (converted["code"], converted["data"]["omitted"]) == (-32602, 2)
    found = {"path": "$.a", "problem": "is missing", "expected": "a string", "nearest": "aa"}
    assert converted["data"]["violations"] == [found]


@pytest.mark.promise("D23")
def test_server_error_keeps_its_code_and_data() -> None:
    error = ProtocolError("refused", rpc_code=-32050, data={"mine": 1}, detail="not today")
    converted = to_json_rpc(error)
    assert (converted["code"], converted["message"], converted["data"]["mine"]) == (-32050, "not today", 1)
