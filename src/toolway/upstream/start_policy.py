"""Rules for server starts: restart delays after failures, and a limit on concurrent starts.

`FailureHistory` and `RestartBackoff` do no I/O: time and random source are arguments. The supervisor does the
waiting.

If forty servers start together, they compete for the same cores, and the one that is needed now is as late as the
rest. So a start needs a permit from the `StartLimiter`. It keeps the permit until the server responds, but for at
most one second. A server that a call is waiting for skips the queue.

A server that is down is started again after its delay, or earlier if something asks for it: a call, a check or a
list. All of them share one start.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from toolway._async import LightEvent
from toolway.config.schema import RestartPolicy, Server
from toolway.protocol.constants import METHOD_NOT_FOUND
from toolway.types import Era
from toolway.upstream.process.spawner import SANDBOX_CODE
from toolway.upstream.session import Session
from toolway.upstream.state import State, StateEvent, state_word
from toolway.upstream.status import ServerStatus, describe_state
from toolway.upstream.transport import (
    CONNECTION_CODES,
    RESTART_CODE,
    SERVER_MOVED,
    Disconnect,
    JSONRPCError,
    TransportError,
    TransportInfo,
)

ATTEMPT_INTERVAL_S: Final = 1.0  # between two starts of a server that is down, however many calls ask for it
EXPECTED_LIFETIME_S: Final = 5.0  # after this time the expected end of a connection is not a failure


class FailureHistory:
    """One upstream's failures: why it last ended, when it starts next, and the resulting status."""

    __slots__ = (
        "_gave_up",
        "_has_url",
        "_max_url_delay",
        "attempted_at",
        "backoff",
        "is_early",
        "is_wanted",
        "last_failure",
        "last_transport_info",
        "messages_received",
        "messages_sent",
        "retry_at",
        "start_failures",
        "state_since",
    )

    def __init__(self, server: Server, random: Callable[[], float], now: float) -> None:
        self.backoff = RestartBackoff(server.restart, random)
        self.last_failure: Disconnect | None = None
        self.last_transport_info = TransportInfo()  # of the previous transport
        self.messages_sent = 0  # over earlier transports
        self.messages_received = 0
        self.start_failures = 0  # since the last successful start
        self.retry_at = 0.0
        self.state_since = now  # start of the current state
        self.attempted_at = -math.inf  # when the last start began
        self.is_early = False  # the start in progress is before `retry_at`, because something asks for the server
        self.is_wanted = False  # something waits for the next start
        self._gave_up = False
        self._has_url = server.transport != "stdio"
        self._max_url_delay = server.restart.max_backoff

    def record_transport(self, info: TransportInfo) -> None:
        """Remember a closed transport's last information, and add its message counts to the totals."""
        self.last_transport_info = info
        self.messages_sent += info.messages_sent
        self.messages_received += info.messages_received

    def record_end(self, disconnect: Disconnect, ready_for: float, now: float) -> StateEvent:
        """Record that a transport ended and schedule the next start; return the resulting state event.

        `ready_for` is the number of seconds that the server was ready; it is 0 for a failed start.
        """
        self.last_failure = disconnect
        is_early, self.is_early = self.is_early, False
        if is_early and self._is_unreachable:  # as if it had not been tried
            self.retry_at = max(self.retry_at, self.attempted_at + ATTEMPT_INTERVAL_S)
            return StateEvent.GAVE_UP if self._gave_up else StateEvent.ENDED
        if disconnect.expected and ready_for >= EXPECTED_LIFETIME_S:
            self.backoff.reset()
        wait, gave_up = self.backoff.next_delay(now, ready_for)
        if disconnect.code.startswith("E-CONFIG-"):  # each start fails until the configuration is changed
            wait, gave_up = self.backoff.failed_retry_interval, True
        elif self._has_url and not self.needs_user:  # a connection costs little
            wait = min(wait, self._max_url_delay)
        self.retry_at = now + wait
        self._gave_up = gave_up
        return StateEvent.GAVE_UP if gave_up else StateEvent.ENDED

    def begin_attempt(self, now: float) -> None:
        """Record that a start begins at the time `now`."""
        self.attempted_at = now
        self.is_wanted = False

    def next_start(self) -> float:
        """Return the time of the next start, which is before `retry_at` if something is waiting for it."""
        return min(self.retry_at, self.attempted_at + ATTEMPT_INTERVAL_S) if self.is_wanted else self.retry_at

    def next_chance(self) -> float:
        """Return the time of the next start if a call asks for it."""
        return self.retry_at if self.ignores_calls else min(self.retry_at, self.attempted_at + ATTEMPT_INTERVAL_S)

    @property
    def ignores_calls(self) -> bool:
        """Return True if calls do not start the server: it needs a user, or keeps crashing after starts.

        A call could start a crashing process, but the restart limit exists to stop exactly that.
        """
        is_crash_loop = self._gave_up and not self._has_url and not self.start_failures
        return self.needs_user or is_crash_loop

    @property
    def needs_user(self) -> bool:
        """Return True if starting will fail until a user logs in or the configuration changes."""
        code = self.last_failure.code if self.last_failure is not None else ""
        return code.startswith(("E-CONFIG-", "E-AUTH-")) and code != "E-AUTH-SERVER"

    @property
    def has_failed(self) -> bool:
        """Return True if the server failed. A requested restart is not a failure."""
        return self.last_failure is not None and self.last_failure.code != RESTART_CODE

    @property
    def _is_unreachable(self) -> bool:
        return self._has_url and self.last_failure is not None and self.last_failure.code in CONNECTION_CODES

    def build_status(
        self, name: str, server: Server, state: State, session: Session | None, era_hint: Era | None, now: float
    ) -> ServerStatus:
        """Return the server's status for users: state, last error, likely cause and a hint.

        `era_hint` is the last known protocol era of the server.
        """
        negotiated = session.negotiated if session is not None else None
        version = (negotiated.version or None) if negotiated else None
        info = session.transport.info() if session is not None else self.last_transport_info
        is_waiting = state in (State.BACKING_OFF, State.FAILED)
        wait = max(0.0, self.retry_at - now) if is_waiting else None
        failure, last_stderr = self.last_failure, self.last_transport_info.stderr
        cause, status_hint = self._diagnose(name, server, info)
        return ServerStatus(
            server=name,
            transport=info.transport or server.transport,
            state=state_word(state, has_failed=self.has_failed),
            lifecycle=state.value,
            era=negotiated.era if negotiated else era_hint,
            protocol=version,
            pid=info.pid if session is not None else None,
            restarts=self.backoff.total,
            in_flight=session.in_flight if session is not None else 0,
            last_error=failure.reason if failure and failure.code != RESTART_CODE else None,
            stderr=info.stderr or (last_stderr if failure else ""),
            next_retry=wait,
            since=now - self.state_since,
            why=describe_state(state, name, version, failure, cause, last_stderr, wait, info.transport),
            hint=status_hint,
            messages_sent=self.messages_sent + (info.messages_sent if session is not None else 0),
            messages_received=self.messages_received + (info.messages_received if session is not None else 0),
        )

    def _diagnose(self, name: str, server: Server, info: TransportInfo) -> tuple[str, str]:
        """Return the likely cause of the last failure and a hint, both empty if unknown.

        The cause is also empty if the failure has its own hint.
        """
        failure = self.last_failure
        if failure is None or failure.hint:
            return "", failure.hint if failure else ""
        if failure.code == SANDBOX_CODE:
            return "", sandbox_hint(name)
        from toolway.upstream.diagnosis import diagnose  # a large table, for failures only

        stderr = self.last_transport_info.stderr or info.stderr
        found = diagnose(server.command or server.url or "", failure.exit_code, stderr, failure.code)
        return found if found is not None else ("", "")


