"""The Hub: many servers, one way to them.

    async with Hub("mcp.json") as hub:
        reply = await hub.call_tool("github.search_issues", {"query": "is:open"})

Entering returns at once; every server starts by itself, in a task of its own. A call waits for its own server and for
no other.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from msgspec.structs import replace as changed

from toolway.addresses.policy import PUBLIC, Addresses
from toolway.around import Around
from toolway.asks import Callback, CallbackAsks, Roots
from toolway.auditing import Auditing
from toolway.catalog.index import Catalog, Item, Prompt, Resource, Tool
from toolway.catalog.keeping import Keeping
from toolway.catalog.outputs import Outputs
from toolway.catalog.resolve import check_server, must_exist, prompt_of, resolve, server_of_resource
from toolway.catalog.store import ListStore
from toolway.config.addresses import allowing
from toolway.config.audit import AuditSettings
from toolway.config.spec import Retry, Server, ServerLike, Timeout, check_server_name, with_defaults
from toolway.errors import CallError, ConfigError
from toolway.events import Event, Kind, ServerChanged, Sink
from toolway.fleet import Fleet
from toolway.logins import Logins
from toolway.model import Asks, Attempt, Call, Era, Json, OnProgress, Reply, Stage, ToolRef
from toolway.observing import Observer, Tracer
from toolway.pipeline import chain, in_order
from toolway.reaching import Reaching
from toolway.resilience.breaker import BreakerFacts
from toolway.resilience.breaking import Board, breaker
from toolway.resilience.cache import Cache, cache
from toolway.resilience.deadline import deadline
from toolway.resilience.dedup import dedup
from toolway.resilience.keys import KeyStore, MemoryKeys, keys
from toolway.resilience.limits import Slots, limit
from toolway.resilience.retry import retry
from toolway.rules import Rules
from toolway.security.broker import Broker
from toolway.security.sealed_tokens import of_this_user
from toolway.security.tokens import USUAL_TOKENS, TokenStore
from toolway.security.wallet import Login
from toolway.sources import USUAL, Source, runtime_dir, server_of, servers_of, store_in
from toolway.sync import SyncHub
from toolway.telemetry.audit.ledger import Ledger
from toolway.telemetry.naming import place_of
from toolway.upstream.probe import Agreement
from toolway.upstream.process.spawn import Spawner
from toolway.upstream.status import Status
from toolway.upstream.subscriptions import Wanted
from toolway.waits import all_gone
from toolway.watchdog import Watchdog
from toolway.watchers import Watchers
from toolway.world import World

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

T = TypeVar("T")


class Hub:
    """All servers of a file or a mapping, supervised.

    `source` is a file's path, a mapping of names to servers (a `Server`, a URL, a command line, a file's entry, or an
    SDK server object), or nothing for the files of user and project, merged. `timeout` and `retry` apply to servers
    that have none of their own. `elicitation`, `sampling` and `roots` answer what servers ask back, or `asks` answers
    all of it.
    `login` brings a person to where a server wants him to log in, and `tokens` keeps what came of it: without it the
    store that all programs of this user share, with None the memory of this hub.
    `audit` is the file of an audit log, none without it; see docs/howto/audit.md.
    `catalog_dir` is where the last known lists are kept; None keeps none. `addresses` are those beside the public ones
    that URLs may lead to, `Addresses(("jira.corp.example", "10.0.0.0/8"))`. `world` is for tests. Raises `ConfigError`.
    """

    def __init__(
        self,
        source: Source = None,
        *,
        timeout: float | Timeout | None = None,
        retry: Retry | None = None,
        key_store: KeyStore | None = None,
        elicitation: Callback | None = None,
        sampling: Callback | None = None,
        roots: Roots | None = None,
        asks: Asks | None = None,
        login: Login | None = None,
        tokens: TokenStore | None = USUAL_TOKENS,
        catalog_dir: str | os.PathLike[str] | ListStore | None = USUAL,
        audit: str | os.PathLike[str] | AuditSettings | None = None,
        addresses: Addresses = PUBLIC,
        world: World | None = None,
    ) -> None:
        self._world = world = world if world is not None else World()
        self._timeout = Timeout(timeout) if isinstance(timeout, int | float) else timeout
        self._retry = retry
        self._allowed = addresses
        self._servers, self.problems, self._addresses = servers_of(source, self._timeout, retry, addresses)
        self._catalog = Catalog()
        self._keeping = Keeping(self._catalog, store_in(catalog_dir, world.environ))
        self._watchers = Watchers()
        self._observer = Observer(self._watchers)
        self._watchdog = Watchdog(self._observer.emit, world.stall)
        self._spawner = Spawner(runtime_dir(world.environ))
        store = of_this_user(world.environ) if tokens is USUAL_TOKENS else tokens
        self._broker = Broker(login, store, on_login=self._login_came)
        self._rules = Rules(self._servers, self._catalog)
        self._cache = Cache(self._now)
        self._outputs = Outputs()
        self._board = Board(world.dice)
        self._key_store = key_store or MemoryKeys(self._now)
        self._around = Around(
            world,
            asks if asks is not None else CallbackAsks(elicitation, sampling, roots),
            self._spawner,
            self._broker,
            self._servers,
            self._catalog,
            self._keeping,
            self._board,
            self._observer,
        )
        self._fleet = Fleet(
            self._servers, self._around, self._catalog, self._keeping, self._board, self._broker, self._forget
        )
        self._fleet.divides = world.divides
        self._logins = Logins(self._fleet, self._broker, self._around)
        self._reach = Reaching(
            self._fleet, self._catalog, self._outputs, self._rules, self._broker, self._observer, world
        ).reach
        self._auditing = Auditing(AuditSettings.of(audit), self.emit, self._servers) if audit is not None else None

    def _forget(self, server: str) -> None:
        """It is not what it was."""
        self._cache.forget(server)
        self._outputs.forget(server)

    def _stages(self, key_store: KeyStore, now: Callable[[], float], audit: Stage | None) -> tuple[Stage, ...]:
        rules = self._rules
        return in_order(
            resolve=resolve(self._catalog, self._servers.keys(), rules.settle),
            deadline=deadline(rules.timeout, now),
            keys=keys(key_store),
            cache=cache(self._cache, rules.cache_identity, rules.cache_seconds),
            dedup=dedup(rules.shared_identity),
            audit=audit,
            retry=retry(
                rules.retry,
                self._fleet.budgets.__getitem__,
                now,
                self._world.dice,
                self._world.sleep,
                self._observer.try_failed,
            ),
            breaker=breaker(self._board, now, self._sign_of_life, rules.supervised),
            limit=limit(self._fleet.slots.__getitem__, rules.queue, now),
        )

    @staticmethod
    def sync(source: Source = None, **options: Any) -> SyncHub:
        """The same hub for scripts and notebooks: `with Hub.sync("mcp.json") as hub: hub.call_tool(…)`."""
        return SyncHub(lambda: Hub(source, **options))

    # -- life ---------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        audit = await self._open_audit(self._auditing) if self._auditing is not None else None
        self._pipeline = chain(self._stages(self._key_store, self._loop.time, audit), self._reach)
        self._watchdog.start()
        self._fleet.start()
        return self

    async def _open_audit(self, auditing: Auditing) -> Stage:
        """Before any server is started. Raises `ConfigError` where the log cannot be trusted or written."""
        stage = await auditing.open(self._rules.definition)
        if auditing.book is not None:
            self._observer.listen(auditing.book)
        return stage

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop all servers, at the same time; none is left after it. At most about 6 s."""
        await self._fleet.close()
        await self._broker.close()
        await self._keeping.close()
        await self._spawner.close()
        if self._auditing is not None:
            await self._auditing.close()
        self._watchdog.stop()
        self._watchers.close()

    async def add(self, name: str, server: ServerLike) -> None:
        """Add a server while running. Raises `ConfigError` where the name is taken."""
        if name in self._servers:
            raise ConfigError(f"there is a server {name!r} already", fix="use replace()", code="E-CONFIG-NAME")
        self._fleet.add(check_server_name(name), self._with_defaults(server))
        self.emit(ServerChanged(name, "added"))

    async def remove(self, name: str) -> None:
        """Forget a server; returns when it is stopped. Calls under way are finished first, for at most 30 s. Raises
        `NotFound`."""
        check_server(self._servers, name)
        leaving = self._fleet.remove(name)
        self.emit(ServerChanged(name, "removed"))
        await all_gone(leaving)

    async def replace(self, name: str, server: ServerLike) -> None:
        """Give a server another definition, which takes new calls at once; one that is the same keeps running. Returns
        when the old one is stopped, after what it was doing, or 30 s. Raises `NotFound`."""
        new = self._with_defaults(server)
        check_server(self._servers, name)
        if new != self._servers[name]:
            leaving = self._fleet.exchange(name, new)
            self.emit(ServerChanged(name, "changed"))
            await all_gone(leaving)

    async def apply(self, source: Source) -> dict[str, str]:
        """Become what `source` says: servers that are the same keep running. Returns what was done with the others; the
        old ones finish what they are doing, as with `replace`. Raises `ConfigError`, and then nothing has changed."""
        wanted, self.problems, self._addresses = servers_of(source, self._timeout, self._retry, self._allowed)
        done = self._fleet.become(wanted)
        for name, what in done.items():
            self.emit(ServerChanged(name, what))
        return done

    def _with_defaults(self, server: ServerLike) -> Server:
        return allowing(with_defaults(server_of(server), self._timeout, self._retry), self._addresses)

    def restart(self, name: str) -> None:
        """Start a server again now, whatever its state. Raises `NotFound`."""
        self._fleet.restart(name)

    async def log_in(self, name: str, login: Login, *, caller: str = "", redirect_uri: str | None = None) -> None:
        """Let a person log in to a server, whatever there is already, and keep what comes of it. `redirect_uri` is
        where the login ends, if not where the entry says. Raises `NotFound` and `Denied`."""
        await self._logins.begin(name, login, caller, redirect_uri)

    async def log_out(self, name: str, *, caller: str = "") -> bool:
        """Forget a login, and take it back where its issuer can do that; whether there was one. Raises `NotFound` and
        `Denied`."""
        return await self._logins.end(name, caller)

    async def log_out_everywhere(self, caller: str) -> None:
        """Forget every login of a caller, who is none any more."""
        await self._logins.end_all(caller)

    def _login_came(self, name: str, caller: str) -> None:
        self._logins.came(name, caller)

    # -- calling ------------------------------------------------------------------------------------------------------

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        retries: int | None = None,
        repeatable: bool | None = None,
        key: str | None = None,
        on_progress: OnProgress | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Reply:
        """Call `server.tool`. A tool's own failure is a reply with `is_error`; everything else raises `CallError`.

        `timeout` and `retries` replace the server's settings. `repeatable=True` is your word that the call may run
        again; without it, or a setting or hint that says so, a call that may have been executed is never sent twice.
        Calls with
        the same idempotency `key` are executed once."""
        params: Json = {"name": name, "arguments": dict(arguments or {})}
        if meta:
            params["_meta"] = dict(meta)
        call = Call(
            name,
            "tools/call",
            params,
            timeout=timeout,
            on_progress=on_progress,
            retries=retries,
            repeatable=repeatable,
            key=key,
        )
        return await self._call(call)

    async def read_resource(self, uri: str, *, server: str | None = None, timeout: float | None = None) -> Reply:
        """Read a resource. Without `server`, the one that lists it."""
        server = server if server is not None else server_of_resource(self._catalog, uri)
        return await self._call(Call(uri, "resources/read", {"uri": uri}, server=server, name=uri, timeout=timeout))

    async def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, *, timeout: float | None = None
    ) -> Reply:
        """Get the prompt `server.prompt`."""
        ref = prompt_of(self._servers, name)
        params: Json = {"name": ref.tool, "arguments": dict(arguments or {})}
        return await self._call(Call(name, "prompts/get", params, ref.server, ref.tool, timeout))

    async def complete(
        self,
        target: str,
        argument: str,
        value: str,
        *,
        server: str | None = None,
        context: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> list[str]:
        """Completions for an argument of the prompt `server.prompt`, or of a resource template with `server` given."""
        if server is None:
            found = prompt_of(self._servers, target)
            server, ref = found.server, {"type": "ref/prompt", "name": found.tool}
        else:
            ref = {"type": "ref/resource", "uri": target}
        params: Json = {"ref": ref, "argument": {"name": argument, "value": value}}
        if context:
            params["context"] = {"arguments": dict(context)}
        reply = await self._call(Call(target, "completion/complete", params, server, target, timeout))
        completion = reply.raw.get("completion")
        values = completion.get("values") if isinstance(completion, dict) else None
        return [v for v in values if isinstance(v, str)] if isinstance(values, list) else []

    def _call(self, call: Call) -> Coroutine[Any, Any, Reply]:
        observer = self._observer
        heard = observer.on if not call.brought else observer.on_brought
        return self._observed(call) if heard else self._unobserved(call)

    async def _unobserved(self, call: Call) -> Reply:
        if not self._fleet.open:
            self._must_be_open()
        began = self._loop.time()
        reply = await self._pipeline(call)
        return changed(reply, seconds=self._loop.time() - began)

    async def _observed(self, call: Call) -> Reply:
        if not self._fleet.open:
            self._must_be_open()
        observer, began = self._observer, self._loop.time()
        call = observer.begin(call)
        try:
            reply = await self._pipeline(call)
        except CallError as exc:
            observer.failed(call, exc, self._loop.time() - began)
            raise
        except BaseException:
            observer.abandoned(call, self._loop.time() - began)
            raise
        seconds = self._loop.time() - began
        observer.answered(call, reply, seconds)
        return changed(reply, seconds=seconds)

    async def _sign_of_life(self, server: str) -> None:
        await self._fleet.upstream(server).sign_of_life()

    # -- what there is ------------------------------------------------------------------------------------------------

    def tools(self, query: str | None = None, *, server: str | None = None) -> list[Tool]:
        """The tools known now, without waiting: all, of one server, or those in which all words of `query` occur."""
        return self._catalog.search(query, server) if query else self._catalog.tools(server)

    async def list_tools(self, *, server: str | None = None, timeout: float = 30.0) -> list[Tool]:
        """The tools, after each server (or the one named) has answered, failed, or taken longer than `timeout`."""
        return _typed(Tool, await self._list("tools", server, timeout))

    async def list_prompts(self, *, server: str | None = None, timeout: float = 30.0) -> list[Prompt]:
        """The prompts; see `list_tools`."""
        return _typed(Prompt, await self._list("prompts", server, timeout))

    async def list_resources(self, *, server: str | None = None, timeout: float = 30.0) -> list[Resource]:
        """The resources; see `list_tools`."""
        return _typed(Resource, await self._list("resources", server, timeout))

    async def list_resource_templates(self, *, server: str | None = None, timeout: float = 30.0) -> list[Resource]:
        """The resource templates; see `list_tools`."""
        return _typed(Resource, await self._list("templates", server, timeout))

    async def _list(self, kind: Kind, server: str | None, timeout: float) -> list[Item]:
        self._must_be_open()
        await self._fleet.wait_answered(kind, server, timeout)
        return list(self._catalog.items(kind, server))

    def status(self) -> dict[str, Status]:
        """Every server as it is now."""
        return {name: self._fleet.status(name) for name in self._servers}

    @property
    def board(self) -> Board:
        """The breakers themselves, for whoever shares them with other gateways."""
        return self._board

    def breakers(self) -> dict[tuple[str, str], BreakerFacts]:
        """The breakers that have something to tell, by server and tool; the tool of a server's own is empty."""
        return self._board.facts(self._now())

    def trip(self, server: str, tool: str = "") -> None:
        """Let a server, or one tool of it, be left alone for a minute. Raises `NotFound`."""
        check_server(self._servers, server)
        if tool:
            must_exist(self._catalog, ToolRef(server, tool))
        self._board.trip(server, tool, self._now())

    def reset(self, server: str, tool: str = "") -> None:
        """Close the breaker of a server, or of one tool of it. Raises `NotFound`."""
        check_server(self._servers, server)
        self._board.reset(server, tool)

    def slots(self, server: str) -> Slots | None:
        """How many calls a server has, and may have."""
        return self._fleet.slots.get(server)

    def crowd(self, server: str) -> tuple[int, int, int]:
        """Calls that wait for a slot of a server, retries under way, and retries that its budget refused."""
        slots, budget = self._fleet.slots.get(server), self._fleet.budgets.get(server)
        return (slots.waiting if slots else 0, budget.active if budget else 0, budget.refused if budget else 0)

    async def wait_ready(self, name: str | None = None, *, timeout: float | None = None) -> None:
        """Return when `name`, or every enabled server, is ready. Raises `Unavailable` as soon as one cannot be had."""
        self._must_be_open()
        await self._fleet.wait_ready(name, timeout)

    async def wait_settled(self, timeout: float | None = None) -> None:
        """Return when every server that starts by itself is ready or has failed its first start, or after `timeout`."""
        await self._fleet.wait_settled(timeout)

    def events(self, *kinds: type[Event]) -> AsyncIterator[Event]:
        """What happens from now on, of these kinds or of all. A watcher that is too slow loses events and is told how
        many."""
        return self._watchers.watch(*kinds)

    def listen(self, sink: Sink) -> None:
        """Let `sink` hear of everything at once, until `unlisten`."""
        self._observer.listen(sink)

    def unlisten(self, sink: Sink) -> None:
        self._observer.leave(sink)

    def trace(self, provider: TracerProvider | None = None, sample: float | None = None) -> None:
        """Record calls as spans of OpenTelemetry, with the provider that the program has set or this one. `sample` is
        the share of calls without a trace of their own; without it the provider decides. Needs `toolway[otel]`."""
        from opentelemetry.trace import get_tracer

        from toolway._version import __version__
        from toolway.telemetry.otel import OtelTracer

        self.trace_with(OtelTracer(get_tracer("toolway", __version__, provider), self._place, sample))

    def _place(self, name: str) -> Mapping[str, Any]:
        """What a trace says of where a server is."""
        server, agreed = self._servers.get(name), self.agreement(name)
        return place_of(server, agreed.version if agreed is not None else "")

    def trace_with(self, tracer: Tracer | None) -> None:
        """Let `tracer` say which trace each call belongs to, or nobody."""
        self._observer.trace_with(tracer)

    def running(self) -> list[Call]:
        """The calls under way, the oldest first; none where nobody listens."""
        return list(self._observer.running.values())

    # -- for a gateway ------------------------------------------------------------------------------------------------

    def request(self, call: Call) -> Coroutine[Any, Any, Reply]:
        """A call as it is, of whatever method. Raises `CallError`."""
        return self._call(call)

    def new_attempt(self, *, keeps_bytes: bool, brought: bool = False) -> Attempt:
        """What a call is made with: it remembers more where somebody listens."""
        observer = self._observer
        return (observer.attempt if not brought or observer.on_brought else Attempt)(keeps_bytes=keeps_bytes)

    @property
    def catalog(self) -> Catalog:
        return self._catalog

    @property
    def addresses(self) -> Addresses:
        """Where a server may lead to that is added now."""
        return self._addresses

    @property
    def servers(self) -> Mapping[str, Server]:
        """Every configured server."""
        return self._servers

    @property
    def audit(self) -> Ledger | None:
        """How the audit log stands, where one is kept."""
        return self._auditing.ledger if self._auditing is not None else None

    def agreement(self, server: str) -> Agreement | None:
        """What was agreed with a server that is ready now."""
        upstream = self._fleet.upstreams.get(server)
        return upstream.agreement if upstream is not None else None

    def era(self, server: str) -> Era | None:
        """The era that a server speaks, or spoke when it was last heard."""
        upstream = self._fleet.upstreams.get(server)
        return upstream.era if upstream is not None else None

    async def wait_listed(self, servers: Iterable[str], kind: Kind, timeout: float, *, urgent: bool = False) -> None:
        """Return when each of these servers has shown its list, be it of an earlier run, or has failed its start, or
        after `timeout`. `urgent`: a call waits for them, so they start before others."""
        await self._fleet.wait_listed(servers, kind, timeout, urgent=urgent)

    async def subscribe(self, server: str, kind: Wanted, name: str, link: str) -> None:
        """Hear of changes of a resource or a task, as `ResourceUpdated` and `TaskChanged` events, on a link as
        `link_of` names it. Raises `CallError`."""
        await self._fleet.subscribe(server, kind, name, link)

    def unsubscribe(self, server: str, kind: Wanted, name: str, link: str) -> None:
        self._fleet.unsubscribe(server, kind, name, link)

    def wake(self, name: str) -> None:
        """Start a server that starts when it is needed, also where earlier starts failed. One that there is not is left
        alone."""
        upstream = self._fleet.upstreams.get(name)
        if upstream is not None:
            upstream.wake()

    def learn(self, name: str, lists: Mapping[str, list[Any]]) -> None:
        """Take the lists of a server from somebody who has asked it."""
        self._around.learn(name, lists)

    def link_of(self, server: str, caller: str) -> str:
        """Whose link to the server the caller uses: his own, or, by the name of nobody, the one that is shared."""
        return self._fleet.link_of(server, caller)

    def emit(self, fact: Event) -> None:
        """Tell whoever watches or listens."""
        self._around.emit(fact)

    def _must_be_open(self) -> None:
        if not self._fleet.open:
            raise RuntimeError("the hub is not open: use `async with Hub(…) as hub`")

    def _now(self) -> float:
        return self._loop.time()


def _typed(kind: type[T], items: Iterable[Item]) -> list[T]:
    return [item for item in items if isinstance(item, kind)]
