"""Circuit breaker: pauses calls to a server or tool that keeps failing.

    closed ──(5 failures in a row, or half of 20 in 10 s)──▶ open ──(its time is up)──▶ half open
      ▲                                                       ▲                              │
      └──────────────(2 successes in a row)───────────────────┼──────────────────────────────┤
                                                              └───────────(a failure)────────┘

A server that restarts loses all its connections at once, and refuses new ones until it is back. So only one of the
attempts that were in flight counts as a failure. A breaker that opens because the server cannot be reached stays open
for at most a second each time. But the pause grows as usual if the server answers probes and then loses every call.

An administrator may open a breaker in any state. If a breaker opens on another node, it also opens here if it is
closed. No I/O: time and random numbers are arguments. `TRANSITIONS` is the state machine; `CircuitBreaker` keeps the
counts that trigger its events.

The middleware has one breaker per server connection and one per tool. A server's breaker is tested with a request
that Toolway makes itself, never with a caller's call. A half-open breaker for a tool admits one call at a time.
"""

from __future__ import annotations

import asyncio
import enum
import math
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from toolway.errors import CallError, CallTimeout, Certainty, OutcomeUnknown, ProtocolError, ServerUnavailable
from toolway.types import Call, CallHandler, CallResult
from toolway.upstream.transport import CONNECT_TIMEOUT_CODE, CONNECTION_CODES

BREAKER_OPEN_CODE: Final = "E-BREAKER-OPEN"


