"""A gateway whose process does not run for a while: the time its clients have waited counts against their calls."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from tests.gateway.load_clients import Failed, load_client
from tests.gateway.program import program
from toolway.testing import fake_server

pytestmark = pytest.mark.anyio

TIME_S = 3.0  # as short as a flight allows
PAUSE_S = TIME_S + 1


@pytest.mark.attack("A2-S3")
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_call_expiring_during_a_pause_is_not_sent(era: str, tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    async with program(tmp_path / "run", {"s": fake_server(era="both", effects=str(effects))}) as running:
        clients = [load_client(era, running.port, running.token) for _ in range(3)]
        for client in clients:
            await client.call("s__counter", {})
        patient = load_client(era, running.port, running.token)
        await patient.call("s__counter", {})
        if era == "modern":  # a legacy client that connects now waits for its session, not for the call
            clients.append(load_client(era, running.port, running.token))
        before = len(effects.read_text().splitlines())
        running.signal(signal.SIGSTOP)
        short = [
            asyncio.create_task(each.call("s__counter", {}, meta={"toolway/timeoutMs": TIME_S * 1000}))
            for each in clients
        ]
        long = asyncio.create_task(patient.call("s__counter", {}, meta={"toolway/timeoutMs": 60_000}))
        await asyncio.sleep(PAUSE_S)
        running.signal(signal.SIGCONT)
        for failed in await asyncio.gather(*short, return_exceptions=True):
            assert isinstance(failed, Failed)
            assert (failed.executed, failed.facts["code"]) == ("no", "E-TIMEOUT")
        await long
        assert len(effects.read_text().splitlines()) == before + 1
        await clients[0].call("s__counter", {}, meta={"toolway/timeoutMs": 60_000})
        for client in (*clients, patient):
            client.close()
