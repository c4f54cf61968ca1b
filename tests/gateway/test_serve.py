"""`toolway serve` as a program: how it starts, what it leaves in its folder, and what it leaves behind."""

from __future__ import annotations

import json
import signal
import socket
import stat
from pathlib import Path

import pytest

from tests.gateway.load_clients import Failed, load_client
from tests.gateway.program import below, kill, program, runs, start, until
from toolway.testing import fake_server

pytestmark = pytest.mark.anyio


async def test_start_prints_one_json_document_with_its_url(tmp_path: Path) -> None:
    run = await start(tmp_path / "one", {"fake": fake_server()})
    try:
        facts = await run.announced()
        assert facts == {"url": f"http://127.0.0.1:{run.port}/mcp", "auth": True, "pid": run.pid, "public": ""}
        assert run.port > 0  # 0 was asked for
        assert (await run.get("/healthz")) == (200, {"ok": True})
        assert await run.stop() == 0
    finally:
        await kill(run)


@pytest.mark.attack("held-69")
async def test_state_files_are_private_and_running_json_is_removed(tmp_path: Path) -> None:
    async with program(tmp_path / "one", {"fake": fake_server()}) as run:
        state = run.folder / "state"
        for name in ("token", "key", "running.json"):
            assert stat.S_IMODE((state / name).stat().st_mode) == 0o600, name
        running = json.loads((state / "running.json").read_text())
        assert running["pid"] == run.pid and running["url"] == f"http://127.0.0.1:{run.port}"
        token = run.token
        assert await run.stop() == 0
        assert not (state / "running.json").exists()
    async with program(tmp_path / "one", {"fake": fake_server()}) as run:
        assert run.token == token


async def test_address_in_use_fails_before_any_server_starts(tmp_path: Path) -> None:
    mark = tmp_path / "started"
    entry = {"command": "/bin/sh", "args": ["-c", f"touch {mark}; sleep 60"]}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        run = await start(tmp_path / "one", {"slow": entry}, "--port", port)
        assert run.process.stdout is not None
        said = json.loads(await run.process.stdout.read())["error"]
        assert await run.ended() != 0
    assert said["code"] == "E-ADDRESS" and "--port" in said["hint"] and f":{port}" in said["message"]
    assert not mark.exists()


async def test_wrong_token_gets_401_and_reaches_no_server(tmp_path: Path) -> None:
    async with program(tmp_path / "one", {"fake": fake_server()}) as run:
        right = load_client("modern", run.port, run.token)
        wrong = ("", "tw_wrong", run.token[:-1], run.token + "x", "a b", "é" * 10, "x" * 20_000)
        odd = ("Basic dXNlcjpwYXNz", "Bearer", run.token, f"bearer{run.token}")
        for field in (*(f"Bearer {token}" for token in wrong), *odd):
            for era in ("modern", "legacy"):
                stranger = load_client(era, run.port, "")
                stranger.fields["authorization"] = field
                with pytest.raises(Failed) as refused:
                    await stranger.call("fake__counter", {"nonce": "never"})
                assert refused.value.status == 401, field
                stranger.close()
        assert (await right.call("fake__stats", {})).data["effects"] == []
        right.close()
        assert await run.stop() == 0


async def test_two_gateways_accept_only_their_own_tokens(tmp_path: Path) -> None:
    servers = {"fake": fake_server()}
    async with program(tmp_path / "one", servers) as one, program(tmp_path / "two", servers) as two:
        assert one.port != two.port and one.token != two.token
        for run, other in ((one, two), (two, one)):
            client = load_client("modern", run.port, run.token)
            assert (await client.call("fake__echo", {"text": "x"})).data["text"] == "x"
            client.close()
            stranger = load_client("modern", run.port, other.token)
            with pytest.raises(Failed) as refused:
                await stranger.call("fake__echo", {"text": "x"})
            assert refused.value.status == 401
            stranger.close()
        assert await one.stop() == 0
        assert (await two.get("/readyz")) == (200, {"ok": True})
        assert await two.stop() == 0


async def test_killed_gateway_leaves_no_server_behind(tmp_path: Path) -> None:
    servers = {name: fake_server(*modes) for name, modes in (("a", ()), ("b", ("ignore_eof", "ignore_sigterm")))}
    async with program(tmp_path / "one", servers) as run:
        left = below(run.pid)
        assert len(left) >= 3  # the keeper and two servers
        run.process.kill()
        assert await run.ended() == -signal.SIGKILL
        await until(lambda: not any(runs(pid) for pid in left))
        # What it said about itself is not believed by the next one.
    async with program(tmp_path / "one", servers) as run:
        assert json.loads((run.folder / "state" / "running.json").read_text())["pid"] == run.pid
