"""A bench for faults: a hub with bad servers and one healthy neighbour, and the invariants that every fault must keep.

    async with lab({"bad": fake_server("exit_mid_call")}) as bench:
        outcome = await bench.call("bad.bad", {"effect": True})
        outcome.expect(OutcomeUnknown, "unknown")

Fakes write their effects to the file that the bench reads. A fake HTTP or WebSocket server in this process is given as
it is, or as `Served(fake, {"timeout": …})` with more for its entry; the bench starts and stops it. `server(…)` is a
fake process with settings, `first_time(…)` one that is another after its first end. When the block ends:

    I1  each call made through `bench.call` had one outcome, within its deadline and a second
    I2  each answer carries the nonce of its call
    I3  an UNSAFE effect happened at most once, and once if its call was answered
    I4  no effect that happened was reported as executed="no"
    I5  the neighbour had no error, and its p99 grew by 50 ms at most
    I6  tasks, descriptors and processes are what they were, within 10 s after the hub was closed
    I7  memory grew by no more than `memory` MiB at any time
"""

from __future__ import annotations

import asyncio
import gc
import random
import shlex
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.faults.effects_log import GRACE, Outcome, effects_in, misdelivered, out_of_time, wrong_effects
from tests.faults.footprint import Footprint, back_to, give_back_memory, kept_waiting, rss
from tests.faults.neighbour import ALLOWED, NAME, Neighbour
from tests.faults.results import results
from toolway import CallError, Hub, Server, testing
from toolway.config.server_entry import parse_entry
from toolway.hub.core import HubCore
from toolway.hub.environment import HubEnvironment
from toolway.testing import FakeHttp, FakeWebSocket, fake_server
from toolway.upstream.transport import TransportInfo

SETTLE = 15.0  # seconds for the servers to start, before the baseline is taken
LEAVE = 10.0  # seconds after which nothing may be left of a hub
MEMORY = 32.0  # MiB: what may be buffered for one upstream
ERAS = pytest.mark.parametrize("era", ["modern", "legacy"])
WAYS = pytest.mark.parametrize("era", ["modern", "legacy", "sse"])  # and the transport of 2024-11-05

_FAKES = ("stdio_main.py", "odd_server.py")  # programs that know --effects
_dice = random.Random(0)


def begin(test: str, seed: int) -> None:
    """A test begins: its nonces and the hub's waits follow from its seed."""
    _dice.seed(f"{test} {seed}")
    # Else the collector walks all that pytest keeps, now and then, and the hub stands still for a tenth of a second.
    gc.collect()
    gc.freeze()
    give_back_memory()


@dataclass(frozen=True)
class Served:
    """A fake HTTP or WebSocket server, and what its entry has next to the url."""

    fake: FakeHttp | FakeWebSocket
    entry: Mapping[str, Any] = field(default_factory=dict)


