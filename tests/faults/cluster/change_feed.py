"""What one replica says, at the others: how soon a key opens them, how soon a revoked one opens none, and how well they
keep a rate together. Measured from outside, over HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.faults.cluster.node_process import Replica
from tests.gateway.load_clients import Connection, Failed, Lost, ModernLoadClient

Json = dict[str, Any]
PAUSE: Final = 0.005  # seconds between two looks
GIVE_UP: Final = 15.0
QUOTA: Final = -31004


@dataclass(frozen=True)
class Span:
    """Seconds from the answer that a key was made or revoked until the last replica knew."""

    opened: float
    revoked: float
    stream: float  # until a stream that the key had open at another replica had ended


@dataclass(frozen=True)
class Spent:
    """What was let through at all replicas together."""

    passed: int
    refused: int
    seconds: float
    waits: tuple[float, ...]  # the reported waits of rejected calls


async def make_key(replica: Replica, name: str, **more: Any) -> Json:
    status, made = await replica.request("POST", "/admin/keys", {"name": name, **more})
    assert status == 200, made
    return made


async def revocation(replicas: Sequence[Replica], number: int = 0) -> Span:
    """A key that is made at one replica, used at the next, and revoked at the one after that."""
    first, second, third = (replicas[(number + each) % len(replicas)] for each in range(3))
    made = await make_key(first, f"k{number}")
    opened = await _until(replicas, made["token"], opens=True)
    stream = asyncio.create_task(_stream_ends(second, made["token"]))
    await asyncio.sleep(0.2)
    assert not stream.done()
    status, said = await third.request("DELETE", f"/admin/keys/{made['id']}")
    began = time.monotonic()
    assert status == 200, said
    revoked = await _until(replicas, made["token"], opens=False)
    async with asyncio.timeout(GIVE_UP):
        ended = await stream
    return Span(opened, revoked, max(0.0, ended - began))


async def missed(replicas: Sequence[Replica], number: int = 0, seconds: float = 3.0) -> float:
    """Seconds in which a replica that stood still while a key was revoked takes it, after it continues."""
    first, second = (replicas[(number + each) % len(replicas)] for each in range(2))
    made = await make_key(first, f"m{number}")
    await _until(replicas, made["token"], opens=True)
    second.pause()
    try:
        status, said = await first.request("DELETE", f"/admin/keys/{made['id']}")
        assert status == 200, said
        await asyncio.sleep(seconds)
    finally:
        second.resume()
    return await _until([second], made["token"], opens=False)


async def _until(replicas: Sequence[Replica], token: str, *, opens: bool) -> float:
    """Seconds until all of them take the key, or none does."""
    began = time.monotonic()
    async with asyncio.timeout(GIVE_UP):
        await asyncio.gather(*(_one_until(replica, token, opens) for replica in replicas))
    return time.monotonic() - began


async def _one_until(replica: Replica, token: str, opens: bool) -> None:
    client = _client(replica, token)
    try:
        while await _opens(client) != opens:
            await asyncio.sleep(PAUSE)
    finally:
        client.close()


async def _opens(client: ModernLoadClient) -> bool:
    """On a connection that is kept: what its head has shown before must be forgotten too."""
    try:
        await client.request("server/discover", {})
    except Lost:
        return False
    except Failed as exc:
        if exc.status != 401:
            raise
        return False
    return True


async def _stream_ends(replica: Replica, token: str) -> float:
    """When a stream has ended that would continue for as long as the key is good."""
    client = _client(replica, token)
    connection: Connection = await client.begin(
        1, "subscriptions/listen", {"notifications": {"toolsListChanged": True}}
    )
    try:
        status, headers = await connection.head()
        assert status == 200, (status, headers)
        async for _ in connection.parts(status, headers):
            pass
    except Lost:
        pass
    finally:
        client.close()
    return time.monotonic()


def _client(replica: Replica, token: str) -> ModernLoadClient:
    client = ModernLoadClient(replica.port, token)
    client.host = replica.seat.host
    return client


async def spending(replicas: Sequence[Replica], tool: str, rate: str, seconds: float, pause: float) -> Spent:
    """Calls with one key at all replicas at once, as fast as `pause` lets them."""
    made = await make_key(replicas[0], "limited", rate=rate)
    await _until(replicas, made["token"], opens=True)
    began = time.monotonic()
    found = await asyncio.gather(
        *(_spend(_client(replica, made["token"]), tool, began + seconds, pause) for replica in replicas)
    )
    took = time.monotonic() - began
    await replicas[0].request("DELETE", f"/admin/keys/{made['id']}")
    waits = tuple(wait for _, told in found for wait in told)
    return Spent(sum(passed for passed, _ in found), len(waits), took, waits)


async def _spend(client: ModernLoadClient, tool: str, until: float, pause: float) -> tuple[int, list[float]]:
    passed, waits = 0, []
    try:
        while time.monotonic() < until:
            try:
                await client.call(tool, {"text": "x"})
                passed += 1
            except Failed as exc:
                if (exc.status, exc.code, exc.executed) != (429, QUOTA, "no"):
                    raise
                waits.append(exc.data["retryAfterMs"] / 1000)
            await asyncio.sleep(pause)
    finally:
        client.close()
    return passed, waits


async def breaker(replicas: Sequence[Replica], server: str, tool: str, token: str) -> float:
    """Seconds from when one replica leaves a server alone until all do. It cannot be reached any more."""
    client = _client(replicas[0], token)
    try:
        while not await _left_alone(replicas[0], server):
            try:
                await client.call(f"{server}__{tool}", {"text": "x"})
            except Failed:
                await asyncio.sleep(0)
    finally:
        client.close()
    began = time.monotonic()
    async with asyncio.timeout(GIVE_UP):
        for replica in replicas[1:]:
            while not await _left_alone(replica, server):
                await asyncio.sleep(PAUSE)
    return time.monotonic() - began


async def _left_alone(replica: Replica, server: str) -> bool:
    _, said = await replica.request("GET", "/admin/breakers")
    return any(each["server"] == server and not each["tool"] and each["wait"] > 0 for each in said["breakers"])


async def new_tool(replicas: Sequence[Replica], server: str, token: str) -> float:
    """Seconds until all replicas list a tool that a server has got while it runs."""
    client = _client(replicas[0], token)
    try:
        told = await client.call(f"{server}__change_tools", {})
    finally:
        client.close()
    began = time.monotonic()
    async with asyncio.timeout(GIVE_UP):
        for replica in replicas:
            while f"{server}__{told.data['added']}" not in await _tools(replica, token):
                await asyncio.sleep(PAUSE)
    return time.monotonic() - began


async def _tools(replica: Replica, token: str) -> set[str]:
    client = _client(replica, token)
    try:
        found = await client.request("tools/list", {})
    finally:
        client.close()
    return {tool["name"] for tool in found.raw["tools"]}
