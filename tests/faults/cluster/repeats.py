"""A keyed call in the middle of which the owner of its server, the replica that was asked, or one that is both is
killed, and which is repeated at another replica."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Final

from tests.faults.cluster.cluster import Cluster
from tests.faults.cluster.load import Client, Load, Order, Trip
from tests.faults.cluster.runs import Report
from tests.faults.cluster.verdict import effects_in
from toolway.testing import History

SLOW: Final = Order("counter", {"seconds": 1.0}, keyed=True)
QUICK: Final = Order("echo", {"text": "x"}, effect=False)
TIMES: Final = 3  # that it is repeated


async def run(cluster: Cluster, times: int) -> Report:
    cluster.forget()
    report = Report("a keyed call is repeated at another replica after a crash")
    told: Counter[str] = Counter()
    for number in range(times):
        victim = ("owner", "entry", "both")[number % 3]
        trips = await _once(cluster, f"k-{time.monotonic_ns()}", number, victim)
        report.wrong += _wrong(cluster, trips)
        told[f"{victim} killed: " + ", ".join(trip.executed for trip in trips)] += 1
    report.outcomes = told
    happened = Counter(effect.nonce for effect in effects_in(cluster.effects))
    report.facts |= {"calls": times, "effects": happened.total(), "most of one call": max(happened.values(), default=0)}
    return report


async def _once(cluster: Cluster, nonce: str, number: int, victim: str) -> list[Trip]:
    server = cluster.servers[number % len(cluster.servers)]
    await cluster.watcher.until(lambda: cluster.owner(server) is not None, 30)
    owner = cluster.owner(server)
    assert owner is not None
    at = cluster.replicas.index(owner)
    load = Load(cluster.replicas, cluster.servers, History())
    first = Client(load, at if victim == "both" else at + 1, cluster.replicas)
    then = Client(load, at + 2, cluster.replicas)
    await _until_it_answers(first, server)
    calling = asyncio.create_task(first.try_once(nonce, server, SLOW))
    await _until_it_happened(cluster, nonce)
    struck = owner if victim == "owner" else first.replica  # before it moves on
    await struck.kill()
    trips = [(await calling)[0]]
    for _ in range(TIMES):
        trips.append((await then.try_once(nonce, server, SLOW))[0])
        await asyncio.sleep(0.2)
    for client in (first, then):
        client.close()
    await struck.start()
    await cluster.settle()
    return trips


async def _until_it_answers(client: Client, server: str) -> None:
    """What the record calls its owner may be one that was killed, until its lease is over."""
    async with asyncio.timeout(60):
        while (await client.try_once(f"w-{time.monotonic_ns()}", server, QUICK))[0].executed != "yes":
            await asyncio.sleep(0.2)


async def _until_it_happened(cluster: Cluster, nonce: str) -> None:
    async with asyncio.timeout(20):
        while not any(effect.nonce == nonce for effect in effects_in(cluster.effects)):
            await asyncio.sleep(0.02)


def _wrong(cluster: Cluster, trips: list[Trip]) -> list[str]:
    nonce = trips[0].nonce
    count = sum(effect.nonce == nonce for effect in effects_in(cluster.effects))
    found = [f"I3: {nonce} happened {count} times"] if count != 1 else []
    for trip in trips:
        if trip.executed not in ("yes", "unknown"):
            found.append(f"I4: {nonce} happened, and {trip.entry} denies it: {trip.how}")
        if trip.how.startswith("lost") and trip is not trips[0]:
            found.append(f"I1: {nonce} was not answered by {trip.entry}")
    return found
