"""Replay buffers, from which a reconnecting legacy client gets the rest of a request's stream.

A lost connection does not cancel a legacy request. The call continues, and its messages are buffered, within limits
on bytes, number, and time. The client reconnects with the id of the last event that it received.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from toolway.gateway.mcp.responses import ResponseWriter, encode_event
from toolway.http.exchange import Exchange
from toolway.protocol import jsonrpc

MAX_FINISHED_BUFFERS: Final = 16  # buffers of finished requests per session
MAX_BUFFER_BYTES: Final = 256 * 1024  # per stream, unless a single message is longer
MAX_FINISHED_BYTES: Final = 64 * 1024 * 1024  # buffers of finished requests, of all sessions
RETENTION_S: Final = 120.0  # seconds after the request has finished


class StreamTarget(Protocol):
    """The event stream to a reconnected client, on this node or on the node to which it reconnected."""

    @property
    def disconnected(self) -> bool: ...

    def open(self) -> None: ...

    def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...


class ReplayBuffer:
    """Buffered SSE events of one request, sent again if the client reconnects."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.complete = False
        self._events: list[tuple[int, bytes]] = []
        self._size = 0
        self._numbers = itertools.count(1)
        self._target: StreamTarget | None = None  # the stream on which the client reconnected

    def append(self, message: bytes, *, last: bool = False) -> bytes:
        """Buffer a message as an SSE event and send it to a reconnected client, if any.

        Return the encoded event. `last` marks the response of the request.
        """
        number = next(self._numbers)
        data = f"id: {self.name}-{number}\n".encode() + encode_event(message)
        self._events.append((number, data))
        self._size += len(data)
        while self._size > MAX_BUFFER_BYTES and len(self._events) > 1:
            self._size -= len(self._events.pop(0)[1])
        self.complete = last
        if self._target is not None and not self._target.disconnected:
            self._target.write(data)
            if last:
                self._target.close()
        return data

    def empty_event(self) -> bytes:
        """Return an SSE event that carries only an id, for the client to reconnect with."""
        return f"id: {self.name}-0\ndata: \n\n".encode()

    def resume(self, after: int, target: StreamTarget) -> None:
        """Send events numbered above `after` to the reconnected client, and later events as they arrive."""
        target.open()
        for number, data in self._events:
            if number > after:
                target.write(data)
        if self.complete:
            target.close()
        else:
            self._target = target

    @property
    def size(self) -> int:
        return self._size

    @property
    def is_delivering(self) -> bool:
        """True if the client has reconnected and is still connected."""
        return self._target is not None and not self._target.disconnected


class ReplayBudget:
    """Limits the bytes in the replay buffers of finished requests, across all of a gateway's sessions.

    If the limit is exceeded, the oldest buffers of the principal with the most bytes are dropped.
    """

    def __init__(self, max_bytes: int = MAX_FINISHED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._total = 0
        self._bytes: Counter[str] = Counter()  # by principal id
        self._drops: dict[str, dict[ReplayBuffer, Callable[[], None]]] = {}  # by principal id, oldest first

    def __len__(self) -> int:
        return self._total

    def add(self, principal_id: str, buffer: ReplayBuffer, drop: Callable[[], None]) -> None:
        """Count the bytes in a finished request's replay buffer, and drop other buffers if the limit is exceeded.

        `drop` is called if this buffer must be dropped to save memory, and must call `remove`.
        """
        self._drops.setdefault(principal_id, {})[buffer] = drop
        self._bytes[principal_id] += buffer.size
        self._total += buffer.size
        while self._total > self._max_bytes:
            largest = max(self._bytes, key=self._bytes.__getitem__)
            next(iter(self._drops[largest].values()))()

    def remove(self, principal_id: str, buffer: ReplayBuffer) -> None:
        drops = self._drops.get(principal_id, {})
        if drops.pop(buffer, None) is None:
            return
        self._bytes[principal_id] -= buffer.size
        self._total -= buffer.size
        if not drops:
            del self._drops[principal_id], self._bytes[principal_id]


class ReplayBuffers:
    """The replay buffers for one legacy session's requests. `tag` is the prefix of their names."""

    def __init__(self, tag: str = "", principal_id: str = "", budget: ReplayBudget | None = None) -> None:
        self._tag = tag
        self._principal_id = principal_id
        self._budget = budget if budget is not None else ReplayBudget()
        self._buffers: OrderedDict[str, ReplayBuffer] = OrderedDict()
        self._names = itertools.count(1)

    def create(self) -> ReplayBuffer:
        buffer = ReplayBuffer(f"{self._tag}{next(self._names)}")
        self._buffers[buffer.name] = buffer
        return buffer

    def release(self, buffer: ReplayBuffer, *, delivered: bool) -> None:
        """Drop the buffer of a finished request if the client received everything.

        If `delivered` is False, keep the buffer for `RETENTION_S` seconds, in case the client reconnects.
        """
        if delivered:
            self._buffers.pop(buffer.name, None)
            return
        complete = [name for name, each in self._buffers.items() if each.complete]
        for name in complete[: max(0, len(complete) - MAX_FINISHED_BUFFERS)]:
            self._drop(name)
        asyncio.get_running_loop().call_later(RETENTION_S, self._drop, buffer.name)
        self._budget.add(self._principal_id, buffer, partial(self._drop, buffer.name))

    def _drop(self, name: str) -> None:
        buffer = self._buffers.pop(name, None)
        if buffer is not None:
            self._budget.remove(self._principal_id, buffer)

    def find(self, event_id: str) -> tuple[ReplayBuffer, int] | None:
        """Return the buffer that an SSE event id belongs to and the event's number, or None if unknown."""
        name, _, number = event_id.partition("-")
        buffer = self._buffers.get(name)
        return (buffer, int(number)) if buffer is not None and number.isascii() and number.isdecimal() else None


class ResumableResponse(ResponseWriter):
    """A response to a request in a legacy session. It survives a lost connection if the client can reconnect.

    A client can reconnect only if it has received an event id.
    """

    def __init__(
        self, exchange: Exchange, id: jsonrpc.MessageId | None, buffer: ReplayBuffer, *, accepts_empty_events: bool
    ) -> None:
        super().__init__(exchange, id)
        self.buffer = buffer
        self._accepts_empty_events = accepts_empty_events  # the client accepts events that consist of an id only
        self._event_id_sent = False

    @property
    def is_lost(self) -> bool:
        """True if the client is disconnected and has no event id to reconnect with."""
        return self.disconnected and not self._event_id_sent

    @property
    def is_delivered(self) -> bool:
        """True if the replay buffer is not needed: the client has all events, or cannot reconnect."""
        return not self.disconnected or self.buffer.is_delivering or self.is_lost

    def send(self, message: bytes) -> None:
        self._deliver(self.buffer.append(message))

    def try_send(self, message: bytes) -> bool:
        """Send a message that belongs to the request. Return False if the client can never receive it."""
        if self.is_lost:
            return False
        self.send(message)
        return True

    def finish(self, message: bytes | None) -> None:
        if message is None or not (self._event_id_sent or self._exchange.opened):
            super().finish(message)
            return
        self.stop_keepalive()
        self._deliver(self.buffer.append(message, last=True))
        if not self.disconnected:
            self._exchange.end()

    def _deliver(self, data: bytes) -> None:
        if not self.disconnected:
            self._event_id_sent = True
            self.write(data)

    def _keepalive_data(self) -> bytes:
        if self._event_id_sent or not self._accepts_empty_events:
            return super()._keepalive_data()
        self._event_id_sent = True
        return self.buffer.empty_event()
