"""Who wants to hear of changes, and how they are told: streams of modern clients and sessions of older ones alike.

One task watches the hub. A change of a server is passed on to those whose own list it changed, once for many changes
that come together; what was said about a resource goes to those who asked for it. Notifications are hints: one that a
slow client cannot take is dropped with its connection, and a client that listens again lists again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types.jsonrpc import INVALID_PARAMS, MISSING_REQUIRED_CLIENT_CAPABILITY

from toolway.catalog.index import Item
from toolway.errors import CallError
from toolway.events import CatalogChanged, EventsMissed, Kind, Logged, ResourceUpdated, StateChanged, TaskChanged
from toolway.gateway.answers import Answer
from toolway.gateway.codes import SHUTTING_DOWN
from toolway.gateway.failures import Failure
from toolway.gateway.relay import SERVER_INFO
from toolway.gateway.view import KINDS, View
from toolway.gateway.visit import Tell, Visit
from toolway.hub import Hub
from toolway.model import Json
from toolway.protocol.eras import TASKS
from toolway.protocol.wire import Id
from toolway.upstream.subscriptions import RESOURCE, TASK, Wanted

GATHER: Final = 0.05  # seconds in which changes that come together are told together
MAX_WISHES: Final = 1000  # resources and tasks in one subscription

#: A server, what is wanted of it, and the server's own name for that.
Wish = tuple[str, Wanted, str]
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
    """Somebody who wants to hear of these lists, resources and tasks of a view."""

    view: View
    kinds: frozenset[Kind]
    tell: Callable[[str, Json], None]
    caller: str = ""
    wishes: dict[Wish, str] = field(default_factory=dict)  # and what the client calls it
    links: dict[Wish, str] = field(default_factory=dict)  # and whose link to the server it is told on
    on_log: Callable[[Logged], None] | None = None


class Listening:
    """`task_of` says of which server a task is that a client was given, and what it is called there."""

    def __init__(self, hub: Hub, task_of: Callable[[Visit, object], tuple[str, str]]) -> None:
        self._hub = hub
        self._task_of = task_of
        self._all: set[Subscriber] = set()
        self._known: dict[tuple[View, Kind], tuple[tuple[str, Item], ...]] = {}
        self._changed = asyncio.Event()
        self._closing = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._renewing: set[asyncio.Task[None]] = set()

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
        tasks = [*self._tasks, *self._renewing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

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
            send(method, {**params, "_meta": {**(params.get("_meta") or {}), SUBSCRIPTION_ID_META_KEY: id_}})

        early: list[tuple[str, Json]] = []  # nothing may come before the acknowledgement
        subscriber, honoured = self._subscriber(visit, wanted, lambda method, params: early.append((method, params)))
        try:
            await self.add(subscriber)
            tell("notifications/subscriptions/acknowledged", {"notifications": honoured})
            subscriber.tell = tell
            for method, params in early:
                tell(method, params)
            await self._closing.wait()
        finally:
            self.remove(subscriber)

    def _subscriber(self, visit: Visit, wanted: Json, tell: Tell) -> tuple[Subscriber, Json]:
        """Who listens, and what of his wishes is honoured. Raises `Failure`."""
        honoured: Json = {key: True for key in _FILTER if wanted.get(key) is True}
        kinds = frozenset(kind for key in honoured for kind in _FILTER[key])
        subscriber = Subscriber(visit.view, kinds, tell, caller=visit.principal.caller)
        finders: dict[Wanted, Callable[[Visit, str], tuple[str, str] | None]]
        finders = {RESOURCE: self._resource, TASK: self._task}
        for kind, find in finders.items():
            names = wanted.get(kind)
            if isinstance(names, list):
                found = {name: find(visit, name) for name in names[:MAX_WISHES] if isinstance(name, str)}
                wishes: dict[Wish, str] = {(at[0], kind, at[1]): name for name, at in found.items() if at is not None}
                subscriber.wishes |= wishes
                honoured[kind] = list(wishes.values())
        return subscriber, honoured

    def _resource(self, visit: Visit, uri: str) -> tuple[str, str] | None:
        return visit.view.server_of_uri(uri)

    def _task(self, visit: Visit, task: str) -> tuple[str, str] | None:
        extensions = visit.capabilities.get("extensions")
        if not isinstance(extensions, dict) or TASKS not in extensions:
            needed: Json = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
            raise Failure(MISSING_REQUIRED_CLIENT_CAPABILITY, "only a client with tasks can listen to them", needed)
        try:
            return self._task_of(visit, task)
        except Failure:
            return None

    # -- for every subscriber -----------------------------------------------------------------------------------------

    async def add(self, subscriber: Subscriber) -> None:
        self._all.add(subscriber)
        for kind in subscriber.kinds:
            self._known.setdefault((subscriber.view, kind), subscriber.view.snapshot(kind))
        await asyncio.gather(*(self._subscribe(subscriber, wish) for wish in list(subscriber.wishes)))

    def remove(self, subscriber: Subscriber) -> None:
        self._all.discard(subscriber)
        for wish in list(subscriber.wishes):
            self._unsubscribe(subscriber, wish)
        if not any(other.view is subscriber.view for other in self._all):
            for kind in KINDS:
                self._known.pop((subscriber.view, kind), None)

    async def add_uri(self, subscriber: Subscriber, uri: str) -> bool:
        """Hear of one more resource; False where no server has it."""
        found = subscriber.view.server_of_uri(uri)
        if found is None or len(subscriber.wishes) >= MAX_WISHES:
            return False
        wish: Wish = (found[0], RESOURCE, found[1])
        if wish not in subscriber.wishes:
            subscriber.wishes[wish] = uri
            await self._subscribe(subscriber, wish)
        return True

    def remove_uri(self, subscriber: Subscriber, uri: str) -> None:
        for wish in [wish for wish, name in subscriber.wishes.items() if name == uri]:
            self._unsubscribe(subscriber, wish)

    async def _subscribe(self, subscriber: Subscriber, wish: Wish) -> None:
        """A server that is down is told when it is back."""
        with suppress(CallError):
            link = self._hub.link_of(wish[0], subscriber.caller)
            subscriber.links[wish] = link
            await self._hub.subscribe(*wish, link)

    def _unsubscribe(self, subscriber: Subscriber, wish: Wish) -> None:
        subscriber.wishes.pop(wish, None)
        link = subscriber.links.pop(wish, None)
        if link is not None:
            self._hub.unsubscribe(*wish, link)

    # -- what the hub says --------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        async for fact in self._hub.events(CatalogChanged, ResourceUpdated, TaskChanged, Logged, StateChanged):
            if isinstance(fact, CatalogChanged | EventsMissed):
                self._changed.set()
            elif isinstance(fact, ResourceUpdated):
                self._updated(fact)
            elif isinstance(fact, TaskChanged):
                self._task_changed(fact)
            elif isinstance(fact, StateChanged) and fact.new == "stopped":
                self._want_again(fact.server)
            elif isinstance(fact, Logged):
                self._logged(fact)

    def _want_again(self, server: str) -> None:
        """A server was removed or replaced. The next one of its name knows nothing of what was wanted of it, and what
        happened in between nobody told."""
        wanted = [(each, wish) for each in self._all for wish in each.wishes if wish[0] == server]
        if wanted and server in self._hub.servers:
            task = asyncio.get_running_loop().create_task(self._renew(server, wanted))
            self._renewing.add(task)
            task.add_done_callback(self._renewing.discard)

    async def _renew(self, server: str, wanted: list[tuple[Subscriber, Wish]]) -> None:
        with suppress(CallError):  # then it is told when it is back
            await self._hub.wait_ready(server)
        for subscriber, wish in wanted:
            if subscriber in self._all and wish in subscriber.wishes:
                await self._subscribe(subscriber, wish)
                if wish[1] == RESOURCE:
                    subscriber.tell("notifications/resources/updated", {"uri": subscriber.wishes[wish]})

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
            wish: Wish = (fact.server, RESOURCE, fact.uri)
            uri = subscriber.wishes.get(wish)
            if uri is not None and subscriber.links.get(wish) == fact.caller:
                subscriber.tell("notifications/resources/updated", {"uri": uri})

    def _task_changed(self, fact: TaskChanged) -> None:
        id_ = fact.task.get("taskId")
        for subscriber in list(self._all):
            task = subscriber.wishes.get((fact.server, TASK, id_)) if isinstance(id_, str) else None
            if task is not None:
                subscriber.tell("notifications/tasks", {**fact.task, "taskId": task})

    def _logged(self, fact: Logged) -> None:
        for subscriber in list(self._all):
            if subscriber.on_log is not None:
                subscriber.on_log(fact)


_INFO: Final[Json] = {"io.modelcontextprotocol/serverInfo": SERVER_INFO}
