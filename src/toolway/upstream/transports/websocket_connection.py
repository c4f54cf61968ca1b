"""WebSocket connection: the handshake, frames in both directions, and a bounded write queue.

The `websockets` library encodes and parses frames without I/O; this module reads and writes the socket. So it knows
which message was handed to the socket. Before that, a message was not sent and can be taken back. After that, its
outcome is unknown if the connection is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from toolway.http.request import HttpTarget
from toolway.http.tls import explain_alert
from toolway.protocol.sanitize import sanitize
from toolway.types import Certainty
from toolway.upstream.transport import Disconnect, TransportError
from toolway.upstream.transports import http_responses
from toolway.upstream.transports.stdio_pipes import MAX_QUEUED_BYTES, Frame, PipeBroken, PipeFull

if TYPE_CHECKING:
    from websockets.client import ClientProtocol

LIBRARY: Final = "websockets.client"  # imported before the first connection, in a thread
SUBPROTOCOL: Final = "mcp"
ENDED_CODE: Final = "E-WS-CLOSED"
HANDSHAKE_CODE: Final = "E-WS-HANDSHAKE"
MAX_SOCKET_BUFFER_BYTES: Final = 64 * 1024  # bytes that wait for the socket; more messages wait in the queue
PARSED_BYTES: Final = 2048  # bytes parsed at once: up to 1024 frames
MAX_PARSE_S: Final = 0.005  # seconds of one turn of the event loop for parsing
MAX_SHOWN_CHARS: Final = 200  # of a text of the server
# The library logs all headers of the handshake, tokens included.
_SILENT_LOGGER: Final = logging.Logger("toolway.websocket", logging.CRITICAL + 1)  # noqa: LOG001 -- out of reach of any log configuration
_CONTINUATION, _TEXT, _BINARY = 0, 1, 2  # opcodes of frames with data
_OPEN: Final = 1  # state of the library's protocol between the handshake and the first close frame
_EXPECTED_CLOSE_CODES: Final = frozenset({1000, 1001, 1012})  # the server is healthy
_CLOSE_CODES: Final[Mapping[int, str]] = {
    1001: "going away",
    1002: "protocol error",
    1003: "unsupported data",
    1007: "invalid data",
    1008: "policy violation",
    1009: "message too big",
    1011: "internal error",
    1012: "restart",
    1013: "overloaded",
}
_ENDPOINT_HINT: Final = "check that the url is a WebSocket endpoint; a Streamable HTTP url begins with http"


class MessageReceiver(Protocol):
    """Receiver of a connection's messages, and of its end. No method may raise or wait."""

    def on_text(self, message: bytes) -> None: ...

    def on_binary(self, message: bytes) -> None: ...

    def on_received(self, size: int) -> None: ...

    def on_write_stuck(self) -> None: ...

    def on_end(self, disconnect: Disconnect) -> None: ...


