"""The configuration of real gateways of a cluster: what one takes all have, and an old file undoes nothing."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.gateway.program import Program, kill, start
from toolway.cluster.node import ClusterNode
from toolway.cluster.options import ClusterOptions
from toolway.config.loader import load_file

Json = dict[str, Any]

pytestmark = pytest.mark.anyio

FAKE = {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main"]}
SECRET = "hunter2-hunter2-hunter2"


@asynccontextmanager
async def gateway(
    folder: Path, name: str, servers: Mapping[str, Any] | None, *flags: str, key: str = "5f", **block: Any
) -> AsyncIterator[Program]:
    """Without NATS: what changed is found in the record, a second later."""
    (folder / f"key-{key}").write_text(key * 32)
    cluster = ("--cluster", "nats://127.0.0.1:1", "--database", f"sqlite:///{folder}/record")
    options = ("--port", "0", "--drain-delay", "0", "--node", name, "--cluster-key-file", str(folder / f"key-{key}"))
    run = await start(folder / name, servers, *options, *cluster, *flags, **block)
    try:
        yield run
    finally:
        await kill(run)


async def until_served(run: Program, *names: str) -> None:
    async with asyncio.timeout(60):
        while set(await run.servers()) != set(names):
            await asyncio.sleep(0.05)


async def test_config_reaches_all_nodes_and_old_files_change_nothing(tmp_path: Path) -> None:
    old = {"a": {**FAKE, "env": {"TOKEN": SECRET}}}
    async with gateway(tmp_path, "one", old) as one:
        await one.announced()
        async with gateway(tmp_path, "two", old) as two:
            await two.announced()
            one.write({"a": FAKE, "b": FAKE})
            await until_served(one, "a", "b")
            await until_served(two, "a", "b")
            one.write({"b": FAKE, "c": {"command": 5}})  # what cannot be used is not taken
            await one.until_logged("configuration rejected")
            one.write({"b": FAKE, "c": FAKE})
            await until_served(two, "b", "c")
            assert await two.stop() == 0
        async with gateway(tmp_path, "two", old) as again:
            await again.announced()
            await until_served(again, "b", "c")
            await until_served(one, "b", "c")
            assert await again.stop() == 0
        async with gateway(tmp_path, "two", {"d": FAKE}, key="6a") as stranger:
            assert await stranger.ended() != 0 and stranger.process.stdout is not None
            error = json.loads(await stranger.process.stdout.read())["error"]
            assert error["code"] == "E-CLUSTER-KEY" and "--cluster-key-file" in error["hint"]
        await until_served(one, "b", "c")
        assert await one.stop() == 0
    left = [file.read_bytes() for file in tmp_path.glob("record*")]
    assert left and not any(SECRET.encode() in data for data in left)


@pytest.mark.slow
async def test_gateway_without_a_file_uses_the_cluster_config(tmp_path: Path) -> None:
    async with gateway(tmp_path, "first", None) as lost:
        assert await lost.ended() == 3 and lost.process.stdout is not None
        error = json.loads(await lost.process.stdout.read())["error"]
        assert error["code"] == "E-CONFIG-NONE" and "--config FILE" in error["hint"]
        assert "mcp.json" in error["detail"] and "tenant 'default'" in error["detail"]
    async with gateway(tmp_path, "one", {"a": FAKE}, audit={}) as one:
        await one.announced()
        async with gateway(tmp_path, "two", None) as two:
            await two.announced()
            await until_served(two, "a")
            assert list((two.folder / "state").glob("audit*"))  # what counts from the first moment on is known, too
            assert (await two.request("POST", "/admin/reload"))[0] == 200
            assert (await two.get("/admin/config"))[0] == 422
            status, report = await two.request("POST", "/admin/doctor", {"server": "a"})
            assert (status, '"a"' in json.dumps(report), "fail" in json.dumps(report)) == (200, True, False), report
            one.write({"a": FAKE, "b": FAKE}, audit={})
            await until_served(two, "a", "b")
            assert await two.stop() == 0
        assert await one.stop() == 0


async def test_gateway_without_a_file_waits_for_the_database(tmp_path: Path) -> None:
    async with gateway(tmp_path, "one", None, "--database", f"sqlite:///{tmp_path}/later/record") as one:
        await one.until_logged("E-RECORD")
        assert await one.stop() == 4


@pytest.mark.slow
async def test_empty_file_of_a_joining_node_keeps_the_cluster_config(tmp_path: Path) -> None:
    async with gateway(tmp_path, "one", {"a": FAKE}) as one:
        await one.announced()
        async with gateway(tmp_path, "two", {}) as two:
            await two.announced()
            await two.until_logged("keeping the cluster configuration")
            await until_served(two, "a")
            await until_served(one, "a")
            assert await two.stop() == 0
        one.write({})  # emptying the file of a running gateway is intended
        await until_served(one)
        assert await one.stop() == 0


@pytest.mark.attack("H2")
async def test_planted_command_reaches_no_node_before_it_is_trusted(tmp_path: Path) -> None:
    """The rest of the changed file becomes the configuration of all nodes at once."""
    approved: dict[str, Any] = {"gateway": {"reload": "approved"}}
    mark = tmp_path / "started"
    planted = {"command": sys.executable, "args": ["-c", f"open({str(mark)!r}, 'w').close()"]}
    async with gateway(tmp_path, "one", {"good": FAKE}, **approved) as one:
        await one.announced()
        async with gateway(tmp_path, "two", None) as two:
            await two.announced()
            one.write({"good": FAKE, "planted": planted, "url": {"url": "http://127.0.0.1:9/mcp"}}, **approved)
            await one.until_logged("1 new command needs your review: toolway trust planted")
            await until_served(one, "good", "url")
            await until_served(two, "good", "url")
            assert not mark.exists()
            words = ["trust", "planted", "--config", str(one.file), "--json"]
            [shown] = json.loads(await _toolway(*words))["entries"]
            await _toolway(*words, "--digest", shown["digest"])
            await until_served(two, "good", "planted", "url")


async def _toolway(*words: str) -> bytes:
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "toolway.cli", *words, stdout=-1, stderr=-1)
    out, error = await process.communicate()
    assert process.returncode in (0, 3), (out, error)  # 3: something needs your review
    return out


async def test_rereading_an_unchanged_file_undoes_nothing(engine: AsyncEngine, tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text('{"steps": [{"name": "a", "tool": "a.echo"}]}')
    block = {"workflows": ["flow.yaml"]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"a": FAKE}, "toolway": block}))
    options = ClusterOptions(nats_urls=(), database_url=f"sqlite:///{tmp_path}/record", tenant_key=b"k" * 32)
    node = ClusterNode(options, "token")
    loaded = load_file(str(tmp_path / "mcp.json"))

    async def stored() -> tuple[set[str], Json]:
        found = await node.config_store.load("default")
        assert found is not None
        return set(found[1].entries), dict(found[1].settings)

    try:
        await node.publish_config(loaded)
        assert await stored() == ({"a"}, {"workflows": [{"name": "flow", "steps": [{"name": "a", "tool": "a.echo"}]}]})
        await node.config_store.put_server("default", "later", FAKE)
        await node.publish_config(loaded, force=True, only_changes=True)  # a file next to it has changed
        assert (await stored())[0] == {"a", "later"}
        (tmp_path / "flow.yaml").write_text('{"steps": [{"name": "b", "tool": "a.echo"}]}')
        await node.publish_config(loaded, force=True, only_changes=True)
        assert (await stored())[1]["workflows"][0]["steps"][0]["name"] == "b"
        assert (await stored())[0] == {"a"}
    finally:
        await node.close()
