"""A cluster as its operators see it: real gateways, a real NATS, a real PostgreSQL, and the commands."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from tests.cluster.nats_server import nats_server
from tests.gateway.load_clients import Connection
from tests.gateway.program import Program, kill, start
from tests.telemetry.postgres_server import binaries, postgres_server

pytestmark = pytest.mark.anyio

FAKE = {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main"]}
SERVERS = {f"s{number}": FAKE for number in range(6)}
KEY = "5f" * 32


class Cluster:
    def __init__(self, folder: Path, nats: str, database: str) -> None:
        self.folder = folder
        self._options = ("--cluster", nats, "--database", database, "--cluster-key-file", str(folder / "key"))
        (folder / "key").write_text(KEY)

    @asynccontextmanager
    async def node(self, name: str, *, ready: bool = True) -> AsyncIterator[Program]:
        options = ("--port", "0", "--drain-delay", "0", "--node", name, *self._options)
        run = await start(self.folder / name, SERVERS, *options)
        try:
            if ready:
                await run.announced()
            yield run
        finally:
            await kill(run)

    async def toolway(self, at: str, *words: str) -> subprocess.CompletedProcess[str]:
        """A command on the machine of a node."""
        environ = {**os.environ, "TOOLWAY_STATE": str(self.folder / at / "state"), "NO_COLOR": "1"}
        command = [sys.executable, "-m", "toolway.cli", *words]
        return await asyncio.to_thread(
            subprocess.run, command, env=environ, cwd=self.folder, capture_output=True, text=True, timeout=90
        )

    async def nodes(self, at: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((await self.toolway(at, "cluster", "nodes", "--json")).stdout)
        return found


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    programs = binaries()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    with postgres_server(programs) as database:
        async with nats_server() as nats:
            yield Cluster(tmp_path, nats.url, database)


async def until(found: Callable[[], Any], within: float = 120) -> Any:
    """What an asynchronous question answers, when it is true."""
    async with asyncio.timeout(within):
        while not (answer := await found()):
            await asyncio.sleep(0.2)
        return answer


async def metrics(run: Program) -> dict[str, float]:
    connection = await Connection.to(run.port)
    try:
        answer = await connection.request("GET", "/metrics", {"authorization": f"Bearer {run.token}"})
    finally:
        connection.close()
    return {sample.name: sample.value for family in parse(answer.body.decode()) for sample in family.samples}


@pytest.mark.slow
async def test_cluster_is_operated_through_any_gateway(cluster: Cluster) -> None:
    async with AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(cluster.node(name)) for name in ("one", "two")]

        async def spread() -> dict[str, Any] | None:
            found = await cluster.nodes("one")
            owned = [each["servers"] for each in found["nodes"]]
            return found if len(owned) == 2 and all(owned) and sum(owned) == len(SERVERS) else None

        found = await until(spread)
        assert [each["state"] for each in found["nodes"]] == ["ready", "ready"] and found["nats"]
        ids = {each["id"].rpartition("-")[0]: each["id"] for each in found["nodes"]}
        assert ids.keys() == {"one", "two"}
        assert {each["address"] for each in found["nodes"]} == {f"http://127.0.0.1:{run.port}" for run in (one, two)}

        shown = await cluster.toolway("two", "cluster", "nodes")
        assert (shown.returncode, shown.stdout.count("ready"), f"{ids['two']} *" in shown.stdout) == (0, 2, True)
        owned = json.loads((await cluster.toolway("two", "cluster", "nodes", "one", "--json")).stdout)["owns"]
        server = owned[0]["server"]
        assert f"owner       {ids['one']}\n" in (await cluster.toolway("two", "show", server)).stdout
        listed = (await cluster.toolway("two", "ls")).stdout.splitlines()
        assert [line.split()[4] for line in listed if line.startswith(f"{server} ")] == [ids["one"]]

        heads = (await cluster.toolway("two")).stdout.splitlines()[0].split()
        assert heads == ["server", "tools", "state", "owner", "why"]
        for words in (("ls",), ("show",), ()):
            rows = json.loads((await cluster.toolway("two", *words, "--json")).stdout)["servers"]
            assert {row["server"]: row["nodes"] for row in rows}[server] == [ids["one"]]
        overview = (await two.get("/admin/overview"))[1]
        assert overview["cluster"] and server in {
            r["server"] for r in overview["servers"] if r["nodes"] == [ids["one"]]
        }
        assert (await two.get(f"/admin/servers/{server}/detail"))[1]["status"]["nodes"] == [ids["one"]]

        counted = await metrics(one)
        assert counted["toolway_cluster_owned"] == len(owned) and counted["toolway_cluster_nodes"] == 2
        assert counted["toolway_cluster_lease"] == counted["toolway_cluster_nats"] == 1

        drained = await cluster.toolway("two", "cluster", "drain", "one")
        assert (drained.returncode, "owns no server and can be stopped" in drained.stderr) == (0, True), drained.stderr
        assert (await one.get("/readyz"))[0] == 503  # balancers send it no new clients
        after = {each["id"]: (each["state"], each["servers"]) for each in (await cluster.nodes("two"))["nodes"]}
        assert after[ids["one"]] == ("draining", 0)

        async def taken() -> bool:
            return bool((await cluster.nodes("two"))["nodes"][1]["servers"] == len(SERVERS))

        await until(taken)
        assert await one.stop() == 0
        left = (await cluster.nodes("two"))["nodes"]
        assert [each["id"] for each in left] == [ids["two"]]
        wrong = await cluster.toolway("two", "cluster", "drain", "one")
        assert (wrong.returncode, "unknown node 'one'" in wrong.stderr) == (1, True)
        assert await two.stop() == 0
        assert KEY not in one.log + two.log
        assert "connection lost" not in one.log + two.log  # ending in order is nothing to complain of


@pytest.mark.slow
async def test_gateway_waits_for_its_database_but_not_for_nats(tmp_path: Path) -> None:
    """A file of SQLite in a folder that is not there yet is a database that cannot be reached."""
    cluster = Cluster(tmp_path, "nats://somebody:word-of-nats@127.0.0.1:1", f"sqlite:///{tmp_path}/later/record")
    async with cluster.node("one", ready=False) as one:
        await one.until_logged("E-RECORD")
        (tmp_path / "later").mkdir()
        async with asyncio.timeout(60):
            assert (await one.announced())["node"].startswith("one-")
        assert (await one.get("/readyz"))[0] == 200
        await one.until_logged("E-NATS")

        async def owned() -> bool:
            return (await cluster.nodes("one"))["nodes"][0]["servers"] == len(SERVERS)  # type: ignore[no-any-return]

        await until(owned)
        shown = await cluster.toolway("one", "cluster", "nodes")
        assert (shown.returncode, "not connected to NATS" in shown.stderr) == (8, True)
        assert await one.stop() == 0
        assert "word-of-nats" not in one.log
