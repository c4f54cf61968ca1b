"""Transport to a server at a ws:// or wss:// URL: one JSON-RPC message per text frame, both eras.

The connection begins as an HTTP request to a checked address (`http/dialer.py`), with the headers and the token of the
server. A redirect is not followed. Compression is not negotiated, so a message is never larger than its frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import import_module
from typing import Final

from toolway._version import __version__
from toolway.config.schema import Server
from toolway.http.client import HeaderBlock, HttpError, HttpTarget, encode_headers
from toolway.http.dialer import Dialer, proxy_for
from toolway.protocol import jsonrpc
from toolway.protocol.sanitize import sanitize
from toolway.secrets.replacer import cut_bytes, cut_text
from toolway.types import Authorizer, Certainty
from toolway.upstream.transport import Disconnect, InboundHandler, TransportError, TransportInfo, TransportServices
from toolway.upstream.transports import http_responses
from toolway.upstream.transports.message_stream import MessageStream
from toolway.upstream.transports.stdio_pipes import Frame, PipeBroken, PipeFull
from toolway.upstream.transports.websocket_connection import ENDED_CODE, LIBRARY, WebSocketConnection

HANDSHAKE_TIMEOUT_S: Final = 10.0  # seconds from the request of the handshake to its response
PING_INTERVAL_S: Final = 20.0  # seconds between pings, which keep the connection open at proxies
CLOSE_TIMEOUT_S: Final = 1.0  # seconds for the end of a connection that we close
MAX_SHOWN_JUNK_CHARS: Final = 200


def create(server: Server, services: TransportServices) -> WebSocketTransport:
    """Return an unopened WebSocket transport, for the registry in `transports/__init__.py`."""
    return WebSocketTransport(server, services.authorizer)


class WebSocketTransport(MessageStream):
    """Transport to a server over one WebSocket connection, for both eras."""

    def __init__(self, server: Server, authorizer: Authorizer | None = None) -> None:
        super().__init__(server, ENDED_CODE)
        self._authorizer = authorizer
        self._connection: WebSocketConnection | None = None
        self._ping_timer: asyncio.TimerHandle | None = None
        self._junk = ""  # the start of the last message that was not valid

    # -- open and close -----------------------------------------------------------------------------------------------

    async def open(self, inbound: InboundHandler) -> None:
        self._inbound = inbound
        await asyncio.to_thread(import_module, LIBRARY)
        try:
            target = HttpTarget.parse(self._server.http_url or "")
            headers = handshake_headers(self._server)
        except ValueError as exc:
            hint = "fix `url` or `headers` in the server's entry"
            raise TransportError(str(exc), Certainty.NOT_SENT, code="E-HTTP-CONFIG", hint=hint) from None
        try:
            self._connection = await self._connect_with_auth(target, headers)
        except TransportError as exc:
            exc.certainty = Certainty.NOT_SENT  # the handshake failed, so no message was sent
            raise
        self._ping_timer = self._loop.call_later(PING_INTERVAL_S, self._ping)

    async def _connect_with_auth(self, target: HttpTarget, headers: dict[str, str]) -> WebSocketConnection:
        authorizer, rejected = self._authorizer, None
        if authorizer is None or authorizer.is_inactive:
            try:
                return await self._connect(target, headers)
            except TransportError as error:
                if authorizer is None or error.status != 401:
                    raise
                authorizer.activate()
                rejected = error
        return await http_responses.send_with_auth(
            authorizer,
            "connect",
            lambda token: self._connect(target, headers | _parse_headers(token)),
            rejected=rejected,
        )

    async def _connect(self, target: HttpTarget, headers: dict[str, str]) -> WebSocketConnection:
        """Open a connection and wait for the response to the handshake. Raises `TransportError` if that fails."""
        server, timeout = self._server, self._server.timeout
        dialer = Dialer(server.effective_network_policy, timeout.connect, server.tls)
        connection: WebSocketConnection | None = None
        limit, problem = timeout.connect, "no connection to"
        try:
            async with asyncio.timeout(limit):
                connection = await dialer.dial(
                    target.origin,
                    proxy_for(target.origin),
                    lambda: WebSocketConnection(self, target, server.limits.max_message_bytes, timeout.write),
                    tunnel=True,
                )
            limit, problem = HANDSHAKE_TIMEOUT_S, "no response to the WebSocket handshake from"
            async with asyncio.timeout(limit):
                await connection.shake_hands(headers)
        except BaseException as exc:
            if connection is not None:
                connection.abort()
            if isinstance(exc, HttpError):
                raise http_responses.error_from_http(exc) from None
            if isinstance(exc, TimeoutError):
                hint = "check the address and the network; a firewall may drop packets"
                reason = f"{problem} {target.origin} within {limit:g} s"
                raise TransportError(reason, Certainty.NOT_SENT, code="E-HTTP-TIMEOUT", hint=hint) from None
            raise
        return connection

    async def close(self) -> None:
        """Send a close frame and close the connection, which is aborted after about a second."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.send_close()
            connection.close()
        self._disconnect(Disconnect("closed by us", "E-CLOSED"))
        self._cancel_tasks()
        if connection is not None:
            await connection.wait_lost(CLOSE_TIMEOUT_S)

    def info(self) -> TransportInfo:
        return TransportInfo(
            stderr=self._junk,
            unmatched_responses=self._pending.dropped,
            invalid_lines=self._invalid_messages,
            messages_sent=self._messages_sent,
            messages_received=self._messages_received,
            transport="websocket",
        )

    def _close_stream(self) -> None:
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        if self._connection is not None:
            self._connection.close()

    def _ping(self) -> None:
        """Send a ping to keep proxies from closing the connection as unused.

        A missing pong ends nothing: a server that is busy with a call may answer late. The health check decides.
        """
        if self._connection is not None and not self._disconnected.done():
            self._connection.send_ping()
            self._ping_timer = self._loop.call_later(PING_INTERVAL_S, self._ping)

    # -- sending ------------------------------------------------------------------------------------------------------

    def _write(self, message: bytes, on_sent: Callable[[], None] | None) -> Frame:
        try:
            if self._connection is None:
                raise PipeBroken
            return self._connection.write_nowait(message, on_sent)
        except PipeFull:
            raise TransportError(
                "the server reads too slowly: the write queue is full", Certainty.NOT_SENT, code="E-WS-FULL"
            ) from None
        except PipeBroken:
            raise TransportError(
                "the connection to the server has ended", Certainty.NOT_SENT, code=ENDED_CODE
            ) from None

    def _cancel_write(self, frame: Frame) -> bool:
        frame.cancelled = not frame.sent
        return frame.cancelled

    def on_write_stuck(self) -> None:
        """End the transport: the server read nothing for the write timeout."""
        reason = f"the server read nothing for {self._server.timeout.write:g} s"
        self._disconnect(Disconnect(reason, "E-WS-STUCK"))

    # -- receiving ----------------------------------------------------------------------------------------------------

    def _pause_reading(self) -> None:
        if self._connection is not None:
            self._connection.pause_reading()

    def _resume_reading(self) -> None:
        if self._connection is not None:
            self._connection.resume_reading()

    def _is_mid_frame(self) -> bool:
        return self._connection is not None and self._connection.is_mid_message

    def on_text(self, message: bytes) -> None:
        """Process a text message of the server, which is one JSON-RPC message; a blank one is ignored."""
        if message.strip():
            self._on_frame(message)

    def on_binary(self, message: bytes) -> None:
        """Count a binary message, and keep its first bytes for diagnosis: MCP only has text messages."""
        self._invalid_messages += 1
        self._junk = f"a binary message of {len(message)} bytes, which begins with {cut_text(message.hex(), 32)}"
        self._count_bad_message()

    def on_received(self, size: int) -> None:
        """Count received bytes, after all messages in them were processed."""
        self._on_received(size)

    def on_end(self, disconnect: Disconnect) -> None:
        """End the transport: the connection ended, or must no longer be used."""
        self._disconnect_after(disconnect, 0.0)

    def _on_bad_frame(self, frame: bytes, bad: jsonrpc.InvalidMessage) -> None:
        self._junk = sanitize(cut_bytes(frame, 4 * MAX_SHOWN_JUNK_CHARS), MAX_SHOWN_JUNK_CHARS)
        super()._on_bad_frame(frame, bad)


# -- headers ----------------------------------------------------------------------------------------------------------


def handshake_headers(server: Server) -> dict[str, str]:
    """Return the headers that the server's entry adds to the WebSocket handshake.

    Raises `ValueError` if one of them is invalid or belongs to the handshake itself.
    """
    headers = dict(server.headers)
    if not any(name.lower() == "user-agent" for name in headers):
        headers["User-Agent"] = f"toolway/{__version__}"
    encode_headers(headers)
    own = next((name for name in headers if name.lower().startswith("sec-websocket-")), None)
    if own is not None:
        raise ValueError(f"the header {own} is set by the client itself")
    return headers


def _parse_headers(block: HeaderBlock) -> dict[str, str]:
    lines = (line.partition(": ") for line in block.decode("ascii").splitlines())
    return {name: value for name, _, value in lines}
