"""An upstream with a server that behaves as the weather is, and a hub that only keeps a record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from tests.upstream.scripted_link import MODERN, ScriptedLink
from toolway.config.spec import Server
from toolway.events import CatalogChanged, Kind, StateChanged
from toolway.events import Event as Fact
from toolway.model import Call, Certainty, Era, Json
from toolway.upstream.gate import StartGate
from toolway.upstream.link import Fault, Inbound, Link, Loss, Request, RpcError

PLAIN = Server(command="x")


class Nobody:
    """Answers nothing."""

    capabilities: ClassVar[Json] = {}

    async def answer(self, server: str, method: str, params: Json) -> Json:
        raise LookupError(method)


@dataclass
class Weather:
    """How the server behaves now."""

    opening: str = "well"  # or refused, or never
    answering: str = "well"  # or refused, or never
    closing: float = 0.0  # seconds
    roll: float = 0.5


class WeatherLink(ScriptedLink):
    def __init__(self, weather: Weather) -> None:
        super().__init__(self._respond)
        self._weather = weather
        self.calls: list[asyncio.Future[Json]] = []
        self._over = asyncio.Event()

    async def open(self, inbound: Inbound) -> None:
        await super().open(inbound)
        await self._in(self._weather.opening, Fault("connection refused", Certainty.C0, code="E-STDIO-SPAWN"))

    async def _respond(self, request: Request) -> Json:
        if request.method == "tools/call":
            request.attempt.certainty = Certainty.C2
            return await self._held()
        await self._in(self._weather.answering, RpcError(-32021, "no"))
        return MODERN | {"capabilities": {"tools": {}}} if request.method == "server/discover" else {"tools": []}

    async def _in(self, weather: str, refusal: Exception) -> None:
        if weather == "refused":
            raise refusal
        if weather == "never":
            await self._held()

    async def _held(self) -> Json:
        if self._over.is_set():
            raise Fault("the link has ended", Certainty.C0, code="E-STDIO-EXIT")
        answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self.calls.append(answer)
        try:
            return await answer
        finally:
            self.calls.remove(answer)

    def lose(self, loss: Loss) -> None:
        super().lose(loss)
        self._end()

    def _end(self) -> None:
        self._over.set()
        for answer in self.calls:
            if not answer.done():
                answer.set_exception(Fault("the link has ended", Certainty.C2, code="E-STDIO-EXIT"))

    async def close(self) -> None:
        await super().close()
        self._end()
        await asyncio.sleep(self._weather.closing)


class Around:
    """What an upstream needs from its hub."""

    def __init__(self, weather: Weather) -> None:
        self.weather = weather
        self.links: list[WeatherLink] = []
        self.moves: list[tuple[str, str]] = []
        self.asks = Nobody()
        self.gate = StartGate(1)

    @property
    def dice(self) -> Callable[[], float]:
        return lambda: self.weather.roll

    def open_link(self, name: str, server: Server, caller: str = "") -> Link:
        self.links.append(WeatherLink(self.weather))
        return self.links[-1]

    def emit(self, fact: Fact) -> None:
        if isinstance(fact, StateChanged):
            self.moves.append((fact.old, fact.new))

    def on_list(
        self, server: str, kind: Kind, items: list[Any], problems: list[str], era: Era
    ) -> CatalogChanged | None:
        return None

    def lacks_list(self, server: str, kind: Kind) -> bool:
        return False

    @property
    def open_links(self) -> list[WeatherLink]:
        return [link for link in self.links if not link.closed]


async def tell(inbound: Inbound, method: str, count: int) -> None:
    for _ in range(count):
        inbound.on_notification(method, {})


def a_call() -> Call:
    return Call("s.t", "tools/call", {"name": "t"}, server="s", name="t")
