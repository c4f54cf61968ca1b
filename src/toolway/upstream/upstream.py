"""Upstream: one running server as its hub uses it.

Calls use the session of a ready upstream, or wait for it; they never own a connection. The supervisor manages the
connection.
"""

from __future__ import annotations

import asyncio
from typing import Final

from toolway.config.schema import Server
from toolway.errors import CallError
from toolway.events import ListKind, StateChanged
from toolway.protocol.constants import UNSUPPORTED_PROTOCOL_VERSION
from toolway.types import Call, CallState, Certainty, Era, Json
from toolway.upstream.context import UpstreamContext
from toolway.upstream.error_mapping import attempt_timeout_error, call_error, explain_rejected_token, is_auth_code
from toolway.upstream.negotiation import NegotiatedProtocol
from toolway.upstream.session import Session
from toolway.upstream.state import State, StateWord, state_word
from toolway.upstream.status import HealthResult, ServerStatus
from toolway.upstream.subscriptions import SubscriptionKind, Subscriptions
from toolway.upstream.supervisor import Supervisor
from toolway.upstream.transport import (
    SEND_TOO_LATE,
    SERVER_MOVED,
    WRONG_NODE,
    JSONRPCError,
    RequestExchange,
    TransportError,
)

MAX_MOVES: Final = 10  # of a server to another node, while one call waits to be sent
_READY: Final = State.READY  # an attribute of an enum class is slow


class EraChanged(Exception):
    """Raised when a call meant for a modern server is about to go to one that proved to be legacy."""


