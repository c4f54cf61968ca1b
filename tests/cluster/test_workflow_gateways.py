"""Workflows of three `toolway serve --cluster`, with a real PostgreSQL and a real NATS: any node starts, shows, answers
and executes runs. The nodes are processes that all tests of the module share; the last test kills one."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest

from tests.cluster.nats_server import nats_server
from tests.faults.cluster.engines import free_port
from tests.faults.cluster.engines_setup import Loopback
from tests.faults.cluster.node_process import TOKEN, Common, Replica
from tests.gateway.bridge_lab import Raw
from tests.gateway.test_bridge_changes import WITH_TASKS
from tests.telemetry.postgres_server import binaries, postgres_server
from tests.workflows.effect_server import read_effects
from tests.workflows.kill_runner import SERVER_FILE

pytest.importorskip("cel_expr_python", reason="the extra toolway[workflows] is not installed")
pytestmark = pytest.mark.anyio
Json = dict[str, Any]
WITH_ALL = {**WITH_TASKS, "elicitation": {"form": {}}}
INPUTS = {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}}
PAY = {"name": "a", "tool": "s.pay", "params": {"id": "${inputs.id}"}}
SLOW = {"name": "b", "tool": "s.pay", "params": {"id": "${inputs.id}-b", "delay_after": 600}, "timeout": "900s"}
LAST = {"name": "c", "tool": "s.pay", "params": {"id": "${inputs.id}-c"}}
FLOWS: dict[str, Json] = {
    "refund": {"inputs": INPUTS, "steps": [{"name": "ok", "approve": "Pay?"}, PAY]},
    "tick": {"schedule": {"every": 1, "inputs": {"id": "T"}}, "inputs": INPUTS, "steps": [PAY]},
    "long": {"inputs": INPUTS, "steps": [PAY, SLOW, LAST]},
}
NAMES = ("one", "two", "three")


class Nodes:
    """Three gateways and their database. The first one alone has the workflow files."""

    def __init__(self, folder: Path, database: str, replicas: list[Replica]) -> None:
        self.folder = folder
        self.database = database
        self.replicas = replicas

    def effects(self) -> list[str]:
        return [each["id"] for each in read_effects(self.folder / "effects")]

    async def runs(self, node: int, query: str = "") -> list[Json]:
        status, body = await self.replicas[node].get(f"/admin/runs?{query}")
        assert status == 200, body
        return list(body["runs"])

    async def until(self, node: int, run: str, state: str) -> Json:
        """The run as this node shows it, once it is in a state."""
        async with asyncio.timeout(60):
            while True:
                _, shown = await self.replicas[node].get(f"/admin/runs/{run}")
                if shown.get("state") == state:
                    return shown
                await asyncio.sleep(0.1)

    def executing(self, run: str) -> Replica:
        with psycopg.connect(self.database) as db:
            found = db.execute("SELECT node FROM runs WHERE id = %s", (run,)).fetchone()
        assert found is not None and found[0] is not None
        return next(each for each in self.replicas if found[0].startswith(f"{each.name}-"))


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def nodes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Nodes]:
    programs = binaries()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    folder = tmp_path_factory.mktemp("flows")
    entry = {"command": sys.executable, "args": [str(SERVER_FILE), str(folder / "effects")]}
    (folder / "mine").mkdir()
    for name, body in FLOWS.items():
        (folder / "mine" / f"{name}.yaml").write_text(json.dumps(body))
    block = {"workflows": ["mine/*.yaml"]}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"s": entry}, "toolway": block}))
    (folder / "empty.json").write_text('{"mcpServers": {}}')  # the others get all from the database
    (folder / "key").write_text("ab" * 32)
    (folder / "key").chmod(0o600)
    async with AsyncExitStack() as stack:
        database = stack.enter_context(postgres_server(programs, connections=90))
        nats = await stack.enter_async_context(nats_server())
        replicas: list[Replica] = []
        for name in NAMES:
            file = folder / ("mcp.json" if name == "one" else "empty.json")
            common = Common(folder, file, nats.url, database, folder / "key")
            replica = Replica(Loopback().seat(name), free_port("127.0.0.1"), common)
            replicas.append(replica)
            stack.push_async_callback(_end, replica)
            await replica.start()
            if name == "one":
                await replica.wait_ready()  # its file becomes the configuration of all
        made = Nodes(folder, database, replicas)
        async with asyncio.timeout(60):
            for replica in replicas:
                await replica.wait_ready()
                while not {"s", "workflows"} <= await replica.listed():
                    await asyncio.sleep(0.1)
        yield made


async def _end(replica: Replica) -> None:
    if replica.runs:
        await replica.kill()


@asynccontextmanager
async def client(replica: Replica) -> AsyncIterator[Raw]:
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx2.AsyncClient(headers=headers, trust_env=False, timeout=60) as http:
        yield Raw(http, f"http://127.0.0.1:{replica.port}/mcp")


async def until_task(raw: Raw, task: str, status: str) -> Json:
    async with asyncio.timeout(30):
        while True:
            got: Json = (await raw.ask("tasks/get", {"taskId": task}, capabilities=WITH_ALL)).result
            if got["status"] == status:
                return got
            await asyncio.sleep(0.05)


async def test_task_is_answered_at_other_nodes_than_its_creator(nodes: Nodes) -> None:
    async with client(nodes.replicas[0]) as one, client(nodes.replicas[1]) as two, client(nodes.replicas[2]) as three:
        task = (await one.call("workflows__refund", {"id": "A1"}, capabilities=WITH_ALL)).result["taskId"]
        asks = await until_task(two, task, "input_required")
        assert asks["inputRequests"]["ok"]["params"]["message"] == "[workflows] Pay?"
        assert "A1" not in nodes.effects()
        answer = {"ok": {"action": "accept", "content": {"yes": True}}}
        for each in (three, two):  # the second is an acknowledgement without effect
            await each.ask("tasks/update", {"taskId": task, "inputResponses": answer}, capabilities=WITH_ALL)
        assert (await until_task(three, task, "completed"))["result"]["structuredContent"]["id"] == "A1"
    assert nodes.effects().count("A1") == 1


async def test_every_node_shows_all_runs_and_accepts_the_approval(nodes: Nodes) -> None:
    async with client(nodes.replicas[1]) as two:
        key = {"toolway/idempotencyKey": "once"}
        begun = (await two.call("workflows__refund", {"id": "A2"}, capabilities={}, meta=key)).result
        run = begun["structuredContent"]["run"]
    assert begun["structuredContent"]["state"] == "asks"
    for number in range(3):
        shown = await nodes.runs(number, "state=asks")
        # On a busy machine, a call of a scheduled run may have timed out, so it asks, too.
        assert [each["id"] for each in shown if not each["id"].startswith("tick-")] == [run]
    body = {"yes": True, "step": "ok"}
    status, stored = await nodes.replicas[2].request("POST", f"/admin/runs/{run}/approve", body)
    assert status == 200 and stored["stored"], stored
    await nodes.until(0, run, "done")
    assert nodes.effects().count("A2") == 1


async def test_schedule_ticks_once_for_all_nodes(nodes: Nodes) -> None:
    async with asyncio.timeout(60):
        while len([each for each in await nodes.runs(2, "workflow=tick") if each["state"] == "done"]) < 3:
            await asyncio.sleep(0.1)
    created = [each["created"] for each in await nodes.runs(0, "workflow=tick")]
    assert len(created) == len(set(created))
    ended = [each for each in await nodes.runs(1, "workflow=tick") if each["state"] == "done"]
    assert nodes.effects().count("T") >= len(ended)
    assert nodes.effects().count("T") <= len(await nodes.runs(1, "workflow=tick"))


async def test_runs_of_a_killed_node_continue_without_repeated_payment(nodes: Nodes) -> None:
    async with client(nodes.replicas[0]) as one:
        task = (await one.call("workflows__long", {"id": "A3"}, capabilities=WITH_ALL)).result["taskId"]
    async with asyncio.timeout(30):
        while "A3-b" not in nodes.effects():
            await asyncio.sleep(0.05)
    run = next(each["id"] for each in await nodes.runs(0, "workflow=long"))
    killed = nodes.executing(run)
    await killed.kill()
    alive = [number for number, each in enumerate(nodes.replicas) if each is not killed]
    shown = await nodes.until(alive[0], run, "asks")
    assert shown["questions"][0]["kind"] == "unknown"
    assert {each["life"] for each in shown["steps"] if each["step"] == "b"}  # of the node that began it
    async with client(nodes.replicas[alive[1]]) as other:  # the task of the dead node, at another one
        assert (await until_task(other, task, "input_required"))["inputRequests"].keys() == {"b"}
        answer = {"b": {"action": "accept", "content": {"happened": "it ran"}}}
        await other.ask("tasks/update", {"taskId": task, "inputResponses": answer}, capabilities=WITH_ALL)
    await nodes.until(alive[0], run, "done")
    assert [each for each in nodes.effects() if each.startswith("A3")] == ["A3", "A3-b", "A3-c"]
