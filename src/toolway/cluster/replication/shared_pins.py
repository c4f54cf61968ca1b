"""Pins (first seen or accepted tool definitions) that all nodes share through the database.

Rule 1. Only a server's owner pins what it sees, and a pin counts once it is in the database. Until then the item is
held (not shown to clients), unless the mode is `note`. So two nodes never use different first definitions.
Rule 2. Other nodes use what the database has pinned. What they do not know yet is held.
Rule 3. If the database does not respond, or its rows are rejected, nothing new is pinned or accepted. What a node knows
as pinned stays usable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from toolway.catalog.pin_keeper import hash_identity, review_event
from toolway.catalog.pin_review import PinReview
from toolway.catalog.pins import Deviation, PinMode, ServerPins, approve, merge_review, server_key
from toolway.cluster.bootstrap import database_unavailable
from toolway.cluster.db.integrity import StateRefused
from toolway.cluster.db.pin_table import PINS_CHANGE, PinTable
from toolway.cluster.queries import LogThrottle
from toolway.cluster.replication.change_feed import ChangeFeed
from toolway.events import Event
from toolway.types import Json

RETRY_DELAY_S: Final = 0.5  # seconds after a failed write
CLOSE_TIMEOUT_S: Final = 2.0  # seconds for a write at shutdown


class SharedPins:
    """Compares the lists of all servers with the pins in the cluster database, for the catalog of a node."""

    def __init__(
        self,
        table: PinTable,
        may_pin: Callable[[str], bool],
        mode_of: Callable[[str], PinMode],
        now: Callable[[], float],
        on_changed: Callable[[str], None],
        emit: Callable[[Event], None],
        ignored_of: Callable[[str, str], Sequence[str]] | None = None,
    ) -> None:
        """Create the comparison. Pins are loaded later, when the change feed starts.

        Args:
            table: where the pins are stored.
            may_pin: returns True if this node owns a server, and so pins what it lists.
            mode_of: returns the setting `pins` of a server.
            now: returns the Unix time.
            on_changed: called with a server whose pins changed, to review its lists again.
            emit: reports an event.
            ignored_of: returns the paths of the parts that are not compared, for a server and the name of an item.
        """
        self._table = table
        self._may_pin = may_pin
        self._now = now
        self._on_changed = on_changed
        self._emit = emit
        self._stored: dict[str, ServerPins] = {}  # rows of the database by `server_key`
        self._review = PinReview(
            self._stored,
            mode_of,
            now,
            waits_for_store=True,
            ignored_of=ignored_of,
            on_deviation=self._on_deviation,
        )
        self._feed: ChangeFeed | None = None
        self._revision = 0
        self._waiting: set[str] = set()  # servers whose review is not stored yet
        self._writer: asyncio.Task[None] | None = None
        self._write_log = LogThrottle("pins not stored")
        self._is_loading = False
        self._is_closed = False

    def register(self, feed: ChangeFeed) -> None:
        """Load the pins whenever the change feed reports a change. Call this before the feed starts."""
        self._feed = feed
        feed.on_change(PINS_CHANGE, self._load)

    # -- catalog

    def start_server(self, server: str, identity: str) -> None:
        """Start comparing a server's lists with its pins.

        The server is new, or replaces another one with the same name. `identity` is its fingerprint.
        """
        self._review.start_server(server, hash_identity(identity))

    def review(self, server: str, kind: str, items: Mapping[str, Json]) -> Mapping[str, object]:
        """Compare a server's list with the pins. Return the items to hide from clients, by name.

        The new findings are stored soon, if this node owns the server.
        """
        state = self._review
        held = state.review(server, kind, items)
        if not state.changed.get(server):
            return held
        if not self._may_pin(server):  # the owner stores what it sees
            own = state.servers[server]
            state.adopt(self._stored.get(server_key(server, own.identity)) or ServerPins(server, own.identity))
            state.changed.pop(server)
        elif not self._is_loading or state.proposed.get(server):
            self._waiting.add(server)
            if self._writer is None:
                self._writer = asyncio.get_running_loop().create_task(self._write())
        return held

    def digest(self, server: str, kind: str, name: str, definition: Json) -> str:
        return self._review.digest(server, kind, name, definition)

    def is_usable(self, server: str, kind: str, name: str, digest: str) -> bool:
        return self._review.is_usable(server, kind, name, digest)

    # -- administrators

    def list_servers(self) -> list[ServerPins]:
        """Return the pins of each current server, as they are stored in the database."""
        current = self._review.servers.items()
        return [self._stored[key] for name, own in current if (key := server_key(name, own.identity)) in self._stored]

    async def approve(self, server: str, digests: Mapping[str, str], who: str = "") -> list[str]:
        """Pin definitions that a user accepts. Return the accepted items.

        `digests` are the definitions' digests, by `kind/name`. `who` is the id of the principal who approves. Raises
        `ServerUnavailable` if the database does not respond, `ConfigError` if its rows are refused.
        """
        identity = self._review.servers[server].identity

        def change(stored: ServerPins | None) -> tuple[ServerPins | None, list[str]]:
            approved = approve(stored, digests, self._now()) if stored is not None else []
            return (stored if approved else None), approved

        try:
            approved = await self._table.change(server, identity, change)
            await self._load_changed()
        except (SQLAlchemyError, OSError) as exc:
            raise database_unavailable(exc) from None
        self._publish(server)
        for key in approved:
            self._emit(review_event("accepted", self._stored[server_key(server, identity)], key, who=who))
        return approved

    def close(self) -> None:
        """Start no new writes of pins to the database. `wait_closed` waits for a write that is in flight."""
        self._is_closed = True

    async def wait_closed(self) -> None:
        """Start no new writes of pins to the database; wait at most `CLOSE_TIMEOUT_S` for one that is in flight."""
        self.close()
        if self._writer is not None:
            await asyncio.wait({self._writer}, timeout=CLOSE_TIMEOUT_S)
            if self._writer is not None:
                self._writer.cancel()

    # -- database

    async def _load(self, since: int) -> None:
        if not since:  # at the start, or the database was restored from a backup
            self._revision = 0
        await self._load_changed()

    async def _load_changed(self) -> None:
        """Read the pins that changed in the database, and compare the lists of their servers with them again."""
        self._revision, found = await self._table.load_changed(self._revision)
        for pins in found:
            key = server_key(pins.name, pins.identity)
            known, self._stored[key] = self._stored.get(key), pins
            own = self._review.servers.get(pins.name)
            if own is None or own.identity != pins.identity or known == pins:
                continue
            # If two nodes own instances with different lists, each would write its own deviations again and again.
            self._is_loading = True
            try:
                self._use(pins)
            finally:
                self._is_loading = False

    def _use(self, pins: ServerPins) -> None:
        """Use these stored pins from now on, and compare their server's known lists again."""
        self._review.adopt(pins)
        self._on_changed(pins.name)

    async def _write(self) -> None:
        """Store new pins and deviations of all servers in `_waiting` in the database. A failed write is tried again."""
        try:
            while self._waiting and not self._is_closed:
                server = self._waiting.pop()
                try:
                    await self._store(server)
                    self._write_log.log_recovery()
                except (SQLAlchemyError, OSError, StateRefused) as exc:
                    self._waiting.add(server)
                    self._write_log.log_failure(exc)
                    if not self._is_closed:
                        await asyncio.sleep(RETRY_DELAY_S)
        finally:
            self._writer = None

    async def _store(self, server: str) -> None:
        """Store the pins and deviations that this node found in a server's lists, then use the database's."""
        state = self._review
        own = state.servers[server]
        kinds, proposed = state.changed.pop(server, set()), dict(state.proposed.get(server, {}))
        reviewed = ServerPins(own.name, own.identity, {}, dict(own.deviations), list(own.listed))

        def change(stored: ServerPins | None) -> tuple[ServerPins | None, ServerPins]:
            merged, _ = merge_review(stored, reviewed, kinds, proposed)
            return (merged if merged != stored else None), merged

        try:
            merged = await self._table.change(server, own.identity, change)
        except BaseException:
            state.changed.setdefault(server, set()).update(kinds)
            raise
        self._publish(server)
        self._stored[server_key(server, own.identity)] = merged
        current = state.servers.get(server)
        if current is not None and current.identity == own.identity:
            self._use(merged)  # if another node was first, items are new now, and that is stored, too

    def _publish(self, server: str) -> None:
        if self._feed is not None:
            self._feed.publish(PINS_CHANGE, {"server": server})

    # -- events

    def _on_deviation(self, server: str, key: str, deviation: Deviation | None) -> None:
        if self._may_pin(server):  # one node reports it
            action = "released" if deviation is None else "on_hold" if deviation.held else "noted"
            self._emit(review_event(action, self._review.servers[server], key, deviation))