class Bench:
    """What a test works with."""

    def __init__(self, hub: Hub, neighbour: Neighbour, effects: Path) -> None:
        self.hub = hub
        self.neighbour = neighbour
        self.effects = effects
        self.calls: list[Outcome] = []
        self._tasks: set[asyncio.Task[Outcome]] = set()

    async def call(
        self, tool: str, arguments: Mapping[str, Any] | None = None, *, echoes: bool = True, **options: Any
    ) -> Outcome:
        """Call a tool with its own nonce, and keep book of it. `echoes=False` where no nonce can come back."""
        outcome = self._open(tool, dict(arguments or {}), echoes, options)
        given = {**(arguments or {}), "nonce": outcome.nonce}
        began = time.monotonic()
        try:
            async with asyncio.timeout(outcome.limit + GRACE):
                outcome.reply = await self.hub.call_tool(tool, given, raise_on_error=False, **options)
        except CallError as exc:
            outcome.error = exc
        except TimeoutError:
            return outcome  # it has not ended; the verdict says so
        except asyncio.CancelledError:
            outcome.ended = outcome.cancelled = True
            raise
        finally:
            outcome.seconds = time.monotonic() - began
        outcome.ended = True
        return outcome

    def start(self, tool: str, arguments: Mapping[str, Any] | None = None, **options: Any) -> asyncio.Task[Outcome]:
        """The same, without waiting for it."""
        task = asyncio.get_running_loop().create_task(self.call(tool, arguments, **options))
        self._tasks.add(task)
        return task

    async def add(self, name: str, server: Any) -> None:
        """Add a server in the middle of the test, for faults at the start."""
        await self.hub.add_server(name, _with_effects(server, self.effects))

    def link(self, name: str) -> TransportInfo:
        """What the link to a server knows of itself."""
        session = self.hub._core._upstreams.upstreams[name].session
        assert session is not None
        return session.transport.info()

    def pid(self, name: str) -> int:
        """The process of a server that runs."""
        pid = self.hub.status()[name].pid
        assert pid is not None
        return pid

    def reaper_pid(self) -> int:
        """The inner process of the reaper, which is the parent of the servers."""
        outer = self.hub._core.spawner._reaper
        assert outer is not None
        return int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()[0])

    def happened(self, outcome: Outcome) -> int:
        """How often the effect of a call has happened so far."""
        return effects_in(self.effects)[outcome.nonce]

    async def until(self, condition: Callable[[], object], seconds: float) -> float:
        """Wait for `condition()`; the seconds it took."""
        return await until(condition, seconds)

    async def end(self) -> None:
        """Wait for all calls, and for enough of the neighbour's."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.neighbour.end()

    async def give_up(self) -> None:
        """The test has failed already."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.neighbour.stop()

    def _open(self, tool: str, arguments: dict[str, Any], echoes: bool, options: Mapping[str, Any]) -> Outcome:
        server, _, name = tool.partition(".")
        limit = options.get("timeout") or self.hub._core.servers.entries[server].timeout.total
        known = {each.name: each for each in self.hub.known_tools(server=server)}
        read = name in known and known[name].annotations.get("readOnlyHint") is True
        outcome = Outcome(
            tool,
            arguments.get("nonce") or f"{len(self.calls)}-{_dice.getrandbits(64):x}",
            unsafe=not read and not options.get("idempotent"),
            has_effect=name == "counter" or bool(arguments.get("effect")),
            limit=limit,
            echoes=echoes,
        )
        self.calls.append(outcome)
        return outcome


@asynccontextmanager
async def lab(
    servers: Mapping[str, Any],
    *,
    memory: float = MEMORY,
    calm: bool = True,
    effects: Path | None = None,
    **hub_options: Any,
) -> AsyncIterator[Bench]:
    """A bench with these servers. `calm=False` where the fault is of a kind that the neighbour must feel as a delay;
    `effects` is the file of effects, for servers that were started before."""
    before = Footprint.now()
    hub_options.setdefault("environment", HubEnvironment(random=random.Random(_dice.getrandbits(64)).random))
    with tempfile.TemporaryDirectory() as folder:
        effects = effects or Path(folder) / "effects"
        async with AsyncExitStack() as stack:
            entries = {name: await _entry(server, effects, stack) for name, server in servers.items()}
            hub = Hub._from_core(HubCore({NAME: fake_server(), **entries}, catalog_storage=None, **hub_options))
            await stack.enter_async_context(hub)
            await hub.wait_ready(NAME)
            await hub._core.servers.wait_first_starts(SETTLE)
            bench = Bench(hub, Neighbour(hub), effects)
            await bench.neighbour.begin()
            weight = rss()
            try:
                yield bench
            except BaseException:
                await bench.give_up()
                raise
            await bench.end()
        left = await back_to(before, LEAVE)
        grown = bench.neighbour.memory - weight
        _judge(bench, calm, left, grown, memory)


