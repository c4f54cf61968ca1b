"""What a node sends over NATS in one turn of its loop: what goes to the same place goes together, as one message.

To hand one message to NATS, and to take one from it, costs a program in Python more than a whole call of ours does.
Nobody waits for others: a turn of the loop is as short as it is without.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from nats.aio.client import Client
from nats.errors import Error as NatsError

from toolway.gateway.replica.over_nats import frames

# Bytes of one message, unless one frame is longer. It is what `nats-py` reads at a time: a longer one costs it, and the
# NATS server, a copy more, and is late.
TOGETHER: Final = 32 * 1024
MOST: Final = 10_000  # messages that wait; more are not sent, and whoever misses them asks again


class To(Protocol):
    """Where frames about calls go."""

    place: str  # the same for all that can go together

    def alone(self, id_: str) -> tuple[str, str]:
        """The subject of a frame that has no company, and where it is answered."""

    def together(self, ids: list[str]) -> tuple[str, str]:
        """The same of several."""

    def unsent(self, ids: list[str]) -> None:
        """These did not leave."""


class _Message:
    __slots__ = ("frames", "ids", "room", "to")

    def __init__(self, to: To, room: int) -> None:
        self.to = to
        self.ids: list[str] = []
        self.frames: list[bytes] = []
        self.room = room  # bytes that it can still take


class Outbox:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._messages: list[_Message] = []
        self._open: dict[str, _Message] = {}  # to which more can be added, by place
        self._some = asyncio.Event()
        self._waits = False
        self._sending = asyncio.get_running_loop().create_task(self._send())
        self.turn = 0

    def put(self, subject: str, frame: bytes, reply: str = "") -> None:
        """A message of its own, behind all others."""
        if len(self._messages) < MOST:
            self._add(_There(subject, reply), 0, "", frame)

    def join(self, to: To, id_: str, frame: bytes) -> None:
        """With others that go there. What has no company is not packed: it is large, or packing it is of no use."""
        message = self._open.get(to.place)
        size = len(frame) + frames.HEAD
        if message is None or message.room < size:
            room = min(TOGETHER, self._client.max_payload - frames.ROOM)
            self._open[to.place] = self._add(to, room - size, id_, frame)
        else:
            message.room -= size
            message.ids.append(id_)
            message.frames.append(frame)

    def _add(self, to: To, room: int, id_: str, frame: bytes) -> _Message:
        message = _Message(to, room)
        message.ids.append(id_)
        message.frames.append(frame)
        self._messages.append(message)
        self._some.set()
        return message

    @property
    def idle(self) -> bool:
        """Nothing waits here, so that whoever is alone may as well send by himself, a turn of the loop earlier."""
        return self._waits and not self._messages

    async def _send(self) -> None:
        while True:
            if not self._messages:
                self._some.clear()
                self._waits = True
                await self._some.wait()
                self._waits = False
            messages, self._messages, self._open = self._messages, [], {}
            self.turn += 1
            for message in messages:
                await self._publish(message.to, message.ids, message.frames)

    async def _publish(self, to: To, ids: list[str], some: list[bytes]) -> None:
        if len(some) == 1:
            (subject, reply), data = to.alone(ids[0]), some[0]
        else:
            (subject, reply), data = to.together(ids), frames.pack(ids, some)
        try:
            await self._client.publish(subject, data, reply)
        except (NatsError, OSError):
            to.unsent(ids)

    async def close(self) -> None:
        """What waits is sent."""
        if self._messages and self._client.is_connected:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        self._sending.cancel()
        await asyncio.gather(self._sending, return_exceptions=True)


class _There:
    """One subject, for what goes alone in any case. That it did not leave is noticed by whoever misses it."""

    __slots__ = ("place", "reply")

    def __init__(self, subject: str, reply: str) -> None:
        self.place = subject
        self.reply = reply

    def alone(self, id_: str) -> tuple[str, str]:
        return self.place, self.reply

    def together(self, ids: list[str]) -> tuple[str, str]:
        return self.place, self.reply

    def unsent(self, ids: list[str]) -> None:
        pass
