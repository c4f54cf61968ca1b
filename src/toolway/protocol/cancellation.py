"""Cancellation of a request: `notifications/cancelled`, and the path of a cancelled call.

A call takes this path when it is cancelled:

1. The client leaves or sends the notification. A closed connection ends the exchange (http/server_connection.py).
   The notification is matched to its request (gateway/mcp/legacy_sessions.py, gateway/mcp/stdio.py); if another node
   has the request, through the change feed (cluster/sessions.py).
2. On the fast path, the flight is told (`Flight.left`, hub/flight.py). In the pipeline, the call's task is cancelled,
   and hub/instrumentation.py reports it (`on_cancelled`).
3. The transport gives up the request. If it was sent, it sends the notification to the server: `_notify_cancelled`
   over HTTP, `MessageStream.abandon` over stdio and WebSocket. A modern HTTP server gets none: there, the closed
   connection is the cancellation.

A server cancels its own requests to the client in the same way (upstream/transports/http_streams.py).
"""

from __future__ import annotations

from typing import Any, Final

from toolway.protocol.jsonrpc import Message, encode_notification
from toolway.types import Json

CANCELLED: Final = "notifications/cancelled"


def cancellation_params(request_id: str | int) -> Json:
    """Return the params of the notification that cancels a request."""
    return {"requestId": request_id}


def encode_cancellation(request_id: str | int) -> bytes:
    """Encode the notification that cancels a request."""
    return encode_notification(CANCELLED, cancellation_params(request_id))


def cancelled_request_id(message: Message) -> str | int | None:
    """Return the request id that a `notifications/cancelled` cancels, or None if it is invalid."""
    if message.kind != "notification" or message.method != CANCELLED:
        return None
    request_id: Any = message.body.get("requestId")
    return request_id if isinstance(request_id, str | int) else None
