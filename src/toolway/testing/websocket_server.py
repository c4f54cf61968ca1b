"""Fake MCP server over WebSocket, legacy (before 2026-07-28) and modern, that misbehaves on request.

    python -m toolway.testing.websocket_server --list-modes
    python -m toolway.testing.websocket_server --port 0 --era legacy

Its first line on stdout is `listening PORT`. Inside a test, use `toolway.testing.FakeWebSocket`. See `faults` for how
fault modes are set. Modes with the trigger point `connect` affect the handshake.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import struct
from collections.abc import Generator
from functools import partial
from http import HTTPStatus

from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State

from toolway.testing import faults, tools
from toolway.testing.command_line import build_parser, parse_options, server_options
from toolway.testing.faults import CORRUPTIONS, LIST_FAULTS, ActiveFaults, pad_response, replace_id
from toolway.testing.server import FakePeer, FakeServer, ServerRequest
from toolway.testing.wire import (
    RpcError,
    Unanswered,
    cancelled_id,
    encode,
    make_error_response,
    make_notification,
    make_request,
    parse_message,
)

TYPE_CHECKING = False

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable
    from typing import Any, NoReturn, Self

    from websockets.asyncio.server import Server
    from websockets.http11 import Request

    from toolway.testing.faults import FaultSetting
    from toolway.testing.server import Stats, Steps
    from toolway.testing.wire import Id, Json

_CLIENT_TIMEOUT_S = 60  # seconds for the client's response
_LINGER_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset


class FakeWebSocket:
    """Fake MCP server over WebSocket, in this process.

        async with FakeWebSocket(era="legacy", modes=["close=1011;times=1"]) as server:
            ...  # connect to server.url, then check server.stats

    With `ssl`, the server speaks TLS. Other options are listed by
    `python -m toolway.testing.websocket_server --help`: name, tools, page, ttl, effects.
    """

    def __init__(
        self,
        *,
        era: str = "both",
        modes: Iterable[str] = (),
        host: str = "127.0.0.1",
        port: int = 0,
        ssl: ssl.SSLContext | None = None,
        **options: Any,
    ) -> None:
        self.server = FakeServer(tools, era=era, **options)
        self.server.exit = self._crash
        self.faults = ActiveFaults(WEBSOCKET_FAULTS, modes)
        for setting in self.faults.trigger_at("start"):
            setting.mode.run(self.server, setting)
        self.host = host
        self.port = port
        self.requests: list[Request] = []  # handshakes
        self.peers: set[WebSocketPeer] = set()
        self._in_handshake: set[ServerConnection] = set()
        self._ssl = ssl
        self._listener: Server | None = None

    @property
    def url(self) -> str:
        return f"{'wss' if self._ssl is not None else 'ws'}://{self.host}:{self.port}/mcp"

    @property
    def stats(self) -> Stats:
        """Return the counters of the fake server: requests by method, connections, effects and more."""
        return self.server.stats

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start to listen. After a stop, the server listens on the port it had before."""
        self._listener = await serve(
            self._handle_connection,
            self.host,
            self.port,
            subprotocols=["mcp"],  # type: ignore[list-item] # a new type for strings
            compression=None,
            open_timeout=None,
            ping_interval=None,
            close_timeout=0.1,
            max_size=None,
            process_request=self._on_handshake,
            ssl=self._ssl,
        )
        self.port = next(iter(self._listener.sockets)).getsockname()[1]

    async def stop(self) -> None:
        """Stop the server like a killed process: reset all connections."""
        self._abort()
        if self._listener is not None:
            await self._listener.wait_closed()
            self._listener = None

    def set_mode(self, mode: str) -> None:
        """Set a fault mode for later requests, given as `name=value;option=value;…`."""
        self.faults.add(mode)

    def clear_modes(self) -> None:
        """Remove all fault modes, so the server behaves well again."""
        self.faults.clear()

    def _abort(self) -> None:
        if self._listener is not None:
            self._listener.close(close_connections=False)
        for connection in list(self._in_handshake):
            connection.transport.abort()
        for peer in list(self.peers):
            peer.reset()
        self.server.peers.clear()

    def _crash(self, code: int) -> NoReturn:
        self._abort()
        raise Unanswered

    async def _on_handshake(self, connection: ServerConnection, request: Request) -> Response | None:
        self.requests.append(request)
        self._in_handshake.add(connection)
        try:
            for setting in self.faults.trigger_at("connect"):
                response: Response | None = await setting.mode.run(connection, setting)
                if response is not None:
                    return response
            return None
        finally:
            self._in_handshake.discard(connection)

    async def _handle_connection(self, connection: ServerConnection) -> None:
        peer = WebSocketPeer(self, connection)
        self.stats.connections += 1
        self.peers.add(peer)
        try:
            async for data in connection:
                peer.on_message(data.encode() if isinstance(data, str) else data)
        except ConnectionClosed:
            pass
        finally:
            self.peers.discard(peer)
            self.server.peers.discard(peer)
            await peer.end()


