"""httpx2 goes where we say, and says whom it wants there."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.http.test_dialer import certificate, serving
from tests.upstream.raw_http import Conn, Received, peer, reacting, response
from toolway import NetworkPolicy
from toolway.network import AddressDenied
from toolway.network.httpx_transport import PinnedTransport

pytestmark = pytest.mark.anyio

OK = response(200, b"ok")
NAME = "issuer.example"


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def names(*answers: str) -> NetworkPolicy:
    return NetworkPolicy((NAME,), lookup=lambda _: answers)


async def get(url: str, addresses: NetworkPolicy, trust: ssl.SSLContext | None = None) -> httpx2.Response:
    transport = PinnedTransport(addresses, trust or ssl.create_default_context())
    async with httpx2.AsyncClient(transport=transport, timeout=30) as client:
        return await client.get(url)


async def test_request_keeps_its_host_name() -> None:
    seen: list[Received] = []

    async def react(conn: Conn, request: Received) -> None:
        seen.append(request)
        await conn.send(OK)

    async with peer(reacting(react)) as server:
        answer = await get(f"http://{NAME}:{server.port}/x?y=1", names("127.0.0.1"))
    assert answer.text == "ok" and str(answer.url) == f"http://{NAME}:{server.port}/x?y=1"
    assert seen[0].headers["host"] == f"{NAME}:{server.port}"
    assert seen[0].target == "/x?y=1"


async def test_next_address_is_tried_if_one_refuses() -> None:
    async def react(conn: Conn, request: Received) -> None:
        await conn.send(OK)

    async with peer(reacting(react)) as server:
        answer = await get(f"http://{NAME}:{server.port}/", names("127.0.0.2", "127.0.0.1"))
    assert answer.text == "ok"


@pytest.mark.parametrize("of", [NAME, "other.example"])
async def test_certificate_must_match_the_name(tmp_path: Path, of: str) -> None:
    cert = certificate(tmp_path / "cert.pem", of)
    trust = ssl.create_default_context(cafile=str(cert))

    async def react(conn: Conn, request: Received) -> None:
        await conn.send(OK)

    async with peer(reacting(react), serving(cert)) as server:
        url = f"https://{NAME}:{server.port}/"
        if of == NAME:
            assert (await get(url, names("127.0.0.1"), trust)).text == "ok"
        else:
            with pytest.raises(httpx2.ConnectError):
                await get(url, names("127.0.0.1"), trust)


async def test_name_with_private_address_is_not_connected() -> None:
    async def never(conn: Conn) -> None:
        raise AssertionError("connected")

    async with peer(never) as server:
        with pytest.raises(AddressDenied):
            await get(f"http://other.example:{server.port}/", names("127.0.0.1"))
        assert server.connections == 0


async def test_proxy_is_used_but_not_for_private_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks up names; what is spelt out is seen here."""
    seen: list[Received] = []

    async def react(conn: Conn, request: Received) -> None:
        seen.append(request)
        await conn.send(OK)

    def never(_: str) -> Any:
        raise AssertionError("looked up")

    async with peer(reacting(react)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        assert (await get("http://far.example/x", NetworkPolicy(lookup=never))).text == "ok"
        assert seen[0].target == "http://far.example/x"
        for inside in ("10.0.0.1", "169.254.169.254", "[64:ff9b::7f00:1]", "0x0a000001"):
            with pytest.raises(AddressDenied):
                await get(f"http://{inside}/x", NetworkPolicy(lookup=never))
        assert len(seen) == 1