class Upstream:
    """One supervised server from the hub's point of view: calls, lists, subscriptions and status."""

    __slots__ = ("_clock", "_supervisor", "_task", "name", "server")

    def __init__(self, name: str, server: Server, context: UpstreamContext, era_hint: Era | None = None) -> None:
        self.name = name
        self.server = server
        self._supervisor = Supervisor(name, server, context, era_hint)
        self._clock = asyncio.get_running_loop().time
        self._task: asyncio.Task[None] | None = None

    def start(self, after: asyncio.Task[None] | None = None) -> None:
        """Start the supervisor task. The server's first start waits until the task `after` is done."""
        if not self.server.lazy:
            self._supervisor.start_requested.set()
        name = f"toolway upstream {self.name}"
        self._task = asyncio.get_running_loop().create_task(self._supervisor.run(after), name=name)

    def drain(self, context: UpstreamContext) -> None:
        """Stop accepting calls. Calls in flight finish; calls waiting for the server fail.

        The calls that fail were not sent. Later events from this upstream go only to `context`.
        """
        supervisor = self._supervisor
        supervisor.draining = True
        reason = "removed or replaced; running calls finish"
        supervisor.context.emit(
            StateChanged(self.name, supervisor.state.value, State.STOPPED.value, reason, state="idle")
        )
        supervisor.context = supervisor.lists.context = context
        supervisor.waiters.reject(supervisor.create_unavailable_error)

    async def stop(self) -> None:
        """Stop the server and free its resources.

        A server process that does not exit is killed, so this takes about 6 s at most.
        """
        self._supervisor.stop_requested.set()
        if self._task is not None:
            await asyncio.shield(self._task)

    def ensure_started(self) -> None:
        """Start the server unless it is running, even if earlier starts failed."""
        if self.state in (State.BACKING_OFF, State.FAILED):
            self.restart()
        self._supervisor.start_requested.set()

    def restart(self) -> None:
        """Restart the server now, in any state, and reset its restart backoff."""
        self._supervisor.history.backoff.reset()
        self._supervisor.start_requested.set()
        self._supervisor.restart_requested.set()

    def retry_start(self) -> None:
        """Retry starting a server that is not ready. A start in progress is only repeated if it fails.

        A server that is ready keeps its session and its running calls.
        """
        if self.state is State.STARTING:
            self._supervisor.retry_failed_start = True
        elif self.state is not State.READY:
            self.restart()

    # -- calls --------------------------------------------------------------------------------------------------------

    async def call(
        self, call: Call, input_schema: object = None, sent: tuple[Session, RequestExchange] | None = None
    ) -> Json:
        """Send a call and return its result, waiting for the server if it is starting.

        If the call was sent already, `sent` is the session and the exchange that it waits for. Raises `CallError` if
        the server is not available, or if the call fails, and `EraChanged` if it must not use the server's session.
        """
        supervisor, clock = self._supervisor, self._clock
        for retries in range(MAX_MOVES + 1):
            exchange = None
            session = supervisor.session
            if sent is not None:
                (session, exchange), sent = sent, None
            elif session is None or supervisor.state is not State.READY or supervisor.draining:
                session = await supervisor.wait_session(call.state)
            if call.state.requires_modern and session.protocol.era == "legacy":
                raise EraChanged
            supervisor.last_used = clock()
            try:
                return await session.call(call, input_schema, exchange)
            except (TransportError, JSONRPCError) as exc:
                if (
                    self._is_session_stale(exc)
                    and retries < _max_session_retries(exc)
                    and await self._session_replaced(session)
                ):
                    continue  # it did not run: use the next session
                if isinstance(exc, TransportError):
                    explain_rejected_token(exc, self.server)
                    if exc.code == "E-CLOSED" and session.ended_by is not None:
                        exc.reason, exc.code = session.ended_by.reason, session.ended_by.code
                raise call_error(exc, self.name, call.name, self.server.not_processed_codes) from exc
            except TimeoutError:
                if call.attempt_timeout is None:
                    raise
                raise attempt_timeout_error(self.name, call, call.attempt_timeout) from None
            finally:
                supervisor.last_used = clock()
        raise AssertionError("unreachable")

    def _is_session_stale(self, exc: TransportError | JSONRPCError) -> bool:
        """Return True if `exc` shows that the session is obsolete and the call did not run.

        Either its process died, or the server changed its era. Request a health check or a restart in these cases.
        """
        if isinstance(exc, JSONRPCError):
            if exc.code == UNSUPPORTED_PROTOCOL_VERSION:
                self._supervisor.era_hint = None
                self._supervisor.restart_requested.set()
            return exc.code == UNSUPPORTED_PROTOCOL_VERSION
        is_of_call = is_auth_code(exc.code) or exc.code in (WRONG_NODE, SEND_TOO_LATE)  # says nothing about the session
        stale = exc.certainty is Certainty.NOT_SENT and not is_of_call
        if stale:
            self._supervisor.check_requested.set()
        return stale

    async def _session_replaced(self, session: Session) -> bool:
        """Wait at most half a second for `session` to end. Return True if it has ended."""
        for _ in range(10):
            if self._supervisor.session is not session or self.state is not State.READY:
                return True
            await asyncio.sleep(0.05)
        return False

    async def ping(self) -> None:
        """Check that the server responds within its health timeout; start it if needed.

        Raises `CallError` if it does not become ready or does not respond.
        """
        session = await self._supervisor.wait_session(CallState())
        try:
            async with asyncio.timeout(self.server.health.ping_timeout):
                await session.ping()
        except TransportError as exc:
            raise call_error(exc, self.name, "") from exc
        except TimeoutError:
            raise self._supervisor.create_unavailable_error() from None

    async def check_health(self, timeout: float, *, start: bool) -> HealthResult:
        """Check the server now, within `timeout` seconds, starting it if it is down.

        A server that has not been used yet is only checked if `start` is True.
        """
        began = self._clock()
        ok: bool | None = False
        error = hint = ""
        if self.state is State.IDLE and not start:
            ok = None
        else:
            try:
                async with asyncio.timeout(timeout):
                    session = await self._supervisor.wait_session(CallState(), insist=start)
                error = await self._supervisor.health.check(session, max(timeout - (self._clock() - began), 0.1))
                ok = not error
            except CallError as exc:
                error, hint = exc.detail or exc.message, exc.hint
            except TimeoutError:
                error = f"not ready within {timeout:g} s: {self.status().why}"
            if error:
                self._supervisor.check_requested.set()
        return HealthResult(self.name, ok, self.state_word, self._clock() - began, error, hint)

    async def refresh_now(self, kind: ListKind) -> None:
        """Fetch a list from the server now. Raises `CallError` if the server is not ready or fails."""
        session = await self._supervisor.wait_session(CallState())
        try:
            await self._supervisor.lists.fetch(session, kind)
        except (TransportError, JSONRPCError) as exc:
            raise call_error(exc, self.name, "") from exc

    def refresh(self, kind: ListKind) -> None:
        """Mark one of the server's lists as changed; it will be fetched again soon."""
        self._supervisor.lists.refresh(kind)

    def is_pinned(self, tool: str) -> bool:
        """Return False if a tool's definition is not the pinned one, so it must not be used.

        The definition is the one that this connection lists.
        """
        return self._supervisor.context.is_pinned(self.name, tool, "")

    async def subscribe(self, kind: SubscriptionKind, name: str) -> None:
        """Subscribe to one of the server's resources or tasks, starting it if needed."""
        self._supervisor.start_requested.set()
        await self.subscriptions.add(kind, name)

    @property
    def subscriptions(self) -> Subscriptions:
        return self._supervisor.subscriptions

    # -- waiting ------------------------------------------------------------------------------------------------------

    async def wait_ready(self, call_state: CallState | None = None, *, urgent: bool = True) -> None:
        """Wait until calls can be sent. Raises `CallError` if the server stops or cannot start."""
        await self._supervisor.wait_session(call_state if call_state is not None else CallState(), urgent=urgent)

    async def wait_first_start(self) -> None:
        """Wait until the first start of the server has succeeded or failed, without a time limit."""
        await self._supervisor.first_start_done.wait()

    async def wait_list_fetched(self, kind: ListKind, *, urgent: bool = True) -> None:
        """Wait until the server is ready and this list, such as its tools, is fetched or known to be missing.

        Raises `CallError` if the server is stopping or cannot start.
        """
        await self._supervisor.wait_session(CallState(), urgent=urgent)
        await self._supervisor.lists.wait_fetched(kind)

    def create_unavailable_error(self) -> CallError:
        """Return the error for a call that cannot be sent now; it explains the server's state."""
        return self._supervisor.create_unavailable_error()

    # -- status -------------------------------------------------------------------------------------------------------

    def status(self) -> ServerStatus:
        return self._supervisor.status()

    @property
    def state(self) -> State:
        return self._supervisor.state

    @property
    def state_word(self) -> StateWord:
        """Return the state as users see it."""
        return state_word(self.state, has_failed=self._supervisor.history.has_failed)

    @property
    def is_starting(self) -> bool:
        """Return True if the server is starting, or is about to."""
        supervisor = self._supervisor
        is_due = supervisor.state is State.IDLE and supervisor.start_requested.is_set()
        return is_due or supervisor.state is State.STARTING

    def has_session(self, session: Session) -> bool:
        """Return True if calls can be sent in this session right now."""
        supervisor = self._supervisor
        return supervisor.session is session and supervisor.state is _READY and not supervisor.draining

    def mark_used(self, now: float) -> None:
        """Record that a call uses the server at `now`, so it does not count as idle."""
        self._supervisor.last_used = now

    @property
    def session(self) -> Session | None:
        """Return the current session with the server, ready or not, or None without a connection."""
        return self._supervisor.session

    @property
    def waiter_count(self) -> int:
        """Return the number of callers that wait for the server to be ready."""
        return len(self._supervisor.waiters)

    @property
    def is_draining(self) -> bool:
        """Return True if this upstream was removed or replaced, and accepts no more calls."""
        return self._supervisor.draining

    @property
    def is_stopping(self) -> bool:
        return self._supervisor.stop_requested.is_set()

    @property
    def is_busy(self) -> bool:
        """Return True if the server has running calls."""
        session = self._supervisor.session
        return session is not None and session.in_flight > 0

    @property
    def is_unused(self) -> bool:
        """Return True if this upstream has no running calls, waiting callers or subscriptions."""
        return not (self.is_busy or self._supervisor.waiters or self.subscriptions)

    @property
    def negotiated(self) -> NegotiatedProtocol | None:
        """Return the negotiated era, version and capabilities, or None if the server is not ready."""
        session = self._supervisor.session
        return session.negotiated if session is not None and self.state is State.READY else None

    @property
    def is_modern(self) -> bool:
        """Return True if the server is ready and speaks the modern protocol (2026-07-28 or later)."""
        supervisor = self._supervisor
        session = supervisor.session
        if session is None or session.negotiated is None or supervisor.state is not State.READY:
            return False
        return session.negotiated.era == "modern"

    @property
    def is_with_peer(self) -> bool:
        """Return True if the session is with a peer that stands in for the server, such as a node."""
        session = self._supervisor.session
        return session is not None and session.transport.info().peer_is_modern

    @property
    def era(self) -> Era | None:
        """Return the server's protocol era, or the last known one if it is not ready."""
        negotiated = self.negotiated
        return negotiated.era if negotiated is not None else self._supervisor.era_hint


def _max_session_retries(exc: TransportError | JSONRPCError) -> int:
    """Return how many more sessions to try for a call that failed with `exc` and did not run.

    More are allowed if the server has moved to another node of a cluster.
    """
    return MAX_MOVES if isinstance(exc, TransportError) and exc.code == SERVER_MOVED else 1
