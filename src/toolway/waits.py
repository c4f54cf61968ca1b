"""Ways to wait for several things: to the end whatever happens, or within a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any

from toolway.errors import TimedOut


async def all_to_the_end(work: Iterable[Awaitable[None]]) -> None:
    """Wait for all of it even when we are cancelled meanwhile; every part is bounded by itself."""
    everything = asyncio.gather(*work, return_exceptions=True)
    try:
        await asyncio.shield(everything)
    except asyncio.CancelledError:
        await everything
        raise


async def all_gone(leaving: Iterable[asyncio.Task[None]]) -> None:
    """Wait for upstreams that go by themselves, and go on doing so where we are cancelled."""
    await asyncio.shield(asyncio.gather(*leaving, return_exceptions=True))


async def within(timeout: float | None, work: Awaitable[Any], what: str) -> None:
    try:
        async with asyncio.timeout(timeout):
            await work
    except TimeoutError:
        raise TimedOut(f"{what} was not ready within {timeout:g} s", phase="start") from None


async def settle_within(timeout: float | None, waiting: Sequence[asyncio.Future[None]]) -> None:
    if not waiting:
        return
    try:
        await asyncio.wait(waiting, timeout=timeout)
    finally:  # also where we are cancelled: else they would go on, and complain that nobody looked at them
        for each in waiting:
            each.cancel()
            each.add_done_callback(_looked_at)
    await asyncio.gather(*waiting, return_exceptions=True)


def _looked_at(done: asyncio.Future[None]) -> None:
    if not done.cancelled():
        done.exception()
