"""Faults that need a real gateway process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.faults.fault_lab import ERAS
from tests.faults.results import results
from tests.gateway import overload
from tests.gateway.load_clients import Failed, LegacyLoadClient, LoadClient, Result, load_client
from tests.gateway.program import Program, below, program, runs
from tests.gateway.shutdown_runs import end_under_load
from tests.timing import QUIET, within
from toolway.testing import fake_server

pytestmark = [pytest.mark.anyio, pytest.mark.alone, pytest.mark.dear]
UNKNOWN = -31005
KEY_MISMATCH = -31008
KEY = "toolway/idempotencyKey"
BACK = 5.0  # seconds until a slot is free again


def effects_in(file: Path) -> Counter[str]:
    """How often each nonce took effect."""
    return Counter(line.rpartition("\t")[2] for line in file.read_text().splitlines()) if file.exists() else Counter()


def one_slot(effects: Path, *modes: str) -> dict[str, Any]:
    limits = {"maxConcurrent": 1, "maxQueued": 10}
    return {"fake": {**fake_server(*modes, effects=str(effects)), "limits": limits}}


async def in_flight(run: Program, count: int) -> None:
    async with asyncio.timeout(20):
        while (await run.servers())["fake"]["in_flight"] != count:
            await asyncio.sleep(0.02)


async def cancelled(run: Program, client: LoadClient) -> list[Any]:
    return list((await client.call("fake__stats", {})).data["cancelled"])


async def until_cancelled(run: Program, client: LoadClient) -> list[Any]:
    """Return the calls that were cancelled at the server, as soon as there is one."""
    async with asyncio.timeout(60):
        while not (found := await cancelled(run, client)):
            await asyncio.sleep(0.05)
    return found


# -- C1: a caller leaves ----------------------------------------------------------------------------------------------


async def leave(client: LoadClient, id_: int) -> None:
    """As the era has it: by closing the stream, or by saying so."""
    if isinstance(client, LegacyLoadClient):
        await client.notify("notifications/cancelled", {"requestId": id_, "reason": "changed my mind"})
    client.leave()


@ERAS
@pytest.mark.fault("C1")
async def test_client_leaving_during_a_call_frees_its_slot(tmp_path: Path, era: str) -> None:
    effects = tmp_path / "effects"
    async with program(tmp_path / "one", one_slot(effects)) as run:
        gone, queued, other = (load_client(era, run.port, run.token) for _ in range(3))
        await gone.begin(7, "tools/call", {"name": "fake__counter", "arguments": {"seconds": 50, "nonce": "sent"}})
        await in_flight(run, 1)
        await queued.begin(8, "tools/call", {"name": "fake__counter", "arguments": {"nonce": "queued"}})
        await asyncio.sleep(0.3)
        await leave(queued, 8)  # while it waits in line: it is never made
        began = time.monotonic()
        await leave(gone, 7)
        assert (await other.call("fake__counter", {"nonce": "next"})).data["nonce"] == "next"
        assert time.monotonic() - began < within(BACK)
        assert len(await until_cancelled(run, other)) == 1
        assert await run.stop() == 0
    assert effects_in(effects) == {"sent": 1, "next": 1}
    results.checked("I1", "I3", "I4")


@ERAS
@pytest.mark.fault("C1")
async def test_client_leaving_during_a_stream_frees_its_slot(tmp_path: Path, era: str) -> None:
    async with program(tmp_path / "one", one_slot(tmp_path / "effects")) as run:
        gone, other = load_client(era, run.port, run.token), load_client(era, run.port, run.token)
        params = {"name": "fake__progress", "arguments": {"n": 500, "seconds": 0.1}, "_meta": {"progressToken": "p"}}
        connection = await gone.begin(7, "tools/call", params)
        status, fields = await connection.head()
        assert status == 200
        assert b"progress" in await anext(connection.parts(status, fields))
        began = time.monotonic()
        await leave(gone, 7)
        assert (await other.call("fake__echo", {"text": "x"})).data["text"] == "x"
        assert time.monotonic() - began < within(BACK)
        assert len(await until_cancelled(run, other)) == 1
        assert await run.stop() == 0
    results.checked("I1")


@pytest.mark.fault("C1")
async def test_lost_legacy_connection_cancels_nothing(tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    async with program(tmp_path / "one", one_slot(effects)) as run:
        gone, other = LegacyLoadClient(run.port, run.token), LegacyLoadClient(run.port, run.token)
        await gone.begin(7, "tools/call", {"name": "fake__counter", "arguments": {"seconds": 1, "nonce": "sent"}})
        await in_flight(run, 1)
        gone.leave()
        assert (await other.call("fake__counter", {"nonce": "next"})).data["nonce"] == "next"
        assert await cancelled(run, other) == []
        assert await run.stop() == 0
    assert effects_in(effects) == {"sent": 1, "next": 1}


# -- C3, C4, C11: many callers ----------------------------------------------------------------------------------------


@pytest.mark.fault("C3")
async def test_overload_at_three_times_capacity_keeps_throughput() -> None:
    report = await overload.run(60 if os.environ.get("TOOLWAY_LONG") else 5)
    assert report.kept >= (0.9 if QUIET else 0.3), str(report)
    assert len(report.refused) > 100 and not report.other, str(report)
    assert report.slowest(0.5) <= within(0.05), str(report)
    assert report.recovery <= within(5), str(report)


@ERAS
@pytest.mark.fault("C4")
async def test_flooding_key_leaves_others_their_share(tmp_path: Path, era: str) -> None:
    server = {**fake_server(era="modern"), "limits": {"maxConcurrent": 4, "maxQueued": 40}}
    async with program(tmp_path / "one", {"fake": server}) as run:
        bodies = [{"name": name, "rate": "none"} for name in ("loud", "quiet")]
        tokens = [(await run.request("POST", "/admin/keys", body))[1]["token"] for body in bodies]
        loud = [load_client(era, run.port, tokens[0]) for _ in range(100)]
        quiet = load_client(era, run.port, tokens[1])
        over = False

        async def shout(client: LoadClient) -> Counter[str]:
            told: Counter[str] = Counter()
            while not over:
                try:
                    await client.call("fake__sleep", {"seconds": 0.1})
                    told["ok"] += 1
                except Failed as failed:
                    told[str(failed.executed)] += 1
                    await asyncio.sleep(0.05)
            return told

        flood = [asyncio.create_task(shout(client)) for client in loud]
        await asyncio.sleep(1)
        took = []
        for number in range(10):
            began = time.monotonic()
            result = await quiet.call("fake__sleep", {"seconds": 0.01, "nonce": str(number)})
            took.append(time.monotonic() - began)
            assert result.data["nonce"] == str(number)
        over = True
        told = sum((await asyncio.gather(*flood)), Counter())
        # A slot becomes free every 25 ms; alone in line behind forty calls, one would wait a second.
        assert sorted(took)[5] < within(0.5), took
        assert told["ok"] > 10 and told["no"] > 10 and set(told) == {"ok", "no"}, told
        assert await run.stop() == 0


@ERAS
@pytest.mark.fault("C11")
async def test_retry_storm_through_a_gateway_stays_small(tmp_path: Path, era: str) -> None:
    effects, count = tmp_path / "effects", 200
    async with program(tmp_path / "one", {"fake": fake_server(effects=str(effects))}) as run:
        clients = [load_client(era, run.port, run.token) for _ in range(50)]
        left = iter(range(count))

        async def storm(client: LoadClient) -> None:
            for number in left:
                with pytest.raises(Failed):
                    arguments = {"mode": "nan", "effect": True, "nonce": str(number)}
                    await client.call("fake__bad_read", arguments)

        await asyncio.gather(*(storm(client) for client in clients))
        assert await run.stop() == 0
    assert effects_in(effects).total() <= 1.2 * count + 3


# -- C7, C9 -----------------------------------------------------------------------------------------------------------


@ERAS
@pytest.mark.fault("C7")
async def test_invalid_or_revoked_token_gets_401(tmp_path: Path, era: str) -> None:
    effects = tmp_path / "effects"
    unsigned = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJsb2NhbCJ9."
    async with program(tmp_path / "one", {"fake": fake_server(effects=str(effects))}) as run:
        made = (await run.request("POST", "/admin/keys", {"name": "short-lived"}))[1]
        held = load_client(era, run.port, made["token"])
        await held.call("fake__counter", {"nonce": "mine"})
        assert (await run.request("DELETE", f"/admin/keys/{made['id']}"))[0] == 200
        for token in (
            "",
            "tw_",
            "tw_" + "A" * 43,
            run.token.upper(),
            run.token[:-1],
            unsigned,
            made["token"],
            "\t",
            "🔑",
        ):
            client = load_client(era, run.port, "")
            client.fields["authorization"] = f"Bearer {token}".encode().decode("latin-1")
            with pytest.raises(Failed) as refused:
                await client.call("fake__counter", {"nonce": "never"})
            assert refused.value.status == 401, token
            client.close()
        without = load_client(era, run.port, "")
        del without.fields["authorization"]
        with pytest.raises(Failed) as refused:
            await without.call("fake__counter", {"nonce": "never"})
        assert refused.value.status == 401
        with pytest.raises(Failed) as refused:
            await held.call("fake__counter", {"nonce": "never"})
        assert refused.value.status == 401
        assert await run.stop() == 0
    assert effects_in(effects) == {"mine": 1}


def keyed(client: LoadClient, key: str, nonce: str, *, by_header: bool, seconds: float = 0) -> Any:
    arguments = {"nonce": nonce, "seconds": seconds}
    if by_header:
        return client.call("fake__counter", arguments, headers={"idempotency-key": key})
    return client.call("fake__counter", arguments, meta={KEY: key})


@pytest.mark.parametrize(("era", "by_header"), [("modern", True), ("modern", False), ("legacy", False)])
@pytest.mark.fault("C9")
async def test_key_executes_once_for_many_calls_and_no_other_call(tmp_path: Path, era: str, by_header: bool) -> None:
    effects = tmp_path / "effects"
    async with program(tmp_path / "one", {"fake": fake_server(effects=str(effects))}) as run:
        clients = [load_client(era, run.port, run.token) for _ in range(50)]
        at_once = [keyed(client, "k1", "once", by_header=by_header, seconds=0.3) for client in clients]
        answers: list[Result] = await asyncio.gather(*at_once)
        assert {json.dumps(answer.data) for answer in answers} == {json.dumps(answers[0].data)}
        later = await keyed(clients[0], "k1", "once", by_header=by_header, seconds=0.3)
        assert later.data == answers[0].data
        with pytest.raises(Failed) as other:
            await keyed(clients[0], "k1", "another", by_header=by_header)
        assert (other.value.code, other.value.executed) == (KEY_MISMATCH, "no")
        assert other.value.status == (422 if era == "modern" else 200)
        # The same key of another principal is another key.
        token = (await run.request("POST", "/admin/keys", {"name": "other"}))[1]["token"]
        stranger = load_client(era, run.port, token)
        assert (await keyed(stranger, "k1", "theirs", by_header=by_header)).data["nonce"] == "theirs"
        assert await run.stop() == 0
    assert effects_in(effects) == {"once": 1, "theirs": 1}
    results.checked("I1", "I2", "I3", "I4")


# -- D1, D2, D8: the end, and another configuration -------------------------------------------------------------------


@pytest.mark.fault("D1")
async def test_sigterm_under_load_loses_no_answer_or_effect(tmp_path: Path, seed: int) -> None:
    ending = await end_under_load(tmp_path / "one", seed)
    assert ending.wrong == [], str(ending)
    assert ending.answered and ending.running, str(ending)
    results.checked("I1", "I2", "I3", "I4")


@ERAS
@pytest.mark.fault("D2")
async def test_second_signal_cuts_calls_and_leaves_no_process(tmp_path: Path, era: str) -> None:
    effects = tmp_path / "effects"
    async with program(tmp_path / "one", {"fake": fake_server("ignore_sigterm", effects=str(effects))}) as run:
        client = load_client(era, run.port, run.token)
        call = asyncio.create_task(client.call("fake__counter", {"seconds": 50, "nonce": "sent"}))
        await in_flight(run, 1)
        processes = below(run.pid)
        run.signal()
        await asyncio.sleep(0.5)
        began = time.monotonic()
        run.signal()
        with pytest.raises(Failed) as cut:
            await call
        assert (cut.value.code, cut.value.executed) == (UNKNOWN, "unknown")
        assert await run.ended() == 0
        assert time.monotonic() - began < within(20)
        assert not any(runs(pid) for pid in processes)
    assert effects_in(effects) == {"sent": 1}
    results.checked("I1", "I3", "I4")


@pytest.mark.fault("D2")
async def test_sigint_to_the_process_group_shuts_down_in_order(tmp_path: Path) -> None:
    async with program(tmp_path / "one", {"fake": fake_server(), "other": fake_server("leaves_setsid")}) as run:
        client = load_client("modern", run.port, run.token)
        call = asyncio.create_task(client.call("fake__sleep", {"seconds": 1, "nonce": "mine"}))
        await in_flight(run, 1)
        processes = below(run.pid)
        os.killpg(run.pid, signal.SIGINT)
        assert (await call).data["nonce"] == "mine"
        assert await run.ended() == 0
        assert not any(runs(pid) for pid in processes)


@pytest.mark.fault("D8")
async def test_unusable_config_file_changes_nothing_for_callers(tmp_path: Path) -> None:
    servers = {"one": fake_server(), "two": fake_server()}
    async with program(tmp_path / "one", servers) as run:
        before = {name: each["pid"] for name, each in (await run.servers()).items()}
        good = run.file.read_text()
        client = load_client("modern", run.port, run.token)
        broken: list[bytes | None] = [
            good[: len(good) // 2].encode(),
            b"",
            b"x" * (5 * 2**20),
            b'{"mcpServers": {"one": {"command": ["x"]}}}',
            b'{"mcpServers": {}, "toolway": {"gateway": {"prot": 1}}}',
            None,
        ]
        for number, data in enumerate(broken):
            run.file.unlink(missing_ok=True)
            if data is not None:
                run.file.write_bytes(data)
            assert (await run.request("POST", "/admin/reload"))[0] == 422, number
            assert {name: each["pid"] for name, each in (await run.servers()).items()} == before, number
            assert (await client.call("one__echo", {"text": "x"})).data["text"] == "x"
        await run.until_logged("was deleted; its last content stays in use")
        run.write({"one": servers["one"], "two": fake_server(era="legacy")})
        await by_then(run, "two", before["two"])
        assert (await run.servers())["one"]["pid"] == before["one"]
        assert await run.stop() == 0


async def by_then(run: Program, name: str, old: int) -> None:
    """Until a server is ready in another process."""
    async with asyncio.timeout(30):
        while (await run.until_ready(name))[name]["pid"] == old:
            await asyncio.sleep(0.05)
