"""Batches NATS messages: frames for one target in one loop iteration become one message.

For a Python program, sending or receiving one NATS message costs more than the rest of a call. Batching adds no delay:
frames leave at the end of the loop iteration in any case.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from nats.aio.client import Client
from nats.errors import Error as NatsError

from toolway.cluster.nats_rpc import frames

# Bytes of one batch, unless a single frame is longer. `nats-py` reads this many bytes at a time: a longer message costs
# it, and the NATS server, one more copy, and arrives late.
MAX_BATCH_BYTES: Final = 32 * 1024
MAX_QUEUED_MESSAGES: Final = 10_000  # queued messages; any more control frames are dropped, and the receiver asks again


class BatchTarget(Protocol):
    """Receiver of NATS frames about calls, with subjects for a single frame and for a batch.

    A frame is one encoded message of the RPC protocol (`frames.py`).
    """

    key: str  # equal for all frames that can share a batch

    def single_subject(self, id_: str) -> tuple[str, str]:
        """Return the NATS subject and reply subject for a frame about call `id_` sent alone."""

    def batch_subject(self, ids: list[str]) -> tuple[str, str]:
        """Return NATS subject and reply subject for a batch of frames about the calls `ids`."""

    def on_unsent(self, ids: list[str]) -> None:
        """Fail the calls `ids`, whose frames NATS did not accept.

        A target whose receiver asks again for missing frames does nothing here.
        """


class _Batch:
    """Frames for one target that are sent together as one NATS message."""

    __slots__ = ("frames", "free_bytes", "ids", "target")

    def __init__(self, target: BatchTarget, free_bytes: int) -> None:
        self.target = target
        self.ids: list[str] = []
        self.frames: list[bytes] = []
        self.free_bytes = free_bytes  # bytes still free


class BatchingOutbox:
    """Queue of outgoing NATS messages of one node, sent once per event-loop iteration.

    Frames for one target that are queued in the same iteration are sent as one message.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._batches: list[_Batch] = []
        self._open_batches: dict[str, _Batch] = {}  # batches with free space, by target
        self._has_batches = asyncio.Event()
        self._is_waiting = False
        self._send_task = asyncio.get_running_loop().create_task(self._run_sender())
        self.iteration = 0

    def send_alone(self, subject: str, frame: bytes, reply: str = "") -> None:
        """Queue a frame as a separate NATS message. It is dropped if the queue is full."""
        if len(self._batches) < MAX_QUEUED_MESSAGES:
            self._add_batch(_SingleTarget(subject, reply), 0, "", frame)

    def send_batched(self, target: BatchTarget, id_: str, frame: bytes) -> None:
        """Queue a frame to be sent in one NATS message with other frames for the target.

        If it remains the only one, it is sent without batch encoding.
        """
        batch = self._open_batches.get(target.key)
        size = len(frame) + frames.BATCH_ENTRY_OVERHEAD_BYTES
        if batch is None or batch.free_bytes < size:
            free_bytes = min(MAX_BATCH_BYTES, self._client.max_payload - frames.FRAME_OVERHEAD_BYTES)
            self._open_batches[target.key] = self._add_batch(target, free_bytes - size, id_, frame)
        else:
            batch.free_bytes -= size
            batch.ids.append(id_)
            batch.frames.append(frame)

    def _add_batch(self, target: BatchTarget, free_bytes: int, id_: str, frame: bytes) -> _Batch:
        batch = _Batch(target, free_bytes)
        batch.ids.append(id_)
        batch.frames.append(frame)
        self._batches.append(batch)
        self._has_batches.set()
        return batch

    @property
    def is_idle(self) -> bool:
        """True if nothing is queued: a frame may then be sent directly, without delay."""
        return self._is_waiting and not self._batches

    async def _run_sender(self) -> None:
        while True:
            if not self._batches:
                self._has_batches.clear()
                self._is_waiting = True
                await self._has_batches.wait()
                self._is_waiting = False
            batches, self._batches, self._open_batches = self._batches, [], {}
            self.iteration += 1
            for batch in batches:
                await self._publish(batch.target, batch.ids, batch.frames)

    async def _publish(self, target: BatchTarget, ids: list[str], batch_frames: list[bytes]) -> None:
        if len(batch_frames) == 1:
            (subject, reply), data = target.single_subject(ids[0]), batch_frames[0]
        else:
            (subject, reply), data = target.batch_subject(ids), frames.encode_batch(ids, batch_frames)
        try:
            await self._client.publish(subject, data, reply)
        except (NatsError, OSError):
            target.on_unsent(ids)

    async def close(self) -> None:
        """Send the queued NATS messages, then accept no more."""
        if self._batches and self._client.is_connected:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        self._send_task.cancel()
        await asyncio.gather(self._send_task, return_exceptions=True)


class _SingleTarget:
    """Target with one NATS subject, for frames that are never batched.

    An unsent frame is ignored here, because its receiver notices that it is missing.
    """

    __slots__ = ("key", "reply")

    def __init__(self, subject: str, reply: str) -> None:
        self.key = subject
        self.reply = reply

    def single_subject(self, id_: str) -> tuple[str, str]:
        return self.key, self.reply

    def batch_subject(self, ids: list[str]) -> tuple[str, str]:
        return self.key, self.reply

    def on_unsent(self, ids: list[str]) -> None:
        pass
