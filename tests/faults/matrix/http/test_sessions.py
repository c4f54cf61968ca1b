"""Servers that forget sessions, serve several of ours, or restart under load."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.fault_lab import WAYS, Bench, Served, lab
from tests.faults.matrix.http.scripted_server import Turn, scripted
from tests.faults.matrix.http.web_servers import apart, web
from tests.timing import within
from tests.upstream.raw_http import response
from toolway import OutcomeUnknown, Server, ServerUnavailable, Timeout
from toolway.testing import FakeHttp

pytestmark = pytest.mark.anyio

RECOVERY = 6.0 + 2.0  # the first pause of a breaker with its jitter, and what a busy machine may add


@pytest.mark.fault("B21")
@pytest.mark.parametrize("fake", [{"answer": "json"}, {"answer": "sse"}, {"transport": "sse"}], ids=str)
async def test_forgotten_session_is_renewed_once_for_fifty_calls(fake: dict[str, Any]) -> None:
    await _forgets(FakeHttp(era="legacy", **fake))


async def _forgets(fake: FakeHttp) -> None:
    async with lab({"bad": fake}) as bench:
        for _ in range(3):
            before, calls = fake.stats.initialize, fake.stats.calls.get("counter", 0)
            fake.drop_sessions()
            work = [bench.start("bad.counter", max_attempts=1) for _ in range(50)]
            for call in work:
                (await call).expect(None)
            assert fake.stats.initialize == before + 1
            assert fake.stats.calls["counter"] == calls + 50


@pytest.mark.parametrize("era", ["legacy", "sse"])
@pytest.mark.fault("B21")
async def test_session_forgotten_during_fifty_calls_fails_none(era: str, dice: random.Random) -> None:
    fake = web(era)
    async with lab({"bad": fake}) as bench:
        before = fake.stats.initialize
        work = []
        for number in range(50):
            work.append(bench.start("bad.counter", max_attempts=1))
            if number == 25:
                fake.drop_sessions()
            await asyncio.sleep(dice.random() * 0.002)
        for call in work:
            (await call).expect(None)
        assert fake.stats.initialize == before + 1


@pytest.mark.fault("B21")
async def test_server_forgetting_every_session_is_not_asked_forever() -> None:
    async def react(turn: Turn) -> None:
        await turn.conn.send(response(404))

    async with scripted("legacy", react, Mcp_Session_Id="always") as server, lab({"bad": server.url}) as bench:
        outcome = await bench.call("bad.act", timeout=10)
        assert (outcome.executed, outcome.seconds < within(5)) == ("no", True)
        assert len(server.turns) <= 6


@pytest.mark.fault("B22")
async def test_two_entries_of_one_server_never_share_a_session() -> None:
    """Two entries act for different users, and never use each other's session."""
    fake = FakeHttp(era="legacy")
    seen: dict[str, set[str]] = {"ann": set(), "ben": set()}
    serve = fake.endpoint.serve

    async def watch(exchange):
        headers = exchange.request.headers
        if "mcp-session-id" in headers:
            seen[headers["x-caller"]].add(headers["mcp-session-id"])
        await serve(exchange)

    fake.endpoint.serve = watch  # type: ignore[method-assign]
    async with lab({"ann": Served(fake, {"headers": {"X-Caller": "ann"}})}) as bench:
        await bench.add("ben", Server(url=fake.url, headers={"X-Caller": "ben"}))
        await _both(bench)
        for id_ in seen["ann"]:
            del fake.sessions[id_]
        before = fake.stats.initialize
        await _both(bench)
        assert fake.stats.initialize == before + 1
    assert (len(seen["ann"]), len(seen["ben"])) == (2, 1)
    assert not seen["ann"] & seen["ben"]


async def _both(bench: Bench) -> None:
    calls = [bench.start(f"{name}.counter") for name in ("ann", "ben") for _ in range(10)]
    for call in calls:
        (await call).expect(None)


@WAYS
@pytest.mark.fault("B23")
async def test_restart_under_load_is_survived(era: str, tmp_path: Path, dice: random.Random) -> None:
    effects, timeout = tmp_path / "effects", Timeout(total=10, connect=2)
    async with apart(era, str(effects)) as server, lab({"bad": Server(url=server.url, timeout=timeout)}) as bench:
        bench.effects = effects
        stop = asyncio.Event()
        load = [asyncio.create_task(_load(bench, stop, idempotent=n % 2 == 0)) for n in range(20)]
        await asyncio.sleep(0.3 + dice.random() * 0.05)
        await server.kill()
        await asyncio.sleep(dice.random() * 0.3)
        await server.start()
        took = await _recovery(bench)
        stop.set()
        await asyncio.gather(*load)
        await server.kill()
        assert took < within(RECOVERY)
        failed = [call for call in bench.calls if not call.ok]
        assert failed
        for call in failed:
            assert isinstance(call.error, OutcomeUnknown | ServerUnavailable), call.error


async def _recovery(bench: Bench) -> float:
    began = time.monotonic()
    while not (await bench.call("bad.counter", max_attempts=1)).ok:
        await asyncio.sleep(0.1)
    return time.monotonic() - began


async def _load(bench: Bench, stop: asyncio.Event, idempotent: bool) -> None:
    while not stop.is_set():
        await bench.call("bad.counter", idempotent=idempotent)
        await asyncio.sleep(0.05)