class WebSocketConnection(asyncio.Protocol):
    """One WebSocket connection of a client, from its handshake to its end.

    A received message has at most `max_message_bytes`. If the peer reads nothing for `write_timeout` seconds although
    messages wait, `receiver.on_write_stuck` is called.
    """

    def __init__(
        self, receiver: MessageReceiver, target: HttpTarget, max_message_bytes: int, write_timeout: float
    ) -> None:
        self._receiver = receiver
        self._target = target
        self._max_message_bytes = max_message_bytes
        self._write_timeout = write_timeout
        self._protocol = _new_protocol(target, max_message_bytes)
        self._loop = asyncio.get_running_loop()
        self._socket: asyncio.Transport | None = None
        self._handshake: asyncio.Future[None] = self._loop.create_future()
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._message = bytearray()  # the fragments of an unfinished message
        self._has_fragments = False
        self._is_text = True
        self._partial_bytes = 0  # received of an unfinished frame
        self._input = bytearray()  # received and not parsed yet
        self._is_parsing = False  # the rest of the input is parsed in a later turn of the event loop
        self._has_eof = False
        self._loss: tuple[Exception | None] | None = None  # the error of the lost connection, if it was lost
        self._is_reading_paused = False  # by the receiver
        self._queue: deque[Frame] = deque()
        self._queued_bytes = 0
        self._paused = False
        self._stuck_timer: asyncio.TimerHandle | None = None
        self._opened = False  # the handshake succeeded
        self._ended = False  # the end was reported, or we closed the connection

    @property
    def is_mid_message(self) -> bool:
        """Return True if a message was received only partly so far."""
        return self._has_fragments or self._partial_bytes > 0

    # -- handshake ----------------------------------------------------------------------------------------------------

    async def shake_hands(self, headers: Mapping[str, str]) -> None:
        """Send the request of the handshake and wait for its response. Raises `TransportError` if it fails."""
        request = self._protocol.connect()
        for name, value in headers.items():
            request.headers[name] = value
        self._protocol.send_request(request)
        self._write_frames()
        await self._handshake

    def _finish_handshake(self) -> None:
        problem = self._protocol.handshake_exc
        if self._handshake.done():
            return
        if problem is None:
            self._opened = True
            self._handshake.set_result(None)
        else:
            self._handshake.set_exception(_handshake_error(self._target, problem))

    # -- the end ------------------------------------------------------------------------------------------------------

    def send_close(self) -> None:
        """Send a close frame, unless the connection is closed or the peer has stopped reading."""
        if not self._ended and self._protocol.state == _OPEN:
            self._protocol.send_close(1000)
            self._write_frames()

    def close(self) -> None:
        """Drop all queued messages, and close the connection once the socket's data is sent."""
        self._ended = True
        self._input.clear()
        self._queue.clear()
        self._queued_bytes = 0
        if self._stuck_timer is not None:
            self._stuck_timer.cancel()
        if self._socket is not None:
            self._socket.close()

    def abort(self) -> None:
        """Abort the connection."""
        self.close()
        if self._socket is not None:
            self._socket.abort()

    async def wait_lost(self, timeout: float) -> None:
        """Wait until a closed connection has ended; abort it after `timeout` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await asyncio.shield(self._lost)
                return
        self.abort()
        await asyncio.sleep(0)  # the event loop closes the socket in its next turn

    def _end(self, disconnect: Disconnect) -> None:
        """Report the end of the connection once. No message is written after that."""
        if self._opened and not self._ended:
            self._ended = True
            self._receiver.on_end(disconnect)

    # -- sending ------------------------------------------------------------------------------------------------------

    def write_nowait(self, message: bytes, on_sent: Callable[[], None] | None) -> Frame:
        """Queue a text message and return its frame; `on_sent` is called when it was handed to the socket.

        Raises `PipeFull` if the queue is at its limit, and `PipeBroken` if the connection has ended.
        """
        if self._ended or self._socket is None or self._socket.is_closing():
            raise PipeBroken
        if self._queued_bytes + len(message) > MAX_QUEUED_BYTES:
            raise PipeFull
        frame = Frame(message, on_sent)
        self._queue.append(frame)
        self._queued_bytes += len(message)
        self._flush()
        return frame

    def send_ping(self) -> None:
        """Send a ping, unless messages are waiting: the connection is in use then anyway."""
        if not self._paused and not self._ended and self._protocol.state == _OPEN:
            self._protocol.send_ping(b"")
            self._write_frames()

    def _flush(self) -> None:
        while self._queue and not self._paused and not self._ended and self._protocol.state == _OPEN:
            frame = self._queue.popleft()
            self._queued_bytes -= len(frame.data)
            if frame.cancelled or (frame.may_send is not None and not frame.may_send()):
                continue
            self._protocol.send_text(frame.data)
            if not self._write_frames():
                return  # the connection is lost, and the socket took nothing of this message
            frame.sent = True
            if frame.on_sent is not None:
                frame.on_sent()

    def _write_frames(self) -> bool:
        """Pass encoded frames to the socket. Return False if the connection is lost and no whole frame was sent."""
        assert self._socket is not None
        data = b"".join(self._protocol.data_to_send())
        if self._socket.is_closing():
            return False
        was_empty = self._socket.get_write_buffer_size() == 0
        if data:
            self._socket.write(data)
        return not (was_empty and self._socket.is_closing())  # closing: the write failed

    def pause_writing(self) -> None:
        self._paused = True
        self._watch_progress()

    def resume_writing(self) -> None:
        self._paused = False
        if self._stuck_timer is not None:
            self._stuck_timer.cancel()
            self._stuck_timer = None
        self._flush()

    def _watch_progress(self) -> None:
        if self._socket is not None and not self._ended:
            size = self._socket.get_write_buffer_size()
            self._stuck_timer = self._loop.call_later(self._write_timeout, self._check_progress, size)

    def _check_progress(self, before: int) -> None:
        if self._socket is not None and self._socket.get_write_buffer_size() < before:
            self._watch_progress()
        else:
            self._receiver.on_write_stuck()
            self.abort()

    # -- receiving ----------------------------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        self._is_reading_paused = True
        self._update_reading()

    def resume_reading(self) -> None:
        self._is_reading_paused = False
        self._update_reading()

    def _update_reading(self) -> None:
        if self._socket is None or self._socket.is_closing():
            return
        if self._is_reading_paused or self._is_parsing:
            self._socket.pause_reading()
        else:
            self._socket.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)
        self._socket.set_write_buffer_limits(high=MAX_SOCKET_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        self._input += data
        if not self._is_parsing:
            self._parse_input()

    def eof_received(self) -> None:
        self._has_eof = True
        if not self._is_parsing:
            self._finish_input()

    def connection_lost(self, exc: Exception | None) -> None:
        self._loss = (exc,)
        if not self._is_parsing:
            self._finish_input()

    def _parse_input(self) -> None:
        """Parse received bytes for some milliseconds, and the rest in later turns of the event loop.

        A frame can be as short as two bytes, so one read may return over a hundred thousand frames.
        """
        was_parsing, until = self._is_parsing, self._loop.time() + MAX_PARSE_S
        while self._input and not self._ended:
            part = bytes(self._input[:PARSED_BYTES])
            del self._input[:PARSED_BYTES]
            self._protocol.receive_data(part)
            self._process_events(len(part))
            self._receiver.on_received(len(part))
            if self._loop.time() >= until:
                break
        if self._ended:
            self._input.clear()
        self._is_parsing = bool(self._input)
        if self._is_parsing != was_parsing:
            self._update_reading()
        if self._is_parsing:
            self._loop.call_soon(self._parse_input)
        else:
            self._finish_input()

    def _finish_input(self) -> None:
        """Report the end of the stream or connection, after everything received before it."""
        if self._has_eof and not self._ended:
            self._has_eof = False
            self._protocol.receive_eof()
            self._process_events(0)
        if self._loss is not None and not self._lost.done():
            (exc,) = self._loss
            if not self._handshake.done():
                self._handshake.set_exception(_lost_error(self._target, exc))
                self._handshake.exception()  # mark it as retrieved: the caller may be gone
            self._end(Disconnect(f"the connection was lost{_describe_loss(exc)}", ENDED_CODE))
            self._lost.set_result(None)

    def _process_events(self, size: int) -> None:
        events = self._protocol.events_received()
        self._partial_bytes = len(self._protocol.reader.buffer) if events else self._partial_bytes + size
        for event in events:
            if not hasattr(event, "opcode"):  # the response to the handshake
                self._finish_handshake()
            elif event.opcode in (_CONTINUATION, _TEXT, _BINARY):
                self._on_data_frame(event)
        if self._protocol.handshake_exc is not None:
            self._finish_handshake()
            return
        if not self._paused:
            self._write_frames()  # pongs, or the response to a close frame
        else:
            self._protocol.data_to_send()  # a peer that reads nothing gets no pongs: they would fill our memory
        self._check_ended()

    def _on_data_frame(self, frame: Any) -> None:
        if frame.opcode != _CONTINUATION:
            self._is_text = frame.opcode == _TEXT
        if not frame.fin:
            self._has_fragments = True
            self._message += frame.data
            return
        message = bytes(frame.data)
        if self._has_fragments:
            message = bytes(self._message) + message
            self._has_fragments, self._message = False, bytearray()
        (self._receiver.on_text if self._is_text else self._receiver.on_binary)(message)

    def _check_ended(self) -> None:
        """Report the end of the connection, if the server closed it or violated the WebSocket protocol."""
        problem, closed = self._protocol.parser_exc, self._protocol.close_rcvd
        if closed is not None:
            reason = _describe_close(closed.code, closed.reason)
            hint = "send less in one call" if closed.code == 1009 else ""
            self._end(Disconnect(reason, ENDED_CODE, hint=hint, expected=closed.code in _EXPECTED_CLOSE_CODES))
        elif problem is not None and type(problem).__name__ == "PayloadTooBig":
            reason = f"the server sent a message over {self._max_message_bytes} bytes"
            self._end(Disconnect(reason, "E-FRAME-LIMIT", hint="raise `limits.maxMessageBytes` for this server"))
        elif problem is not None and not isinstance(problem, EOFError):
            self._end(Disconnect(f"the server sent an invalid frame: {_shown(problem)}", "E-FRAME-BAD"))


# -- messages ---------------------------------------------------------------------------------------------------------


def _new_protocol(target: HttpTarget, max_message_bytes: int) -> ClientProtocol:
    from websockets.client import ClientProtocol
    from websockets.uri import parse_uri

    scheme = "wss" if target.origin.scheme == "https" else "ws"
    uri = parse_uri(f"{scheme}://{target.origin.authority}{target.path}")
    return ClientProtocol(
        uri,
        subprotocols=cast(Any, [SUBPROTOCOL]),
        max_size=max_message_bytes,
        logger=_SILENT_LOGGER,
    )


def _handshake_error(target: HttpTarget, problem: Exception) -> TransportError:
    response = getattr(problem, "response", None)
    if response is not None:  # a status other than 101
        return _status_error(response)
    if isinstance(problem.__cause__, EOFError):
        return _lost_error(target, None)
    return TransportError(
        f"the server's response is not a WebSocket handshake: {_shown(problem)}",
        Certainty.NOT_SENT,
        code=HANDSHAKE_CODE,
        hint=_ENDPOINT_HINT,
    )


def _status_error(response: Any) -> TransportError:
    """Return the error for a handshake that the server answered with a status other than 101."""
    status: int = response.status_code
    headers = {name.lower(): value for name, value in response.headers.raw_items()}
    if status < 300:
        return TransportError(
            f"the server answered the WebSocket handshake with status {status}",
            Certainty.NOT_SENT,
            code=HANDSHAKE_CODE,
            status=status,
            hint=_ENDPOINT_HINT,
        )
    if status < 400:
        return TransportError(
            f"the server redirects to {sanitize(headers.get('location', 'nowhere'), MAX_SHOWN_CHARS)} ({status}), "
            "which is not followed",
            Certainty.REJECTED,
            code="E-HTTP-REDIRECT",
            status=status,
            hint="if you trust that address, make it the server's url",
        )
    return http_responses.error_for_notification(status, headers, bytes(response.body or b""), in_session=False)


def _lost_error(target: HttpTarget, exc: Exception | None) -> TransportError:
    objection = explain_alert(exc)
    if objection is not None:
        reason, hint = f"{target.origin} {objection[0]}", objection[1]
        return TransportError(reason, Certainty.NOT_SENT, code="E-HTTP-TLS", hint=hint)
    return TransportError(
        f"{target.origin} closed the connection during the WebSocket handshake{_describe_loss(exc)}",
        Certainty.NOT_SENT,
        code="E-HTTP-TLS" if isinstance(exc, ssl.SSLError) else "E-HTTP-CONNECT",
        hint=_ENDPOINT_HINT,
    )


def _describe_loss(exc: Exception | None) -> str:
    return f" ({_shown(exc)})" if exc is not None else ""


def _describe_close(code: int, reason: str) -> str:
    meaning = ", ".join(filter(None, (_CLOSE_CODES.get(code, ""), sanitize(reason, MAX_SHOWN_CHARS))))
    return f"the server closed the connection ({code}{': ' + meaning if meaning else ''})"


def _shown(problem: Exception) -> str:
    return sanitize(str(problem), MAX_SHOWN_CHARS)
