"""A record that is away for an hour does not fill the log."""

from __future__ import annotations

import pytest

from toolway.cluster.queries import MAX_LOGGED_ERRORS, LogThrottle
from toolway.errors import ConfigError


def test_repeated_error_is_logged_once_and_recovery_once(caplog: pytest.LogCaptureFixture) -> None:
    trouble = LogThrottle("nothing works")
    for _ in range(100):
        trouble.log_failure(TimeoutError())
        trouble.log_failure(OSError("postgresql://me:secret@host"))
    trouble.log_recovery()
    trouble.log_recovery()
    said = ["nothing works: TimeoutError", "nothing works: OSError", "nothing works: recovered"]
    assert caplog.messages == said
    trouble.log_failure(TimeoutError())
    assert caplog.messages == [*said, said[0]]


def test_varying_errors_are_logged_up_to_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    trouble = LogThrottle("nothing works")
    for number in range(100):
        trouble.log_failure(ConfigError(f"number {number}"))
    assert len(caplog.messages) == MAX_LOGGED_ERRORS and "number 0" in caplog.messages[0]
    trouble.log_recovery()
    assert caplog.messages[-1] == "nothing works: recovered"
