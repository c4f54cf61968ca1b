"""`kill -9` of a gateway that keeps an audit log, under load and again and again, and then the question what the log
knows.

Clients of both eras call without pause. At a random moment the gateway is killed. Then the chain must be whole, every
effect must have its intent, nothing may have happened twice or be denied; and after the next start every intent without
an outcome must be told as unknown.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.audit.log_reader import read_unstored
from tests.gateway.load_clients import Failed, Lost, close_all, load_client
from tests.gateway.program import Program, below, kill, runs, start
from toolway.audit.log import create_sink, load_redactor
from toolway.audit.sink import SinkBroken
from toolway.audit.verify import TamperedLog
from toolway.config.settings import AuditSettings
from toolway.parts.audit.verify import verify_log
from toolway.testing import fake_server

CLIENTS = 40
GONE = 2.0  # seconds after which nothing may be left of a killed gateway
Json = dict[str, Any]


@dataclass
class KillReport:
    """What one kill showed."""

    number: int
    calls: int = 0
    effects: int = 0
    intents: int = 0
    open: int = 0  # intents that had no outcome when the gateway was killed
    records: int = 0
    unstored: int = 0  # records that were only in the journal
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counted = f"{self.calls} calls, {self.effects} effects, {self.intents} intents, {self.open} cut off"
        return "\n".join(
            [
                f"kill {self.number}: {counted}, {self.records} records and {self.unstored} in the journal",
                *self.wrong[:10],
            ]
        )


class KillRuns:
    """One log and one file of effects, through all kills."""

    def __init__(self, folder: Path, seed: int, to: str = "sqlite") -> None:
        self._folder = folder
        self._dice = Random(seed)
        self._audit = AuditSettings(to=to).with_folder(folder / "gateway" / "state")
        # A file for each: on Windows, two processes that append to one can overwrite each other's line.
        self._effects = {name: folder / f"effects-{name}" for name in ("pipe", "old")}
        self._servers = {
            "pipe": fake_server(era="modern", effects=str(self._effects["pipe"])),
            "old": fake_server(era="legacy", effects=str(self._effects["old"])),
        }
        self._to = to
        self._given: dict[str, Json] = {}  # nonce → arguments
        self._told: dict[str, str] = {}  # nonce → as reported to the client
        self._cut_off: set[str] = set()  # ids of calls that the last kill left open
        self._rounds = 0

    async def kill_once(self, longest: float = 1.5) -> KillReport:
        found = KillReport(self._rounds)
        self._rounds += 1
        run = await start(self._folder / "gateway", self._servers, audit={"to": self._to})
        try:
            await run.announced()
            self._check_recovery(found)
            await run.until_ready(*self._servers)
            before = len(self._given)
            clients = [asyncio.create_task(self._client(run, number)) for number in range(CLIENTS)]
            await asyncio.sleep(0.1 + self._dice.random() * longest)
            family = below(run.pid)
            run.process.kill()
            await run.ended()
            await _all_gone(family, found)
            async with asyncio.timeout(60):
                await asyncio.gather(*clients)
            found.calls = len(self._given) - before
        finally:
            await close_all()
            await kill(run)
        self._check_log(found)
        return found

    async def _client(self, run: Program, number: int) -> None:
        each = load_client(("modern", "legacy")[number % 2], run.port, run.token)
        server = ("pipe", "old")[number // 2 % 2]
        try:
            for count in range(100_000):
                nonce = f"{self._rounds}-{number}-{count}"
                arguments = {"nonce": nonce, "seconds": self._dice.choice((0, 0, 0.01, 0.1))}
                self._given[nonce] = arguments
                try:
                    await each.call(f"{server}__counter", arguments)
                except Failed as failed:
                    self._told[nonce] = str(failed.executed)
                except (Lost, OSError):
                    return
                else:
                    self._told[nonce] = "yes"
        finally:
            each.close()

    def _read(self, found: KillReport) -> list[Json]:
        sink = create_sink(self._audit, read_only=True)
        sink.open()
        try:
            found.records = verify_log(sink.read_forward()).record_count
            unstored = read_unstored(self._audit, sink)  # the journal that the killed gateway left behind
            found.unstored = len(unstored)
            return [*(row.fields() for row in sink.read_forward()), *unstored]
        except (TamperedLog, SinkBroken) as exc:
            found.wrong.append(f"the chain is broken: {exc}")
            return []
        finally:
            sink.close()

    def _check_recovery(self, found: KillReport) -> None:
        """The gateway has just been started again."""
        if self._rounds == 1:
            return
        told = {
            each["call"]
            for each in self._read(found)
            if each["kind"] == "call.outcome" and each.get("recovered") and each["outcome"] == "unknown"
        }
        found.wrong += [f"{call}: cut off, and not told as unknown" for call in sorted(self._cut_off - told)]

    def _check_log(self, found: KillReport) -> None:
        records = self._read(found)
        intents = {each["call"]: each["arguments"] for each in records if each["kind"] == "call.intent"}
        outcomes: dict[str, str] = {}
        for each in records:
            if each["kind"] == "call.outcome":
                if each["call"] in outcomes:
                    found.wrong.append(f"{each['call']}: has two outcomes")
                outcomes[each["call"]] = each["outcome"]
        self._cut_off = intents.keys() - outcomes.keys()
        found.intents, found.open = len(intents), len(self._cut_off)
        lines = [line for file in self._effects.values() if file.exists() for line in file.read_text().splitlines()]
        happened = Counter(line.rpartition("\t")[2] for line in lines)
        found.effects = len(happened)
        digest = load_redactor(self._audit, create=False).digest
        by_arguments = {arguments: call for call, arguments in intents.items()}
        for nonce, times in happened.items():
            call = by_arguments.get(digest(self._given[nonce]))
            if times > 1:
                found.wrong.append(f"{nonce}: took effect {times} times")
            if call is None:
                found.wrong.append(f"{nonce}: took effect, and the log has no intent of it")
            elif outcomes.get(call) in ("not_executed", "rejected"):
                found.wrong.append(f"{nonce}: took effect, and the log denies it")
            if self._told.get(nonce) == "no":
                found.wrong.append(f"{nonce}: took effect, and its caller was told that it did not")
        found.wrong += [
            f"{nonce}: was said to be done, and was not"
            for nonce, told in self._told.items()
            if told == "yes" and not happened[nonce]
        ]


async def _all_gone(family: set[int], found: KillReport) -> None:
    until = time.monotonic() + GONE
    while any(map(runs, family)) and time.monotonic() < until:
        await asyncio.sleep(0.01)
    found.wrong += [f"process {pid} is left after {GONE:g} s" for pid in family if runs(pid)]
