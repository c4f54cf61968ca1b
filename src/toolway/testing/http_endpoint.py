"""Endpoint of the fake MCP server for Streamable HTTP: handles one HTTP request at a time.

Supports the legacy protocol (before 2026-07-28, with sessions) and the modern one.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import http
import itertools
import socket
import struct
import uuid
from collections.abc import Callable, Generator

from toolway.testing.faults import LIST_FAULTS
from toolway.testing.server import FakePeer, ServerRequest
from toolway.testing.wire import (
    HEADER_MISMATCH,
    INVALID_REQUEST,
    LEGACY_VERSIONS,
    METHOD_NOT_FOUND,
    VERSION_KEY,
    RpcError,
    Unanswered,
    as_object,
    cancelled_id,
    encode,
    make_error_response,
    make_request,
    parse_message,
)

TYPE_CHECKING = False  # importing typing would take a third of the start

if TYPE_CHECKING:
    from collections.abc import Mapping

    from toolway.testing.faults import ActiveFaults, FaultSetting
    from toolway.testing.server import FakeServer, Steps
    from toolway.testing.wire import Id, Json

#: HTTP status by error code, for modern responses. Other errors have the status 200.
_STATUS_BY_ERROR_CODE = {-32700: 400, -32600: 400, -32601: 404, -32602: 400, -32020: 400, -32021: 400, -32022: 400}
_CLIENT_TIMEOUT_S = 60  # seconds for the client's response


class Endpoint:
    """Streamable HTTP endpoint of a fake MCP server: handles requests and injects faults.

    It also keeps the sessions of legacy clients (protocol before 2026-07-28).
    """

    path = "/mcp"

    def __init__(self, server: FakeServer, faults: ActiveFaults, response_format: str) -> None:
        if response_format not in ("json", "sse"):
            raise ValueError(f"unknown response format {response_format!r}: must be json or sse")
        self.server = server
        self.faults = faults
        self.response_format = response_format  # messages before the response are sent as events in both formats
        self.sessions: dict[str, FakeSession] = {}
        self.in_flight_ids: list[Id] = []
        self.resumable_responses: dict[str, Json] = {}  # responses by id of the last event before their stream was cut
        self._ids = itertools.count(1)
        for setting in self.faults.trigger_at("start"):
            if setting.mode.name not in LIST_FAULTS:
                raise ValueError(f"fault mode {setting.mode.name} cannot trigger at the start")
            setting.mode.run(server, setting)

    def next_id(self) -> int:
        return next(self._ids)

    def drop_sessions(self) -> None:
        """Forget all sessions of legacy clients (before 2026-07-28): their next request gets a 404."""
        self.server.peers.clear()
        self.sessions.clear()

    def send_response(self, exchange: FakeExchange, response: Json) -> None:
        """Send the JSON-RPC response to a POST, as a JSON body or as the last SSE event."""
        if exchange.is_streaming or (self.response_format == "sse" and "result" in response):
            exchange.send_message(response)
            exchange.end_stream()
        else:
            modern = "mcp-session-id" not in exchange.request.headers and self.server.era != "bare"
            code = as_object(response.get("error")).get("code")
            exchange.respond_json(
                response, _STATUS_BY_ERROR_CODE.get(code, 200) if modern and isinstance(code, int) else 200
            )

    def keep_for_resume(self, event_id: str, exchange: FakeExchange, response: Json) -> None:
        """Keep `response`, whose SSE stream a fault cuts after the event `event_id`.

        A client that resumes with this id as Last-Event-ID receives the response.
        """
        self.resumable_responses[event_id] = response

    def fault_free_path(self, exchange: FakeExchange) -> str:
        """Return a path of this server at which requests trigger no faults, as a redirect target."""
        return "/moved"

    def send_body(self, exchange: FakeExchange, body: bytes) -> None:
        exchange.respond(200, body)

    def stream_for(self, exchange: FakeExchange) -> FakeExchange:
        exchange.open_stream()
        return exchange

    def end_stream(self, exchange: FakeExchange) -> None:
        exchange.end_stream()

    def _sender_for(self, exchange: FakeExchange, peer: FakePeer) -> Callable[[Json], None]:
        """Return the function that sends JSON-RPC messages to a client while the fake server handles its request."""
        return exchange.send_message

    async def serve(self, exchange: FakeExchange) -> None:
        method = exchange.request.method
        if method == "POST":
            try:
                await self._handle_post(exchange)
            except RpcError as error:
                exchange.respond_json(make_error_response(None, error), _STATUS_BY_ERROR_CODE.get(error.code, 400))
            except Unanswered:
                exchange.keep_alive = False
            return
        self.server.stats.count_request(method)
        if self.server.era in ("modern", "bare") or method not in ("GET", "DELETE"):
            exchange.respond(405)
        elif (session := self._find_session(exchange)) is None:
            return
        elif method == "GET":
            await self._serve_stream(exchange, session)
        else:
            del self.sessions[session.id]
            self.server.peers.discard(session)
            exchange.respond(200)

    async def _handle_post(self, exchange: FakeExchange) -> None:
        message = parse_message(exchange.request.body)
        if "method" in message:
            self.server.stats.count_request(message["method"])
        setting = self._triggered_fault(exchange, message)
        early = setting is not None and setting.mode.early
        if setting is not None and early and not setting.options.get("effect"):
            await setting.mode.run(HttpFaultContext(self, setting, exchange, {}))
            return
        status = self._check_headers(exchange)
        if status is not None:
            exchange.respond(status)
            return
        peer = self._find_peer(exchange, message)
        if peer is None:
            return
        if "id" not in message or "method" not in message:
            if self.server.era == "bare":  # it does not know notifications, so it answers them
                error = RpcError(METHOD_NOT_FOUND, f"Method not found: {message.get('method')}")
                exchange.respond_json(make_error_response(None, error), 200)
                return
            self._handle_client_message(peer, message)
            exchange.respond(202)
            return
        await self._handle_request(exchange, message, peer, setting)

    def _check_headers(self, exchange: FakeExchange) -> int | None:
        """Return the HTTP status that rejects a POST with invalid headers; None if they are valid."""
        return check_post_headers(exchange.request.headers)

    def _triggered_fault(self, exchange: FakeExchange, message: Json) -> FaultSetting | None:
        if (
            "id" not in message
            or "method" not in message
            or exchange.request.target.partition("?")[0].endswith("/moved")
        ):
            return None
        return self.faults.trigger_for(message)

    def _find_peer(self, exchange: FakeExchange, message: Json) -> FakePeer | None:
        """Return the client that sent a POST: its legacy session, or a new peer if it is modern.

        Return None if the request was invalid; the error response is then already sent.
        """
        if self.server.era == "bare":
            return FakePeer()
        headers = exchange.request.headers
        meta = as_object(as_object(message.get("params")).get("_meta"))
        is_legacy = self.server.era == "legacy" or (
            self.server.era == "both"
            and VERSION_KEY not in meta
            and ("mcp-session-id" in headers or message.get("method") == "initialize")
        )
        if is_legacy:
            exchange.survives_disconnect = True
            return FakeSession() if message.get("method") == "initialize" else self._find_session(exchange)
        mismatched = find_mismatched_header(headers, message) if "method" in message and VERSION_KEY in meta else None
        if mismatched is not None:
            error = RpcError(HEADER_MISMATCH, f"header {mismatched} does not match the body")
            exchange.respond_json(make_error_response(message.get("id"), error), 400)
            return None
        return FakePeer()

    def _find_session(self, exchange: FakeExchange) -> FakeSession | None:
        """Return the legacy session that the Mcp-Session-Id header names.

        Return None if there is none; the error response is then already sent.
        """
        headers = exchange.request.headers
        id = headers.get("mcp-session-id")
        if id is None:
            problem = "Bad Request: Missing session ID"
        elif id not in self.sessions:
            exchange.respond_json(make_error_response(None, RpcError(INVALID_REQUEST, "Session not found")), 404)
            return None
        elif headers.get("mcp-protocol-version", LEGACY_VERSIONS[0]) not in LEGACY_VERSIONS:
            problem = "Bad Request: Unsupported protocol version"
        else:
            return self.sessions[id]
        exchange.respond_json(make_error_response(None, RpcError(INVALID_REQUEST, problem)), 400)
        return None

    def _handle_client_message(self, peer: FakePeer, message: Json) -> None:
        """Apply a message that is not a request: a cancellation, or the response to a request that the server sent."""
        if not isinstance(peer, FakeSession):
            return
        if message.get("method") == "notifications/cancelled":
            cancelled = peer.cancel_events.get(cancelled_id(message))
            if cancelled is not None:
                cancelled.set()
        elif "method" not in message:
            pending = peer.pending_requests.get(message.get("id", ""))
            if pending is not None and not pending.done():
                pending.set_result(message)

    async def _serve_stream(self, exchange: FakeExchange, session: FakeSession) -> None:
        """Hold a GET open as an SSE stream for messages that belong to no call.

        If the GET resumes a cut stream, send the lost response and end the stream.
        """
        exchange.open_stream()
        last_event_id = exchange.request.headers.get("last-event-id")
        if last_event_id is not None:
            self.server.stats.resumes.append(last_event_id)
            if last_event_id in self.resumable_responses:
                exchange.send_message(self.resumable_responses.pop(last_event_id))
                exchange.end_stream()
                return
        session.streams.append(exchange)
        try:
            await asyncio.Event().wait()
        finally:
            session.streams.remove(exchange)

    async def _handle_request(
        self, exchange: FakeExchange, message: Json, peer: FakePeer, setting: FaultSetting | None
    ) -> None:
        id = message["id"]
        self.in_flight_ids.append(id)
        try:
            response = self.server.handle(message, peer, self._sender_for(exchange, peer))
            if isinstance(response, Generator):
                final = await self._run_steps(exchange, id, response, peer)
                if final is None:
                    self.end_stream(exchange)
                    return
                response = final
            if isinstance(peer, FakeSession) and message["method"] == "initialize" and "result" in response:
                self.sessions[peer.id] = peer
                exchange.extra_headers["Mcp-Session-Id"] = peer.id
            if setting is None:
                self.send_response(exchange, response)
            else:
                exchange.survives_disconnect = False
                await setting.mode.run(HttpFaultContext(self, setting, exchange, response))
        finally:
            self.in_flight_ids.remove(id)

    async def _run_steps(self, exchange: FakeExchange, id: Id, steps: Steps, peer: FakePeer) -> Json | None:
        """Run the steps (waits, requests to the client) of a call and return its response.

        Return None if the client cancelled the call.
        """
        cancelled = asyncio.Event()
        if isinstance(peer, FakeSession):
            peer.cancel_events[id] = cancelled
        step_result: Json | None = None
        try:
            while True:
                step = steps.send(step_result)
                if isinstance(step, ServerRequest):
                    step_result = await self._request_client(exchange, peer, step, cancelled)
                else:
                    step_result = None
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(cancelled.wait(), step.seconds)
                if cancelled.is_set():
                    raise asyncio.CancelledError
        except StopIteration as end:
            response: Json = end.value
            return response
        except asyncio.CancelledError:
            steps.close()
            self.server.stats.cancelled.append(id)
            if not cancelled.is_set():
                raise
            return None
        finally:
            if isinstance(peer, FakeSession):
                peer.cancel_events.pop(id, None)

    async def _request_client(
        self, exchange: FakeExchange, peer: FakePeer, step: ServerRequest, cancelled: asyncio.Event
    ) -> Json:
        assert isinstance(peer, FakeSession)  # only the legacy era sends requests in the middle of a call
        id = f"ask-{self.next_id()}"
        pending = peer.pending_requests[id] = asyncio.get_running_loop().create_future()
        self._sender_for(exchange, peer)(make_request(id, step.method, step.params))
        cancel_wait = asyncio.ensure_future(cancelled.wait())
        try:
            await asyncio.wait({pending, cancel_wait}, timeout=_CLIENT_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            cancel_wait.cancel()
            del peer.pending_requests[id]
        return pending.result() if pending.done() else {"error": {"code": 0, "message": "the client did not respond"}}


class FakeSession(FakePeer):
    """Session of one legacy client (before 2026-07-28): its streams and pending requests."""

    def __init__(self) -> None:
        super().__init__()
        self.id = uuid.uuid4().hex
        self.streams: list[FakeExchange] = []  # open GET requests
        self.cancel_events: dict[Id, asyncio.Event] = {}  # set: cancelled
        self.pending_requests: dict[Id, asyncio.Future[Json]] = {}

    def send(self, message: Json) -> None:
        for stream in self.streams[:1]:
            stream.send_message(message)


class HttpFaultContext:
    """Argument of an HTTP fault function: the endpoint, the HTTP exchange, and the response without the fault."""

    def __init__(self, endpoint: Endpoint, setting: FaultSetting, exchange: FakeExchange, response: Json) -> None:
        self.endpoint = endpoint
        self.server = endpoint.server
        self.setting = setting
        self.exchange = exchange
        self.response = response

    def option(self, name: str, default: str = "") -> str:
        return str(self.setting.options.get(name, default))

    def send_response(self) -> None:
        """Send the response that a server without faults would send."""
        self.endpoint.send_response(self.exchange, self.response)

    def send_body(self, body: bytes) -> None:
        """Send the bytes `body` instead of the response that a faultless server would send."""
        self.endpoint.send_body(self.exchange, body)

    def open_stream(self) -> FakeExchange:
        """Start an SSE stream as the response, and return the exchange to send its events with."""
        return self.endpoint.stream_for(self.exchange)

    def end_stream(self) -> None:
        """End the SSE stream of the response with its last chunk."""
        self.endpoint.end_stream(self.exchange)


# -- headers of a POST -------------------------------------------------------------------------------------------------

_NAME_PARAM_BY_METHOD = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


def check_post_headers(headers: Mapping[str, str]) -> int | None:
    """Return the HTTP status that rejects a POST with invalid headers; None if they are valid.

    Checks Content-Type and Accept, which all protocol versions require.
    """
    if headers.get("content-type", "").split(";")[0].strip() != "application/json":
        return 415
    accepted = headers.get("accept", "")
    if "application/json" not in accepted or "text/event-stream" not in accepted:
        return 406
    return None


def find_mismatched_header(headers: Mapping[str, str], message: Json) -> str | None:
    """Return the name of an MCP header that contradicts the body of its request, or None.

    Only for the modern protocol (2026-07-28), which repeats method and name in headers.
    """
    params = as_object(message.get("params"))
    version = as_object(params.get("_meta")).get(VERSION_KEY)
    method = message["method"]
    expected = {"mcp-protocol-version": version, "mcp-method": method}
    if method in _NAME_PARAM_BY_METHOD:
        expected["mcp-name"] = params.get(_NAME_PARAM_BY_METHOD[method])
    if method == "tools/call" and params.get("name") == "echo":
        expected["mcp-param-tag"] = as_object(params.get("arguments")).get("tag")
    for name, value in expected.items():
        if value is not None and _decode_header(headers.get(name)) != value:
            return name
    return None


def _decode_header(value: str | None) -> str | None:
    if value is None or not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return base64.b64decode(value[9:-2], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


# -- HTTP/1.1 without a library, so a fault can change every byte of a response -----------------------------------

_MAX_HEAD_BYTES = 64 * 1024
JSON_HEADERS = {"Content-Type": "application/json"}
SSE_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class FakeHttpRequest:
    """HTTP request that a fake server received: method, target, lower-case headers and body."""

    def __init__(self, head: bytes) -> None:
        line, *fields = head.decode("latin-1").split("\r\n")
        self.method, self.target, _ = line.split(" ", 2)
        pairs = (field.partition(":") for field in fields)
        self.headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self.body = b""


class FakeConnection:
    """A client's connection to the fake HTTP server. Carries one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self._reader = reader
        self._buffer = bytearray()

    async def read_request(self) -> FakeHttpRequest | None:
        """Read the next HTTP request; None if the client has disconnected or sends invalid HTTP."""
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > _MAX_HEAD_BYTES or not await self._read_more():
                return None
        try:
            request = FakeHttpRequest(bytes(self._buffer[:end]))
        except ValueError:
            return None
        del self._buffer[: end + 4]
        if "chunked" in request.headers.get("transfer-encoding", ""):
            request.body = await self._read_chunked()
        else:
            request.body = await self._read_exactly(int(request.headers.get("content-length", "0")))
        return request

    async def wait_closed(self) -> None:
        """Wait until the client has closed the connection."""
        while await self._read_more():
            pass

    def reset(self) -> None:
        """End the client's connection with a TCP reset."""
        with contextlib.suppress(OSError):  # already closed
            raw = self.writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def _read_more(self) -> bool:
        try:
            data = await self._reader.read(65536)
        except OSError:
            return False
        self._buffer += data
        return bool(data)

    async def _read_exactly(self, size: int) -> bytes:
        while len(self._buffer) < size and await self._read_more():
            pass
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    async def _read_chunked(self) -> bytes:
        body = b""
        while size := int(await self._read_line(), 16):
            body += await self._read_exactly(size)
            await self._read_line()
        await self._read_line()
        return body

    async def _read_line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if not await self._read_more():
                return b"0"
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line


