"""Event streams: responses to POSTs, and the GET streams of the legacy era.

A GET stream carries server messages, or the rest of a broken response. Both GET streams are optional for the server. If
the server rejects the stream, reading ends silently. If the connection is lost, it is reopened with a growing delay, as
long as the transport lives. Each server request that a stream carries is answered in a task, with a separate POST.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from toolway.http.client import HttpError, HttpResponse
from toolway.protocol import jsonrpc
from toolway.protocol.constants import INTERNAL_ERROR
from toolway.types import CallState, Json
from toolway.upstream.transport import InboundHandler, JSONRPCError
from toolway.upstream.transports.http_responses import media_type
from toolway.upstream.transports.sse_parser import EventTooLong, SSEEvent, SSEParser

#: Called with each event; returns True if it is the expected one.
DeliverEvent = Callable[[SSEEvent], Awaitable[bool]]
#: Opens the stream after the event with this id; an empty id starts with new events.
OpenStream = Callable[[str], AbstractAsyncContextManager[HttpResponse]]

EVENT_STREAM_TYPE: Final = "text/event-stream"
MAX_PEEKED_CHUNKS: Final = 32  # chunks of a stream that are parsed again with each new one
EVENTS_PER_TURN: Final = 100  # events of one stream before the event loop serves other tasks
MIN_RECONNECT_DELAY_S: Final = 0.5  # seconds before a lost stream is reopened
MAX_RECONNECT_DELAY_S: Final = 30.0
_MIN_RESUME_DELAY_S: Final = 0.1
_TRANSIENT_STATUSES: Final = frozenset({408, 425, 429})


def peek_message(response: HttpResponse, limit: int) -> bytes | None:
    """Return the data of the only message on an event stream, without consuming it; b"" if none is complete yet.

    Return None if anything else has arrived: several or other events, too many chunks, or more than `limit` bytes.
    """
    chunks = response.chunks
    if response.unread > limit or len(chunks) > MAX_PEEKED_CHUNKS:
        return None
    if not chunks or chunks[-1][-1:] not in (b"\n", b"\r"):
        return b""
    events = SSEParser(limit).feed(chunks[0] if len(chunks) == 1 else b"".join(chunks))
    if not events:
        return b""
    return events[0].data if len(events) == 1 and events[0].type == "message" else None


async def read_events(response: HttpResponse, parser: SSEParser, deliver: DeliverEvent) -> str:
    """Pass a response's events to `deliver` until that returns True.

    Return an empty string then, or the reason if the stream ends earlier. Raises `HttpError` for failures other
    than a lost connection.
    """
    try:
        async for chunk in response:
            for number, event in enumerate(parser.feed(chunk), 1):
                if await deliver(event):
                    response.finish_soon()
                    return ""
                if number % EVENTS_PER_TURN == 0:
                    await asyncio.sleep(0)
    except HttpError as error:
        if error.code != "E-HTTP-RESET":
            raise
        return error.reason
    return "the server ended its stream without a response"


async def follow_get_stream(
    open_stream: OpenStream, deliver: Callable[[SSEEvent], Awaitable[None]], limit: int
) -> None:
    """Read the server's GET stream, and reopen it after each loss, until the server rejects it."""
    parser = SSEParser(limit)
    failures = 0

    async def on_event(event: SSEEvent) -> bool:
        nonlocal failures
        failures = 0
        await deliver(event)
        return False

    while True:
        parser = SSEParser(limit, id=parser.id)
        with contextlib.suppress(HttpError, EventTooLong):
            async with open_stream(header_safe_id(parser.id)) as response:
                if _is_stream(response):
                    await read_events(response, parser, on_event)
                elif not _is_transient(response.status):
                    return
        failures += 1
        await asyncio.sleep(_reconnect_delay(failures, parser.retry))


