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
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from mcp_types.jsonrpc import HEADER_MISMATCH, INVALID_PARAMS, METHOD_NOT_FOUND
from msgspec.structs import replace as changed

from toolway.addresses.policy import PUBLIC, Addresses
from toolway.asks import Callback, CallbackAsks, Roots
from toolway.auditing import Auditing
from toolway.catalog.index import Catalog, Item, Prompt, Resource, Tool
from toolway.catalog.keeping import KINDS, Keeping
from toolway.catalog.outputs import Outputs
from toolway.catalog.resolve import check_server, must_exist, resolve
from toolway.catalog.store import ListStore
from toolway.config.addresses import allowing
from toolway.config.audit import AuditSettings
from toolway.config.secrets import references
from toolway.config.spec import Retry, Server, ServerLike, Timeout, check_server_name, with_defaults
from toolway.errors import CallError, Certainty, ConfigError, Denied, NotFound, ProtocolError, ToolwayError, Unavailable
from toolway.events import Access, CatalogChanged, Connected, Event, Kind, ServerChanged, Sink
from toolway.model import Asks, Attempt, Call, Era, Json, OnProgress, Reply, Stage, ToolRef
from toolway.observing import Observer, Tracer
from toolway.pipeline import chain, in_order
from toolway.resilience.breaker import BreakerFacts
from toolway.resilience.breaking import Board, breaker
from toolway.resilience.budget import Budget
from toolway.resilience.cache import Cache, cache
from toolway.resilience.deadline import deadline
from toolway.resilience.dedup import dedup
from toolway.resilience.keys import KeyStore, MemoryKeys, keys
from toolway.resilience.limits import Slots, limit
from toolway.resilience.retry import retry
from toolway.resolving import LateLink, resolved
from toolway.rules import Rules
from toolway.security.broker import Broker
from toolway.security.sealed_tokens import of_this_user
from toolway.security.tokens import USUAL_TOKENS, TokenStore
from toolway.security.wallet import Login
from toolway.sources import USUAL, Source, identity, runtime_dir, server_of, servers_of, store_in
from toolway.sync import SyncHub
from toolway.telemetry.audit.ledger import Ledger
from toolway.telemetry.naming import place_of
from toolway.upstream.border import PERSONAL, denied
from toolway.upstream.gate import StartGate
from toolway.upstream.link import Link
from toolway.upstream.private import PrivateUpstreams
from toolway.upstream.probe import Agreement
from toolway.upstream.process.spawn import Spawner
from toolway.upstream.retiring import Retiring
from toolway.upstream.status import Status
from toolway.upstream.subscriptions import Wanted
from toolway.upstream.upstream import Upstream
from toolway.waits import all_gone, all_to_the_end, settle_within, within
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
        self._asks = asks if asks is not None else CallbackAsks(elicitation, sampling, roots)
        self._catalog = Catalog()
        self._keeping = Keeping(self._catalog, store_in(catalog_dir, world.environ))
        self._watchers = Watchers()
        self._observer = Observer(self._watchers)
        self._watchdog = Watchdog(self._observer.emit, world.stall)
        self._upstreams: dict[str, Upstream] = {}
        self._slots: dict[str, Slots] = {}
        self._spawner = Spawner(runtime_dir(world.environ))
        self._gate = StartGate(max(4, 2 * world.cores))
        self._private = PrivateUpstreams(self)
        store = of_this_user(world.environ) if tokens is USUAL_TOKENS else tokens
        self._broker = Broker(login, store, on_login=self._login_came)
        self._retiring = Retiring(self)
        self._open = False
        self._rules = Rules(self._servers, self._catalog)
        self._cache = Cache(self._now)
        self._outputs = Outputs()
        self._board = Board(world.dice)
        self._budgets: dict[str, Budget] = {}
        self._key_store = key_store or MemoryKeys(self._now)
        self._auditing = Auditing(AuditSettings.of(audit), self.emit, self._servers) if audit is not None else None

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
                self._budgets.__getitem__,
                now,
                self._world.dice,
                self._world.sleep,
                self._observer.try_failed,
            ),
            breaker=breaker(self._board, now, self._sign_of_life, rules.supervised),
            limit=limit(self._slots.__getitem__, rules.queue, now),
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
        self._open = True
        self._watchdog.start()
        for name in self._servers:
            self._bring_up(name)
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
        self._open = False
        upstreams = [*self._upstreams.values(), *self._private.take()]
        self._upstreams = {}
        stops = [upstream.stop() for upstream in upstreams]
        await all_to_the_end([*stops, self._private.wait_stopped(), self._retiring.close()])
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
        self._put_in(check_server_name(name), self._with_defaults(server))
        self.emit(ServerChanged(name, "added"))

    async def remove(self, name: str) -> None:
        """Forget a server; returns when it is stopped. Calls under way are finished first, for at most 30 s. Raises
        `NotFound`."""
        check_server(self._servers, name)
        leaving = self._forget(name)
        self.emit(ServerChanged(name, "removed"))
        await all_gone(leaving)

    async def replace(self, name: str, server: ServerLike) -> None:
        """Give a server another definition, which takes new calls at once; one that is the same keeps running. Returns
        when the old one is stopped, after what it was doing, or 30 s. Raises `NotFound`."""
        new = self._with_defaults(server)
        check_server(self._servers, name)
        if new != self._servers[name]:
            leaving = self._exchange(name, new)
            self.emit(ServerChanged(name, "changed"))
            await all_gone(leaving)

    async def apply(self, source: Source) -> dict[str, str]:
        """Become what `source` says: servers that are the same keep running. Returns what was done with the others; the
        old ones finish what they are doing, as with `replace`. Raises `ConfigError`, and then nothing has changed."""
        wanted, self.problems, self._addresses = servers_of(source, self._timeout, self._retry, self._allowed)
        done: dict[str, str] = {}
        for name in [name for name in self._servers if name not in wanted]:
            done[name] = "removed"
            self._forget(name)
        for name, server in wanted.items():
            if name not in self._servers:
                done[name] = "added"
                self._put_in(name, server)
            elif server != self._servers[name]:
                done[name] = "changed"
                self._exchange(name, server)
        for name, what in done.items():
            self.emit(ServerChanged(name, what))
        return done

    def _with_defaults(self, server: ServerLike) -> Server:
        return allowing(with_defaults(server_of(server), self._timeout, self._retry), self._addresses)

    # Changes of servers do not wait for anything in between, so each finds what the one before it has left.

    def _put_in(self, name: str, server: Server) -> None:
        self._servers[name] = server
        if self._open:
            self._bring_up(name)

    def _forget(self, name: str) -> list[asyncio.Task[None]]:
        del self._servers[name]
        return self._take_out(name)

    def _exchange(self, name: str, server: Server) -> list[asyncio.Task[None]]:
        leaving = self._take_out(name)
        self._put_in(name, server)
        return leaving

    def _take_out(self, name: str) -> list[asyncio.Task[None]]:
        """Whoever has calls keeps them, and is left alone until they have ended."""
        upstream = self._upstreams.pop(name, None)
        shared = [upstream] if upstream is not None else []
        self._catalog.remove_server(name)
        self._cache.forget(name)
        self._outputs.forget(name)
        return self._retiring.begin([*shared, *self._private.take(name)])

    def restart(self, name: str) -> None:
        """Start a server again now, whatever its state. Raises `NotFound`."""
        self._upstream(name).restart()
        self._board.forget(name)
        self._slots[name].paused_until = 0.0
        self._broker.forgive(name)

    async def log_in(self, name: str, login: Login, *, caller: str = "", redirect_uri: str | None = None) -> None:
        """Let a person log in to a server, whatever there is already, and keep what comes of it. `redirect_uri` is
        where the login ends, if not where the entry says. Raises `NotFound` and `Denied`."""
        with denied(name):
            server = await self._for_login(name)
            await self._broker.log_in(name, server, login, caller=caller, redirect_uri=redirect_uri)
        self.emit(Access(name, "login", who=caller))
        self._login_came(name, caller)

    async def log_out(self, name: str, *, caller: str = "") -> bool:
        """Forget a login, and take it back where its issuer can do that; whether there was one. Raises `NotFound` and
        `Denied`."""
        with denied(name):
            had = await self._broker.log_out(name, await self._for_login(name), caller=caller)
        self.emit(Access(name, "logout", who=caller))
        self._login_came(name, caller)
        return had

    async def log_out_everywhere(self, caller: str) -> None:
        """Forget every login of a caller, who is none any more."""
        for name in list(self._servers):
            with suppress(ToolwayError):  # nobody can log in to some
                await self.log_out(name, caller=caller)

    async def _for_login(self, name: str) -> Server:
        check_server(self._servers, name)
        server = self._servers[name]
        return await self._resolved(server) if references(server) else server

    def _login_came(self, name: str, caller: str) -> None:
        """Whoever was refused without it begins again; whoever was not may see other tools now."""
        if not self._open or name not in self._upstreams:
            return
        if caller:
            found = self._private.get(name, caller)
            if found is None and self.lacks_list(name, "tools"):
                found = self._private.of(name, self._servers[name], caller)
        else:
            found = self._upstreams[name]
        if found is None:
            return
        if found.agreement is not None:
            found.refresh("tools")
        elif caller:
            found.restart()
        else:
            self.restart(name)

    def _bring_up(self, name: str) -> None:
        server = self._servers[name]
        self._catalog.add_server(name)
        hint = self._keeping.load(name, identity(server))
        self._slots[name] = Slots(server.limits)
        self._budgets[name] = Budget()
        self._board.forget(name)
        if server.enabled:
            upstream = self._upstreams[name] = Upstream(name, server, self, hint)
            upstream.start(after=self._retiring.before(name))

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
        server = server if server is not None else self._server_of_resource(uri)
        return await self._call(Call(uri, "resources/read", {"uri": uri}, server=server, name=uri, timeout=timeout))

    async def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, *, timeout: float | None = None
    ) -> Reply:
        """Get the prompt `server.prompt`."""
        ref = self._prompt(name)
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
            found = self._prompt(target)
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
        return self._observed(call) if self._observer.on else self._unobserved(call)

    async def _unobserved(self, call: Call) -> Reply:
        if not self._open:
            self._must_be_open()
        began = self._loop.time()
        reply = await self._pipeline(call)
        return changed(reply, seconds=self._loop.time() - began)

    async def _observed(self, call: Call) -> Reply:
        if not self._open:
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
        await self._upstream(server).sign_of_life()

    async def _reach(self, call: Call) -> Reply:
        """The end of the pipeline: the upstream itself, or the one after it where it was replaced before it had the
        call."""
        if self._observer.on:
            call = self._observer.reached(call)
        if self._world.tell is not None:
            call.attempt.told = self._world.tell(call)
        shared = self._upstream(call.server)
        try:
            upstream = shared
            if call.caller:
                call.attempt.caller = call.caller
                if not shared.is_modern or self._broker.is_personal(call.server):
                    upstream = await self._upstream_of_caller(call, shared)
            if call.method != "tools/call":
                result = await upstream.call(call)
            else:
                if call.key is not None:
                    call = self._with_key(call)
                tool = self._catalog.find_tool(call.server, call.name) or await self._listed_tool(call, upstream)
                try:
                    result = await upstream.call(call, tool.input_schema if tool.mirrors else None)
                except ProtocolError as exc:
                    tool, result = await self._call_once_more(upstream, call, exc)
                if "structuredContent" in result:
                    self._check_output(tool, result)
            return Reply(call.server, call.name, result, encoded=call.attempt.encoded)
        except (Unavailable, NotFound) as exc:
            if not shared.retired or exc.executed != "no":
                raise
        except Denied as exc:
            if exc.code != PERSONAL or not self._broker.is_personal(call.server):
                raise  # else the server has just asked for a credential, and the caller has one of his own, or none
        return await self._reach(call)

    async def _call_once_more(self, upstream: Upstream, call: Call, exc: ProtocolError) -> tuple[Tool, Json]:
        """Where a server refused a call because it has changed the definition of the tool. Raises `CallError`."""
        if exc.rpc_code != HEADER_MISMATCH:
            if exc.rpc_code in (METHOD_NOT_FOUND, INVALID_PARAMS) and "unknown tool" in exc.evidence.lower():
                upstream.refresh("tools")
            raise exc
        # The definition must have changed: read it again, and send the call once more, which was refused.
        await upstream.fetch_now("tools")
        tool = await self._listed_tool(call, upstream)
        return tool, await upstream.call(call, tool.input_schema)

    async def _upstream_of_caller(self, call: Call, upstream: Upstream) -> Upstream:
        """The upstream that everybody shares, or, where the era of the server does not allow that, the caller's own."""
        server = self._servers[call.server]
        if server.shared or server.transport == "memory":
            return upstream
        if self._broker.is_personal(call.server) and not upstream.retired:
            return self._private.of(call.server, server, call.caller)  # whether or not the owner has logged in
        if upstream.agreement is None:
            await upstream.wait_ready(call.attempt)
        if upstream.retired or not self._is_private(call.server, upstream):
            return upstream
        return self._private.of(call.server, server, call.caller)

    def _is_private(self, name: str, upstream: Upstream) -> bool:
        """Whether each caller has a link of his own to the server."""
        server = self._servers[name]
        if server.shared or server.transport == "memory":
            return False
        return upstream.era == "handshake" or self._broker.is_personal(name)

    async def _listed_tool(self, call: Call, upstream: Upstream) -> Tool:
        """The tool's definition, waiting for the server's first list where there is none yet. Raises `NotFound`."""
        ref = ToolRef(call.server, call.name)
        if self._catalog.tool(ref) is None:
            await upstream.wait_ready(call.attempt)
        return must_exist(self._catalog, ref)

    def _with_key(self, call: Call) -> Call:
        """The call with its idempotency key where the server itself honours one."""
        if call.key is None:
            return call
        name = self._rules.key_meta(call.server)
        if name is None:
            return call
        meta = call.params.get("_meta")
        return changed(call, params={**call.params, "_meta": {**(meta or {}), name: call.key}})

    def _check_output(self, tool: Tool, result: Json) -> None:
        problem = self._outputs.problem(tool, result)
        if problem is not None:
            raise ProtocolError(
                f"the answer of {tool.name} is not what its definition promises",
                data=result,
                server=tool.server,
                tool=tool.key,
                certainty=Certainty.C3,
                attempts=1,
                evidence=problem,
                fix="report it to the server's author; the answer is in the error's `data`",
                code="E-OUTPUT-SCHEMA",
            )

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
        if server is not None:
            await within(timeout, self._upstream(server).wait_listed(kind), server)
        else:
            waiting = [asyncio.ensure_future(u.wait_listed(kind, urgent=False)) for u in self._upstreams.values()]
            await settle_within(timeout, waiting)
        return list(self._catalog.items(kind, server))

    def status(self) -> dict[str, Status]:
        """Every server as it is now."""
        return {name: self._status(name) for name in self._servers}

    def _status(self, name: str) -> Status:
        upstream = self._upstreams.get(name)
        if upstream is None:
            state, why = ("disabled", "disabled in its entry") if self._open else ("stopped", "the hub is not running")
            return Status(name, self._servers[name].transport, state, why=why)
        return replace(
            upstream.status(),
            tools=len(self._catalog.tools(name)),
            stale=self._catalog.stale(name),
            problems=self._catalog.problems(name),
        )

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
        return self._slots.get(server)

    def crowd(self, server: str) -> tuple[int, int, int]:
        """Calls that wait for a slot of a server, retries under way, and retries that its budget refused."""
        slots, budget = self._slots.get(server), self._budgets.get(server)
        return (slots.waiting if slots else 0, budget.active if budget else 0, budget.refused if budget else 0)

    async def wait_ready(self, name: str | None = None, *, timeout: float | None = None) -> None:
        """Return when `name`, or every enabled server, is ready. Raises `Unavailable` as soon as one cannot be had."""
        self._must_be_open()
        chosen = [self._upstream(name)] if name is not None else list(self._upstreams.values())
        waiting = asyncio.gather(*(u.wait_ready(urgent=name is not None) for u in chosen))
        await within(timeout, waiting, name or "not every server")

    async def wait_settled(self, timeout: float | None = None) -> None:
        """Return when every server that starts by itself is ready or has failed its first start, or after `timeout`."""
        chosen = [u for u in self._upstreams.values() if not u.server.lazy]
        await settle_within(timeout, [asyncio.ensure_future(u.wait_settled()) for u in chosen])

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

    def new_attempt(self, *, keeps_bytes: bool) -> Attempt:
        """What a call is made with: it remembers more where somebody listens."""
        return self._observer.attempt(keeps_bytes=keeps_bytes)

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
        upstream = self._upstreams.get(server)
        return upstream.agreement if upstream is not None else None

    def era(self, server: str) -> Era | None:
        """The era that a server speaks, or spoke when it was last heard."""
        upstream = self._upstreams.get(server)
        return upstream.era if upstream is not None else None

    async def wait_listed(self, servers: Iterable[str], kind: Kind, timeout: float, *, urgent: bool = False) -> None:
        """Return when each of these servers has shown its list, be it of an earlier run, or has failed its start, or
        after `timeout`. `urgent`: a call waits for them, so they start before others."""
        unlisted = [self._upstreams.get(name) for name in servers if not self._catalog.listed(name, kind)]
        waiting = [asyncio.ensure_future(u.wait_listed(kind, urgent=urgent)) for u in unlisted if u is not None]
        await settle_within(timeout, waiting)

    async def subscribe(self, server: str, kind: Wanted, name: str, link: str) -> None:
        """Hear of changes of a resource or a task, as `ResourceUpdated` and `TaskChanged` events, on a link as
        `link_of` names it. Raises `CallError`."""
        upstream = self._upstream(server)
        if link:
            upstream = self._private.of(server, self._servers[server], link)
        await upstream.subscribe(kind, name)

    def unsubscribe(self, server: str, kind: Wanted, name: str, link: str) -> None:
        upstream = self._private.get(server, link) if link else self._upstreams.get(server)
        if upstream is not None:
            upstream.subscriptions.remove(kind, name)

    def wake(self, name: str) -> None:
        """Start a server that starts when it is needed, also where earlier starts failed. One that there is not is left
        alone."""
        upstream = self._upstreams.get(name)
        if upstream is not None:
            upstream.wake()

    def learn(self, name: str, lists: Mapping[str, list[Any]]) -> None:
        """Take the lists of a server from somebody who has asked it."""
        if name not in self._servers:
            return
        for kind in KINDS:
            changed = self._catalog.replace(name, kind, lists.get(kind, ()))
            if changed is not None:
                self.emit(changed)

    def link_of(self, server: str, caller: str) -> str:
        """Whose link to the server the caller uses: his own, or, by the name of nobody, the one that is shared."""
        upstream = self._upstream(server)
        return caller if self._is_private(server, upstream) else ""

    # -- for the upstreams: what they need from their hub -------------------------------------------------------------

    @property
    def asks(self) -> Asks:
        return self._asks

    @property
    def gate(self) -> StartGate:
        return self._gate

    @property
    def dice(self) -> Callable[[], float]:
        return self._world.dice

    def open_link(self, name: str, server: Server, caller: str = "") -> Link:
        if self._world.wrap_link is not None:
            return self._world.wrap_link(name, server, partial(self._own_link, name, server, caller))
        return self._own_link(name, server, caller)

    def _own_link(self, name: str, server: Server, caller: str) -> Link:
        if not references(server):
            return self._link(name, server, caller)

        async def with_secrets() -> Link:
            return self._link(name, await self._resolved(server), caller)

        return LateLink(with_secrets)

    async def _resolved(self, server: Server) -> Server:
        return await resolved(server, self._world.environ, self._spawner)

    def _link(self, name: str, server: Server, caller: str) -> Link:
        authorizer = self._broker.authorizer(name, server, caller)
        return self._world.make_link(name, server, self._spawner, self._world.environ, authorizer)

    def emit(self, fact: Event) -> None:
        if isinstance(fact, Connected):
            self._board.reconnected(fact.server)
        self._observer.emit(fact)

    def on_list(
        self, server: str, kind: Kind, items: list[Any], problems: list[str], era: Era
    ) -> CatalogChanged | None:
        objection = None
        definition = self._servers.get(server)  # none where it is being removed
        if kind == "tools" and era == "modern" and definition is not None and definition.transport == "http":
            objection = _header_problem
        changed = self._catalog.replace(server, kind, items, problems, objection=objection)
        self._keeping.changed(server, era)
        return changed

    def lacks_list(self, server: str, kind: Kind) -> bool:
        return self._broker.is_personal(server) and not self._catalog.listed(server, kind)

    # -- finding ------------------------------------------------------------------------------------------------------

    def _upstream(self, name: str) -> Upstream:
        upstream = self._upstreams.get(name)
        if upstream is None or name not in self._servers:
            check_server(self._servers, name)
            why = "it is disabled" if self._open else "the hub is closed"
            raise Unavailable(f"{name} is not running", server=name, evidence=why)
        return upstream

    def _server_of_resource(self, uri: str) -> str:
        for item in self._catalog.items("resources"):
            if item.key == uri:
                return item.server
        for item in self._catalog.items("templates"):
            if uri.startswith(item.key.partition("{")[0]):
                return item.server
        raise NotFound(f"no server lists the resource {uri!r}", fix="name the server: read_resource(uri, server=…)")

    def _prompt(self, name: str) -> ToolRef:
        server, dot, prompt = name.partition(".")
        if not dot:
            raise NotFound(f"{name!r} names no prompt", evidence="a prompt is called server.prompt")
        check_server(self._servers, server)
        return ToolRef(server, prompt)

    def _must_be_open(self) -> None:
        if not self._open:
            raise RuntimeError("the hub is not open: use `async with Hub(…) as hub`")

    def _now(self) -> float:
        return self._loop.time()


def _header_problem(tool: Json) -> str | None:
    """Why the arguments of a tool cannot be mirrored into headers, as its schema asks."""
    from toolway.protocol.headers import schema_problem  # with the whole SDK, which only HTTP servers need

    return schema_problem(tool["inputSchema"])


def _typed(kind: type[T], items: Iterable[Item]) -> list[T]:
    return [item for item in items if isinstance(item, kind)]
