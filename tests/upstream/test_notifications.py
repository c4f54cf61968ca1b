from __future__ import annotations

from toolway.events import ResourceUpdated, ServerLog, TaskChanged
from toolway.upstream.session import DELIVERED_LOG_MARKER
from toolway.upstream.supervisor import event_from_notification


def test_notifications_become_events() -> None:
    assert event_from_notification("s", "notifications/resources/updated", {"uri": "a:b"}) == ResourceUpdated(
        "s", "a:b"
    )
    assert event_from_notification("s", "notifications/tasks", {"taskId": "1"}) == TaskChanged("s", {"taskId": "1"})
    said = {"level": "info", "data": {"x": 1}, "logger": "l"}
    assert event_from_notification("s", "notifications/message", said) == ServerLog("s", "info", {"x": 1}, "l")
    heard = event_from_notification("s", "notifications/message", {**said, "logger": 5, DELIVERED_LOG_MARKER: True})
    assert heard == ServerLog("s", "info", {"x": 1}, None, delivered_to_caller=True)


def test_unknown_notification_is_ignored() -> None:
    assert event_from_notification("s", "notifications/whatever", {}) is None
