"""One start of one server, watched: what happened, and when. Nothing is judged here.

A package runner such as npx first fetches what it runs. That is told apart from the server's own time by the age of the
server's process, which the runner starts when it has it; and the runner is given more time than a start has, because a
download that is broken off begins anew with the next start.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mcp_types.jsonrpc import METHOD_NOT_FOUND

from toolway.asks import CallbackAsks
from toolway.config.spec import Server
from toolway.doctor import processes
from toolway.doctor.tap import Heard, Tapped
from toolway.security.broker import Broker
from toolway.security.sealed_tokens import of_this_user
from toolway.upstream import listing
from toolway.upstream.causes import PACKAGE_RUNNERS
from toolway.upstream.finding import may_be_older
from toolway.upstream.link import Fault, Link, Loss, RpcError
from toolway.upstream.probe import Agreement
from toolway.upstream.process.spawn import Spawner
from toolway.upstream.session import Session
from toolway.upstream.transports import link_for

PATIENCE: Final = 180.0  # with a package runner, which may have to download first
LAST_WORDS: Final = 0.5  # for the end of a process, which says more than the request that met it


@dataclass(slots=True)
class Start:
    """What happened. Times are seconds since the start was begun."""

    limit: float  # that the entry grants
    spawned: float | None = None
    first_byte: float | None = None
    fetched: float | None = None  # when a package runner had what it runs, and started it
    agreed: float | None = None
    listed: float | None = None
    ended: float = 0.0
    agreement: Agreement | None = None
    tools: list[Any] = field(default_factory=list)
    list_problems: list[str] = field(default_factory=list)
    notes: tuple[str, ...] = ()  # what the link has to say about them
    failure: Loss | None = None
    status: int | None = None  # of HTTP, where that was the failure
    stderr: str = ""
    transport: str = ""  # where it was found to be another than the entry is usually reached by
    noise: list[str] = field(default_factory=list)
    noisy: int = 0
    ports: list[int] = field(default_factory=list)  # on which a process listens that does not answer
    dies_when_asked: bool = False  # it ends when it is asked for the modern era, and works when it is not

    @property
    def late(self) -> bool:
        """It answered, but later than its entry allows."""
        return self.listed is not None and self.listed > self.limit


def is_runner(server: Server) -> bool:
    return os.path.basename(server.command or "") in PACKAGE_RUNNERS


async def start(name: str, server: Server, environ: Mapping[str, str], spawner: Spawner) -> Start:
    """Start the server, agree on an era, list its tools, and end it."""
    seen = await _once(name, server, environ, spawner, hint=False)
    # Some end when they are asked something they do not know; the hub starts them again and asks otherwise.
    if seen.failure is not None and seen.failure.code == "E-STDIO-EXIT" and server.era == "auto":
        again = await _once(name, server, environ, spawner, hint=True)
        if again.failure is None:
            again.dies_when_asked = True
            return again
    return seen


async def _once(name: str, server: Server, environ: Mapping[str, str], spawner: Spawner, *, hint: bool) -> Start:
    tap = Tapped(spawner)
    broker = Broker(store=of_this_user(environ))  # with the logins that a hub would have
    link = link_for(server, tap, environ, broker.authorizer(name, server))
    session = Session(name, link, CallbackAsks(None, None, None), lambda method, params: None)
    seen = Start(server.timeout.start)
    clock = _Clock()

    def older(exc: Fault | RpcError) -> Link | None:
        old = replace(server, sse=True) if may_be_older(server, exc) else None
        return link_for(old, tap, environ, broker.authorizer(name, old)) if old is not None else None

    try:
        async with asyncio.timeout(max(seen.limit, PATIENCE) if is_runner(server) else seen.limit):
            await session.open(server.era, "handshake" if hint else None, older)
            seen.agreed, seen.agreement = clock.now(), session.agreement
            seen.fetched = _fetched(server, tap.heard)
            await _list(session, seen, server.limits.tools)
            seen.listed = clock.now()
    except (Fault, RpcError, TimeoutError) as exc:
        seen.failure, seen.status = await _why(session, server, exc), getattr(exc, "status", None)
        if seen.failure.code == "E-START-TIMEOUT" and tap.heard.pid is not None:
            seen.fetched = seen.fetched or _fetched(server, tap.heard)
            seen.ports = processes.ports_of(tap.heard.pid)
    finally:
        seen.ended = clock.now()
        facts = session.link.facts()
        seen.stderr, seen.transport = facts.stderr, facts.transport
        await session.link.close()
        await broker.close()
        await tap.close()
    _take_times(seen, tap.heard, clock)
    return seen


class _Clock:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.began = self._loop.time()

    def now(self) -> float:
        return self._loop.time() - self.began


def _take_times(seen: Start, heard: Heard, clock: _Clock) -> None:
    if heard.spawned is not None:
        seen.spawned = heard.spawned - clock.began
    if heard.first_byte is not None:
        seen.first_byte = heard.first_byte - clock.began
    seen.noise, seen.noisy = heard.noise, heard.noisy


def _fetched(server: Server, heard: Heard) -> float | None:
    """When the runner started what it had fetched: the first process below it is the server, or a shell that runs it.
    What was run to install the package has ended by now."""
    if heard.pid is None or not is_runner(server):
        return None
    below = processes.descendants(heard.pid)
    return processes.seconds_between(heard.pid, below[0]) if below else None


async def _list(session: Session, seen: Start, most: int) -> None:
    if not listing.offered("tools", session.agreed.capabilities):
        return
    try:
        seen.tools, seen.list_problems = await listing.fetch(session.request, "tools", most)
        seen.notes = session.link.facts().notes
    except RpcError as exc:
        if exc.code != METHOD_NOT_FOUND:
            raise


async def _why(session: Session, server: Server, exc: Exception) -> Loss:
    """As the supervisor judges it."""
    if isinstance(exc, TimeoutError):
        return Loss(f"no answer within {server.timeout.start:g} s", "E-START-TIMEOUT")
    if isinstance(exc, RpcError):
        return Loss(f"the server answers with error {exc.code}: {exc.message}", "E-START-REFUSED")
    assert isinstance(exc, Fault)
    if exc.code.startswith("E-STDIO-") and session.link.facts().pid is not None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                return await session.link.wait_lost()
    return Loss(exc.reason, exc.code, fix=exc.fix)
