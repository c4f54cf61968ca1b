"""Audit log of a simulated hub: a disk that is slow or fails, and what was on it when a request was sent."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from unittest import mock

from tests.audit.test_writer import MemorySink
from tests.sim.checks import Violation
from tests.sim.faults import ticks
from tests.sim.history import Begun, Done, History, Sent
from toolway.audit import writer as writer_module
from toolway.audit.mac import RecordMacs
from toolway.audit.middleware import AuditMiddleware
from toolway.audit.recorder import AuditRecorder
from toolway.audit.sink import RecordFields, StoredRecord
from toolway.audit.writer import AuditWriter
from toolway.telemetry.redaction import Redactor
from toolway.types import Call, Effect

LONGEST: Final = 12.0  # seconds that a write takes at most; after 10 the disk counts as dead


class Disk(MemorySink):
    """Storage whose writes take virtual time, and sometimes fail. It knows when each record was stored."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self._dice = dice
        self._is_calm = True
        self.stored_at: list[float] = []  # of each row

    def calm(self, *, calm: bool = True) -> None:
        self._is_calm = calm

    def delay(self) -> float:
        """Seconds of the next write."""
        chance = self._dice.random()
        if self._is_calm or chance < 0.85:
            return ticks(self._dice, 1, 4)
        return LONGEST if chance > 0.995 else self._dice.choice((0.5, 1.5, 1.5, 3.0))

    def append(self, rows: list[StoredRecord]) -> None:
        if not self._is_calm and self._dice.random() < 0.02:
            raise OSError("disk")
        super().append(rows)
        self.stored_at += [asyncio.get_running_loop().time()] * len(rows)


class DiskThread:
    """In place of the writer's thread: it runs one job after the other, each after a while."""

    def __init__(self, disk: Disk, name: str) -> None:
        self._disk = disk
        self._loop = asyncio.get_running_loop()
        self._jobs: deque[Callable[[], None]] = deque()

    def submit(self, work: Callable[[], Any], on_done: Callable[[Any, Exception | None], None]) -> None:
        def job() -> None:
            try:
                result, error = work(), None
            except Exception as exc:
                result, error = None, exc
            on_done(result, error)
            self._jobs.popleft()
            if self._jobs:
                self._start()

        self._jobs.append(job)
        if len(self._jobs) == 1:
            self._start()

    def _start(self) -> None:
        self._loop.call_later(self._disk.delay(), self._jobs[0])

    async def run(self, work: Callable[[], Any], timeout: float) -> Any:
        future = self._loop.create_future()

        def done(result: Any, error: Exception | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        self.submit(work, done)
        async with asyncio.timeout(timeout):
            return await future

    def stop(self) -> None:
        """Nothing runs when no job is queued."""


@dataclass
class SimAuditLog:
    """What `HubCore` needs of an audit log."""

    disk: Disk
    redactor: Redactor = field(default_factory=lambda: Redactor(b"k" * 32))
    writer: AuditWriter | None = None
    recorder: AuditRecorder | None = None

    async def open(self, definition_for: Callable[[Call], str]) -> AuditMiddleware:
        self.writer = AuditWriter(self.disk, RecordMacs(b"k" * 32), wall_clock=lambda: 0.0)
        with mock.patch.object(writer_module, "WorkerThread", partial(DiskThread, self.disk)):
            await self.writer.open()
        self.disk.calm(calm=False)
        now = asyncio.get_running_loop().time
        self.recorder = AuditRecorder(self.writer, self.redactor, definition_for, now)
        return AuditMiddleware(self.recorder)

    async def close(self) -> None:
        self.disk.calm()
        await asyncio.sleep(2 * LONGEST)  # the last slow write ends, and the writer is writable again
        assert self.writer is not None
        await self.writer.close()

    # -- what was recorded --------------------------------------------------------------------------------------------

    def _records(self, kind: str) -> Iterator[tuple[float, RecordFields]]:
        for at, row in zip(self.disk.stored_at, self.disk.rows, strict=True):
            fields = row.fields()
            if fields["kind"] == kind:
                yield at, fields

    def _digest(self, begun: Begun, front: str) -> str:
        """What an intent keeps of a call's arguments, which come from `run.py`."""
        names_call = not begun.shared and begun.key is None and front != "hub"
        return self.redactor.digest({"nonce": begun.nonce, **({"call": begun.call} if names_call else {})})

    def check(self, history: History) -> Iterator[Violation]:
        """No request of an UNSAFE call left before its intent was stored, and each intent has its one true outcome."""
        begun = {entry.call: entry for entry in history.of(Begun)}
        calls = {self._digest(entry, history.front): call for call, entry in begun.items()}
        intents: dict[str, float] = {}  # of calls with one key, the first counts
        for at, fields in self._records("call.intent"):
            intents.setdefault(str(fields["arguments"]), at)
        for sent in history.of(Sent):
            entry = begun.get(sent.call)
            if entry is not None and entry.effect is Effect.UNSAFE:
                stored = intents.get(self._digest(entry, history.front))
                if stored is None or stored > sent.at:
                    yield Violation("audit", sent.call, f"was sent at {sent.at:g}; its intent was stored at {stored}")
        executed = {done.call for done in history.of(Done)}
        outcomes: dict[str, list[RecordFields]] = {}
        for _, fields in self._records("call.outcome"):
            outcomes.setdefault(str(fields["call"]), []).append(fields)
        for _, fields in self._records("call.intent"):
            call = calls.get(str(fields["arguments"]), "")
            found = outcomes.get(str(fields["call"]), [])
            if len(found) != 1:
                yield Violation("audit", call, f"has an intent and {len(found)} outcomes")
            for outcome in found:
                is_denied = outcome["outcome"] in ("not_executed", "rejected")
                is_known = call in begun and begun[call].key is None and not begun[call].shared
                if is_known and is_denied and call in executed:
                    yield Violation("audit", call, f"ran, and was recorded as {outcome['outcome']}")
                if is_known and outcome["outcome"] in ("ok", "tool_error") and call not in executed:
                    yield Violation("audit", call, f"did not run, and was recorded as {outcome['outcome']}")
