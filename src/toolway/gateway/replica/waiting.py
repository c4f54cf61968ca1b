"""Before a gateway of a cluster can be one: the record does not answer yet. It is waited for, for as long as it takes.

Who watches over processes must see one that lives and is not ready, not one that ends: a database that comes back after
all replicas gave up would find nobody. So the port is answered meanwhile, with as little as that takes.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

from toolway.errors import Unavailable
from toolway.gateway.door import problem
from toolway.gateway.http.connection import Refusal
from toolway.gateway.http.exchange import Exchange
from toolway.gateway.http.messages import JSON, Request
from toolway.gateway.http.server import HttpServer

AGAIN: Final = 1.0  # seconds between two tries
REMIND: Final = 60.0  # seconds after which the same complaint is logged once more

T = TypeVar("T")
log = logging.getLogger("toolway.cluster")


async def patiently(
    open: Callable[[], Awaitable[T]], end: asyncio.Event, host: str, port: int, tls: ssl.SSLContext | None
) -> T:
    """What `open` opens, when it can. Raises `Unavailable` where `end` comes before, and whatever else it raises."""
    room: HttpServer | None = None
    complaint, complained_at = "", 0.0
    now = asyncio.get_running_loop().time
    try:
        while True:
            try:
                return await open()
            except Unavailable as exc:
                if str(exc) != complaint or now() >= complained_at + REMIND:
                    complaint, complained_at = str(exc), now()
                    log.warning("not ready, and waiting: %s", exc)
                if end.is_set():
                    raise
            if room is None:
                room = await _answering(host, port, tls)
            with suppress(TimeoutError):
                await asyncio.wait_for(end.wait(), AGAIN)
    finally:
        if room is not None:
            await room.close(1.0)


async def _answering(host: str, port: int, tls: ssl.SSLContext | None) -> HttpServer:
    """Whoever comes to the port where the gateway will be. Where any port would do, nobody knows where to come."""
    room = HttpServer(_answer, greet=_refusal)
    if port:
        with suppress(OSError):  # the gateway itself will say so
            await room.listen(host, port, tls)
    return room


async def _answer(exchange: Exchange) -> None:
    if exchange.request.path == "/healthz":
        exchange.reply(200, b'{"ok":true}', (("content-type", JSON),))
    elif exchange.request.path == "/readyz":
        exchange.reply(503, b'{"ok":false}', (("content-type", JSON),))
    else:
        exchange.reply(*_refusal(exchange.request))


def _refusal(request: Request) -> Refusal:
    what = "this gateway waits for the database of its cluster"
    status, body, fields = problem(503, what, fix="try again, or ask another gateway", code="E-RECORD")
    return status, body, (*fields, ("retry-after", "1"))
