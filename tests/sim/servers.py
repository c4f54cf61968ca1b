"""The far side: servers that answer, fail as their weather wants it, and log what they did.

A server lives as one process after the other. What a process works on ends with it; what it did stays done.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

import msgspec
from mcp_types import PROTOCOL_VERSION_META_KEY
from mcp_types.jsonrpc import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    UNSUPPORTED_PROTOCOL_VERSION,
)
from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION

from tests.sim.faults import CRASHES, SILENT, UNDONE, Fate, Later, Weather, ticks
from tests.sim.history import Done, History, Struck
from toolway.types import Certainty, Era, Json
from toolway.upstream.transport import JSONRPCError, TransportError

CALL_META: Final = "sim/call"  # under which a call says which one it is
KEY_META: Final = "sim/key"  # under which some servers take idempotency keys
OWN_ERROR: Final = 1234  # a code outside JSON-RPC's: the tool ran and said so
RETRY_AFTER: Final = (None, 0.25, 1.0, 3.0, 90.0)
FOREVER: Final = 100_000.0

Answer: TypeAlias = Json | JSONRPCError | TransportError


@dataclass(frozen=True, slots=True)
class Traits:
    """What a server is like."""

    transport: Literal["pipe", "http"]
    era: Era
    tools: tuple[Json, ...]  # as it lists them
    probe: Literal["refuses", "ignores", "dies"] = "refuses"  # what one of the handshake era does with the modern probe
    boot: int = 8  # ticks at most
    way: int = 4
    work: int = 32
    slow: float = 0.0  # how often a call takes seconds
    obedient: bool = True  # stops what was cancelled
    orderly: bool = False  # says -32603 only before it has done anything
    keys: bool = False  # knows idempotency keys
    asks: float = 0.0  # how often it asks for input before it works
    fails: float = 0.0  # how often a tool says that it failed


@dataclass(eq=False, slots=True)
class Exchange:
    """One request on its way through a server."""

    method: str
    params: Json
    fate: Fate
    sent: float
    answer: Callable[[Answer], None]  # on the near side
    notify: Callable[[str, Json], None]
    session: str | None = None

    @property
    def nonce(self) -> str:
        return str(self.params["arguments"]["nonce"])

    @property
    def call(self) -> str:
        return str(self._meta.get(CALL_META) or self.params["arguments"].get("call", ""))

    @property
    def _meta(self) -> Json:
        found = self.params.get("_meta")
        if isinstance(found, msgspec.Raw):  # encoded once for many calls
            found = msgspec.json.decode(found)
        return found if isinstance(found, dict) else {}

    def meta(self, name: str) -> Any:
        return self._meta.get(name)


@dataclass(slots=True)
class SimServer:
    name: str
    traits: Traits
    dice: random.Random
    weather: Weather
    history: History
    sessions: int = 0  # begun so far
    processes: int = 0
    done_keys: dict[str, Json] = field(default_factory=dict)
    process: Process | None = None  # the newest
    down_until: float = 0.0  # connections are refused

    def fate(self, method: str) -> Fate:
        fate = self.weather.fate(method)
        if fate is Fate.ERROR_DONE and self.traits.orderly:
            fate = Fate.ERROR_UNDONE
        if fate is not Fate.FINE:
            self.struck(fate)
        return fate

    def struck(self, what: str) -> None:
        self.history.add(Struck(self.history.now(), self.name, str(what)))

    def start(self, on_end: Callable[[], None] | None = None) -> Process:
        """A new process; a slow one, or one that ends before its first answer, if the weather is bad."""
        self.processes += 1
        boot = ticks(self.dice, 0, self.traits.boot)
        if self.weather.strikes(0.2):
            self.struck("slow start")
            boot = self.dice.choice((5.0, 45.0))
        self.process = process = Process(self, boot, on_end)
        if self.weather.strikes(0.2):
            self.struck("crash while starting")
            asyncio.get_running_loop().call_later(ticks(self.dice, 0, 64), process.end)
        return process

    def reach(self) -> Process | None:
        """The process behind an address, if one answers there."""
        now = self.history.now()
        if now < self.down_until:
            return None
        if self.process is None or not self.process.alive:
            return self.start()
        return self.process

    def upgrade(self) -> None:
        """A new version of it, which speaks only the modern era."""
        self.traits = replace(self.traits, era="modern")
        self.crash()

    def crash(self) -> None:
        """It ends by itself. One behind an address is back after a while."""
        if self.process is not None and self.process.alive:
            self.process.end()


class Process:
    """One life of a server."""

    def __init__(self, server: SimServer, boot: float, on_end: Callable[[], None] | None) -> None:
        self.server = server
        self.alive = True
        self.sessions: set[str] = set()
        self._loop = asyncio.get_running_loop()
        self._awake_at = self._loop.time() + boot
        self._on_end = on_end
        self._tell: Callable[[str, Json], None] | None = None
        self._work: dict[Exchange, asyncio.TimerHandle] = {}  # in the order of their arrival

    def take(self, exchange: Exchange) -> None:
        """A request has arrived."""
        if not self.alive:
            if self.server.traits.transport == "http":
                exchange.answer(_reset())
            return
        refusal = self._refusal(exchange)
        if refusal is not None:
            exchange.answer(refusal)
            return
        if exchange.fate is Fate.HANG:
            self.hang()
        self._tell = exchange.notify
        self._send_progress(exchange)
        dice, traits = self.server.dice, self.server.traits
        work = ticks(dice, 0, traits.work)
        if traits.slow and exchange.method == "tools/call" and dice.random() < traits.slow:
            work += ticks(dice, 64, 64 * 4)
        self._work[exchange] = self._loop.call_later(work, self._finish, exchange)

    def drop(self, exchange: Exchange) -> None:
        """Nobody waits for the answer any more."""
        if self.server.traits.obedient and exchange in self._work:
            self._work.pop(exchange).cancel()

    def hang(self) -> None:
        """Fall silent: a process until it is killed, what is behind an address for a while."""
        on_a_pipe = self.server.traits.transport == "pipe"
        self._awake_at = self._loop.time() + (FOREVER if on_a_pipe else ticks(self.server.dice, 64, 64 * 60))

    def announce(self, method: str) -> None:
        """Notify the latest client."""
        if self._tell is not None and self.alive:
            self._tell(method, {})

    def end(self) -> None:
        """Die, with all that is running."""
        if not self.alive:
            return
        self.alive = False
        lost, self._work = self._work, {}
        for handle in lost.values():
            handle.cancel()
        if self.server.traits.transport == "http":
            self.server.down_until = self._loop.time() + ticks(self.server.dice, 0, 64 * 8)
            for exchange in lost:
                exchange.answer(_reset())
        if self._on_end is not None:
            self._on_end()

    def _refusal(self, exchange: Exchange) -> TransportError | JSONRPCError | None:
        """The answer of a proxy in front of the server."""
        dice = self.server.dice
        match exchange.fate:
            case Fate.THROTTLED:
                return _refused(429, dice.choice(RETRY_AFTER))
            case Fate.UNAVAILABLE:
                return _refused(503, dice.choice(RETRY_AFTER[1:]))
            case Fate.FORGOTTEN:
                self.sessions.clear()
            case Fate.MISMATCH:
                return JSONRPCError(HEADER_MISMATCH, "the headers do not match the definition")
        keeps_sessions = self.server.traits.era == "legacy"
        if keeps_sessions and exchange.session is not None and exchange.session not in self.sessions:
            return TransportError(
                "the server no longer knows the session", Certainty.REJECTED, code="E-HTTP-SESSION", status=404
            )
        return None

    def _send_progress(self, exchange: Exchange) -> None:
        token = exchange.meta("progressToken")
        if token is not None:
            facts = {"progressToken": token, "progress": 1, "message": exchange.nonce}
            self._loop.call_later(ticks(self.server.dice, 0, 8), exchange.notify, "notifications/progress", facts)

    def _finish(self, exchange: Exchange) -> None:
        if self._loop.time() < self._awake_at:
            self._work[exchange] = self._loop.call_at(self._awake_at, self._finish, exchange)
            return
        del self._work[exchange]
        fate = exchange.fate
        answer = None if fate in UNDONE else self._perform(exchange)
        if fate in CRASHES:
            self.end()
        elif fate not in SILENT:
            self._send_back(exchange, _spoil(fate, answer))

    def _send_back(self, exchange: Exchange, answer: Answer | None) -> None:
        if answer is None:
            return
        dice, traits = self.server.dice, self.server.traits
        way = ticks(dice, 0, traits.way)
        if exchange.fate is Fate.LATE:
            way += ticks(dice, 64, 64 * 40)
        Later(dice, way, lambda: exchange.answer(answer))
        if exchange.fate is Fate.TWICE:
            self._loop.call_later(way + ticks(dice, 0, 64), exchange.answer, answer)

    def _hang_up(self, exchange: Exchange) -> None:
        """The end of a subscription."""
        del self._work[exchange]
        exchange.answer({})

    # -- what it knows ------------------------------------------------------------------------------------------------

    def _perform(self, exchange: Exchange) -> Answer | None:
        try:
            if self.server.traits.era == "modern":
                return self._modern(exchange)
            return self._handshake(exchange)
        except JSONRPCError as exc:
            return exc

    def _modern(self, exchange: Exchange) -> Answer | None:
        if exchange.method in ("initialize", "ping"):
            raise JSONRPCError(METHOD_NOT_FOUND, "not in this era")
        if exchange.meta(PROTOCOL_VERSION_META_KEY) != LATEST_MODERN_VERSION:
            supported = {"supported": [LATEST_MODERN_VERSION]}
            raise JSONRPCError(UNSUPPORTED_PROTOCOL_VERSION, "only the modern era is spoken here", supported)
        if exchange.method == "server/discover":
            return {"supportedVersions": [LATEST_MODERN_VERSION], "capabilities": {"tools": {"listChanged": True}}}
        if exchange.method == "subscriptions/listen":
            self._work[exchange] = self._loop.call_later(ticks(self.server.dice, 64, 64 * 300), self._hang_up, exchange)
            return None
        return self._either(exchange)

    def _handshake(self, exchange: Exchange) -> Answer | None:
        if exchange.method == "server/discover":
            self._at_the_probe()
            return None
        if exchange.method == "initialize":
            self.server.sessions += 1
            session = f"{self.server.name}/{self.server.sessions}"
            self.sessions.add(session)
            return {"protocolVersion": LATEST_HANDSHAKE_VERSION, "capabilities": {"tools": {}}, "session": session}
        if exchange.method == "ping":
            return {}
        if not self.sessions or (self.server.traits.transport == "http" and exchange.session is None):
            raise JSONRPCError(INVALID_REQUEST, "no session")
        return self._either(exchange)

    def _at_the_probe(self) -> None:
        match self.server.traits.probe:
            case "refuses":
                raise JSONRPCError(METHOD_NOT_FOUND, "what is server/discover?")
            case "dies":
                self.end()

    def _either(self, exchange: Exchange) -> Answer:
        if exchange.method == "tools/list":
            return self._list(exchange)
        if exchange.method == "tools/call":
            return self._call(exchange)
        raise JSONRPCError(METHOD_NOT_FOUND, f"what is {exchange.method}?")

    def _list(self, exchange: Exchange) -> Json:
        half = len(self.server.traits.tools) // 2
        if exchange.params.get("cursor") is None:
            return {"tools": list(self.server.traits.tools[:half]), "nextCursor": "2"}
        return {"tools": list(self.server.traits.tools[half:])}

    def _call(self, exchange: Exchange) -> Answer:
        server, nonce = self.server, exchange.nonce
        if "inputResponses" not in exchange.params and server.dice.random() < server.traits.asks:
            ask = {"method": "elicitation/create", "params": {"message": nonce}}
            return {"resultType": "input_required", "inputRequests": {"a": ask}, "requestState": nonce}
        key = exchange.meta(KEY_META) if server.traits.keys else None
        if key is not None and key in server.done_keys:
            return server.done_keys[key]
        server.history.add(Done(self._loop.time(), server.name, nonce, exchange.call, exchange.sent))
        failed = server.dice.random() < server.traits.fails
        if failed and server.dice.random() < 0.3:
            return JSONRPCError(OWN_ERROR, "the tool has its own error code")
        result: Json = {"content": [{"type": "text", "text": nonce}], "isError": failed}
        if key is not None:
            server.done_keys[key] = result
        return result


def _spoil(fate: Fate, answer: Answer | None) -> Answer | None:
    match fate:
        case Fate.LOST_UNDONE | Fate.LOST_DONE:
            return _reset()
        case Fate.ERROR_UNDONE | Fate.ERROR_DONE:
            return JSONRPCError(INTERNAL_ERROR, "internal error")
        case Fate.SPOILED_UNDONE | Fate.SPOILED_DONE:
            return TransportError("the server's response is invalid", Certainty.UNKNOWN, code="E-ANSWER")
    return answer


def _reset() -> TransportError:
    return TransportError("the connection was reset", Certainty.UNKNOWN, code="E-HTTP-CUT")


def _refused(status: int, retry_after: float | None) -> TransportError:
    reason = f"the server limits the request rate ({status})"
    return TransportError(reason, Certainty.REJECTED, code="E-HTTP-STATUS", status=status, retry_after=retry_after)
