"""The port that a browser comes back to: who ends a login there, and who does not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from toolway.auth.redirect_server import RedirectServer, open_redirect_server

pytestmark = pytest.mark.anyio

BEGUN = "https://issuer.example/authorize?client_id=x&state=the-state"


@asynccontextmanager
async def _waiting() -> AsyncIterator[tuple[RedirectServer, asyncio.Task[str]]]:
    async with open_redirect_server("http://127.0.0.1:0/callback", any_port=True) as callback:
        task = asyncio.create_task(callback.wait_for_redirect(BEGUN))
        await asyncio.sleep(0)
        yield callback, task
        task.cancel()


async def _send(callback: RedirectServer, target: str, host: str | None = None, method: str = "GET") -> str:
    where = callback.uri.removeprefix("http://").partition("/")[0]
    reader, writer = await asyncio.open_connection("127.0.0.1", int(where.rpartition(":")[2]))
    writer.write(f"{method} {target} HTTP/1.1\r\nHost: {host or where}\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    return answer


async def test_redirect_of_pending_login_is_returned() -> None:
    async with _waiting() as (callback, task):
        page = await _send(callback, "/callback?code=c%2Fd&state=the-state&iss=x")
        assert page.startswith("HTTP/1.1 200") and "default-src 'none'" in page
        assert await task == f"{callback.uri}?code=c%2Fd&state=the-state&iss=x"


@pytest.mark.parametrize(
    ("target", "host", "method"),
    [
        ("/callback?code=x&state=another", None, "GET"),  # of a login that someone else began
        ("/callback?code=x", None, "GET"),
        ("/?code=x&state=the-state", None, "GET"),
        ("/callback/?code=x&state=the-state", None, "GET"),
        ("/callback?code=x&state=the-state", "evil.example", "GET"),  # a page whose name was bent to this machine
        ("/callback?code=x&state=the-state", "127.0.0.1", "GET"),
        ("/callback?code=x&state=the-state", None, "POST"),
        ("/callback?code=<script>alert(1)</script>&state=x", None, "GET"),
    ],
)
async def test_other_requests_do_not_end_the_login(target: str, host: str | None, method: str) -> None:
    async with _waiting() as (callback, task):
        page = await _send(callback, target, host, method)
        assert page.startswith("HTTP/1.1 4") and "code=" not in page and "script" not in page.partition("\r\n\r\n")[2]
        assert not task.done()
        await _send(callback, "/callback?code=good&state=the-state")
        assert (await task).endswith("code=good&state=the-state")
        assert (await _send(callback, "/callback?code=late&state=the-state")).startswith("HTTP/1.1 400")


async def test_invalid_requests_are_ignored() -> None:
    async with _waiting() as (callback, task):
        port = int(callback.uri.rpartition(":")[2].partition("/")[0])
        for nonsense in (b"\x16\x03\x01", b"G" * 70_000 + b"\r\n\r\n", b"\r\n\r\n", b"GET\r\n\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(nonsense)
            writer.write_eof()
            try:
                await reader.read()
            except ConnectionError:
                pass
            writer.close()
        assert not task.done()


async def test_taken_port_is_not_shared() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        uri = f"http://127.0.0.1:{taken.getsockname()[1]}/callback"
        async with open_redirect_server(uri, any_port=True) as callback:
            assert callback.uri != uri
        with pytest.raises(OSError, match="in use"):
            async with open_redirect_server(uri, any_port=False):
                pass


@pytest.mark.parametrize("uri", ["https://127.0.0.1/x", "http://0.0.0.0:1/x", "http://example.com/x", "x", ""])
async def test_redirect_url_must_be_local(uri: str) -> None:
    with pytest.raises(ValueError, match="this machine"):
        async with open_redirect_server(uri, any_port=True):
            pass
