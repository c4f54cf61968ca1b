"""A node of a cluster as it is in a gateway, without the gateway: lease, places, news, changes; and what it costs."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from sqlalchemy import event

from toolway.cluster.bus import Bus
from toolway.cluster.member import Member
from toolway.cluster.record.changes import Changes
from toolway.cluster.record.engine import open_engine
from toolway.cluster.record.lists import Lists
from toolway.cluster.record.nodes import Card, Nodes
from toolway.cluster.record.places import Held, Place, Places
from toolway.cluster.tenure import TERMS, Terms
from toolway.gateway.replica.owners import Owners
from toolway.gateway.replica.shared.news import Following
from toolway.gateway.replica.upkeep import tell_moved
from toolway.model import Json

TENANT: Final = "default"
CLUSTER: Final = "growth"


class Quiet:
    """An owner of places for which nothing has to be started."""

    def begin(self, held: Held) -> None: ...

    async def finish(self, held: Held) -> None: ...

    def end(self, held: Held) -> None: ...


class SimNode:
    def __init__(self, id: str, database: str, capacity: int, slow: float) -> None:
        terms = Terms(TERMS.ttl * slow, TERMS.renew * slow, TERMS.give_up * slow)
        self.count: Counter[str] = Counter()  # statements by their first word, news, looks
        self.engine = open_engine(database)
        event.listen(self.engine.sync_engine, "before_cursor_execute", self._on_statement)
        nodes, self.places = Nodes(self.engine, terms), Places(self.engine)
        self.owners = Owners(self.places)
        self.lists = Lists(self.engine)
        self.following = Following(Changes(self.engine), TENANT)
        self.bus = Bus(CLUSTER, id, self._hear, self.following.gap, TENANT)
        self.following.tell = self.bus.tell
        self.following.on("lists", self._take_lists)
        self.following.on_news("places", self._places_moved)
        self.member = Member(
            Card(id, "", "growth", capacity, (), TENANT), nodes, self.places, Quiet(), time.monotonic, terms
        )
        self.member.on_moved = self._moved
        self.listed_at = 0.0  # when it last took a change of lists
        self._running: asyncio.Task[None] | None = None

    async def start(self, nats: str) -> None:
        await self.bus.open([nats])
        await self.following.start()
        self._running = asyncio.create_task(self.member.run())

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            with suppress(asyncio.CancelledError):
                await self._running
        await self.following.close()
        await self.owners.close()
        await self.bus.close()
        await self.engine.dispose()

    def _on_statement(self, db: Any, cursor: Any, statement: str, *rest: Any) -> None:
        table = "renewal" if statement.startswith("UPDATE nodes SET") else "other"
        self.count["statements"] += 1
        self.count[table] += 1

    def _hear(self, kind: str, body: Json) -> None:
        self.count["heard"] += 1
        self.following.heard(kind, body)

    async def _take_lists(self, since: int) -> None:
        changed = await self.lists.all(TENANT, since)
        self.count["lists"] += len(changed)
        if changed:
            self.listed_at = time.time()

    # -- as a replica does it -----------------------------------------------------------------------------------------

    def _moved(self, took: Sequence[Held], lost: Sequence[Held]) -> None:
        self.count["took"] += len(took)
        tell_moved(self.following, took, lost)

    def _places_moved(self, body: Json) -> None:
        took = body.get("took")
        if took:
            self.owners.hear(Held(Place(t, s, i), node, fence) for t, s, i, node, fence in took)
        else:
            self.member.look_soon()