def sandbox_hint(name: str) -> str:
    """Return the hint for a server whose sandbox kept it from starting."""
    return f"see what it needs: toolway trust sandbox {name}"


def start_failure(exc: Exception, limit: float) -> Disconnect:
    """Return the `Disconnect` for a start that failed with `exc`.

    A `TimeoutError` means that the start took longer than `limit` seconds.
    """
    if isinstance(exc, TimeoutError):
        hint = f'increase the timeout: "startTimeout": "{2 * limit:g}s"'
        return Disconnect(f"no response within {limit:g} s", "E-START-TIMEOUT", hint=hint)
    if isinstance(exc, JSONRPCError):
        reason = f"the server rejected the session: error {exc.code}, {exc.message}"
        return Disconnect(reason, "E-START-REJECTED", hint=refusal_hint(exc))
    assert isinstance(exc, TransportError)
    if exc.code == SERVER_MOVED:
        return Disconnect(exc.reason, exc.code, moved=True)
    return Disconnect(exc.reason, exc.code, hint=exc.hint)


def refusal_hint(exc: JSONRPCError) -> str:
    """Return a hint for a server that answered its first requests with an error, or "" if there is none."""
    if exc.code != METHOD_NOT_FOUND:
        return ""
    return "the server knows neither initialize nor tools/list; to find out more: toolway explain E-START-REJECTED"


