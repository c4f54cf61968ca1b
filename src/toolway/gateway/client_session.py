"""What lives of one session of the handshake era in this process: its stream, its requests, our questions."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from toolway.events import Logged
from toolway.gateway.answers import Stream
from toolway.gateway.listen import Subscriber
from toolway.gateway.principals import Principal
from toolway.gateway.tapes import Tapes
from toolway.gateway.view import View
from toolway.gateway.visit import can_answer
from toolway.model import AskRefused, Json
from toolway.protocol import wire
from toolway.protocol.eras import log_rank
from toolway.protocol.wire import Message

MAX_ASKS: Final = 64  # questions to one client at once
ASK_TIME: Final = 900.0  # seconds a client may take to answer one
ASK: Final = "toolway-"  # begins the ids of our questions; the tag of a gateway may follow

Send = Callable[[bytes], bool]


class ClientSession:
    """`tag` is ours among the gateways of a cluster."""

    def __init__(self, facts: Json, principal: Principal, view: View, tag: str = "") -> None:
        self.id = ""  # where it can be taken up again
        self.capabilities: Json = facts["capabilities"]
        self.version: str = facts["version"]
        self.endpoint: str = facts["endpoint"]
        self.principal = principal
        self.transport = "tcp"
        self.view = view
        self.log_level: str | None = None
        self.stream: Stream | None = None  # for what belongs to no request
        self.running: dict[wire.Id, Running] = {}
        self.subscriber: Subscriber | None = None
        self.uris: tuple[str, ...] = ()  # of resources that it subscribed to, here or at another gateway
        self.ended = False
        self.looked_at = 0.0  # when we last asked what it settled at others; 0 = never
        self.tapes = Tapes(tag)
        self._tag = tag
        self._asks: dict[str, asyncio.Future[Json]] = {}
        self._numbers = itertools.count(1)

    def see(self, view: View) -> None:
        """What there is to see may be another since the configuration changed."""
        self.view = view

    def tell(self, method: str, params: Json) -> None:
        """A notification that belongs to no request; lost where the client does not listen."""
        if self.stream is not None and not self.stream.gone:
            self.stream.send(wire.notification(method, params))

    def log(self, fact: Logged) -> None:
        if fact.of_call or fact.caller != self.principal.caller or fact.server not in self.view.servers():
            return
        if self.log_level is None or log_rank(self.log_level) < log_rank(fact.level):
            return
        params: Json = {"level": fact.level, "data": fact.data}
        if fact.logger is not None:
            params["logger"] = fact.logger
        self.tell("notifications/message", params)

    # -- asking the client --------------------------------------------------------------------------------------------

    async def ask(self, send: Send, method: str, params: Json) -> Json:
        """The client's answer to a request of ours. Raises `LookupError` where it cannot be asked."""
        if not can_answer(self.capabilities, method, params) or len(self._asks) >= MAX_ASKS:
            raise LookupError(method)
        id_ = f"{ASK}{self._tag}{next(self._numbers)}"
        answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._asks[id_] = answer
        try:
            if not send(wire.request(id_, method, params)):
                raise LookupError(method)
            async with asyncio.timeout(ASK_TIME):
                return await answer
        except (asyncio.CancelledError, TimeoutError):
            send(wire.notification("notifications/cancelled", {"requestId": id_}))  # it need not answer any more
            raise
        finally:
            del self._asks[id_]

    def answered(self, message: Message) -> bool:
        """The client answers a question of ours; False where it is none of ours, or was answered."""
        answer = self._asks.get(message.id) if isinstance(message.id, str) else None
        if answer is None or answer.done():
            return False
        if message.kind == "result":
            answer.set_result(message.body)
        else:
            code, text, data = wire.error_fields(message.body)
            answer.set_exception(AskRefused(code, text, data))
        return True

    def end(self) -> None:
        for answer in self._asks.values():
            if not answer.done():
                answer.cancel()
        for running in self.running.values():
            running.cancel()
        if self.stream is not None:
            self.stream.close()


@dataclass(slots=True)
class Running:
    """A request that is being answered."""

    task: asyncio.Task[Any] | None
    cancelled: bool = False  # by the client, who wants no answer any more

    def cancel(self) -> None:
        self.cancelled = True
        if self.task is not None:
            self.task.cancel()


class SessionAsks:
    """The `Asks` of one call of a session: questions go where the answer of the call will go."""

    def __init__(self, session: ClientSession, send: Send) -> None:
        self._session = session
        self._send = send

    @property
    def capabilities(self) -> Json:
        return self._session.capabilities

    async def answer(self, server: str, method: str, params: Json) -> Json:
        return await self._session.ask(self._send, method, params)
