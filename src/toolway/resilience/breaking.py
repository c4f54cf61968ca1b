"""The breaker stage: one breaker per server for its link, one per tool for its work.

A server's breaker is tried again with a protocol read of ours, never with somebody's call. A tool's breaker lets one
call at a time through.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from toolway.errors import CallError, Certainty, OutcomeUnknown, ProtocolError, TimedOut, Unavailable
from toolway.model import Call, Next, Reply, Stage
from toolway.resilience.breaker import Breaker, BreakerFacts, Position

CLOSED: Final = Position.CLOSED
MOST: Final = 10_000  # breakers of tools that are remembered

Probe = Callable[[str], Awaitable[None]]
OnOpened = Callable[[str, str, float], None]  # (server, tool or nothing, for how many seconds)


class Board:
    """All breakers of a hub. `on_opened` hears of each that opens by what we have seen ourselves, and `on_person` of
    what a person does with one: the same, with no seconds where it was closed."""

    def __init__(self, dice: Callable[[], float]) -> None:
        self._dice = dice
        self.on_opened: OnOpened | None = None
        self.on_person: OnOpened | None = None
        self._servers: dict[str, Breaker] = {}
        self._tools: OrderedDict[tuple[str, str], Breaker] = OrderedDict()

    def server(self, name: str) -> Breaker:
        found = self._servers.get(name)
        if found is None:
            found = self._servers[name] = Breaker(self._dice)
        return found

    def tool(self, server: str, name: str) -> Breaker:
        key = (server, name)
        found = self._tools.get(key)
        if found is None:
            found = self._tools[key] = Breaker(self._dice)
            if len(self._tools) > MOST:
                self._tools.popitem(last=False)
        return found

    def facts(self, now: float) -> dict[tuple[str, str], BreakerFacts]:
        """Every breaker that has something to tell, by server and tool; the tool of a server's own is empty."""
        servers = {(name, ""): each.facts(now) for name, each in self._servers.items()}
        tools = {key: each.facts(now) for key, each in self._tools.items()}
        return {key: each for key, each in (servers | tools).items() if each.position is not CLOSED or each.failures}

    def trip(self, server: str, tool: str, now: float) -> None:
        """Open a breaker because a person says so."""
        self._of(server, tool).trip(now)
        if self.on_person is not None:
            self.on_person(server, tool, self._of(server, tool).wait(now))

    def reset(self, server: str, tool: str) -> None:
        """Close a breaker because a person says so."""
        self._close(server, tool)
        if self.on_person is not None:
            self.on_person(server, tool, 0.0)

    def told(self, server: str, tool: str, wait: float, now: float, *, by_person: bool) -> None:
        """What another gateway says of its breaker. It is told to nobody else."""
        if by_person and wait <= 0:
            self._close(server, tool)
        elif by_person:
            self._of(server, tool).trip(now)
        else:
            self._of(server, tool).told(wait, now)

    def opened(self, server: str, tool: str, now: float) -> None:
        """An attempt that failed may have opened a breaker."""
        found = self._of(server, tool)
        if self.on_opened is not None and found.position is Position.OPEN:
            self.on_opened(server, tool, found.wait(now))

    def _of(self, server: str, tool: str) -> Breaker:
        return self.tool(server, tool) if tool else self.server(server)

    def _close(self, server: str, tool: str) -> None:
        if tool:
            self._tools.pop((server, tool), None)
        else:
            self._servers.pop(server, None)

    def reconnected(self, server: str) -> None:
        """There is a new link: what happened on the old one says nothing about it."""
        self._servers.pop(server, None)

    def forget(self, server: str) -> None:
        """The server was removed or started anew by a person."""
        self._servers.pop(server, None)
        for key in [key for key in self._tools if key[0] == server]:
            del self._tools[key]


def breaker(
    board: Board, now: Callable[[], float], probe: Probe, supervised: Callable[[str], bool] = lambda _: False
) -> Stage:
    """`supervised` says whether a server's link is a process, whose end is its supervisor's business."""

    async def stage(call: Call, next: Next) -> Reply:
        server, tool = board.server(call.server), board.tool(call.server, call.name)
        if server.position is not CLOSED:
            await _pass(call, board, server, now, probe)
        trial = tool.position is not CLOSED and _begin_trial(call, tool, now())
        try:
            reply = await next(call)
        except CallError as exc:
            blamed = _blamed(exc, server, tool, supervised(call.server))
            ended = now()
            if _report(server, blamed is server, False, ended):
                board.opened(call.server, "", ended)
            if _report(tool, blamed is tool, trial, ended):
                board.opened(call.server, call.name, ended)
            raise
        except asyncio.CancelledError:
            # At the deadline the tool was silent for too long; before it, somebody else changed his mind.
            ended = now()
            silent = ended >= call.deadline and call.attempt.certainty is Certainty.C2
            if _report(tool, silent, trial, ended):
                board.opened(call.server, call.name, ended)
            raise
        except BaseException:
            _report(tool, False, trial, now())
            raise
        ended = now()
        if server.position is CLOSED:
            server.succeeded(ended)
        if trial or tool.position is CLOSED:
            tool.succeeded(ended)
        return reply

    return stage


async def _pass(call: Call, board: Board, server: Breaker, now: Callable[[], float], probe: Probe) -> None:
    """Go on where the server's breaker is closed, or where two signs of life have just closed it."""
    while True:
        wait = server.wait(now())
        if wait > 0:
            raise _open(call, f"{call.server} keeps failing", wait)
        if server.position is CLOSED:
            return
        server.begin_trial()
        try:
            await probe(call.server)
        except CallError:
            server.failed(now())
            board.opened(call.server, "", now())
        except BaseException:
            server.end_trial()
            raise
        else:
            server.succeeded(now())


def _begin_trial(call: Call, tool: Breaker, now: float) -> bool:
    """Whether the call is the trial that decides about its tool. Raises `Unavailable` where it may not be made."""
    wait = tool.wait(now)
    if wait > 0:
        raise _open(call, f"{call.server}.{call.name} keeps failing", wait)
    return tool.begin_trial()


def _blamed(exc: CallError, server: Breaker, tool: Breaker, supervised: bool) -> Breaker | None:
    """Which breaker a failure counts against, if any."""
    if isinstance(exc, Unavailable | OutcomeUnknown):
        # A process is restarted or given up by its supervisor; an address has nobody to do that.
        return None if supervised else server
    if isinstance(exc, TimedOut) or (isinstance(exc, ProtocolError) and exc.certainty is Certainty.C2):
        return tool
    return None


def _report(breaker: Breaker, blamed: bool, trial: bool, now: float) -> bool:
    """Tell a breaker of an attempt that failed, whoever is blamed; whether that counted. While it is not closed, only
    the end of a trial counts: a call from before the opening proves nothing."""
    if breaker.position is not CLOSED and not trial:
        return False
    if blamed:
        breaker.failed(now)
    else:
        breaker.end_trial()
    return blamed


def _open(call: Call, why: str, wait: float) -> Unavailable:
    error = Unavailable(
        f"{why}, so it is left alone for a while",
        server=call.server,
        tool=call.name,
        certainty=Certainty.C0,
        retry_after=wait,
        evidence=f"tried again in {wait:.1f} s",
        fix=f"see why: toolway status {call.server}",
        code="E-BREAKER-OPEN",
    )
    error.retryable = False
    return error
