"""Keeping up with a PostgreSQL that crashes, and with one that stands still."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cluster.db.encryption_keys import an_integrity
from tests.faults.cluster.engines import missing_engines, postgres
from tests.faults.cluster.engines_setup import Loopback
from toolway.cluster.db.changes import ChangeReader
from toolway.cluster.db.client_state import ApiKeyTable, RateBuckets
from toolway.cluster.db.engine import open_engine, upgrade_schema
from toolway.cluster.replication.api_keys import DbApiKeyStore
from toolway.cluster.replication.change_feed import ChangeFeed
from toolway.cluster.replication.rate_limit import LeasedRateLimiter
from toolway.errors import ServerUnavailable
from toolway.gateway.rate_limit import Rate

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(missing_engines() is not None, reason=missing_engines() or ""),
]


async def _until(what: Callable[[], bool], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not what():
            await asyncio.sleep(0.01)


async def test_keys_and_rates_work_without_the_database_and_catch_up() -> None:
    async with postgres(Loopback()) as server:
        ours, theirs = open_engine(server.url), open_engine(server.url)
        await upgrade_schema(ours)
        following = ChangeFeed(ChangeReader(ours), "t")
        keyring = DbApiKeyStore(ApiKeyTable(ours, an_integrity()), "t", "tw_of-this-machine", time.monotonic)
        keyring.register(following)
        rates = LeasedRateLimiter(RateBuckets(ours), "t", lambda: 1, time.monotonic)
        await following.start()
        rates.start()
        try:
            token, key = await keyring.create_key("ci", None, False, 0.0)
            assert rates.try_acquire("k", Rate(600, "min")) == 0.0

            await server.stop()  # as in a crash
            with pytest.raises(ServerUnavailable):
                await keyring.revoke_key(key.id)
            assert keyring.authenticate(token) is not None
            passed = [rates.try_acquire("k", Rate(600, "min")) for _ in range(100)]
            assert not any(passed)
            await server.start()
            assert await ApiKeyTable(theirs, an_integrity()).revoke("t", key.id)
            await _until(lambda: keyring.authenticate(token) is None, 30)

            token, key = await keyring.create_key("again", None, False, 0.0)
            server.pause()
            rates.try_acquire("k", Rate(600, "min"))
            await asyncio.sleep(6)  # more questions than there are connections
            assert keyring.authenticate(token) is not None
            server.resume()
            assert await _revoked(theirs, key.id)
            await _until(lambda: keyring.authenticate(token) is None, 30)
            await _until(lambda: not rates.is_standalone, 30)
        finally:
            await following.close()
            await rates.close()
            await ours.dispose()
            await theirs.dispose()


async def _revoked(engine: AsyncEngine, id: str) -> bool:
    """A connection from before may have been dropped since."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await ApiKeyTable(engine, an_integrity()).revoke("t", id)
            except SQLAlchemyError:
                await asyncio.sleep(0.1)
