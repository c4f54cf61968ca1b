"""One call over NATS that waits for its answer."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec

from toolway.gateway.replica.over_nats import frames
from toolway.gateway.replica.over_nats.transfer import Transfer
from toolway.model import Certainty
from toolway.protocol import wire
from toolway.upstream.link import Fault, Inbound, Request


class Waiting(msgspec.Struct, eq=False):
    request: Request
    answer: asyncio.Future[bytes]
    inbound: Inbound
    owner: str  # the subject of its calls
    limit: int  # bytes of an answer
    silent: int = 0  # looks since it was heard of
    gathering: frames.Gathering | None = None
    transfer: Transfer | None = None  # of the call itself

    def fail(self, reason: str, code: str, fix: str = "") -> None:
        if not self.answer.done():
            self.answer.set_exception(Fault(reason, self.request.attempt.certainty, code=code, fix=fix))

    def fail_unsent(self, reason: str, code: str) -> None:
        """It did not leave, or came to nobody."""
        self.request.attempt.certainty = Certainty.C0
        self.fail(reason, code)

    def hear(self, frame: bytes) -> None:
        """A notification that belongs to it."""
        with suppress(wire.BadMessage):
            message = wire.parse(frame[1:])
            if message.kind == "notification":
                self.inbound.on_notification(message.method, message.body, self.request.attempt)
