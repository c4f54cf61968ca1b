"""A server behind a URL that is restarted under load is back for every caller soon after its port is."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest

from tests.sim.faults import Fate, Weather, ticks
from tests.sim.history import History, Sent
from tests.sim.loop import VirtualLoop
from tests.sim.loop import run as run_loop
from tests.sim.servers import SimServer, Traits
from tests.sim.transports import link_to
from toolway.config.schema import Server
from toolway.errors import CallError
from toolway.hub.core import HubCore
from toolway.hub.environment import HubEnvironment
from toolway.hub.hub import Hub
from toolway.hub.plan import SWITCH
from toolway.types import Era, Json

CLIENTS: Final = 20
RESTARTS: Final = 5
BACK_WITHIN_S: Final = 2.0
SETTLE_S: Final = 4.0  # after which all clients must be served again
TOOLS: Final[tuple[Json, ...]] = tuple(
    {"name": name, "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": name == "look"}}
    for name in ("look", "pay")
)


class Restarts:
    """Twenty clients that call one server, which is killed again and again, on a virtual clock.

    `late` are the seconds between the return of its port and the last call that was refused, for each restart.
    """

    def __init__(self, seed: int, era: Era, downtimes: tuple[float, ...]) -> None:
        self.dice = random.Random(seed)
        self.loop = VirtualLoop(1000.0)
        self.history = History(self.loop.time, "hub")
        traits = Traits("http", era, TOOLS, boot=4, way=2, work=16)
        self.server = SimServer("s", traits, self.dice, Weather(self.dice, 0.0, (Fate.FINE,)), self.history)
        self.downtimes = downtimes
        self.refused: list[float] = []
        self.succeeded: list[float] = []
        self.late: list[float] = []
        self.calls = 0

    def run(self, play: Callable[[Hub], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            async with self._hub() as hub:
                await hub.wait_ready()
                await play(hub)

        run_loop(main(), self.loop)
        assert self.loop.complaints == []

    def _hub(self) -> Hub:
        environment = HubEnvironment(
            wall_clock=lambda: 0.0,
            random=self.dice.random,
            create_transport=lambda *_: link_to(self.server),
            environ={},
            cores=2,
            stall_threshold=0,
        )
        servers = {"s": Server(url="http://127.0.0.1:9/mcp")}
        return Hub._from_core(HubCore(servers, catalog_storage=None, environment=environment))

    async def restart(self, hub: Hub) -> None:
        clients = [asyncio.create_task(self._client(hub, number)) for number in range(CLIENTS)]
        for downtime in self.downtimes:
            await asyncio.sleep(ticks(self.dice, 0, 64))
            self.server.crash()
            back = self.server.down_until = self.loop.time() + downtime
            await asyncio.sleep(downtime + SETTLE_S)
            self.late.append(max((at for at in self.refused if at >= back), default=back) - back)
            assert max(self.succeeded) > self.loop.time() - 1.0, hub.status()["s"]
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)

    async def _client(self, hub: Hub, number: int) -> None:
        tool = "look" if number % 2 else "pay"
        while True:
            self.calls += 1
            try:
                await hub.call_tool(f"s.{tool}", {"nonce": f"{number}/{self.calls}", "call": ""})
                self.succeeded.append(self.loop.time())
            except CallError as exc:
                if exc.executed == "no":
                    self.refused.append(self.loop.time())
            await asyncio.sleep(ticks(self.dice, 4, 32))


@pytest.mark.attack("A2-D5")
@pytest.mark.parametrize(
    ("downtime", "era", "plans"),
    [
        (0.14, "modern", "on"),
        (6.0, "modern", "on"),
        (20.0, "legacy", "on"),
        (None, "legacy", "on"),
        (None, "modern", "off"),
    ],
)
def test_calls_succeed_two_seconds_after_each_restart(
    downtime: float | None, era: Era, plans: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, plans)
    dice = random.Random(7)
    downtimes = tuple(dice.choice((0.14, 0.7, 3.0, 12.0)) if downtime is None else downtime for _ in range(RESTARTS))
    run = Restarts(1, era, downtimes)
    run.run(run.restart)
    assert len(run.late) == RESTARTS
    assert max(run.late) <= BACK_WITHIN_S, run.late


def test_server_answering_only_probes_is_called_less_and_less() -> None:
    run = Restarts(1, "modern", ())

    async def play(hub: Hub) -> None:
        run.server.weather = _LosesCalls(run.dice, 0.0, (Fate.FINE,))
        clients = [asyncio.create_task(run._client(hub, number)) for number in range(CLIENTS)]
        await asyncio.sleep(300.0)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)

    run.run(play)
    assert run.succeeded == []
    assert 5 <= len(list(run.history.of(Sent))) < 25 * CLIENTS  # of thousands of calls
    assert run.calls > 5_000


class _LosesCalls(Weather):
    def fate(self, method: str) -> Fate:
        return Fate.LOST_UNDONE if method == "tools/call" else Fate.FINE
