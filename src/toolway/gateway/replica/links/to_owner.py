"""What a link to the owner of a server need not do: an owner is modern, and every request says all it must know."""

from __future__ import annotations

import asyncio

from toolway.model import Era, Json
from toolway.upstream.link import Loss


class ToOwner:
    async def notify(self, method: str, params: Json) -> None:
        """The modern era has none that a client sends."""

    def adopt(self, era: Era, version: str) -> None:
        """Each request says its version."""

    def forget_session(self) -> None:
        """There is none."""

    async def wait_lost(self) -> Loss:
        never: asyncio.Future[Loss] = asyncio.get_running_loop().create_future()
        return await never
