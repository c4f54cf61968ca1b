"""SIGTERM under load, and then a check of every reported outcome.

Forty clients of both eras call servers of both eras over pipes and HTTP without pause. Some calls take longer than a
second, some meet a fault, and some clients leave in the middle of a call. At a random moment the gateway gets its
signal. What each server executed is counted by call. Then:

- a call that may not be repeated ran at most once;
- whose caller was told that it did not run, or was turned away, did not run;
- whose caller got a result ran;
- that ran was answered, or its caller told that it may have been, unless he left himself.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.gateway.load_clients import Failed, LegacyLoadClient, LoadClient, Lost, load_client
from tests.gateway.program import Program, program
from tests.long.server_set import ERAS, REFUSALS, fake_http
from toolway.testing import fake_server

CLIENTS = 40
LIMIT = 45.0  # seconds to the end
SHUTTING_DOWN = -31013
TIRELESS = 1_000_000  # restarts

#: Seconds that a call takes.
_DURATIONS: Final = (0, 0, 0.01, 0.1, 0.7, 1.4)
_PIPE_FAULTS: Final = ("exit_mid_call", "bad_utf8=inside", "truncated", "twice", "never")
_WEB_FAULTS: Final = (
    "reset_before_response",
    "close_before_response",
    "cut_body",
    "status=500",
    "status=503;retry_after=0.2",
    "drop_sessions",
    "never",
)
#: What goes wrong, by the name of the server. `retried` is declared idempotent.
FAULTS: Final = {
    "pipe": _PIPE_FAULTS,
    "old": _PIPE_FAULTS,
    "web": _WEB_FAULTS,
    "old-web": _WEB_FAULTS,
    "retried": _WEB_FAULTS,
}


@dataclass
class Ending:
    """One end of a gateway.

    An outcome is "ok", "no", "unknown", "nothing" (the connection ended), "refused", or "left" (the client did).
    """

    outcomes: dict[str, str] = field(default_factory=dict)
    effects: dict[str, int] = field(default_factory=dict)
    repeatable: set[str] = field(default_factory=set)
    running: int = 0  # calls that were running when the signal came, and were answered after it
    slow: int = 0  # of those, calls that took longer than a second
    faults: int = 0
    code: int = -1
    seconds: float = 0.0

    @property
    def answered(self) -> int:
        return sum(outcome == "ok" for outcome in self.outcomes.values())

    @property
    def left(self) -> int:
        return sum(outcome == "left" for outcome in self.outcomes.values())

    @property
    def wrong(self) -> list[str]:
        """Every promise that was broken."""
        found = []
        for nonce, outcome in self.outcomes.items():
            times = self.effects.get(nonce, 0)
            if times > 1 and nonce not in self.repeatable:
                found.append(f"{nonce}: took effect {times} times")
            if times and outcome == "nothing":
                found.append(f"{nonce}: happened, and its answer is lost")
            if times and outcome in ("no", "refused"):
                found.append(f"{nonce}: happened, and that was denied")
            if not times and outcome == "ok":
                found.append(f"{nonce}: is said to be done, and was not")
        found += [f"{nonce}: happened, and nobody asked for it" for nonce in self.effects.keys() - self.outcomes.keys()]
        if self.code != 0:
            found.append(f"exit: {self.code}")
        if self.seconds > LIMIT:
            found.append(f"end: after {self.seconds:.1f} s")
        return found

    def __str__(self) -> str:
        counted = ", ".join(f"{count} {name}" for name, count in Counter(self.outcomes.values()).most_common())
        after = f"{self.running} answered after the signal, {self.slow} of them slow"
        state = f"exit {self.code} after {self.seconds:.1f} s, {after}, {self.faults} faults, {counted}"
        return "\n".join([state, *self.wrong[:10]])


class Load:
    def __init__(self, run: Program, dice: Random) -> None:
        self.ending = Ending()
        self.signalled = False
        self._run = run
        self._dice = dice

    async def client(self, number: int) -> None:
        """Call until a call gets no answer."""
        each = load_client(ERAS[number % 2], self._run.port, self._run.token)
        server = list(FAULTS)[number // 2 % len(FAULTS)]
        try:
            for count in range(100_000):
                if not await self._call(each, server, f"{number}-{count}"):
                    return
        finally:
            each.close()

    async def _call(self, client: LoadClient, server: str, nonce: str) -> bool:
        """Whether there was an answer."""
        before, began = self.signalled, time.monotonic()
        if server == "retried":
            self.ending.repeatable.add(nonce)
        tool, arguments, meta = self._order(server)
        leaves = self._dice.random() * 1.2 if self._dice.random() < 0.03 else None
        try:
            async with asyncio.timeout(leaves):
                result = await client.call(f"{server}__{tool}", {**arguments, "nonce": nonce}, meta=meta)
        except TimeoutError:
            self._ends(nonce, "left")
            return await self._take_back(client)
        except Failed as failed:
            refused = failed.code == SHUTTING_DOWN and failed.status == 503 and failed.closes
            self._ends(nonce, "refused" if refused else str(failed.executed))
            return not refused
        except Lost:
            self._ends(nonce, "nothing")
            return False
        except OSError:
            return False  # not listening: the call was not made
        assert result.data["nonce"] == nonce, "the answer of another call"
        self._ends(nonce, "ok")
        if self.signalled and not before:
            self.ending.running += 1
            self.ending.slow += time.monotonic() - began > 1
        return True

    async def _take_back(self, client: LoadClient) -> bool:
        """A modern client hangs up, and that is enough; a legacy client says so too. Whether the gateway listens."""
        client.leave()
        if isinstance(client, LegacyLoadClient) and client.session:
            try:
                await client.notify("notifications/cancelled", {"requestId": client.last_id})
            except (OSError, Lost, AssertionError):
                return False
        return True

    def _order(self, server: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """A tool, its arguments, and `_meta`. Most calls are plain, so they can be flights."""
        if self._dice.random() < 0.97:
            return "counter", {"seconds": self._dice.choice(_DURATIONS)}, {}
        self.ending.faults += 1
        mode = self._dice.choice(FAULTS[server])
        return "bad", {"mode": mode, "effect": mode not in REFUSALS}, {"toolway/timeoutMs": 4000}

    def _ends(self, nonce: str, outcome: str) -> None:
        assert nonce not in self.ending.outcomes, "two outcomes"
        self.ending.outcomes[nonce] = outcome


async def end_under_load(folder: Path, seed: int, build: str = "") -> Ending:
    """Run a gateway under load to its end. `build` is one of tests/broken_builds.py."""
    dice = Random(seed)
    folder.mkdir()
    effects = folder / "effects"
    async with AsyncExitStack() as stack:
        servers: dict[str, dict[str, Any]] = {
            "pipe": fake_server(era="modern", effects=str(effects)),
            "old": fake_server(era="legacy", effects=str(effects)),
            "web": {"url": await stack.enter_async_context(fake_http("modern", effects))},
            "old-web": {"url": await stack.enter_async_context(fake_http("legacy", effects))},
            "retried": {"url": await stack.enter_async_context(fake_http("modern", effects)), "idempotent": True},
        }
        servers = {name: {**server, "maxRestarts": TIRELESS} for name, server in servers.items()}
        run = await stack.enter_async_context(program(folder / "gateway", servers, build=build))
        load = Load(run, dice)
        clients = [asyncio.create_task(load.client(number)) for number in range(CLIENTS)]
        await asyncio.sleep(1.5 + dice.random())
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
