"""A WebSocket server that floods its client with tiny frames."""

from __future__ import annotations

import asyncio

import pytest
from websockets.asyncio.server import ServerConnection, serve

from toolway.http.client import HttpTarget
from toolway.upstream.transport import Disconnect
from toolway.upstream.transports import websocket_connection
from toolway.upstream.transports.websocket_connection import WebSocketConnection

pytestmark = pytest.mark.anyio


class _Received:
    """Receiver of a WebSocket connection that records messages, and in which turn of the loop bytes were parsed."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.parts: list[int] = []
        self.turns: set[int] = set()
        self.turn = 0
        self.ended = asyncio.Event()

    def on_text(self, message: bytes) -> None:
        self.events.append(message.decode())

    def on_binary(self, message: bytes) -> None:
        raise AssertionError(message)

    def on_received(self, size: int) -> None:
        self.parts.append(size)
        self.turns.add(self.turn)

    def on_write_stuck(self) -> None:
        raise AssertionError

    def on_end(self, disconnect: Disconnect) -> None:
        self.events.append(disconnect.code)
        self.ended.set()

    async def count_turns(self) -> None:
        """Count the turns of the loop until the connection ends."""
        while not self.ended.is_set():
            self.turn += 1
            await asyncio.sleep(0)


@pytest.mark.attack("R2-C-6")
@pytest.mark.parametrize("frame", [b"\x89\x00", b"\x00\x00"], ids=["pings", "fragments"])
async def test_websocket_flood_of_empty_frames_does_not_block_the_loop(
    frame: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket_connection, "MAX_PARSE_S", 0.0)  # how fast this machine parses must not matter

    async def flood(connection: ServerConnection) -> None:
        start = b"\x01\x01o" if frame[0] == 0 else b""  # the first fragment of a message
        end = b"\x80\x01k" if frame[0] == 0 else b"\x81\x02ok"
        connection.transport.write(start + frame * 12_000 + end)
        await connection.close(1001)

    received = _Received()
    async with serve(flood, "127.0.0.1", 0, compression=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        target = HttpTarget.parse(f"http://127.0.0.1:{port}/")
        loop = asyncio.get_running_loop()
        turns = loop.create_task(received.count_turns())  # before the first bytes arrive
        _, connection = await loop.create_connection(
            lambda: WebSocketConnection(received, target, 1_000_000, 10.0), "127.0.0.1", port
        )
        await connection.shake_hands({})
        await turns
        connection.abort()
    assert received.events == ["ok", "E-WS-CLOSED"]
    assert max(received.parts) <= 2048 and len(received.turns) > 5  # others had their turns between the parts
