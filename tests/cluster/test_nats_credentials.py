"""Credentials of NATS, shown to a real server whose operator knows the account."""

from __future__ import annotations

import asyncio
from pathlib import Path

import nats.errors
import pytest
from nats.aio.client import Client

from tests.cluster.nats_accounts import operated
from tests.cluster.nats_server import nats_server, program
from toolway.cluster.bus import Bus, nats_auth_options
from toolway.types import Json

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(program() is None, reason="nats-server is not installed")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_gateways_with_credentials_reach_only_their_account(tmp_path: Path) -> None:
    configuration, creds = operated(tmp_path, ["one", "two"])
    heard: dict[str, list[tuple[str, Json]]] = {"a": [], "b": [], "c": []}
    async with nats_server(configuration) as server:
        buses = []
        for node, account in (("a", "one"), ("b", "one"), ("c", "two")):
            bus = Bus("test", node, lambda *news, node=node: heard[node].append(news), lambda: None)
            async with asyncio.timeout(60):
                await bus.connect([server.url], creds[account])
            buses.append(bus)
        try:
            async with asyncio.timeout(60):
                while not heard["b"]:
                    await buses[0].publish("keys", {})
                    await asyncio.sleep(0.05)
            assert heard["a"] == heard["c"] == []
        finally:
            for bus in buses:
                await bus.close()


async def test_mismatched_seed_is_rejected(tmp_path: Path) -> None:
    configuration, creds = operated(tmp_path, ["one", "two"])
    first, second = (creds[name].read_text() for name in ("one", "two"))
    jwt, _, _ = first.partition("-----BEGIN USER")
    (tmp_path / "mixed.creds").write_text(jwt + "-----BEGIN USER" + second.partition("-----BEGIN USER")[2])
    async with nats_server(configuration) as server:
        for options in (nats_auth_options(tmp_path / "mixed.creds"), {}):
            client = Client()
            with pytest.raises(nats.errors.Error, match=r"(?i)authorization"):
                await client.connect([server.url], allow_reconnect=False, **options)
            await client.close()


@pytest.mark.parametrize("damage", ["", "nothing of it", "one letter", "no seed"])
async def test_damaged_credentials_file_is_rejected_before_connecting(tmp_path: Path, damage: str) -> None:
    _, creds = operated(tmp_path, ["one"])
    text = creds["one"].read_text()
    at = text.index("NKEY SEED-----\n") + 25
    damaged = {
        "": "",
        "nothing of it": "{}",
        "one letter": text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :],
        "no seed": text.partition("-----BEGIN USER NKEY")[0],
    }
    creds["one"].write_text(damaged[damage])
    with pytest.raises(ValueError, match="creds file"):
        nats_auth_options(creds["one"])
