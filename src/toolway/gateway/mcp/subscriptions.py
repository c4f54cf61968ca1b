"""Change notifications to modern clients (`subscriptions/listen`) and legacy sessions.

One task watches the hub's events. When a server's list changes, the subscribers whose own view changed are notified,
once for several changes in a short time. A resource update goes to that resource's subscribers. Notifications are
only hints: a client that reads too slowly loses its connection, and a client that reconnects lists everything again.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from toolway.catalog.catalog import Item
from toolway.errors import CallError
from toolway.events import CatalogChanged, EventsMissed, ListKind, ResourceUpdated, ServerLog, StateChanged, TaskChanged
from toolway.gateway.mcp.context import Notify, RequestContext, name_input_requests
from toolway.gateway.mcp.errors import SHUTTING_DOWN, RpcFailure
from toolway.gateway.mcp.responses import SERVER_INFO, ResponseWriter
from toolway.gateway.mcp.view import KINDS, EndpointView
from toolway.gateway.principals import Principal
from toolway.hub.core import HubCore
from toolway.protocol.constants import INVALID_PARAMS, MISSING_REQUIRED_CLIENT_CAPABILITY, SUBSCRIPTION_ID_META_KEY
from toolway.protocol.jsonrpc import MessageId
from toolway.protocol.versions import TASKS_EXTENSION
from toolway.types import Json
from toolway.upstream.subscriptions import RESOURCE_KIND, TASK_KIND, SubscriptionKind

NOTIFY_DELAY_S: Final = 0.05  # seconds in which several changes are combined into one notification
MAX_TOPICS: Final = 1000  # resources and tasks in one subscription
MAX_CALLER_BYTES: Final = 32 * 1024 * 1024  # of all subscribed names of one caller, in all its sessions and streams
_TOPIC_BYTES: Final = 1000  # that a subscription takes besides its name

#: Server, kind (resource or task), and the server's own name for it.
Topic = tuple[str, SubscriptionKind, str]
_LIST_CHANGED_METHODS: Final[dict[ListKind, str]] = {
    "tools": "notifications/tools/list_changed",
    "prompts": "notifications/prompts/list_changed",
    "resources": "notifications/resources/list_changed",
    "templates": "notifications/resources/list_changed",
}
_KINDS_BY_FILTER: Final[dict[str, tuple[ListKind, ...]]] = {
    "toolsListChanged": ("tools",),
    "promptsListChanged": ("prompts",),
    "resourcesListChanged": ("resources", "templates"),
}


class Subscriber(msgspec.Struct, eq=False):
    """A client's stream or session that is notified of changes in its view."""

    view: EndpointView
    kinds: frozenset[ListKind]
    notify: Callable[[str, Json], None]
    caller: str = ""
    topics: dict[Topic, str] = {}  # topic → the client's name for it
    connection_callers: dict[Topic, str] = {}  # topic → caller id of the connection used; "" = shared
    on_log: Callable[[ServerLog], None] | None = None
    principal: Principal | None = None  # and endpoint: to find its view again if the policy changes
    endpoint: str = ""


