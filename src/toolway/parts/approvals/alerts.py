"""The alert about a call that needs an administrator's approval. It lasts from the request to the answer."""

from __future__ import annotations

from typing import Final

from toolway.events import ApprovalChanged, PartCondition

WAITS: Final = "needs-approval"


def condition_of(event: ApprovalChanged) -> PartCondition | None:
    """Return what an event changes for administrators, or None if it does not concern them."""
    if event.by != "admin":
        return None
    if event.action != "asked":
        return PartCondition(event.server, WAITS, is_open=False, call=event.id)
    return PartCondition(
        event.server,
        WAITS,
        message=f"a call of {event.server}.{event.tool} needs approval",
        detail=f"request {event.id}",
        hint=f"see its arguments: toolway approvals show {event.id}; "
        f"then: toolway approvals approve {event.id}, or deny",
        tool=event.tool,
        call=event.id,
        caller=event.caller,
    )
