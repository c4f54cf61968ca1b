"""The answer to one JSON-RPC request over HTTP: one JSON document if nothing else is to be said, or a stream of events.

Which of the two is decided when the first thing is sent. A long silence opens the stream too, so that nobody between
us and the client takes the connection for dead.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from toolway.gateway.failures import Failure
from toolway.gateway.http.exchange import Exchange
from toolway.gateway.http.messages import EVENTS, JSON_FIELDS, Fields
from toolway.model import Json
from toolway.protocol import wire

KEEP_ALIVE: Final = 15.0  # seconds of silence
_EVENTS: Final = (("content-type", EVENTS), ("cache-control", "no-store"), ("x-accel-buffering", "no"))
_COMMENT: Final = b": still here\n\n"


def event(message: bytes) -> bytes:
    return b"event: message\ndata: " + message + b"\n\n"


class Stream:
    """A response that is a stream of events."""

    def __init__(self, exchange: Exchange, fields: Fields = ()) -> None:
        self._exchange = exchange
        self._fields = fields
        self._silent_since = 0.0  # as far as was looked; 0 = something was just said
        self._over: asyncio.Event | None = None
        exchange.on_look = self._keep_alive

    @property
    def over(self) -> asyncio.Event:
        """Closed, by us or by the client. Most answers are over before anybody asks."""
        if self._over is None:
            self._over = asyncio.Event()
        return self._over

    @property
    def gone(self) -> bool:
        return self._exchange.gone

    def open(self) -> None:
        if not self._exchange.opened and not self._exchange.gone:
            self._exchange.open(200, (*_EVENTS, *self._fields))

    def send(self, message: bytes) -> None:
        self.write(event(message))

    def write(self, data: bytes) -> None:
        self.open()
        self._silent_since = 0.0
        self._exchange.write(data)

    def close(self) -> None:
        self.stop()
        self.over.set()
        if self._exchange.opened:
            self._exchange.end()

    def watch(self) -> None:
        """Let the end of the connection be the end of the stream, instead of cancelling whoever serves it."""
        self._exchange.on_gone = self.over.set

    def stop(self) -> None:
        """No more signs of life: somebody else ends the response."""
        self._exchange.on_look = None

    def _sign_of_life(self) -> bytes:
        return _COMMENT

    def _keep_alive(self, now: float) -> None:
        if self._exchange.gone or self._exchange.answered:
            return
        if not self._silent_since:
            self._silent_since = now
        elif now - self._silent_since >= KEEP_ALIVE:
            self.write(self._sign_of_life())


class Answer(Stream):
    """The answer to the request of this id."""

    def __init__(self, exchange: Exchange, id: wire.Id | None, fields: Fields = ()) -> None:
        super().__init__(exchange, fields)
        self.id = id

    def tell(self, method: str, params: Json) -> None:
        """A notification that belongs to the request."""
        if not self._exchange.answered:
            self.send(wire.notification(method, params))

    def result(self, result: Json | wire.AsItCame) -> None:
        assert self.id is not None
        self._finish(200, wire.result(self.id, result), ())

    def finish(self, message: bytes | None) -> None:
        """The answer, encoded; None for a request that the client has cancelled."""
        if message is not None:
            self._finish(200, message, ())
        elif self._exchange.opened:
            self.close()
        else:
            self._exchange.reply(202)

    def failure(self, failure: Failure) -> None:
        after = failure.retry_after
        fields = (("retry-after", str(max(1, round(after)))),) if after is not None else ()
        self._finish(failure.status, error(self.id, failure.code, failure.message, failure.data), fields)

    def _finish(self, status: int, message: bytes, fields: Fields) -> None:
        if self._exchange.answered or self._exchange.gone:
            return
        if self._exchange.opened:
            self._exchange.write(event(message))
            self._exchange.end()
        else:
            self._exchange.reply(
                status, message, (*JSON_FIELDS, *self._fields, *fields) if fields or self._fields else JSON_FIELDS
            )


def error(id: wire.Id | None, code: int, message: str, data: Any = None) -> bytes:
    """An error; of a request whose id could not be read, too."""
    body: Json = {"code": code, "message": message}
    if data is not None:
        body["data"] = data
    return wire.encode({"jsonrpc": "2.0", "id": id, "error": body})
