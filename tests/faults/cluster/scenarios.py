"""What is done to a cluster under load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from tests.faults.cluster.cluster import Cluster
from tests.faults.cluster.engines_setup import NATS, POSTGRES
from tests.faults.cluster.runs import Act


def kills(times: int, every: float, seed: int = 1) -> Act:
    """`kill -9` of a random replica, which is started again at once."""
    dice = Random(seed)

    async def act(cluster: Cluster) -> None:
        for _ in range(times):
            began = time.monotonic()
            victim = dice.choice(cluster.replicas)
            strike = cluster.strike("kill", victim)
            await victim.kill()
            strike.until = time.monotonic()
            await victim.start()
            await victim.wait_ready()
            await asyncio.sleep(max(0.0, began + every - time.monotonic()))

    return act


def nats_kills(down: float) -> Act:
    """`kill -9` of one NATS server after the other; each comes back before the next."""

    async def act(cluster: Cluster) -> None:
        for node in cluster.nats:
            await node.kill()
            await asyncio.sleep(down)
            await node.start()
            await asyncio.sleep(1)

    return act


def postgres_restarts(down: float) -> Act:
    """A crash of PostgreSQL, and then an orderly restart."""

    async def act(cluster: Cluster) -> None:
        for how in ("immediate", "fast"):
            await cluster.postgres.stop(how)
            await asyncio.sleep(down)
            await cluster.postgres.start()
            await asyncio.sleep(3)

    return act


def pause(seconds: float, seed: int = 1) -> Act:
    """SIGSTOP of a random replica, and SIGCONT that many seconds later."""

    async def act(cluster: Cluster) -> None:
        victim = Random(seed).choice(cluster.replicas)
        strike = cluster.strike("pause", victim)
        victim.pause()
        await asyncio.sleep(seconds)
        victim.resume()
        strike.until = time.monotonic()
        await asyncio.sleep(3)

    return act


def cut_from_nats(seconds: float) -> Act:
    async def act(cluster: Cluster) -> None:
        victim = cluster.replicas[0]
        for node in NATS:
            cluster.ground.cut(victim.name, node)
        await asyncio.sleep(seconds)
        cluster.ground.mend()
        await asyncio.sleep(3)

    return act


def cut_from_postgres(seconds: float) -> Act:
    async def act(cluster: Cluster) -> None:
        victim = cluster.replicas[1]
        strike = cluster.strike("postgres", victim)
        cluster.ground.cut(victim.name, POSTGRES)
        await asyncio.sleep(seconds)
        cluster.ground.mend()
        strike.until = time.monotonic()
        await asyncio.sleep(3)

    return act


def cut_from_each_other(seconds: float) -> Act:
    async def act(cluster: Cluster) -> None:
        first, second = cluster.replicas[:2]
        strike = cluster.strike("cut", first, second, pair=True)
        cluster.ground.cut(first.name, second.name)
        await asyncio.sleep(seconds)
        cluster.ground.mend()
        strike.until = time.monotonic()
        await asyncio.sleep(3)

    return act


def rolling_restart() -> Act:
    """Each replica ends in order and is started again, one after the other. It is not a strike: nothing may be lost."""

    async def act(cluster: Cluster) -> None:
        for replica in cluster.replicas:
            with _timed(cluster, "an orderly end took"):
                code = await replica.stop()
            assert code == 0, f"{replica.name} ended with {code}:\n{replica.log[-2000:]}"
            with _timed(cluster, "ready again in"):
                await replica.start()
                await replica.wait_ready()

    return act


@contextmanager
def _timed(cluster: Cluster, what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    cluster.took.setdefault(what, []).append(time.monotonic() - began)
