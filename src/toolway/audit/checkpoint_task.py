"""Signs hourly checkpoints of an audit log that is being written, and stores, notes, and sends them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from toolway._worker_thread import WorkerThread
from toolway.audit.checkpoint_notes import CheckpointNotes
from toolway.audit.checkpoints import Checkpoint, sign_checkpoint
from toolway.audit.sink import LOG_CHECKPOINT, ChainHead, encode_fields, format_time
from toolway.audit.writer import AuditUnavailable, AuditWriter
from toolway.errors import ToolwayError

if TYPE_CHECKING:
    from toolway.audit.signing import Signer
    from toolway.telemetry.webhook import Webhook

CHECKPOINT_INTERVAL_S: Final = 3600.0
FIRST_DELAY_S: Final = 60.0  # a gateway that just started is checkpointed soon; and the delay after a failure
LAST_TIMEOUT_S: Final = 3.0  # at the end: a signer that does not respond must not delay it
_log = logging.getLogger("toolway.audit")


class CheckpointTask:
    """A task that signs the end of the audit log every hour and when it is closed.

    If that fails, the task logs the failure and tries again. Calls are not affected.
    """

    def __init__(
        self,
        writer: AuditWriter,
        load_signer: Callable[[], Signer],
        notes: CheckpointNotes,
        *,
        webhook: Webhook | None = None,
        interval: float = CHECKPOINT_INTERVAL_S,
        first_delay: float = FIRST_DELAY_S,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Create the task that signs checkpoints of the audit log; `start` starts it.

        `load_signer` returns the signer; it may block, and may create its key.
        """
        self._writer = writer
        self._load_signer = load_signer
        self._notes = notes
        self._webhook = webhook
        self._interval = interval
        self._first_delay = first_delay
        self._wall_clock = wall_clock
        self._last = ChainHead()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._thread = WorkerThread("toolway-audit-sign")
        if self._webhook is not None:
            self._webhook.start()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        delay = self._first_delay
        while True:
            await asyncio.sleep(delay)
            delay = self._interval if await self.make() else self._first_delay

    async def make(self, timeout: float | None = None) -> bool:
        """Sign the end of the log and store the checkpoint, if the log has new records.

        Return False if that failed.
        """
        head, location = self._writer.head, self._writer.location
        least = 2 if self._last.seq else 1  # the last checkpoint is itself a record
        if head.seq - self._last.seq < least:
            return True
        try:
            found = await self._thread.run(lambda: self._sign(location, head, timeout), timeout or 60.0)
        except (ToolwayError, OSError, TimeoutError) as exc:
            reason = f"{exc.message}: {exc.detail}" if isinstance(exc, ToolwayError) else str(exc) or "timeout"
            _log.error("no checkpoint of the audit log was made: %s", reason)
            return False
        self._last = head
        self._writer.enqueue(LOG_CHECKPOINT.encode(), encode_fields(found.to_record()))
        if self._webhook is not None:
            self._webhook.enqueue_body(f"checkpoint {found.through}", msgspec.json.encode(found))
        return True

    def _sign(self, location: str, head: ChainHead, timeout: float | None) -> Checkpoint:
        """Return a signed checkpoint of a log that ends with `head`, and store it in the notes next to the signing key.

        Runs in a thread, because a signer may block.
        """
        signer = self._load_signer()
        limit = {} if timeout is None else {"timeout": timeout}
        now = format_time(self._wall_clock())
        found = sign_checkpoint(location, head, now, signer.public.id, lambda message: signer.sign(message, **limit))
        self._notes.add(location, found)
        return found

    async def close(self) -> None:
        """Make a final checkpoint and end the task. Call it before the audit log is closed."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        with contextlib.suppress(AuditUnavailable, TimeoutError):
            async with asyncio.timeout(LAST_TIMEOUT_S):
                await self._writer.flush()
            await self.make(LAST_TIMEOUT_S)
        self._thread.stop()
        if self._webhook is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_TIMEOUT_S):
                    await self._webhook.drained()
            await self._webhook.close()
