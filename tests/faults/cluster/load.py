"""Clients of both eras that call through all replicas, as behind a balancer. If one does not answer, they try the next.

A client of the handshake era keeps its session when it moves. A keyed call whose outcome is unknown is repeated at
another replica with the same key; together they are one call.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from tests.faults.cluster.node_process import TOKEN, Replica
from tests.gateway.load_clients import Failed, LegacyLoadClient, LoadClient, Lost, load_client
from toolway.testing import History
from toolway.testing.history import GRACE_S, Outcome

Json = dict[str, Any]
ERAS: Final = ("modern", "legacy")
LIMIT: Final = 5.0  # seconds for a call: less than a server may be without an owner
LONG: Final = 20.0  # the same, where callers should notice only a delay
PATIENCE: Final = 0.8 * GRACE_S  # of a client, beyond that: then the answer is lost, and not late
REST: Final = 0.1  # seconds at most before the next call, after one that did not run
TRIES: Final = 4  # of a keyed call
NOBODY: Final = 40.0  # seconds without any replica that takes a call, after which the run has failed
NEVER: Final = 1e9
NO_ANSWER: Final = "lost: no answer in time"


@dataclass(frozen=True)
class Order:
    """One call to be made."""

    tool: str
    arguments: Json = field(default_factory=dict)
    keyed: bool = False
    effect: bool = True


MIX: Final = (
    (55, Order("counter")),
    (15, Order("counter", {"seconds": 0.1})),
    (15, Order("counter", keyed=True)),
    (15, Order("echo", {"text": "x"}, effect=False)),
)


@dataclass
class Trip:
    """One try of a call through one replica."""

    nonce: str
    server: str
    entry: str  # the replica that was asked
    began: float
    keyed: bool
    ended: float = NEVER
    executed: str = ""  # as reported to the client: yes, no, unknown
    how: str = ""  # "ok", "lost", or the code and message of an error


class Load:
    def __init__(
        self,
        replicas: Sequence[Replica],
        servers: Sequence[str],
        history: History,
        seed: int = 1,
        limit: float = LIMIT,
    ) -> None:
        self.limit = limit
        self.trips: list[Trip] = []
        self.sessions_lost = 0
        self.stopped = False
        self._replicas = replicas
        self._servers = servers
        self._history = history
        self._dice = Random(seed)

    async def clients(self, count: int, calls: int, until: asyncio.Event | None = None) -> None:
        """Make so many calls in all, and keep going until the event is set."""
        done = 0

        def more() -> bool:
            nonlocal done
            done += 1
            return not self.stopped and (done <= calls or (until is not None and not until.is_set()))

        async def client(number: int) -> None:
            each = Client(self, number, self._replicas)
            try:
                while more():
                    await self._one(each)
            finally:
                each.close()

        async with asyncio.TaskGroup() as tasks:
            for number in range(count):
                tasks.create_task(client(number))

    async def _one(self, client: Client) -> None:
        (order,) = self._dice.choices([order for _, order in MIX], [share for share, _ in MIX])
        if not await self.call(client, self._dice.choice(self._servers), order):
            await asyncio.sleep(self._dice.random() * REST)

    async def call(self, client: Client, server: str, order: Order) -> bool:
        """Make a call and write it down. Whether it ran."""
        nonce = self._history.start_call(
            unsafe=order.effect,
            time_limit=TRIES * (self.limit + GRACE_S + REST) if order.keyed else self.limit,
            target=f"{server}.{order.tool}",
            has_effect=order.effect,
        )
        tries: list[Trip] = []
        carried = None
        while len(tries) < (TRIES if order.keyed else 1):
            if tries:
                client.move()
                await asyncio.sleep(REST)
            trip, answer = await client.try_once(nonce, server, order)
            tries.append(trip)
            carried = carried or answer
            if trip.executed != "unknown" or self.stopped:
                break
        self.trips += tries
        executed = max((trip.executed for trip in tries), key=("", "no", "unknown", "yes").index)
        name = "ok" if executed == "yes" else tries[-1].how
        self._history.record_outcome(nonce, Outcome(name, executed or None, tries[-1].ended, carried, len(tries)))
        return executed == "yes"

    def outcomes(self) -> Counter[str]:
        """How many tries ended how."""
        return Counter(f"{trip.executed}: {trip.how}" if trip.how != "ok" else "ok" for trip in self.trips)


class Client:
    """One client; it is at one replica at a time."""

    def __init__(self, load: Load, number: int, replicas: Sequence[Replica]) -> None:
        self._load = load
        self._replicas = replicas
        self._at = number % len(replicas)
        self._load_client: LoadClient = load_client(ERAS[number // len(replicas) % 2], 0, TOKEN)
        self._settle()

    @property
    def replica(self) -> Replica:
        return self._replicas[self._at]

    def move(self, to: int | None = None) -> None:
        self._at = (self._at + 1 if to is None else to) % len(self._replicas)
        self._settle()

    def close(self) -> None:
        self._load_client.close()

    def _settle(self) -> None:
        self._load_client.close()
        self._load_client.connection = None
        self._load_client.host, self._load_client.port = self.replica.seat.host, self.replica.port

    async def try_once(self, nonce: str, server: str, order: Order) -> tuple[Trip, str | None]:
        """The try, and the nonce that its answer carried."""
        async with asyncio.timeout(NOBODY):
            while True:
                trip = Trip(nonce, server, self.replica.name, time.monotonic(), order.keyed)
                try:
                    return trip, await self._ride(trip, order)
                except _Elsewhere:
                    self.move()
                    await asyncio.sleep(0.02)

    async def _ride(self, trip: Trip, order: Order) -> str | None:
        limit = self._load.limit
        meta: Json = {"toolway/timeoutMs": limit * 1000}
        if order.keyed:
            meta["toolway/idempotencyKey"] = trip.nonce
        arguments = {**order.arguments, "nonce": trip.nonce}
        carried = None
        try:
            async with asyncio.timeout(limit + PATIENCE):
                result = await self._load_client.call(f"{trip.server}__{order.tool}", arguments, meta=meta)
        except TimeoutError:
            trip.executed, trip.how = "unknown", NO_ANSWER
            self.move()
        except Lost as lost:
            trip.executed, trip.how = "unknown" if lost.sent else "no", f"lost: {lost}"
            self.move()
        except Failed as failed:
            self._look_at(failed)
            trip.executed, trip.how = str(failed.executed or ""), str(failed)
        except OSError:
            raise _Elsewhere from None
        else:
            trip.executed, trip.how = "yes", "tool_error" if result.is_error else "ok"
            carried = result.data.get("nonce") if isinstance(result.data, dict) else None
        trip.ended = time.monotonic()
        return carried

    def _look_at(self, failed: Failed) -> None:
        if failed.closes:
            self._load_client.close()
        if failed.status == 404 and isinstance(self._load_client, LegacyLoadClient):
            self._load.sessions_lost += 1
            self._load_client.session = ""
            raise _Elsewhere
        if failed.code == -31013 and failed.closes:  # it is about to end: a balancer asks the next
            raise _Elsewhere


class _Elsewhere(Exception):
    """Nobody took the call."""
