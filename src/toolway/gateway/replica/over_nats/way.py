"""The caller's side of calls over NATS: one connection and one inbox for all calls of a node.

Core NATS delivers at most once and says nothing about who listens. So:

1. Nobody there is told by NATS at once, and then the call was not executed.
2. An owner that has a call says so again and again. One that does not say so in LOOKS looks is lost, dead or hung, and
   the call may have been executed. A look counts only if our own loop and connection were well: a pause of ours is not
   the silence of another.
3. Whoever hears nothing asks again: an owner keeps its last answers for a while, for those whose connection was lost.
4. Nothing more is sent to an owner that was lost, until it says something.
5. The subscription for replies never drops: it has no limit, and what could fill it is bounded where it is sent.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from toolway.cluster.creds import options_of
from toolway.gateway.replica.over_nats import frames
from toolway.gateway.replica.over_nats.outbox import Outbox, To
from toolway.gateway.replica.over_nats.transfer import ALL
from toolway.gateway.replica.over_nats.waiting import Waiting
from toolway.model import Attempt
from toolway.protocol import wire
from toolway.upstream.link import Inbound, Request

FEW: Final = 2  # calls under way
LOOK: Final = 0.2  # seconds
ASK: Final = 2  # looks without a sign of a call after which its owner is asked for its answer
LOOKS: Final = 4  # after which it is lost
DEAF: Final = 15  # looks without a connection after which nothing is waited for any more
MOST_PACKS: Final = 1000  # messages with calls of which NATS may still say that nobody took them
MOST_LEFT: Final = 256  # calls whose late answer somebody wants to hear of
MANY: Final = 500  # ids in one question
LOST_FOR: Final = 30.0  # seconds after which a lost owner is tried again: by then it has no lease
LOST: Final = "E-OWNER-LOST"
ABSENT: Final = "E-NO-OWNER"
DOWN: Final = "E-NATS"


async def connect(servers: Sequence[str], name: str, credentials: str = "") -> Client:
    """A connection for calls alone: a large answer must not hold up what nodes tell each other. Raises `OSError` or
    `nats.errors.Error`."""
    who: dict[str, Any] = options_of(credentials) if credentials else {}
    return await nats.connect(
        list(servers),
        name=f"{name} calls",
        **who,
        connect_timeout=2,
        max_reconnect_attempts=-1,
        reconnect_time_wait=0.2,
        ping_interval=1,
        max_outstanding_pings=2,
        error_cb=_ignore,
    )


async def _ignore(exc: Exception) -> None:
    """What a failure does to calls is found out for each of them."""


class NatsWay:
    """`root` begins all subjects of a tenant."""

    def __init__(self, client: Client, root: str, node: str) -> None:
        self.client = client
        self.subjects = frames.Subjects(root)
        self._inbox = self.subjects.replies(f"{node}-{secrets.token_hex(8)}")
        self._loop = asyncio.get_running_loop()
        self._last_id = 0
        self._waiting: dict[str, Waiting] = {}
        self._left: dict[str, Attempt] = {}
        self._lost: dict[str, float] = {}  # owners that were lost, and when
        self._packs: deque[tuple[str, list[str]]] = deque(maxlen=MOST_PACKS)  # the last ones, and the calls in each
        self._last_pack = 0
        self._outbox = Outbox(client)
        self._subscription: Any = None
        self._looking: asyncio.Task[None] | None = None
        self._reconnects = 0
        self._deaf = 0
        self.window = asyncio.Semaphore(ALL)
        self._most = 0  # calls under way at once, since the last look
        self.dropped = 0  # frames that nobody waited for

    async def open(self) -> None:
        self._subscription = await self.client.subscribe(
            self._inbox + "*", cb=self._hear, pending_msgs_limit=0, pending_bytes_limit=0
        )
        self._reconnects = self.client.stats["reconnects"]
        self._looking = self._loop.create_task(self._look())

    async def close(self) -> None:
        """The connection is left to whoever opened it."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        self._fail_all("closed by us", "E-CLOSED")
        await self._outbox.close()
        if self._subscription is not None:
            with suppress(NatsError, OSError):
                await self._subscription.unsubscribe()

    # -- calls that begin and end -------------------------------------------------------------------------------------

    def enter(self, request: Request, inbound: Inbound, owner: str, limit: int) -> tuple[int, Waiting]:
        self._last_id = id_ = self._last_id + 1
        request.attempt.wire_id = id_
        waiting = Waiting(request, self._loop.create_future(), inbound, owner, limit)
        self._waiting[str(id_)] = waiting
        if len(self._waiting) > self._most:
            self._most = len(self._waiting)
        return id_, waiting

    def leave(self, id_: int) -> None:
        waiting = self._waiting.pop(str(id_), None)
        if waiting is not None and waiting.request.attempt.late is not None:
            self._left[str(id_)] = waiting.request.attempt
            if len(self._left) > MOST_LEFT:
                del self._left[next(iter(self._left))]

    def is_lost(self, owner: str) -> bool:
        return bool(self._lost) and owner in self._lost

    def reply(self, id_: int | str) -> str:
        return f"{self._inbox}{id_}"

    def is_alone(self) -> bool:
        """Whether a call would go without others anyway. Of several that were answered together the first comes back
        alone, and would leave without the others: so it counts how many there were a moment ago."""
        return self._most <= FEW and self._outbox.idle

    def send(self, id_: int, to: To, frame: bytes) -> None:
        """A call, together with others to the same owner."""
        self._outbox.join(to, str(id_), frame)

    def tell(self, id_: int, owner: str, frame: bytes) -> None:
        """Say something about a call."""
        self._outbox.put(f"{owner}.{frames.CONTROL}", frame, f"{self._inbox}{frames.ABOUT}{id_}")

    def pack(self, ids: list[str]) -> str:
        """Where NATS says that nobody takes these."""
        self._last_pack += 1
        self._packs.append((f"{frames.PACKED}{self._last_pack}", ids))
        return f"{self._inbox}{frames.PACKED}{self._last_pack}"

    def unsent(self, ids: list[str]) -> None:
        for id_ in ids:
            if id_ in self._waiting:
                self._waiting[id_].fail_unsent("NATS takes nothing", DOWN)

    # -- what comes; nothing here waits, so that the subscription is always empty --------------------------------------

    async def _hear(self, message: Msg) -> None:
        place, frame = message.subject[len(self._inbox) :], message.data
        if place == frames.ALL:
            with suppress(frames.BadFrame):
                for id_, each in frames.unpack(frame):
                    self._take(id_, each)
        elif place == frames.BEATS:
            self._hear_beat(frame, message.reply.rpartition(".")[0])
        elif message.headers is not None and message.headers.get("Status") == "503":
            self._hear_nobody(place)
        else:
            self._take(place, frame)

    def _hear_nobody(self, place: str) -> None:
        """NATS found nobody who takes one call, or several."""
        ids = next((ids for name, ids in self._packs if name == place), [place])
        for id_ in ids:
            if id_ in self._waiting:
                self._waiting[id_].fail_unsent("the node that owns the server is not there", ABSENT)

    def _take(self, id_: str, frame: bytes) -> None:
        """A frame about one call."""
        waiting = self._waiting.get(id_)
        if waiting is None:
            self._hear_late(id_, frame)
            return
        waiting.silent = 0
        kind = frame[:1]
        if kind == frames.ANSWER:
            self._answered(id_, waiting, frame)
        elif kind == frames.NOTE:
            waiting.hear(frame)
        elif kind == frames.FIRST or kind == frames.NEXT:
            self._gather(id_, waiting, frame)
        elif kind == frames.TAKEN and waiting.transfer is not None:
            waiting.transfer.taken()

    def _answered(self, id_: str, waiting: Waiting, frame: bytes) -> None:
        if not waiting.answer.done():
            waiting.answer.set_result(frame)
        del self._waiting[id_]

    def _gather(self, id_: str, waiting: Waiting, frame: bytes) -> None:
        if waiting.gathering is None:
            waiting.gathering = frames.Gathering(waiting.limit)
        try:
            new = waiting.gathering.add(frame)
        except frames.BadFrame:
            waiting.fail("a piece of the answer is missing", LOST)
        except OverflowError:
            reason = f"the answer has more than {waiting.limit} bytes"
            waiting.fail(reason, "E-FRAME-LIMIT", "raise `limits.frame` of this server")
        else:
            if new:
                self.tell(int(id_), waiting.owner, frames.TAKEN)
            whole = waiting.gathering.whole
            if whole is not None:
                self._answered(id_, waiting, whole)

    def _hear_beat(self, frame: bytes, owner: str) -> None:
        self._lost.pop(owner, None)
        for named in frames.read_ids(frame):
            waiting = self._waiting.get(named)
            if waiting is not None:
                waiting.silent = 0

    def _hear_late(self, id_: str, frame: bytes) -> None:
        self.dropped += 1
        attempt = self._left.pop(id_, None) if frame[:1] == frames.ANSWER else None
        if attempt is not None and attempt.late is not None:
            with suppress(wire.BadMessage):
                attempt.late(wire.parse(frame).body)

    # -- who is silent ------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            self._most = len(self._waiting)
            if not self.client.is_connected:
                self._deaf += 1
                if self._deaf > DEAF:
                    self._fail_all("the connection to NATS is lost", DOWN)
            elif self._deaf or self.client.stats["reconnects"] != self._reconnects:
                self._deaf = 0
                self._reconnects = self.client.stats["reconnects"]
                for waiting in self._waiting.values():
                    waiting.silent = 0
                self._ask(self._waiting)  # their answers may have been missed
            else:
                self._count_silence()
                self._ask_lost()

    def _count_silence(self) -> None:
        asked: list[str] = []
        for id_, waiting in list(self._waiting.items()):
            if waiting.transfer is not None:
                continue  # it has not been sent yet, and notices by itself when nobody takes it
            waiting.silent += 1
            if waiting.silent >= LOOKS:
                reason = f"the node that owns the server gave no sign of life for {LOOK * LOOKS:g} s"
                waiting.fail(reason, LOST)
                self._lost[waiting.owner] = self._loop.time()
                self.tell(int(id_), waiting.owner, frames.CANCEL)
            elif waiting.silent >= ASK:
                asked.append(id_)
        self._ask(asked)

    def _ask(self, some: Iterable[str]) -> None:
        """What has become of these."""
        by_owner: dict[str, list[str]] = {}
        for id_ in some:
            by_owner.setdefault(self._waiting[id_].owner, []).append(id_)
        for owner, ids in by_owner.items():
            for start in range(0, len(ids), MANY):
                named = ids[start : start + MANY]
                self.tell(int(named[0]), owner, frames.ids(frames.WHAT_OF, named))

    def _ask_lost(self) -> None:
        """Whether those are there again that were lost."""
        for owner, since in list(self._lost.items()):
            if since < self._loop.time() - LOST_FOR:
                del self._lost[owner]
            else:
                self.tell(0, owner, frames.WHAT_OF)

    def _fail_all(self, reason: str, code: str) -> None:
        for waiting in list(self._waiting.values()):
            waiting.fail(reason, code)
