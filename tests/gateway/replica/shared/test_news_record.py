"""Keeping up with a PostgreSQL that crashes, and with one that stands still."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.faults.cluster.engines import missing_engines, postgres
from tests.faults.cluster.ground import Loopback
from toolway.cluster.record.api_keys import ApiKeys
from toolway.cluster.record.changes import Changes
from toolway.cluster.record.engine import open_engine, upgrade
from toolway.cluster.record.rates import Buckets
from toolway.errors import Unavailable
from toolway.gateway.rates import Rate
from toolway.gateway.replica.shared.keyring import ClusterKeyring
from toolway.gateway.replica.shared.limits import LeasedRates
from toolway.gateway.replica.shared.news import Following

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(missing_engines() is not None, reason=missing_engines() or ""),
]


async def _until(what: Callable[[], bool], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not what():
            await asyncio.sleep(0.01)


async def test_keys_and_rates_go_on_without_the_record_and_catch_up_with_it() -> None:
    async with postgres(Loopback()) as server:
        ours, theirs = open_engine(server.url), open_engine(server.url)
        await upgrade(ours)
        following = Following(Changes(ours), "t")
        keyring = ClusterKeyring(ApiKeys(ours), "t", "tw_of-this-machine", time.monotonic)
        keyring.follow(following)
        rates = LeasedRates(Buckets(ours), "t", lambda: 1, time.monotonic)
        await following.start()
        rates.start()
        try:
            token, key = await keyring.issue("ci", None, False, 0.0)
            assert rates.take("k", Rate(600, "min")) == 0.0

            await server.stop()  # as in a crash
            with pytest.raises(Unavailable):
                await keyring.withdraw(key.id)
            assert keyring.who(token) is not None
            passed = [rates.take("k", Rate(600, "min")) for _ in range(100)]
            assert not any(passed)
            await server.start()
            assert await ApiKeys(theirs).revoke("t", key.id)
            await _until(lambda: keyring.who(token) is None, 5)

            token, key = await keyring.issue("again", None, False, 0.0)
            server.pause()
            rates.take("k", Rate(600, "min"))
            await asyncio.sleep(6)  # more questions than there are connections
            assert keyring.who(token) is not None
            server.resume()
            assert await _revoked(theirs, key.id)
            await _until(lambda: keyring.who(token) is None, 6)
            await _until(lambda: not rates.alone, 5)
        finally:
            await following.close()
            await rates.close()
            await ours.dispose()
            await theirs.dispose()


async def _revoked(engine: AsyncEngine, id: str) -> bool:
    """A connection from before may have been given up meanwhile."""
    async with asyncio.timeout(10):
        while True:
            try:
                return await ApiKeys(engine).revoke("t", id)
            except SQLAlchemyError:
                await asyncio.sleep(0.1)
