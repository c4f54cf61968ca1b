"""Event stream of HTTP+SSE (2024-11-05): its events, pending requests, and their POSTs.

Rule 1. The first event must name the URL for messages within a time limit. Otherwise opening the channel fails.
Rule 2. A lost stream is reopened from its last event id, if its events have ids. If the server resumes there, nothing
        is lost. If it starts another session, the channel ends.
Rule 3. When the channel ends, each request fails with its current certainty: a sent request may have run.
Rule 4. An event that is invalid or too long fails only the request whose id can still be read from it.
Rule 5. A POST's response carries no result; it says whether the message was accepted. After a 2xx status the request
        may have run (UNKNOWN), until the result arrives on the stream.
Rule 6. GET and POSTs are sent only to the server's own origin, including redirects.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, TypeVar

from toolway.config.schema import Server
from toolway.http.client import (
    ClientLimits,
    HeaderBlock,
    HttpClient,
    HttpError,
    HttpResponse,
    HttpTarget,
    encode_headers,
)
from toolway.protocol import jsonrpc
from toolway.protocol.sanitize import sanitize
from toolway.types import Authorizer, CallState, Certainty
from toolway.upstream.transport import Disconnect, JSONRPCError, TransportError
from toolway.upstream.transports import http_responses, streamable_http
from toolway.upstream.transports.http_responses import NO_AUTH_HEADER, send_with_auth
from toolway.upstream.transports.http_streams import EVENTS_PER_TURN, header_safe_id
from toolway.upstream.transports.pending_requests import PendingRequests, parse_large
from toolway.upstream.transports.sse_parser import OVERSIZED_EVENT, SSEEvent, SSEParser
from toolway.upstream.transports.streamable_http import MAX_REDIRECTS, read_error_body

ENDPOINT_TIMEOUT_S: Final = 10.0  # seconds from the head of the response to the endpoint event
MAX_EVENTS_BEFORE_ENDPOINT: Final = 16  # events tolerated before the endpoint event, which should be the first
RESUME_DELAY_RANGE_S: Final = (0.1, 10.0)  # shortest and longest delay in seconds before a lost stream is reopened
MAX_BAD_EVENT_RATE: Final = (20, 60.0)  # invalid messages and seconds: at this rate the channel ends
MIN_EVENT_RATE: Final = (10 * 1024, 10.0)  # bytes and seconds: an event that grows slower than this has stalled
SSE_ENDED: Final = "E-SSE-ENDED"

_log = logging.getLogger(__name__)

#: Opens the stream after the event with this id (empty: new events only). Raises `TransportError`.
OpenSseStream = Callable[[str], Awaitable[HttpResponse]]
#: Called with each message that is not a response.
MessageHandler = Callable[[jsonrpc.Message], None]

T = TypeVar("T")


class SseChannel:
    """Event stream of one HTTP+SSE session, with the requests that wait for a response on it."""

    def __init__(
        self,
        open_stream: OpenSseStream,
        target: HttpTarget,
        max_message_bytes: int,
        on_message: MessageHandler,
        message_target: HttpTarget | None = None,
    ) -> None:
        self.endpoint: HttpTarget | None = None
        self._message_target = message_target  # of the entry: the stream need not name one, and cannot name another
        self.pending = PendingRequests()
        self.invalid_messages = 0
        self.messages_received = 0
        self.received = 0  # bytes
        self._open_stream = open_stream
        self._target = target
        self._max_message_bytes = max_message_bytes
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._parser = SSEParser(max_message_bytes, skip_oversized=True)
        self._stall_timer: asyncio.TimerHandle | None = None
        self._events_before_endpoint = 0  # events received before the endpoint event
        self._bad_event_times: deque[float] = deque(maxlen=MAX_BAD_EVENT_RATE[0])
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._idle: asyncio.Event | None = None  # set when the last response has arrived, if a caller waits for that
        self._connected = asyncio.Event()  # cleared while a lost stream is being reopened
        self.disconnected: asyncio.Future[Disconnect] = self._loop.create_future()
        self._task = self._loop.create_task(self._run())

    async def open(self) -> None:
        """Wait until the server has named the URL for messages.

        Raises `TransportError` if the stream cannot be opened, or does not name the URL in time.
        """
        await asyncio.shield(self._ready)

    async def wait_connected(self) -> HttpTarget:
        """Wait until the stream can receive responses, and return the URL for messages.

        Raises `TransportError` (not sent) if the channel has ended.
        """
        if not self._connected.is_set():
            await self._connected.wait()
        if self.disconnected.done() or self.endpoint is None:
            disconnect = (
                self.disconnected.result()
                if self.disconnected.done()
                else Disconnect("the stream is not open", SSE_ENDED)
            )
            raise TransportError(disconnect.reason, Certainty.NOT_SENT, code=disconnect.code, hint=disconnect.hint)
        return self.endpoint

    def remove(self, id_: int) -> None:
        """Remove a request that is finished or cancelled from the pending ones."""
        self.pending.remove(id_)
        if self._idle is not None and not len(self.pending):
            self._idle.set()

    async def wait_idle(self, timeout: float) -> None:
        """Wait until no request is pending or the channel has ended; return after `timeout` seconds."""
        self._idle = asyncio.Event()
        if len(self.pending) and not self.disconnected.done():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._idle.wait()

    def end(self, disconnect: Disconnect) -> None:
        """End the channel at once and fail its pending requests with the reason in `disconnect`."""
        self._end(disconnect)
        self._task.cancel()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._end(Disconnect("closed by us", "E-CLOSED"))

    # -- stream -------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        disconnect = Disconnect("closed by us", "E-CLOSED")
        try:
            disconnect = Disconnect(await self._read_and_resume(), SSE_ENDED)
        except TransportError as error:
            if not self._ready.done():
                self._ready.set_exception(error)
                self._ready.exception()  # mark as retrieved: the waiter may have been cancelled
            disconnect = Disconnect(error.reason, error.code, hint=error.hint)
        except Exception as exc:
            _log.exception("unexpected error in the stream of %s", self._target.origin)
            disconnect = Disconnect(f"unexpected error: {exc!r}", "E-INTERNAL")
        finally:
            self._end(disconnect)

    async def _read_and_resume(self) -> str:
        """Read the stream, and resume it after a loss if its events have ids. Return the end reason.

        Raises `TransportError` if the stream cannot be opened, or if the server violates the protocol.
        """
        response = await self._open_stream("")
        if self._message_target is not None:
            self._on_endpoint(self._message_target)
        end_reason = await self._read_stream(response)
        resumed_from = ""
        while (last := header_safe_id(self._parser.id)) and last != resumed_from:
            self._connected.clear()
            resumed_from = last
            min_delay, max_delay = RESUME_DELAY_RANGE_S
            await asyncio.sleep(min(max_delay, max(min_delay, (self._parser.retry or 0) / 1000)))
            self._parser = SSEParser(self._max_message_bytes, id=last, skip_oversized=True)
            try:
                response = await self._open_stream(last)
            except TransportError:
                break
            self._connected.set()
            end_reason = await self._read_stream(response)
        return end_reason

    async def _read_stream(self, response: HttpResponse) -> str:
        """Deliver the events of `response` until the stream ends. Return the reason of its end.

        Raises `TransportError` if it ends before the endpoint event, or if an event does not end.
        """
        timer = self._loop.call_later(ENDPOINT_TIMEOUT_S, self._on_endpoint_timeout)
        end_reason = "the server ended its stream of events"
        try:
            async for chunk in response:
                self.received += len(chunk)
                for number, event in enumerate(self._parser.feed(chunk), 1):
                    await self._deliver(event)
                    if number % EVENTS_PER_TURN == 0:
                        await asyncio.sleep(0)
                if self._parser.skipped > 8 * self._max_message_bytes:
                    raise TransportError(
                        "the server sends an event that does not end", Certainty.UNKNOWN, code="E-FRAME-ENDLESS"
                    )
                if self._parser.has_partial_event and self._stall_timer is None:
                    self._stall_timer = self._loop.call_later(MIN_EVENT_RATE[1], self._check_stalled, self.received)
        except HttpError as error:
            end_reason = f"the stream was lost: {error.reason}"
        finally:
            response.abandon()
            timer.cancel()
        if not self._ready.done():
            raise error_for_missing_endpoint(end_reason)
        return end_reason

    def _check_stalled(self, before: int) -> None:
        """End the channel if a partly received event has stalled while requests wait.

        `before` is the number of bytes received at the previous check.
        """
        self._stall_timer = None
        if not self._parser.has_partial_event or not len(self.pending) or self.disconnected.done():
            return
        if self.received - before < MIN_EVENT_RATE[0]:
            self.end(Disconnect("the server stopped in the middle of an event", "E-FRAME-HALF"))
        else:
            self._stall_timer = self._loop.call_later(MIN_EVENT_RATE[1], self._check_stalled, self.received)

    def _on_endpoint_timeout(self) -> None:
        if not self._ready.done():
            self._ready.set_exception(error_for_missing_endpoint(f"no event within {ENDPOINT_TIMEOUT_S:g} s"))
            self._ready.exception()
            self._task.cancel()

    def _end(self, disconnect: Disconnect) -> None:
        if self.disconnected.done():
            return
        self.disconnected.set_result(disconnect)
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self._connected.set()  # wake the waiters; they raise the reason
        self.pending.fail_all(disconnect.reason, disconnect.code, disconnect.hint)
        if not self._ready.done():
            self._ready.set_exception(TransportError(disconnect.reason, Certainty.NOT_SENT, code=disconnect.code))
            self._ready.exception()

    # -- events -------------------------------------------------------------------------------------------------------

    async def _deliver(self, event: SSEEvent) -> None:
        if event.type == "endpoint":
            if self._message_target is not None:
                return
            self._on_endpoint(parse_endpoint(self._target, event.data))
        elif self.endpoint is None:
            self._events_before_endpoint += 1
            if self._events_before_endpoint > MAX_EVENTS_BEFORE_ENDPOINT:
                raise error_for_missing_endpoint("it sends other events instead")
            self.invalid_messages += 1
        elif event.type is OVERSIZED_EVENT:
            self._on_oversized(event.data)
        elif event.type == "message":
            await self._on_frame(event.data)  # other types, such as `ping`, are keep-alive events

    def _on_endpoint(self, target: HttpTarget) -> None:
        if self.endpoint is None:
            self.endpoint = target
            self._connected.set()
            if not self._ready.done():
                self._ready.set_result(None)
        elif target != self.endpoint:
            raise TransportError("the server has started another session", Certainty.UNKNOWN, code=SSE_ENDED)

    async def _on_frame(self, frame: bytes) -> None:
        self.messages_received += 1
        try:
            if jsonrpc.is_large(frame):
                message = await parse_large(frame, self.pending.method_for(jsonrpc.extract_id(frame)))
            else:
                message = jsonrpc.parse_message(frame)
        except jsonrpc.InvalidMessage as bad:
            self._on_bad_message(bad)
            return
        if message.kind in ("result", "error"):
            self.pending.resolve(message, frame)
        else:
            self._on_message(message)

    def _on_bad_message(self, bad: jsonrpc.InvalidMessage) -> None:
        self.invalid_messages += 1
        reason = f"the server's response is invalid: {bad.reason}"
        if self.pending.reject(bad.id, reason, bad.code or "E-ANSWER", bad.hint):
            return
        now = self._loop.time()
        self._bad_event_times.append(now)
        count, seconds = MAX_BAD_EVENT_RATE
        if len(self._bad_event_times) == count and now - self._bad_event_times[0] < seconds:
            raise TransportError(f"{count} unreadable messages in {seconds:g} s", Certainty.UNKNOWN, code="E-FRAME-BAD")

    def _on_oversized(self, head: bytes) -> None:
        reason = f"the server sent an event of more than {self._max_message_bytes} bytes"
        hint = "raise `limits.maxMessageBytes` for this server"
        if not self.pending.reject(jsonrpc.extract_id(head), reason, "E-HTTP-LIMIT", hint):
            raise TransportError(reason, Certainty.UNKNOWN, code="E-HTTP-LIMIT", hint=hint)


# -- requests: a GET for the stream, a POST for each message ----------------------------------------------------------


class Sender:
    """HTTP client for one HTTP+SSE server. `target` is the event stream's URL.

    The constructor raises `ValueError` if the URL or the headers of the entry are invalid.
    """

    def __init__(self, server: Server, limits: ClientLimits | None, authorizer: Authorizer | None) -> None:
        assert server.url is not None
        self.target = HttpTarget.parse(server.url)
        self._base_headers = streamable_http.build_base_headers(server)
        self._client = HttpClient(
            limits or streamable_http.client_limits_for(server), server.effective_network_policy, server.tls
        )
        self._authorizer = authorizer
        self.messages_sent = 0
        self._version_header = NO_AUTH_HEADER  # header with the protocol version, if it must be sent

    def set_version(self, version: str) -> None:
        """Send this protocol version in a header of every following POST; no header if it is empty."""
        self._version_header = encode_headers({streamable_http.VERSION_HEADER: version} if version else {})

    def close(self) -> None:
        self._client.close()

    # -- stream -------------------------------------------------------------------------------------------------------

    async def open_stream(self, last_id: str) -> HttpResponse:
        """Open the event stream after the event `last_id`. The caller must abandon the response.

        Raises `TransportError` if the server does not respond with an event stream.
        """
        resume_header = encode_headers({streamable_http.LAST_EVENT_HEADER: last_id} if last_id else {})
        return await self._send_with_auth(partial(self._open_get_stream, resume_header), "GET")

    async def _open_get_stream(self, resume_header: HeaderBlock, token: HeaderBlock) -> HttpResponse:
        target = self.target
        try:
            for _ in range(MAX_REDIRECTS + 1):
                # On a new connection: a pooled one may be dead, which would be noticed only much later.
                response = self._client.send(
                    "GET", target, (self._base_headers.get, resume_header, token), max_idle=0.0
                )
                await response.send_and_wait()
                if response.status == 200 and http_responses.media_type(response.headers) == "text/event-stream":
                    return response
                try:
                    if not 300 <= response.status < 400:
                        raise error_for_missing_stream(
                            response.status, response.headers, await read_error_body(response)
                        )
                    target = follow_stream_redirect(target, response.status, response.headers)
                    response.finish_soon()
                finally:
                    response.abandon()
        except HttpError as error:
            raise http_responses.error_from_http(error) from None
        raise http_responses.error_for_redirect_loop()

    # -- messages -----------------------------------------------------------------------------------------------------

    async def request(
        self, target: HttpTarget, id_: int, body: bytes, operation: str, call_state: CallState, new_connection: bool
    ) -> jsonrpc.Message | None:
        """Send a request by POST. Return its response if that is in the POST's body, else None.

        Raises `TransportError` or `JSONRPCError` if the POST fails or is rejected.
        """

        async def handle_response(response: HttpResponse) -> jsonrpc.Message | None:
            response_body = await read_error_body(response)
            if response.status >= 400:
                raise error_for_post_status(response.status, response.headers, response_body, id_)
            return parse_post_response(response.status, response.headers, response_body, id_)

        def send(token: HeaderBlock) -> Awaitable[jsonrpc.Message | None]:
            return self._post(
                target,
                body,
                token,
                handle_response,
                streamable_http.NEW_CONNECTION_MAX_IDLE_S if new_connection else None,
                call_state,
            )

        return await self._send_with_auth(send, operation, call_state)

    async def notify(self, target: HttpTarget, body: bytes, operation: str = "") -> None:
        """Send a message that has no response. Raises `TransportError` if it is not accepted."""
        await self._send_with_auth(lambda token: self._post(target, body, token, _check_accepted), operation)

    async def _send_with_auth(
        self, send: Callable[[HeaderBlock], Awaitable[T]], operation: str, call_state: CallState | None = None
    ) -> T:
        authorizer, rejected = self._authorizer, None
        if authorizer is None or authorizer.is_inactive:
            try:
                return await send(NO_AUTH_HEADER)
            except TransportError as error:
                if authorizer is None or error.status != 401:
                    raise
                authorizer.activate()
                rejected = error
                if call_state is not None:
                    call_state.certainty = Certainty.NOT_SENT  # the rejected request did not run
        return await send_with_auth(authorizer, operation, send, call_state, rejected)

    async def _post(
        self,
        target: HttpTarget,
        body: bytes,
        token: HeaderBlock,
        handle_response: Callable[[HttpResponse], Awaitable[T]],
        max_idle: float | None = None,
        call_state: CallState | None = None,
    ) -> T:
        self.messages_sent += 1
        headers = (self._base_headers.post, self._version_header, token)
        on_sent = call_state.mark_sent if call_state is not None else None
        try:
            for _ in range(MAX_REDIRECTS + 1):
                response = self._client.send("POST", target, headers, body, max_idle=max_idle, on_sent=on_sent)
                if call_state is not None:
                    http_responses.watch_send(response, call_state)
                await response.send_and_wait()
                try:
                    if not 300 <= response.status < 400:
                        return await handle_response(response)
                    target = http_responses.follow_redirect(target, response.status, response.headers)
                    response.finish_soon()
                finally:
                    response.abandon()
        except HttpError as error:
            raise http_responses.error_from_http(error) from None
        raise http_responses.error_for_redirect_loop()


async def _check_accepted(response: HttpResponse) -> None:
    """Raise `TransportError` if the server rejected a message that has no response."""
    if 200 <= response.status < 300:
        response.finish_soon()
        return
    body = await read_error_body(response)
    error = error_for_post_status(response.status, response.headers, body, None)
    if isinstance(error, JSONRPCError):
        error = http_responses.error_for_notification(response.status, response.headers, body, in_session=True)
    raise error


# -- the endpoint event and POST responses ----------------------------------------------------------------------------

_MAX_URL_CHARS: Final = 8192  # characters of a URL
_MAX_SHOWN_CHARS: Final = 200
_MAX_SESSION_ERROR_BYTES: Final = 400  # a longer body does not say that a session is unknown
_UNKNOWN_SESSION: Final = re.compile(
    rb"(?i)\b(?:no|not|unknown|invalid|expired|missing|find)\b.{0,60}\bsession|session.{0,60}\b(?:not|unknown|invalid|expired)\b"
)
_STICKY_SESSION_HINT: Final = "if several replicas of the server share one URL, route each session to one of them"
_STREAM_REDIRECTS: Final = (301, 302, 303, 307, 308)  # redirects that keep the method of a GET


def parse_endpoint(stream: HttpTarget, data: bytes) -> HttpTarget:
    """Return the message URL from the stream's endpoint event.

    Raises `TransportError` if the URL is invalid, or not of the stream's origin.
    """
    text = data.decode("utf-8", "replace").strip()
    try:
        if len(text) > _MAX_URL_CHARS:
            raise ValueError
        target = stream.join(text) if text else None
    except ValueError:
        target = None
    if target is None:
        raise _bad_endpoint_error(f"the server names an invalid URL for messages: {_shown_url(text)}")
    if target.origin != stream.origin:
        # The credential of the entry is for its origin only. Another port may belong to another program.
        raise _bad_endpoint_error(
            f"the server names a URL for messages at another origin, {sanitize(str(target.origin), _MAX_SHOWN_CHARS)}",
            f"make the server announce a path, or a URL of {stream.origin}; often its public URL must be configured",
        )
    return target


def error_for_missing_endpoint(problem: str) -> TransportError:
    """Return the error for a stream that does not start with an endpoint event.

    That event names the URL for messages.
    """
    return TransportError(
        f"the server's stream does not start with the URL for messages: {problem}",
        Certainty.NOT_SENT,
        code="E-SSE-STREAM",
        hint="if the server takes messages at a fixed address, set it in the entry: "
        '"messageUrl": "https://…/rpc"; else check that the url is its SSE endpoint, which often ends with /sse',
    )


def _bad_endpoint_error(reason: str, hint: str = "ask whoever runs the server to fix it") -> TransportError:
    return TransportError(reason, Certainty.NOT_SENT, code="E-SSE-ENDPOINT", hint=hint)


def error_for_missing_stream(status: int, headers: Mapping[str, str], body: bytes) -> TransportError:
    """Return the error for a GET that the server did not answer with an event stream.

    Its certainty is REJECTED if, for example, the server rejected the credential.
    """
    if status >= 400:
        return http_responses.error_for_notification(status, headers, body, in_session=False)
    kind = http_responses.describe_media_type(headers)
    return TransportError(
        f"the server responded to a GET with {status} and {kind} instead of an event stream",
        Certainty.REJECTED,
        code="E-SSE-STREAM",
        status=status,
        hint='if the server speaks Streamable HTTP, set "type": "http"; else check the url',
    )


def follow_stream_redirect(target: HttpTarget, status: int, headers: Mapping[str, str]) -> HttpTarget:
    """Return the target of a redirect of the GET that opens the stream.

    Raises `TransportError` if the redirect leads to another origin.
    """
    return http_responses.follow_redirect(target, 307 if status in _STREAM_REDIRECTS else status, headers)


def error_for_post_status(
    status: int, headers: Mapping[str, str], body: bytes, id_: int | None
) -> TransportError | JSONRPCError:
    """Return the error for a POST response with a status of 400 or more, such as a lost session."""
    text = len(body) <= _MAX_SESSION_ERROR_BYTES and http_responses.media_type(headers) != "application/json"
    if status == 400 and text and _UNKNOWN_SESSION.search(body):
        reason = "the server no longer knows the session (400)"
        return TransportError(reason, Certainty.REJECTED, code="E-HTTP-SESSION", status=400, hint=_STICKY_SESSION_HINT)
    error = http_responses.error_for_status(status, headers, body, id_, in_session=True)
    if isinstance(error, TransportError) and error.code == "E-HTTP-SESSION":
        error.hint = _STICKY_SESSION_HINT
    return error


def parse_post_response(status: int, headers: Mapping[str, str], body: bytes, id_: int) -> jsonrpc.Message | None:
    """Return the JSON-RPC response if it is in the POST's body and not on the stream, else None.

    Raises `TransportError` for a web page, which no MCP server sends.
    """
    kind = http_responses.media_type(headers)
    if kind == "text/html":
        raise http_responses.error_for_missing_response(status, headers, body)
    if kind != "application/json" or not body:
        return None
    try:
        message = jsonrpc.parse_message(body)
    except jsonrpc.InvalidMessage:
        return None
    return message if message.kind in ("result", "error") and http_responses.is_same_id(message.id, id_) else None


def _shown_url(text: str) -> str:
    return sanitize(text.partition("?")[0], _MAX_SHOWN_CHARS) or "nothing"
