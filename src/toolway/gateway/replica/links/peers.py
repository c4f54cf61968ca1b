"""The other nodes, as this one calls them: one pool of connections to each, and an ear for whether it lives.

A node that is killed closes its connections, and whoever waits for it knows at once. One that hangs or is cut off does
not; so, while anybody waits for a node, its signs of life are listened to, and silence ends the waiting. They come over
NATS, which may fail while the node is well: one that gives none is asked over HTTP, and is silent when it does not
answer that either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar
from urllib.parse import urlsplit

from toolway.addresses.policy import Addresses
from toolway.cluster.bus import Bus
from toolway.cluster.ears import BEAT, SILENCE
from toolway.config.spec import Server, Timeout
from toolway.upstream.link import Fault
from toolway.upstream.transports.http import base
from toolway.upstream.transports.http1.client import Client, HttpFault, Target

CONNECT: Final = 2.0  # seconds
DOUBT: Final = 2 * BEAT  # seconds without a sign of life after which a node is asked for one
SHORT: Final = 1000  # bytes
UNKNOWN: Final = 401  # a status: who answers does not know our credential, which was made for this node alone
STRANGER: Final = 10.0  # seconds for which a node is left alone after another process answered at its address
ASTRAY: Final = 1.0  # the same where the node itself lives: then the way to it led elsewhere, perhaps only once
LINGER: Final = 5.0  # seconds for which a node is listened to after the last call to it
RENEWED: Final = 12 * 3600.0  # seconds after which our credential for a node is made anew
LEFT: Final = 16 * 60.0  # seconds after which nobody can still wait on connections that were left

T = TypeVar("T")


class Silent(Exception):
    """A node does not give any sign of life."""


class Peer:
    """One node. `address` is where it said it can be reached."""

    def __init__(self, id: str, address: str, credential: str, bus: Bus) -> None:
        self.id = id
        self._loop = asyncio.get_running_loop()
        self._address = address
        self._health = Target.parse(f"{address}/healthz")
        self._headers = {"Authorization": f"Bearer {credential}"}
        self._bus = bus
        self.client = Client(base.limits(self.server("")), self._reach())
        self.made_at = self._loop.time()
        self._waiting: dict[asyncio.Task[object], None] = {}
        self._given_up: set[asyncio.Task[object]] = set()
        self._last_used = self._loop.time()
        self._watching: asyncio.Task[None] | None = None
        self.silent = False
        self._stranger_at = self._away_until = -STRANGER  # when another process last answered at its address

    def server(self, name: str) -> Server:
        """The owner's side of a server, as one more server."""
        return Server(
            url=f"{self._address}/mcp/server/{name}",
            headers=self._headers,
            era="modern",
            timeout=Timeout(connect=CONNECT),
            addresses=self._reach(),
        )

    def _reach(self) -> Addresses:
        """Where a node is was said by its operator."""
        return Addresses((urlsplit(self._address).hostname or "",))

    async def watched(self, work: Awaitable[T]) -> T:
        """The result of `work`, unless the node falls silent meanwhile. Raises `Silent`."""
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        self._waiting[task] = None
        self._listen()
        try:
            return await work
        except asyncio.CancelledError:
            if task in self._given_up and task.uncancel() <= before:
                raise Silent from None
            raise
        except Fault as exc:
            if exc.status == UNKNOWN:
                self._stranger_at = self._loop.time()
                self._away_until = self._stranger_at + STRANGER
            raise
        finally:
            self._last_used = self._loop.time()
            self._given_up.discard(task)
            self._waiting.pop(task, None)

    @property
    def away(self) -> str:
        """Why it is of no use to send it anything now, if it is. A stranger that starts is late to say that it is one,
        and meanwhile nobody knows what became of the call."""
        if self.silent:
            return "its owner gives no sign of life"
        return "another process answers at the address of its owner" if self._is_astray else ""

    @property
    def _is_astray(self) -> bool:
        return self._loop.time() < self._away_until

    def _listen(self) -> None:
        if self._watching is None or self._watching.done():
            self._watching = self._loop.create_task(self._watch())

    async def _watch(self) -> None:
        async with self._bus.listening_to(self.id) as ear:
            while self._waiting or self._loop.time() < self._last_used + LINGER:
                await asyncio.sleep(BEAT / 2)
                quiet = ear.quiet
                if self._loop.time() - quiet > self._stranger_at:
                    self._away_until = min(self._away_until, self._stranger_at + ASTRAY)
                if quiet < DOUBT or await self._answers(max(SILENCE + BEAT / 2 - quiet, BEAT)):
                    self.silent = False
                elif ear.quiet >= SILENCE:
                    self.silent = True
                    self._give_up()
        self.silent = False

    async def _answers(self, within: float) -> bool:
        """Whether it answers a question that asks for nothing."""
        try:
            async with asyncio.timeout(within), self.client.send("GET", self._health) as response:
                await response.read(SHORT)
        except (TimeoutError, HttpFault):
            return False
        return True

    def _give_up(self) -> None:
        for task in [task for task in self._waiting if task not in self._given_up]:
            self._given_up.add(task)
            task.cancel()

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        self.client.close()


class Peers:
    """`credential` makes what we show a node, and `alive` says whether one has a lease, as far as we know."""

    def __init__(self, bus: Bus, credential: Callable[[str], str], alive: Callable[[str], bool]) -> None:
        self._bus = bus
        self._credential = credential
        self._alive = alive
        self._all: dict[str, Peer] = {}
        self._left: set[Peer] = set()

    def of(self, id: str, address: str) -> Peer:
        found = self._all.get(id)
        if found is None or asyncio.get_running_loop().time() > found.made_at + RENEWED:
            if found is not None:
                self._leave(found)
            self._forget_gone()
            found = self._all[id] = Peer(id, address, self._credential(id), self._bus)
        return found

    def _forget_gone(self) -> None:
        """A node that starts again has another id, so there would be more of them with every restart."""
        for id in [id for id in self._all if not self._alive(id)]:
            self._leave(self._all.pop(id))

    def _leave(self, peer: Peer) -> None:
        """Its connections are closed when nobody can be waiting on them any more."""
        self._left.add(peer)
        asyncio.get_running_loop().call_later(LEFT, self._close_left, peer)

    def _close_left(self, peer: Peer) -> None:
        self._left.discard(peer)
        peer.client.close()

    async def close(self) -> None:
        for peer in (*self._all.values(), *self._left):
            await peer.close()
        self._all = {}
        self._left = set()
