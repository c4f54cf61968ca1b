"""Shutdown of a gateway: in order, with the right outcome for every call, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.gateway.load_clients import Connection, Failed, LegacyLoadClient, ModernLoadClient, load_client
from tests.gateway.program import Program, below, program, runs, until
from tests.gateway.shutdown_runs import Ending, end_under_load
from tests.timing import within
from toolway.testing import fake_server

pytestmark = pytest.mark.anyio
ERAS = ("modern", "legacy")
DELAYED = ("--port", "0", "--drain-delay", "8")
SHUTTING_DOWN = -31013
UNKNOWN = -31005


async def in_flight(run: Program, count: int, server: str = "fake") -> None:
    async with asyncio.timeout(30):
        while (await run.servers())[server]["in_flight"] != count:
            await asyncio.sleep(0.02)


async def test_every_call_under_load_is_executed_as_reported(tmp_path: Path) -> None:
    endings = [await end_under_load(tmp_path / str(number), seed=number) for number in range(3)]
    shown = "\n".join(map(str, endings))
    assert [ending.wrong for ending in endings] == [[], [], []], shown
    assert all(ending.answered > 50 and ending.running and ending.slow for ending in endings), shown
    assert any(ending.faults for ending in endings) and any(ending.left for ending in endings), shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "fault"),
    [
        ("sends_again", "took effect 2 times"),
        ("resume_sends", "took effect 2 times"),
        ("denies_at_shutdown", "and that was denied"),
    ],
)
async def test_broken_gateway_builds_are_detected(tmp_path: Path, build: str, fault: str) -> None:
    endings = []
    for seed in range(3):  # which calls a signal meets depends on the machine
        endings.append(await end_under_load(tmp_path / f"{build}{seed}", seed=seed, build=build))
        if any(line.endswith(fault) for line in endings[-1].wrong):
            return
    pytest.fail("\n".join(map(str, endings)))


def test_lost_answer_and_denied_effect_are_detected() -> None:
    ending = Ending()
    ending.effects = {"lost": 1, "denied": 1, "twice": 2, "fine": 1}
    ending.outcomes = {
        "lost": "nothing",
        "denied": "no",
        "twice": "ok",
        "fine": "ok",
        "never": "nothing",
        "hollow": "ok",
    }
    ending.code, ending.seconds = 0, 1.0
    assert sorted(line.partition(":")[0] for line in ending.wrong) == ["denied", "hollow", "lost", "twice"]


async def test_draining_gateway_is_not_ready_but_still_serves(tmp_path: Path) -> None:
    async with program(tmp_path / "one", {"fake": fake_server()}, *DELAYED) as run:
        clients = [load_client(era, run.port, run.token) for era in ERAS]
        for client in clients:
            await client.call("fake__echo", {"text": "x"})
        run.signal()
        async with asyncio.timeout(30):
            while (await run.get("/readyz"))[0] != 503:
                await asyncio.sleep(0.01)
        assert (await run.get("/healthz"))[0] == 200
        for client in (*clients, *(load_client(era, run.port, run.token) for era in ERAS)):
            assert not (await client.call("fake__echo", {"text": "x"})).closes
        assert await run.ended() == 0


async def test_running_call_is_answered_and_new_one_gets_503(tmp_path: Path) -> None:
    async with program(tmp_path / "one", {"fake": fake_server()}) as run:
        busy = {era: load_client(era, run.port, run.token) for era in ERAS}
        idle = [load_client(era, run.port, run.token) for era in ERAS]
        for client in idle:
            await client.call("fake__echo", {"text": "x"})
        slow = [
            asyncio.create_task(each.call("fake__sleep", {"seconds": 6, "nonce": era})) for era, each in busy.items()
        ]
        await in_flight(run, 2)
        run.signal()
        await until(lambda: refuses_connections(run.port))
        for client in idle:
            with pytest.raises(Failed) as refused:
                await client.call("fake__echo", {"text": "x"})
            assert (refused.value.status, refused.value.code) == (503, SHUTTING_DOWN)
            assert refused.value.executed == "no" and refused.value.closes
        answers = await asyncio.gather(*slow)
        assert [answer.data["nonce"] for answer in answers] == list(busy)
        assert all(answer.closes for answer in answers)
        assert await run.ended() == 0


def refuses_connections(port: int) -> bool:
    with contextlib.closing(socket.socket()) as tried:
        return tried.connect_ex(("127.0.0.1", port)) != 0


async def test_streams_end_in_order(tmp_path: Path) -> None:
    async with program(tmp_path / "one", {"fake": fake_server()}) as run:
        _, listening = await ModernLoadClient(run.port, run.token).listen()
        assert (await anext(listening))["method"] == "notifications/subscriptions/acknowledged"
        _, notified = await LegacyLoadClient(run.port, run.token).stream()
        older = await Connection.to(run.port)
        await older.send("GET", "/sse", {"authorization": f"Bearer {run.token}", "accept": "text/event-stream"})
        status, fields = await older.head()
        parts = older.parts(status, fields)
        assert b"/messages" in await anext(parts)
        run.signal()
        async with asyncio.timeout(20):
            last = [message async for message in listening][-1]
            assert last["result"]["resultType"] == "complete"
            assert [message async for message in notified] == []  # to its end, not cut off
            assert [part async for part in parts] == []
        assert await run.ended() == 0


async def test_sse_answer_arrives_before_its_stream_ends(tmp_path: Path) -> None:
    async with program(tmp_path / "one", {"fake": fake_server()}) as run:
        fields = {"authorization": f"Bearer {run.token}", "content-type": "application/json"}
        stream, sender = await Connection.to(run.port), await Connection.to(run.port)
        await stream.send("GET", "/sse", {**fields, "accept": "text/event-stream"})
        parts = stream.parts(*await stream.head())
        path = (await anext(parts)).decode().partition("data: ")[2].strip()

        async def post(id_: int, method: str, params: Mapping[str, object]) -> int:
            body = {"jsonrpc": "2.0", "id": id_, "method": method, "params": params}
            return (await sender.request("POST", path, fields, json.dumps(body).encode())).status

        hello = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}}
        assert await post(1, "initialize", hello) == 202
        assert await post(2, "tools/call", {"name": "fake__sleep", "arguments": {"seconds": 1, "nonce": "mine"}}) == 202
        assert await post(3, "tools/call", {"name": "fake__bad", "arguments": {"mode": "never"}}) == 202
        await in_flight(run, 2)
        run.signal()
        await until(lambda: refuses_connections(run.port))
        assert await post(4, "tools/call", {"name": "fake__echo", "arguments": {}}) == 503
        text = ""
        while '"mine"' not in text:  # a list that changed may be announced in between
            text += (await anext(parts)).decode()
        assert '"id":1' in text
        run.signal()  # the other call would take its whole time
        rest = "".join([part.decode() async for part in parts])
        assert '"id":3' in rest and str(UNKNOWN) in rest
        assert await run.ended() == 0


async def test_second_signal_cuts_running_calls_as_unknown(tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    server = fake_server("ignore_eof", effects=str(effects))
    async with program(tmp_path / "one", {"fake": {**server, "limits": {"maxConcurrent": 2}}}) as run:
        clients = [load_client(era, run.port, run.token) for era in (*ERAS, "modern")]
        sent = [
            asyncio.create_task(client.call("fake__bad", {"mode": "never", "effect": True, "nonce": str(number)}))
            for number, client in enumerate(clients[:2])
        ]
        await in_flight(run, 2)
        queued = asyncio.create_task(clients[2].call("fake__bad", {"mode": "never", "effect": True, "nonce": "queued"}))
        await asyncio.sleep(0.5)
        processes = below(run.pid)
        run.signal()
        await until(lambda: refuses_connections(run.port))
        assert not any(task.done() for task in sent)
        began = time.monotonic()
        run.signal()
        for call in sent:
            with pytest.raises(Failed) as cut:
                await call
            assert (cut.value.status, cut.value.code, cut.value.executed) == (200, UNKNOWN, "unknown")
        with pytest.raises(Failed) as never:
            await queued
        assert never.value.executed == "no"
        assert await run.ended() == 0
        assert time.monotonic() - began < within(20)  # and not the 30 s that calls may have
        assert sorted(line.split("\t")[1] for line in effects.read_text().splitlines()) == ["0", "1"]
        assert not any(runs(pid) for pid in processes)


async def test_ctrl_c_to_the_process_group_shuts_down_in_order(tmp_path: Path) -> None:
    async with program(tmp_path / "one", {"fake": fake_server(), "other": fake_server("ignore_sigterm")}) as run:
        client = load_client("modern", run.port, run.token)
        running = asyncio.create_task(client.call("fake__sleep", {"seconds": 1.5, "nonce": "mine"}))
        await in_flight(run, 1)
        processes = below(run.pid)
        assert len(processes) >= 3
        os.killpg(run.pid, signal.SIGINT)
        assert (await running).data["nonce"] == "mine"
        assert await run.ended() == 0
        assert not any(runs(pid) for pid in processes)


async def test_legacy_call_with_a_lost_connection_is_finished(tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    server = fake_server("one_byte_per_second=0.02;on=bad", effects=str(effects))
    async with program(tmp_path / "one", {"fake": server}) as run:
        client = LegacyLoadClient(run.port, run.token)
        await client.call("fake__echo", {"text": "x"})
        await client.begin(7, "tools/call", {"name": "fake__sleep", "arguments": {"seconds": 6}})
        await in_flight(run, 1)
        client.leave()
        await asyncio.sleep(0.2)
        await in_flight(run, 1)  # in this era that does not cancel
        began = time.monotonic()
        run.signal()
        assert await run.ended() == 0
        assert time.monotonic() - began > 1
