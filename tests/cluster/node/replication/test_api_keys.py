"""Keys of a tenant at two gateways, over a real record and a real NATS."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cluster.db.encryption_keys import an_integrity
from tests.cluster.nats_server import NatsServer, nats_server, program
from tests.timing import within
from toolway.cluster.bus import Bus
from toolway.cluster.db.changes import ChangeReader
from toolway.cluster.db.client_state import ApiKeyTable
from toolway.cluster.replication.api_keys import DbApiKeyStore
from toolway.cluster.replication.change_feed import POLL_INTERVAL_S, ChangeFeed
from toolway.errors import ServerUnavailable
from toolway.gateway.principals import ENDED_LOGINS_S, LOCAL_ADMIN
from toolway.gateway.rate_limit import Rate
from toolway.gateway.state_dir import StateDir
from toolway.serve import process

TOKEN = "tw_of-this-machine"
pytestmark = pytest.mark.anyio


class Gateway:
    """What a gateway has of it."""

    def __init__(self, engine: AsyncEngine, tenant: str = "t") -> None:
        self.following = ChangeFeed(ChangeReader(engine), tenant)
        self.keyring = DbApiKeyStore(ApiKeyTable(engine, an_integrity()), tenant, TOKEN, time.monotonic)
        self.keyring.register(self.following)
        self.revoked: list[str] = []
        self.keyring.on_revoked(self.revoked.append)
        self.bus: Bus | None = None

    async def open(self, name: str, server: NatsServer | None, tenant: str) -> None:
        if server is not None:
            self.bus = Bus("test", name, self.following.handle_message, self.following.resync, tenant)
            await self.bus.connect([server.url])
            self.following.send = self.bus.publish
        await self.following.start()

    async def close(self) -> None:
        await self.following.close()
        if self.bus is not None:
            await self.bus.close()


@asynccontextmanager
async def _gateways(
    engine: AsyncEngine, server: NatsServer | None, tenants: Sequence[str] = ("t", "t")
) -> AsyncIterator[list[Gateway]]:
    async with AsyncExitStack() as stack:
        found = []
        for number, tenant in enumerate(tenants):
            each = Gateway(engine, tenant)
            stack.push_async_callback(each.close)
            await each.open(f"n{number}", server, tenant)
            found.append(each)
        yield found


async def _until(what: Callable[[], bool], seconds: float = 60.0) -> float:
    began = time.monotonic()
    async with asyncio.timeout(seconds):
        while not what():
            await asyncio.sleep(0.005)
    return time.monotonic() - began


needs_nats = pytest.mark.skipif(program() is None, reason="nats-server is not installed")


@needs_nats
async def test_key_works_at_all_gateways_until_revoked_within_a_second(engine: AsyncEngine) -> None:
    async with nats_server() as server, _gateways(engine, server, ("t", "t", "t")) as (a, b, c):
        token, key = await a.keyring.create_key("ci", ["both"], False, 5.0, Rate(600, "min"))
        assert await _until(
            lambda: b.keyring.authenticate(token) is not None and c.keyring.authenticate(token) is not None
        ) < within(POLL_INTERVAL_S)
        found = b.keyring.authenticate(token)
        assert found is not None and found == key.to_principal() == a.keyring.authenticate(token)
        before = [each.keyring.change_count for each in (a, b, c)]
        assert await b.keyring.revoke_key(key.id)
        seconds = await _until(lambda: all(each.keyring.authenticate(token) is None for each in (a, b, c)))
        assert seconds < within(1.0)
        assert [each.revoked for each in (a, b, c)] == [[key.id]] * 3
        assert all(each.keyring.change_count > old for each, old in zip((a, b, c), before, strict=True))
        assert not await a.keyring.revoke_key(key.id)


@needs_nats
async def test_ended_logins_reach_all_gateways_within_a_second(engine: AsyncEngine) -> None:
    async with nats_server() as server, _gateways(engine, server, ("t", "t", "t", "other")) as (a, b, c, other):
        await a.keyring.end_logins("user:alice", 1000.0)
        seconds = await _until(lambda: all(each.keyring.ended_logins() for each in (a, b, c)))
        assert seconds < within(1.0)
        for each in (a, b, c):
            assert each.keyring.ended_logins() == {"user:alice": 1000.0} and each.keyring.list_keys() == []
            assert each.revoked == ["user:alice"]  # its requests are aborted
        assert other.keyring.ended_logins() == {}
        await b.keyring.end_logins("user:bob", 1000.0 + ENDED_LOGINS_S)  # no token is as old as the first end
        await _until(lambda: all(each.keyring.ended_logins().keys() == {"user:bob"} for each in (a, b, c)))


@pytest.mark.attack("A2-W7")
async def test_creator_of_a_key_is_known_at_all_gateways(engine: AsyncEngine) -> None:
    async with _gateways(engine, None) as (a, b):
        _, boss = await a.keyring.create_key("boss", None, True, 5.0)
        root = f"key:{boss.id}"
        _, second = await a.keyring.create_key("second", None, True, 5.0, made_by=a.keyring.user_of(root))
        token, third = await a.keyring.create_key(
            "third", None, True, 5.0, made_by=a.keyring.user_of(f"key:{second.id}")
        )
        await _until(lambda: b.keyring.authenticate(token) is not None)
        for each in (a, b):
            assert [each.keyring.user_of(f"key:{key.id}") for key in (boss, second, third)] == [root] * 3


async def test_without_nats_key_changes_take_about_a_second(engine: AsyncEngine) -> None:
    async with _gateways(engine, None) as (a, b):
        token, key = await a.keyring.create_key("ci", None, False, 5.0)
        assert a.keyring.authenticate(token) is not None
        assert await _until(lambda: b.keyring.authenticate(token) is not None) < 2 * POLL_INTERVAL_S
        await a.keyring.revoke_key(key.id)
        assert a.keyring.authenticate(token) is None
        assert await _until(lambda: b.keyring.authenticate(token) is None) < 2 * POLL_INTERVAL_S


@needs_nats
async def test_missed_revocation_is_found_in_the_database(engine: AsyncEngine) -> None:
    async with nats_server() as server, _gateways(engine, server) as (a, b):
        token, key = await a.keyring.create_key("ci", None, False, 5.0)
        await _until(lambda: b.keyring.authenticate(token) is not None)
        server.kill()
        assert a.bus is not None and b.bus is not None
        await _until(lambda: not a.bus.is_connected and not b.bus.is_connected)  # type: ignore[union-attr]
        await a.keyring.revoke_key(key.id)
        assert await _until(lambda: b.keyring.authenticate(token) is None) < 2 * POLL_INTERVAL_S


async def test_load_started_before_a_revocation_does_not_restore_a_key(engine: AsyncEngine) -> None:
    async with _gateways(engine, None) as (a, b):
        token, key = await a.keyring.create_key("ci", None, False, 5.0)
        await _until(lambda: b.keyring.authenticate(token) is not None)
        b.following.handle_message("keys", {"revoked": key.id})  # it is still in the record that b looks at
        assert b.keyring.authenticate(token) is None
        looks = b.following.poll_count
        b.following.resync()
        await _until(lambda: b.following.poll_count > looks)
        await b.keyring._load(0)
        assert b.keyring.authenticate(token) is None


async def test_false_revocation_message_expires(engine: AsyncEngine) -> None:
    now = [100.0]
    following = ChangeFeed(ChangeReader(engine), "t")
    keyring = DbApiKeyStore(ApiKeyTable(engine, an_integrity()), "t", TOKEN, lambda: now[0])
    keyring.register(following)
    token, key = await keyring.create_key("ci", None, False, 5.0)
    for junk in ({}, {"revoked": 7}, {"revoked": [key.id]}, {"revoked": None}):
        following.handle_message("keys", junk)
    assert keyring.authenticate(token) is not None
    following.handle_message("keys", {"revoked": key.id})
    assert keyring.authenticate(token) is None
    now[0] += 11
    await keyring._load(0)
    assert keyring.authenticate(token) is not None  # the record is right


@needs_nats
async def test_tenants_have_separate_keys(engine: AsyncEngine) -> None:
    async with nats_server() as server, _gateways(engine, server, ("one", "two")) as (a, b):
        token, key = await a.keyring.create_key("ci", None, True, 5.0)
        await asyncio.sleep(0.3)
        b.following.resync()
        looks = b.following.poll_count
        await _until(lambda: b.following.poll_count > looks)
        assert b.keyring.authenticate(token) is None and not await b.keyring.revoke_key(key.id)
        assert a.keyring.authenticate(token) is not None
        assert a.keyring.authenticate(TOKEN) == b.keyring.authenticate(TOKEN) == LOCAL_ADMIN


async def test_unreadable_key_grants_nothing_and_hides_no_other(engine: AsyncEngine) -> None:
    keys = ApiKeyTable(engine, an_integrity())
    await keys.add("t", "bad", {"id": "bad", "hash": 7, "access": "all"})
    async with _gateways(engine, None, ("t",)) as (a,):
        token, _ = await a.keyring.create_key("ci", None, False, 5.0)
        await keys.add(
            "t", "later", {"id": "later", "name": "x", "hash": "h", "access": None, "of a later version": True}
        )
        a.following.resync()
        await _until(lambda: {key.id for key in a.keyring.list_keys()} > {"later"})
        assert a.keyring.authenticate(token) is not None and "bad" not in {key.id for key in a.keyring.list_keys()}


async def test_unavailable_database_is_reported(engine: AsyncEngine) -> None:
    async with _gateways(engine, None, ("t",)) as (a,):
        token, key = await a.keyring.create_key("ci", None, False, 5.0)
        async with engine.begin() as db:
            await db.exec_driver_sql("ALTER TABLE api_keys RENAME TO gone")
        with pytest.raises(ServerUnavailable, match="cluster database") as failed:
            await a.keyring.create_key("more", None, False, 5.0)
        assert failed.value.code == "E-RECORD"
        with pytest.raises(ServerUnavailable):
            await a.keyring.revoke_key(key.id)
        assert a.keyring.authenticate(token) is not None


def test_local_keys_are_not_used_in_a_cluster_and_this_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = StateDir(tmp_path)
    replica: Any = SimpleNamespace(api_keys=object(), options=SimpleNamespace(worker=None))
    assert process._open_key_store(state, replica) is replica.api_keys and not caplog.records
    state.open_key_store().create_key_sync("old", None, False, 0.0)
    assert process._open_key_store(state, replica) is replica.api_keys
    assert "create them again" in caplog.text
