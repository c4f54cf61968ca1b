"""The one task that enters a server's link, watches it, leaves it and enters it again.

`state.py` says what may follow what. Here each state has one coroutine that waits for the next event; nothing else
moves the state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from toolway.config.spec import Server
from toolway.errors import CallError
from toolway.events import Connected, Lost, ResourceUpdated, StateChanged
from toolway.model import Attempt, Era, Json
from toolway.protocol.eras import LIST_CHANGES
from toolway.upstream.border import unavailable
from toolway.upstream.finding import may_be_older
from toolway.upstream.flag import Flag, Interrupted, unless
from toolway.upstream.gate import Turn
from toolway.upstream.health import watch_health
from toolway.upstream.link import Fault, Link, Loss, RpcError
from toolway.upstream.lists import Lists
from toolway.upstream.notices import fact_of
from toolway.upstream.past import Past, why_no_start
from toolway.upstream.session import Session
from toolway.upstream.state import Event, State, step
from toolway.upstream.status import Status
from toolway.upstream.subscriptions import Subscriptions
from toolway.upstream.surroundings import Surroundings
from toolway.upstream.waiters import Waiters

MOVE_PAUSE: Final = 0.02  # seconds after a start that met a server on its way to another node
_log = logging.getLogger(__name__)


class Supervisor:
    """Its flags are what others ask of it; all else is its own."""

    def __init__(self, name: str, server: Server, around: Surroundings, hint: Era | None = None) -> None:
        self.name = name
        self.server = server
        self.around = around
        self.hint = hint  # the era that the server spoke when it was last heard
        self.state = State.IDLE
        self.session: Session | None = None
        self.retired = False
        self._loop = asyncio.get_running_loop()
        self.last_used = self._loop.time()
        self.past = Past(server, around.dice, self.last_used)
        self.lists = Lists(name, server.limits.tools, around)
        self.subscriptions = Subscriptions(lambda uri: self.around.emit(ResourceUpdated(name, uri)), around.dice)
        self.waiters = Waiters()
        self.wanted = Flag()
        self.stop = Flag()
        self.again = Flag()  # a person asked for a restart
        self.suspect = Flag()  # a call could not reach the server
        self.settled = Flag()  # the first start has ended, well or badly
        self._urgent = Flag()  # a call waits for the start
        self._older = False  # the url was found to speak HTTP+SSE, and is asked for that first
        self._before: asyncio.Task[None] | None = None  # the end of one that must be gone before we start

    async def live(self, after: asyncio.Task[None] | None) -> None:
        """Until the end; what is started by it starts when `after` is done."""
        self._before = after
        states: dict[State, Callable[[], Coroutine[Any, Any, Event]]] = {
            State.IDLE: self._idle,
            State.STARTING: self._starting,
            State.READY: self._serving,
            State.BACKING_OFF: self._waiting_for_retry,
            State.FAILED: self._waiting_for_retry,
            State.STOPPING: self._leaving,
        }
        try:
            while self.state is not State.STOPPED:
                try:
                    event = await states[self.state]()
                except Interrupted:
                    event = Event.STOP
                except Exception as exc:
                    event = await self._our_own_fault(exc)
                self._step(event)
        finally:
            self.settled.set()
            self.waiters.refuse(self.unavailable)

    async def _our_own_fault(self, exc: Exception) -> Event:
        """A mistake of ours in one upstream costs this upstream a restart, and the others nothing."""
        _log.exception("unexpected error in upstream %s", self.name, exc_info=exc)
        await self._leave()
        if self.state in (State.STARTING, State.READY):
            loss = Loss(f"unexpected error: {exc!r}", "E-INTERNAL")
            self.past.start_failures += self.state is State.STARTING
            return self._ended(loss, ready_for=0.0)
        self.stop.set()
        return Event.GONE if self.state is State.STOPPING else Event.STOP

    def _step(self, event: Event) -> None:
        old, self.state = self.state, step(self.state, event)
        self.past.since = self._loop.time()
        if self.state is State.READY:
            assert self.session is not None
            self.waiters.give(self.session)
        elif (old is State.STARTING or self.state in (State.FAILED, State.STOPPED)) and not self._starts_at_once():
            self.waiters.refuse(self.unavailable)
        if old is State.STARTING:
            self.settled.set()
            self._urgent.clear()
        self.around.emit(StateChanged(self.name, old.value, self.state.value, self.status().why))

    async def _idle(self) -> Event:
        if self._before is not None:
            await unless(self.stop, asyncio.wait({self._before}))
            self._before = None
        await unless(self.stop, self.wanted.wait())
        self.wanted.clear()
        return Event.WANTED

    async def _starting(self) -> Event:
        while (event := await self._start()) is None:
            pass
        return event

    async def _start(self) -> Event | None:
        """None where the server has moved meanwhile: it is looked for where it is now, and nothing has failed."""
        self.again.clear()
        turn = await self._turn()
        server = replace(self.server, sse=True) if self._older else self.server
        session = Session(self.name, self.around.open_link(self.name, server), self.around.asks, self._hear)
        self.session = session
        self._older = False
        try:
            await unless(self.stop, self._enter(session))
        except (Fault, RpcError, TimeoutError) as exc:
            loss = await self._why_no_start(session, exc)
            await self._leave()
            if loss.moved:
                await asyncio.sleep(MOVE_PAUSE)
                return None
            self.past.start_failures += 1
            return self._ended(loss, ready_for=0.0)
        finally:
            turn.end()
        self.past.start_failures = 0
        self.last_used = self._loop.time()
        agreed = session.agreed
        self.hint = agreed.era
        self._older = session.link.facts().transport == "sse"
        self.around.emit(Connected(self.name, agreed.era, agreed.version, session.link.facts().pid))
        return Event.CONNECTED

    async def _turn(self) -> Turn:
        """A process waits for its turn to start, unless somebody waits for it; the others cost no CPU of ours."""
        if self.server.transport != "stdio":
            self._urgent.set()
        return await unless(self.stop, self.around.gate.enter(self._urgent))

    async def _enter(self, session: Session) -> None:
        async with asyncio.timeout(self.server.timeout.start):
            await session.open(self.server.era, self.hint, self._other_link)
            await self.lists.first(session)

    def _other_link(self, exc: Fault | RpcError) -> Link | None:
        """The link of the transport before, for a URL that refused the newer one."""
        if not may_be_older(self.server, exc):
            return None
        return self.around.open_link(self.name, replace(self.server, sse=True))

    async def _why_no_start(self, session: Session, exc: Exception) -> Loss:
        """The reason of a start that failed; the end of a process says more than the request that met it."""
        if isinstance(exc, Fault) and exc.code.startswith("E-STDIO-") and session.link.facts().pid is not None:
            self.hint = "handshake" if self.hint is None and session.agreement is None else None
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    return await session.link.wait_lost()
        return why_no_start(exc, self.server.timeout.start)

    async def _serving(self) -> Event:
        while (event := await self._serve()) is None:
            pass
        return event

    async def _serve(self) -> Event | None:
        """Watch a ready server until something ends that; None where it was about to be stopped, and is in use."""
        assert self.session is not None
        session = self.session
        began = self.past.since
        others = [
            self._loop.create_task(work)
            for work in (
                self.lists.keep(session),
                self.lists.keep_listening(session),
                self.subscriptions.keep(session),
                self._stop_when_unused(session),
            )
        ]
        ends = [
            self._loop.create_task(session.link.wait_lost()),
            self._loop.create_task(watch_health(session, self.server.health, self.suspect)),
            self._loop.create_task(self._asked_to_restart()),
        ]
        try:
            first = asyncio.wait([*ends, others[-1]], return_when=asyncio.FIRST_COMPLETED)
            done, _ = await unless(self.stop, first)
        finally:
            for task in (*others, *ends):
                task.cancel()
            await asyncio.gather(*others, *ends, return_exceptions=True)
        if others[-1] in done:
            if self._in_use(session):
                return None
            self.wanted.clear()
            self.past.failure = None
            await self._leave()
            return Event.UNUSED
        loss = next(task.result() for task in ends if task in done)
        if loss.moved:
            await self._leave()
            return Event.UNUSED  # until somebody wants it, who is brought to where it is then
        self.around.emit(Lost(self.name, loss.reason))
        await self._leave()
        return self._ended(loss, ready_for=self._loop.time() - began)

    async def _asked_to_restart(self) -> Loss:
        await self.again.wait()
        return Loss("a restart was asked for", "E-RESTART")

    def _ended(self, loss: Loss, ready_for: float) -> Event:
        return self.past.ended(loss, ready_for, self._loop.time())

    async def _waiting_for_retry(self) -> Event:
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self.past.retry_at):
                await unless(self.stop, self.again.wait())
        if self.stop.is_set():  # a wait that was over before it began has not looked
            raise Interrupted
        return Event.DUE

    async def _leaving(self) -> Event:
        await self._leave()
        return Event.GONE

    async def _leave(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            self.past.last_facts = session.link.facts()
            await session.link.close()

    # -- while it is ready --------------------------------------------------------------------------------------------

    async def _stop_when_unused(self, session: Session) -> None:
        limit = self.server.idle_stop
        if not limit:
            await asyncio.Event().wait()
        while True:
            await asyncio.sleep(max(self.last_used + limit - self._loop.time(), 0.05))
            if not self._in_use(session):
                return

    def _in_use(self, session: Session) -> bool:
        busy = session.in_flight or self.subscriptions
        return bool(busy) or self._loop.time() < self.last_used + self.server.idle_stop

    def _hear(self, method: str, params: Json) -> None:
        """A notification of the server that belongs to no call."""
        if method in LIST_CHANGES:
            for kind in LIST_CHANGES[method]:
                self.lists.refresh(kind)
        elif (fact := fact_of(self.name, method, params)) is not None:
            self.around.emit(fact)

    # -- callers who wait ---------------------------------------------------------------------------------------------

    async def ready(self, attempt: Attempt, *, urgent: bool = True) -> Session:
        """The session, when calls go through. Raises `CallError` where waiting for that is in vain."""
        if self.state is State.READY and self.session is not None and not self.retired:
            return self.session
        attempt.phase = "start"
        self.wanted.set()
        if urgent:
            self._urgent.set()
        if self._hopeless():
            raise self.unavailable()
        return await self.waiters.wait()

    def _hopeless(self) -> bool:
        """Whether a call would wait in vain: it waits for a start, not for the next try after one that failed."""
        if self.retired or self.state in (State.STOPPING, State.STOPPED):
            return True
        if self._starts_at_once() or self.state not in (State.BACKING_OFF, State.FAILED):
            return False
        if self.state is State.FAILED:
            return True
        return self.past.is_hopeless(self.server.timeout.queue, self._loop.time())

    def _starts_at_once(self) -> bool:
        """Whether a start was asked for since the last one began, and so is not a matter of what became of that."""
        return self.again.is_set() and self.state in (State.BACKING_OFF, State.FAILED)

    def unavailable(self) -> CallError:
        """What a call is told that cannot have the server now."""
        failure = self.past.failure
        return unavailable(self.status(), failure.code if failure else "", for_good=self.retired)

    def status(self) -> Status:
        return self.past.status(self.name, self.server, self.state, self.session, self.hint, self._loop.time())
