"""Transport protocol: the interface between an upstream and the connection to its server.

A transport sends JSON-RPC requests to one server and reports, for each failed one, how far it got. Everything above
(eras, restarts, lists, middleware) uses only this protocol. stdio, HTTP, WebSocket and in-process servers implement it,
and so can anything else that answers requests.

Theory of operation
-------------------
A transport lives once: `create_transport` (in `transports/__init__.py`) makes it, the `Session` opens it and sends
requests, the `Supervisor` awaits `wait_closed` and calls `close`. After an end, the next start makes a new one.

`start` sends a request and returns its `RequestExchange`: the id, whether it was sent, and the outcome. A listener of
the exchange is called when a plain result arrives, or when something else happens; nothing waits. `wait` waits for
the outcome of an exchange and never sends what the server may have executed. `request` is both. Many exchanges run at
the same time, in any order of requests and responses. On a pipe or an SSE stream, one reader passes each response to
its request (`transports/pending_requests.py`). With Streamable HTTP and OpenAPI, each request reads its response
itself.

The one question that only a transport can answer is: may the server have executed this request? It answers by
`request.call_state.certainty` while the request runs, and by `TransportError.certainty` if it fails. The retry rules
(`middleware/retry.py`) trust it, so a wrong NOT_SENT executes a call twice. In doubt, it is UNKNOWN.

A caller cancels by cancelling the task of `request`. If the request was not sent yet, it is never sent. If it was,
`_notify_cancelled` of the transport sends `notifications/cancelled`, unless `silent_cancel` is set. A modern HTTP
server and an API get no notification: there, the closed connection is the cancellation.

Rules for every transport:
1. A failed request affects only itself; only the end of the transport affects the other requests.
2. Every wait ends when the caller cancels; a transport adds its own limits, never its own retries.
3. `request.call_state.certainty` is raised as soon as a fact is known, so a cancelled request can be classified.
4. Server data is untrusted: it may fail its own request, and it never raises into the transport's reader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol, runtime_checkable

import msgspec

from toolway.config.schema import Server
from toolway.errors import ArgumentViolation, CallError
from toolway.protocol import jsonrpc
from toolway.types import Authorizer, CallState, Certainty, Era, Json
from toolway.upstream.process.spawner import Spawner

RESTART_CODE: Final = "E-RESTART"  # someone asked for a restart: nothing failed
SERVER_MOVED: Final = "E-MOVED"  # the server moved to another node, so this failed start says nothing about it
SEND_TOO_LATE: Final = "E-WORKFLOW-LOST"  # the caller of the call may no longer send it
CONNECT_TIMEOUT_CODE: Final = "E-HTTP-TIMEOUT"  # if nothing was sent; else a request or response takes too long
#: The server, or the node that owns it, could not be reached, or the connection to it was lost. A restart does that.
CONNECTION_CODES: Final = frozenset(
    {
        "E-HTTP-CONNECT",
        "E-HTTP-DNS",
        CONNECT_TIMEOUT_CODE,
        "E-HTTP-RESET",
        "E-HTTP-CUT",
        "E-SSE-ENDED",
        "E-WS-CLOSED",
        "E-OWNER-LOST",
        "E-NO-OWNER",
    }
)
WRONG_NODE: Final = "E-NOT-HERE"  # the sender must find the node that runs the server


class Request(msgspec.Struct, gc=False):
    """One JSON-RPC request to a server. The transport assigns its id.

    Example:
        async def request(self, request: Request) -> dict[str, Any]:
            request.call_state.mark_sent()
            return await self.send(request.method, request.params)
    """

    method: str
    params: Json
    call_state: CallState = msgspec.field(default_factory=CallState)
    version: str | None = None  # the modern version in its `_meta`; an HTTP transport mirrors it into a header
    input_schema: object = None  # of the called tool: some arguments are mirrored into headers
    new_connection: bool = False  # do not use an idle connection: a loss there would be ambiguous
    silent_cancel: bool = False  # send no cancel notification if the request is cancelled
    encoded_params: bytes = b""  # the params of a tool call as JSON, if they are encoded already

    def encode(self, id: int) -> bytes:
        """Return the request as an encoded message. Raises an error such as `TypeError` if the params are not JSON."""
        if self.encoded_params:
            return jsonrpc.encode_tool_call(id, self.encoded_params)
        return jsonrpc.encode_request(id, self.method, self.params)


class ExchangeListener(Protocol):
    """Receiver for the outcome of a request that `StartingTransport.start` has sent.

    One of its methods is called once, in a callback of the event loop, and must not raise.
    """

    def arrived(self, result: Json, frame: bytes) -> None:
        """Receive the result of the request.

        `frame` is the message as received; it is empty if the message contains more than a result.
        """
        ...

    def failed(self) -> None:
        """Handle a request that failed or has an unusual result.

        `StartingTransport.wait` returns or raises its outcome.
        """
        ...


class RequestExchange:
    """One request to a server, from just before it is sent until its result is known.

    It records whether the server may have executed the request, even while no call waits for it. `attach` passes that
    to the state of a call.
    """

    __slots__ = ("call_state", "frame", "id", "is_sent", "listener", "received", "result")

    def __init__(self, id: int, call_state: CallState | None, listener: ExchangeListener | None) -> None:
        self.id = id
        self.call_state = call_state  # of the call that waits for it; None as long as no call does
        self.listener = listener
        self.is_sent = False  # the server may execute it
        self.result: Json | None = None
        self.frame = b""  # the message with the result, if it has nothing else
        self.received = b""  # the bytes of the result in it, if they are known already
        if call_state is not None:
            self._begin(call_state)

    def _begin(self, call_state: CallState) -> None:
        call_state.phase = "send"
        call_state.raw_bytes = None
        call_state.jsonrpc_id = self.id

    @property
    def certainty(self) -> Certainty:
        own = Certainty.UNKNOWN if self.is_sent else Certainty.NOT_SENT
        return own if self.call_state is None else max(own, self.call_state.certainty)

    def mark_sent(self) -> None:
        """Record that the server may execute the request from now on."""
        self.is_sent = True
        if self.call_state is not None:
            self.call_state.mark_sent()

    def attach(self, call_state: CallState) -> None:
        """Report the progress of this request in the state of a call, which waits for the result from now on."""
        self.listener = None
        self.call_state = call_state
        self._begin(call_state)
        if self.is_sent:
            call_state.mark_sent()

    def take_result(self) -> Json:
        """Return the result that arrived. If the call's state asks for it, also store its bytes there."""
        assert self.result is not None
        state = self.call_state
        if state is not None and state.keep_raw and self.frame:
            state.raw_bytes = jsonrpc.slice_result(self.frame, self.id)
        return self.result


