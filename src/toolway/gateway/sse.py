"""`/sse` and `/messages`: the two endpoints of 2024-11-05, for clients that know nothing newer.

The stream is opened first and names where to post; every answer comes on the stream. It needs a living process, so
unlike the sessions of `/mcp` it ends with its connection. In a cluster, what is posted elsewhere is brought here.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs

from toolway.gateway.answers import Stream, error
from toolway.gateway.client_session import ClientSession
from toolway.gateway.door import problem
from toolway.gateway.failures import Failure
from toolway.gateway.handshake import Handshake
from toolway.gateway.http.exchange import Exchange
from toolway.gateway.principals import Principal
from toolway.gateway.sealed import Sealer
from toolway.gateway.view import View
from toolway.model import Json
from toolway.protocol import wire
from toolway.protocol.wire import Message

KIND: Final = "sse"
LIFE: Final = 86_400.0
PATH: Final = "/messages"
MAX_REQUESTS: Final = 256  # of one stream, under way at once
_WHY: Final[dict[int, str]] = {
    HTTPStatus.NOT_FOUND: "no such stream",
    HTTPStatus.TOO_MANY_REQUESTS: "too many requests at once",
}


class Sse:
    def __init__(self, sessions: Handshake, sealer: Sealer) -> None:
        self._sessions = sessions
        self._sealer = sealer
        self._closing = False
        self._live: dict[str, tuple[ClientSession, Stream, set[asyncio.Task[None]]]] = {}

    async def open(self, exchange: Exchange, principal: Principal, view: View) -> None:
        """GET: the stream, until the client leaves."""
        facts: Json = {"principal": principal.id, "endpoint": "", "version": "2024-11-05", "capabilities": {}}
        id_ = self._sealer.seal(KIND, [principal.id, self._sessions.tag], LIFE)
        session = ClientSession(facts, principal, view, self._sessions.tag)
        stream = session.stream = Stream(exchange)
        stream.watch()
        tasks: set[asyncio.Task[None]] = set()
        self._live[id_] = (session, stream, tasks)
        stream.write(f"event: endpoint\ndata: {PATH}?session={id_}\n\n".encode())
        try:
            await self._sessions.subscriber(session)
            await stream.over.wait()
        finally:
            del self._live[id_]
            for task in tasks:
                task.cancel()  # its answer could reach nobody
            self._sessions.leave(session)

    async def post(self, exchange: Exchange, message: Message, principal: Principal) -> None:
        """POST: a message of the client, whose answer comes on the stream."""
        named = parse_qs(exchange.request.query).get("session", [""])[0]
        others = self._sessions.others
        if named in self._live or others is None:
            status = self.take(named, principal.id, message)
        else:
            found = self._sealer.open(KIND, named)
            whose, tag = found if found is not None else ("", "")
            mine = whose == principal.id
            status = await others.post(tag.rstrip("."), named, principal.id, message) if mine else HTTPStatus.NOT_FOUND
        if status == HTTPStatus.ACCEPTED:
            exchange.reply(status)
        else:
            exchange.reply(*problem(status, _WHY.get(status, "the stream is elsewhere, and cannot be reached")))

    def take(self, id_: str, principal: str, message: Message) -> int:
        """A message for a stream that is here; the status that its client is told."""
        live = self._live.get(id_)
        if live is None or live[0].principal.id != principal:
            return HTTPStatus.NOT_FOUND
        session, stream, tasks = live
        if message.kind != "request":
            self._sessions.take(session, message)
        elif len(tasks) >= MAX_REQUESTS:
            return HTTPStatus.TOO_MANY_REQUESTS
        else:
            task = asyncio.get_running_loop().create_task(self._answer(session, stream, message))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            task.add_done_callback(lambda _: self._close_if_done(stream, tasks))
        return HTTPStatus.ACCEPTED

    def close_streams(self) -> None:
        """End every stream, as soon as no answer is missing on it."""
        self._closing = True
        for _, stream, tasks in list(self._live.values()):
            self._close_if_done(stream, tasks)

    async def cancel_all(self, within: float = 1.0) -> None:
        """Cut off what is still running, and let it say so on its stream."""
        tasks = [task for _, _, tasks in self._live.values() for task in tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=within)

    def _close_if_done(self, stream: Stream, tasks: set[asyncio.Task[None]]) -> None:
        if self._closing and not tasks:
            stream.close()

    async def _answer(self, session: ClientSession, stream: Stream, message: Message) -> None:
        def send(data: bytes) -> bool:
            stream.send(data)
            return not stream.gone

        if message.method == "initialize":
            answer: bytes | None = self._initialize(session, message)
        else:
            answer = await self._sessions.answer(session, message, send)
        if answer is not None:
            stream.send(answer)

    def _initialize(self, session: ClientSession, message: Message) -> bytes:
        assert message.id is not None
        try:
            _, result = self._sessions.initialize(session.principal, session.view, "", message.body)
        except Failure as failure:
            return error(message.id, failure.code, failure.message)
        session.version = result["protocolVersion"]
        capabilities: Any = message.body.get("capabilities")
        session.capabilities = capabilities if isinstance(capabilities, dict) else {}
        return wire.result(message.id, result)
