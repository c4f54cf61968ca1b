"""Noticing a server that fell silent."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from toolway.config.spec import Health
from toolway.upstream.flag import Flag
from toolway.upstream.link import Fault, Loss
from toolway.upstream.session import Session

CLOSE_ENOUGH = 0.001  # a timer may end a rounding error too early
PAUSE_AFTER_MISS = 1.0  # a refused connection answers at once; do not count three of them in a millisecond


async def watch_health(session: Session, health: Health, suspect: Flag) -> Loss:
    """Ask for a sign of life after silence, or at once when `suspect` is set. Returns when too many were missed."""
    loop = asyncio.get_running_loop()
    misses = 0
    while True:
        quiet = loop.time() - session.last_heard
        if not misses:
            await _wait_for_silence(health.interval - quiet if health.interval else None, suspect)
            if not suspect.is_set() and loop.time() - session.last_heard < health.interval - CLOSE_ENOUGH:
                continue
            suspect.clear()
        try:
            async with asyncio.timeout(health.timeout):
                await session.health()
            misses = 0
            continue
        except TimeoutError:
            reason = f"no sign of life within {health.timeout:g} s"
        except Fault as exc:
            reason = exc.reason
        misses += 1
        # A server at work may be too busy to answer; its call has a deadline of its own.
        if misses >= health.misses and (health.strict or not session.in_flight):
            return Loss(f"{reason} ({misses} times in a row)", "E-HEALTH")
        await asyncio.sleep(PAUSE_AFTER_MISS)


async def _wait_for_silence(left: float | None, suspect: Flag) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(left if left is None else max(left, 0)):
            await suspect.wait()
