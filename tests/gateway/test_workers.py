"""`toolway serve --workers 2`: two processes that behave like one, and what happens if one of them ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.load_clients import Answer, Connection, Failed, LoadClient, Lost, close_all, load_client
from tests.gateway.program import Program, below, kill, runs, start, until
from toolway.errors import ConfigError
from toolway.serve.workers import count_workers
from toolway.testing import FakeHttp, fake_server

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

Json = dict[str, Any]
OPTIONS = ("--port", "0", "--drain-delay", "0", "--workers", "2")
ASKS: Json = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


class Workers:
    """A gateway with two workers; a client can choose which of them it reaches."""

    def __init__(self, run: Program, servers: dict[str, Json]) -> None:
        self.run = run
        self.servers = servers
        self.folder = Path()

    async def find_folder(self) -> None:
        _, found = await self.run.get("/admin/nodes")
        self.folder = Path(found["nodes"][0]["address"].removeprefix("unix:")).parent

    def client(self, worker: int, era: str = "modern", token: str = "", path: str = "/mcp") -> LoadClient:
        made = load_client(era, self.run.port, token or self.run.token, path)
        made.host = str(self.folder / f"{worker}.http")
        return made

    async def ask(self, worker: int, method: str, path: str, body: Json | None = None, token: str = "") -> Answer:
        """A request to one worker, on its own connection."""
        connection = await Connection.to(0, str(self.folder / f"{worker}.http"))
        try:
            fields = {"authorization": f"Bearer {token or self.run.token}", "content-type": "application/json"}
            data = json.dumps(body).encode() if body is not None else b""
            return await connection.request(method, path, fields, data)
        finally:
            connection.close()

    async def json(self, worker: int, method: str, path: str, body: Json | None = None) -> Json:
        answer = await self.ask(worker, method, path, body)
        assert answer.status == 200, answer
        return dict(json.loads(answer.body))

    async def total(self, worker: int, server: str) -> int:
        """All calls of the server, as /metrics of one worker says."""
        answer = await self.ask(worker, "GET", "/metrics")
        assert answer.status == 200, answer
        lines = [line for line in answer.body.decode().splitlines() if line.startswith("toolway_calls_total{")]
        return round(sum(float(line.rpartition(" ")[2]) for line in lines if f'server="{server}"' in line))

    async def pids(self) -> dict[int, int]:
        """The process of each worker."""
        return {worker: _find_worker(self.run.pid, worker) for worker in (0, 1)}

    async def until_works(self, worker: int, tool: str) -> None:
        """Wait until a worker that was started again answers calls of a tool."""
        async with asyncio.timeout(120):
            while True:
                client = self.client(worker)
                try:
                    await client.call(tool, {"text": "x"})
                    return
                except (Failed, Lost, OSError):
                    await asyncio.sleep(0.1)
                finally:
                    client.close()


def _find_worker(parent: int, number: int) -> int:
    for pid in below(parent):
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"TOOLWAY_WORKER={number}:".encode() in b"".join(each[:17] for each in environ):
            is_worker = b"--workers" in Path(f"/proc/{pid}/cmdline").read_bytes()
            if is_worker:
                return pid
    return 0


def server_processes(run: Program) -> list[int]:
    """The processes of the fake server, in all workers."""
    found = []
    for pid in below(run.pid):
        try:
            if b"stdio_main.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return sorted(found)


@pytest.fixture(scope="module")
async def workers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Workers]:
    async with FakeHttp(era="modern") as web:
        servers = {"fake": fake_server(), "old": fake_server(era="legacy"), "web": {"url": web.url}}
        run = await start(tmp_path_factory.mktemp("workers") / "one", servers, *OPTIONS)
        try:
            async with asyncio.timeout(200):
                await run.announced()
                await run.until_ready("fake", "old", "web")
            made = Workers(run, servers)
            await made.find_folder()
            for worker in (0, 1):
                for server in servers:
                    await made.until_works(worker, f"{server}__echo")
            yield made
        finally:
            await close_all()
            await kill(run)


async def test_server_has_one_process_for_all_workers(workers: Workers) -> None:
    clients = [workers.client(worker) for worker in (0, 1)]
    for number, client in enumerate(clients):
        await client.call("fake__counter", {"nonce": f"one-{number}"})
    effects = [(await client.call("fake__stats", {})).data["effects"] for client in clients]
    assert effects[0] == effects[1] and "one-0" in str(effects[0]) and "one-1" in str(effects[0])
    assert len(server_processes(workers.run)) == 2  # one of each stdio server


async def test_legacy_session_works_at_every_worker(workers: Workers) -> None:
    for first, second in ((0, 1), (1, 0)):
        one, other = workers.client(first, "legacy"), workers.client(second, "legacy")
        await one.call("fake__echo", {"text": "a"})
        other.session = one.session  # type: ignore[attr-defined]
        assert (await other.call("fake__echo", {"text": "b"})).data["text"] == "b"
        assert (await other.call("web__echo", {"text": "c"})).data["text"] == "c"
        assert (await one.call("old__echo", {"text": "d"})).data["text"] == "d"


async def test_suspended_call_is_answered_through_any_worker(workers: Workers) -> None:
    for first, second in ((0, 1), (1, 0)):
        asking, answering = workers.client(first), workers.client(second)
        params: Json = {"name": "old__elicit", "arguments": {"nonce": f"asked-{first}"}, "_meta": ASKS}
        asked = (await asking.request("tools/call", params)).raw
        assert asked["resultType"] == "input_required", asked
        accepted = {"action": "accept", "content": {"name": "Ada"}}
        responses = dict.fromkeys(asked["inputRequests"], accepted)
        again = {**params, "requestState": asked["requestState"], "inputResponses": responses}
        done = (await answering.request("tools/call", again)).raw
        assert "Ada" in json.dumps(done["content"])


async def test_key_is_valid_and_revoked_at_all_workers_at_once(workers: Workers) -> None:
    for worker in (0, 1):
        key = await workers.json(worker, "POST", "/admin/keys", {"name": f"by-{worker}"})
        for each in (1, 0):
            client = workers.client(each, token=key["token"])
            assert (await client.call("web__echo", {"text": "x"})).data["text"] == "x"
        await workers.json(worker, "DELETE", f"/admin/keys/{key['id']}")
        for each in (1, 0):
            with pytest.raises(Failed) as refused:
                await workers.client(each, token=key["token"]).call("web__echo", {"text": "x"})
            assert refused.value.status == 401


async def test_every_worker_shows_the_totals_of_all(workers: Workers) -> None:
    for server in ("fake", "web"):
        before = await workers.total(0, server)
        for worker, number in ((0, 3), (1, 4)):
            client = workers.client(worker)
            for _ in range(number):
                await client.call(f"{server}__echo", {"text": "x"})
        assert [await workers.total(worker, server) for worker in (0, 1)] == [before + 7, before + 7]
    rows = [await workers.json(worker, "GET", "/admin/overview") for worker in (0, 1)]
    calls = [{row["server"]: row["minutes"]["calls"] for row in each["servers"]} for each in rows]
    assert calls[0] == calls[1] and rows[0]["calls"] == rows[1]["calls"]
    assert calls[0]["web"] == await workers.total(0, "web")  # unless this module runs for 30 minutes
    listed = [await workers.json(worker, "GET", "/admin/calls?server=web&limit=500") for worker in (0, 1)]
    assert listed[0] == listed[1] and len(listed[0]["calls"]) == calls[0]["web"]


async def test_file_change_and_reload_reach_all_workers(workers: Workers) -> None:
    run = workers.run
    run.write({**workers.servers, "added": {"url": workers.servers["web"]["url"]}})
    await workers.json(1, "POST", "/admin/reload")
    for worker in (0, 1):
        await workers.until_works(worker, "added__echo")
    run.write(workers.servers)
    run.signal(signal.SIGHUP)
    for worker in (0, 1):
        async with asyncio.timeout(60):
            while "added__echo" in await _tools(workers.client(worker)):
                await asyncio.sleep(0.05)


async def test_worker_0_executes_workflows_of_every_worker(workers: Workers) -> None:
    pytest.importorskip("cel_expr_python", reason="the extra toolway[workflows] is not installed")
    steps = [
        {"name": "ok", "approve": "Count?"},
        {"name": "count", "tool": "fake.counter", "params": {"nonce": "${run.id}"}},
    ]
    flow = workers.run.folder / "flow.json"
    flow.write_text(json.dumps({"toolway": "workflow/1", "name": "flow", "steps": steps}))
    workers.run.write(workers.servers, workflows=[str(flow)])
    await workers.json(1, "POST", "/admin/reload")
    for worker in (0, 1):
        async with asyncio.timeout(60):
            while "workflows__flow" not in await _tools(workers.client(worker)):
                await asyncio.sleep(0.05)
    clients = [workers.client(worker) for worker in (0, 1)]
    runs = [(await client.call("workflows__flow", {})).data["run"] for client in clients]
    for run, worker in zip(runs, (1, 0), strict=True):
        await workers.json(worker, "POST", f"/admin/runs/{run}/approve", {"yes": True})
    for run in runs:
        for client in clients:
            async with asyncio.timeout(60):
                while "run" in (await client.call("workflows__run_status", {"run": run})).data:  # not the output
                    await asyncio.sleep(0.05)
    effects = (await clients[1].call("fake__stats", {})).data["effects"]
    assert [str(effects).count(run) for run in runs] == [1, 1]
    workers.run.write(workers.servers)
    await workers.json(0, "POST", "/admin/reload")


async def _tools(client: LoadClient) -> set[str]:
    try:
        return {tool["name"] for tool in (await client.request("tools/list", {})).raw["tools"]}
    finally:
        client.close()


async def test_killed_worker_restarts_without_disturbing_other_calls(workers: Workers) -> None:
    pids, total = await workers.pids(), await workers.total(0, "web")
    assert all(pids.values())
    client, before = workers.client(0), server_processes(workers.run)
    running = [asyncio.create_task(client.call("fake__sleep", {"seconds": 1}))]
    os.kill(pids[1], signal.SIGKILL)
    assert not (await running[0]).is_error
    await workers.run.until_logged("worker 1 ended (SIGKILL) and is restarting")
    await workers.until_works(1, "fake__echo")
    assert server_processes(workers.run) == before
    assert await workers.total(0, "web") >= total
    assert (await workers.pids())[0] == pids[0]


async def test_servers_of_a_killed_worker_end_and_calls_are_unknown(workers: Workers) -> None:
    pids, before = await workers.pids(), server_processes(workers.run)
    total = await workers.total(0, "fake")
    client = workers.client(1)
    call = asyncio.create_task(client.call("fake__counter", {"nonce": "lost", "seconds": 60}))
    watcher = workers.client(0)
    async with asyncio.timeout(60):
        while "lost" not in str((await watcher.call("fake__stats", {})).data["effects"]):
            await asyncio.sleep(0.02)
    os.kill(pids[0], signal.SIGKILL)
    with pytest.raises(Failed) as failed:
        await call
    assert failed.value.executed == "unknown"
    await until(lambda: not any(runs(pid) for pid in before))
    assert (await workers.client(1).call("web__echo", {"text": "x"})).data["text"] == "x"  # works without the owner
    for worker in (1, 0):
        await workers.until_works(worker, "fake__echo")
    assert len(server_processes(workers.run)) == 2
    assert [await workers.total(worker, "fake") for worker in (1, 0)] == [await workers.total(0, "fake")] * 2
    assert await workers.total(0, "fake") >= total


async def test_no_process_is_left_after_a_stop(workers: Workers) -> None:
    left = below(workers.run.pid)
    client = workers.client(1)
    call = asyncio.create_task(client.call("fake__sleep", {"seconds": 1}))
    await asyncio.sleep(0)
    code = asyncio.create_task(workers.run.stop())
    done = (await asyncio.gather(call, return_exceptions=True))[0]
    # A connection that no worker has accepted yet ends without a response.
    assert (
        not isinstance(done, BaseException)
        or isinstance(done, Lost)
        or (isinstance(done, Failed) and done.executed == "no")
    ), done
    assert await code == 0
    assert len(left) >= 6 and not any(runs(pid) for pid in left)
    assert not workers.folder.exists()


async def test_workers_end_if_their_parent_is_killed(tmp_path: Path) -> None:
    run = await start(tmp_path / "one", {"fake": fake_server()}, *OPTIONS)
    try:
        async with asyncio.timeout(200):
            await run.announced()
        left = below(run.pid)
        found = Workers(run, {})
        await found.find_folder()
        run.process.kill()
        await run.ended()
        await until(lambda: not any(runs(pid) for pid in left), within=60)
        await until(lambda: not found.folder.exists())
    finally:
        await kill(run)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--stdio"], "--stdio"),
        (["--no-auth"], "--no-auth"),
        (["--cluster", "nats://127.0.0.1:4222", "--database", "sqlite:////tmp/none"], "--cluster"),
    ],
)
async def test_unsupported_combination_is_rejected_with_a_reason(tmp_path: Path, words: list[str], names: str) -> None:
    more = ["--cluster-key-file", str(tmp_path / "key")] if "--cluster" in words else []
    (tmp_path / "key").write_text("c" * 64)
    (tmp_path / "key").chmod(0o600)
    run = await start(tmp_path / "one", {}, *words, *more, "--workers", "2")
    assert run.process.stdout is not None
    error = json.loads(await run.process.stdout.read())["error"]
    assert await run.ended() != 0
    assert error["code"] == "E-WORKERS" and names in error["message"] and error["detail"] and names in error["hint"]


@pytest.mark.parametrize(
    ("text", "cores", "count"), [(None, 8, 1), ("1", 8, 1), ("3", 2, 3), ("auto", 2, 1), ("auto", 3, 1), ("auto", 4, 4)]
)
async def test_auto_uses_several_workers_from_four_cores(text: str | None, cores: int, count: int) -> None:
    assert count_workers(text, cores) == count


@pytest.mark.parametrize("text", ["0", "-1", "65", "two", "", "²", "1.5"])
async def test_invalid_number_of_workers_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="invalid number of workers"):
        count_workers(text, 8)
