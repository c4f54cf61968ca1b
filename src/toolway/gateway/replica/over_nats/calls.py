"""A node's calls over NATS: to nodes without an address, and from others where it has none itself.

They have a connection of their own, made when the first is needed: where all nodes have addresses, there is none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from nats.aio.client import Client
from nats.errors import Error as NatsError

from toolway.gateway.replica.over_nats.door import NatsDoor
from toolway.gateway.replica.over_nats.link import NatsLink
from toolway.gateway.replica.over_nats.visit import Answer
from toolway.gateway.replica.over_nats.way import DOWN, NatsWay, connect
from toolway.model import Certainty
from toolway.protocol.wire import FRAME_LIMIT
from toolway.upstream.link import Fault

REACH: Final = 3.0  # seconds that a call waits for the connection
AGAIN: Final = 1.0  # seconds after a connection that failed, where nobody waits for it
LOOK: Final = 0.1  # seconds between two looks at which tenure is ours


class NatsCalls:
    """`root` begins all subjects of a tenant, as those of its news do."""

    def __init__(self, servers: Sequence[str], credentials: str, root: str, node: str) -> None:
        self._servers = servers
        self._credentials = credentials
        self._root = root
        self._node = node
        self._client: Client | None = None
        self._way: NatsWay | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._door: NatsDoor | None = None
        self._following: asyncio.Task[None] | None = None

    def link(self, server: str, node: str, epoch: int, limit: int = FRAME_LIMIT) -> NatsLink:
        return NatsLink(self.way, server, node, epoch, limit)

    def listen(self, answer: Answer, epoch: Callable[[], int | None]) -> None:
        """Take calls of others, under the number of the tenure that `epoch` says."""
        if self._following is None:
            self._following = asyncio.create_task(self._follow(answer, epoch))

    async def way(self) -> NatsWay:
        """Raises `Fault` (C0)."""
        if self._way is None:
            if self._connecting is None or self._connecting.done():
                self._connecting = asyncio.create_task(self._connect())
            try:
                async with asyncio.timeout(REACH):
                    await asyncio.shield(self._connecting)
            except (TimeoutError, NatsError, OSError) as exc:
                raise Fault(f"there is no connection to NATS: {type(exc).__name__}", Certainty.C0, code=DOWN) from None
            assert self._way is not None
        return self._way

    async def _connect(self) -> None:
        self._client = client = await connect(self._servers, self._node, self._credentials)
        way = NatsWay(client, self._root, self._node)
        await way.open()
        self._way = way

    async def _follow(self, answer: Answer, epoch: Callable[[], int | None]) -> None:
        listens: int | None = None
        while True:
            ours = epoch()
            if ours is not None and ours != listens:
                try:
                    await self._listen_as(answer, ours)
                    listens = ours
                except (Fault, NatsError, OSError):
                    await asyncio.sleep(AGAIN)
            await asyncio.sleep(LOOK)

    async def _listen_as(self, answer: Answer, epoch: int) -> None:
        client = (await self.way()).client
        if self._door is None:
            self._door = NatsDoor(client, self._root, self._node, answer)
        await self._door.open(epoch)

    async def close(self) -> None:
        """Calls of others that are under way are cut off, and their callers told."""
        tasks = [task for task in (self._following, self._connecting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._door is not None:
            await self._door.close()
        if self._way is not None:
            await self._way.close()
        if self._client is not None:
            with suppress(NatsError, OSError, asyncio.TimeoutError):
                await self._client.close()