def _judge(bench: Bench, calm: bool, left: str, grown: float, memory: float) -> None:
    calls, neighbour = bench.calls, bench.neighbour
    wrong = [*out_of_time(calls), *misdelivered(calls), *wrong_effects(calls, effects_in(bench.effects))]
    wrong += [f"I5: the neighbour failed: {error}" for error in neighbour.errors[:3]]
    if calm and neighbour.slowness() > neighbour.baseline + ALLOWED:
        slow, usual = neighbour.slowness() * 1000, neighbour.baseline * 1000
        wrong.append(f"I5: the neighbour's p99 went from {usual:.1f} to {slow:.1f} ms")
    if left:
        wrong.append(f"I6: left after {LEAVE:g} s: {left}")
    if grown > memory:
        wrong.append(f"I7: {grown:.1f} MiB more, {memory:g} allowed")
    results.checked(*_checked(calls))
    assert not wrong, "\n".join(wrong)


def _checked(calls: list[Outcome]) -> list[str]:
    """The invariants that could have failed."""
    names = ["I5", "I6", "I7"]
    if calls:
        names.append("I1")
    if any(call.ok and call.echoes for call in calls):
        names.append("I2")
    if any(call.has_effect and call.unsafe for call in calls):
        names.append("I3")
    if any(call.has_effect for call in calls):
        names.append("I4")
    return names


async def until(condition: Callable[[], object], seconds: float) -> float:
    """Wait for `condition()`; the seconds it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"not within {seconds:g} s"
        await asyncio.sleep(0.005)
    return time.monotonic() - began


async def _entry(server: Any, effects: Path, stack: AsyncExitStack) -> Any:
    served = Served(server) if isinstance(server, FakeHttp | FakeWebSocket) else server
    if not isinstance(served, Served):
        return _with_effects(server, effects)
    served.fake.server.effects_path = str(effects)
    context: AbstractAsyncContextManager[FakeHttp | FakeWebSocket] = served.fake
    await stack.enter_async_context(context)
    return {"url": served.fake.url, **served.entry}


def _with_effects(server: Any, effects: Path) -> Any:
    """A fake's entry, with the file for its effects."""
    made = parse_entry(server) if isinstance(server, dict) else server
    if not isinstance(made, Server) or not any(word.endswith(_FAKES) for word in made.args):
        return server
    return replace(made, args=(*made.args, "--effects", str(effects)))


def server(*modes: str, era: str = "both", **settings: Any) -> Server:
    """A fake process with settings, such as `restart=Restart(…)`."""
    return replace(parse_entry(fake_server(*modes, era=era)), **settings)


def odd_server(*modes: str, era: str = "both", **settings: Any) -> Server:
    """The same, with the faults of `odd_server.py` too."""
    plain = server(*modes, era=era)
    package = str(Path(testing.__file__).parents[1])
    # The word that ends in stdio_main.py is where the fake's own options begin.
    args = ["-I", "-S", str(Path(__file__).with_name("odd_server.py")), package, *plain.args[3:]]
    return replace(plain, args=tuple(args), **settings)


def first_time(folder: Path, *modes: str, era: str = "both", **settings: Any) -> Server:
    """A fake process that misbehaves in its first life only. `folder` is where it remembers."""
    bad, good = (server(*each, era=era) for each in (modes, ()))
    flag = folder / f"first-{_dice.getrandbits(64):x}"
    script = f'mkdir {flag} 2>/dev/null && exec {_words(bad)} "$@"; exec {_words(good)} "$@"'
    return Server(command="/bin/sh", args=("-c", script, "stdio_main.py"), **settings)


def _words(server: Server) -> str:
    assert server.command is not None
    return shlex.join([server.command, *server.args])


class Stopwatch:
    """Seconds since it was made, without those for which we (and `pids`) were ready to run and got no core."""

    def __init__(self, *pids: int) -> None:
        self._pids = pids
        self._began = time.monotonic()
        self._waited = kept_waiting("self", *pids)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began - (kept_waiting("self", *self._pids) - self._waited)
