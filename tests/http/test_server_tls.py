"""The same server behind TLS."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from tests.faults.matrix.http.tls_server import certificate
from tests.http.raw_client import connected, get, post, serving
from toolway.http.exchange import Exchange
from toolway.http.limits import ServerLimits
from toolway.serve.sockets import tls_context

pytestmark = pytest.mark.anyio


async def echo(exchange: Exchange) -> None:
    exchange.reply(200, exchange.request.body)


@pytest.fixture
def tls(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of the server, and of a client that trusts it."""
    file = certificate(tmp_path / "cert.pem")
    return tls_context(file, None), ssl.create_default_context(cafile=str(file))


async def test_requests_and_large_responses_pass(tls: tuple[ssl.SSLContext, ssl.SSLContext]):
    async with serving(echo, tls=tls[0]) as (_, port), connected(port, ssl=tls[1]) as client:
        for size in (0, 10, 3_000_000):
            assert (await client.ask(post("/", b"x" * size))).body == b"x" * size


async def test_rejection_is_readable_by_client_still_sending(tls: tuple[ssl.SSLContext, ssl.SSLContext]):
    limits = ServerLimits(max_body_bytes=1000, rejection_linger=0.5, sweep_interval=0.1)
    async with serving(echo, limits, tls=tls[0]) as (_, port), connected(port, ssl=tls[1]) as client:
        sending = asyncio.create_task(client.send(post("/", b"x" * 5_000_000)))
        assert (await client.answer()).status == 413
        await client.closed()
        await sending


async def test_plaintext_client_gets_no_response(tls: tuple[ssl.SSLContext, ssl.SSLContext]):
    async with serving(echo, tls=tls[0]) as (_, port), connected(port) as client:
        await client.send(get())
        assert b"HTTP" not in await client.closed()


async def test_unfinished_handshake_times_out(tls: tuple[ssl.SSLContext, ssl.SSLContext]):
    async with serving(echo, ServerLimits(head_timeout=0.3), tls=tls[0]) as (server, port), connected(port) as client:
        assert await client.closed() == b""
        assert len(server) == 0
