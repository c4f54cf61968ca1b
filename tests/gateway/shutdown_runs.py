"""SIGTERM under load, and then the question what every caller was told.

Forty clients of both eras call without pause, and some calls take long. At a random moment the gateway gets its
signal. A call whose effect happened must have been answered, or its caller told that it may have happened.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.gateway.load_clients import Failed, Lost, Rider, rider
from tests.gateway.program import Program, program
from toolway.testing import fake_server

CLIENTS = 40
LIMIT = 45.0  # seconds to the end
SHUTTING_DOWN = -31013


@dataclass
class Ending:
    """One end of a gateway. An outcome is "ok", "no", "unknown", "nothing" (the connection ended) or "refused"."""

    outcomes: dict[str, str] = field(default_factory=dict)
    effects: dict[str, int] = field(default_factory=dict)
    running: int = 0  # calls that were under way when the signal came, and were answered after it
    code: int = -1
    seconds: float = 0.0

    @property
    def answered(self) -> int:
        return sum(outcome == "ok" for outcome in self.outcomes.values())

    @property
    def wrong(self) -> list[str]:
        """Every promise that was broken."""
        found = []
        for nonce, outcome in self.outcomes.items():
            times = self.effects.get(nonce, 0)
            if times > 1:
                found.append(f"{nonce}: took effect {times} times")
            if times and outcome == "nothing":
                found.append(f"{nonce}: happened, and its answer is lost")
            if times and outcome in ("no", "refused"):
                found.append(f"{nonce}: happened, and that was denied")
            if not times and outcome == "ok":
                found.append(f"{nonce}: is said to be done, and was not")
        if self.code != 0:
            found.append(f"exit: {self.code}")
        if self.seconds > LIMIT:
            found.append(f"end: after {self.seconds:.1f} s")
        return found

    def __str__(self) -> str:
        counted = ", ".join(f"{count} {name}" for name, count in Counter(self.outcomes.values()).most_common())
        state = f"exit {self.code} after {self.seconds:.1f} s, {self.running} answered after the signal, {counted}"
        return "\n".join([state, *self.wrong[:10]])


class Load:
    def __init__(self, run: Program, dice: Random) -> None:
        self.ending = Ending()
        self.signalled = False
        self._run = run
        self._dice = dice

    async def client(self, number: int) -> None:
        """Call until nobody answers any more."""
        each = rider(("modern", "legacy")[number % 2], self._run.port, self._run.token)
        server = ("pipe", "old")[number // 2 % 2]
        try:
            for count in range(100_000):
                if not await self._call(each, f"{server}__counter", f"{number}-{count}"):
                    return
        finally:
            each.close()

    async def _call(self, client: Rider, tool: str, nonce: str) -> bool:
        """Whether there was an answer."""
        before = self.signalled
        try:
            result = await client.call(tool, {"nonce": nonce, "seconds": self._dice.choice((0, 0, 0.01, 0.1, 0.7))})
        except Failed as failed:
            refused = failed.code == SHUTTING_DOWN and failed.status == 503 and failed.closes
            self._ends(nonce, "refused" if refused else str(failed.executed))
            return not refused
        except Lost:
            self._ends(nonce, "nothing")
            return False
        except OSError:
            return False  # nobody listens: there was no call
        assert result.data["nonce"] == nonce, "the answer of another call"
        self._ends(nonce, "ok")
        self.ending.running += self.signalled and not before
        return True

    def _ends(self, nonce: str, outcome: str) -> None:
        assert nonce not in self.ending.outcomes, "two outcomes"
        self.ending.outcomes[nonce] = outcome


async def end_under_load(folder: Path, seed: int) -> Ending:
    dice = Random(seed)
    folder.mkdir()
    effects = folder / "effects"
    servers = {"pipe": fake_server(era="modern", effects=str(effects))}
    servers["old"] = fake_server(era="legacy", effects=str(effects))
    async with program(folder / "gateway", servers) as run:
        load = Load(run, dice)
        clients = [asyncio.create_task(load.client(number)) for number in range(CLIENTS)]
        await asyncio.sleep(0.5 + dice.random())
        began = time.monotonic()
        load.signalled = True
        run.signal()
        load.ending.code = await run.ended()
        load.ending.seconds = time.monotonic() - began
        async with asyncio.timeout(10):
            await asyncio.gather(*clients)
    lines = effects.read_text().splitlines()
    load.ending.effects = dict(Counter(line.rpartition("\t")[2] for line in lines))
    return load.ending
