"""Requests waiting for a response on a shared transport, by id.

Ids count up and are never reused. A late response therefore cannot match another request; it is dropped and counted.
Large messages are decoded in a thread that regularly yields the GIL to the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from toolway.protocol import jsonrpc, versions
from toolway.types import CallState, Certainty, Json
from toolway.upstream.transport import ExchangeListener, JSONRPCError, Request, RequestExchange, TransportError
from toolway.upstream.transports.stdio_pipes import Frame

MAX_ABANDONED: Final = 256
NO_ID: Final = 0  # never sent; used for a response whose id is not an integer
_ID_HINT: Final = "fix the server: a response must have the id of its request, unchanged"


class StreamExchange(RequestExchange):
    """`RequestExchange` on a stream that many requests share, such as a pipe or a WebSocket."""

    __slots__ = ("_error", "_future", "_loop", "line", "method")

    def __init__(
        self,
        id: int,
        call_state: CallState | None,
        listener: ExchangeListener | None,
        method: str,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        RequestExchange.__init__(self, id, call_state, listener)
        self.method = method
        self.line: Frame | None = None  # as written to the stream
        self._loop = loop
        self._error: TransportError | JSONRPCError | None = None
        self._future: asyncio.Future[Json] | None = loop.create_future() if listener is None else None

    @property
    def future(self) -> asyncio.Future[Json]:
        """Return a future of the request's result, for a coroutine that waits."""
        if self._future is None:
            self._future = self._loop.create_future()
            if self._error is not None:
                self._future.set_exception(self._error)
            elif self.result is not None:
                self._future.set_result(self.take_result())
        return self._future

    @property
    def is_abandoned(self) -> bool:
        """Return True if the task that waited for the result was cancelled, and has not removed the request yet."""
        return self._future is not None and self._future.done()

    def succeed(self, result: Json, frame: bytes) -> None:
        self.result, self.frame = result, frame
        listener, self.listener = self.listener, None
        if listener is not None:
            listener.arrived(result, frame)
        elif self._future is not None and not self._future.done():
            self._future.set_result(self.take_result())

    def fail(self, error: TransportError | JSONRPCError) -> None:
        self._error = error
        listener, self.listener = self.listener, None
        if listener is not None:
            listener.failed()
        elif self._future is not None and not self._future.done():
            self._future.set_exception(error)


class PendingRequests:
    """Requests in flight on one connection, by JSON-RPC id; matches responses to them."""

    def __init__(self) -> None:
        self._waiting: dict[int, StreamExchange] = {}
        self._loop = asyncio.get_running_loop()
        # Of cancelled requests: functions that get a late response. The requests themselves are not kept.
        self._abandoned: dict[int, Callable[[Json], None]] = {}
        self._last_id = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: Request) -> tuple[int, asyncio.Future[Json]]:
        """Assign an id to the request and add it. Return the id and the future of its result."""
        exchange = self.start(request, None)
        return exchange.id, exchange.future

    def start(self, request: Request, listener: ExchangeListener | None) -> StreamExchange:
        """Assign an id to the request and add it. Return the exchange; its outcome is passed to `listener`."""
        self._last_id = id_ = self._last_id + 1
        state = request.call_state if listener is None else None
        self._waiting[id_] = exchange = StreamExchange(id_, state, listener, request.method, self._loop)
        return exchange

    def remove(self, id: int) -> None:
        """Remove a finished or cancelled request. If its call has a callback for late results, it is still called."""
        exchange = self._waiting.pop(id, None)
        state = exchange.call_state if exchange is not None else None
        if state is not None and state.on_late_result is not None:
            self._abandoned[id] = state.on_late_result
            if len(self._abandoned) > MAX_ABANDONED:
                del self._abandoned[next(iter(self._abandoned))]

    def resolve(self, message: jsonrpc.Message, frame: bytes = b"") -> None:
        """Set the result or error in `message` as the outcome of its request; count it if unmatched.

        `frame` is the message as received.
        """
        id_ = message.id if type(message.id) is int else self._reject_text_id(message.id)
        exchange = self._waiting.pop(id_, None)
        if exchange is None or exchange.is_abandoned:
            self.dropped += 1
            on_late_result = self._abandoned.pop(id_, None)
            if on_late_result is not None:
                on_late_result(message.body)
        elif message.kind == "result":
            exchange.succeed(message.body, frame if message.is_bare_result else b"")
        else:
            exchange.fail(JSONRPCError(*jsonrpc.parse_error(message.body)))

    def reject(self, id: jsonrpc.MessageId | None, reason: str, code: str = "E-ANSWER", hint: str = "") -> bool:
        """Fail the pending request `id`, whose response is invalid. Return False if there is none."""
        exchange = self._waiting.pop(id if type(id) is int else NO_ID, None)
        if exchange is None or exchange.is_abandoned:
            return False
        exchange.fail(TransportError(reason, Certainty.UNKNOWN, code=code, hint=hint))
        return True

    def method_for(self, id: jsonrpc.MessageId | None) -> str:
        """Return the method of the pending request with this id, or an empty string without one."""
        return self._waiting[id].method if type(id) is int and id in self._waiting else ""

    def fail_all(self, reason: str, code: str, hint: str = "") -> None:
        """Fail all pending requests, each with its current certainty: the transport has ended."""
        waiting, self._waiting = self._waiting, {}
        for exchange in waiting.values():
            exchange.fail(TransportError(reason, exchange.certainty, code=code, hint=hint))

    def _reject_text_id(self, id: jsonrpc.MessageId | None) -> int:
        """Fail the pending request whose id a server sent back as a string ("7" for 7), which is invalid.

        Return `NO_ID`. Without the error, its caller would wait until the deadline.
        """
        if isinstance(id, str) and id.isascii() and id.isdecimal() and len(id) <= 15 and str(int(id)) == id:
            self.reject(int(id), f'the server responded to the id "{id}" instead of {id}', hint=_ID_HINT)
        return NO_ID


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
    """Sleep briefly in a decoding thread, to let the event loop get the GIL."""
    time.sleep(GIL_YIELD_S)