class RestartBackoff:
    """Counts how often a server ended and computes the delay before its next start.

    Delays are random and grow exponentially. After too many ends in a time window, the server counts as failed.
    """

    def __init__(self, policy: RestartPolicy, random: Callable[[], float]) -> None:
        self._policy = policy
        self._random = random  # uniform in [0, 1)
        self._end_times: deque[float] = deque()
        self._consecutive = 0
        self.total = 0

    def next_delay(self, now: float, ready_for: float) -> tuple[float, bool]:
        """Record the end of a server that was ready for `ready_for` seconds (0 for a failed start).

        Return the seconds to wait before the next start, and True if the server counts as failed.
        """
        policy = self._policy
        if ready_for >= policy.reset_after:
            self._end_times.clear()
            self._consecutive = 0
        self.total += 1
        self._end_times.append(now)
        while self._end_times[0] <= now - policy.window:
            self._end_times.popleft()
        if len(self._end_times) > policy.max_restarts:
            self._consecutive = 0
            return policy.failed_retry_interval, True
        ceiling = min(policy.max_backoff, policy.initial_backoff * 2 ** min(self._consecutive, 30))
        self._consecutive += 1
        return ceiling * self._random(), False

    @property
    def failed_retry_interval(self) -> float:
        return self._policy.failed_retry_interval

    def reset(self) -> None:
        """Forget earlier ends, so the next delay is short, for example after a manual restart."""
        self._end_times.clear()
        self._consecutive = 0


# -- concurrent starts ------------------------------------------------------------------------------------------------

MAX_PERMIT_HOLD_S: Final = 1.0  # a slow server no longer delays the queue after this time


class StartLimiter:
    """Limits how many servers start at the same time by handing out permits."""

    def __init__(self, permits: int) -> None:
        self._available = permits
        self._queue: deque[asyncio.Future[None]] = deque()

    async def acquire(self, urgent: LightEvent) -> StartPermit:
        """Wait for a permit to start a server. Once `urgent` is set, return one beyond the limit."""
        permit = StartPermit(self)
        if self._available > 0:
            self._available -= 1
            permit.start_timer()
            return permit
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(waiter)
        urgent_wait = asyncio.ensure_future(urgent.wait())
        waits: set[asyncio.Future[Any]] = {waiter, urgent_wait}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if waiter.done():
                permit.start_timer()
            return permit
        except asyncio.CancelledError:
            if waiter.done():
                self.release()
            raise
        finally:
            urgent_wait.cancel()
            if not waiter.done():
                self._queue.remove(waiter)

    def release(self) -> None:
        if self._queue:
            self._queue.popleft().set_result(None)
        else:
            self._available += 1


class StartPermit:
    """Permit to start a server; given back once, by `release` or by a timer after a second."""

    def __init__(self, limiter: StartLimiter) -> None:
        self._limiter = limiter
        self._timer: asyncio.TimerHandle | None = None

    def start_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(MAX_PERMIT_HOLD_S, self.release)

    def release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._limiter.release()
