"""A record that is away for an hour does not fill the log."""

from __future__ import annotations

import pytest

from toolway.cluster.queries import MAX_LOGGED_ERRORS, LogThrottle
from toolway.errors import ConfigError


def test_each_thing_is_said_once_and_once_that_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
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


def test_what_is_never_the_same_has_an_end(caplog: pytest.LogCaptureFixture) -> None:
    trouble = LogThrottle("nothing works")
    for number in range(100):
        trouble.log_failure(ConfigError(f"number {number}"))
    assert len(caplog.messages) == MAX_LOGGED_ERRORS and "number 0" in caplog.messages[0]
    trouble.log_recovery()
    assert caplog.messages[-1] == "nothing works: recovered"
