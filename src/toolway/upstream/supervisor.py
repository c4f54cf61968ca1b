"""The one task that enters a server's link, watches it, leaves it and enters it again.

`state.py` says what may follow what. Here each state has one coroutine that waits for the next event; nothing else
moves the state. Calls only borrow the session of a ready upstream, or wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar

from mcp_types.jsonrpc import METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION

from toolway.config.spec import Server
from toolway.errors import CallError, Denied, Unavailable
from toolway.events import CatalogChanged, Connected, Kind, Logged, Lost, ResourceUpdated, StateChanged, TaskChanged
from toolway.events import Event as Fact
from toolway.model import Asks, Attempt, Call, Certainty, Era, Json
from toolway.protocol.eras import LIST_CHANGES, LISTS
from toolway.upstream import listing
from toolway.upstream.border import call_error, no_credential, no_valid_credential
from toolway.upstream.causes import likely_cause
from toolway.upstream.finding import may_be_older
from toolway.upstream.flag import Flag
from toolway.upstream.gate import StartGate, Turn
from toolway.upstream.health import watch_health
from toolway.upstream.link import Fault, Link, LinkFacts, Loss, RpcError
from toolway.upstream.probe import Agreement
from toolway.upstream.restarts import Restarts
from toolway.upstream.session import OF_CALL, Session
from toolway.upstream.state import Event, State, step
from toolway.upstream.status import Status, sentence
from toolway.upstream.subscriptions import Subscriptions, Wanted

LIST_LIMIT: Final = 30.0  # for one list, all pages
LIST_PAUSE: Final = 1.0  # between two refreshes, however often a server says that its lists changed
RELISTEN: Final = (0.5, 30.0)  # first and longest wait before a lost subscription is opened again
MOVED: Final = "E-MOVED"  # the server is reached by another way now, so this start says nothing about it
NOT_HERE: Final = "E-NOT-HERE"  # whoever sent the call must look for the server elsewhere
USUAL_LIFE: Final = 5.0  # seconds after which the end of a link that ends now and then is no failure

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Surroundings(Protocol):
    """What an upstream needs from its hub."""

    def open_link(self, name: str, server: Server, caller: str = "") -> Link:
        """A link to the server; `caller` is whose, where it is one caller's alone."""
        ...

    def emit(self, fact: Fact) -> None: ...

    def on_list(
        self, server: str, kind: Kind, items: list[Any], problems: list[str], era: Era
    ) -> CatalogChanged | None:
        """Take a list as the server sent it; say what changed."""
        ...

    def lacks_list(self, server: str, kind: Kind) -> bool:
        """Whether the link that everybody shares has no list, because only callers have logins."""
        ...

    @property
    def asks(self) -> Asks: ...

    @property
    def gate(self) -> StartGate: ...

    @property
    def dice(self) -> Callable[[], float]: ...


class _Stopping(Exception):
    """`stop` was called while a state was waiting."""


