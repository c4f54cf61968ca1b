"""A plan that is valid says what a new one would say, whatever has changed since it was made."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from tests.sim.faults import Weather, ticks
from tests.sim.history import History
from tests.sim.loop import VirtualLoop
from tests.sim.loop import run as run_loop
from tests.sim.servers import SimServer, Traits
from tests.sim.transports import link_to
from toolway.config.schema import RetryPolicy, Server, Timeout, ToolSettings
from toolway.events import CallFinished
from toolway.hub.core import HubCore
from toolway.hub.environment import HubEnvironment
from toolway.hub.plan import Plan, Planner
from toolway.types import Effect, Json

SEEDS: Final = 6
STEPS: Final = 120
NAMES: Final = ("pay", "look", "peek")
CALLERS: Final = ("", "one", "two")
SCHEMAS: Final[tuple[Json, ...]] = (
    {"type": "object"},
    {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    {"type": "object", "properties": {"tag": {"type": "string", "x-mcp-header": "Tag"}}},
)


class Sink:
    """An observer of calls."""

    wants_attempts = False

    def on_event(self, event: object) -> None:
        """Ignore it."""

    def on_call(self, event: CallFinished) -> None:
        """Ignore it."""


class World:
    """A hub before simulated servers, and all that may change between two calls."""

    def __init__(self, seed: int) -> None:
        self.dice = dice = random.Random(seed)
        self.history = History(asyncio.get_running_loop().time, "hub")
        self.servers = {name: self._server(name) for name in ("a", "b", "c")}
        environment = HubEnvironment(
            wall_clock=lambda: 0.0,
            random=dice.random,
            create_transport=lambda name, *_: link_to(self.servers[name]),
            environ={},
            cores=2,
            stall_threshold=0,
        )
        definitions = {name: self._definition(name) for name in self.servers}
        self.hub = HubCore(definitions, catalog_storage=None, environment=environment)
        self.sinks: list[Sink] = []
        self.plans: list[Plan] = []
        self.counts: Counter[str] = Counter()

    @property
    def planner(self) -> Planner:
        return self.hub.calls.planner

    def _server(self, name: str) -> SimServer:
        dice = self.dice
        traits = Traits(dice.choice(("pipe", "http")), dice.choice(("modern", "legacy")), self._tools(), work=4)
        return SimServer(name, traits, dice, Weather(dice, 0.0, ()), self.history)

    def _tools(self) -> tuple[Json, ...]:
        dice = self.dice
        kept = [name for name in NAMES if dice.random() < 0.9]
        hints: tuple[Json, ...] = ({}, {"readOnlyHint": True}, {"idempotentHint": True})
        return tuple(
            {"name": name, "inputSchema": dice.choice((*SCHEMAS[:2],) * 3 + SCHEMAS), "annotations": dice.choice(hints)}
            for name in kept
        )

    def _definition(self, name: str) -> Server:
        dice, is_pipe = self.dice, self.servers[name].traits.transport == "pipe"
        settings = ToolSettings(
            effect=dice.choice((None, None, Effect.READ, Effect.UNSAFE)),
            timeout=dice.choice((None, None, 2.0)),
            cache=dice.choice((0.0, 0.0, 2.0)),
        )
        return Server(
            command="sim" if is_pipe else None,
            url=None if is_pipe else "http://sim.invalid/",
            idle_timeout=dice.choice((0.0, 0.0, 2.0)),
            timeout=Timeout(total=dice.choice((2.0, 20.0, 20.0)), start=30.0),
            retry=RetryPolicy(max_attempts=2, attempt_timeout=dice.choice((None, None, None, 1.0))),
            trusted=dice.random() < 0.2,
            validate_arguments=dice.random() < 0.8,
            share_connection=dice.random() < 0.2,
            tools={dice.choice(NAMES): settings},
        )

    # -- changes ------------------------------------------------------------------------------------------------------

    async def change(self) -> None:
        name = self.dice.choice(tuple(self.servers))
        await self.dice.choice(self._CHANGES)(self, name)
        await asyncio.sleep(ticks(self.dice, 0, self.dice.choice((0, 4, 64, 64 * 4))))

    async def _replace(self, name: str) -> None:
        if name in self.hub.servers.entries:
            await self.hub.servers.replace(name, self._definition(name))

    async def _remove(self, name: str) -> None:
        if name in self.hub.servers.entries:
            await self.hub.servers.remove(name)
        else:
            await self.hub.servers.add(name, self._definition(name))

    async def _restart(self, name: str) -> None:
        if name in self.hub.servers.entries:
            self.hub.servers.restart(name)

    async def _crash(self, name: str) -> None:
        self.servers[name].crash()

    async def _upgrade(self, name: str) -> None:
        self.servers[name].upgrade()

    async def _list_tools_anew(self, name: str) -> None:
        server = self.servers[name]
        server.traits = replace(server.traits, tools=self._tools())
        upstream = self.hub._upstreams.upstreams.get(name)
        if upstream is not None:
            upstream.refresh("tools")
        await asyncio.sleep(2)

    async def _deny(self, name: str) -> None:
        if name in self.hub.servers.entries:
            denied = self.dice.choice((None, (), (self.dice.choice(NAMES),)))
            self.hub.servers.set_denied_tools(name, denied)

    async def _observe(self, name: str) -> None:
        if self.sinks and self.dice.random() < 0.5:
            self.hub.instrumentation.remove_sink(self.sinks.pop())
        else:
            self.sinks.append(Sink())
            self.hub.instrumentation.add_sink(self.sinks[-1])

    async def _require_logins(self, name: str) -> None:
        known = self.hub._auth.per_user_servers
        (known.discard if name in known else known.add)(name)

    async def _break(self, name: str) -> None:
        if name in self.hub.servers.entries:
            self.dice.choice((self.hub.servers.trip_breaker, self.hub.servers.reset_breaker))(name)

    async def _connect(self, name: str) -> None:
        """Start the connection of a caller, as the chain does before its first call."""
        upstreams = self.hub._upstreams
        if name in upstreams.servers and name in upstreams.upstreams:
            upstream = upstreams.per_caller.get_or_start(name, upstreams.servers[name], self.dice.choice(CALLERS[1:]))
            upstream._supervisor.start_requested.set()
            await asyncio.sleep(1)

    async def _evict(self, name: str) -> None:
        removed = self.hub._upstreams.per_caller.remove(name)
        await asyncio.gather(*(upstream.stop() for upstream in removed))

    async def _call(self, name: str) -> None:
        """Make a tool known as one that sends no requests, and start a server that is idle."""
        if name in self.hub._upstreams.upstreams:
            self.hub.servers.ensure_started(name)
            await asyncio.sleep(1)

    _CHANGES: Final[tuple[Callable[[World, str], Any], ...]] = (
        *(_replace, _remove, _restart, _crash, _upgrade, _list_tools_anew, _deny, _observe, _require_logins, _break),
        *(_connect, _evict, _call, _connect, _call),
    )

    # -- plans --------------------------------------------------------------------------------------------------------

    def find_plans(self) -> None:
        for tool in self.hub.lists.catalog.tools():
            for caller in CALLERS:
                plan = self.planner.find(tool, caller)
                if plan is not None and plan not in self.plans:
                    self.plans.append(plan)

    def compare_plans(self) -> None:
        """Every plan that was ever made is no longer valid, or is what a new one would be."""
        kept = []
        for plan in self.plans:
            if not plan.is_valid():
                self.counts["dropped"] += 1
                continue
            tool = self.hub.lists.catalog.find_tool(plan.tool.server, plan.tool.name)
            fresh = self.planner._create(tool, plan.caller) if tool is not None else None
            assert fresh is not None, f"no plan would be made for {plan.target} of {plan.caller!r} now"
            assert content_of(plan) == content_of(fresh)
            kept.append(plan)
            self.counts["legacy" if plan.is_legacy else "modern"] += 1
            self.counts["own connection"] += plan._is_per_caller
        self.plans = kept


def content_of(plan: Plan) -> tuple[object, ...]:
    """All that a flight takes from a plan. Objects with their own state are the same objects."""
    policy = plan.policy
    same = (plan.upstream, plan.session, plan.limiter, plan.budget, plan.server_breaker, plan.tool_breaker)
    return (
        *map(id, same),
        *(plan.tool, plan.caller, plan.target, plan.is_legacy, plan.validator is None),
        *(policy.server, policy.settings, policy.timeout, policy.retry, policy.default_effect, policy.tool_to_check),
    )


async def play(seed: int) -> Counter[str]:
    world = World(seed)
    async with world.hub:
        await asyncio.sleep(3)
        for _ in range(STEPS):
            world.find_plans()
            await world.change()
            world.compare_plans()
    world.compare_plans()
    assert world.plans == []  # none is valid after the hub is closed
    return world.counts


@pytest.mark.fast_path
def test_valid_plan_equals_a_new_plan() -> None:
    counts: Counter[str] = sum((run_loop(play(seed), VirtualLoop()) for seed in range(SEEDS)), Counter())
    assert all(counts[kind] > 100 for kind in ("legacy", "modern", "dropped")), counts
    assert counts["own connection"] > 20, counts
