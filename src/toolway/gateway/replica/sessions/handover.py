"""What is handed over between gateways for a session: both ends of each errand."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, Final

from toolway.gateway.answers import Stream
from toolway.gateway.client_session import ClientSession
from toolway.gateway.handshake import Handshake
from toolway.gateway.replica.sessions.errands import METHOD, Errands
from toolway.gateway.sse import Sse
from toolway.gateway.tapes import Tape
from toolway.gateway.visit import Tell
from toolway.model import Json
from toolway.protocol.wire import Message

NOTE: Final = 8000  # characters of a stream that are passed on at a time: NATS takes no large ones
LARGE: Final = 1024 * 1024  # bytes of one event that comes with the end instead, which may be as long as it is


# -- where the client came to -----------------------------------------------------------------------------------------


async def bring_answer(errands: Errands, tag: str, session: ClientSession, message: Message) -> None:
    """To the gateway that asked. If that is gone, so is whoever waited for it."""
    errand = {"do": "answer", "session": session.id, "message": _written(message)}
    await errands.send(tag, session.principal.id, errand)


async def bring_post(errands: Errands, tag: str, id_: str, principal: str, message: Message) -> int:
    """The status that the gateway with the stream would answer with. A stream ends with its gateway."""
    found = await errands.send(tag, principal, {"do": "post", "stream": id_, "message": _written(message)})
    status = found.get("status") if found is not None else HTTPStatus.NOT_FOUND
    return status if isinstance(status, int) else HTTPStatus.BAD_GATEWAY


async def bring_rest(errands: Errands, tag: str, session: ClientSession, last: str, stream: Stream) -> bool:
    """What the gateway of the stream still has to say on it; False where it knows of none."""

    def hear(params: Json) -> None:
        if not stream.gone:
            stream.write(str(params.get("data", "")).encode())

    errand = {"do": "resume", "session": session.id, "last": last}
    found = await errands.send(tag, session.principal.id, errand, hear, within=None)
    if found is None or found.get("found") is not True:
        return False
    rest = str(found.get("data", "")).encode()
    if rest:
        stream.write(rest)
    stream.open()
    stream.close()
    return True


# -- where it belongs -------------------------------------------------------------------------------------------------


async def take_errand(handshake: Handshake, sse: Sse, principal: str, params: Json, tell: Tell) -> Json:
    """Do it, as if the client had come here. A kind that a later version knows is not done."""
    what, message = params.get("do"), _read(params.get("message"))
    if what == "post" and message is not None:
        return {"status": int(sse.take(str(params.get("stream")), principal, message))}
    session = handshake.living(str(params.get("session")), principal)
    if session is None:
        return {}
    if what == "answer" and message is not None:
        return {"taken": handshake.take(session, message)}
    broken = session.tapes.find(str(params.get("last"))) if what == "resume" else None
    return await _rest(*broken, tell) if broken is not None else {}


async def _rest(tape: Tape, after: int, tell: Tell) -> Json:
    """Until the request of the stream is answered, or whoever came for it leaves."""
    outlet = _Outlet(tell)
    try:
        tape.resume(after, outlet)
        await outlet.over.wait()
    finally:
        outlet.gone = True
    return {"found": True, "data": outlet.rest.decode()}


class _Outlet:
    """The way to the gateway to which the client came back."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self.rest = bytearray()
        self.gone = False
        self.over = asyncio.Event()

    def open(self) -> None:
        self._tell(METHOD, {"data": ""})

    def write(self, data: bytes) -> None:
        if self.rest or len(data) > LARGE:
            self.rest += data
            return
        text = data.decode()
        for start in range(0, len(text), NOTE):
            self._tell(METHOD, {"data": text[start : start + NOTE]})

    def close(self) -> None:
        self.over.set()


def _written(message: Message) -> list[Any]:
    return [message.kind, message.id, message.method, message.body]


def _read(written: Any) -> Message | None:
    """Another node may be of another version."""
    if not isinstance(written, list) or len(written) != 4 or not isinstance(written[3], dict):
        return None
    kind, id_, method, body = written
    return Message(kind, id_, method, body)
