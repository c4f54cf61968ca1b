"""Transport to a server at a URL: Streamable HTTP, both eras.

Every request is a separate POST, so its failure affects no other request: no shared reader can fail.
The response is JSON, or a stream of events with the result as its last one. In the legacy era the transport also keeps
the session of `initialize`, answers server requests, and reads the server's optional GET stream.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from toolway._version import __version__
from toolway.config.schema import Server
from toolway.http.client import (
    ClientLimits,
    HeaderBlock,
    HttpClient,
    HttpError,
    HttpResponse,
    HttpTarget,
    RequestTemplate,
    encode_headers,
)
from toolway.http.exchange import JSON_TYPE
from toolway.protocol import jsonrpc
from toolway.protocol.cancellation import CANCELLED, encode_cancellation
from toolway.protocol.headers import request_headers
from toolway.types import AuthChallenge, AuthError, Authorizer, CallState, Certainty, Era, Json
from toolway.upstream.transport import (
    Disconnect,
    ExchangeListener,
    InboundHandler,
    Request,
    RequestExchange,
    TransportError,
    TransportInfo,
    TransportServices,
)
from toolway.upstream.transports import http_responses
from toolway.upstream.transports.http_responses import fetch_auth_header, send_with_auth, watch_send
from toolway.upstream.transports.http_streams import (
    EVENT_STREAM_TYPE,
    ServerRequests,
    follow_get_stream,
    peek_message,
    read_events,
    resume_response,
)
from toolway.upstream.transports.pending_requests import parse_large
from toolway.upstream.transports.sse_parser import EventTooLong, SSEEvent, SSEParser

NEW_CONNECTION_MAX_IDLE_S: Final = 2.0  # idle time of a pooled connection if its loss must not be ambiguous
MAX_REDIRECTS: Final = 3
MAX_PLAIN_BYTES: Final = 192 * 1024  # of a result that is passed on without a reader; less than the client buffers
MAX_CACHED_HEADS: Final = 1000  # cached request heads, by method and name
MAX_CANCEL_NOTIFICATIONS: Final = 64  # cancellation notifications in progress; more are not sent
CANCEL_TIMEOUT_S: Final = 0.5
REPLY_TIMEOUT_S: Final = 10.0
DELETE_TIMEOUT_S: Final = 1.0
ERROR_BODY_TIMEOUT_S: Final = 2.0  # seconds to read the body of an error response, which only explains it
MAX_ERROR_BODY_BYTES: Final = 64 * 1024
# Their names vary too much.
_UNCACHED_METHODS: Final = frozenset({"resources/read", "tasks/get", "tasks/update", "tasks/cancel"})
_FIRST_METHODS: Final = frozenset({"server/discover", "initialize"})

T = TypeVar("T")


class HttpExchange(RequestExchange):
    """`RequestExchange` with a server at a URL: one POST and its response."""

    __slots__ = ("_transport", "body", "head", "in_session", "lines", "response")

    def __init__(
        self,
        id: int,
        call_state: CallState | None,
        listener: ExchangeListener | None,
        transport: StreamableHttpTransport,
    ) -> None:
        RequestExchange.__init__(self, id, call_state, listener)
        self._transport = transport
        self.lines: HeaderBlock  # headers of this request
        self.head: RequestTemplate | None  # encoded head, if it is cached
        self.body: bytes
        self.in_session: bool
        self.response: HttpResponse | None = None  # if it was sent

    def on_response(self) -> None:
        """Pass the result in a response with status 200 to the listener, without a task.

        This works if the response is complete JSON, or a stream on which nothing but the result has arrived. For
        everything else, such as errors and compressed bodies, it calls `listener.failed`, and a coroutine awaits the
        response.
        """
        response, listener = self.response, self.listener
        assert response is not None
        if listener is None:
            return
        headers = response.headers
        if response.error is None and response.status == 200 and "content-encoding" not in headers:
            kind = headers.get("content-type")
            if kind == JSON_TYPE or (kind := http_responses.media_type(headers)) == JSON_TYPE:
                if not response.complete and response.unread <= MAX_PLAIN_BYTES:
                    response.min_rate_enforced = True
                    return
                frame = response.take_plain(MAX_PLAIN_BYTES)
                if frame is not None:
                    if self._pass_on(frame, response, listener):
                        return
                    response.put_back(frame)
            elif kind == EVENT_STREAM_TYPE:
                frame = peek_message(response, MAX_PLAIN_BYTES)
                if frame == b"" and not response.complete:
                    return
                if frame and self._pass_on(frame, response, listener):
                    return
        elif response.error is None and not response.status:
            return  # a part of the head
        response.on_change = self.listener = None
        listener.failed()

    def _pass_on(self, frame: bytes, response: HttpResponse, listener: ExchangeListener) -> bool:
        """Pass the result in a JSON-RPC response to the listener of this exchange.

        Return False without doing anything if the message is anything else.
        """
        transport = self._transport
        if len(frame) > transport.max_message_bytes:
            return False
        usual = jsonrpc.parse_usual_result(frame, self.id)
        if usual is not None:
            self.result, self.received = usual
            self.frame = frame
        else:
            found = jsonrpc.parse_result(frame, self.id)
            if found is None:
                return False
            self.result, is_bare = found
            self.frame = frame if is_bare else b""
        transport.messages_received += 1
        # No reference cycle: the memory of a large result must be free at once.
        self.listener = self.response = response.on_change = None
        if response.chunks or not response.complete:
            response.finish_soon()
        listener.arrived(self.result, self.frame)
        return True


def create(server: Server, services: TransportServices) -> StreamableHttpTransport:
    """Return an unopened Streamable HTTP transport, for the registry `transports/__init__.py`."""
    return StreamableHttpTransport(server, authorizer=services.authorizer)


class StreamableHttpTransport:
    """Streamable HTTP transport for both eras: a separate POST for each request.

    A `client` that is passed in is shared with other transports and not closed here.
    """

    def __init__(
        self,
        server: Server,
        limits: ClientLimits | None = None,
        authorizer: Authorizer | None = None,
        client: HttpClient | None = None,
    ) -> None:
        assert server.url is not None
        self.session_id: str | None = None
        self._server = server
        self._has_request_id_header = any(name.lower() == "x-request-id" for name in server.headers)
        self._authorizer = authorizer
        self.max_message_bytes = server.limits.max_message_bytes
        self._client = (
            client
            if client is not None
            else HttpClient(limits or client_limits_for(server), server.effective_network_policy, server.tls)
        )
        self._owns_client = client is None
        self._server_requests = ServerRequests(partial(self._post_best_effort, REPLY_TIMEOUT_S))
        self._era: Era | None = None
        self._version = ""
        self._session_headers = encode_headers({})  # headers of every request after `initialize`
        self._head_cache: dict[tuple[str | None, str, str], tuple[HeaderBlock, RequestTemplate, bool]] = {}
        self._last_id = 0
        self._dropped = 0
        self._invalid_messages = 0
        self._messages_sent = 0
        self.messages_received = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._get_stream_task: asyncio.Task[None] | None = None
        self._closed = False

    # -- open and close -----------------------------------------------------------------------------------------------

    async def open(self, inbound: InboundHandler) -> None:
        """Prepare the URL and the headers. Nothing is sent yet.

        Raises `TransportError` if the URL or a header in the server's entry is invalid.
        """
        assert self._server.url is not None
        self._inbound = inbound
        try:
            self._target = HttpTarget.parse(self._server.url)
            self._base_headers = build_base_headers(self._server)
        except ValueError as exc:
            hint = "fix `url` or `headers` in the server's entry"
            raise TransportError(str(exc), Certainty.NOT_SENT, code="E-HTTP-CONFIG", hint=hint) from None

    def set_protocol(self, era: Era, version: str) -> None:
        if era != "legacy":
            self.reset_session()
        self._era = era
        self._version = version
        self._set_session(self.session_id)

    def reset_session(self) -> None:
        self._set_session(None)
        self._stop_get_stream()

    async def wait_closed(self) -> Disconnect:
        never: asyncio.Future[Disconnect] = asyncio.get_running_loop().create_future()
        return await never

    def info(self) -> TransportInfo:
        return TransportInfo(
            unmatched_responses=self._dropped,
            invalid_lines=self._invalid_messages,
            messages_sent=self._messages_sent,
            messages_received=self.messages_received,
        )

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, self._server_requests.close(), return_exceptions=True)
            await self._delete_session()
        finally:
            if self._owns_client:
                self._client.close()
            await asyncio.sleep(0)  # the event loop closes the sockets in its next turn

    # -- sending ------------------------------------------------------------------------------------------------------

    def start(self, request: Request, listener: ExchangeListener) -> HttpExchange | None:
        authorizer = self._authorizer
        if self._closed or (authorizer is not None and not authorizer.is_inactive):
            return None  # a credential may have to be refreshed first
        exchange = self._new_exchange(request, listener)
        max_idle = NEW_CONNECTION_MAX_IDLE_S if request.new_connection else None
        connection = self._client.take_idle(self._target.origin, max_idle) if exchange.head is not None else None
        if connection is None or exchange.head is None:
            return None
        exchange.response = self._client.send_on(
            connection, exchange.head, self._target, exchange.body, exchange.mark_sent, exchange.on_response
        )
        self._messages_sent += 1
        return exchange

    async def request(self, request: Request) -> Json:
        return await self.wait(self._new_exchange(request, None), request)

    def _new_exchange(self, request: Request, listener: ExchangeListener | None) -> HttpExchange:
        """Return an exchange with an id and the encoded request, which is not sent yet."""
        self._last_id = id_ = self._last_id + 1
        exchange = HttpExchange(id_, request.call_state if listener is None else None, listener, self)
        try:
            exchange.lines, exchange.head, exchange.in_session = self._prepare_headers(request)
            exchange.body = request.encode(id_)
            if exchange.call_state is not None and exchange.call_state.request_id and not self._has_request_id_header:
                request_id = encode_headers({"X-Request-ID": exchange.call_state.request_id})
                exchange.lines, exchange.head = HeaderBlock(exchange.lines + request_id), None
        except (TypeError, ValueError, OverflowError, RecursionError) as exc:
            raise TransportError(
                f"the request cannot be encoded: {exc}", Certainty.NOT_SENT, code="E-REQUEST"
            ) from None
        return exchange

    async def wait(self, exchange: RequestExchange, request: Request) -> Json:
        assert isinstance(exchange, HttpExchange)
        if exchange.result is not None:
            return exchange.take_result()
        call_state = request.call_state
        id_, body, lines = exchange.id, exchange.body, exchange.lines
        max_idle = NEW_CONNECTION_MAX_IDLE_S if request.new_connection else None
        handle_response = partial(self._read_response, id_, request, exchange.in_session)
        try:
            authorizer, rejected = self._authorizer, None
            # `start` sends only requests that work without a credential.
            if exchange.response is not None or authorizer is None or authorizer.is_inactive:
                try:
                    return await self._post(
                        body,
                        lines,
                        handle_response,
                        head=exchange.head,
                        max_idle=max_idle,
                        on_sent=exchange.mark_sent,
                        call_state=call_state,
                        sent=exchange.response,
                    )
                except TransportError as error:
                    if authorizer is None or error.status != 401:
                        raise
                    authorizer.activate()
                    rejected = error
                    exchange.is_sent = False  # the rejected request did not run
                    call_state.certainty = Certainty.NOT_SENT
            assert authorizer is not None
            return await send_with_auth(
                authorizer,
                f"{request.method} {request.params.get('name', '')}",
                lambda token: self._post(
                    body,
                    HeaderBlock(lines + token),
                    handle_response,
                    max_idle=max_idle,
                    on_sent=exchange.mark_sent,
                    call_state=call_state,
                ),
                call_state,
                rejected,
            )
        except asyncio.CancelledError:
            self.abandon(exchange, request)
            raise

    def abandon(self, exchange: RequestExchange, request: Request) -> None:
        assert isinstance(exchange, HttpExchange)
        if exchange.response is not None:
            exchange.response.abandon()
        if self._era == "legacy" and exchange.certainty is Certainty.UNKNOWN and not request.silent_cancel:
            self._notify_cancelled(exchange.id)

    async def notify(self, method: str, params: Json) -> None:
        handle_response = partial(_check_accepted, self.session_id is not None)
        await self._post_with_auth(
            jsonrpc.encode_notification(method, params), self._session_headers, handle_response, method
        )
        if method == "notifications/initialized":
            self._start_get_stream()

    async def _post_with_auth(
        self,
        body: bytes,
        headers: HeaderBlock,
        handle_response: Callable[[HttpResponse], Awaitable[T]],
        operation: str = "",
    ) -> T:
        if self._authorizer is None or self._authorizer.is_inactive:
            return await self._post(body, headers, handle_response)
        return await send_with_auth(
            self._authorizer, operation, lambda token: self._post(body, HeaderBlock(headers + token), handle_response)
        )

    async def _post(
        self,
        body: bytes,
        headers: HeaderBlock,
        handle_response: Callable[[HttpResponse], Awaitable[T]],
        *,
        head: RequestTemplate | None = None,
        max_idle: float | None = None,
        on_sent: Callable[[], None] | None = None,
        call_state: CallState | None = None,
        sent: HttpResponse | None = None,
    ) -> T:
        """Send a POST, follow redirects within the origin, and return `handle_response(response)`.

        `head` is the cached, encoded form of `headers`. `sent` is the response to expect if the POST was sent already.
        Raises `TransportError` if the POST fails.
        """
        target = self._target
        self._messages_sent += sent is None
        try:
            for _ in range(MAX_REDIRECTS + 1):
                if sent is not None:
                    response, sent = sent, None
                    await response.wait_head()
                    response.set_up_decoding()
                else:
                    if head is None:
                        head = self._client.prepare("POST", target, (self._base_headers.post, headers))
                    response = self._client.send_prepared(head, target, body, max_idle=max_idle, on_sent=on_sent)
                    if call_state is not None:
                        watch_send(response, call_state)
                    await response.send_and_wait()
                try:
                    if not 300 <= response.status < 400:
                        return await handle_response(response)
                    target, head = http_responses.follow_redirect(target, response.status, response.headers), None
                    response.finish_soon()
                finally:
                    response.abandon()
        except HttpError as error:
            raise http_responses.error_from_http(error) from None
        raise http_responses.error_for_redirect_loop()

    def _prepare_headers(self, request: Request) -> tuple[HeaderBlock, RequestTemplate | None, bool]:
        """Return the headers of `request`, their cached encoded form, and whether they name a session.

        Raises `ValueError` if a header is invalid.
        """
        name = request.params.get("name")
        key = (request.version, request.method, name if type(name) is str else "")
        cached = self._head_cache.get(key) if request.input_schema is None else None
        if cached is not None:
            return cached
        lines, in_session = self._build_headers(request)
        if request.input_schema is not None or request.method in _UNCACHED_METHODS:
            return lines, None, in_session
        if len(self._head_cache) >= MAX_CACHED_HEADS:
            self._head_cache.clear()
        head = self._client.prepare("POST", self._target, (self._base_headers.post, lines))
        self._head_cache[key] = (lines, head, in_session)
        return self._head_cache[key]

    def _build_headers(self, request: Request) -> tuple[HeaderBlock, bool]:
        if request.version is not None:
            lines = request_headers(request.version, request.method, request.params, request.input_schema)
            return encode_headers(lines), False
        if request.method == "initialize":
            return encode_headers({}), False
        return self._session_headers, self.session_id is not None

    def _notify_cancelled(self, id_: int) -> None:
        if len(self._tasks) < MAX_CANCEL_NOTIFICATIONS and not self._closed:
            notification = encode_cancellation(id_)
            self._start_task(self._post_best_effort(CANCEL_TIMEOUT_S, notification))

    async def _post_best_effort(self, timeout: float, body: bytes) -> None:
        with contextlib.suppress(TransportError, TimeoutError):
            async with asyncio.timeout(timeout):
                await self._post_with_auth(body, self._session_headers, partial(_check_accepted, False))

    def _start_task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- responses ----------------------------------------------------------------------------------------------------

    async def _read_response(self, id_: int, request: Request, in_session: bool, response: HttpResponse) -> Json:
        status = response.status
        if status >= 400:
            body = await read_error_body(response)
            raise http_responses.error_for_status(status, response.headers, body, id_, in_session=in_session)
        if request.method == "initialize":
            self._start_session(response.headers.get("mcp-session-id"))
        kind = http_responses.media_type(response.headers)
        if kind == "application/json" and status != 202:
            frame = response.take_complete(self.max_message_bytes) or await response.read(self.max_message_bytes)
            try:
                message = (
                    await parse_large(frame, request.method)
                    if jsonrpc.is_large(frame)
                    else jsonrpc.parse_message(frame)
                )
            except jsonrpc.InvalidMessage as bad:
                lenient = (
                    jsonrpc.parse_bare_response(frame) if self._era == "bare" and not jsonrpc.is_large(frame) else None
                )
                if lenient is None:
                    raise http_responses.error_for_bad_message(bad) from None
                message = lenient
            self.messages_received += 1
            if request.call_state.keep_raw and message.is_bare_result:
                request.call_state.raw_bytes = jsonrpc.slice_result(frame, id_)
        elif kind == EVENT_STREAM_TYPE:
            message = await self._read_event_response(response, id_, request)
        else:
            raise http_responses.error_for_missing_response(status, response.headers, await read_error_body(response))
        return http_responses.extract_result(message, id_, status)

    async def _read_event_response(self, response: HttpResponse, id_: int, request: Request) -> jsonrpc.Message:
        found: list[jsonrpc.Message] = []
        request.call_state.phase = "stream"

        async def deliver(event: SSEEvent) -> bool:
            message = await self._dispatch_event(event, id_, request)
            if message is not None:
                found.append(message)
            return message is not None

        stream = SSEParser(self.max_message_bytes)
        try:
            end_reason = await read_events(response, stream, deliver)
            if not found and self._era == "legacy":
                await resume_response(self._open_get_stream, stream, self.max_message_bytes, deliver)
        except EventTooLong as exc:
            raise http_responses.error_for_long_event(exc.limit) from None
        if not found:
            raise http_responses.error_for_truncation(end_reason)
        return found[0]

    # -- server messages ----------------------------------------------------------------------------------------------

    async def _dispatch_event(
        self, event: SSEEvent, id_: int | None, request: Request | None
    ) -> jsonrpc.Message | None:
        """Deliver the message in `event` to its receiver; return the message if it is a response.

        `request` is the request whose response the stream carries, or None for the GET stream.
        """
        method, call_state = (request.method, request.call_state) if request is not None else ("", None)
        modern = request is not None and request.version is not None
        try:
            message = await _parse_message(event.data, method) if event.type == "message" else None
        except jsonrpc.InvalidMessage as bad:
            if id_ is not None and http_responses.is_same_id(bad.id, id_):
                raise http_responses.error_for_bad_message(bad) from None
            message = None
        self.messages_received += message is not None
        if message is None:
            self._invalid_messages += 1
            if event.type == "endpoint" and method in _FIRST_METHODS:
                raise http_responses.error_for_legacy_sse()
        elif message.kind == "notification":
            self._on_notification(message, call_state)
        elif message.kind == "request":
            if modern or not self._server_requests.start(message, self._inbound, call_state):
                self._dropped += 1
        elif id_ is not None:
            return message
        else:
            self._dropped += 1
        return None

    def _on_notification(self, message: jsonrpc.Message, call_state: CallState | None) -> None:
        if message.method == CANCELLED:
            self._server_requests.cancel(message.body)
        self._inbound.on_notification(message.method, message.body, call_state)

    # -- session of the legacy era ------------------------------------------------------------------------------------

    def _start_session(self, id_: str | None) -> None:
        try:
            self._set_session(id_ or None)
        except ValueError:
            reason = "the server sent a session id that is not valid in a header"
            raise TransportError(reason, Certainty.UNKNOWN, code="E-HTTP-CONTENT") from None

    def _set_session(self, id_: str | None) -> None:
        headers = {VERSION_HEADER: self._version} if self._era == "legacy" else {}
        if id_ is not None:
            headers[SESSION_HEADER] = id_
        self._session_headers = encode_headers(headers)
        self._head_cache = {}
        self.session_id = id_

    @contextlib.asynccontextmanager
    async def _open_get_stream(self, last_id: str) -> AsyncIterator[HttpResponse]:
        headers = (
            self._base_headers.get,
            self._session_headers,
            encode_headers({LAST_EVENT_HEADER: last_id} if last_id else {}),
        )
        token = await self._auth_headers()
        async with self._client.send("GET", self._target, (*headers, encode_headers(token))) as response:
            if response.status != 401 or not await self._obtain_new_token(response, token):
                yield response
                return
        token = await self._auth_headers()
        async with self._client.send("GET", self._target, (*headers, encode_headers(token))) as response:
            yield response

    async def _auth_headers(self) -> dict[str, str]:
        """Return the Authorization header for background requests; empty without a credential."""
        value = ""
        if self._authorizer is not None:
            with contextlib.suppress(TransportError):
                value = await fetch_auth_header(self._authorizer)
        return {"Authorization": value} if value else {}

    async def _obtain_new_token(self, response: HttpResponse, token: dict[str, str]) -> bool:
        if self._authorizer is None:
            return False
        challenge = response.headers.get("www-authenticate", "")
        try:
            return await self._authorizer.on_challenge(
                AuthChallenge(401, challenge, token.get("Authorization", ""), "GET")
            )
        except AuthError:
            return False

    def _start_get_stream(self) -> None:
        self._stop_get_stream()
        if not self._closed:
            self._get_stream_task = self._start_task(
                follow_get_stream(self._open_get_stream, self._on_stream_event, self.max_message_bytes)
            )

    def _stop_get_stream(self) -> None:
        if self._get_stream_task is not None:
            self._get_stream_task.cancel()
            self._get_stream_task = None

    async def _on_stream_event(self, event: SSEEvent) -> None:
        await self._dispatch_event(event, None, None)

    async def _delete_session(self) -> None:
        if self.session_id is None:
            return
        with contextlib.suppress(HttpError, TimeoutError):
            async with asyncio.timeout(DELETE_TIMEOUT_S):
                headers = (self._base_headers.get, self._session_headers, encode_headers(await self._auth_headers()))
                async with self._client.send("DELETE", self._target, headers):
                    pass


async def _parse_message(frame: bytes, method: str) -> jsonrpc.Message:
    """Decode a message on the response stream of `method`, in a thread if it is large.

    Raises `InvalidMessage` if it is not a valid JSON-RPC message.
    """
    return await parse_large(frame, method) if jsonrpc.is_large(frame) else jsonrpc.parse_message(frame)


async def _check_accepted(in_session: bool, response: HttpResponse) -> None:
    """Raise `TransportError` if the server rejected a message that has no response."""
    if not 200 <= response.status < 300:
        body = await read_error_body(response)
        raise http_responses.error_for_notification(response.status, response.headers, body, in_session=in_session)
    response.finish_soon()


async def read_error_body(response: HttpResponse, timeout: float = ERROR_BODY_TIMEOUT_S) -> bytes:
    """Return the start of an error response's body, as far as it arrives in `timeout` seconds.

    A missing body is not a failure: the status already determines the error.
    """
    body = bytearray()
    with contextlib.suppress(HttpError, TimeoutError):
        async with asyncio.timeout(timeout):
            async for chunk in response:
                body += chunk
                if len(body) >= MAX_ERROR_BODY_BYTES:
                    break
    return bytes(body[:MAX_ERROR_BODY_BYTES])


# -- base headers and limits ------------------------------------------------------------------------------------------

SESSION_HEADER: Final = "Mcp-Session-Id"
VERSION_HEADER: Final = "MCP-Protocol-Version"
LAST_EVENT_HEADER: Final = "Last-Event-ID"
# The transport sets these for each request; a configured value would contradict them.
_RESERVED_HEADERS: Final = frozenset(
    name.lower()
    for name in (
        "Accept",
        "Accept-Encoding",
        "Content-Type",
        "Mcp-Method",
        "Mcp-Name",
        LAST_EVENT_HEADER,
        SESSION_HEADER,
        VERSION_HEADER,
    )
)


class BaseHeaders(NamedTuple):
    """Encoded headers that all POST and all GET requests to a server have in common."""

    post: HeaderBlock
    get: HeaderBlock


def build_base_headers(server: Server) -> BaseHeaders:
    """Return the encoded headers that all POST and GET requests to the server have in common.

    Raises `ValueError` if a header in the server's entry is invalid.
    """
    configured = {
        name.lower(): (name, value) for name, value in server.headers.items() if name.lower() not in _RESERVED_HEADERS
    }
    common = {"Accept-Encoding": "gzip, deflate" if server.limits.compression else "identity"}
    if "user-agent" not in configured:
        common["User-Agent"] = f"toolway/{__version__}"
    common.update(configured.values())
    post = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    return BaseHeaders(encode_headers({**post, **common}), encode_headers({"Accept": "text/event-stream", **common}))


def client_limits_for(server: Server) -> ClientLimits:
    """Return the HTTP client limits (timeouts, compression) that the server's entry configures."""
    timeout = server.timeout
    return ClientLimits(
        connect_timeout=timeout.connect, write_timeout=timeout.write, accept_compression=server.limits.compression
    )