class BreakerState(enum.StrEnum):
    """State of a circuit breaker: calls pass (closed), are rejected (open) or are trials."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class BreakerEvent(enum.StrEnum):
    """Event that changes the state of a circuit breaker."""

    TOO_MANY_FAILURES = "too many failures"
    PAUSE_OVER = "time over"
    TRIAL_FAILED = "trial failed"
    RECOVERED = "trials succeeded"
    TRIPPED = "opened manually"
    OPENED_REMOTELY = "opened by another node"


TRANSITIONS: Final[Mapping[BreakerState, Mapping[BreakerEvent, BreakerState]]] = {
    BreakerState.CLOSED: {
        BreakerEvent.TOO_MANY_FAILURES: BreakerState.OPEN,
        BreakerEvent.TRIPPED: BreakerState.OPEN,
        BreakerEvent.OPENED_REMOTELY: BreakerState.OPEN,
    },
    BreakerState.OPEN: {BreakerEvent.PAUSE_OVER: BreakerState.HALF_OPEN, BreakerEvent.TRIPPED: BreakerState.OPEN},
    BreakerState.HALF_OPEN: {
        BreakerEvent.TRIAL_FAILED: BreakerState.OPEN,
        BreakerEvent.RECOVERED: BreakerState.CLOSED,
        BreakerEvent.TRIPPED: BreakerState.OPEN,
    },
}


class BreakerPolicy(msgspec.Struct, frozen=True):
    """Thresholds and times that open and close a circuit breaker."""

    max_consecutive_failures: int = 5  # consecutive failures that open it
    failure_share: float = 0.5  # or this share of failures
    min_attempts: int = 20  # among at least this many attempts
    window_s: float = 10.0  # within this many seconds
    initial_open_s: float = 5.0  # seconds it stays open the first time; doubles each time
    jitter: float = 0.2
    max_open_s: float = 60.0  # seconds it stays open at most
    unreachable_open_s: float = 1.0  # the same if the server could not be reached; does not double
    reset_after_s: float = 300.0  # seconds closed after which the next pause is the first again
    trial_successes: int = 2  # consecutive successes that close it
    local_success_trust_s: float = 1.0  # seconds after a local success in which openings on other nodes are ignored


class BreakerStatus(msgspec.Struct, frozen=True):
    """Snapshot of a circuit breaker for status displays."""

    state: BreakerState
    retry_in_s: float  # seconds until it may be tried again
    consecutive_failures: int
    attempts: int  # attempts within the window
    failures: int  # of those
    openings: int  # since the last reset


class CircuitBreaker:
    """State machine of one circuit breaker. No I/O: time and random numbers are arguments."""

    def __init__(self, random: Callable[[], float], policy: BreakerPolicy | None = None) -> None:
        self.state = BreakerState.CLOSED
        self._policy = policy = policy or BreakerPolicy()
        self._random = random
        self._window = SlidingWindow(policy.window_s)
        self._consecutive_failures = 0
        self._openings = 0
        self._open_until = 0.0
        self._closed_at = -math.inf
        self._lost_at = -math.inf  # when the last lost or refused connection was counted
        self._successes = 0
        self._trial = False  # one at a time

    def seconds_until_allowed(self, now: float) -> float:
        """Return the seconds until the breaker allows an attempt, or 0 if it is allowed now.

        An open breaker becomes half open when its time is up. In that case, call `begin_trial` before the attempt.
        """
        if self.state is BreakerState.OPEN and now >= self._open_until:
            self._transition(BreakerEvent.PAUSE_OVER)
            self._successes = 0
            self._trial = False
        if self.state is BreakerState.OPEN:
            return self._open_until - now
        if self.state is BreakerState.HALF_OPEN and self._trial:
            return self._policy.initial_open_s / 10
        return 0.0

    def begin_trial(self) -> bool:
        """Register the start of a call attempt. Return True if it is a trial, because the breaker is half open."""
        self._trial = self.state is BreakerState.HALF_OPEN
        return self._trial

    def end_trial(self) -> None:
        """End a trial that neither succeeded nor failed, for example because the caller cancelled the call."""
        self._trial = False

    def record_success(self, now: float) -> None:
        self._trial = False
        self._consecutive_failures = 0
        if self.state is not _HALF_OPEN:
            window = self._window
            if now >= window.until:
                window.start_slot(now)
            window.newest.successes += 1
            return
        self._successes += 1
        if self._successes >= self._policy.trial_successes:
            self._transition(BreakerEvent.RECOVERED)
            self._closed_at = now
            self._window.clear()

    def record_failure(self, now: float, lost_since: float | None = None, *, refused: bool = False) -> None:
        """Record a failed attempt.

        If the attempt's connection was refused or lost, `lost_since` is the time at which the attempt began. The
        failure does not count if that was before the last counted loss, because both have the same cause. `refused`
        means that nothing was sent.
        """
        self._trial = False
        is_lost = lost_since is not None
        if self.state is BreakerState.HALF_OPEN:
            self._open(BreakerEvent.TRIAL_FAILED, now, is_unreachable=is_lost)
            return
        if lost_since is not None:
            if lost_since < self._lost_at:
                return
            self._lost_at = now
        self._consecutive_failures += 1
        self._window.record_failure(now)
        if self.state is BreakerState.CLOSED and self._has_too_many_failures(now):
            is_unreachable = is_lost and (refused or not self._answers_only_probes(now))
            self._open(BreakerEvent.TOO_MANY_FAILURES, now, is_unreachable=is_unreachable)

    def trip(self, now: float) -> None:
        """Open the breaker manually, for the maximum time (`max_open_s`)."""
        self._transition(BreakerEvent.TRIPPED)
        self._open_until = now + self._policy.max_open_s
        self._consecutive_failures = 0
        self._window.clear()

    def apply_remote(self, open_s: float, now: float) -> bool:
        """Open this breaker because it opened on another node. Return False if the change is ignored.

        Local knowledge wins, so the change is ignored after a recent local success, or if this breaker is not closed.
        """
        if self.state is not BreakerState.CLOSED:
            return False
        if not self._consecutive_failures and self._window.last_success() > now - self._policy.local_success_trust_s:
            return False
        self._transition(BreakerEvent.OPENED_REMOTELY)
        self._open_until = now + min(max(open_s, 0.0), self._policy.max_open_s)
        self._consecutive_failures = 0
        self._window.clear()
        return True

    def status(self, now: float) -> BreakerStatus:
        attempts, failures = self._window.count(now)
        wait = max(0.0, self._open_until - now) if self.state is BreakerState.OPEN else 0.0
        return BreakerStatus(self.state, wait, self._consecutive_failures, attempts, failures, self._openings)

    def _has_too_many_failures(self, now: float) -> bool:
        policy = self._policy
        if self._consecutive_failures >= policy.max_consecutive_failures:
            return True
        attempts, failures = self._window.count(now)
        return attempts >= policy.min_attempts and failures >= policy.failure_share * attempts

    def _answers_only_probes(self, now: float) -> bool:
        """Return True if trials have just closed the breaker, and no attempt has succeeded since."""
        attempts, failures = self._window.count(now)
        return now - self._closed_at <= self._policy.window_s and attempts == failures

    def _open(self, event: BreakerEvent, now: float, *, is_unreachable: bool) -> None:
        policy = self._policy
        if event is BreakerEvent.TOO_MANY_FAILURES and now - self._closed_at >= policy.reset_after_s:
            self._openings = 0
        if is_unreachable:
            self._open_until = now + policy.unreachable_open_s * (1 - policy.jitter * self._random())
        else:
            pause = policy.initial_open_s * 2.0 ** min(self._openings, 30)
            self._openings += 1
            self._open_until = now + min(policy.max_open_s, pause * (1 + policy.jitter * (2 * self._random() - 1)))
        self._consecutive_failures = 0
        self._window.clear()
        self._transition(event)

    def _transition(self, event: BreakerEvent) -> None:
        self.state = TRANSITIONS[self.state][event]


# -- middleware: one breaker per server and one per tool ---------------------------------------------------------------

CLOSED: Final = BreakerState.CLOSED
_HALF_OPEN: Final = BreakerState.HALF_OPEN  # an attribute of an enum class is slow
MAX_TOOL_BREAKERS: Final = 10_000  # remembered breakers of tools
Probe = Callable[[str], Awaitable[None]]
OnBreakerChange = Callable[[str, str, float], None]  # (server, tool or "", seconds open)


class CircuitBreakers:
    """All circuit breakers of a hub: one per server and one per tool.

    `on_opened` is called for each breaker that opens because of local failures. `on_manual_change` is called for each
    manual change, with 0 seconds if the breaker was closed.
    """

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self.on_opened: OnBreakerChange | None = None
        self.on_manual_change: OnBreakerChange | None = None
        self.removals = 0  # grows when a breaker is removed: a holder of one must look it up again
        self._servers: dict[str, CircuitBreaker] = {}
        self._tools: OrderedDict[tuple[str, str], CircuitBreaker] = OrderedDict()

    def server(self, name: str) -> CircuitBreaker:
        found = self._servers.get(name)
        if found is None:
            found = self._servers[name] = CircuitBreaker(self._random)
        return found

    def tool(self, server: str, name: str) -> CircuitBreaker:
        key = (server, name)
        found = self._tools.get(key)
        if found is None:
            found = self._tools[key] = CircuitBreaker(self._random)
            if len(self._tools) > MAX_TOOL_BREAKERS:
                self._tools.popitem(last=False)
                self.removals += 1
        return found

    def status(self, now: float) -> dict[tuple[str, str], BreakerStatus]:
        """Return the status of every breaker with failures or not closed, by (server, tool).

        The tool is "" in the key of a server's own breaker.
        """
        servers = {(name, ""): each.status(now) for name, each in self._servers.items()}
        tools = {key: each.status(now) for key, each in self._tools.items()}
        return {key: each for key, each in (servers | tools).items() if each.state is not CLOSED or each.failures}

    def trip(self, server: str, tool: str, now: float) -> None:
        """Open a tool's breaker manually, or the server's if `tool` is ""."""
        self._get(server, tool).trip(now)
        if self.on_manual_change is not None:
            self.on_manual_change(server, tool, self._get(server, tool).seconds_until_allowed(now))

    def reset(self, server: str, tool: str) -> None:
        """Close a tool's breaker manually, or the server's if `tool` is ""."""
        self._close(server, tool)
        if self.on_manual_change is not None:
            self.on_manual_change(server, tool, 0.0)

    def apply_remote(self, server: str, tool: str, open_s: float, now: float, *, manual: bool) -> None:
        """Apply a breaker change that another node published. It is not published again.

        A `manual` change opens the breaker, or closes it if `open_s` is 0. An automatic opening may be ignored.
        """
        if manual and open_s <= 0:
            self._close(server, tool)
        elif manual:
            self._get(server, tool).trip(now)
        else:
            self._get(server, tool).apply_remote(open_s, now)

    def report_opened(self, server: str, tool: str, now: float) -> None:
        """Call `on_opened` if the breaker of the server or tool is open after a failed attempt."""
        found = self._get(server, tool)
        if self.on_opened is not None and found.state is BreakerState.OPEN:
            self.on_opened(server, tool, found.seconds_until_allowed(now))

    def _get(self, server: str, tool: str) -> CircuitBreaker:
        return self.tool(server, tool) if tool else self.server(server)

    def _close(self, server: str, tool: str) -> None:
        self.removals += 1
        if tool:
            self._tools.pop((server, tool), None)
        else:
            self._servers.pop(server, None)

    def on_reconnect(self, server: str) -> None:
        """Reset a server's circuit breaker, because there is a new connection to the server.

        Failures of the old connection no longer count.
        """
        self.removals += 1
        self._servers.pop(server, None)

    def remove_server(self, server: str) -> None:
        """Remove all breakers of a server that was removed or restarted manually."""
        self.removals += 1
        self._servers.pop(server, None)
        for key in [key for key in self._tools if key[0] == server]:
            del self._tools[key]


def circuit_breaker(
    breakers: CircuitBreakers,
    now: Callable[[], float],
    probe: Probe,
    is_process: Callable[[str], bool] = lambda _: False,
) -> CircuitBreakerMiddleware:
    """Return middleware that rejects calls to a server or tool whose circuit breaker is open.

    `probe` tests a server whose breaker is half open. `is_process` returns True if a server is a local process, whose
    lost connections do not count because its supervisor handles its exit.
    """

    return CircuitBreakerMiddleware(breakers, now, probe, is_process)


class CircuitBreakerMiddleware:
    """Middleware that rejects calls to servers and tools that keep failing; `circuit_breaker` creates it."""

    def __init__(
        self,
        breakers: CircuitBreakers,
        now: Callable[[], float],
        probe: Probe,
        is_process: Callable[[str], bool],
    ) -> None:
        self._breakers = breakers
        self._now = now
        self._probe = probe
        self._is_process = is_process

    async def __call__(self, call: Call, next: CallHandler) -> CallResult:
        server, tool = self._breakers.server(call.server), self._breakers.tool(call.server, call.name)
        if server.state is not CLOSED:
            await _require_closed(call, self._breakers, server, self._now, self._probe)
        trial = tool.state is not CLOSED and _begin_tool_trial(call, tool, self._now())
        return await self._observe(call, next, server, tool, trial, self._now())

    async def resume(self, call: Call, wait: CallHandler, began: float) -> CallResult:
        """Await a call attempt that was sent after the time `began`, before its call entered the middleware chain.

        The breakers record the outcome, but they never reject the attempt.
        """
        server, tool = self._breakers.server(call.server), self._breakers.tool(call.server, call.name)
        return await self._observe(call, wait, server, tool, False, began)

    async def _observe(
        self, call: Call, next: CallHandler, server: CircuitBreaker, tool: CircuitBreaker, trial: bool, began: float
    ) -> CallResult:
        breakers, now = self._breakers, self._now
        try:
            reply = await next(call)
        except CallError as exc:
            at_fault = _breaker_at_fault(exc, server, tool, self._is_process(call.server))
            ended = now()
            if at_fault is server and server.state is CLOSED:  # a call from before its opening proves nothing
                _record_server_failure(server, exc, began, ended)
                breakers.report_opened(call.server, "", ended)
            if _record_failure(tool, at_fault is tool, trial, ended):
                breakers.report_opened(call.server, call.name, ended)
            raise
        except asyncio.CancelledError:
            # At the deadline the tool did not answer in time; before it, the caller cancelled.
            ended = now()
            silent = ended >= call.deadline and call.state.certainty is Certainty.UNKNOWN
            if _record_failure(tool, silent, trial, ended):
                breakers.report_opened(call.server, call.name, ended)
            raise
        except BaseException:
            _record_failure(tool, False, trial, now())
            raise
        record_success(server, tool, now(), trial=trial)
        return reply


def record_success(server: CircuitBreaker, tool: CircuitBreaker, now: float, *, trial: bool = False) -> None:
    """Record a successful attempt in the circuit breakers of its server and its tool.

    `trial` is True if the half-open breaker of the tool had let this attempt pass as a test.
    """
    if server.state is CLOSED:
        server.record_success(now)
    if trial or tool.state is CLOSED:
        tool.record_success(now)


async def _require_closed(
    call: Call, breakers: CircuitBreakers, server: CircuitBreaker, now: Callable[[], float], probe: Probe
) -> None:
    """Wait until a server's circuit breaker is closed. If it is half open, two successful probes close it.

    Raises `ServerUnavailable` if the breaker is open, opens again after a failed probe, or is already being probed.
    """
    while True:
        wait = server.seconds_until_allowed(now())
        if wait > 0:
            raise _open_error(call, f"{call.server} keeps failing", wait)
        if server.state is CLOSED:
            return
        server.begin_trial()
        began = now()
        try:
            await probe(call.server)
        except CallError as exc:
            _record_server_failure(server, exc, began, now())
            breakers.report_opened(call.server, "", now())
        except BaseException:
            server.end_trial()
            raise
        else:
            server.record_success(now())


def _begin_tool_trial(call: Call, tool: CircuitBreaker, now: float) -> bool:
    """Return True if the call is the trial of its tool's half-open breaker.

    Raises `ServerUnavailable` if that breaker is open or another trial is running.
    """
    wait = tool.seconds_until_allowed(now)
    if wait > 0:
        raise _open_error(call, f"{call.server}.{call.name} keeps failing", wait)
    return tool.begin_trial()


def _breaker_at_fault(
    exc: CallError, server: CircuitBreaker, tool: CircuitBreaker, is_process: bool
) -> CircuitBreaker | None:
    """Return the breaker (server's or tool's) that a failed call counts against, or None."""
    if isinstance(exc, ServerUnavailable | OutcomeUnknown):
        # A supervisor restarts a process or gives it up; a URL has no supervisor.
        return None if is_process else server
    if isinstance(exc, CallTimeout) or (isinstance(exc, ProtocolError) and exc.certainty is Certainty.UNKNOWN):
        return tool
    return None


def _record_server_failure(server: CircuitBreaker, exc: CallError, began: float, now: float) -> None:
    """Record a failed attempt or probe in the server's breaker: it began at `began` and failed with `exc`.

    If a server was reached but then takes too long, the server itself is at fault, so this is not a lost connection.
    """
    refused = exc.certainty is Certainty.NOT_SENT
    is_lost = exc.code in CONNECTION_CODES and (refused or exc.code != CONNECT_TIMEOUT_CODE)
    server.record_failure(now, began if is_lost else None, refused=refused)


def _record_failure(breaker: CircuitBreaker, at_fault: bool, trial: bool, now: float) -> bool:
    """Record a failed attempt in the breaker of its tool. Return True if the failure counted against it.

    While the breaker is not closed, only a trial's end counts, because a call from before the opening says nothing
    new.
    """
    if breaker.state is not CLOSED and not trial:
        return False
    if at_fault:
        breaker.record_failure(now)
    else:
        breaker.end_trial()
    return at_fault


def _open_error(call: Call, cause: str, wait: float) -> ServerUnavailable:
    error = ServerUnavailable(
        f"{cause}: its circuit breaker is open",
        server=call.server,
        tool=call.name,
        certainty=Certainty.NOT_SENT,
        retry_after=wait,
        detail=f"next attempt in {wait:.1f} s",
        hint=f"see the cause: toolway show {call.server}",
        code=BREAKER_OPEN_CODE,
    )
    error.retryable = False
    return error


# -- sliding window ----------------------------------------------------------------------------------------------------

WINDOW_SLOTS: Final = 200


class _Slot(msgspec.Struct):
    started_at: float
    successes: int = 0
    failures: int = 0


class SlidingWindow:
    """Counts of successes and failures within the last `window` seconds, in constant memory.

    The window is divided into 200 slots; attempts that end in the same slot are counted together.
    """

    def __init__(self, window: float) -> None:
        self._window = window
        self._slots: deque[_Slot] = deque()  # oldest first
        self.newest = _Slot(0.0)
        self.until = -math.inf  # end of the newest slot

    def record_success(self, now: float) -> None:
        if now >= self.until:
            self.start_slot(now)
        self.newest.successes += 1

    def record_failure(self, now: float) -> None:
        if now >= self.until:
            self.start_slot(now)
        self.newest.failures += 1

    def count(self, now: float) -> tuple[int, int]:
        """Return (attempts, failures): how many call attempts ended within the window, and how many of these failed."""
        self._drop_expired(now)
        failures = sum(slot.failures for slot in self._slots)
        return failures + sum(slot.successes for slot in self._slots), failures

    def last_success(self) -> float:
        """Return the approximate time of the last success in the window; -inf if there is none."""
        return next((slot.started_at for slot in reversed(self._slots) if slot.successes), -math.inf)

    def clear(self) -> None:
        self._slots.clear()
        self.until = -math.inf

    def __len__(self) -> int:
        """Return the number of time slots (parts of the window) in which attempts were counted."""
        return len(self._slots)

    def start_slot(self, now: float) -> None:
        """Begin a new time slot of the window; attempts are counted in it from now on."""
        self._drop_expired(now)
        self.newest = _Slot(now)
        self.until = now + self._window / WINDOW_SLOTS
        self._slots.append(self.newest)

    def _drop_expired(self, now: float) -> None:
        while self._slots and self._slots[0].started_at <= now - self._window:
            self._slots.popleft()
