"""Requests that wait for their answer on a shared link, by id.

Ids are counted up and never used twice, so a late answer can meet no other request: it is dropped and counted.
"""

from __future__ import annotations

import asyncio
from typing import Final

from toolway.model import Certainty, Json
from toolway.protocol import wire
from toolway.upstream.link import Fault, Request, RpcError

MOST_LEFT: Final = 256
_NOBODY: Final = (None, None)


class Outstanding:
    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Request, asyncio.Future[Json]]] = {}
        self._loop = asyncio.get_running_loop()
        self._left: dict[int, Request] = {}  # whose late answer somebody wants to hear of
        self._last_id = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: Request) -> tuple[int, asyncio.Future[Json]]:
        self._last_id += 1
        future: asyncio.Future[Json] = self._loop.create_future()
        self._waiting[self._last_id] = (request, future)
        request.attempt.wire_id = self._last_id
        return self._last_id, future

    def forget(self, id: int) -> None:
        request, _ = self._waiting.pop(id, _NOBODY)
        if request is not None and request.attempt.late is not None:
            self._left[id] = request
            if len(self._left) > MOST_LEFT:
                del self._left[next(iter(self._left))]

    def settle(self, message: wire.Message, frame: bytes = b"") -> None:
        """Give a result or an error to the one who waits for it. `frame` is the message as it came."""
        id_ = message.id if type(message.id) is int else _ours(message.id)
        request, future = self._waiting.pop(id_, _NOBODY)
        if future is None or request is None or future.done():
            self.dropped += 1
            left = self._left.pop(id_, None)
            if left is not None and left.attempt.late is not None:
                left.attempt.late(message.body)
        elif message.kind == "result":
            if message.plain and request.attempt.keeps_bytes:
                request.attempt.encoded = wire.result_bytes(frame, id_)
            future.set_result(message.body)
        else:
            future.set_exception(RpcError(*wire.error_fields(message.body)))

    def spoil(self, id: wire.Id | None, reason: str, code: str = "E-ANSWER", fix: str = "") -> bool:
        """Fail the request that a spoiled answer belongs to; False where it belongs to none."""
        future = self._take(id)
        if future is None:
            return False
        future.set_exception(Fault(reason, Certainty.C2, code=code, fix=fix))
        return True

    def method(self, id: wire.Id | None) -> str:
        """What was asked with this id; empty where nobody waits for it."""
        id = _ours(id)
        return self._waiting[id][0].method if id in self._waiting else ""

    def fail_all(self, reason: str, code: str, fix: str = "") -> None:
        """The link ended: each request fails with how far it had got."""
        waiting, self._waiting = self._waiting, {}
        for request, future in waiting.values():
            if not future.done():
                future.set_exception(Fault(reason, request.attempt.certainty, code=code, fix=fix))

    def _take(self, id: wire.Id | None) -> asyncio.Future[Json] | None:
        _, future = self._waiting.pop(_ours(id), _NOBODY)
        return None if future is None or future.done() else future


def _ours(id: wire.Id | None) -> int:
    """The id as we sent it; zero, which we never send, for what is none of ours."""
    if isinstance(id, str) and id.isdecimal() and len(id) <= 15:
        return int(id)  # some servers turn our number into text; we send no text, so there is no doubt
    return id if isinstance(id, int) else 0