class FakeExchange:
    """One HTTP request to the fake server, and the methods to respond to it.

    A response can be sent whole, as an SSE stream, or in pieces of any bytes.
    """

    def __init__(self, connection: FakeConnection, request: FakeHttpRequest) -> None:
        self.connection = connection
        self.request = request
        self.extra_headers: dict[str, str] = {}  # added to every response
        self.is_streaming = False
        self.keep_alive = True  # the connection may serve another request
        self.survives_disconnect = False  # the work continues when the client has disconnected
        self.stream_ended = asyncio.Event()  # the event stream has ended

    def respond(self, status: int, body: bytes = b"", headers: Mapping[str, str] = JSON_HEADERS) -> None:
        """Send a whole HTTP response: status, headers and body."""
        self.write_head(status, {**(headers if body else {}), "Content-Length": str(len(body))})
        self.write(body)

    def respond_json(self, message: Json, status: int = 200) -> None:
        self.respond(status, encode(message))

    def write_head(self, status: int, headers: Mapping[str, str]) -> None:
        self.write(self.encode_head(status, headers))

    def encode_head(self, status: int, headers: Mapping[str, str]) -> bytes:
        fields = "".join(f"{name}: {value}\r\n" for name, value in {**headers, **self.extra_headers}.items())
        return f"HTTP/1.1 {status} {_reason_phrase(status)}\r\n{fields}\r\n".encode("latin-1")

    def write(self, data: bytes) -> None:
        if not self.connection.writer.is_closing():
            self.connection.writer.write(data)

    def open_stream(self) -> None:
        """Start the response as an SSE stream, unless it is one already."""
        if not self.is_streaming:
            self.is_streaming = True
            self.write_head(200, {**SSE_HEADERS, "Transfer-Encoding": "chunked"})

    def send_message(self, message: Json) -> None:
        """Send one JSON-RPC message as an event of the SSE stream."""
        self.send_event(encode(message))

    def send_event(self, data: bytes, id: str = "") -> None:
        self.open_stream()
        self.write_chunk(encode_event(data, id))

    def write_chunk(self, data: bytes) -> None:
        self.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end_stream(self) -> None:
        """End the SSE stream in an orderly way, with the last chunk."""
        self.open_stream()
        self.write(b"0\r\n\r\n")
        self.stream_ended.set()

    async def drain(self) -> None:
        await self.connection.writer.drain()

    def close(self) -> None:
        """Close the client's connection after the data written so far."""
        self.keep_alive = False
        self.stream_ended.set()
        self.connection.writer.close()

    def reset(self) -> None:
        """End the client's connection with a TCP reset."""
        self.keep_alive = False
        self.stream_ended.set()
        self.connection.reset()


def encode_event(data: bytes, id: str = "") -> bytes:
    id_line = f"id: {id}\n".encode() if id else b""
    return id_line + b"event: message\ndata: " + data + b"\n\n"


def _reason_phrase(status: int) -> str:
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return "Odd"
