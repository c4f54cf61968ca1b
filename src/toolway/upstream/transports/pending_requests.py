"""Requests that wait for their response on a shared transport, by id.

Ids count up and are never reused. So a late response cannot match another request: it is dropped and counted. Large
messages are decoded in a thread that regularly yields the GIL to the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from toolway.protocol import jsonrpc, versions
from toolway.types import Certainty, Json
from toolway.upstream.transport import JSONRPCError, Request, TransportError

MAX_ABANDONED: Final = 256
NO_ID: Final = 0  # never sent; used for a response whose id is not an integer
_NOT_FOUND: Final = (None, None)
_ID_HINT: Final = "correct the server: a response must have the id of its request, unchanged"


class PendingRequests:
    """Requests in flight on one connection, by JSON-RPC id; matches responses to them."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Request, asyncio.Future[Json]]] = {}
        self._loop = asyncio.get_running_loop()
        # Of cancelled requests: functions that get a late response. The requests themselves are not kept.
        self._abandoned: dict[int, Callable[[Json], None]] = {}
        self._last_id = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: Request) -> tuple[int, asyncio.Future[Json]]:
        """Assign an id to the request and add it. Return the id and the future of its result."""
        self._last_id += 1
        future: asyncio.Future[Json] = self._loop.create_future()
        self._waiting[self._last_id] = (request, future)
        request.call_state.jsonrpc_id = self._last_id
        return self._last_id, future

    def remove(self, id: int) -> None:
        """Remove a request that is finished or cancelled; a late response can still be reported."""
        request, _ = self._waiting.pop(id, _NOT_FOUND)
        if request is not None and request.call_state.on_late_result is not None:
            self._abandoned[id] = request.call_state.on_late_result
            if len(self._abandoned) > MAX_ABANDONED:
                del self._abandoned[next(iter(self._abandoned))]

    def resolve(self, message: jsonrpc.Message, frame: bytes = b"") -> None:
        """Set the result or error in `message` as the outcome of its request; count it if unmatched.

        `frame` is the message as received.
        """
        id_ = message.id if type(message.id) is int else self._reject_text_id(message.id)
        request, future = self._waiting.pop(id_, _NOT_FOUND)
        if future is None or request is None or future.done():
            self.dropped += 1
            on_late_result = self._abandoned.pop(id_, None)
            if on_late_result is not None:
                on_late_result(message.body)
        elif message.kind == "result":
            if message.is_bare_result and request.call_state.keep_raw:
                request.call_state.raw_bytes = jsonrpc.slice_result(frame, id_)
            future.set_result(message.body)
        else:
            future.set_exception(JSONRPCError(*jsonrpc.parse_error(message.body)))

    def reject(self, id: jsonrpc.MessageId | None, reason: str, code: str = "E-ANSWER", hint: str = "") -> bool:
        """Fail the pending request `id`, whose response is invalid. Return False if there is none."""
        future = self._pop(id)
        if future is None:
            return False
        future.set_exception(TransportError(reason, Certainty.UNKNOWN, code=code, hint=hint))
        return True

    def method_for(self, id: jsonrpc.MessageId | None) -> str:
        """Return the method of the pending request with this id, or an empty string without one."""
        return self._waiting[id][0].method if type(id) is int and id in self._waiting else ""

    def fail_all(self, reason: str, code: str, hint: str = "") -> None:
        """Fail all pending requests, each with its current certainty: the transport has ended."""
        waiting, self._waiting = self._waiting, {}
        for request, future in waiting.values():
            if not future.done():
                future.set_exception(TransportError(reason, request.call_state.certainty, code=code, hint=hint))

    def _reject_text_id(self, id: jsonrpc.MessageId | None) -> int:
        """Fail the pending request whose number `id` has as text: that is no response to it. Return `NO_ID`.

        Without the error, the caller of a server that turns numbers into text would wait until its deadline.
        """
        if isinstance(id, str) and id.isascii() and id.isdecimal() and len(id) <= 15 and str(int(id)) == id:
            self.reject(int(id), f'the server responded to the id "{id}" instead of {id}', hint=_ID_HINT)
        return NO_ID

    def _pop(self, id: jsonrpc.MessageId | None) -> asyncio.Future[Json] | None:
        _, future = self._waiting.pop(id if type(id) is int else NO_ID, _NOT_FOUND)
        return None if future is None or future.done() else future


# -- large messages ---------------------------------------------------------------------------------------------------

GIL_YIELD_S: Final = 0.0002  # seconds: enough for the event loop to wake up and take the GIL


async def parse_large(frame: bytes, method: str) -> jsonrpc.Message:
    """Decode a large response to a request for `method` in a thread.

    Raises `InvalidMessage` if it is not a valid JSON-RPC message.
    """
    return await asyncio.to_thread(jsonrpc.parse_in_slices, frame, versions.ITEMS_KEY.get(method, ""), _yield_gil)


async def decode_large(data: bytes) -> Any:
    """Decode any large JSON value in a thread. Raises `ValueError` if it is not valid JSON."""
    return await asyncio.to_thread(jsonrpc.decode_json_in_slices, data, "", _yield_gil)


def _yield_gil() -> None:
    """Sleep shortly in a decoding thread, so that the event loop gets the GIL."""
    time.sleep(GIL_YIELD_S)
