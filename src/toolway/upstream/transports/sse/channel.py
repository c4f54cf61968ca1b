"""One stream of events and the requests that wait on it: a session of 2024-11-05.

Rule 1. The first event names the address for messages, in time, or there is no channel.
Rule 2. A stream that is lost is asked for once more from its last event on, where its events have ids. A server that
        goes on there has lost nothing; one that begins another session has, and the channel ends.
Rule 3. When the channel ends, each request fails with how far it had got: what was sent may have been executed.
Rule 4. An event that cannot be read or is too long costs the request whose id it still shows, and no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from toolway.model import Certainty
from toolway.protocol import wire
from toolway.upstream.link import Fault, Loss
from toolway.upstream.transports.decoding import parse_heavy
from toolway.upstream.transports.http.events_stream import TOO_LONG, Event, EventStream
from toolway.upstream.transports.http.listen import TURN
from toolway.upstream.transports.http1.client import HttpFault, Response, Target
from toolway.upstream.transports.outstanding import Outstanding
from toolway.upstream.transports.sse import said

ENDPOINT_TIME: Final = 10.0  # seconds from the head of the stream to its first event
BEFORE_ENDPOINT: Final = 16  # events that may come before the one that must come first
RESUME: Final = (0.1, 10.0)  # shortest and longest wait before a lost stream is asked for again
BAD_EVENTS: Final = (20, 60.0)  # so many spoiled messages in so many seconds and the channel ends
SLOW: Final = (10 * 1024, 10.0)  # an event that grows by less than so many bytes in so many seconds has stopped
ENDED: Final = "E-SSE-ENDED"

_log = logging.getLogger(__name__)

#: Opens the stream after the event of this id (empty: from now on). Raises `Fault`.
Get = Callable[[str], Awaitable[Response]]
#: Takes what is no answer.
Hear = Callable[[wire.Message], None]


class Channel:
    def __init__(self, get: Get, target: Target, frame: int, hear: Hear) -> None:
        self.endpoint: Target | None = None
        self.outstanding = Outstanding()
        self.noise = 0
        self.received = 0  # bytes
        self._get = get
        self._target = target
        self._frame = frame
        self._hear = hear
        self._loop = asyncio.get_running_loop()
        self._stream = EventStream(frame, skips=True)
        self._slow: asyncio.TimerHandle | None = None
        self._before = 0  # events that came before the first that counts
        self._bad: deque[float] = deque(maxlen=BAD_EVENTS[0])
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._idle: asyncio.Event | None = None  # set when the last answer has come, where somebody wants to know
        self._up = asyncio.Event()  # cleared while a lost stream is asked for again
        self.over: asyncio.Future[Loss] = self._loop.create_future()
        self._task = self._loop.create_task(self._live())

    async def open(self) -> None:
        """Return when messages can be sent. Raises `Fault`."""
        await asyncio.shield(self._ready)

    async def wait_up(self) -> Target:
        """Where messages go, as soon as their answers can be heard. Raises `Fault`: nothing was sent."""
        if not self._up.is_set():
            await self._up.wait()
        if self.over.done() or self.endpoint is None:
            loss = self.over.result() if self.over.done() else Loss("the stream is not open", ENDED)
            raise Fault(loss.reason, Certainty.C0, code=loss.code, fix=loss.fix)
        return self.endpoint

    def forget(self, id_: int) -> None:
        """Nobody waits for this answer any more."""
        self.outstanding.forget(id_)
        if self._idle is not None and not len(self.outstanding):
            self._idle.set()

    async def wait_answered(self, limit: float) -> None:
        """Return when nobody waits for an answer here, or the channel is over."""
        self._idle = asyncio.Event()
        if len(self.outstanding) and not self.over.done():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    await self._idle.wait()

    def end(self, loss: Loss) -> None:
        """Whatever may still come, it is over."""
        self._end(loss)
        self._task.cancel()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._end(Loss("closed by us", "E-CLOSED"))

    # -- the life of the stream ---------------------------------------------------------------------------------------

    async def _live(self) -> None:
        loss = Loss("closed by us", "E-CLOSED")
        try:
            loss = Loss(await self._listen(), ENDED)
        except Fault as fault:
            if not self._ready.done():
                self._ready.set_exception(fault)
                self._ready.exception()  # whoever waited may be gone
            loss = Loss(fault.reason, fault.code, fix=fault.fix)
        except Exception as exc:
            _log.exception("unexpected error in the stream of %s", self._target.origin)
            loss = Loss(f"unexpected error: {exc!r}", "E-INTERNAL")
        finally:
            self._end(loss)

    async def _listen(self) -> str:
        """Read, and go on after a loss where that is possible; how it ended. Raises `Fault`."""
        how = await self._read(await self._get(""))
        before = ""
        while (last := _sendable(self._stream.id)) and last != before:
            self._up.clear()
            before = last
            shortest, longest = RESUME
            await asyncio.sleep(min(longest, max(shortest, (self._stream.retry or 0) / 1000)))
            self._stream = EventStream(self._frame, id=last, skips=True)
            try:
                response = await self._get(last)
            except Fault:
                break
            self._up.set()
            how = await self._read(response)
        return how

    async def _read(self, response: Response) -> str:
        """Deliver what comes until the stream ends; how it ended. Raises `Fault`."""
        timer = self._loop.call_later(ENDPOINT_TIME, self._overdue)
        how = "the server ended its stream of events"
        try:
            async for chunk in response:
                self.received += len(chunk)
                for number, event in enumerate(self._stream.feed(chunk), 1):
                    await self._deliver(event)
                    if number % TURN == 0:
                        await asyncio.sleep(0)
                if self._stream.skipped > 8 * self._frame:
                    raise Fault("the server sends an event that does not end", Certainty.C2, code="E-FRAME-ENDLESS")
                if self._stream.begun and self._slow is None:
                    self._slow = self._loop.call_later(SLOW[1], self._check_slow, self.received)
        except HttpFault as fault:
            how = f"the stream was lost: {fault.reason}"
        finally:
            response.leave()
            timer.cancel()
        if not self._ready.done():
            raise said.no_endpoint(how)
        return how

    def _check_slow(self, before: int) -> None:
        """An event was begun some time ago. If it hardly grew while somebody waits, it will not come."""
        self._slow = None
        if not self._stream.begun or not len(self.outstanding) or self.over.done():
            return
        if self.received - before < SLOW[0]:
            self.end(Loss("the server stopped in the middle of an event", "E-FRAME-HALF"))
        else:
            self._slow = self._loop.call_later(SLOW[1], self._check_slow, self.received)

    def _overdue(self) -> None:
        if not self._ready.done():
            self._ready.set_exception(said.no_endpoint(f"nothing came within {ENDPOINT_TIME:g} s"))
            self._ready.exception()
            self._task.cancel()

    def _end(self, loss: Loss) -> None:
        if self.over.done():
            return
        self.over.set_result(loss)
        if self._slow is not None:
            self._slow.cancel()
        self._up.set()  # whoever waits for it hears why it is not
        self.outstanding.fail_all(loss.reason, loss.code, loss.fix)
        if not self._ready.done():
            self._ready.set_exception(Fault(loss.reason, Certainty.C0, code=loss.code))
            self._ready.exception()

    # -- what comes ---------------------------------------------------------------------------------------------------

    async def _deliver(self, event: Event) -> None:
        if event.event == "endpoint":
            self._on_endpoint(said.endpoint(self._target, event.data))
        elif self.endpoint is None:
            self._before += 1
            if self._before > BEFORE_ENDPOINT:
                raise said.no_endpoint("something else comes instead")
            self.noise += 1
        elif event.event is TOO_LONG:
            self._on_long(event.data)
        elif event.event == "message":
            await self._on_frame(event.data)  # others, such as `ping`, are signs of life

    def _on_endpoint(self, target: Target) -> None:
        if self.endpoint is None:
            self.endpoint = target
            self._up.set()
            if not self._ready.done():
                self._ready.set_result(None)
        elif target != self.endpoint:
            raise Fault("the server has begun another session", Certainty.C2, code=ENDED)

    async def _on_frame(self, frame: bytes) -> None:
        try:
            if wire.is_heavy(frame):
                message = await parse_heavy(frame, self.outstanding.method(wire.readable_id(frame)))
            else:
                message = wire.parse(frame)
        except wire.BadMessage as bad:
            self._on_bad(bad)
            return
        if message.kind in ("result", "error"):
            self.outstanding.settle(message, frame)
        else:
            self._hear(message)

    def _on_bad(self, bad: wire.BadMessage) -> None:
        self.noise += 1
        reason = f"the server's answer cannot be read: {bad.reason}"
        if self.outstanding.spoil(bad.id, reason, bad.code or "E-ANSWER", bad.fix):
            return
        now = self._loop.time()
        self._bad.append(now)
        count, seconds = BAD_EVENTS
        if len(self._bad) == count and now - self._bad[0] < seconds:
            raise Fault(f"{count} unreadable messages in {seconds:g} s", Certainty.C2, code="E-FRAME-BAD")

    def _on_long(self, head: bytes) -> None:
        reason = f"the server sent an event of more than {self._frame} bytes"
        fix = "raise `limits.frame` of this server"
        if not self.outstanding.spoil(wire.readable_id(head), reason, "E-HTTP-LIMIT", fix):
            raise Fault(reason, Certainty.C2, code="E-HTTP-LIMIT", fix=fix)


def _sendable(id_: str) -> str:
    return id_ if id_.isascii() and id_.isprintable() else ""