async def resume_response(open_stream: OpenStream, parser: SSEParser, limit: int, deliver: DeliverEvent) -> None:
    """Resume a broken event-stream response by GET until `deliver` returns True.

    Gives up, without an error, if an attempt brings no new event.
    """
    before = ""
    while parser.id != before and header_safe_id(parser.id):
        before = parser.id
        await asyncio.sleep(min(MAX_RECONNECT_DELAY_S, max(_MIN_RESUME_DELAY_S, (parser.retry or 0) / 1000)))
        parser = SSEParser(limit, id=before)
        with contextlib.suppress(HttpError):
            async with open_stream(before) as response:
                if not _is_stream(response) or not await read_events(response, parser, deliver):
                    return


def _is_stream(response: HttpResponse) -> bool:
    return response.status == 200 and media_type(response.headers) == EVENT_STREAM_TYPE


def _is_transient(status: int) -> bool:
    return status >= 500 or status in _TRANSIENT_STATUSES


def header_safe_id(id_: str) -> str:
    """Return the event id if it can be sent in an HTTP header, else an empty string."""
    return id_ if id_.isascii() and id_.isprintable() else ""


def _reconnect_delay(failures: int, retry: int | None) -> float:
    ceiling = min(MAX_RECONNECT_DELAY_S, MIN_RECONNECT_DELAY_S * 2 ** min(failures, 10))
    requested = (retry or 0) / 1000
    return min(MAX_RECONNECT_DELAY_S, max(requested, random.uniform(MIN_RECONNECT_DELAY_S, ceiling)))


# -- server requests --------------------------------------------------------------------------------------------------

MAX_REQUESTS_PER_STREAM: Final = 16  # in progress on the stream of one request; more are dropped
MAX_SERVER_REQUESTS: Final = 4096  # in progress on one transport: the user behind each of them may take long


class ServerRequests:
    """Server requests that are being answered on one transport, each in a task.

    `reply` posts an answer to the server, and ignores a rejection of it.
    """

    def __init__(self, reply: Callable[[bytes], Awaitable[None]]) -> None:
        self._reply = reply
        self._running: dict[jsonrpc.MessageId, asyncio.Task[None]] = {}
        self._count_by_stream: Counter[int] = Counter()

    def start(self, message: jsonrpc.Message, inbound: InboundHandler, call_state: CallState | None = None) -> bool:
        """Start a task that answers a server request.

        Return False, and drop the request, if too many are in progress or its id is a duplicate.
        """
        id_ = message.id
        assert id_ is not None
        stream = id(call_state) if call_state is not None else 0
        full = call_state is not None and self._count_by_stream[stream] >= MAX_REQUESTS_PER_STREAM
        if full or len(self._running) >= MAX_SERVER_REQUESTS or id_ in self._running:
            return False
        task = asyncio.create_task(self._handle(id_, message, inbound, call_state))
        self._running[id_] = task
        self._count_by_stream[stream] += 1

        def forget(_: asyncio.Task[None]) -> None:
            del self._running[id_]
            self._count_by_stream[stream] -= 1
            if not self._count_by_stream[stream]:
                del self._count_by_stream[stream]

        task.add_done_callback(forget)
        return True

    def cancel(self, params: Json) -> None:
        """Cancel the server request that a `notifications/cancelled` of the server names."""
        id_ = params.get("requestId")
        task = self._running.get(id_) if isinstance(id_, int | str) else None
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _handle(
        self, id_: jsonrpc.MessageId, message: jsonrpc.Message, inbound: InboundHandler, call_state: CallState | None
    ) -> None:
        try:
            result = await inbound.on_request(message.method, message.body, call_state)
            reply = jsonrpc.encode_result(id_, result) if result is not None else None
        except JSONRPCError as exc:
            reply = jsonrpc.encode_error(id_, exc.code, exc.message, exc.data)
        except Exception:
            reply = jsonrpc.encode_error(id_, INTERNAL_ERROR, "the client could not answer")
        if reply is not None:
            await self._reply(reply)
