"""The supervisor: a task that connects to a server, watches the connection and reconnects.

`state.py` defines the transitions. Here each state has one coroutine that waits for the next event; nothing else
changes the state. While the server is ready, `health.py` detects that it no longer responds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from toolway._async import Interrupted, LightEvent, wait_unless
from toolway.config.schema import Server
from toolway.errors import CallError
from toolway.events import Connected, Disconnected, Event, ResourceUpdated, ServerLog, StateChanged, TaskChanged
from toolway.protocol.versions import LIST_CHANGES
from toolway.types import CallState, Era, Json
from toolway.upstream.context import UpstreamContext
from toolway.upstream.error_mapping import explain_rejected_token, unavailable_error
from toolway.upstream.health import HealthMonitor
from toolway.upstream.lists import ListSync
from toolway.upstream.negotiation import may_be_legacy_sse
from toolway.upstream.session import DELIVERED_LOG_MARKER, Session
from toolway.upstream.start_policy import FailureHistory, StartPermit, start_failure
from toolway.upstream.state import State, StateEvent, step
from toolway.upstream.status import ServerStatus, with_check_error
from toolway.upstream.subscriptions import Subscriptions
from toolway.upstream.transport import RESTART_CODE, Disconnect, JSONRPCError, Transport, TransportError

MOVE_RETRY_DELAY_S: Final = 0.02  # after a start that failed because the server was moving to another node
_log = logging.getLogger(__name__)


class Supervisor:
    """Starts one server, restarts it with a backoff after failures, and stops it.

    Other components set its events (`start_requested`, `stop_requested` …) and never change its state.
    """

    def __init__(self, name: str, server: Server, context: UpstreamContext, era_hint: Era | None = None) -> None:
        self.name = name
        self.server = server
        self.context = context
        self.era_hint = era_hint  # last known era of the server
        self.state = State.IDLE
        self.session: Session | None = None
        self.draining = False
        self._loop = asyncio.get_running_loop()
        self.last_used = self._loop.time()
        self.history = FailureHistory(server, context.random, self.last_used)
        self.lists = ListSync(name, server.limits.max_tools, context)
        self.subscriptions = Subscriptions(lambda uri: self.context.emit(ResourceUpdated(name, uri)), context.random)
        self.health = HealthMonitor(name, server, lambda event: self.context.emit(event))
        self.waiters = SessionWaiters()
        self.start_requested = LightEvent()
        self.stop_requested = LightEvent()
        self.restart_requested = LightEvent()  # someone requested a restart
        self.retry_failed_start = False  # the start in progress may lack a login that exists now
        self.check_requested = LightEvent()  # a call could not reach the server
        self.first_start_done = LightEvent()  # the first start has succeeded or failed
        self._urgent = LightEvent()  # a call waits for the start
        self._wanted = LightEvent()  # something waits for the start of a server that is down
        self._use_legacy_sse = False  # the URL speaks HTTP+SSE, which is then tried first
        self._predecessor: asyncio.Task[None] | None = None  # the previous upstream, which must stop before our start

    async def run(self, after: asyncio.Task[None] | None) -> None:
        """Run the upstream until it is stopped. The first start waits until the task `after` ends."""
        self._predecessor = after
        states: dict[State, Callable[[], Coroutine[Any, Any, StateEvent]]] = {
            State.IDLE: self._idle,
            State.STARTING: self._starting,
            State.READY: self._ready,
            State.BACKING_OFF: self._waiting_for_retry,
            State.FAILED: self._waiting_for_retry,
            State.STOPPING: self._stopping,
        }
        try:
            while self.state is not State.STOPPED:
                try:
                    event = await states[self.state]()
                except Interrupted:
                    event = StateEvent.STOP
                except Exception as exc:
                    event = await self._on_internal_error(exc)
                self._transition(event)
        finally:
            self.first_start_done.set()
            self.waiters.reject(self.create_unavailable_error)

    async def _on_internal_error(self, exc: Exception) -> StateEvent:
        """Restart or stop this upstream after an unexpected exception. Return the state event.

        Other upstreams are unaffected.
        """
        _log.exception("unexpected error in upstream %s", self.name, exc_info=exc)
        await self._close_session()
        if self.state in (State.STARTING, State.READY):
            disconnect = Disconnect(f"unexpected error: {exc!r}", "E-INTERNAL")
            self.history.start_failures += self.state is State.STARTING
            return self._record_end(disconnect, ready_for=0.0)
        self.stop_requested.set()
        return StateEvent.GONE if self.state is State.STOPPING else StateEvent.STOP

    def _transition(self, event: StateEvent) -> None:
        old, self.state = self.state, step(self.state, event)
        self.history.state_since = self._loop.time()
        if self.state is State.READY:
            assert self.session is not None
            self.waiters.resolve(self.session)
        elif (old is State.STARTING or self.state in (State.FAILED, State.STOPPED)) and not self._is_restart_pending():
            self.waiters.reject(self.create_unavailable_error)
        if old is State.STARTING:
            self.first_start_done.set()
            self._urgent.clear()
        status, failure = self.status(), self.history.last_failure
        code = failure.code if failure is not None else ""
        self.context.emit(
            StateChanged(self.name, old.value, self.state.value, status.why, code, status.hint, status.state)
        )

    async def _idle(self) -> StateEvent:
        if self._predecessor is not None:
            await wait_unless(self.stop_requested, asyncio.wait({self._predecessor}))
            self._predecessor = None
        await wait_unless(self.stop_requested, self.start_requested.wait())
        self.start_requested.clear()
        return StateEvent.WANTED

    async def _starting(self) -> StateEvent:
        while (event := await self._try_start()) is None:
            pass
        return event

    async def _try_start(self) -> StateEvent | None:
        """Try to start the server once, and return the state event for the result.

        Return None if the start should be repeated at once, as if nothing had failed, because the server moved to
        another node in the meantime, or because the first request may have ended it.
        """
        self.restart_requested.clear()
        self.retry_failed_start = False
        permit = await self._acquire_start_permit()
        self.history.begin_attempt(self._loop.time())
        server = replace(self.server, sse=True) if self._use_legacy_sse else self.server
        session = Session(
            self.name,
            self.context.open_transport(self.name, server),
            self.context.callbacks,
            self._on_notification,
            server.limits.max_server_requests,
        )
        self.session = session
        self._use_legacy_sse = False
        era_hint = self.era_hint
        try:
            await wait_unless(self.stop_requested, self._connect(session))
        except (TransportError, JSONRPCError, TimeoutError) as exc:
            disconnect = await self._explain_start_failure(session, exc)
            await self._close_session()
            if disconnect.moved:
                await asyncio.sleep(MOVE_RETRY_DELAY_S)
                return None
            if era_hint is None and self._may_have_ended_by_probe(disconnect):
                return None
            self.history.start_failures += 1
            if self.retry_failed_start:
                self.restart_requested.set()
            return self._record_end(disconnect, ready_for=0.0)
        finally:
            permit.release()
        self.history.start_failures = 0
        self.history.is_early = False
        self.health.on_started()
        self.last_used = self._loop.time()
        protocol = session.protocol
        if not session.transport.info().peer_is_modern:
            self.era_hint = protocol.era  # else it is another node's, and the server may move here
        self._use_legacy_sse = session.transport.info().transport == "sse"
        self.context.emit(Connected(self.name, protocol.era, protocol.version, session.transport.info().pid))
        return StateEvent.CONNECTED

    async def _acquire_start_permit(self) -> StartPermit:
        """Wait for a permit to start. Only processes that no call is waiting for have to queue."""
        if self.server.transport != "stdio":
            self._urgent.set()
        return await wait_unless(self.stop_requested, self.context.start_limiter.acquire(self._urgent))

    async def _connect(self, session: Session) -> None:
        async with asyncio.timeout(self.server.timeout.start):
            await session.open(self.server.era, self.era_hint, self._legacy_sse_fallback)
            await self.lists.fetch_tools(session)

    def _legacy_sse_fallback(self, exc: TransportError | JSONRPCError) -> Transport | None:
        """Return an HTTP+SSE transport if the error suggests that the server at the URL uses HTTP+SSE; else None."""
        if not may_be_legacy_sse(self.server, exc):
            return None
        return self.context.open_transport(self.name, replace(self.server, sse=True))

    async def _explain_start_failure(self, session: Session, exc: Exception) -> Disconnect:
        """Return why a start failed: the exit of the server process, if there was one."""
        if isinstance(exc, TransportError) and (
            exc.code == "E-WS-CLOSED" or (exc.code.startswith("E-STDIO-") and session.transport.info().pid is not None)
        ):
            self.era_hint = "legacy" if self.era_hint is None and session.negotiated is None else None
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    return await session.transport.wait_closed()
        if isinstance(exc, TimeoutError):
            self._change_era_hint(session)
        if isinstance(exc, TransportError):
            explain_rejected_token(exc, self.server)
        return start_failure(exc, self.server.timeout.start)

    def _may_have_ended_by_probe(self, disconnect: Disconnect) -> bool:
        """Return True if the first request may have ended a server, and a call is waiting for it.

        Some legacy servers exit on `server/discover`. The next start begins with `initialize`, so the call can still
        succeed.
        """
        if self.history.start_failures or not len(self.waiters) or self.server.era != "auto":
            return False
        return self.era_hint == "legacy" and disconnect.code == "E-STDIO-EXIT"

    def _change_era_hint(self, session: Session) -> None:
        """Change which protocol era the next start tries first, because this one timed out.

        Detecting the era may have used up the time: a legacy server may ignore `server/discover`.
        """
        if session.negotiated is not None:
            self.era_hint = session.negotiated.era
        else:
            self.era_hint = "legacy" if self.era_hint is None else None

    async def _ready(self) -> StateEvent:
        while (event := await self._serve_session()) is None:
            pass
        return event

    async def _serve_session(self) -> StateEvent | None:
        """Watch the ready session and refresh lists and subscriptions until it ends; return the event.

        Return None if the idle timeout passed, but the server is in use again.
        """
        assert self.session is not None
        session = self.session
        ready_since = self.history.state_since
        # An idle server has as few tasks as possible: there may be thousands of servers, and a task takes 2 kB.
        background_tasks = [
            self._loop.create_task(work)
            for work in (
                self.lists.run_refresh(session),
                self.lists.run_change_stream(session),
                self.subscriptions.run(session),
            )
        ]
        end_tasks = [
            self._loop.create_task(session.transport.wait_closed()),
            self._loop.create_task(self.health.watch(session, self.check_requested)),
        ]
        stop, restart = self.stop_requested.future(), self.restart_requested.future()
        unused = self._loop.create_task(self._wait_unused(session)) if self.server.idle_timeout else None
        waiting: list[asyncio.Future[Any]] = [*end_tasks, stop, restart]
        if unused is not None:
            waiting.append(unused)
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (*background_tasks, *waiting):
                each.cancel()
            await asyncio.gather(*background_tasks, *waiting, return_exceptions=True)
        if done == {stop}:
            raise Interrupted
        if unused in done:
            if self._in_use(session):
                return None
            self.start_requested.clear()
            self.history.last_failure = None
            await self._close_session()
            return StateEvent.UNUSED
        disconnect = next(
            (task.result() for task in end_tasks if task in done), Disconnect("restart requested", RESTART_CODE)
        )
        if disconnect.moved:
            await self._close_session()
            return StateEvent.UNUSED  # the next call starts it where it runs then
        self.context.emit(Disconnected(self.name, disconnect.reason, requested=disconnect.code == RESTART_CODE))
        session.ended_by = disconnect
        await self._close_session()
        return self._record_end(disconnect, ready_for=self._loop.time() - ready_since)

    def _record_end(self, disconnect: Disconnect, ready_for: float) -> StateEvent:
        return self.history.record_end(disconnect, ready_for, self._loop.time())

    async def _waiting_for_retry(self) -> StateEvent:
        while self._loop.time() < (due := self.history.next_start()):
            self._wanted.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await wait_unless(self.stop_requested, self._wait_restart_or_wanted())
            if self.restart_requested.is_set():
                break
        if self.stop_requested.is_set():  # a timeout in the past skips the check of the event
            raise Interrupted
        self.history.is_early = not self.restart_requested.is_set() and self._loop.time() < self.history.retry_at
        return StateEvent.DUE

    async def _wait_restart_or_wanted(self) -> None:
        waits = [self.restart_requested.future(), self._wanted.future()]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    async def _stopping(self) -> StateEvent:
        await self._close_session()
        return StateEvent.GONE

    async def _close_session(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            self.history.record_transport(session.transport.info())
            await session.transport.close()

    # -- while it is ready --------------------------------------------------------------------------------------------

    async def _wait_unused(self, session: Session) -> None:
        """Wait until no call has used the server for the idle timeout."""
        limit = self.server.idle_timeout
        while True:
            await asyncio.sleep(max(self.last_used + limit - self._loop.time(), 0.05))
            if not self._in_use(session):
                return

    def _in_use(self, session: Session) -> bool:
        busy = session.in_flight or self.subscriptions
        return bool(busy) or self._loop.time() < self.last_used + self.server.idle_timeout

    def _on_notification(self, method: str, params: Json) -> None:
        """Handle a server notification that belongs to no call: refresh a list or emit an event."""
        if method in LIST_CHANGES:
            for kind in LIST_CHANGES[method]:
                self.lists.refresh(kind)
        elif (event := event_from_notification(self.name, method, params)) is not None:
            self.context.emit(event)

    # -- waiting callers ----------------------------------------------------------------------------------------------

    async def wait_session(self, call_state: CallState, *, urgent: bool = True, insist: bool = False) -> Session:
        """Return the session once calls can be sent, starting the server if needed.

        All waiters share one start, with at most one start per second. Raises `CallError` if the server is stopping,
        if its start fails, or if calls may not start it, because it first needs a login or another configuration, or
        because it keeps crashing. With `insist`, it is started even then.
        """
        if self.state is State.READY and self.session is not None and not self.draining:
            return self.session
        call_state.phase = "start"
        self.start_requested.set()
        if urgent:
            self._urgent.set()
        if self.draining or self.state in (State.STOPPING, State.STOPPED):
            raise self.create_unavailable_error()
        if self.state in (State.BACKING_OFF, State.FAILED) and not self._is_restart_pending():
            if self.history.ignores_calls and not insist:
                raise self.create_unavailable_error()
            self.history.is_wanted = True
            self._wanted.set()
        return await self.waiters.wait()

    def _is_restart_pending(self) -> bool:
        """Return True if the server has failed and a requested restart has not begun yet.

        Its last failure is then irrelevant for calls.
        """
        return self.restart_requested.is_set() and self.state in (State.BACKING_OFF, State.FAILED)

    def create_unavailable_error(self) -> CallError:
        """Return the error for a call that cannot be sent now; it explains the server's state."""
        failure = self.history.last_failure
        error = unavailable_error(self.status(), failure.code if failure else "", permanent=self.draining)
        if error.retry_after is not None:
            error.retry_after = max(0.0, self.history.next_chance() - self._loop.time())
        return error

    def status(self) -> ServerStatus:
        status = self.history.build_status(
            self.name, self.server, self.state, self.session, self.era_hint, self._loop.time()
        )
        return with_check_error(status, self.health.failure) if self.state is State.READY else status


