"""The two fates of a request of HTTP+SSE, that of its POST and that of its answer: how one decides the other."""

from __future__ import annotations

import asyncio
from typing import Final

from toolway.model import Certainty, Json
from toolway.protocol import wire
from toolway.upstream.link import Fault, RpcError

LATE: Final = 1.0  # seconds in which an answer may come whose POST got no response
_LOST: Final = frozenset({"E-HTTP-RESET", "E-HTTP-SLOW", "E-HTTP-TIMEOUT"})  # faults that a response is lost by
_PROXIES: Final = (502, 504)  # statuses by which a proxy says the same

Post = asyncio.Task[wire.Message | None]


async def taken(post: Post, answer: asyncio.Future[Json]) -> None:
    """Return when only the stream can tell more. Raises `Fault` or `RpcError`."""
    try:
        message = await post
    except Fault as fault:
        lost = fault.code in _LOST or fault.status in _PROXIES
        if fault.certainty is not Certainty.C2 or not lost:
            raise
        # The response is lost, and perhaps nothing else.
        await asyncio.wait({answer}, timeout=LATE)
        if not answer.done():
            raise
        return
    if message is None or answer.done():
        return
    if message.kind == "result":
        answer.set_result(message.body)
    else:
        answer.set_exception(RpcError(*wire.error_fields(message.body)))


async def stopped(post: Post) -> None:
    """Cancel it, and wait until what it sent is known."""
    post.cancel()
    await asyncio.wait({post}, timeout=1.0)


def look_at(post: Post) -> None:
    """Nobody else wants to know how it failed."""
    if not post.cancelled():
        post.exception()
