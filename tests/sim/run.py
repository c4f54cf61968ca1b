"""One run: a hub, its simulated servers, and callers that keep it busy."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Iterator, MutableSet
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from tests.sim import resources
from tests.sim.audit_disk import SimAuditLog
from tests.sim.clients import Client, FakeNetwork
from tests.sim.faults import Weather, ticks
from tests.sim.history import Act, Begun, Ended, History, Moved, Progress, Reported
from tests.sim.idempotency import SlowKeys, StoreDown
from tests.sim.loop import VirtualLoop
from tests.sim.loop import run as run_loop
from tests.sim.scenario import MOST_ATTEMPTS, Deed, Front, Part, Plan, Scenario, Step, draw, effect_of
from tests.sim.servers import CALL_META, SimServer
from tests.sim.transports import link_to
from toolway.callbacks import FunctionCallbacks
from toolway.errors import CallError, CallTimeout, NotFound, ServerUnavailable
from toolway.events import CallFinished, StateChanged
from toolway.gateway.gateway import Gateway
from toolway.gateway.mcp.view import STARTUP_WINDOW_S
from toolway.hub.core import HubCore
from toolway.hub.environment import HubEnvironment
from toolway.hub.hub import Hub
from toolway.types import CallResult, Era, Json

LONGEST: Final = 7200.0  # virtual seconds of one run
LAST: Final = 24  # calls that are running when a gateway is stopped
CALM: Final = 420.0  # after which every server must be well again: the pause of a failed one is 300 s


def run(seed: int, calls: int = 200, front: Front = "hub", log: SimAuditLog | None = None) -> History:
    """The history of one seed, with callers before a hub, a hub with slow servers, or a gateway.

    `log` is its audit log, if it has one.
    """
    scenario = draw(seed, calls, front)
    loop = VirtualLoop(scenario.start)
    history = History(loop.time, front)
    stage = _GatewayStage if front == "gateway" else _Stage
    with _complaints_of_the_hub(history):
        try:
            run_loop(stage(seed, scenario, history, log).play(), loop)
        except Exception as exc:
            history.complaints.append(f"the run ended with {exc!r}")
    history.complaints += loop.complaints
    return history


class _Stage:
    def __init__(self, seed: int, scenario: Scenario, history: History, log: SimAuditLog | None = None) -> None:
        self._seed = seed
        self._log = log
        self._scenario = scenario
        self._history = history
        self._servers = {name: self._server(name, part) for name, part in scenario.parts.items()}
        self._gone: set[str] = set()  # removed from the hub
        self._left: set[str] = set()  # calls whose callers left
        self._closing = False

    def _dice(self, part: str) -> random.Random:
        return random.Random(f"{part} {self._seed}")

    def _server(self, name: str, part: Part) -> SimServer:
        dice = self._dice(name)
        return SimServer(name, part.traits, dice, Weather(dice, part.rate, part.fates), self._history)

    def _link(self, name: str, *_: Any) -> Any:
        return link_to(self._servers[name])

    def _hub(self) -> Hub:
        world = HubEnvironment(
            wall_clock=lambda: 0.0,
            random=self._dice("hub").random,
            create_transport=self._link,
            environ={},
            cores=2,
            stall_threshold=0,
        )
        keys = SlowKeys(self._dice("keys"), asyncio.get_running_loop().time) if self._scenario.slow_keys else None
        definitions = {name: part.server for name, part in self._scenario.parts.items()}
        core = HubCore(
            definitions,
            idempotency_store=keys,
            callbacks=FunctionCallbacks(self._asked, None, None),
            catalog_storage=None,
            environment=world,
        )
        core._audit_log = self._log  # type: ignore[assignment]  # has what the core uses
        return Hub._from_core(core)

    async def _asked(self, server: str, params: Json) -> Json:
        await asyncio.sleep(ticks(self._dice(params["message"]), 0, 16))
        return {"action": "accept", "content": {}}

    async def play(self) -> None:
        self._hub_ = hub = self._hub()
        async with asyncio.timeout(LONGEST):
            async with hub:
                await self._open()
                watching = asyncio.create_task(self._watch(hub))
                deeds = [asyncio.create_task(self._do(deed)) for deed in self._scenario.deeds]
                callers = [asyncio.create_task(self._caller(steps)) for steps in self._scenario.callers]
                await asyncio.wait(callers, timeout=self._scenario.close_after)
                if self._scenario.close_after is None:
                    await asyncio.gather(*deeds)
                    await self._finale()
                await self._close()
                self._count_flights(hub)
            await asyncio.gather(*callers, *deeds, watching)
        self._history.leftovers += resources.held(hub)
        await asyncio.sleep(1)
        self._history.leftovers += resources.tasks()

    def _count_flights(self, hub: Hub) -> None:
        flights = hub._core.calls.flights
        self._history.landed, self._history.taken_over = flights.landed, flights.taken_over

    async def _open(self) -> None:
        """Nothing to do, as the hub is open."""

    async def _close(self) -> None:
        self._closing = True
        self._act("", "close")

    async def _watch(self, hub: Hub) -> None:
        async for event in hub.events(StateChanged, CallFinished):
            now = self._history.now()
            if isinstance(event, StateChanged):
                self._history.add(Moved(now, event.server, event.old, event.new, event.reason))
            elif isinstance(event, CallFinished):
                call = (event.params or {}).get("arguments", {}).get("call", "")
                self._history.add(Reported(now, event.name, event.code, event.executed, call))

    async def _finale(self) -> None:
        """After a time of calm every server that is there answers a call that may not be repeated."""
        for server in self._servers.values():
            server.weather.calm()
        if self._log is not None:
            self._log.disk.calm()
        await asyncio.sleep(CALM)
        self._history.leftovers += resources.held(self._hub_)
        there = [name for name in self._servers if name not in self._gone]
        plans = [replace(_last_call(name, self._scenario, f"last-{name}"), sure=True) for name in there]
        await asyncio.gather(*map(self._call, plans))

    # -- callers ------------------------------------------------------------------------------------------------------

    async def _caller(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            await asyncio.sleep(step.pause)
            if self._closing:
                return
            await asyncio.gather(*(self._call(plan) for plan in step.plans))

    async def _call(self, plan: Plan) -> None:
        await asyncio.sleep(plan.waits)
        for _ in range(plan.turns):
            await asyncio.sleep(0)
        task = asyncio.create_task(self._make(plan))
        if plan.leaves_after is not None:
            asyncio.get_running_loop().call_later(plan.leaves_after, self._leave, plan, task)
        await asyncio.wait([task])

    def _leave(self, plan: Plan, task: asyncio.Task[None]) -> None:
        if not task.done():
            self._left.add(plan.call)
            task.cancel()

    async def _make(self, plan: Plan) -> None:
        if self._closing:
            return
        self._history.add(
            Begun(
                self._history.now(),
                plan.call,
                plan.server,
                plan.tool,
                plan.effect,
                plan.nonce,
                plan.limit,
                plan.attempts,
                plan.key,
                plan.shared,
                plan.sure,
            )
        )
        await self._ask(plan)

    def _arguments(self, plan: Plan) -> tuple[Json, Json]:
        """The arguments of a call and its `_meta`; one of them says which call it is.

        A call with its own `_meta` is not a flight. The arguments of calls with one key must be the same.
        """
        if plan.shared:
            return {"nonce": plan.nonce}, {}
        if self._history.front == "hub" or plan.key is not None:
            return {"nonce": plan.nonce}, {CALL_META: plan.call}
        return {"nonce": plan.nonce, "call": plan.call}, {}

    async def _ask(self, plan: Plan) -> None:
        arguments, meta = self._arguments(plan)
        try:
            reply = await self._hub_.call_tool(
                f"{plan.server}.{plan.tool}",
                arguments,
                timeout=plan.timeout,
                max_attempts=plan.max_attempts,
                idempotent=plan.idempotent,
                idempotency_key=plan.key,
                progress_callback=self._progress(plan) if plan.progress else None,
                meta=meta or None,
                raise_on_error=False,
            )
        except CallError as exc:
            phase = exc.phase if isinstance(exc, CallTimeout) else ""
            self._ended(plan, exc.code, exc.executed, exc.attempts, phase=phase, detail=exc.message)
        except asyncio.CancelledError:
            if plan.call in self._left:
                self._ended(plan, "cancelled", "unknown")
            else:
                self._ended(plan, "broken", "unknown", detail="CancelledError, though nobody cancelled it")
        except Exception as exc:
            self._ended(plan, "broken", "unknown", detail=repr(exc))
        else:
            self._answered(plan, reply)

    def _answered(self, plan: Plan, reply: CallResult) -> None:
        outcome = "tool_error" if reply.is_error else "ok"
        again = reply.replayed or reply.from_cache
        self._ended(plan, outcome, "yes", reply.attempts, nonce=reply.text, again=again)

    def _ended(self, plan: Plan, outcome: str, executed: Any, attempts: int = 0, **facts: Any) -> None:
        self._history.add(Ended(self._history.now(), plan.call, outcome, executed, attempts, **facts))

    def _progress(self, plan: Plan) -> Any:
        def on_progress(progress: float, total: float | None, message: str | None) -> None:
            self._history.add(Progress(self._history.now(), plan.call, message or ""))

        return on_progress

    # -- deeds --------------------------------------------------------------------------------------------------------

    async def _do(self, deed: Deed) -> None:
        await asyncio.sleep(deed.at)
        if self._closing or deed.server in self._gone:
            return
        self._act(deed.server, deed.what)
        try:
            await self._DEEDS[deed.what](self, deed)
        except (NotFound, ServerUnavailable) as exc:
            self._act(deed.server, f"{deed.what} refused: {exc.message}")  # another deed is running

    async def _restart(self, deed: Deed) -> None:
        self._hub_.restart_server(deed.server)

    async def _replace(self, deed: Deed) -> None:
        """Configure it differently, in a way that changes no promise."""
        definition = self._scenario.parts[deed.server].server
        await self._hub_._core.servers.replace(deed.server, replace(definition, extras={"changed": deed.at}))

    async def _crash(self, deed: Deed) -> None:
        self._servers[deed.server].crash()

    async def _upgrade(self, deed: Deed) -> None:
        if self._scenario.parts[deed.server].server.era == "auto":
            self._servers[deed.server].upgrade()

    async def _hang(self, deed: Deed) -> None:
        process = self._servers[deed.server].process
        if process is not None:
            process.hang()

    async def _change(self, deed: Deed) -> None:
        process = self._servers[deed.server].process
        if process is not None:
            process.announce("notifications/tools/list_changed")

    async def _remove(self, deed: Deed) -> None:
        """Take a server away, and bring it back after a while."""
        name = deed.server
        self._gone.add(name)
        await self._hub_.remove_server(name)
        await asyncio.sleep(5)
        if not self._closing:
            await self._hub_.add_server(name, self._scenario.parts[name].server)
            self._gone.remove(name)

    _DEEDS: Final = {
        "restart": _restart,
        "replace": _replace,
        "remove": _remove,
        "crash": _crash,
        "upgrade": _upgrade,
        "hang": _hang,
        "change": _change,
    }

    def _act(self, server: str, what: str) -> None:
        self._history.add(Act(self._history.now(), server, what))


class _GatewayStage(_Stage):
    """Clients of both eras before a gateway, which is shut down in an orderly way at some moment."""

    async def _open(self) -> None:
        self._door = FakeNetwork()
        asyncio.get_running_loop().create_server = self._door.create_server  # type: ignore[assignment,method-assign]
        self._gateway = Gateway(self._hub_._core, b"k" * 32, None)
        for walked in ("_connections", "_handling"):
            setattr(self._gateway.http_server, walked, OrderedSet())
        await self._gateway.listen("127.0.0.1", 0)
        dice = self._dice("clients")
        eras: tuple[Era, ...] = ("modern", "legacy")
        self._clients = [Client(era, dice, self._door) for era in eras for _ in range(2)]
        self._chosen = self._dice("chosen")

    async def _close(self) -> None:
        """Callers keep calling until they get no answers."""
        drain = self._scenario.drain
        assert drain is not None
        dice = self._dice("last")
        there = [name for name in self._servers if name not in self._gone]
        last = [_last_call(dice.choice(there), self._scenario, f"drain-{number}") for number in range(LAST)]
        calls = [asyncio.create_task(self._call(plan)) for plan in last]
        await asyncio.sleep(ticks(dice, 0, 32))
        self._act("", "close")
        skip = asyncio.Event()
        if drain.skips_after is not None:
            asyncio.get_running_loop().call_later(drain.skips_after, skip.set)
        await self._gateway.drain(skip, drain.delay, drain.patience)
        self._act("", "drained")
        self._closing = True
        await asyncio.gather(*calls)

    async def _ask(self, plan: Plan) -> None:
        client = self._chosen.choice(self._clients)
        arguments, meta = self._arguments(plan)
        if plan.timeout is not None:
            meta["toolway/timeoutMs"] = plan.timeout * 1000
        if plan.key is not None:
            meta["toolway/idempotencyKey"] = plan.key
        if plan.progress:
            meta["progressToken"] = plan.call

        def on_message(message: Json) -> None:
            if message["method"] == "notifications/progress" and plan.call not in self._left:
                params = message["params"]
                self._history.add(Progress(self._history.now(), params["progressToken"], params.get("message", "")))

        try:
            answer = await client.call(f"{plan.server}__{plan.tool}", arguments, meta, on_message)
        except asyncio.CancelledError:
            if plan.call in self._left:
                self._ended(plan, "cancelled", "unknown")
            else:
                self._ended(plan, "broken", "unknown", detail="CancelledError, though nobody cancelled it")
        except Exception as exc:
            self._ended(plan, "broken", "unknown", detail=repr(exc))
        else:
            attempts = plan.attempts if answer.nonce is not None else answer.attempts  # a result does not say how many
            self._ended(plan, answer.outcome, answer.executed, attempts, nonce=answer.nonce, detail=answer.detail)


class OrderedSet(MutableSet[Any]):
    """A set that is walked in the order in which it was filled."""

    def __init__(self, items: Iterable[Any] = ()) -> None:
        self._items = dict.fromkeys(items)

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def add(self, value: Any) -> None:
        self._items[value] = None

    def discard(self, value: Any) -> None:
        self._items.pop(value, None)


def _last_call(name: str, scenario: Scenario, call: str) -> Plan:
    definition = scenario.parts[name].server
    if scenario.drain is None:
        return Plan(call, name, "pay", call, effect_of(definition, "pay", False, None), 20.0, 5, idempotent=False)
    attempts = min(definition.retry.max_attempts, MOST_ATTEMPTS)  # a client cannot ask for less
    return Plan(call, name, "pay", call, effect_of(definition, "pay", None, None), 20.0 + STARTUP_WINDOW_S, attempts)


@contextmanager
def _complaints_of_the_hub(history: History) -> Iterator[None]:
    """Whatever the core logs as an error is a fault of the core."""

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            cause = record.exc_info[1] if record.exc_info else None
            if not isinstance(cause, StoreDown) and record.name != "toolway.audit":  # a disk that fails is reported
                history.complaints.append(f"logged: {record.getMessage()} {cause!r}")

    listener, logger = Listener(logging.ERROR), logging.getLogger("toolway")
    logger.addHandler(listener)
    try:
        yield
    finally:
        logger.removeHandler(listener)
