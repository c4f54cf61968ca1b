"""What nodes tell each other, on NATS core: at most once, so nothing that must be known is known from here alone.

Everything told is a hint to look at the record, or a sign of life. Whoever may have missed something (a connection was
lost, or it was too slow to listen) is told so by `on_gap`, and looks at the record.

One wildcard subscription brings all news of a tenant. Signs of life are another matter: all nodes listening to all
others would grow with the square of their number, so a node listens to those that it waits for (`ears.py`).

News are sealed with the key of the cluster: who only reaches NATS can neither make them up nor read them.

All subjects of a tenant begin alike, and nothing crosses from one tenant to another. So a tenant can be an account of
NATS, whose server then keeps it apart: its nodes are given the credentials of that account and nothing else differs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeAlias

import msgspec
import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from toolway.cluster.creds import options_of
from toolway.cluster.ears import BEAT, SILENCE, Ear
from toolway.cluster.passes import Sealer
from toolway.model import Json

LARGEST: Final = 64 * 1024  # bytes of one piece of news
PENDING: Final = 10_000  # pieces of news that wait to be looked at; more is a gap
CONNECT: Final = 2.0  # seconds
COMPLAIN: Final = 60.0  # seconds
KIND: Final = "news"  # of what we seal
LASTS: Final = 300.0  # seconds: clocks of nodes may differ
_PLAIN: Final = re.compile(r"[^A-Za-z0-9_-]")

Hear: TypeAlias = Callable[[str, Json], None]  # (kind, body); must not wait

__all__ = ["BEAT", "SILENCE", "Bus", "Ear", "token"]
log = logging.getLogger("toolway.cluster")


class Bus:
    """The news of one tenant of a cluster, as one node hears and tells them."""

    def __init__(
        self,
        cluster: str,
        node: str,
        hear: Hear,
        on_gap: Callable[[], None],
        tenant: str = "default",
        sealer: Sealer | None = None,
    ) -> None:
        self.root = f"toolway.{token(cluster)}.{token(tenant)}"  # of all subjects
        self._node = token(node)
        self._sealer = sealer
        self._left_out_at = -COMPLAIN
        self._hear = hear
        self._on_gap = on_gap
        self._nats: Client | None = None
        self.trouble: Exception | None = None  # the last one
        self._closing = False
        self._beating: asyncio.Task[None] | None = None
        self._ears: dict[str, Ear] = {}  # by node

    @property
    def connected(self) -> bool:
        return self._nats is not None and self._nats.is_connected

    async def open(self, servers: Sequence[str], credentials: str | os.PathLike[str] | None = None) -> None:
        """Connect, and stay connected for as long as there is anybody. `credentials` is a file of NATS; a user and a
        password may stand in the addresses. Raises `OSError`, `ValueError` or `nats.errors.Error`."""
        who: dict[str, Any] = options_of(credentials) if credentials is not None else {}
        self._nats = await nats.connect(
            list(servers),
            **who,
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
        await self._nats.subscribe(f"{self.root}.news.>", cb=self._news, pending_msgs_limit=PENDING)
        self._beating = asyncio.create_task(self._beat())

    async def close(self) -> None:
        self._closing = True
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        for ear in list(self._ears.values()):
            await ear.end()
        if self._nats is not None:
            with suppress(NatsError, OSError, asyncio.TimeoutError):
                await self._nats.close()

    async def tell(self, kind: str, body: Json) -> bool:
        """Tell all others. Whether it left; those who did not hear it look at the record anyway."""
        data = self._sealed({"kind": kind, "from": self._node, "body": body})
        if not self.connected or len(data) > LARGEST:
            return False
        assert self._nats is not None
        try:
            await self._nats.publish(f"{self.root}.news.{kind}", data)
        except (NatsError, OSError):
            return False
        return True

    # -- what comes ---------------------------------------------------------------------------------------------------

    async def _news(self, message: Msg) -> None:
        kind = message.subject.removeprefix(f"{self.root}.news.")
        told = self._opened(message.data) if len(message.data) <= LARGEST else None
        if not isinstance(told, dict) or told.get("kind") != kind or not isinstance(told.get("body"), dict):
            self._leave_out(kind)
        elif told.get("from") != self._node:
            self._hear(kind, told["body"])

    def _leave_out(self, kind: str) -> None:
        """Said once a minute: who floods us shall not flood the log too."""
        now = asyncio.get_running_loop().time()
        if now - self._left_out_at >= COMPLAIN:
            self._left_out_at = now
            log.warning("news that cannot be read were left out (%r): another key, or clocks that differ?", kind[:80])

    def _sealed(self, told: Json) -> bytes:
        if self._sealer is None:
            return msgspec.json.encode(told)
        return self._sealer.seal(KIND, told, LASTS).encode()

    def _opened(self, data: bytes) -> Any:
        """What was told, or None for what nobody of ours said."""
        try:
            return msgspec.json.decode(data) if self._sealer is None else self._sealer.open(KIND, data.decode())
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    async def _lost(self) -> None:
        if not self._closing:
            log.warning("the connection to NATS is lost")

    async def _back(self) -> None:
        log.info("connected to NATS again")
        self._on_gap()

    async def _failed(self, exc: Exception) -> None:
        self.trouble = exc
        if type(exc).__name__ == "SlowConsumerError":
            self._on_gap()
        log.debug("NATS: %s", type(exc).__name__)

    # -- signs of life ------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        while True:
            if self.connected:
                assert self._nats is not None
                with suppress(NatsError, OSError):
                    await self._nats.publish(f"{self.root}.beat.{self._node}", b"")
            await asyncio.sleep(BEAT)

    @asynccontextmanager
    async def listening_to(self, node: str) -> AsyncIterator[Ear]:
        """Hear whether a node lives, for as long as it matters. Many may listen to one at the same time."""
        ear = self._ear(node)
        ear.users += 1
        try:
            await ear.opened()
            yield ear
        finally:
            ear.users -= 1

    def _ear(self, node: str) -> Ear:
        ear = self._ears.get(node)
        if ear is None:
            ear = self._ears[node] = Ear(
                lambda: self._nats, f"{self.root}.beat.{token(node)}", lambda: self._ears.pop(node)
            )
        return ear


def token(text: str) -> str:
    """A name as one part of a subject: what has a meaning there is written as its number."""
    return _PLAIN.sub(lambda found: f"%{ord(found[0]):x}%", text) or "%"
