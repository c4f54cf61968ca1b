"""One legacy session's state in this process: its stream, and requests in both directions."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, Final

import msgspec

from toolway.events import ServerLog
from toolway.gateway.mcp.context import name_server, supports_server_request
from toolway.gateway.mcp.replay_buffer import ReplayBudget, ReplayBuffers
from toolway.gateway.mcp.responses import EventStream
from toolway.gateway.mcp.subscriptions import Subscriber
from toolway.gateway.mcp.view import EndpointView
from toolway.gateway.principals import Principal
from toolway.protocol import jsonrpc
from toolway.protocol.cancellation import encode_cancellation
from toolway.protocol.constants import INTERNAL_ERROR
from toolway.protocol.jsonrpc import Message
from toolway.protocol.versions import log_verbosity
from toolway.types import CallbackError, Json

MAX_CLIENT_REQUESTS: Final = 64  # concurrent requests to one client
CLIENT_REQUEST_TIMEOUT_S: Final = 900.0  # seconds a client may take to respond
CLIENT_REQUEST_ID_PREFIX: Final = "toolway-"  # of the ids of our requests; in a cluster the tag of the node follows

SendMessage = Callable[[bytes], bool]


class LegacySession:
    """A legacy client's session (before 2026-07-28): the part of it that lives in this process.

    `tag` identifies this node in a cluster, and is part of the ids of requests to the client.
    """

    def __init__(
        self,
        facts: Json,
        principal: Principal,
        view: EndpointView,
        tag: str = "",
        replay_budget: ReplayBudget | None = None,
    ) -> None:
        self.id = ""  # empty if the session cannot be resumed
        self.capabilities: Json = facts["capabilities"]
        self.version: str = facts["version"]
        self.endpoint: str = facts["endpoint"]
        self.principal = principal
        self.transport = "tcp"
        self.view = view
        self.log_level: str | None = None
        self.stream: EventStream | None = None  # for messages that belong to no request
        self.active_requests: dict[jsonrpc.MessageId, ActiveRequest] = {}
        self.subscriber: Subscriber | None = None
        self.subscribed_uris: tuple[str, ...] = ()  # resources that the client subscribed to, on this or another node
        self.ended = False
        self.state_loaded_at = 0.0  # when its state was last loaded from the database; 0 = never
        self.replay_buffers = ReplayBuffers(tag, principal.id, replay_budget)
        self._tag = tag
        self._client_requests: dict[str, asyncio.Future[Json]] = {}
        self._request_numbers = itertools.count(1)

    def set_view(self, view: EndpointView) -> None:
        """Replace the view of what the client sees, because a new configuration or policy may have changed it."""
        self.view = view

    def renew(self, principal: Principal, view: EndpointView) -> None:
        """Use the current request's rights, because a user may have several tokens with different rights."""
        assert principal.id == self.principal.id, "a session has one owner"
        self.principal = principal
        self.view = view

    def notify(self, method: str, params: Json) -> None:
        """Send a notification that belongs to no request. It is dropped if the client has no open stream."""
        if self.stream is not None and not self.stream.disconnected:
            self.stream.send(jsonrpc.encode_notification(method, params))

    def forward_log(self, fact: ServerLog) -> None:
        """Forward a server's log message to the client if it belongs to this caller and the client wants its level."""
        if (
            fact.delivered_to_caller
            or fact.caller != self.principal.caller_id
            or fact.server not in self.view.servers()
        ):
            return
        if self.log_level is None or log_verbosity(self.log_level) < log_verbosity(fact.level):
            return
        params: Json = {"level": fact.level, "data": fact.data}
        if fact.logger is not None:
            params["logger"] = fact.logger
        self.notify("notifications/message", params)

    # -- requests to the client ---------------------------------------------------------------------------------------

    async def send_request(self, send: SendMessage, method: str, params: Json) -> Json:
        """Send a server request to the client and return its result.

        Raises `LookupError` if the client does not support the request or has too many open ones.
        """
        if (
            not supports_server_request(self.capabilities, method, params)
            or len(self._client_requests) >= MAX_CLIENT_REQUESTS
        ):
            raise LookupError(method)
        id_ = f"{CLIENT_REQUEST_ID_PREFIX}{self._tag}{next(self._request_numbers)}"
        response: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._client_requests[id_] = response
        try:
            if not send(jsonrpc.encode_request(id_, method, params)):
                raise LookupError(method)
            async with asyncio.timeout(CLIENT_REQUEST_TIMEOUT_S):
                return await response
        except (asyncio.CancelledError, TimeoutError):
            send(encode_cancellation(id_))  # a response is no longer needed
            raise
        finally:
            del self._client_requests[id_]

    def handle_response(self, message: Message) -> bool:
        """Pass a client's response to the server request that is waiting for it.

        Return False if no request with this id is waiting.
        """
        pending = self._client_requests.get(message.id) if isinstance(message.id, str) else None
        if pending is None or pending.done():
            return False
        if message.kind == "result":
            pending.set_result(message.body)
        else:
            code, text, data = jsonrpc.parse_error(message.body)
            pending.set_exception(CallbackError(code, text, data))
        return True

    def end_client_requests(self) -> None:
        """Fail all requests to the client, now and later, because it can no longer respond."""
        self.capabilities = {}
        for pending in self._client_requests.values():
            if not pending.done():
                pending.set_exception(CallbackError(INTERNAL_ERROR, "the client has closed its output"))

    def close(self) -> None:
        """Cancel all open requests, of the client and to the client, and close the event stream."""
        for pending in self._client_requests.values():
            if not pending.done():
                pending.cancel()
        for request in self.active_requests.values():
            request.cancel()
        if self.stream is not None:
            self.stream.close()


class ActiveRequest(msgspec.Struct):
    """A request of a legacy client that is being handled, with the task that handles it."""

    task: asyncio.Task[Any] | None
    cancelled: bool = False  # by the client, which then expects no response
    leave: Callable[[], None] | None = None  # cancels the request if it has no task: its call is a flight

    def cancel(self) -> None:
        self.cancelled = True
        if self.task is not None:
            self.task.cancel()
        elif self.leave is not None:
            self.leave()


class SessionCallbacks:
    """One legacy call's `ClientCallbacks`, which sends server requests to the client.

    It sends them on the stream that carries the call's response.
    """

    def __init__(self, session: LegacySession, send: SendMessage) -> None:
        self._session = session
        self._send = send

    @property
    def capabilities(self) -> Json:
        return self._session.capabilities

    async def handle_request(self, server: str, method: str, params: Json) -> Json:
        return await self._session.send_request(self._send, method, name_server(server, method, params))