def require_may_send(call_state: CallState) -> None:
    """Raise `TransportError` if it is too late to send a call. Check right before the first byte."""
    if call_state.may_send is not None and not call_state.may_send():
        raise TransportError("it is too late to send the call", Certainty.NOT_SENT, code=SEND_TOO_LATE)


class TransportError(Exception):
    """Raised when a request got no usable response; says whether the server may have executed it.

    Example:
        raise TransportError("no connection", Certainty.NOT_SENT)
    """

    def __init__(
        self,
        reason: str,
        certainty: Certainty,
        *,
        code: str = "E-LINK",
        status: int | None = None,
        retry_after: float | None = None,
        hint: str = "",
        www_authenticate: str | None = None,
        call_error: CallError | None = None,
        violations: tuple[ArgumentViolation, ...] = (),
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.certainty = certainty
        self.code = code
        self.status = status  # the HTTP status, if any
        self.retry_after = retry_after  # seconds, if the server named them
        self.hint = hint
        self.www_authenticate = www_authenticate  # the WWW-Authenticate header, if any
        self.violations = violations  # in the arguments of a call, if they cannot be encoded
        self.call_error = call_error  # final error, if the peer is a Toolway gateway that classified it


class JSONRPCError(Exception):
    """Raised for a JSON-RPC error response of the server, with its code, message and data.

    Example:
        raise JSONRPCError(error["code"], error["message"], error.get("data"))
    """

    def __init__(self, code: int, message: str, data: object = None, *, status: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.status = status  # the HTTP status of the response, if any


class Disconnect(msgspec.Struct, frozen=True):
    """Why a transport ended or could not be opened.

    Example:
        async def wait_closed(self) -> Disconnect:
            await self._closed.wait()
            return Disconnect("the socket was closed")
    """

    reason: str
    code: str = "E-LINK"
    exit_code: int | None = None
    hint: str = ""
    expected: bool = False  # connections of this kind end now and then; the server is healthy
    moved: bool = False  # the server runs elsewhere now: the next transport is opened at once


class TransportInfo(msgspec.Struct, frozen=True):
    """Details about a transport for users, such as pid, last stderr lines and counters.

    Example:
        def info(self) -> TransportInfo:
            return TransportInfo(transport="unix socket")
    """

    pid: int | None = None
    stderr: str = ""  # the last lines
    unmatched_responses: int = 0  # responses without a pending request
    invalid_lines: int = 0  # lines that were not messages
    notes: tuple[str, ...] = ()  # remarks about its list of tools
    transport: str = ""  # if it is not the usual transport of the entry
    messages_sent: int = 0  # requests, notifications and responses to server requests
    messages_received: int = 0  # results, errors, notifications and server requests
    peer_is_modern: bool = False  # the peer speaks the modern era, even if the server itself does not


class InboundHandler(Protocol):
    """Receiver of the notifications and requests that the server sends.

    `call_state` is the state of the call they belong to, if known. `on_notification` must return at once.

    Example:
        inbound.on_notification(message["method"], message.get("params", {}))
    """

    def on_notification(self, method: str, params: Json, call_state: CallState | None = None) -> None: ...

    async def on_request(self, method: str, params: Json, call_state: CallState | None = None) -> Json | None:
        """Answer a request of the server: return the result, or None to send no response.

        Raises `JSONRPCError` to send that error. The transport runs this method in a separate task.
        """
        ...


class Transport(Protocol):
    """One connection to a server, of any kind (process, HTTP …). Opened once, closed once, never reused.

    A subclass needs `open`, `request`, `wait_closed` and `info`. A transport that receives messages of the server by
    itself passes them to the `InboundHandler`.

    Example:
        class SocketTransport(Transport):  # all of it: examples/own_transport.py
            async def request(self, request: Request) -> dict[str, Any]:
                request.call_state.mark_sent()
                return await self.send(request.method, request.params)
    """

    async def open(self, inbound: InboundHandler) -> None:
        """Open the connection. Raises `TransportError` if that fails; no request was sent then."""
        ...

    async def request(self, request: Request) -> Json:
        """Send a request and return its result.

        Raises `TransportError` without a usable response, and `JSONRPCError` if the server answers with an
        error. If the task is cancelled, the server is notified as the protocol requires.
        """
        ...

    async def notify(self, method: str, params: Json) -> None:
        """Send a notification to the server. Raises `TransportError` if it cannot be sent. Default: send nothing."""
        return

    def set_protocol(self, era: Era, version: str) -> None:
        """Set the negotiated era and version, before the first request in that era. Default: do nothing."""
        return

    def reset_session(self) -> None:
        """Discard the session of a legacy server, because the server no longer knows it. Default: do nothing."""
        return

    async def wait_closed(self) -> Disconnect:
        """Wait until the connection ends, and return the reason.

        A transport without a persistent connection waits forever.
        """
        ...

    def info(self) -> TransportInfo:
        """Return current details about the connection, such as pid and stderr."""
        ...

    async def close(self) -> None:
        """Close the connection and free its resources in bounded time. Safe to call twice. Default: do nothing."""
        return


@runtime_checkable
class StartingTransport(Transport, Protocol):
    """Transport that can send a request without waiting. The HTTP, stdio and WebSocket transports can."""

    def start(self, request: Request, listener: ExchangeListener) -> RequestExchange | None:
        """Send a request at once and return its exchange, which records the outcome and reports it to `listener`.

        None if it would have to wait, for example for a connection. Then nothing was sent, and the caller uses
        `request`. The state of the call is not used. Raises `TransportError` if it cannot be sent.
        """
        ...

    async def wait(self, exchange: RequestExchange, request: Request) -> Json:
        """Wait for the outcome of `request`, which `start` has sent; return or raise what `Transport.request` would.

        It is sent again only if the server has rejected it without processing it.
        """
        ...

    def abandon(self, exchange: RequestExchange, request: Request) -> None:
        """Stop a request that no caller waits for any more: remove it if it is still queued, else notify the server."""
        ...


@runtime_checkable
class InProcessServer(Protocol):
    """Server in this process with its own transport; the `instance` of a server definition.

    Example:
        class SocketServer:
            def create_transport(self) -> Transport:
                return SocketTransport("/run/shout.sock")


        hub = Hub({"shout": SocketServer()})
    """

    def create_transport(self) -> Transport:
        """Return a new, unopened transport to the server."""
        ...


class TransportServices(msgspec.Struct, frozen=True):
    """Hub services that a transport may need: process spawner, environment, credentials."""

    spawner: Spawner
    environ: Mapping[str, str]
    authorizer: Authorizer | None = None


#: Signature of `create` in every transport module.
CreateTransport = Callable[[Server, TransportServices], Transport]
