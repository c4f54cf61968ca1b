"""Sessions of the handshake era in a cluster: a client may come to another gateway with every request.

Rule 1. What a session is stands in its id, sealed: every gateway reads it.
Rule 2. What it settled later (level of logs, subscriptions, that it ended) stands in the record. A gateway looks when
        it first sees a session, when it is told that something changed, and when it may have missed that.
Rule 3. What lives at one gateway (a question, a stream that broke, a stream of `/sse`) is found by the tag in its name,
        and what is brought to another is handed over (`errands.py`). It ends with that gateway.
Rule 4. A cancellation names no gateway, so it is told to all; whoever has the request takes it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakValueDictionary

from sqlalchemy.exc import SQLAlchemyError

from toolway.cluster.asking import Asking
from toolway.cluster.passes import Inspector
from toolway.cluster.record.sessions import Sessions, Settled
from toolway.gateway.answers import Stream
from toolway.gateway.client_session import ASK, ClientSession
from toolway.gateway.handshake import LIFE, MOST, Handshake
from toolway.gateway.listen import MAX_WISHES
from toolway.gateway.replica.sessions.errands import Errands, tag_of, whose
from toolway.gateway.replica.sessions.handover import bring_answer, bring_post, bring_rest, take_errand
from toolway.gateway.replica.shared.news import Following
from toolway.gateway.sse import Sse
from toolway.gateway.visit import Tell
from toolway.model import Json
from toolway.protocol.wire import Message

KIND: Final = "session"  # of our news
PATIENCE: Final = 2.0  # seconds for an answer of the record
SILENT: Final = 2.0  # seconds after which a record that did not answer is asked again
WITHOUT_NEWS: Final = 1.0  # seconds for which a look is good enough where nobody can tell us
AT_ONCE: Final = 200  # sessions that are looked at in one question
_ASKED: Final = re.compile(rf"{ASK}([0-9a-z]+)\.[0-9]+")
log = logging.getLogger("toolway.cluster")


class SharedSessions:
    """The `Others` of a gateway. `hears` says whether news reach us at the moment."""

    def __init__(
        self,
        node: str,
        tenant: str,
        record: Sessions,
        errands: Errands,
        inspector: Inspector,
        following: Following,
        hears: Callable[[], bool],
        handshake: Handshake,
        sse: Sse,
    ) -> None:
        self.tag = tag_of(node)
        self._tenant = tenant
        self._record = record
        self._errands = errands
        self._inspector = inspector
        self._following = following
        self._hears = hears
        self._handshake = handshake
        self._sse = sse
        self._now = asyncio.get_running_loop().time
        self._ask = Asking(PATIENCE)
        self._living: WeakValueDictionary[str, ClientSession] = WeakValueDictionary()  # by digest
        self._new: OrderedDict[str, None] = OrderedDict()  # ids of sessions that began here and were not seen since
        self._missed_at = 0.0
        self._silent_until = 0.0
        self._to_look: set[str] = set()  # digests
        self._looking: asyncio.Task[None] | None = None
        following.on_news(KIND, self._hear)

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self._ask.wait_ended()

    # -- what a session settled ---------------------------------------------------------------------------------------

    def began(self, id_: str) -> None:
        self._new[id_] = None
        if len(self._new) > MOST:
            self._new.popitem(last=False)

    def lives(self, session: ClientSession) -> None:
        self._living[_digest(session.id)] = session
        if session.id in self._new:
            del self._new[session.id]
            session.looked_at = self._now()

    def is_current(self, session: ClientSession) -> bool:
        now = self._now()
        if now < self._silent_until:
            return True
        if not session.looked_at or session.looked_at < self._missed_at:
            return False
        return self._hears() or now - session.looked_at < WITHOUT_NEWS

    async def recall(self, session: ClientSession) -> None:
        await self._look([session])

    async def settle(
        self, session: ClientSession, *, level: str | None = None, add: str = "", drop: str = "", ended: bool = False
    ) -> None:
        digest = _digest(session.id)

        def changed(before: Settled) -> Settled:
            uris = [uri for uri in before.uris if uri not in (add, drop)]
            if add and len(uris) < MAX_WISHES:
                uris.append(add)
            return Settled(level if level is not None else before.level, tuple(uris), before.ended or ended)

        here = changed(Settled(session.log_level, session.uris, session.ended))
        try:
            now = await self._ask(self._record.change(self._tenant, digest, changed, LIFE))
        except (SQLAlchemyError, OSError, TimeoutError) as exc:
            log.warning("what a session settled is known here alone: %s", type(exc).__name__)
            await self._learn(session, here)
        else:
            await self._learn(session, now)  # and what it settled elsewhere meanwhile
            self._following.say(KIND, {"session": digest})

    async def _look(self, sessions: list[ClientSession]) -> None:
        """Where the record does not answer, sessions go on as they are known."""
        began = self._now()
        digests = [_digest(session.id) for session in sessions]
        try:
            found = await self._ask(self._record.of(self._tenant, digests))
        except (SQLAlchemyError, OSError, TimeoutError) as exc:
            log.warning("what sessions settled elsewhere cannot be read: %s", type(exc).__name__)
            self._silent_until = self._now() + SILENT
            return
        for digest, session in zip(digests, sessions, strict=True):
            session.looked_at = max(began, session.looked_at)
            if digest in found:
                await self._learn(session, found[digest])

    async def _learn(self, session: ClientSession, now: Settled) -> None:
        session.log_level, session.uris = now.level, now.uris
        if now.ended:
            session.ended = True
            self._handshake.end(session.id)
        else:
            await self._handshake.renew(session)

    # -- news ---------------------------------------------------------------------------------------------------------

    def streams(self, session: ClientSession) -> None:
        self._following.say(KIND, {"session": _digest(session.id), "stream": self.tag})

    def _hear(self, news: Json) -> None:
        session = self._living.get(str(news.get("session")))
        if session is None:
            return
        if "cancel" in news:
            self._handshake.take(session, _cancellation(news["cancel"]))
        elif "stream" in news:
            if session.stream is not None and news["stream"] != self.tag:
                session.stream.close()  # the client has come back at another gateway
        else:
            self._look_soon(str(news["session"]))

    def gap(self) -> None:
        """We may have missed news; those whose client listens here are looked at now, others when they are seen."""
        self._missed_at = self._now()
        for digest, session in list(self._living.items()):
            if session.stream is not None:
                self._look_soon(digest)

    def _look_soon(self, digest: str) -> None:
        self._to_look.add(digest)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._keep_looking())

    async def _keep_looking(self) -> None:
        while self._to_look:
            some = [self._to_look.pop() for _ in range(min(AT_ONCE, len(self._to_look)))]
            found = [session for digest in some if (session := self._living.get(digest)) is not None]
            if found:
                await self._look(found)

    # -- what belongs to another gateway ------------------------------------------------------------------------------

    async def bring(self, session: ClientSession, message: Message) -> None:
        if message.method == "notifications/cancelled":
            id_ = message.body.get("requestId")
            if isinstance(id_, str | int):
                self._following.say(KIND, {"session": _digest(session.id), "cancel": id_})
            return
        asked = _ASKED.fullmatch(message.id) if isinstance(message.id, str) else None
        if asked is not None and asked[1] != self.tag:
            await bring_answer(self._errands, asked[1], session, message)

    async def resume(self, session: ClientSession, last: str, stream: Stream) -> bool:
        tag, dot, _ = last.partition(".")
        return bool(dot) and tag != self.tag and await bring_rest(self._errands, tag, session, last, stream)

    async def post(self, tag: str, id_: str, principal: str, message: Message) -> int:
        return await bring_post(self._errands, tag, id_, principal, message)

    async def take(self, params: Json, tell: Tell) -> Json:
        principal = whose(self._inspector, params)
        return await take_errand(self._handshake, self._sse, principal, params, tell)


def _digest(id_: str) -> str:
    """An id of a session is for its client alone."""
    return hashlib.sha256(id_.encode()).hexdigest()[:40]


def _cancellation(id_: Any) -> Message:
    return Message("notification", None, "notifications/cancelled", {"requestId": id_})
