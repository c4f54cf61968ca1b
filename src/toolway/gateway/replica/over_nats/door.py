"""The owner's side of calls over NATS: takes them, says that they are under way, and answers (`visit.py`).

It decides nothing about a call: who asks, and whether this node may answer, is in the pass that the call carries, and
`answer` looks at it. What a frame says is believed only as far as it goes: where to answer, and how long it is.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg

from toolway.gateway.replica.over_nats import frames
from toolway.gateway.replica.over_nats.visit import Answer, Answers, Host, Visit
from toolway.protocol import wire

BEAT: Final = 0.25  # seconds between two signs of life
MOST: Final = 4096  # calls under way
GATHERED: Final = 64 * 1024 * 1024  # bytes of calls of which pieces are missing
PATIENCE: Final = 5.0  # seconds without a piece after which the others are not expected any more
ABSENT: Final = 3.0  # seconds after which a caller is gone that nobody reaches: it does not wait for longer either
MANY: Final = 500  # ids in one sign of life
LEAVING: Final = 2.0  # seconds for what is still on its way when we stop to listen
QUEUE: Final = "owner"


class NatsDoor:
    """`root` begins all subjects of a tenant; `limit` is that of the bytes of a call."""

    def __init__(self, client: Client, root: str, node: str, answer: Answer, limit: int = wire.FRAME_LIMIT) -> None:
        self._client = client
        self._subjects = frames.Subjects(root)
        self._node = node
        self._limit = limit
        self._host = Host(client, answer)
        self._loop = asyncio.get_running_loop()
        self._visits = self._host.visits
        self.gathered = 0  # bytes of calls of which pieces are missing
        self._subscriptions: list[Any] = []
        self._calls = ""
        self._beating: asyncio.Task[None] | None = None
        self._some = asyncio.Event()  # calls are under way
        self._absent: dict[str, tuple[float, float]] = {}  # callers that do not hear us: since when, and last

    async def open(self, epoch: int) -> None:
        """Listen under the number of this tenure, and no longer under that of another. Raises `nats.errors.Error`."""
        before, self._subscriptions = self._subscriptions, []
        self._calls = self._subjects.calls(self._node, epoch)
        for subject, queue, hear in ((self._calls, QUEUE, self._on_call), (self._calls + ".*", "", self._on_control)):
            # Without a limit, because nothing that hears waits, so that nothing gathers; a limit would drop calls.
            self._subscriptions.append(
                await self._client.subscribe(subject, queue, hear, pending_msgs_limit=0, pending_bytes_limit=0)
            )
        if self._beating is None:
            self._beating = self._loop.create_task(self._beat())
        await _leave(before)

    async def close(self) -> None:
        """Calls that are under way are cut off, and their callers told. The connection is left to whoever opened it."""
        self._host.closing = True
        await _leave(self._subscriptions)
        running = [visit.task for visit in self._visits.values() if visit.task is not None]
        if self._beating is not None:
            running.append(self._beating)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._host.outbox.close()

    @property
    def under_way(self) -> int:
        """Calls of other nodes."""
        return len(self._visits)

    # -- what comes ---------------------------------------------------------------------------------------------------

    async def _on_call(self, message: Msg) -> None:
        found = self._subjects.reply_of(message.reply)
        if found is None:
            return  # nobody to answer
        caller, id_ = found
        to = Answers(self._subjects.replies(caller))
        if message.data[:1] == frames.PACK:
            with suppress(frames.BadFrame):
                for id_, frame in frames.unpack(message.data):
                    self._take_call(caller, id_, to, frame)
        else:
            self._take_call(caller, id_, to, message.data)

    def _take_call(self, caller: str, id_: str, to: Answers, frame: bytes) -> None:
        reply = to.place + id_
        if reply in self._visits or reply in self._host.kept:
            return  # the same once more
        visit = Visit(self._host, self._forget, caller, id_, reply, to)
        if len(self._visits) >= MOST or self._host.closing:
            visit.refuse("too many calls are under way at the node that owns the server")
        elif frame[:1] == frames.FIRST:
            self._gather_first(visit, frame)
        else:
            self._begin(visit, frame)

    async def _on_control(self, message: Msg) -> None:
        if message.headers is not None and message.headers.get("Status") == "503":
            self._on_nobody(message.subject.rpartition(".")[2])
            return
        found = self._subjects.reply_of(message.reply)
        if found is None:
            return
        kind, replies = message.data[:1], self._subjects.replies(found[0])
        if kind == frames.WHAT_OF:
            self._say_again(replies, frames.read_ids(message.data))
            self._beat_for(found[0], [visit.id for visit in self._visits.values() if visit.caller == found[0]])
            return
        visit = self._visits.get(replies + found[1])
        if visit is None:
            await asyncio.sleep(0)  # each subscription has its own turn: the call may have come, and wait for it
            visit = self._visits.get(replies + found[1])
        if visit is None:
            return
        if kind == frames.NEXT and visit.gathering is not None:
            self._gather_next(visit, visit.gathering, message.data)
        elif kind == frames.TAKEN and visit.transfer is not None:
            visit.transfer.taken()
        elif kind == frames.CANCEL:
            self._cancel(visit)

    def _on_nobody(self, caller: str) -> None:
        """Nobody hears our signs of life. The caller may be on its way to another NATS server; if not, its node has
        ended, and what it asked for is of no use."""
        now = self._loop.time()
        since, last = self._absent.get(caller, (now, now))
        if now - last > 4 * BEAT:
            since = now  # it was there in between
        self._absent[caller] = (since, now)
        if now - since > ABSENT:
            for visit in [visit for visit in self._visits.values() if visit.caller == caller]:
                self._cancel(visit)

    def _say_again(self, replies: str, ids: list[str]) -> None:
        to = Answers(replies)
        for id_ in ids[:MANY]:
            answer = self._host.kept.find(replies + id_)
            if answer is not None:
                self._host.outbox.join(to, id_, answer)

    # -- calls that begin and end -------------------------------------------------------------------------------------

    def _begin(self, visit: Visit, frame: bytes) -> None:
        self._enter(visit)
        visit.task = task = self._loop.create_task(visit.serve(frame))
        task.add_done_callback(visit.ended)  # a task that is cancelled before it begins runs no line of its own

    def _enter(self, visit: Visit) -> None:
        self._visits[visit.reply] = visit
        self._host.most = max(self._host.most, len(self._visits))
        self._some.set()

    def _forget(self, visit: Visit) -> None:
        if self._visits.pop(visit.reply, None) is not None and visit.gathering is not None:
            self.gathered -= visit.gathering.length

    def _cancel(self, visit: Visit) -> None:
        visit.gone = True
        if visit.task is not None:
            visit.task.cancel()
        else:
            self._forget(visit)

    # -- calls in pieces ----------------------------------------------------------------------------------------------

    def _gather_first(self, visit: Visit, frame: bytes) -> None:
        try:
            visit.gathering = frames.Gathering(min(self._limit, GATHERED - self.gathered))
            visit.gathering.add(frame)
        except frames.BadFrame:
            return
        except OverflowError:
            visit.refuse("the call is too large for the node that owns the server, at least now")
            return
        self.gathered += visit.gathering.length
        self._enter(visit)
        self._take(visit, visit.gathering)

    def _gather_next(self, visit: Visit, gathering: frames.Gathering, frame: bytes) -> None:
        try:
            new = gathering.add(frame)
        except (frames.BadFrame, OverflowError):
            self._forget(visit)  # its caller hears nothing more of it
        else:
            if new:
                self._take(visit, gathering)

    def _take(self, visit: Visit, gathering: frames.Gathering) -> None:
        visit.heard_at = self._loop.time()
        self._host.outbox.put(visit.reply, frames.TAKEN)
        whole = gathering.whole
        if whole is not None:
            self.gathered -= gathering.length
            visit.gathering = None
            self._begin(visit, whole)

    def _give_up_halves(self) -> None:
        """Calls of which nothing more comes."""
        late = self._loop.time() - PATIENCE
        for visit in [v for v in self._visits.values() if v.gathering is not None and v.heard_at < late]:
            self._forget(visit)

    # -- signs of life ------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        while True:
            self._host.most = len(self._visits)
            if not self._visits:
                self._absent.clear()
                self._some.clear()
                await self._some.wait()
            await asyncio.sleep(BEAT)
            self._give_up_halves()
            callers: dict[str, list[str]] = {}
            for visit in self._visits.values():
                callers.setdefault(visit.caller, []).append(visit.id)
            for caller, ids in callers.items():
                self._beat_for(caller, ids)

    def _beat_for(self, caller: str, ids: list[str]) -> None:
        """Where nobody hears it, NATS tells us so."""
        for start in range(0, len(ids) or 1, MANY):
            beat = frames.ids(frames.BEAT, ids[start : start + MANY])
            beats = self._subjects.replies(caller) + frames.BEATS
            self._host.outbox.put(beats, beat, f"{self._calls}.{caller}")


async def _leave(subscriptions: list[Any]) -> None:
    """Hear what was sent here before the end, and nothing more."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LEAVING):
            await asyncio.gather(*(subscription.drain() for subscription in subscriptions), return_exceptions=True)
