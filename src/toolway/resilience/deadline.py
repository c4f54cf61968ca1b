"""The deadline stage: one budget for everything below it.

Time in which the server waits for the caller himself, for the answer to a question, is not counted. When it runs out,
what the attempt knows about itself decides what is said: nothing left us, or it may have happened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from toolway.config.spec import MAX_TIMEOUT
from toolway.errors import TimedOut
from toolway.model import Call, Next, Reply, Stage
from toolway.resilience.alarms import Alarms

LEAST: Final = 0.05  # with less time than this left, a call is not begun


def deadline(timeout_of: Callable[[Call], float], now: Callable[[], float]) -> Stage:
    alarms = Alarms()

    async def stage(call: Call, next: Next) -> Reply:
        seconds = min(timeout_of(call), MAX_TIMEOUT)
        if seconds < LEAST:
            raise _timed_out(call, seconds)
        call = replace(call, deadline=now() + seconds)
        try:
            with alarms.at(call.deadline, call.attempt.asked):
                return await next(call)
        except TimeoutError:
            raise _timed_out(call, seconds) from None

    return stage


def _timed_out(call: Call, seconds: float) -> TimedOut:
    attempt = call.attempt
    where = {
        "queue": "it was still waiting for a free slot",
        "start": "the server was still starting",
        "pause": "the server had asked us to wait",
        "turn": "it was waiting for its turn: this server takes one caller at a time",
        "connect": "there was no connection to the server yet",
        "auth": "there was no credential for the server yet",
        "send": "it was still being sent",
        "server": "the server had not answered",
        "stream": "the server had begun to answer, and had not ended",
        "caller": "whoever called had not answered a question of the server",
        "retry": "it was waiting to be tried again",
    }[attempt.where]
    return TimedOut(
        f"{call.server}.{call.name} took longer than {seconds:g} s",
        phase=attempt.where,
        server=call.server,
        tool=call.name,
        certainty=attempt.judge(),
        attempts=attempt.made,
        evidence=where,
        fix="allow more time with timeout=…, or check what the server does",
    )
