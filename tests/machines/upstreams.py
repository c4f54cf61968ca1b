"""An upstream with a server that behaves as the weather is, and a hub that only keeps a record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from tests.upstream.scripted_transport import MODERN, ScriptedLink
from toolway.config.schema import Server
from toolway.events import CatalogChanged, ListKind, StateChanged
from toolway.events import Event as Fact
from toolway.types import Call, Certainty, Era, Json
from toolway.upstream.start_policy import StartLimiter
from toolway.upstream.transport import Disconnect, InboundHandler, JSONRPCError, Request, Transport, TransportError

PLAIN = Server(command="x")


class RejectingCallbacks:
    """Answers nothing."""

    capabilities: ClassVar[Json] = {}

    async def handle_request(self, server: str, method: str, params: Json) -> Json:
        raise LookupError(method)


@dataclass
class Weather:
    """How the server behaves now."""

    opening: str = "well"  # or refused, or never
    answering: str = "well"  # or refused, or never
    closing: float = 0.0  # seconds
    roll: float = 0.5


class SimulatedLink(ScriptedLink):
    def __init__(self, weather: Weather) -> None:
        super().__init__(self._respond)
        self._weather = weather
        self.calls: list[asyncio.Future[Json]] = []
        self._over = asyncio.Event()

    async def open(self, inbound: InboundHandler) -> None:
        await super().open(inbound)
        await self._in(
            self._weather.opening, TransportError("connection refused", Certainty.NOT_SENT, code="E-STDIO-SPAWN")
        )

    async def _respond(self, request: Request) -> Json:
        if request.method == "tools/call":
            request.call_state.certainty = Certainty.UNKNOWN
            return await self._held()
        await self._in(self._weather.answering, JSONRPCError(-32021, "no"))
        return MODERN | {"capabilities": {"tools": {}}} if request.method == "server/discover" else {"tools": []}

    async def _in(self, weather: str, refusal: Exception) -> None:
        if weather == "refused":
            raise refusal
        if weather == "never":
            await self._held()

    async def _held(self) -> Json:
        if self._over.is_set():
            raise TransportError("the link has ended", Certainty.NOT_SENT, code="E-STDIO-EXIT")
        answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self.calls.append(answer)
        try:
            return await answer
        finally:
            self.calls.remove(answer)

    def lose(self, loss: Disconnect) -> None:
        super().lose(loss)
        self._end()

    def _end(self) -> None:
        self._over.set()
        for answer in self.calls:
            if not answer.done():
                answer.set_exception(TransportError("the link has ended", Certainty.UNKNOWN, code="E-STDIO-EXIT"))

    async def close(self) -> None:
        await super().close()
        self._end()
        await asyncio.sleep(self._weather.closing)


class FakeHub:
    """What an upstream needs from its hub."""

    def __init__(self, weather: Weather) -> None:
        self.weather = weather
        self.links: list[SimulatedLink] = []
        self.moves: list[tuple[str, str]] = []
        self.callbacks = RejectingCallbacks()
        self.start_limiter = StartLimiter(1)

    @property
    def random(self) -> Callable[[], float]:
        return lambda: self.weather.roll

    def open_transport(self, name: str, server: Server, caller: str = "") -> Transport:
        self.links.append(SimulatedLink(self.weather))
        return self.links[-1]

    def emit(self, event: Fact) -> None:
        if isinstance(event, StateChanged):
            self.moves.append((event.old, event.new))

    def update_list(
        self, server: str, kind: ListKind, items: list[Any], problems: list[str], era: Era
    ) -> CatalogChanged | None:
        return None

    def pinned_digests(self, server: str, tools: list[Any]) -> dict[str, str]:
        return {}

    def is_pinned(self, server: str, tool: str, digest: str) -> bool:
        return True

    def is_list_missing(self, server: str, kind: ListKind) -> bool:
        return False

    def has_caller_lists(self, server: str) -> bool:
        return False

    def update_caller_list(
        self, server: str, caller: str, kind: ListKind, items: list[Any], problems: list[str], era: Era
    ) -> CatalogChanged | None:
        return None

    @property
    def open_links(self) -> list[SimulatedLink]:
        return [link for link in self.links if not link.closed]


async def send_notifications(inbound: InboundHandler, method: str, count: int) -> None:
    for _ in range(count):
        inbound.on_notification(method, {})


def a_call() -> Call:
    return Call("s.t", "tools/call", {"name": "t"}, server="s", name="t")
