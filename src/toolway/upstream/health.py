"""Health checks of one server: by ping, and by its health URL if it has one.

While a server is ready, `HealthMonitor.watch` pings it if it is silent. A slow server answers the ping, but a hung
one does not. A process that has sent nothing for `health.timeout` seconds, not even the answer to a ping, is hung, so
the supervisor restarts it. A server with a URL cannot be restarted from here, so it gets a new connection after
several failed pings, but only if no call is in flight.

Many servers have one thread and do not answer while a tool is running. So during a call, a missing answer only counts
if the server has answered pings during calls before, which a bare server never has. It does not count within an
explicit time limit set for the call or server, because that limit will catch a hung server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from toolway._async import LightEvent
from toolway.config.schema import Server, Timeout
from toolway.events import Event, HealthChanged
from toolway.types import Call, Certainty
from toolway.upstream.session import Session
from toolway.upstream.transport import CONNECTION_CODES, Disconnect, TransportError

TIMER_TOLERANCE_S: Final = 0.001  # a timer may fire early by a rounding error
MISS_RETRY_DELAY_S: Final = 1.0  # a refused connection fails at once; do not count three of them in a millisecond
STALL_TOLERANCE_S: Final = 0.2  # a timer that fires later than this shows that our own event loop was blocked
_MAX_RETRY_AFTER_S: Final = 86_400.0  # seconds for which a server may refuse pings


class HealthMonitor:
    """Health checks of one server, and the result of the last check."""

    def __init__(self, name: str, server: Server, emit: Callable[[Event], None]) -> None:
        self._name = name
        self._server = server
        self._emit = emit
        self._clock = asyncio.get_running_loop().time
        self._refused_until = 0.0  # the server asked for no requests until then
        self._answers_during_calls = False  # it has answered a ping while a call ran, so it is not single-threaded
        self._ping_answered = False  # the last ping was answered itself
        self._ping_failure = ""
        self._ping_code = ""  # of the last failed ping, if the server could not be reached
        self._url_failure = ""

    @property
    def failure(self) -> str:
        """Return why the last check failed, or "" if it passed or none was made."""
        return self._ping_failure or self._url_failure

    def on_started(self) -> None:
        """Record that the server answered its startup requests, so it counts as healthy."""
        self._record(ping="")

    async def check(self, session: Session, timeout: float) -> str:
        """Check the server now, by a ping and by its health URL. Return why the check failed, or ""."""
        ping, url = await asyncio.gather(self._ping(session, timeout), self._get_url(timeout))
        self._record(ping, url)
        return self.failure

    async def watch(self, session: Session, check_requested: LightEvent) -> Disconnect:
        """Check the server until it must be restarted, and return the reason.

        `check_requested` triggers a ping at once.
        """
        if self._server.health.url is None:
            return await self._watch_pings(session, check_requested)
        watches = [
            asyncio.ensure_future(self._watch_pings(session, check_requested)),
            asyncio.ensure_future(self._watch_url(session)),
        ]
        try:
            done, _ = await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for each in watches:
                each.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    def _record(self, ping: str | None = None, url: str | None = None) -> None:
        before = self.failure
        self._ping_failure = self._ping_failure if ping is None else ping
        self._url_failure = self._url_failure if url is None else url
        if bool(before) != bool(self.failure):
            self._emit(HealthChanged(self._name, not self.failure, self.failure))

    # -- pings --------------------------------------------------------------------------------------------------------

    async def _watch_pings(self, session: Session, check_requested: LightEvent) -> Disconnect:
        health, is_process = self._server.health, self._server.transport == "stdio"
        ping_after = min(health.interval, health.timeout - health.ping_timeout) if is_process else health.interval
        misses = 0
        while True:
            if not misses:
                if not await self._wait_for_silence(session, ping_after, check_requested):
                    continue
                check_requested.clear()
            if session.in_flight and session.protocol.era == "bare":  # the ping would only be queued behind the call
                misses = 0
                await self._wait_while_working(session)
                continue
            silence = self._clock() - session.last_activity
            limit = max(health.timeout - silence, health.ping_timeout) if is_process else health.ping_timeout
            calls = _sent_calls(session)
            reason = await self._ping(session, limit)
            if self._ping_answered and any(call in calls for call in _sent_calls(session)):
                self._answers_during_calls = True
            is_judged = not session.in_flight or self._answers_during_calls or bool(self._ping_code)
            if is_judged or not reason:
                self._record(ping=reason)
            if not reason:
                misses = 0
                continue
            if not is_judged:
                misses = 0
                await self._wait_while_working(session)
                continue
            misses += 1
            if self._must_restart(session, misses):
                times = f" ({misses} times in a row)" if misses > 1 else ""
                return Disconnect(f"{reason}{times}", self._ping_code or "E-HEALTH")
            await asyncio.sleep(MISS_RETRY_DELAY_S)

    def _must_restart(self, session: Session, misses: int) -> bool:
        """Return True if `misses` failed pings in a row mean that the server must be restarted."""
        health, is_process = self._server.health, self._server.transport == "stdio"
        silence = self._clock() - session.last_activity + TIMER_TOLERANCE_S
        if not session.in_flight:
            return misses >= health.failure_threshold or (is_process and silence >= health.timeout)
        limits = (self._explicit_limit(call) for call in session.running_calls)
        return is_process and health.during_calls and silence >= max(health.timeout, *limits, 0.0)

    def _explicit_limit(self, call: Call) -> float:
        """Return a call's explicit time limit in seconds, or 0 if it has the default."""
        if call.timeout is not None:
            return call.timeout
        total = call.policy.timeout if call.policy is not None else self._server.timeout.total
        return 0.0 if total == Timeout().total else float(total)

    async def _wait_while_working(self, session: Session) -> None:
        """Wait until the server sends a message, or until no call is in flight."""
        heard = session.last_activity
        while session.in_flight and session.last_activity == heard:  # noqa: ASYNC110 - an event would cost every call
            await asyncio.sleep(MISS_RETRY_DELAY_S)

    async def _wait_for_silence(self, session: Session, seconds: float, check_requested: LightEvent) -> bool:
        """Wait until the server has been silent for `seconds` or a check is requested. Return True if one is due.

        Return False if the server sent a message during the wait. With 0 seconds, only a requested check ends the
        wait.
        """
        left = max(session.last_activity + seconds, self._refused_until) - self._clock() if seconds else None
        with suppress(TimeoutError):
            async with asyncio.timeout(left if left is None else max(left, 0)):
                await check_requested.wait()
        return check_requested.is_set() or self._clock() - session.last_activity >= seconds - TIMER_TOLERANCE_S

    async def _ping(self, session: Session, limit: float) -> str:
        """Ping the server. Return why that failed, or "" if the server sent any message in that time."""
        self._ping_code, self._ping_answered = "", False
        ping = asyncio.ensure_future(session.ping())
        try:
            while True:
                began, heard = self._clock(), session.last_activity
                await asyncio.wait({ping}, timeout=limit)
                if ping.done() or session.last_activity > heard:
                    break
                if self._clock() - began <= limit + STALL_TOLERANCE_S:
                    return f"no response to a health check within {limit:.3g} s"
            if ping.done():
                ping.result()
                self._ping_answered = True
            return ""
        except TransportError as exc:
            if exc.retry_after is None or exc.certainty is not Certainty.REJECTED:
                self._ping_code = exc.code if exc.code in CONNECTION_CODES else ""
                return exc.reason
            self._refused_until = self._clock() + min(exc.retry_after, _MAX_RETRY_AFTER_S)
            return ""  # it answers, and wants fewer requests
        finally:
            ping.cancel()
            await asyncio.gather(ping, return_exceptions=True)

    # -- health URL ---------------------------------------------------------------------------------------------------

    async def _watch_url(self, session: Session) -> Disconnect:
        health, misses = self._server.health, 0
        while True:
            reason = await self._get_url(health.ping_timeout)
            self._record(url=reason)
            misses = misses + 1 if reason else 0
            is_restartable = self._server.transport == "stdio" and (health.during_calls or not session.in_flight)
            if is_restartable and misses >= health.failure_threshold:
                return Disconnect(f"{reason} ({misses} times in a row)", "E-HEALTH")
            if not health.interval:
                await asyncio.Event().wait()
            await asyncio.sleep(health.interval)

    async def _get_url(self, limit: float) -> str:
        """Request the health URL, if any. Return why it failed, or "" for a 2xx status."""
        url = self._server.health.url
        if url is None:
            return ""
        from toolway.http.client import HttpClient, HttpError, HttpTarget

        client = HttpClient(network_policy=self._server.effective_network_policy)
        try:
            async with asyncio.timeout(limit), client.send("GET", HttpTarget.parse(url)) as response:
                status = response.status
        except TimeoutError:
            return f"no response of its health URL within {limit:.3g} s"
        except HttpError as exc:
            return f"its health URL failed: {exc.reason}"
        finally:
            client.close()
        return "" if 200 <= status < 300 else f"its health URL answered {status}"


def _sent_calls(session: Session) -> list[Call]:
    """Return the calls that the server has received but not answered."""
    return [call for call in session.running_calls if call.state.certainty is not Certainty.NOT_SENT]
