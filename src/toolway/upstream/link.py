"""The seam between an upstream and the way to its server.

A link carries JSON-RPC requests to one server and tells, for each one that failed, how far it got. Everything above
(eras, restarts, lists, the pipeline) sees only this; stdio, HTTP and in-process servers stand behind it, and so can
anything else that answers requests.

Rules every link keeps:
1. One request's failure is that request's alone; only what ends the link itself reaches the others.
2. Every wait is bounded by the caller's cancellation; a link adds its own limits, never its own retries.
3. `request.attempt.certainty` is raised the moment a fact is known, so that a cancelled request can be judged.
4. Whatever the server sends is untrusted: it may fail its own request, and it never raises into the link's reader.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from toolway.errors import CallError
from toolway.model import Attempt, Certainty, Era, Json

MOVED: Final = "E-MOVED"  # the server is reached by another way now, so this start says nothing about it
NOT_HERE: Final = "E-NOT-HERE"  # whoever sent the call must look for the server elsewhere


class Request(msgspec.Struct, gc=False):
    """One JSON-RPC request. The link gives it its id."""

    method: str
    params: Json
    attempt: Attempt = msgspec.field(default_factory=Attempt)
    version: str | None = None  # the modern version it is stamped with; a link with headers mirrors it there
    input_schema: object = None  # of the tool that is called: some arguments are mirrored into headers
    fresh: bool = False  # do not trust a connection that has been idle: a loss there would be ambiguous
    quiet: bool = False  # when cancelled, do not tell the server


class Fault(Exception):
    """A request that got no usable answer, and what is known about it."""

    def __init__(
        self,
        reason: str,
        certainty: Certainty,
        *,
        code: str = "E-LINK",
        status: int | None = None,
        retry_after: float | None = None,
        fix: str = "",
        challenge: str | None = None,
        error: CallError | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.certainty = certainty
        self.code = code
        self.status = status  # the HTTP status, where there was one
        self.retry_after = retry_after  # seconds, where the server named them
        self.fix = fix
        self.challenge = challenge  # the WWW-Authenticate header, where there was one
        self.error = error  # what the call ended with, where whoever answered is one of us and has judged it already


class RpcError(Exception):
    """The server's own JSON-RPC error, unchanged."""

    def __init__(self, code: int, message: str, data: object = None, *, status: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.status = status  # the HTTP status it came with, where there was one


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a link ended."""

    reason: str
    code: str = "E-LINK"
    exit_code: int | None = None
    fix: str = ""
    usual: bool = False  # links of this kind end now and then, and nothing is wrong with the server
    moved: bool = False  # the way to the server is another one now: the next link is opened at once


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """What a person wants to know about a link."""

    pid: int | None = None
    stderr: str = ""  # the last lines
    dropped: int = 0  # answers nobody waited for
    noise: int = 0  # lines that were no messages
    notes: tuple[str, ...] = ()  # what else should be known about its list of tools
    transport: str = ""  # where it is not the one that the entry is usually reached by
    modern: bool = False  # whoever answers speaks the modern era, whatever the server itself speaks


class Inbound(Protocol):
    """Where a link delivers what the server sends of its own accord. Both must return at once. `about` is the request
    it belongs to, where the link can tell."""

    def on_notification(self, method: str, params: Json, about: Attempt | None = None) -> None: ...

    async def on_request(self, method: str, params: Json, about: Attempt | None = None) -> Json | None:
        """The result for the server, None to say nothing, or raise `RpcError` to refuse. Run by the link in a task
        of its own."""
        ...


class Link(Protocol):
    """One live way to a server. Opened once, closed once, never reused."""

    async def open(self, inbound: Inbound) -> None:
        """Bring the link up. Raises `Fault` (C0)."""
        ...

    async def request(self, request: Request) -> Json:
        """The result. Raises `Fault` or `RpcError`; cancelling it tells the server."""
        ...

    async def notify(self, method: str, params: Json) -> None:
        """Send a notification. Raises `Fault`."""
        ...

    def adopt(self, era: Era, version: str) -> None:
        """Hear what was agreed with the server, before the first request in that era."""
        ...

    def forget_session(self) -> None:
        """Drop what a handshake set up, because the server has forgotten it."""
        ...

    async def wait_lost(self) -> Loss:
        """Return when the link has ended by itself. A link without a connection of its own waits forever."""
        ...

    def facts(self) -> LinkFacts: ...

    async def close(self) -> None:
        """End the link and all that belongs to it, in bounded time. Safe to call twice."""
        ...
