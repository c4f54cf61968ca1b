"""Many calls of clients of both eras through a gateway with faulty servers, and whether every promise was kept."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, cast

from tests.gateway.load_clients import LoadClient, Result, load_client
from tests.gateway.program import Program, program
from tests.long.history import Report
from tests.long.load import Load
from tests.long.server_set import ERAS, HTTP_FAULTS, STDIO_FAULTS, Fleet, fake_http
from toolway import Hub
from toolway.testing import History, fake_server
from toolway.testing.history import Violation, find_violations

CLIENTS = 50
TIRELESS = 1_000_000  # restarts; servers die far more often here than anywhere else
LOOK = 0.3  # seconds between two looks at servers that are down


class Clients:
    """Stands where a hub stands for the load: every caller is its own client, of one era or the other."""

    def __init__(self, run: Program) -> None:
        self._run = run
        self._load_clients: dict[asyncio.Task[Any] | None, LoadClient] = {}

    async def call_tool(self, target: str, arguments: Mapping[str, Any], *, timeout: float, **_: Any) -> Result:
        caller = asyncio.current_task()
        if caller not in self._load_clients:
            era = ERAS[len(self._load_clients) % 2]
            self._load_clients[caller] = load_client(era, self._run.port, self._run.token)
        server, tool = target.split(".")
        meta = {"toolway/timeoutMs": timeout * 1000}
        return await self._load_clients[caller].call(f"{server}__{tool}", dict(arguments), meta=meta)

    def __len__(self) -> int:
        return len(self._load_clients)

    def close(self) -> None:
        for each in self._load_clients.values():
            each.close()


@asynccontextmanager
async def before_faulty_servers(folder: Path, effects: Path) -> AsyncIterator[tuple[Program, Fleet, Clients]]:
    async with AsyncExitStack() as stack:
        servers: dict[str, Any] = {}
        faults: dict[str, tuple[str, ...]] = {}
        for number in range(6):
            name, era = f"pipe-{number}", ERAS[number % 2]
            servers[name] = {**fake_server(era=era, effects=str(effects)), "maxRestarts": TIRELESS}
            faults[name] = STDIO_FAULTS
        for number in range(4):
            name = f"web-{number}"
            url = await stack.enter_async_context(fake_http(ERAS[number % 2], effects))
            servers[name], faults[name] = {"url": url, "maxRestarts": TIRELESS}, HTTP_FAULTS
        run = await stack.enter_async_context(program(folder, servers))
        clients = Clients(run)
        stack.callback(clients.close)
        yield run, Fleet(cast(Hub, clients), faults), clients


async def bring_back(run: Program) -> int:
    """Restart what is down, as an operator would: waiting longer after each end is not what is looked at here."""
    count = 0
    try:
        while True:
            for name, status in (await run.servers()).items():
                if status["state"] == "down":
                    await run.request("POST", f"/admin/servers/{name}/restart")
                    count += 1
            await asyncio.sleep(LOOK)
    except asyncio.CancelledError:
        return count


async def run(calls: int, seed: int, clients: int = CLIENTS) -> Report:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        history = History(folder / "effects")
        async with before_faulty_servers(folder / "gateway", folder / "effects") as (gateway, fleet, open_clients):
            load = Load(fleet, history, Random(seed))
            helping = asyncio.create_task(bring_back(gateway))
            began = time.monotonic()
            await load.callers(clients, calls)
            seconds = time.monotonic() - began
            helping.cancel()
            restarts = await helping
            assert len(open_clients) == clients
            code = await gateway.stop()
        outcomes = [outcome for call in history.invocations.values() for outcome in call.outcomes]
        wrong = list(find_violations(history))
        # A connection that ended without an answer is an answer lost, whatever became of the call.
        wrong += [
            Violation("I1", "lost", call.nonce, f"{call.target}: the connection ended")
            for call in history.invocations.values()
            if any(outcome.name == "Lost" for outcome in call.outcomes)
        ]
        if code != 0:
            wrong.append(Violation("I1", "strange", "-", f"the gateway ended with {code}"))
        return Report(
            calls=len(history.invocations),
            seconds=seconds,
            restarts=restarts,
            retried=sum(outcome.attempts > 1 for outcome in outcomes),
            faults=load.faults,
            outcomes=history.count_outcomes(),
            wrong=wrong,
        )
