"""What a server says of its own accord, as a fact for the hub."""

from __future__ import annotations

from toolway.events import Event, Logged, ResourceUpdated, TaskChanged
from toolway.model import Json
from toolway.upstream.session import OF_CALL


def fact_of(server: str, method: str, params: Json) -> Event | None:
    """The fact that a notification is, where it belongs to no call; None for one that says nothing to anybody."""
    match method:
        case "notifications/resources/updated":
            return ResourceUpdated(server, str(params.get("uri")))
        case "notifications/tasks":
            return TaskChanged(server, params)
        case "notifications/message":
            logger = params.get("logger")
            name = logger if isinstance(logger, str) else None
            return Logged(server, str(params.get("level")), params.get("data"), name, of_call=OF_CALL in params)
    return None