class WebSocketPeer(FakePeer):
    """One client of a fake WebSocket server: its connection and its calls in progress."""

    def __init__(self, fake: FakeWebSocket, connection: ServerConnection) -> None:
        super().__init__()
        self._fake = fake
        self._connection = connection
        self.in_flight: dict[Id, asyncio.Event] = {}  # set: cancelled
        self._tasks: set[asyncio.Task[None]] = set()
        self._pending: dict[Id, asyncio.Future[Json]] = {}
        self._ids = itertools.count(1)

    # -- writing ------------------------------------------------------------------------------------------------------

    def send(self, message: Json) -> None:
        self.write_text(encode(message))

    def write_text(self, data: bytes) -> None:
        self.write(Frame(Opcode.TEXT, data).serialize(mask=False))

    def write(self, data: bytes) -> None:
        """Write raw bytes to the socket, without a WebSocket frame around them."""
        if self._connection.protocol.state is State.OPEN and not self._connection.transport.is_closing():
            self._connection.transport.write(data)

    async def close(self, code: int, reason: str = "") -> None:
        await self._connection.close(code, reason)

    def lose(self) -> None:
        """Close the client's TCP connection without a WebSocket close frame."""
        self._connection.transport.close()

    def reset(self) -> None:
        """End the client's connection with a TCP reset."""
        sock = self._connection.transport.get_extra_info("socket")
        with contextlib.suppress(OSError, AttributeError):  # a closed connection has no socket
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
        self._connection.transport.abort()

    def stop_reading(self) -> None:
        self._connection.transport.pause_reading()

    # -- reading ------------------------------------------------------------------------------------------------------

    def on_message(self, data: bytes) -> None:
        try:
            message = parse_message(data)
        except RpcError as error:
            self.send(make_error_response(None, error))
            return
        if "method" not in message:
            pending = self._pending.get(message.get("id", ""))
            if pending is not None and not pending.done():
                pending.set_result(message)
            return
        self._fake.stats.count_request(message["method"])
        if "id" in message:
            task = asyncio.ensure_future(self._handle_request(message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif message["method"] == "notifications/cancelled":
            cancelled = self.in_flight.get(cancelled_id(message))
            if cancelled is not None:
                cancelled.set()

    async def end(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _handle_request(self, message: Json) -> None:
        self.in_flight[message["id"]] = asyncio.Event()
        try:
            setting = self._fake.faults.trigger_for(message)
            response: Json | Steps | None = self._fake.server.handle(message, self, self.send)
            if isinstance(response, Generator):
                response = await self._run_steps(message["id"], response)
            if response is None:
                return
            if setting is None:
                self.send(response)
            else:
                await setting.mode.run(WebSocketFaultContext(self._fake, self, setting, response))
        except RpcError as error:
            self.send(make_error_response(message["id"], error))
        except (Unanswered, ConnectionClosed):
            pass
        finally:
            self.in_flight.pop(message["id"], None)

    async def _run_steps(self, id: Id, steps: Steps) -> Json | None:
        """Run the steps (waits, requests to the client) of a call and return its response.

        Return None if the client cancelled the call.
        """
        cancelled = self.in_flight[id]
        step_result: Json | None = None
        try:
            while True:
                step = steps.send(step_result)
                if isinstance(step, ServerRequest):
                    step_result = await self._request_client(step, cancelled)
                else:
                    step_result = None
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(cancelled.wait(), step.seconds)
                if cancelled.is_set():
                    steps.close()
                    self._fake.stats.cancelled.append(id)
                    return None
        except StopIteration as end:
            response: Json = end.value
            return response

    async def _request_client(self, step: ServerRequest, cancelled: asyncio.Event) -> Json:
        id = f"ask-{next(self._ids)}"
        pending = self._pending[id] = asyncio.get_running_loop().create_future()
        self.send(make_request(id, step.method, step.params))
        cancel_wait = asyncio.ensure_future(cancelled.wait())
        try:
            await asyncio.wait({pending, cancel_wait}, timeout=_CLIENT_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            cancel_wait.cancel()
            del self._pending[id]
        return pending.result() if pending.done() else {"error": {"code": 0, "message": "the client did not respond"}}


# -- fault modes -------------------------------------------------------------------------------------------------------


class WebSocketFaultContext:
    """Argument of a WebSocket fault function: the server, the client, and the response without the fault."""

    def __init__(self, fake: FakeWebSocket, peer: WebSocketPeer, setting: FaultSetting, response: Json) -> None:
        self.fake = fake
        self.peer = peer
        self.setting = setting
        self.response = response

    def frame(self) -> bytes:
        """Return the response without the fault, encoded as one WebSocket text frame."""
        return Frame(Opcode.TEXT, encode(self.response)).serialize(mask=False)


WEBSOCKET_FAULTS: faults.FaultTable = dict(LIST_FAULTS)
websocket_fault = partial(faults.register_fault, WEBSOCKET_FAULTS)


async def _send_corrupted(corrupt: faults.FaultFunction, context: WebSocketFaultContext) -> None:
    context.peer.write_text(corrupt(context.response, context.setting))


for _fault_name, _fault_mode in CORRUPTIONS.items():
    WEBSOCKET_FAULTS[_fault_name] = faults.FaultMode(
        _fault_name, partial(_send_corrupted, _fault_mode.run), _fault_mode.on, doc=_fault_mode.doc
    )


@websocket_fault("status", on=("connect",))
async def _status(connection: ServerConnection, setting: FaultSetting) -> Response:
    """Answer the handshake with status VALUE (default 503); options: retry_after, challenge, to (Location)."""
    status = HTTPStatus(int(setting.number(503)))
    names = {"Retry-After": "retry_after", "WWW-Authenticate": "challenge", "Location": "to"}
    given = {name: setting.options.get(option) for name, option in names.items()}
    body = b"Not today.\n"
    headers = Headers({name: value for name, value in given.items() if value})
    headers.update({"Content-Type": "text/plain", "Content-Length": str(len(body)), "Connection": "close"})
    return Response(status, status.phrase, headers, body)


@websocket_fault("silent_handshake", on=("connect",))
async def _silent_handshake(connection: ServerConnection, setting: FaultSetting) -> None:
    """Accept the connection and never answer the handshake."""
    await asyncio.shield(connection.connection_lost_waiter)


@websocket_fault("never")
async def _never(context: WebSocketFaultContext) -> None:
    """Leave the request without a response forever."""


@websocket_fault("close")
async def _close(context: WebSocketFaultContext) -> None:
    """Send a close frame with code VALUE (default 1011) instead of the response."""
    await context.peer.close(int(context.setting.number(1011)), "not today")


@websocket_fault("respond_and_close")
async def _respond_and_close(context: WebSocketFaultContext) -> None:
    """Send the response, of `mb` megabytes if given, and then a close frame with code VALUE (default 1001)."""
    context.peer.write_text(pad_response(context.response, float(context.setting.options.get("mb", 0))))
    await context.peer.close(int(context.setting.number(1001)))


@websocket_fault("reset")
async def _reset(context: WebSocketFaultContext) -> None:
    """Reset the TCP connection instead of responding."""
    context.peer.reset()


@websocket_fault("lose")
async def _lose(context: WebSocketFaultContext) -> None:
    """Close the TCP connection without a close frame instead of responding."""
    context.peer.lose()


@websocket_fault("half_frame")
async def _half_frame(context: WebSocketFaultContext) -> None:
    """Send half of the response's frame, and then stop."""
    frame = context.frame()
    context.peer.write(frame[: len(frame) // 2])


@websocket_fault("slow_frame")
async def _slow_frame(context: WebSocketFaultContext) -> None:
    """Send the response byte by byte, VALUE seconds apart (default 1)."""
    frame = context.frame()
    for at in range(len(frame)):
        context.peer.write(frame[at : at + 1])
        await asyncio.sleep(context.setting.number(1))


@websocket_fault("fragments")
async def _fragments(context: WebSocketFaultContext) -> None:
    """Send the response in VALUE fragments (default 3), with a ping between them."""
    data, count = encode(context.response), int(context.setting.number(3))
    size = -(-len(data) // count)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    for number, piece in enumerate(pieces):
        opcode = Opcode.TEXT if number == 0 else Opcode.CONT
        context.peer.write(Frame(opcode, piece, fin=number == len(pieces) - 1).serialize(mask=False))
        context.peer.write(Frame(Opcode.PING, b"").serialize(mask=False))


@websocket_fault("message_mb")
async def _message_mb(context: WebSocketFaultContext) -> None:
    """Send a response of VALUE megabytes (default 10)."""
    context.peer.write_text(pad_response(context.response, context.setting.number(10)))


@websocket_fault("garbage", on=("tools/list", *faults.BAD_TOOLS))
async def _garbage(context: WebSocketFaultContext) -> None:
    """Send messages that are not JSON-RPC (text, blank, binary) before the response."""
    for data in (b"Server starting...", b"", b"[1, 2]", b"caf\xe9"):
        context.peer.write_text(data)
    context.peer.write(Frame(Opcode.BINARY, b"\x00\x01\xff").serialize(mask=False))
    context.peer.send(context.response)


@websocket_fault("binary")
async def _binary(context: WebSocketFaultContext) -> None:
    """Send the response as a binary message."""
    context.peer.write(Frame(Opcode.BINARY, encode(context.response)).serialize(mask=False))


@websocket_fault("binary_flood")
async def _binary_flood(context: WebSocketFaultContext) -> None:
    """Send VALUE binary messages (default 100) and no response."""
    for _ in range(int(context.setting.number(100))):
        context.peer.write(Frame(Opcode.BINARY, b"\x00").serialize(mask=False))


@websocket_fault("invalid_frame")
async def _invalid_frame(context: WebSocketFaultContext) -> None:
    """Send a frame with a reserved bit instead of the response."""
    context.peer.write(b"\xc1\x02{}")


@websocket_fault("wrong_id")
async def _wrong_id(context: WebSocketFaultContext) -> None:
    """Send the response with the id of another call in flight, else with an unknown id."""
    other_ids = [id for id in context.peer.in_flight if id != context.response["id"]]
    context.peer.send(replace_id(context.response, other_ids[0] if other_ids else 987654321))


@websocket_fault("twice")
async def _twice(context: WebSocketFaultContext) -> None:
    """Send the response twice, after one with an unknown id."""
    context.peer.send(replace_id(context.response, 987654321))
    context.peer.send(context.response)
    context.peer.send(context.response)


@websocket_fault("stops_reading")
async def _stops_reading(context: WebSocketFaultContext) -> None:
    """Respond, then stop reading from this client."""
    context.peer.stop_reading()
    context.peer.send(context.response)


@websocket_fault("ping_flood")
async def _ping_flood(context: WebSocketFaultContext) -> None:
    """Send VALUE pings (default 100000), then the response."""
    ping = Frame(Opcode.PING, b"x" * 125).serialize(mask=False)
    for _ in range(int(context.setting.number(100_000)) // 500):
        context.peer.write(ping * 500)
        await asyncio.sleep(0)
    context.peer.send(context.response)


@websocket_fault("list_changed_flood")
async def _list_changed_flood(context: WebSocketFaultContext) -> None:
    """Send VALUE tools/list_changed notifications (default 10000), then the response."""
    frame = Frame(Opcode.TEXT, encode(make_notification("notifications/tools/list_changed"))).serialize(mask=False)
    for _ in range(int(context.setting.number(10_000)) // 500):
        context.peer.write(frame * 500)
        await asyncio.sleep(0)
    context.peer.send(context.response)


def main() -> None:
    arg_parser = build_parser(
        "Fake WebSocket MCP server that misbehaves on request. Its first output line is `listening PORT`."
    )
    arg_parser.add_argument("--port", type=int, default=0, help="port to listen on (0: any free port)")
    options = parse_options(arg_parser, WEBSOCKET_FAULTS)
    fake = FakeWebSocket(modes=options.mode, port=options.port, **server_options(options))
    fake.server.exit = os._exit
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve_forever(fake))


async def _serve_forever(fake: FakeWebSocket) -> None:
    async with fake:
        print(f"listening {fake.port}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    main()