# -- callers that wait for the session --------------------------------------------------------------------------------


class SessionWaiters:
    """Futures of callers that wait until an upstream is ready and has a session."""

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: set[asyncio.Future[Session]] = set()

    def __len__(self) -> int:
        return len(self._futures)

    async def wait(self) -> Session:
        """Wait for the upstream's session. Raises `CallError` if the server does not become ready."""
        waiter: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        self._futures.add(waiter)
        try:
            return await waiter
        finally:
            self._futures.discard(waiter)

    def resolve(self, session: Session) -> None:
        for waiter in self._futures:
            if not waiter.done():
                waiter.set_result(session)

    def reject(self, create_error: Callable[[], CallError]) -> None:
        """Fail every caller that waits for the session, each with its own error object."""
        for waiter in self._futures:
            if not waiter.done():
                waiter.set_exception(create_error())
                waiter.exception()  # the waiter may have been cancelled


# -- notifications ----------------------------------------------------------------------------------------------------


def event_from_notification(server: str, method: str, params: Json) -> Event | None:
    """Return the hub event for a notification that belongs to no call, or None if there is none."""
    match method:
        case "notifications/resources/updated":
            return ResourceUpdated(server, str(params.get("uri")))
        case "notifications/tasks":
            return TaskChanged(server, params)
        case "notifications/message":
            logger = params.get("logger")
            name = logger if isinstance(logger, str) else None
            return ServerLog(
                server,
                str(params.get("level")),
                params.get("data"),
                name,
                delivered_to_caller=DELIVERED_LOG_MARKER in params,
            )
    return None