class SubscriptionService:
    """All subscriptions of a gateway's clients to changes of lists, resources and tasks.

    `resolve_task` returns (server, the server's task id) for the task id of a client.
    """

    def __init__(self, hub: HubCore, resolve_task: Callable[[RequestContext, object], tuple[str, str]]) -> None:
        self._hub = hub
        self._resolve_task = resolve_task
        self._subscribers: set[Subscriber] = set()
        self._caller_bytes: Counter[str] = Counter()
        self._snapshots: dict[tuple[EndpointView, ListKind], tuple[tuple[str, Item], ...]] = {}
        self._changed = asyncio.Event()
        self._closing = asyncio.Event()
        self._workers: list[asyncio.Task[None]] = []
        self._resubscribing: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._workers = [loop.create_task(self._watch_events()), loop.create_task(self._notify_list_changes())]

    def __len__(self) -> int:
        return len(self._subscribers)

    def recheck(self) -> None:
        """Compare all views' lists with their last snapshot soon, and notify of differences.

        This is needed after changes without a server event, such as a new configuration.
        """
        self._changed.set()

    def replace_views(self, find_view: Callable[[Principal, str], EndpointView | None]) -> None:
        """Give all subscribers new views after a policy change, and notify them that their lists changed.

        Subscriptions to resources that the new policy denies are dropped.
        """
        for subscriber in list(self._subscribers):
            principal = subscriber.principal
            view = find_view(principal, subscriber.endpoint) if principal is not None else None
            if view is not None:
                subscriber.view = view
            for topic in [each for each in subscriber.topics if each[1] == RESOURCE_KIND]:
                if view is None or not (view.may_include(topic[0]) and view.may_read(topic[0], topic[2])):
                    self._unsubscribe(subscriber, topic)
            for notice in dict.fromkeys(_LIST_CHANGED_METHODS[kind] for kind in KINDS if kind in subscriber.kinds):
                subscriber.notify(notice, {})
        self._snapshots = {}
        self._changed.set()

    async def close(self) -> None:
        """End every `subscriptions/listen` stream with a complete result."""
        self._closing.set()
        await asyncio.sleep(0)
        tasks = [*self._workers, *self._resubscribing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- streams of modern clients ------------------------------------------------------------------------------------

    async def handle_listen(self, context: RequestContext, response: ResponseWriter, params: Json) -> None:
        """Serve `subscriptions/listen` over HTTP until either side closes the stream.

        Raises `RpcFailure` if the request is invalid or the gateway is shutting down.
        """
        assert response.id is not None
        await self.run_subscription(context, response.id, params, response.notify)
        response.send_result(
            {"resultType": "complete", "_meta": {SUBSCRIPTION_ID_META_KEY: response.id, **_SERVER_INFO_META}}
        )

    async def run_subscription(self, context: RequestContext, id_: MessageId, params: Json, send: Notify) -> None:
        """Send the notifications that a client requested, until the gateway shuts down.

        Raises `RpcFailure` if the request is invalid or the gateway is shutting down.
        """
        requested = params.get("notifications")
        if not isinstance(requested, dict):
            raise RpcFailure(INVALID_PARAMS, "notifications must be an object")
        if self._closing.is_set():
            raise RpcFailure(SHUTTING_DOWN, "gateway is shutting down")

        def notify(method: str, params: Json) -> None:
            send(method, {**params, "_meta": {**(params.get("_meta") or {}), SUBSCRIPTION_ID_META_KEY: id_}})

        early: list[tuple[str, Json]] = []  # the acknowledgement must be sent first
        subscriber, granted = self._create_subscriber(
            context, requested, lambda method, params: early.append((method, params))
        )
        try:
            await self.add(subscriber)
            notify("notifications/subscriptions/acknowledged", {"notifications": granted})
            subscriber.notify = notify
            for method, params in early:
                notify(method, params)
            await self._closing.wait()
        finally:
            self.remove(subscriber)

    def _create_subscriber(self, context: RequestContext, requested: Json, notify: Notify) -> tuple[Subscriber, Json]:
        """Return a subscriber for a client request, and the part of the request that is granted.

        Raises `RpcFailure` if tasks are requested and the client lacks the tasks extension.
        """
        granted: Json = {key: True for key in _KINDS_BY_FILTER if requested.get(key) is True}
        kinds = frozenset(kind for key in granted for kind in _KINDS_BY_FILTER[key])
        subscriber = Subscriber(
            context.view,
            kinds,
            notify,
            caller=context.principal.caller_id,
            principal=context.principal,
            endpoint=context.endpoint,
        )
        finders: dict[SubscriptionKind, Callable[[RequestContext, str], tuple[str, str] | None]]
        finders = {RESOURCE_KIND: self._find_resource, TASK_KIND: self._find_task}
        wanted: dict[Topic, str] = {}
        for kind, find in finders.items():
            names = requested.get(kind)
            if isinstance(names, list):
                found = {name: find(context, name) for name in names[:MAX_TOPICS] if isinstance(name, str)}
                wanted |= {(at[0], kind, at[1]): name for name, at in found.items() if at is not None}
                granted[kind] = []
        for topic, name in wanted.items():
            if self._add_topic(subscriber, topic, name):
                granted[topic[1]].append(name)
        return subscriber, granted

    def _find_resource(self, context: RequestContext, uri: str) -> tuple[str, str] | None:
        return context.view.server_for_uri(uri)

    def _find_task(self, context: RequestContext, task: str) -> tuple[str, str] | None:
        extensions = context.capabilities.get("extensions")
        if not isinstance(extensions, dict) or TASKS_EXTENSION not in extensions:
            needed: Json = {"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}}
            raise RpcFailure(MISSING_REQUIRED_CLIENT_CAPABILITY, "task notifications need the tasks extension", needed)
        try:
            return self._resolve_task(context, task)
        except RpcFailure:
            return None

    # -- all subscribers ----------------------------------------------------------------------------------------------

    async def add(self, subscriber: Subscriber) -> None:
        if "tools" in subscriber.kinds or subscriber.view.needs_decisions:
            await subscriber.view.prepare()
        self._subscribers.add(subscriber)
        for kind in subscriber.kinds:
            self._snapshots.setdefault((subscriber.view, kind), subscriber.view.snapshot(kind))
        await asyncio.gather(*(self._subscribe(subscriber, topic) for topic in list(subscriber.topics)))

    def remove(self, subscriber: Subscriber) -> None:
        self._subscribers.discard(subscriber)
        for topic in list(subscriber.topics):
            self._unsubscribe(subscriber, topic)
        if not any(other.view is subscriber.view for other in self._subscribers):
            for kind in KINDS:
                self._snapshots.pop((subscriber.view, kind), None)

    async def add_uri(self, subscriber: Subscriber, uri: str) -> bool:
        """Subscribe to a resource. Return False if no server has the resource, or if a limit is reached."""
        found = subscriber.view.server_for_uri(uri)
        if found is None or len(subscriber.topics) >= MAX_TOPICS or subscriber not in self._subscribers:
            return False
        topic: Topic = (found[0], RESOURCE_KIND, found[1])
        if topic not in subscriber.topics:
            if not self._add_topic(subscriber, topic, uri):
                return False
            await self._subscribe(subscriber, topic)
        return True

    def _add_topic(self, subscriber: Subscriber, topic: Topic, name: str) -> bool:
        """Add a resource or task (a topic) to the subscriptions of a subscriber.

        `name` is the client's name for it. Return False if the caller's names together would exceed the byte limit.
        """
        used = self._caller_bytes[subscriber.caller] + _topic_bytes(name)
        if used > MAX_CALLER_BYTES:
            return False
        self._caller_bytes[subscriber.caller] = used
        subscriber.topics[topic] = name
        return True

    def remove_uri(self, subscriber: Subscriber, uri: str) -> None:
        for topic in [topic for topic, name in subscriber.topics.items() if name == uri]:
            self._unsubscribe(subscriber, topic)

    async def _subscribe(self, subscriber: Subscriber, topic: Topic) -> None:
        """Subscribe to a topic (resource or task) at its server.

        If the server is down, the hub subscribes when the server is ready again.
        """
        with suppress(CallError):
            connection_caller = self._hub.lists.subscription_owner(topic[0], subscriber.caller)
            subscriber.connection_callers[topic] = connection_caller
            await self._hub.lists.subscribe(*topic, connection_caller)

    def _unsubscribe(self, subscriber: Subscriber, topic: Topic) -> None:
        name = subscriber.topics.pop(topic, None)
        if name is not None:
            self._caller_bytes[subscriber.caller] -= _topic_bytes(name)
            if not self._caller_bytes[subscriber.caller]:
                del self._caller_bytes[subscriber.caller]
        connection_caller = subscriber.connection_callers.pop(topic, None)
        if connection_caller is not None:
            self._hub.lists.unsubscribe(*topic, connection_caller)

    # -- hub events ---------------------------------------------------------------------------------------------------

    async def _watch_events(self) -> None:
        async for fact in self._hub.events(CatalogChanged, ResourceUpdated, TaskChanged, ServerLog, StateChanged):
            if isinstance(fact, CatalogChanged | EventsMissed):
                self._changed.set()
            elif isinstance(fact, ResourceUpdated):
                self._on_resource_updated(fact)
            elif isinstance(fact, TaskChanged):
                self._on_task_changed(fact)
            elif isinstance(fact, StateChanged) and fact.new == "stopped":
                self._schedule_resubscribe(fact.server)
            elif isinstance(fact, ServerLog):
                self._on_logged(fact)

    def _schedule_resubscribe(self, server: str) -> None:
        """Start a task that renews the subscriptions to a server that was removed or replaced.

        The new server with this name has no subscriptions, and changes in between were not reported.
        """
        topics = [(each, topic) for each in self._subscribers for topic in each.topics if topic[0] == server]
        if topics and server in self._hub.servers.entries:
            task = asyncio.get_running_loop().create_task(self._resubscribe(server, topics))
            self._resubscribing.add(task)
            task.add_done_callback(self._resubscribing.discard)

    async def _resubscribe(self, server: str, topics: list[tuple[Subscriber, Topic]]) -> None:
        with suppress(CallError):  # the hub then subscribes when the server is back
            await self._hub.servers.wait_ready(server)
        for subscriber, topic in topics:
            if subscriber in self._subscribers and topic in subscriber.topics:
                await self._subscribe(subscriber, topic)
                if topic[1] == RESOURCE_KIND:
                    subscriber.notify("notifications/resources/updated", {"uri": subscriber.topics[topic]})

    async def _notify_list_changes(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(NOTIFY_DELAY_S)
            self._changed.clear()
            for view in {view for view, kind in self._snapshots if kind == "tools" or view.needs_decisions}:
                await view.prepare()
            await self._take_missing_snapshots()
            for view, kinds in self._changed_kinds().items():
                notices = dict.fromkeys(_LIST_CHANGED_METHODS[kind] for kind in KINDS if kind in kinds)
                for subscriber in [s for s in self._subscribers if s.view is view]:
                    for notice in notices:
                        if any(_LIST_CHANGED_METHODS[kind] == notice for kind in subscriber.kinds):
                            subscriber.notify(notice, {})

    async def _take_missing_snapshots(self) -> None:
        """Store the current lists of views that have no snapshot yet, so later changes can be detected.

        Such views replaced an earlier policy's views.
        """
        missing = {(each.view, kind) for each in self._subscribers for kind in each.kinds} - self._snapshots.keys()
        for view in {view for view, _ in missing}:
            await view.prepare()
        for view, kind in missing:
            self._snapshots.setdefault((view, kind), view.snapshot(kind))

    def _changed_kinds(self) -> dict[EndpointView, set[ListKind]]:
        """Return which lists (tools, prompts …) changed in each view since its snapshot, and renew the snapshot."""
        changed: dict[EndpointView, set[ListKind]] = {}
        for (view, kind), previous in self._snapshots.items():
            now = view.snapshot(kind)
            if now != previous:
                self._snapshots[view, kind] = now
                changed.setdefault(view, set()).add(kind)
        return changed

    def _on_resource_updated(self, fact: ResourceUpdated) -> None:
        for subscriber in list(self._subscribers):
            topic: Topic = (fact.server, RESOURCE_KIND, fact.uri)
            uri = subscriber.topics.get(topic)
            if uri is not None and subscriber.connection_callers.get(topic) == fact.caller:
                subscriber.notify("notifications/resources/updated", {"uri": uri})

    def _on_task_changed(self, fact: TaskChanged) -> None:
        id_ = fact.task.get("taskId")
        for subscriber in list(self._subscribers):
            task = subscriber.topics.get((fact.server, TASK_KIND, id_)) if isinstance(id_, str) else None
            if task is not None:
                subscriber.notify(
                    "notifications/tasks", {**name_input_requests(fact.server, fact.task), "taskId": task}
                )

    def _on_logged(self, fact: ServerLog) -> None:
        for subscriber in list(self._subscribers):
            if subscriber.on_log is not None:
                subscriber.on_log(fact)


def _topic_bytes(name: str) -> int:
    return sys.getsizeof(name) + _TOPIC_BYTES


_SERVER_INFO_META: Final[Json] = {"io.modelcontextprotocol/serverInfo": SERVER_INFO}
