"""Transport to a server at a URL with HTTP+SSE, the transport of 2024-11-05.

All responses arrive on one stream, which is opened first. Each message is a separate POST to the URL that the stream
names. So both the POST and the stream decide what became of a request: if the POST was rejected, the request did not
run; if it was accepted, the response follows on the stream; and if the POST's own response was lost, the request may
still be answered on the stream. The stream is the session, so when it ends, the transport ends, and the next
transport initializes again. Only if the server forgot the session but kept the stream does the transport open another
stream, for all affected requests.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final

import msgspec

from toolway.config.schema import Server
from toolway.http.client import ClientLimits
from toolway.protocol import jsonrpc
from toolway.protocol.cancellation import CANCELLED, encode_cancellation
from toolway.protocol.constants import METHOD_NOT_FOUND
from toolway.types import Authorizer, CallState, Certainty, Era, Json
from toolway.upstream.transport import (
    Disconnect,
    InboundHandler,
    JSONRPCError,
    Request,
    TransportError,
    TransportInfo,
    TransportServices,
)
from toolway.upstream.transports.http_streams import ServerRequests
from toolway.upstream.transports.legacy_sse_stream import Sender, SseChannel, parse_endpoint
from toolway.upstream.transports.streamable_http import CANCEL_TIMEOUT_S, MAX_CANCEL_NOTIFICATIONS, REPLY_TIMEOUT_S

POST_TIMEOUT_S: Final = 10.0  # seconds for the response to a POST after the result has arrived on the stream
MAX_BACKGROUND_POSTS: Final = 64  # such POSTs in progress; more are cancelled
RETIRED_STREAM_TIMEOUT_S: Final = 900.0  # seconds to wait for the last responses on the stream of a forgotten session
FIRST_HEADER_VERSION: Final = "2025-06-18"  # first version that is sent in a header

PostTask = asyncio.Task[jsonrpc.Message | None]


def create(server: Server, services: TransportServices) -> LegacySseTransport:
    """Return an unopened HTTP+SSE transport, for the registry in `transports/__init__.py`."""
    return LegacySseTransport(server, authorizer=services.authorizer)


class LegacySseTransport:
    """HTTP+SSE transport (2024-11-05): one stream for all responses, a POST for each message."""

    def __init__(
        self, server: Server, limits: ClientLimits | None = None, authorizer: Authorizer | None = None
    ) -> None:
        self._server = server
        self._limits = limits
        self._authorizer = authorizer
        self._server_requests = ServerRequests(partial(self._post_best_effort, REPLY_TIMEOUT_S))
        self._channel: SseChannel | None = None
        self._sender: Sender | None = None
        self._background_posts: set[PostTask] = set()  # POSTs in progress after their result has arrived
        self._tasks: set[asyncio.Task[None]] = set()
        self._cancel_notifications = 0  # cancellation notifications in progress
        self._checking_stream = False  # True while a ping checks whether the stream is alive
        self._disconnected: asyncio.Future[Disconnect] | None = None
        self._dropped = 0
        self._invalid_messages = 0
        self._messages_received = 0  # on earlier streams
        self._closed = False

    # -- open and close -----------------------------------------------------------------------------------------------

    async def open(self, inbound: InboundHandler) -> None:
        self._inbound = inbound
        self._loop = asyncio.get_running_loop()
        self._disconnected = self._loop.create_future()
        try:
            self._sender = Sender(self._server, self._limits, self._authorizer)
        except ValueError as exc:
            hint = "fix `url` or `headers` in the server's entry"
            raise TransportError(str(exc), Certainty.NOT_SENT, code="E-HTTP-CONFIG", hint=hint) from None
        await self._connect()

    async def _connect(self) -> SseChannel:
        """Open an event stream as the current one. Raises `TransportError` (not sent) if that fails."""
        assert self._sender is not None
        url = self._server.message_url
        channel = SseChannel(
            self._sender.open_stream,
            self._sender.target,
            self._server.limits.max_message_bytes,
            self._on_message,
            parse_endpoint(self._sender.target, url.encode()) if url is not None else None,
        )
        try:
            await channel.open()
        except BaseException as exc:
            await channel.close()
            if isinstance(exc, TransportError):
                exc.certainty = Certainty.NOT_SENT  # only the stream was rejected; no request was sent
            raise
        self._channel = channel
        channel.disconnected.add_done_callback(lambda _: self._on_channel_ended(channel))
        return channel

    def _on_channel_ended(self, channel: SseChannel) -> None:
        """End the transport if its current event stream has ended. The end of a replaced stream is ignored."""
        if channel is self._channel:
            self._disconnect(msgspec.structs.replace(channel.disconnected.result(), expected=True))

    def _disconnect(self, disconnect: Disconnect) -> None:
        if self._disconnected is not None and not self._disconnected.done():
            self._disconnected.set_result(disconnect)

    def set_protocol(self, era: Era, version: str) -> None:
        assert self._sender is not None
        self._sender.set_version(version if version >= FIRST_HEADER_VERSION else "")

    def reset_session(self) -> None:
        """Retire the stream of a session that the server lost; the next `initialize` opens another.

        Requests that the server accepted before may still be answered on the retired stream.
        """
        channel, self._channel = self._channel, None
        if self._sender is not None:
            self._sender.set_version("")
        if channel is not None:
            self._start_task(self._drain_channel(channel))

    async def _drain_channel(self, channel: SseChannel) -> None:
        try:
            await channel.wait_idle(RETIRED_STREAM_TIMEOUT_S)
        finally:
            await self._close_channel(channel)

    async def _close_channel(self, channel: SseChannel) -> None:
        await channel.close()
        self._dropped += channel.pending.dropped
        self._invalid_messages += channel.invalid_messages
        self._messages_received += channel.messages_received

    async def wait_closed(self) -> Disconnect:
        assert self._disconnected is not None
        return await asyncio.shield(self._disconnected)

    def info(self) -> TransportInfo:
        channel = self._channel
        dropped, invalid_messages = (
            (channel.pending.dropped, channel.invalid_messages) if channel is not None else (0, 0)
        )
        return TransportInfo(
            unmatched_responses=self._dropped + dropped,
            invalid_lines=self._invalid_messages + invalid_messages,
            messages_sent=self._sender.messages_sent if self._sender is not None else 0,
            messages_received=self._messages_received + (channel.messages_received if channel is not None else 0),
            transport="sse",
        )

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._disconnect(Disconnect("closed by us", "E-CLOSED"))
        channel, self._channel = self._channel, None
        try:
            if channel is not None:
                await self._close_channel(channel)
            tasks = [*self._tasks, *self._background_posts]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, self._server_requests.close(), return_exceptions=True)
        finally:
            if self._sender is not None:
                self._sender.close()
            await asyncio.sleep(0)  # the event loop closes the sockets in its next turn

    # -- requests -----------------------------------------------------------------------------------------------------

    async def request(self, request: Request) -> Json:
        if request.method == "server/discover":
            # The method is years newer than this transport. Some servers never respond again after an early request.
            raise JSONRPCError(METHOD_NOT_FOUND, "HTTP+SSE does not support server/discover")
        call_state = request.call_state
        call_state.phase = "send"
        call_state.raw_bytes = None
        assert self._sender is not None
        channel = await self._channel_for(request.method)
        target = await channel.wait_connected()
        id_, result = channel.pending.add(request)
        received_before = channel.received
        try:
            body = _encode_request(id_, request)
            operation = f"{request.method} {request.params.get('name', '')}"
            posting = self._sender.request(target, id_, body, operation, call_state, request.new_connection)
            return await self._await_result(asyncio.create_task(posting), result, call_state)
        except asyncio.CancelledError:
            if call_state.certainty is Certainty.UNKNOWN and not request.silent_cancel:
                self._notify_cancelled(id_)
                self._check_stream_if_silent(channel, received_before)
            raise
        finally:
            channel.remove(id_)

    async def _channel_for(self, method: str) -> SseChannel:
        """Return the event stream for the response to `method`; for `initialize`, open a stream if there is none.

        Raises `TransportError` (not sent) for other methods without a stream, because the server has lost the session.
        """
        if self._channel is None and method == "initialize" and not self._closed:
            return await self._connect()
        if self._channel is None:
            raise TransportError("the server no longer knows the session", Certainty.NOT_SENT, code="E-HTTP-SESSION")
        return self._channel

    async def _await_result(self, post: PostTask, result: asyncio.Future[Json], call_state: CallState) -> Json:
        """Return the result from the stream or from the POST's response, whichever is first.

        Raises the error of the POST if no result can follow on the stream.
        """
        try:
            both: set[asyncio.Future[Any]] = {post, result}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not result.done():
                await resolve_post_outcome(post, result)
            return await result
        except TransportError as error:
            await cancel_post(post)  # if the POST was not sent yet, it must not be sent any more
            if result.done():  # the error is from the stream, and may be older than the POST's certainty
                error.certainty = max(error.certainty, call_state.certainty)
            raise
        except asyncio.CancelledError:
            await cancel_post(post)
            raise
        finally:
            self._finish_in_background(post)

    def _finish_in_background(self, post: PostTask) -> None:
        """Let a POST finish in the background after its result arrived; cancel it after 10 s."""
        post.add_done_callback(retrieve_exception)
        if post.done():
            return
        if len(self._background_posts) >= MAX_BACKGROUND_POSTS or self._closed:
            post.cancel()
            return
        timer = self._loop.call_later(POST_TIMEOUT_S, post.cancel)
        self._background_posts.add(post)
        post.add_done_callback(self._background_posts.discard)
        post.add_done_callback(lambda _: timer.cancel())

    def _check_stream_if_silent(self, channel: SseChannel, received_before: int) -> None:
        """Ping on the event stream if nothing arrived on it during a cancelled call.

        If the ping gets no response either, the transport ends.
        """
        if (
            channel.received == received_before
            and channel is self._channel
            and not self._closed
            and not self._checking_stream
        ):
            self._checking_stream = True
            self._start_task(self._ping_stream(channel))

    async def _ping_stream(self, channel: SseChannel) -> None:
        received_before = channel.received
        try:
            async with asyncio.timeout(self._server.health.ping_timeout):
                await self.request(Request("ping", {}, silent_cancel=True))
        except TimeoutError:
            # A server that runs other calls of ours may be too busy to respond.
            if channel.received == received_before and not len(channel.pending):
                channel.end(Disconnect("the server stopped sending on its stream", "E-HEALTH"))
        except (TransportError, JSONRPCError):
            pass  # any response shows that the stream is alive; a disconnect is handled elsewhere
        finally:
            self._checking_stream = False

    # -- messages without a response ----------------------------------------------------------------------------------

    async def notify(self, method: str, params: Json) -> None:
        assert self._sender is not None
        channel = await self._channel_for(method)
        await self._sender.notify(await channel.wait_connected(), jsonrpc.encode_notification(method, params), method)

    def _notify_cancelled(self, id_: int) -> None:
        if self._cancel_notifications < MAX_CANCEL_NOTIFICATIONS and not self._closed:
            self._cancel_notifications += 1
            notification = encode_cancellation(id_)
            self._start_task(self._post_best_effort(CANCEL_TIMEOUT_S, notification)).add_done_callback(
                self._on_cancel_notified
            )

    def _on_cancel_notified(self, _: asyncio.Task[None]) -> None:
        self._cancel_notifications -= 1

    async def _post_best_effort(self, timeout: float, body: bytes) -> None:
        channel = self._channel
        if channel is None or channel.endpoint is None or self._sender is None:
            return
        with contextlib.suppress(TransportError, TimeoutError):
            async with asyncio.timeout(timeout):
                await self._sender.notify(channel.endpoint, body)

    def _start_task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- server messages ----------------------------------------------------------------------------------------------

    def _on_message(self, message: jsonrpc.Message) -> None:
        if message.kind == "request":
            if not self._server_requests.start(message, self._inbound):
                self._dropped += 1
            return
        if message.method == CANCELLED:
            self._server_requests.cancel(message.body)
        self._inbound.on_notification(message.method, message.body)


def _encode_request(id_: int, request: Request) -> bytes:
    """Encode a JSON-RPC request. Raises `TransportError` (not sent) if it cannot be encoded."""
    try:
        return jsonrpc.encode_request(id_, request.method, request.params)
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise TransportError(f"the request cannot be encoded: {exc}", Certainty.NOT_SENT, code="E-REQUEST") from None


# -- outcome of a POST ------------------------------------------------------------------------------------------------

LATE_RESULT_TIMEOUT_S: Final = 1.0  # seconds to wait for the result on the stream if the POST got no response
# Errors that only lose the POST's response.
_LOST_RESPONSE_CODES: Final = frozenset({"E-HTTP-RESET", "E-HTTP-SLOW", "E-HTTP-TIMEOUT"})
_PROXY_STATUSES: Final = (502, 504)  # statuses of a proxy that lost the server's response


async def resolve_post_outcome(post: PostTask, result: asyncio.Future[Json]) -> None:
    """Wait for a request's POST, and set `result` if its response has it.

    Raises `TransportError` if the POST failed and no result can follow.
    """
    try:
        message = await post
    except TransportError as error:
        response_lost = error.code in _LOST_RESPONSE_CODES or error.status in _PROXY_STATUSES
        if error.certainty is not Certainty.UNKNOWN or not response_lost:
            raise
        # Only the response to the POST may be lost: the server may still send the result on the stream.
        await asyncio.wait({result}, timeout=LATE_RESULT_TIMEOUT_S)
        if not result.done():
            raise
        return
    if message is None or result.done():
        return
    if message.kind == "result":
        result.set_result(message.body)
    else:
        result.set_exception(JSONRPCError(*jsonrpc.parse_error(message.body)))


async def cancel_post(post: PostTask) -> None:
    """Cancel a POST, and wait at most a second to learn whether it was sent."""
    post.cancel()
    await asyncio.wait({post}, timeout=1.0)


def retrieve_exception(post: PostTask) -> None:
    """Mark the exception of a finished POST as retrieved, since no caller waits for it."""
    if not post.cancelled():
        post.exception()
