"""What nodes tell each other, on NATS core: at most once, so nothing that must be known is known from here alone.

Everything told is a hint to look at the record, or a sign of life. Whoever may have missed something (a connection was
lost, or it was too slow to listen) is told so by `on_gap`, and looks at the record.

One wildcard subscription brings all news of a cluster. Signs of life are another matter: all nodes listening to all
others would grow with the square of their number, so a node listens to those that it waits for, while it waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeAlias

import msgspec
import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from toolway.model import Json

BEAT: Final = 0.25  # seconds between two signs of life
SILENCE: Final = 0.8  # seconds without one after which a node is taken for dead or hung
LARGEST: Final = 64 * 1024  # bytes of one piece of news
PENDING: Final = 10_000  # pieces of news that wait to be looked at; more is a gap
CONNECT: Final = 2.0  # seconds

Hear: TypeAlias = Callable[[str, Json], None]  # (kind, body); must not wait

log = logging.getLogger("toolway.cluster")


class Bus:
    """The news of one cluster, as one node hears and tells them."""

    def __init__(self, cluster: str, node: str, hear: Hear, on_gap: Callable[[], None]) -> None:
        self._root = f"toolway.{cluster}"
        self._node = node
        self._hear = hear
        self._on_gap = on_gap
        self._nats: Client | None = None
        self._beating: asyncio.Task[None] | None = None
        self._ears: dict[str, _Ear] = {}  # by node

    @property
    def connected(self) -> bool:
        return self._nats is not None and self._nats.is_connected

    async def open(self, servers: Sequence[str]) -> None:
        """Connect, and stay connected for as long as there is anybody. Raises `OSError` or `nats.errors.Error`."""
        self._nats = await nats.connect(
            list(servers),
            name=self._node,
            connect_timeout=int(CONNECT),
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.2,
            ping_interval=1,
            max_outstanding_pings=2,
            pending_size=0,  # what is told while nobody hears it is not kept: it would come late
            disconnected_cb=self._lost,
            reconnected_cb=self._back,
            error_cb=self._failed,
        )
        await self._nats.subscribe(f"{self._root}.news.>", cb=self._news, pending_msgs_limit=PENDING)
        self._beating = asyncio.create_task(self._beat())

    async def close(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        if self._nats is not None:
            with suppress(NatsError, OSError, asyncio.TimeoutError):
                await self._nats.close()

    async def tell(self, kind: str, body: Json) -> bool:
        """Tell all others. Whether it left; those who did not hear it look at the record anyway."""
        data = msgspec.json.encode({"from": self._node, "body": body})
        if not self.connected or len(data) > LARGEST:
            return False
        assert self._nats is not None
        try:
            await self._nats.publish(f"{self._root}.news.{kind}", data)
        except (NatsError, OSError):
            return False
        return True

    # -- what comes ---------------------------------------------------------------------------------------------------

    async def _news(self, message: Msg) -> None:
        kind = message.subject.removeprefix(f"{self._root}.news.")
        try:
            told = msgspec.json.decode(message.data) if len(message.data) <= LARGEST else None
        except msgspec.DecodeError:
            told = None
        if not isinstance(told, dict) or not isinstance(told.get("body"), dict):
            log.warning("news that cannot be read were left out: %s", kind[:80])
        elif told.get("from") != self._node:
            self._hear(kind, told["body"])

    async def _lost(self) -> None:
        log.warning("the connection to NATS is lost")

    async def _back(self) -> None:
        log.info("connected to NATS again")
        self._on_gap()

    async def _failed(self, exc: Exception) -> None:
        if type(exc).__name__ == "SlowConsumerError":
            self._on_gap()
        log.debug("NATS: %s", type(exc).__name__)

    # -- signs of life ------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        while True:
            if self.connected:
                assert self._nats is not None
                with suppress(NatsError, OSError):
                    await self._nats.publish(f"{self._root}.beat.{self._node}", b"")
            await asyncio.sleep(BEAT)

    @asynccontextmanager
    async def listening_to(self, node: str) -> AsyncIterator[_Ear]:
        """Hear whether a node lives, for as long as it matters. Many may listen to one at the same time."""
        ear = self._ears.get(node)
        if ear is None:
            ear = self._ears[node] = _Ear()
            await ear.begin(self._nats, f"{self._root}.beat.{node}")
        ear.users += 1
        try:
            yield ear
        finally:
            ear.users -= 1
            if not ear.users and self._ears.get(node) is ear:
                del self._ears[node]
                await ear.end()


class _Ear:
    """When a node was heard last. What we cannot hear ourselves is not the silence of another: while our own connection
    is down, nobody is silent."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()
        self._nats: Client | None = None
        self._subscription: Any = None
        self.users = 0

    async def begin(self, client: Client | None, subject: str) -> None:
        self._nats = client
        if client is not None:
            with suppress(NatsError, OSError):
                self._subscription = await client.subscribe(subject, cb=self._on_beat)

    async def end(self) -> None:
        if self._subscription is not None:
            with suppress(NatsError, OSError):
                await self._subscription.unsubscribe()

    async def _on_beat(self, message: Msg) -> None:
        self._heard = self._loop.time()

    async def wait_silent(self) -> None:
        """Return when nothing was heard for SILENCE seconds in which it could have been."""
        while True:
            if self._nats is None or not self._nats.is_connected:
                self._heard = self._loop.time()
            left = self._heard + SILENCE - self._loop.time()
            if left <= 0:
                return
            await asyncio.sleep(min(left, BEAT))
