"""One request, and the way to answer it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from toolway.gateway.http.messages import LAST_CHUNK, Fields, Request, chunk, head


class Wire(Protocol):
    """The connection, as whoever answers a request of it sees it."""

    known: bool  # the client has shown who it is

    @property
    def draining(self) -> bool: ...

    def send(self, data: bytes) -> None: ...

    def finished(self, close: bool) -> None: ...

    def abort(self) -> None: ...


class Exchange:
    """One request and the way to answer it: `reply` once, or `open`, `write` … and `end`."""

    __slots__ = (
        "_chunked",
        "_close",
        "_old",
        "_wire",
        "answered",
        "fields",
        "gone",
        "on_gone",
        "on_look",
        "opened",
        "request",
    )

    def __init__(self, wire: Wire, request: Request, close: bool, old: bool) -> None:
        self.request = request
        self.fields: Fields = ()  # of the response, whatever it is
        self.opened = False  # a response has begun
        self.answered = False  # and is complete
        self.gone = False  # the client has left
        self.on_gone: Callable[[], None] | None = None  # instead of cancelling the handler
        self.on_look: Callable[[float], None] | None = None  # called about once a second, with the loop's time
        self._wire = wire
        self._close = close
        self._old = old  # HTTP/1.0, which knows no chunks: the end of a response is the end of the connection
        self._chunked = False

    def known(self) -> None:
        """The client has shown who it is: its connection is not the first to go when there are too many."""
        self._wire.known = True

    def reply(self, status: int, body: bytes = b"", fields: Fields = ()) -> None:
        """The whole response."""
        assert not self.opened, "a response has begun already"
        close = self._begin()
        data = head(status, (*fields, *self.fields) if self.fields else fields, length=len(body), close=close)
        self._wire.send(data if self._bodiless else data + body)
        self._end()

    def open(self, status: int, fields: Fields) -> None:
        """Begin a response whose end is not known yet."""
        assert not self.opened, "a response has begun already"
        close = self._begin()
        self._chunked = not self._old
        self._wire.send(head(status, (*fields, *self.fields), length=None, close=close, chunked=self._chunked))

    def write(self, data: bytes) -> None:
        """Send a part of the body. A client that takes nothing is left, once too much waits for it."""
        if data and not self.answered and not self._bodiless:
            self._wire.send(chunk(data) if self._chunked else data)

    def end(self) -> None:
        if not self.answered:
            if self._chunked and not self._bodiless:
                self._wire.send(LAST_CHUNK)
            self._end()

    @property
    def _bodiless(self) -> bool:
        return self.request.method == "HEAD"

    def abort(self) -> None:
        """Cut a response off in the middle, so that nobody takes it for whole."""
        self.answered = True
        self._wire.abort()

    def _begin(self) -> bool:
        self.opened = True
        self._close = self._close or self._old or self._wire.draining
        return self._close

    def _end(self) -> None:
        self.answered = True
        self._wire.finished(self._close)
