"""One call of another node, from its first piece to the last of its answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from mcp_types.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST
from nats.aio.client import Client
from nats.errors import Error as NatsError

from toolway.gateway.codes import OUTCOME_UNKNOWN, OVERLOADED
from toolway.gateway.failures import Failure
from toolway.gateway.relay import Result
from toolway.gateway.replica.over_nats import frames
from toolway.gateway.replica.over_nats.kept import Kept
from toolway.gateway.replica.over_nats.outbox import Outbox
from toolway.gateway.replica.over_nats.transfer import ALL, Stalled, Transfer
from toolway.gateway.visit import Tell
from toolway.model import Json
from toolway.protocol import wire
from toolway.upstream.transports.decoding import parse_heavy

FEW: Final = 2  # calls under way
MOST_NOTES: Final = 1000  # notifications of one call in one turn of the loop; more are left out
LARGEST_NOTE: Final = 64 * 1024

#: The result of a request for a server that another node brings. Raises `Failure`.
Answer = Callable[[str, wire.Message, Tell], Awaitable[Result]]
log = logging.getLogger("toolway.cluster")


class Host:
    """What all visits share."""

    def __init__(self, client: Client, answer: Answer) -> None:
        self.client = client
        self.answer = answer
        self.kept = Kept()
        self.outbox = Outbox(client)
        self.window = asyncio.Semaphore(ALL)
        self.loop = asyncio.get_running_loop()
        self.closing = False
        self.most = 0  # visits at once, since the last sign of life
        self.visits: dict[str, Visit] = {}  # those under way, by the subject of their answers

    def is_alone(self) -> bool:
        """Whether an answer would go without others anyway."""
        return self.most <= FEW and self.outbox.idle


class Answers:
    """Where answers to one caller go (`outbox.To`). What did not leave is asked for again."""

    def __init__(self, replies: str) -> None:
        self.place = replies

    def alone(self, id_: str) -> tuple[str, str]:
        return self.place + id_, ""

    def together(self, ids: list[str]) -> tuple[str, str]:
        return self.place + frames.ALL, ""

    def unsent(self, ids: list[str]) -> None:
        pass


class Visit(msgspec.Struct, eq=False):
    host: Host
    forget: Callable[[Visit], None]
    caller: str
    id: str
    reply: str  # the subject of its answer alone
    to: Answers  # where those to its caller go
    task: asyncio.Task[None] | None = None
    gathering: frames.Gathering | None = None  # while pieces of it are missing
    heard_at: float = 0.0
    transfer: Transfer | None = None  # of the answer
    gone: bool = False  # nobody waits for it
    turn: int = -1  # of the outbox
    notes: int = 0  # in it

    async def serve(self, frame: bytes) -> None:
        """Answer it, unless it is cancelled."""
        host = self.host
        try:
            answer = await self._answer(frame)
            host.kept.add(self.reply, answer, host.loop.time())
            if not frames.fits(answer, host.client.max_payload):
                await self._send_in_pieces(answer)
            elif host.is_alone():
                await host.client.publish(self.reply, answer)
            else:
                host.outbox.join(self.to, self.id, answer)
        except asyncio.CancelledError:
            if not host.closing or self.gone:
                raise
            host.outbox.join(self.to, self.id, self._cut_off())
        except (NatsError, OSError, Stalled):
            pass  # whoever misses it takes us for lost

    def ended(self, task: asyncio.Task[None]) -> None:
        self.forget(self)
        if not task.cancelled() and task.exception() is not None:
            log.error("a call of another node failed", exc_info=task.exception())

    async def _answer(self, frame: bytes) -> bytes:
        id_ = int(self.id)
        try:
            server, data = frames.read_call(frame)
            message = await parse_heavy(data, "") if wire.is_heavy(data) else wire.parse(data)
            if message.kind != "request" or message.id != id_:
                raise frames.BadFrame
        except (frames.BadFrame, wire.BadMessage):
            return wire.error(id_, INVALID_REQUEST, "what came over NATS is no request")
        try:
            return wire.result(id_, await self.host.answer(server, message, self.tell))
        except Failure as failure:
            return wire.error(id_, failure.code, failure.message, failure.data)
        except Exception:
            log.exception("a call of another node failed")
            return wire.error(id_, INTERNAL_ERROR, "the node that owns the server failed")

    async def _send_in_pieces(self, answer: bytes) -> None:
        """Behind what was said before."""

        async def publish(piece: bytes) -> None:
            self.host.outbox.put(self.reply, piece)

        self.transfer = Transfer(self.host.window)
        await self.transfer.send(answer, self.host.client.max_payload, publish, _nothing)

    def tell(self, method: str, params: Json) -> None:
        """A notification that belongs to the call."""
        outbox = self.host.outbox
        if self.turn != outbox.turn:
            self.turn, self.notes = outbox.turn, 0
        self.notes += 1
        if self.gone or self.notes > MOST_NOTES:
            return
        note = frames.NOTE + wire.notification(method, params)
        if len(note) <= min(LARGEST_NOTE, self.host.client.max_payload - frames.ROOM):
            outbox.join(self.to, self.id, note)

    def refuse(self, why: str) -> None:
        """It was not begun."""
        facts = {"executed": "no", "certainty": "C0", "retryable": True, "code": "E-OVERLOADED"}
        refusal = wire.error(int(self.id), OVERLOADED, why, facts)
        self.host.kept.add(self.reply, refusal, self.host.loop.time())  # should it come again, it is not begun either
        self.host.outbox.join(self.to, self.id, refusal)

    def _cut_off(self) -> bytes:
        facts = {"executed": "unknown", "certainty": "C2", "retryable": False, "code": "E-SHUTTING-DOWN"}
        what = "the node that owns the server ended while the call ran: it may have been executed"
        return wire.error(int(self.id), OUTCOME_UNKNOWN, what, facts)


def _nothing() -> None:
    pass
