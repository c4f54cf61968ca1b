from __future__ import annotations

from toolway.events import Logged, ResourceUpdated, TaskChanged
from toolway.upstream.notices import fact_of
from toolway.upstream.session import OF_CALL


def test_what_a_server_says_becomes_a_fact() -> None:
    assert fact_of("s", "notifications/resources/updated", {"uri": "a:b"}) == ResourceUpdated("s", "a:b")
    assert fact_of("s", "notifications/tasks", {"taskId": "1"}) == TaskChanged("s", {"taskId": "1"})
    said = {"level": "info", "data": {"x": 1}, "logger": "l"}
    assert fact_of("s", "notifications/message", said) == Logged("s", "info", {"x": 1}, "l")
    heard = fact_of("s", "notifications/message", {**said, "logger": 5, OF_CALL: True})
    assert heard == Logged("s", "info", {"x": 1}, None, of_call=True)


def test_what_nobody_knows_is_no_fact() -> None:
    assert fact_of("s", "notifications/whatever", {}) is None
