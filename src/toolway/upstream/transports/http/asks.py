"""Requests of a server, which it may make in the handshake era: each is answered in a task, by a POST of its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from mcp_types.jsonrpc import INTERNAL_ERROR

from toolway.model import Attempt, Json
from toolway.protocol import wire
from toolway.upstream.link import Inbound, RpcError

MAX_ASKS: Final = 16  # under way at once on the stream of one request; one more is dropped
MAX_ALL: Final = 4096  # of a link: there is a person behind each, who takes his time


class ServerRequests:
    """`reply` posts an answer; that the server does not take it is no concern of ours."""

    def __init__(self, reply: Callable[[bytes], Awaitable[None]]) -> None:
        self._reply = reply
        self._running: dict[wire.Id, asyncio.Task[None]] = {}
        self._on_stream: Counter[int] = Counter()

    def take(self, message: wire.Message, inbound: Inbound, about: Attempt | None = None) -> bool:
        """Begin to answer; False where there are too many already, or this one twice."""
        id_ = message.id
        assert id_ is not None
        stream = id(about) if about is not None else 0
        full = about is not None and self._on_stream[stream] >= MAX_ASKS
        if full or len(self._running) >= MAX_ALL or id_ in self._running:
            return False
        task = asyncio.create_task(self._answer(id_, message, inbound, about))
        self._running[id_] = task
        self._on_stream[stream] += 1

        def forget(_: asyncio.Task[None]) -> None:
            del self._running[id_]
            self._on_stream[stream] -= 1
            if not self._on_stream[stream]:
                del self._on_stream[stream]

        task.add_done_callback(forget)
        return True

    def cancelled(self, params: Json) -> None:
        """The server says that it no longer wants an answer."""
        id_ = params.get("requestId")
        task = self._running.get(id_) if isinstance(id_, int | str) else None
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, id_: wire.Id, message: wire.Message, inbound: Inbound, about: Attempt | None) -> None:
        try:
            result = await inbound.on_request(message.method, message.body, about)
            answer = wire.result(id_, result) if result is not None else None
        except RpcError as exc:
            answer = wire.error(id_, exc.code, exc.message, exc.data)
        except Exception:
            answer = wire.error(id_, INTERNAL_ERROR, "the client could not answer")
        if answer is not None:
            await self._reply(answer)
