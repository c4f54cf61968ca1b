"""A record that is away for an hour does not fill the log."""

from __future__ import annotations

import pytest

from toolway.cluster.trouble import MOST, Trouble
from toolway.errors import ConfigError


def test_each_thing_is_said_once_and_once_that_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    trouble = Trouble("nothing works")
    for _ in range(100):
        trouble.say(TimeoutError())
        trouble.say(OSError("postgresql://me:secret@host"))
    trouble.over()
    trouble.over()
    said = ["nothing works: TimeoutError", "nothing works: OSError", "nothing works: that is over"]
    assert caplog.messages == said
    trouble.say(TimeoutError())
    assert caplog.messages == [*said, said[0]]


def test_what_is_never_the_same_has_an_end(caplog: pytest.LogCaptureFixture) -> None:
    trouble = Trouble("nothing works")
    for number in range(100):
        trouble.say(ConfigError(f"number {number}"))
    assert len(caplog.messages) == MOST and "number 0" in caplog.messages[0]
    trouble.over()
    assert caplog.messages[-1] == "nothing works: that is over"
