"""Finds changes that other nodes made, by polling the database and through NATS messages.

Rule 1. The database is authoritative. A message only triggers an earlier poll, or announces what that poll will find.
Rule 2. A change that was not applied (database unavailable, or the handler failed) is applied after a later poll.
Rule 3. Each kind of change has its own task, so a slow handler does not delay the revocation of an API key.
Rule 4. However many messages arrive, the database is polled at most ten times a second.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Protocol, TypeAlias

from toolway.cluster.queries import LogThrottle, QueryRunner
from toolway.types import Json

POLL_INTERVAL_S: Final = 1.0  # seconds between two polls
MIN_POLL_INTERVAL_S: Final = 0.1  # seconds between two polls, however many messages arrive
RETRY_DELAY_S: Final = 0.5  # seconds after a failed poll or handler
QUERY_TIMEOUT_S: Final = 5.0  # seconds for a query
CLOSE_TIMEOUT_S: Final = 1.0  # seconds for handlers that run when the feed is closed
MAX_QUEUED_MESSAGES: Final = 1000  # for publishing; the oldest are dropped, and nodes find the changes by polling

#: Called with the revision up to which the handler has applied all changes.
ChangeHandler: TypeAlias = Callable[[int], Awaitable[None]]
MessageBodyHandler: TypeAlias = Callable[[Json], None]

log = logging.getLogger("toolway.cluster")


class ChangeSource(Protocol):
    """Reads the changes recorded in the database; implemented in `db/changes.py`."""

    async def fetch_since(self, revision: int) -> tuple[int, frozenset[tuple[str, str]]]: ...


class ChangeFeed:
    """Calls handlers for changes that other nodes made, found through messages and polling.

    The `Bus` calls `handle_message` and `resync`; `send` is its `publish` method.
    """

    def __init__(
        self,
        changes: ChangeSource,
        tenant: str,
        send: Callable[[str, Json], Awaitable[bool]] | None = None,
        poll_interval: float = POLL_INTERVAL_S,
    ) -> None:
        self._changes = changes
        self._tenant = tenant
        self._poll_interval = poll_interval
        self._subscriptions: dict[str, _Subscription] = {}
        self._message_handlers: dict[str, MessageBodyHandler] = {}
        self._run_query = QueryRunner(QUERY_TIMEOUT_S)
        self._poll_log = LogThrottle("cluster changes not readable")
        self._revision = 0
        self._poll_now = asyncio.Event()
        self._queue: deque[tuple[str, Json]] = deque(maxlen=MAX_QUEUED_MESSAGES)
        self._queued = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.poll_count = 0  # number of polls
        self.send = send

    # -- setup --------------------------------------------------------------------------------------------------------

    def on_change(self, kind: str, handler: ChangeHandler, message_handler: MessageBodyHandler | None = None) -> None:
        """Register a handler for a kind of change. The handler reads the change from the database.

        `message_handler` is called with the body of each message of this kind.
        """
        self._subscriptions[kind] = _Subscription(kind, handler)
        if message_handler is not None:
            self._message_handlers[kind] = message_handler

    def on_message(self, kind: str, handler: MessageBodyHandler) -> None:
        """Set the handler of a message kind that nodes send over NATS only.

        Such messages are not stored in the database, so a disconnected node misses them.
        """
        self._message_handlers[kind] = handler

    async def start(self) -> None:
        """Apply all changes so far, then follow new ones in the background.

        Raises errors of the database and of the handlers, if the first application fails.
        """
        await self._poll()
        await asyncio.gather(*(subscription.apply(self._revision) for subscription in self._subscriptions.values()))
        loops = [self._run_poller(), self._run_publisher()]
        self._tasks = [asyncio.create_task(each) for each in loops]
        self._tasks += [
            asyncio.create_task(subscription.run(lambda: self._revision))
            for subscription in self._subscriptions.values()
        ]

    async def close(self) -> None:
        """Stop following changes. Handlers that run get `CLOSE_TIMEOUT_S` to end.

        They read the database, and a cancelled query may leave its transaction open.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                for subscription in self._subscriptions.values():
                    await subscription.idle.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self._run_query.wait_pending()

    # -- messages -----------------------------------------------------------------------------------------------------

    def handle_message(self, kind: str, body: Json) -> None:
        """Pass a message of another node to the handler of its `kind`.

        If the kind is also stored in the database, poll the database for the change.
        """
        handler = self._message_handlers.get(kind)
        if handler is not None:
            try:
                handler(body)
            except Exception:
                log.exception("invalid cluster message: %s", kind[:80])
        if kind in self._subscriptions:
            self._poll_now.set()

    def resync(self) -> None:
        """Poll the database soon, because messages of other nodes may have been missed."""
        self._poll_now.set()

    def publish(self, kind: str, body: Json) -> None:
        """Queue a message to all other nodes, and poll the database soon. Does not block."""
        self._queue.append((kind, body))
        self._queued.set()
        if kind in self._subscriptions:
            self._poll_now.set()

    async def _run_publisher(self) -> None:
        while True:
            await self._queued.wait()
            self._queued.clear()
            while self._queue:
                kind, body = self._queue.popleft()
                if self.send is not None:
                    await self.send(kind, body)

    # -- polls --------------------------------------------------------------------------------------------------------

    async def _run_poller(self) -> None:
        while True:
            # Not `wait_for`: in Python 3.11 it loses a cancellation that arrives together with its result.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_interval * random.uniform(0.9, 1.0)):
                    await self._poll_now.wait()
            self._poll_now.clear()
            try:
                await self._poll()
                self._poll_log.log_recovery()
            except Exception as exc:
                self._poll_log.log_failure(exc)
                await asyncio.sleep(RETRY_DELAY_S)
            await asyncio.sleep(MIN_POLL_INTERVAL_S)

    async def _poll(self) -> None:
        newest, changed = await self._run_query(self._changes.fetch_since(self._revision))
        self.poll_count += 1
        restored, self._revision = newest < self._revision, newest
        for name, subscription in self._subscriptions.items():
            if restored:
                subscription.applied_revision = 0  # the database was restored from a backup: apply everything again
            if (name, self._tenant) in changed:
                subscription.pending.set()


class _Subscription:
    """One kind of change with its handler and the revision up to which it is applied."""

    def __init__(self, name: str, handler: ChangeHandler) -> None:
        self._handler = handler
        self._failure_log = LogThrottle(f"change of {name} not applied yet")
        self.applied_revision = 0  # revision up to which all changes are applied
        self.pending = asyncio.Event()
        self.idle = asyncio.Event()  # set while the handler does not run
        self.idle.set()

    async def apply(self, newest: int) -> None:
        """Run the handler, which reads the changes up to at least revision `newest`.

        If it fails, the change stays pending.
        """
        self.pending.clear()
        self.idle.clear()
        try:
            await self._handler(self.applied_revision)
        except BaseException:
            self.pending.set()
            raise
        finally:
            self.idle.set()
        self.applied_revision = newest

    async def run(self, newest: Callable[[], int]) -> None:
        while True:
            await self.pending.wait()
            try:
                await self.apply(newest())
                self._failure_log.log_recovery()
            except Exception as exc:
                self._failure_log.log_failure(exc)
                await asyncio.sleep(RETRY_DELAY_S)
