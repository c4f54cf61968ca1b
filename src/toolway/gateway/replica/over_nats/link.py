"""A server of a node that has no address: reached over NATS, behind the seam that all links have.

The owner is one more modern server. What it answers is looked at as strictly as what any server answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from nats.errors import Error as NatsError

from toolway.gateway.replica.links.to_owner import ToOwner
from toolway.gateway.replica.over_nats import frames
from toolway.gateway.replica.over_nats.transfer import Stalled, Transfer
from toolway.gateway.replica.over_nats.waiting import Waiting
from toolway.gateway.replica.over_nats.way import DOWN, LOST, NatsWay
from toolway.model import Certainty, Json
from toolway.protocol import wire
from toolway.upstream.link import Fault, Inbound, LinkFacts, Request, RpcError
from toolway.upstream.transports.decoding import parse_heavy


class NatsLink(ToOwner):
    """To the node that owns `server`, in that tenure of it. `find` finds our side of the way, which all links share.
    The requests carry their passes already."""

    def __init__(
        self,
        find: Callable[[], Awaitable[NatsWay]],
        server: str,
        node: str,
        epoch: int,
        limit: int = wire.FRAME_LIMIT,
    ) -> None:
        self._find = find
        self._server = server
        self._node = node
        self._epoch = epoch
        self._limit = limit

    async def open(self, inbound: Inbound) -> None:
        """Nothing is sent yet: whether the owner is there shows with the first request."""
        self._inbound = inbound
        self._way = await self._find()
        self._owner = self._way.subjects.calls(self._node, self._epoch)
        self._calls = _Calls(self._way, self._owner)

    async def request(self, request: Request) -> Json:
        request.attempt.phase = "send"
        request.attempt.encoded = None
        id_, waiting = self._way.enter(request, self._inbound, self._owner, self._limit)
        try:
            sending = self._send(id_, request, waiting)
            if sending is not None:
                await sending
            answer = await waiting.answer
        except asyncio.CancelledError:
            if not request.quiet:
                self._way.tell(id_, self._owner, frames.CANCEL)
            raise
        finally:
            self._way.leave(id_)
        try:
            message = await parse_heavy(answer, request.method) if wire.is_heavy(answer) else wire.parse(answer)
        except wire.BadMessage as bad:
            reason = f"the answer is not acceptable: {bad.reason}"
            raise Fault(reason, Certainty.C2, code=bad.code or "E-ANSWER", fix=bad.fix) from None
        return _result(answer, message, id_, request)

    def _send(self, id_: int, request: Request, waiting: Waiting) -> Coroutine[Any, Any, None] | None:
        """What must be waited for, if anything. Raises `Fault`."""
        way, attempt = self._way, request.attempt
        try:
            frame = frames.call(self._server, wire.request(id_, request.method, request.params))
        except (TypeError, ValueError, OverflowError, RecursionError) as exc:
            raise Fault(f"the request cannot be written: {exc}", Certainty.C0, code="E-REQUEST") from None
        if not way.client.is_connected:  # what is sent later would come late
            raise Fault("there is no connection to NATS", Certainty.C0, code=DOWN)
        if way.is_lost(self._owner):
            raise Fault("the node that owns the server gives no sign of life", Certainty.C0, code=LOST)
        if not frames.fits(frame, way.client.max_payload):
            return self._send_in_pieces(frame, way.reply(id_), request, waiting)
        attempt.sent()
        if way.is_alone():
            return self._publish(frame, way.reply(id_), request)
        way.send(id_, self._calls, frame)
        return None

    async def _publish(self, frame: bytes, reply: str, request: Request) -> None:
        try:
            await self._way.client.publish(self._owner, frame, reply)
        except (NatsError, OSError) as exc:
            raise _unsent(exc, request) from None

    async def _send_in_pieces(self, frame: bytes, reply: str, request: Request, waiting: Waiting) -> None:
        """The first piece goes where calls go; whoever took it takes the others too."""
        waiting.transfer = transfer = Transfer(self._way.window)
        client, subject = self._way.client, self._owner
        control = f"{subject}.{frames.CONTROL}"

        async def publish(piece: bytes) -> None:
            await client.publish(subject if piece[:1] == frames.FIRST else control, piece, reply)

        sending = asyncio.ensure_future(transfer.send(frame, client.max_payload, publish, request.attempt.sent))
        try:
            either: set[asyncio.Future[Any]] = {sending, waiting.answer}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        except Stalled:
            raise Fault("the owner does not take the request", request.attempt.certainty, code=LOST) from None
        except (NatsError, OSError) as exc:
            raise _unsent(exc, request) from None
        finally:
            waiting.transfer = None
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    def facts(self) -> LinkFacts:
        return LinkFacts(dropped=self._way.dropped, transport="nats")

    async def close(self) -> None:
        """Nothing to do: the way is that of all links."""


class _Calls:
    """Where calls to one owner go (`outbox.To`): NATS says where they are answered that nobody takes them."""

    def __init__(self, way: NatsWay, owner: str) -> None:
        self._way = way
        self.place = owner

    def alone(self, id_: str) -> tuple[str, str]:
        return self.place, self._way.reply(id_)

    def together(self, ids: list[str]) -> tuple[str, str]:
        return self.place, self._way.pack(ids)

    def unsent(self, ids: list[str]) -> None:
        self._way.unsent(ids)


def _unsent(exc: Exception, request: Request) -> Fault:
    """What could not be handed over did not leave."""
    request.attempt.certainty = Certainty.C0
    return Fault(f"NATS takes nothing: {type(exc).__name__}", Certainty.C0, code=DOWN)


def _result(frame: bytes, message: wire.Message, id_: int, request: Request) -> Json:
    """Raises `Fault` or `RpcError`."""
    if message.id != id_ or message.kind not in ("result", "error"):
        raise Fault("the owner sent something else than the answer", Certainty.C2, code="E-ANSWER")
    if message.kind == "error":
        raise RpcError(*wire.error_fields(message.body))
    if request.attempt.keeps_bytes and message.plain:
        request.attempt.encoded = wire.result_bytes(frame, id_)
    body: Json = message.body
    return body
