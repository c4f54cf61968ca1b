"""A server that is closed leaves no connection open."""

from __future__ import annotations

import asyncio

import pytest

from toolway.http.exchange import Exchange
from toolway.http.server import HttpServer
from toolway.http.server_connection import ServerConnection

pytestmark = pytest.mark.anyio


class Accepted(asyncio.Transport):
    """A connection that the event loop accepted."""

    is_open = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def abort(self) -> None:
        self.is_open = False


async def never_called(exchange: Exchange) -> None:
    raise AssertionError("no request was sent")


async def test_connection_accepted_while_closing_is_closed() -> None:
    server = HttpServer(never_called)
    await server.listen("127.0.0.1", 0)
    await server.close()
    transport = Accepted()
    ServerConnection(server).connection_made(transport)
    assert not transport.is_open and len(server) == 0
