"""What was sent on the stream of a request of the handshake era, so that a client whose connection broke gets the rest.

Such a break is no cancellation: the call goes on, and what it says is kept, bounded in bytes, number and time, until
the client comes back with the id of the last event that reached it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from typing import Final, Protocol

from toolway.gateway.answers import Answer, event
from toolway.gateway.http.exchange import Exchange
from toolway.protocol import wire

MOST: Final = 16  # broken streams of one session
MOST_BYTES: Final = 256 * 1024  # of one stream, unless one message alone is longer
KEPT: Final = 120.0  # seconds after its end


class Outlet(Protocol):
    """Where a client has come back: a stream of ours, or the way to the gateway that it came to."""

    @property
    def gone(self) -> bool: ...

    def open(self) -> None: ...

    def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...


class Tape:
    def __init__(self, name: str) -> None:
        self.name = name
        self.over = False
        self._events: list[tuple[int, bytes]] = []
        self._size = 0
        self._numbers = itertools.count(1)
        self._outlet: Outlet | None = None  # on which the client has come back

    def add(self, message: bytes, *, last: bool = False) -> bytes:
        """Keep a message; the event that carries it."""
        number = next(self._numbers)
        data = f"id: {self.name}-{number}\n".encode() + event(message)
        self._events.append((number, data))
        self._size += len(data)
        while self._size > MOST_BYTES and len(self._events) > 1:
            self._size -= len(self._events.pop(0)[1])
        self.over = last
        if self._outlet is not None and not self._outlet.gone:
            self._outlet.write(data)
            if last:
                self._outlet.close()
        return data

    def first(self) -> bytes:
        """An event without a message, so that there is something to come back to."""
        return f"id: {self.name}-0\ndata: \n\n".encode()

    def resume(self, after: int, stream: Outlet) -> None:
        """Go on, on another stream, after the event of this number."""
        stream.open()
        for number, data in self._events:
            if number > after:
                stream.write(data)
        if self.over:
            stream.close()
        else:
            self._outlet = stream

    @property
    def arrives(self) -> bool:
        """Whether the client has come back and is still there."""
        return self._outlet is not None and not self._outlet.gone


class Tapes:
    """Those of one session. `tag` begins their names."""

    def __init__(self, tag: str = "") -> None:
        self._tag = tag
        self._all: OrderedDict[str, Tape] = OrderedDict()
        self._names = itertools.count(1)

    def begin(self) -> Tape:
        tape = Tape(f"{self._tag}{next(self._names)}")
        self._all[tape.name] = tape
        return tape

    def end(self, tape: Tape, *, arrived: bool) -> None:
        """The request is answered. What has not arrived is kept for a while."""
        if arrived:
            self._all.pop(tape.name, None)
            return
        over = [name for name, each in self._all.items() if each.over]
        for name in over[: max(0, len(over) - MOST)]:
            del self._all[name]
        asyncio.get_running_loop().call_later(KEPT, self._all.pop, tape.name, None)

    def find(self, last: str) -> tuple[Tape, int] | None:
        """The stream of an event, and the number of that event in it."""
        name, _, number = last.partition("-")
        tape = self._all.get(name)
        return (tape, int(number)) if tape is not None and number.isascii() and number.isdecimal() else None


class TapedAnswer(Answer):
    """The answer to a request in a session. It goes on without its connection, as long as the client can come back:
    it must have seen the id of an event."""

    def __init__(self, exchange: Exchange, id: wire.Id | None, tape: Tape, *, primes: bool) -> None:
        super().__init__(exchange, id)
        self._tape = tape
        self._primes = primes  # the client knows events that carry nothing but an id
        self._seen = False

    @property
    def lost(self) -> bool:
        """Whether the client is gone and cannot come back."""
        return self.gone and not self._seen

    @property
    def arrived(self) -> bool:
        """Whether nothing has to be kept."""
        return not self.gone or self._tape.arrives or self.lost

    def send(self, message: bytes) -> None:
        self._give(self._tape.add(message))

    def finish(self, message: bytes | None) -> None:
        if message is None or not (self._seen or self._exchange.opened):
            super().finish(message)
            return
        self.stop()
        self._give(self._tape.add(message, last=True))
        if not self.gone:
            self._exchange.end()

    def _give(self, data: bytes) -> None:
        if not self.gone:
            self._seen = True
            self.write(data)

    def _sign_of_life(self) -> bytes:
        if self._seen or not self._primes:
            return super()._sign_of_life()
        self._seen = True
        return self._tape.first()
