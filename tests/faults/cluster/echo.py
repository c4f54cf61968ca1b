"""A NATS client that repeats every message: later, in another order, more than once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Final

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

MARK: Final = "Said-Again"
TIMES: Final = 2
LATEST: Final = 0.4  # seconds: less than after which silence is noticed
WAITING: Final = 2000  # messages that wait to be said again


class Echo:
    def __init__(self, client: Client, dice: Random) -> None:
        self.count = 0
        self._client = client
        self._dice = dice
        self._saying: set[asyncio.Task[None]] = set()
        self._over = False

    async def on_message(self, message: Msg) -> None:
        if (
            self._over
            or (message.headers or {}).get(MARK)
            or message.subject.startswith("$")
            or len(self._saying) > WAITING
        ):
            return
        for _ in range(TIMES):
            task = asyncio.create_task(self._publish(message, self._dice.random() * LATEST))
            self._saying.add(task)
            task.add_done_callback(self._saying.discard)

    async def _publish(self, message: Msg, later: float) -> None:
        await asyncio.sleep(later)
        headers = {**(message.headers or {}), MARK: "1"}
        await self._client.publish(message.subject, message.data, reply=message.reply, headers=headers)
        self.count += 1

    async def end(self) -> None:
        self._over = True
        await asyncio.gather(*self._saying, return_exceptions=True)


@asynccontextmanager
async def echoing(url: str, seed: int = 1) -> AsyncIterator[Echo]:
    client = await nats.connect(url)
    echo = Echo(client, Random(seed))
    await client.subscribe(">", cb=echo.on_message)
    try:
        yield echo
    finally:
        await echo.end()
        await client.close()
