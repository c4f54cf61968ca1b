"""Who wants to hear of changes, and how they are told: streams of modern clients and sessions of older ones alike.

One task watches the hub. A change of a server is passed on to those whose own list it changed, once for many changes
that come together; what was said about a resource goes to those who asked for it. Notifications are hints: one that a
slow client cannot take is dropped with its connection, and a client that listens again lists again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types.jsonrpc import INVALID_PARAMS

from toolway.catalog.index import Item
from toolway.errors import CallError
from toolway.events import CatalogChanged, EventsMissed, Kind, Logged, ResourceUpdated
from toolway.gateway.answers import Answer
from toolway.gateway.codes import SHUTTING_DOWN
from toolway.gateway.failures import Failure
from toolway.gateway.relay import SERVER_INFO
from toolway.gateway.view import KINDS, View
from toolway.gateway.visit import Tell, Visit
from toolway.hub import Hub
from toolway.model import Json
from toolway.protocol.wire import Id

GATHER: Final = 0.05  # seconds in which changes that come together are told together
MAX_URIS: Final = 1000  # resources in one subscription
_NOTICE: Final[dict[Kind, str]] = {
    "tools": "notifications/tools/list_changed",
    "prompts": "notifications/prompts/list_changed",
    "resources": "notifications/resources/list_changed",
    "templates": "notifications/resources/list_changed",
}
_FILTER: Final[dict[str, tuple[Kind, ...]]] = {
    "toolsListChanged": ("tools",),
    "promptsListChanged": ("prompts",),
    "resourcesListChanged": ("resources", "templates"),
}


@dataclass(eq=False, slots=True)
class Subscriber:
    """Somebody who wants to hear of these lists and resources of a view."""

    view: View
    kinds: frozenset[Kind]
    tell: Callable[[str, Json], None]
    uris: dict[tuple[str, str], str] = field(default_factory=dict)  # (server, its URI) → as the client calls it
    on_log: Callable[[Logged], None] | None = None


class Listening:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._all: set[Subscriber] = set()
        self._known: dict[tuple[View, Kind], tuple[tuple[str, Item], ...]] = {}
        self._changed = asyncio.Event()
        self._closing = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._watch()), loop.create_task(self._pass_on())]

    def __len__(self) -> int:
        return len(self._all)

    def look(self) -> None:
        """What is shown may have changed though no server said so."""
        self._changed.set()

    async def close(self) -> None:
        """End every stream in order, with a complete result."""
        self._closing.set()
        await asyncio.sleep(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- a stream of a modern client ----------------------------------------------------------------------------------

    async def serve(self, visit: Visit, answer: Answer, params: Json) -> None:
        """`subscriptions/listen` over HTTP, until the client closes the stream or we do. Raises `Failure`."""
        assert answer.id is not None
        await self.stream(visit, answer.id, params, answer.tell)
        answer.result({"resultType": "complete", "_meta": {SUBSCRIPTION_ID_META_KEY: answer.id, **_INFO}})

    async def stream(self, visit: Visit, id_: Id, params: Json, send: Tell) -> None:
        """Tell a client what it wants to hear, until the gateway ends. Raises `Failure`."""
        wanted = params.get("notifications")
        if not isinstance(wanted, dict):
            raise Failure(INVALID_PARAMS, "notifications must be an object")
        if self._closing.is_set():
            raise Failure(SHUTTING_DOWN, "the gateway is shutting down")

        def tell(method: str, params: Json) -> None:
            send(method, {**params, "_meta": {SUBSCRIPTION_ID_META_KEY: id_}})

        subscriber, honoured = self._subscriber(visit.view, wanted, tell)
        tell("notifications/subscriptions/acknowledged", {"notifications": honoured})
        try:
            await self.add(subscriber)
            await self._closing.wait()
        finally:
            self.remove(subscriber)

    def _subscriber(self, view: View, wanted: Json, tell: Callable[[str, Json], None]) -> tuple[Subscriber, Json]:
        honoured: Json = {key: True for key in _FILTER if wanted.get(key) is True}
        kinds = frozenset(kind for key in honoured for kind in _FILTER[key])
        subscriber = Subscriber(view, kinds, tell)
        uris = wanted.get("resourceSubscriptions")
        if isinstance(uris, list):
            for uri in uris[:MAX_URIS]:
                found = view.server_of_uri(uri) if isinstance(uri, str) else None
                if found is not None:
                    subscriber.uris[found] = uri
            honoured["resourceSubscriptions"] = list(subscriber.uris.values())
        return subscriber, honoured

    # -- for every subscriber -----------------------------------------------------------------------------------------

    async def add(self, subscriber: Subscriber) -> None:
        self._all.add(subscriber)
        for kind in subscriber.kinds:
            self._known.setdefault((subscriber.view, kind), subscriber.view.snapshot(kind))
        await self._subscribe(subscriber.uris)

    def remove(self, subscriber: Subscriber) -> None:
        self._all.discard(subscriber)
        self._unsubscribe(subscriber.uris)
        subscriber.uris = {}
        if not any(other.view is subscriber.view for other in self._all):
            for kind in KINDS:
                self._known.pop((subscriber.view, kind), None)

    async def add_uri(self, subscriber: Subscriber, uri: str) -> bool:
        """Hear of one more resource; False where no server has it."""
        found = subscriber.view.server_of_uri(uri)
        if found is None or len(subscriber.uris) >= MAX_URIS:
            return False
        if found not in subscriber.uris:
            subscriber.uris[found] = uri
            await self._subscribe([found])
        return True

    def remove_uri(self, subscriber: Subscriber, uri: str) -> None:
        for found, name in list(subscriber.uris.items()):
            if name == uri:
                del subscriber.uris[found]
                self._unsubscribe([found])

    async def _subscribe(self, found: Iterable[tuple[str, str]]) -> None:
        for server, uri in list(found):
            with suppress(CallError):  # a server that is down is told when it is back
                await self._hub.subscribe(server, uri)

    def _unsubscribe(self, found: Iterable[tuple[str, str]]) -> None:
        for server, uri in list(found):
            self._hub.unsubscribe(server, uri)

    # -- what the hub says --------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        async for fact in self._hub.events(CatalogChanged, ResourceUpdated, Logged):
            if isinstance(fact, CatalogChanged | EventsMissed):
                self._changed.set()
            elif isinstance(fact, ResourceUpdated):
                self._updated(fact)
            elif isinstance(fact, Logged):
                self._logged(fact)

    async def _pass_on(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(GATHER)
            self._changed.clear()
            for view, kinds in self._what_changed().items():
                notices = dict.fromkeys(_NOTICE[kind] for kind in KINDS if kind in kinds)
                for subscriber in [s for s in self._all if s.view is view]:
                    for notice in notices:
                        if any(_NOTICE[kind] == notice for kind in subscriber.kinds):
                            subscriber.tell(notice, {})

    def _what_changed(self) -> dict[View, set[Kind]]:
        changed: dict[View, set[Kind]] = {}
        for (view, kind), known in self._known.items():
            now = view.snapshot(kind)
            if now != known:
                self._known[view, kind] = now
                changed.setdefault(view, set()).add(kind)
        return changed

    def _updated(self, fact: ResourceUpdated) -> None:
        for subscriber in list(self._all):
            uri = subscriber.uris.get((fact.server, fact.uri))
            if uri is not None:
                subscriber.tell("notifications/resources/updated", {"uri": uri})

    def _logged(self, fact: Logged) -> None:
        for subscriber in list(self._all):
            if subscriber.on_log is not None:
                subscriber.on_log(fact)


_INFO: Final[Json] = {"io.modelcontextprotocol/serverInfo": SERVER_INFO}
