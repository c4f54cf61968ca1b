"""What a node sends over NATS in one turn of its loop: what goes to the same place goes together, as one message.

To hand one message to NATS, and to take one from it, costs a program in Python more than a whole call of ours does.
Nobody waits for others: a turn of the loop is as short as it is without.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from nats.aio.client import Client
from nats.errors import Error as NatsError

from toolway.gateway.replica.over_nats import frames

# Bytes of one message, unless one frame is longer. It is what `nats-py` reads at a time: a longer one costs it, and the
# NATS server, a copy more, and is late.
TOGETHER: Final = 32 * 1024
MOST: Final = 10_000  # messages that wait; more are not sent, and whoever misses them asks again

Unsent = Callable[[list[str]], None]


class _Message:
    __slots__ = ("ids", "parts", "reply", "size", "subject", "unsent")

    def __init__(self, subject: str, reply: str, unsent: Unsent | None) -> None:
        self.subject = subject
        self.reply = reply
        self.unsent = unsent
        self.ids: list[str] = []
        self.parts: list[bytes] = []
        self.size = 0


class Outbox:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._messages: list[_Message] = []
        self._open: dict[str, _Message] = {}  # to which more can be added, by subject
        self._some = asyncio.Event()
        self._waits = False
        self._sending = asyncio.get_running_loop().create_task(self._send())
        self.turn = 0

    def put(self, subject: str, frame: bytes, reply: str = "") -> None:
        """A message of its own, behind all others."""
        if len(self._messages) < MOST:
            message = _Message(subject, reply, None)
            message.parts.append(frame)
            self._messages.append(message)
            self._some.set()

    def join(
        self,
        subject: str,
        id_: str,
        frame: bytes,
        reply: Callable[[list[str]], str] | None = None,
        unsent: Unsent | None = None,
    ) -> None:
        """With others that go there; `reply` names the subject under which these ids are answered, and `unsent` hears
        of those that did not leave."""
        message = self._open.get(subject)
        if message is None or message.size + len(frame) > min(TOGETHER, self._client.max_payload - frames.ROOM):
            message = self._open[subject] = _Message(subject, "", unsent)
            message.parts.append(frames.PACK)
            if reply is not None:
                message.reply = reply(message.ids)
            self._messages.append(message)
            self._some.set()
        message.ids.append(id_)
        message.parts += (b"%b %d\n" % (id_.encode(), len(frame)), frame)
        message.size += len(frame) + frames.HEAD

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
                try:
                    await self._client.publish(message.subject, b"".join(message.parts), message.reply)
                except (NatsError, OSError):
                    if message.unsent is not None:
                        message.unsent(message.ids)

    async def close(self) -> None:
        """What waits is sent."""
        if self._messages and self._client.is_connected:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        self._sending.cancel()
        await asyncio.gather(self._sending, return_exceptions=True)
