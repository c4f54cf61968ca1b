"""Reference-counted subscriptions to one server's resources and tasks, in either era.

The whole set is sent again after every new connection or `initialize`. Changes in between were not reported, so every
resource then counts as changed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Literal

from toolway._async import LightEvent
from toolway.upstream.session import Session
from toolway.upstream.transport import JSONRPCError, TransportError

SUBSCRIBE_BATCH_S: Final = 0.02  # within which new subscriptions are sent together
ACKNOWLEDGE_TIMEOUT_S: Final = 5.0  # that a subscriber waits for the server's acknowledgement
RESUBSCRIBE_BACKOFF_S: Final = (0.5, 30.0)  # first and longest delay before a lost stream is opened again

#: Kinds of subscriptions, by their names in the filter of `subscriptions/listen`.
SubscriptionKind = Literal["resourceSubscriptions", "taskIds"]
RESOURCE_KIND: Final = "resourceSubscriptions"
TASK_KIND: Final = "taskIds"


class Subscriptions:
    """Reference-counted subscriptions that callers want from one server.

    `on_update` is called with the URI of each resource that may have changed.
    """

    def __init__(self, on_update: Callable[[str], None], random: Callable[[], float]) -> None:
        self._on_update = on_update
        self._random = random
        self._counts: Counter[tuple[SubscriptionKind, str]] = Counter()
        self._changed = LightEvent()
        self._acknowledged = LightEvent()
        self._ever_acknowledged = False

    def __len__(self) -> int:
        return len(self._counts)

    async def add(self, kind: SubscriptionKind, name: str) -> None:
        """Subscribe to a resource or a task.

        Returns when the server has acknowledged the subscription, or after 5 s without that; the subscription is kept.
        """
        self._counts[kind, name] += 1
        if self._counts[kind, name] > 1 and self._acknowledged.is_set():
            return
        self._mark_changed()
        with suppress(TimeoutError):
            async with asyncio.timeout(ACKNOWLEDGE_TIMEOUT_S):
                await self._acknowledged.wait()

    def remove(self, kind: SubscriptionKind, name: str) -> None:
        self._counts[kind, name] -= 1
        if self._counts[kind, name] <= 0:
            del self._counts[kind, name]
            self._mark_changed()

    def _mark_changed(self) -> None:
        self._acknowledged.clear()
        self._changed.set()

    def _names(self, kind: SubscriptionKind) -> list[str]:
        return sorted(name for each_kind, name in self._counts if each_kind == kind)

    async def run(self, session: Session) -> None:
        """Send the wanted subscriptions to the server, now and after each change, until cancelled."""
        if self._counts:
            self._mark_changed()
            if self._ever_acknowledged:
                self._notify_all_resources()
        if session.protocol.era == "modern":
            await self._run_modern(session)
        elif session.protocol.era == "legacy":
            await self._run_legacy(session)
        else:
            while True:  # a bare server has no subscriptions: nothing to wait for
                self._on_acknowledged()
                await self._changed.wait()
                self._changed.clear()

    def _notify_all_resources(self) -> None:
        for uri in self._names(RESOURCE_KIND):
            self._on_update(uri)

    async def _run_legacy(self, session: Session) -> None:
        """Subscribe at a legacy server: one `resources/subscribe` per resource."""
        subscribed: set[str] = set()

        def on_reinitialized() -> None:
            subscribed.clear()  # a new session has no subscriptions
            self._mark_changed()
            self._notify_all_resources()

        session.on_reinitialized = on_reinitialized
        while True:
            await self._changed.wait()
            self._changed.clear()
            desired = set(self._names(RESOURCE_KIND))
            for uri in sorted(desired - subscribed):
                subscribed.add(uri)
                await _request_ignoring_errors(session, "resources/subscribe", uri)
            for uri in sorted(subscribed - desired):
                subscribed.discard(uri)
                await _request_ignoring_errors(session, "resources/unsubscribe", uri)
            if not self._changed.is_set():
                self._on_acknowledged()

    async def _run_modern(self, session: Session) -> None:
        """Subscribe at a modern server: one stream for all resources and tasks.

        After a change, the next stream is opened before the previous one is closed.
        """
        stream: asyncio.Task[None] | None = None
        try:
            while True:
                await self._changed.wait()
                await asyncio.sleep(SUBSCRIBE_BATCH_S)
                self._changed.clear()
                previous, stream = stream, None
                if self._counts:
                    stream = asyncio.create_task(self._listen(session))
                    with suppress(TimeoutError):
                        async with asyncio.timeout(ACKNOWLEDGE_TIMEOUT_S):
                            await self._acknowledged.wait()
                if previous is not None:
                    previous.cancel()
        finally:
            if stream is not None:
                stream.cancel()

    async def _listen(self, session: Session) -> None:
        wait, max_wait = RESUBSCRIBE_BACKOFF_S
        filters = {kind: names for kind in (RESOURCE_KIND, TASK_KIND) if (names := self._names(kind))}
        while True:
            acknowledged = asyncio.Event()
            waiting = asyncio.create_task(self._wait_acknowledged(acknowledged))
            try:
                if not await session.listen_for_resources(filters, acknowledged):
                    self._on_acknowledged()  # the server offers no subscriptions: nothing to wait for
                    return
            except TransportError:
                pass
            finally:
                waiting.cancel()
            await asyncio.sleep(wait * (0.5 + self._random() / 2))
            wait = min(max_wait, wait * 2)
            for uri in filters.get(RESOURCE_KIND, ()):
                self._on_update(uri)

    async def _wait_acknowledged(self, acknowledged: asyncio.Event) -> None:
        await acknowledged.wait()
        self._on_acknowledged()

    def _on_acknowledged(self) -> None:
        self._ever_acknowledged = True
        self._acknowledged.set()


async def _request_ignoring_errors(session: Session, method: str, uri: str) -> None:
    with suppress(TransportError, JSONRPCError):
        await session.request(method, {"uri": uri})
