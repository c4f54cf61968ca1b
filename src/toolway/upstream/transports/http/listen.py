"""Streams of events: as the answer to a POST, and, in the handshake era, over GET: one for what a server says of its
own accord, and the rest of a broken answer.

Both GET streams are optional for the server. A refusal ends the listening without a word; a loss is followed by a new
try, later each time, for as long as the link lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from toolway.upstream.transports.http.events_stream import Event, EventStream, EventTooLong
from toolway.upstream.transports.http.verdict import media_type
from toolway.upstream.transports.http1.client import HttpFault, Response

#: Takes an event; whether it is the one that was sought.
Deliver = Callable[[Event], Awaitable[bool]]
#: Opens the stream after the event of this id; an empty id means from now on.
Get = Callable[[str], AbstractAsyncContextManager[Response]]

TURN: Final = 100  # events of one stream before everybody else gets a turn
SHORTEST: Final = 0.5  # seconds before a lost stream is opened again
LONGEST: Final = 30.0
_SOONEST_RESUME: Final = 0.1
_PASSING: Final = frozenset({408, 425, 429})


async def read_events(response: Response, stream: EventStream, deliver: Deliver) -> str:
    """Deliver until `deliver` says that what was sought has come; else, how the stream ended. Raises `HttpFault`."""
    try:
        async for chunk in response:
            for number, event in enumerate(stream.feed(chunk), 1):
                if await deliver(event):
                    response.finish_soon()
                    return ""
                if number % TURN == 0:
                    await asyncio.sleep(0)
    except HttpFault as fault:
        if fault.code != "E-HTTP-RESET":
            raise
        return fault.reason
    return "the server ended its stream without an answer"


async def listen(get: Get, deliver: Callable[[Event], Awaitable[None]], limit: int) -> None:
    """Deliver events until the server says that it has no such stream."""
    stream = EventStream(limit)
    failures = 0

    async def heard(event: Event) -> bool:
        nonlocal failures
        failures = 0
        await deliver(event)
        return False

    while True:
        stream = EventStream(limit, id=stream.id)
        with contextlib.suppress(HttpFault, EventTooLong):
            async with get(_sendable(stream.id)) as response:
                if _is_stream(response):
                    await read_events(response, stream, heard)
                elif not _may_pass(response.status):
                    return
        failures += 1
        await asyncio.sleep(_pause(failures, stream.retry))


async def resume(get: Get, stream: EventStream, limit: int, deliver: Deliver) -> None:
    """Go on with a broken answer until `deliver` says that it has come. Given up when a try brings nothing new."""
    before = ""
    while stream.id != before and _sendable(stream.id):
        before = stream.id
        await asyncio.sleep(min(LONGEST, max(_SOONEST_RESUME, (stream.retry or 0) / 1000)))
        stream = EventStream(limit, id=before)
        with contextlib.suppress(HttpFault):
            async with get(before) as response:
                if not _is_stream(response) or not await read_events(response, stream, deliver):
                    return


def _is_stream(response: Response) -> bool:
    return response.status == 200 and media_type(response.headers) == "text/event-stream"


def _may_pass(status: int) -> bool:
    return status >= 500 or status in _PASSING


def _sendable(id_: str) -> str:
    return id_ if id_.isascii() and id_.isprintable() else ""


def _pause(failures: int, retry: int | None) -> float:
    ceiling = min(LONGEST, SHORTEST * 2 ** min(failures, 10))
    wished = (retry or 0) / 1000
    return min(LONGEST, max(wished, random.uniform(SHORTEST, ceiling)))