class Upstream:
    def __init__(self, name: str, server: Server, around: Surroundings, hint: Era | None = None) -> None:
        self.name = name
        self.server = server
        self.state = State.IDLE
        self._around = around
        self._hint = hint
        self._loop = asyncio.get_running_loop()
        self._restarts = Restarts(server.restart, around.dice)
        self._session: Session | None = None
        self._failure: Loss | None = None
        self._last_facts = LinkFacts()
        self._older = False  # the url was found to speak HTTP+SSE, and is asked for that first
        self._start_failures = 0
        self._retry_at = 0.0
        self._since = self._loop.time()
        self._last_used = self._since
        self._waiters: set[asyncio.Future[Session]] = set()
        self._wanted = Flag()
        self._urgent = Flag()  # a call waits for the start
        self._stop = Flag()
        self._again = Flag()  # a person asked for a restart
        self._suspect = Flag()  # a call could not reach the server
        self._settled = Flag()  # the first start has ended, well or badly
        self._dirty: set[Kind] = set()
        self._dirt = Flag()
        self._listed = {kind: Flag() for kind in LISTS}
        self._task: asyncio.Task[None] | None = None
        self._before: asyncio.Task[None] | None = None  # the end of one that must be gone before we start
        self.retired = False
        self.subscriptions = Subscriptions(lambda uri: self._around.emit(ResourceUpdated(name, uri)), around.dice)

    # -- for the hub --------------------------------------------------------------------------------------------------

    def start(self, after: asyncio.Task[None] | None = None) -> None:
        """Begin to live; what is started by it starts when `after` is done."""
        self._before = after
        if not self.server.lazy:
            self._wanted.set()
        self._task = self._loop.create_task(self._live(), name=f"toolway upstream {self.name}")

    def retire(self, around: Surroundings) -> None:
        """Take no more calls. Those that the server has go on; those that wait for it hear that nothing was sent. For
        the rest of the world this is the end; what there is to tell after it is told to `around`."""
        self.retired = True
        why = "removed or replaced; what was under way is finished"
        self._around.emit(StateChanged(self.name, self.state.value, State.STOPPED.value, why))
        self._around = around
        self._end_waiters()

    @property
    def busy(self) -> bool:
        """Whether the server has calls of ours."""
        return self._session is not None and self._session.in_flight > 0

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    async def stop(self) -> None:
        """Stop the server and all that belongs to it; at most about 6 s."""
        self._stop.set()
        if self._task is not None:
            await asyncio.shield(self._task)

    def wake(self) -> None:
        """Start if it is not started yet, and also where earlier starts failed."""
        if self.state in (State.BACKING_OFF, State.FAILED):
            self.restart()
        self._wanted.set()

    def restart(self) -> None:
        """Start again now, whatever the state; earlier restarts are forgotten."""
        self._restarts.forgive()
        self._wanted.set()
        self._again.set()

    async def call(self, call: Call, input_schema: object = None) -> Json:
        """One call. Waits for a server that is starting. Raises `CallError`."""
        for last_try in (False, True):
            session = self._session
            if session is None or self.state is not State.READY or self.retired:
                session = await self._ready(call.attempt)
            self._last_used = self._loop.time()
            try:
                return await session.call(call, input_schema)
            except (Fault, RpcError) as exc:
                if self._is_stale(exc) and not last_try and await self._moved_on(session):
                    continue  # nothing was executed: the next link takes it
                raise call_error(exc, self.name, call.name, self.server.unprocessed) from exc
            finally:
                self._last_used = self._loop.time()
        raise AssertionError("unreachable")

    def _is_stale(self, exc: Fault | RpcError) -> bool:
        """Whether the link is no longer what it was: its process has just died, or the server changed its era."""
        if isinstance(exc, RpcError):
            if exc.code == UNSUPPORTED_PROTOCOL_VERSION:
                self._hint = None
                self._again.set()
            return exc.code == UNSUPPORTED_PROTOCOL_VERSION
        stale = exc.certainty is Certainty.C0 and not no_credential(exc.code) and exc.code != NOT_HERE
        if stale:
            self._suspect.set()
        return stale

    async def sign_of_life(self) -> None:
        """Ask the server for one, within its health limit. Raises `CallError` where there is none."""
        session = await self._ready(Attempt())
        try:
            async with asyncio.timeout(self.server.health.timeout):
                await session.health()
        except Fault as exc:
            raise call_error(exc, self.name, "") from exc
        except TimeoutError:
            raise self._unavailable() from None

    async def wait_ready(self, attempt: Attempt | None = None, *, urgent: bool = True) -> None:
        """Return when calls go through. Raises `Unavailable` when the start under way fails."""
        await self._ready(attempt if attempt is not None else Attempt(), urgent=urgent)

    async def wait_settled(self) -> None:
        """Return when the first start has ended, well or badly."""
        await self._settled.wait()

    async def wait_listed(self, kind: Kind, *, urgent: bool = True) -> None:
        """Return when the server has answered with this list, or has none."""
        await self._ready(Attempt(), urgent=urgent)
        await self._listed[kind].wait()

    async def fetch_now(self, kind: Kind) -> None:
        """Fetch a list at once. Raises `CallError`."""
        session = await self._ready(Attempt())
        try:
            await self._fetch(session, kind)
        except (Fault, RpcError) as exc:
            raise call_error(exc, self.name, "") from exc

    @property
    def agreement(self) -> Agreement | None:
        """What was agreed with the server that is ready now."""
        return self._session.agreement if self._session is not None and self.state is State.READY else None

    @property
    def is_modern(self) -> bool:
        """Whether it is ready and speaks the modern era."""
        session = self._session
        if session is None or session.agreement is None or self.state is not State.READY:
            return False
        return session.agreement.era == "modern"

    @property
    def era(self) -> Era | None:
        """The era that the server speaks, or spoke when it was last heard."""
        agreed = self.agreement
        return agreed.era if agreed is not None else self._hint

    @property
    def unused(self) -> bool:
        """Whether nobody calls it, waits for it or listens to it."""
        busy = self._session is not None and self._session.in_flight
        return not (busy or self._waiters or self.subscriptions)

    async def subscribe(self, kind: Wanted, name: str) -> None:
        """Want to hear of a resource or a task, which a server that is not started cannot tell of."""
        self._wanted.set()
        await self.subscriptions.add(kind, name)

    def refresh(self, kind: Kind) -> None:
        """Fetch a list again soon."""
        self._dirty.add(kind)
        self._dirt.set()

    def status(self) -> Status:
        now = self._loop.time()
        session = self._session
        agreed = session.agreement if session is not None else None
        facts = session.link.facts() if session is not None else self._last_facts
        waiting = self.state in (State.BACKING_OFF, State.FAILED)
        wait = max(0.0, self._retry_at - now) if waiting else None
        failure = self._failure
        cause = self._cause(failure, facts)
        return Status(
            server=self.name,
            transport=facts.transport or self.server.transport,
            state=self.state.value,
            era=agreed.era if agreed else self._hint,
            protocol=agreed.version if agreed else None,
            pid=facts.pid if session is not None else None,
            restarts=self._restarts.total,
            in_flight=session.in_flight if session is not None else 0,
            last_error=failure.reason if failure else None,
            stderr=facts.stderr or (self._last_facts.stderr if failure else ""),
            next_retry=wait,
            since=now - self._since,
            why=sentence(
                self.state,
                self.name,
                agreed.version if agreed else None,
                failure,
                cause[0],
                self._last_facts.stderr,
                wait,
                facts.transport,
            ),
            fix=cause[1],
        )

    def _cause(self, failure: Loss | None, facts: LinkFacts) -> tuple[str, str]:
        if failure is None or failure.fix:
            return "", failure.fix if failure else ""
        stderr = self._last_facts.stderr or facts.stderr
        found = likely_cause(self.server.command or self.server.url or "", failure.exit_code, stderr, failure.code)
        return found if found is not None else ("", "")

    # -- the life -----------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
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
                except _Stopping:
                    event = Event.STOP
                except Exception as exc:
                    event = await self._our_own_fault(exc)
                self._step(event)
        finally:
            self._settled.set()
            self._end_waiters()

    async def _our_own_fault(self, exc: Exception) -> Event:
        """A mistake of ours in one upstream costs this upstream a restart, and the others nothing."""
        _log.exception("unexpected error in upstream %s", self.name, exc_info=exc)
        await self._leave()
        if self.state in (State.STARTING, State.READY):
            self._start_failures += self.state is State.STARTING
            return self._ended(Loss(f"unexpected error: {exc!r}", "E-INTERNAL"), ready_for=0.0)
        self._stop.set()
        return Event.GONE if self.state is State.STOPPING else Event.STOP

    def _step(self, event: Event) -> None:
        old, self.state = self.state, step(self.state, event)
        self._since = self._loop.time()
        if self.state is State.READY:
            assert self._session is not None
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(self._session)
        elif (old is State.STARTING or self.state in (State.FAILED, State.STOPPED)) and not self._starts_at_once():
            self._end_waiters()
        if old is State.STARTING:
            self._settled.set()
            self._urgent.clear()
        self._around.emit(StateChanged(self.name, old.value, self.state.value, self.status().why))

    async def _idle(self) -> Event:
        if self._before is not None:
            await self._unless_stopped(asyncio.wait({self._before}))
            self._before = None
        await self._unless_stopped(self._wanted.wait())
        self._wanted.clear()
        return Event.WANTED

    async def _starting(self) -> Event:
        self._again.clear()
        turn = await self._turn()
        server = replace(self.server, sse=True) if self._older else self.server
        session = Session(self.name, self._around.open_link(self.name, server), self._around.asks, self._hear)
        self._session = session
        self._older = False
        try:
            await self._unless_stopped(self._enter(session))
        except (Fault, RpcError, TimeoutError) as exc:
            loss = await self._why_no_start(session, exc)
            await self._leave()
            self._start_failures += not loss.moved
            return self._ended(loss, ready_for=0.0)
        finally:
            turn.end()
        self._start_failures = 0
        self._last_used = self._loop.time()
        agreed = session.agreed
        self._hint = agreed.era
        self._older = session.link.facts().transport == "sse"
        self._around.emit(Connected(self.name, agreed.era, agreed.version, session.link.facts().pid))
        return Event.CONNECTED

    async def _turn(self) -> Turn:
        """A process waits for its turn to start, unless somebody waits for it; the others cost no CPU of ours."""
        if self.server.transport != "stdio":
            self._urgent.set()
        return await self._unless_stopped(self._around.gate.enter(self._urgent))

    async def _enter(self, session: Session) -> None:
        async with asyncio.timeout(self.server.timeout.start):
            await session.open(self.server.era, self._hint, self._other_link)
            try:
                await self._fetch(session, "tools")
            except RpcError as exc:
                if exc.code != METHOD_NOT_FOUND:
                    raise  # it has tools and does not tell which: perhaps the next start does
                self._take_list(session, "tools", [], [])

    def _other_link(self, exc: Fault | RpcError) -> Link | None:
        """The link of the transport before, for a URL that refused the newer one."""
        if not may_be_older(self.server, exc):
            return None
        return self._around.open_link(self.name, replace(self.server, sse=True))

    async def _why_no_start(self, session: Session, exc: Exception) -> Loss:
        """The reason of a start that failed; the end of a process says more than the request that met it."""
        if isinstance(exc, TimeoutError):
            limit = self.server.timeout.start
            return Loss(
                f"no answer within {limit:g} s",
                "E-START-TIMEOUT",
                fix=f'give it more time: "startTimeout": "{2 * limit:g}s"',
            )
        if isinstance(exc, RpcError):
            return Loss(f"the server refused to start a session: error {exc.code}, {exc.message}", "E-START-REFUSED")
        assert isinstance(exc, Fault)
        if exc.code == MOVED:
            return Loss(exc.reason, exc.code, moved=True)
        if exc.code.startswith("E-STDIO-") and session.link.facts().pid is not None:
            self._hint = "handshake" if self._hint is None and session.agreement is None else None
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    return await session.link.wait_lost()
        return Loss(exc.reason, exc.code, fix=exc.fix)

    async def _serving(self) -> Event:
        while (event := await self._serve()) is None:
            pass
        return event

    async def _serve(self) -> Event | None:
        """Watch a ready server until something ends that; None where it was about to be stopped, and is in use."""
        assert self._session is not None
        session = self._session
        began = self._since
        others = [
            self._loop.create_task(work)
            for work in (
                self._keep_lists(session),
                self._keep_listening(session),
                self.subscriptions.keep(session),
                self._stop_when_unused(session),
            )
        ]
        ends = [
            self._loop.create_task(session.link.wait_lost()),
            self._loop.create_task(watch_health(session, self.server.health, self._suspect)),
            self._loop.create_task(self._asked_to_restart()),
        ]
        try:
            done, _ = await self._unless_stopped(asyncio.wait([*ends, others[-1]], return_when=asyncio.FIRST_COMPLETED))
        finally:
            for task in (*others, *ends):
                task.cancel()
            await asyncio.gather(*others, *ends, return_exceptions=True)
        if others[-1] in done:
            if self._in_use(session):
                return None
            self._wanted.clear()
            self._failure = None
            await self._leave()
            return Event.UNUSED
        loss = next(task.result() for task in ends if task in done)
        if loss.moved:
            await self._leave()
            return Event.UNUSED  # until somebody wants it, who is brought to where it is then
        self._around.emit(Lost(self.name, loss.reason))
        await self._leave()
        return self._ended(loss, ready_for=self._loop.time() - began)

    async def _asked_to_restart(self) -> Loss:
        await self._again.wait()
        return Loss("a restart was asked for", "E-RESTART")

    def _ended(self, loss: Loss, ready_for: float) -> Event:
        if loss.moved:
            self._retry_at = self._loop.time()
            self._again.set()
            return Event.ENDED
        self._failure = loss
        if loss.usual and ready_for >= USUAL_LIFE:
            self._restarts.forgive()
        wait, gave_up = self._restarts.after_end(self._loop.time(), ready_for)
        self._retry_at = self._loop.time() + wait
        return Event.GAVE_UP if gave_up else Event.ENDED

    async def _waiting_for_retry(self) -> Event:
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._retry_at):
                await self._unless_stopped(self._again.wait())
        if self._stop.is_set():  # a wait that was over before it began has not looked
            raise _Stopping
        return Event.DUE

    async def _leaving(self) -> Event:
        await self._leave()
        return Event.GONE

    async def _leave(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._last_facts = session.link.facts()
            await session.link.close()

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, or `_Stopping` as soon as `stop` is called."""
        task = self._loop.create_task(work)
        stop = self._loop.create_task(self._stop.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise _Stopping
        finally:
            for each in (task, stop):
                each.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)

    # -- while it is ready --------------------------------------------------------------------------------------------

    async def _keep_lists(self, session: Session) -> None:
        """Fetch the other lists, then whatever the server says has changed, not more often than once a second."""
        capabilities = session.agreed.capabilities
        self._dirty.update(kind for kind in LISTS if kind != "tools")
        while True:
            kinds, self._dirty = self._dirty, set()
            self._dirt.clear()
            for kind in [k for k in kinds if not listing.offered(k, capabilities)]:
                self._take_list(session, kind, [], [])
                kinds.discard(kind)
            await asyncio.gather(*(self._fetch_quietly(session, kind) for kind in kinds))
            if kinds:
                await asyncio.sleep(LIST_PAUSE)
            await self._dirt.wait()

    async def _fetch_quietly(self, session: Session, kind: Kind) -> None:
        try:
            async with asyncio.timeout(LIST_LIMIT):
                await self._fetch(session, kind)
        except (Fault, RpcError, TimeoutError) as exc:
            reason = str(exc) or f"no answer within {LIST_LIMIT:g} s"
            problem = f"{LISTS[kind][1]} failed: {reason}"
            if not self._listed[kind].is_set():
                self._take_list(session, kind, [], [problem])  # what was known before is kept
            self._around.emit(Logged(self.name, "warning", problem, "toolway"))

    async def _fetch(self, session: Session, kind: Kind) -> None:
        if not listing.offered(kind, session.agreed.capabilities):
            self._take_list(session, kind, [], [])
            return
        items, problems = await listing.fetch(session.request, kind, self.server.limits.tools)
        notes = session.link.facts().notes if kind == "tools" else ()
        self._take_list(session, kind, items, [*problems, *notes])

    def _take_list(self, session: Session, kind: Kind, items: list[Any], problems: list[str]) -> None:
        changed = self._around.on_list(self.name, kind, items, problems, session.agreed.era)
        self._listed[kind].set()
        if changed is not None:
            self._around.emit(changed)

    async def _keep_listening(self, session: Session) -> None:
        wait, longest = RELISTEN
        while True:
            began = self._loop.time()
            try:
                if not await session.listen():
                    return
            except Fault:
                pass
            if self._loop.time() - began > longest:
                wait = RELISTEN[0]
            await asyncio.sleep(wait * (0.5 + self._around.dice() / 2))
            wait = min(longest, wait * 2)
            for kind in LISTS:  # what happened in between was not told
                self.refresh(kind)

    async def _stop_when_unused(self, session: Session) -> None:
        limit = self.server.idle_stop
        if not limit:
            await asyncio.Event().wait()
        while True:
            await asyncio.sleep(max(self._last_used + limit - self._loop.time(), 0.05))
            if not self._in_use(session):
                return

    def _in_use(self, session: Session) -> bool:
        busy = session.in_flight or self.subscriptions
        return bool(busy) or self._loop.time() < self._last_used + self.server.idle_stop

    def _hear(self, method: str, params: Json) -> None:
        """A notification of the server that belongs to no call."""
        if method in LIST_CHANGES:
            for kind in LIST_CHANGES[method]:
                self.refresh(kind)
        elif method == "notifications/resources/updated":
            self._around.emit(ResourceUpdated(self.name, str(params.get("uri"))))
        elif method == "notifications/tasks":
            self._around.emit(TaskChanged(self.name, params))
        elif method == "notifications/message":
            logger = params.get("logger")
            self._around.emit(
                Logged(
                    self.name,
                    str(params.get("level")),
                    params.get("data"),
                    logger if isinstance(logger, str) else None,
                    of_call=OF_CALL in params,
                )
            )

    # -- callers who wait ---------------------------------------------------------------------------------------------

    async def _ready(self, attempt: Attempt, *, urgent: bool = True) -> Session:
        if self.state is State.READY and self._session is not None and not self.retired:
            return self._session
        attempt.phase = "start"
        self._wanted.set()
        if urgent:
            self._urgent.set()
        if self._hopeless():
            raise self._unavailable()
        waiter: asyncio.Future[Session] = self._loop.create_future()
        self._waiters.add(waiter)
        try:
            return await waiter
        finally:
            self._waiters.discard(waiter)

    def _hopeless(self) -> bool:
        """Whether a call would wait in vain: it waits for a start, not for the next try after one that failed."""
        if self.retired or self.state in (State.STOPPING, State.STOPPED):
            return True
        if self._starts_at_once() or self.state not in (State.BACKING_OFF, State.FAILED):
            return False
        if self.state is State.FAILED:
            return True
        return self._start_failures > 0 or self._retry_at - self._loop.time() > self.server.timeout.queue

    def _starts_at_once(self) -> bool:
        """Whether a start was asked for since the last one began, and so is not a matter of what became of that."""
        return self._again.is_set() and self.state in (State.BACKING_OFF, State.FAILED)

    async def _moved_on(self, session: Session) -> bool:
        """Whether `session` is over, or is so within a moment."""
        for _ in range(10):
            if self._session is not session or self.state is not State.READY:
                return True
            await asyncio.sleep(0.05)
        return False

    def _end_waiters(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(self._unavailable())
                waiter.exception()  # whoever waited may be gone

    def _unavailable(self) -> CallError:
        status = self.status()
        code = self._failure.code if self._failure else ""
        if no_credential(code) and code != "E-AUTH-SERVER" and not self.retired:
            error: CallError = Denied(no_valid_credential(self.name), server=self.name, evidence=status.why)
            error.retryable = False  # it waits for a person
        else:
            error = Unavailable(f"{self.name} is not available", server=self.name, evidence=status.why)
            error.retry_after = status.next_retry
        error.certainty, error.fix, error.code = Certainty.C0, status.fix, code or error.code
        return error
