"""The file of a running gateway changes: only what changed is touched; a file that makes no sense changes nothing."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.bridge_lab import full, pipe_entry
from tests.gateway.load_clients import Failed, LegacyLoadClient, ModernLoadClient, load_client
from tests.gateway.program import Program, program, runs, until, with_reload
from tests.gateway.test_bridge_changes import recorded_stream
from toolway.config.loader import load_file
from toolway.config.server_entry import parse_entry
from toolway.gateway.state_dir import StateDir
from toolway.hub.hub import Hub
from toolway.serve.process import GatewayProcess
from toolway.testing import fake_server

pytestmark = pytest.mark.anyio
TWO = {"one": fake_server(), "two": fake_server()}
OLD = fake_server(era="legacy")


async def pids(run: Program, *names: str) -> dict[str, int]:
    return {name: (await run.servers())[name]["pid"] for name in names}


async def by_signal(run: Program) -> None:
    run.signal(signal.SIGHUP)


async def by_request(run: Program) -> None:
    assert (await run.request("POST", "/admin/reload"))[0] == 200


async def by_itself(run: Program) -> None:
    """It looks at the file all the time."""


@pytest.mark.parametrize("told", [by_itself, by_signal, by_request])
async def test_reload_touches_only_changed_servers(tmp_path: Path, told: Callable[[Program], Awaitable[None]]) -> None:
    async with program(tmp_path / "one", {**TWO, "three": fake_server()}) as run:
        before = await pids(run, "one", "two", "three")
        client = load_client("modern", run.port, run.token)
        assert (await client.call("one__echo", {"text": "x"})).data["text"] == "x"
        run.write({"one": TWO["one"], "two": OLD, "four": fake_server()})
        await told(run)
        async with asyncio.timeout(30):
            while "four" not in await run.servers():
                await asyncio.sleep(0.02)
        after = await run.until_ready("one", "two", "four")
        assert set(after) == {"one", "two", "four"}
        assert after["one"]["pid"] == before["one"]
        assert after["two"]["pid"] != before["two"] and after["two"]["era"] == "legacy"
        await until(lambda: not runs(before["two"]) and not runs(before["three"]))
        assert (await client.call("four__echo", {"text": "x"})).data["text"] == "x"
        with pytest.raises(Failed):
            await client.call("three__echo", {"text": "x"})
        assert await run.stop() == 0


async def test_running_call_finishes_while_new_definition_takes_calls(tmp_path: Path) -> None:
    async with program(tmp_path / "one", TWO) as run:
        old = await pids(run, "one", "two")
        fresh = load_client("modern", run.port, run.token)
        slow = {"seconds": 6, "nonce": "mine"}
        running = [
            asyncio.create_task(load_client(era, run.port, run.token).call(f"{server}__counter", slow))
            for era in ("modern", "legacy")
            for server in ("one", "two")
        ]
        async with asyncio.timeout(20):
            while {each["in_flight"] for each in (await run.servers()).values()} != {2}:
                await asyncio.sleep(0.02)
        run.write({"one": OLD})
        await by_request(run)
        new = (await fresh.call("one__pid", {})).data["pid"]
        assert new != old["one"]
        assert not any(task.done() for task in running) and runs(old["one"]) and runs(old["two"])
        for task in running:
            assert (await task).data["nonce"] == "mine"
        await until(lambda: not runs(old["one"]) and not runs(old["two"]))
        assert (await fresh.call("one__pid", {})).data["pid"] == new
        assert await run.stop() == 0


def cut_short(file: Path) -> None:
    text = file.read_text()
    file.write_text(text[: len(text) // 2])


def emptied(file: Path) -> None:
    file.write_text("")


def huge(file: Path) -> None:
    file.write_text(json.dumps({"mcpServers": {"new": {**fake_server(), "description": "x" * 5 * 2**20}}}))


def no_json(file: Path) -> None:
    file.write_text('{"mcpServers": {"new": {command: nothing}}')


def no_servers(file: Path) -> None:
    file.write_text('["mcpServers"]')


def a_broken_entry(file: Path) -> None:
    file.write_text(json.dumps({"mcpServers": {"one": {"command": 7}, "two": TWO["two"], "new": fake_server()}}))


def an_unknown_key(file: Path) -> None:
    file.write_text(json.dumps({"mcpServers": {"new": fake_server()}, "toolway": {"gateway": {"hsots": ["x"]}}}))


def an_unknown_key_of_a_toolset(file: Path) -> None:
    file.write_text(json.dumps({"mcpServers": {"new": fake_server()}, "toolway": {"toolsets": {"g": {"tolls": []}}}}))


def not_text(file: Path) -> None:
    file.write_bytes(b'{"mcpServers": {"new": {"command": "\xff\xfe"}}}')


def deep(file: Path) -> None:
    file.write_text("[" * 100_000)


BROKEN: dict[Callable[[Path], None], str] = {
    cut_short: "JSON",
    emptied: "",
    huge: "larger than",
    no_json: "",
    no_servers: "server map",
    a_broken_entry: "command",
    an_unknown_key: "hsots",
    an_unknown_key_of_a_toolset: "tolls",
    not_text: "UTF-8",
    deep: "",
}


async def test_invalid_file_changes_nothing_and_is_logged(tmp_path: Path) -> None:
    async with program(tmp_path / "one", TWO) as run:
        before = await pids(run, "one", "two")
        client = load_client("modern", run.port, run.token)
        good = run.file.read_text()
        for spoil, why in BROKEN.items():
            run.file.write_text(good)
            spoil(run.file)
            status, said = await run.request("POST", "/admin/reload")
            assert status == 422 and why in json.dumps(said), (spoil.__name__, said)
            assert await pids(run, *await run.servers()) == before, spoil.__name__
            assert (await client.call("one__echo", {"text": "x"})).data["text"] == "x"
        for spoil, why in list(BROKEN.items())[:3]:  # by itself, and the log says why
            run.file.write_text(good)
            spoil(run.file)
            told = run.log.count("the old one stays")
            await until(lambda before=told: run.log.count("the old one stays") > before)  # type: ignore[misc]
            assert why in run.log.splitlines()[-1], spoil.__name__
        run.write({**TWO, "new": fake_server()})
        assert (await run.until_ready("new"))["one"]["pid"] == before["one"]
        assert await run.stop() == 0


async def test_deleted_file_changes_nothing_and_is_read_when_back(tmp_path: Path) -> None:
    async with program(tmp_path / "one", TWO) as run:
        before = await pids(run, "one", "two")
        run.file.unlink()
        await run.until_logged("was deleted; its last content stays in use")
        assert (await run.request("POST", "/admin/reload"))[0] == 422
        assert await pids(run, *await run.servers()) == before
        run.write({**TWO, "new": fake_server()})
        assert (await run.until_ready("new"))["one"]["pid"] == before["one"]
        assert await run.stop() == 0


async def test_retargeted_link_is_followed(tmp_path: Path) -> None:
    async with program(tmp_path / "one", TWO) as run:
        before = await pids(run, "one", "two")
        one, other = run.folder / "one.json", run.folder / "other.json"
        one.write_text(run.file.read_text())
        other.write_text(json.dumps({"mcpServers": {**TWO, "new": fake_server()}, "toolway": with_reload({})}))
        _turn(run.file, one)
        await asyncio.sleep(1.5)
        assert await pids(run, *await run.servers()) == before
        _turn(run.file, other)
        assert (await run.until_ready("new"))["one"]["pid"] == before["one"]
        _turn(run.file, run.file)  # a link to itself leads nowhere
        await run.until_logged("was deleted; its last content stays in use")
        assert set(await run.servers()) == {"one", "two", "new"}
        assert await run.stop() == 0


def _turn(link: Path, to: Path) -> None:
    fresh = link.with_suffix(".link")
    fresh.symlink_to(to)
    fresh.replace(link)


async def test_file_being_written_is_read_when_complete(tmp_path: Path) -> None:
    async with program(tmp_path / "one", TWO) as run:
        before = await pids(run, "one", "two")
        text = json.dumps({"mcpServers": {**TWO, "new": fake_server()}})
        with run.file.open("w") as file:
            for start in range(0, len(text), 40):
                file.write(text[start : start + 40])
                file.flush()
                await asyncio.sleep(0.05)
        assert (await run.until_ready("new"))["one"]["pid"] == before["one"]
        assert await run.stop() == 0


async def test_toolset_change_reaches_and_notifies_clients(tmp_path: Path) -> None:
    toolsets: dict[str, Any] = {"few": {"tools": ["one.echo"]}}
    async with program(tmp_path / "one", TWO, toolsets=toolsets) as run:
        modern, listener = (ModernLoadClient(run.port, run.token, "/mcp/few") for _ in range(2))
        old = LegacyLoadClient(run.port, run.token, "/mcp/few")
        _, heard = await listener.listen()
        assert (await anext(heard))["method"] == "notifications/subscriptions/acknowledged"
        _, told = await old.stream()
        shown = [
            [tool["name"] for tool in (await each.request("tools/list", {})).raw["tools"]] for each in (modern, old)
        ]
        assert shown == [["one__echo"]] * 2
        run.write(TWO, toolsets={"few": {"tools": ["one.echo", "two.add"]}})
        async with asyncio.timeout(20):
            assert (await anext(heard))["method"] == "notifications/tools/list_changed"
            assert (await anext(told))["method"] == "notifications/tools/list_changed"
        for each in (modern, old):
            names = [tool["name"] for tool in (await each.request("tools/list", {})).raw["tools"]]
            assert names == ["one__echo", "two__add"]
        assert await run.stop() == 0


@pytest.mark.parametrize("client_era", ["modern", "legacy"])
@pytest.mark.parametrize("server_era", ["modern", "legacy"])
async def test_resource_subscription_continues_after_a_reload(client_era: str, server_era: str) -> None:
    updated = "notifications/resources/updated"
    async with (
        full(server_era, "stdio") as lab,
        lab.raw() as raw,
        recorded_stream(raw, client_era, "fake://text") as heard,
    ):
        await lab.hub.servers.reload({"full": parse_entry(pipe_entry(server_era, env={"CHANGED": "1"}))})
        await until(lambda: heard.of(updated))  # changes in between are unknown
        before = len(heard.of(updated))
        await Hub._from_core(lab.hub).call_tool("full.touch", {"uri": "fake://text"})
        await until(lambda: len(heard.of(updated)) > before)


async def test_file_change_during_the_start_is_applied(tmp_path: Path) -> None:
    file, lazy = tmp_path / "mcp.json", {"command": "true", "lazy": True}
    file.write_text(json.dumps({"mcpServers": {"one": lazy}}))
    process = GatewayProcess(load_file(file), StateDir(tmp_path / "state"))

    def change(url: str) -> None:
        file.write_text(json.dumps({"mcpServers": {"one": lazy, "two": lazy}}))

    serving = asyncio.create_task(process.run("127.0.0.1", 0, None, change, 0.0))
    try:
        await until(lambda: "two" in process.hub.servers.entries)
    finally:
        process.stop()
        await serving


async def test_default_sandbox_follows_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"

    def write(sandbox: str) -> None:
        file.write_text(json.dumps({"mcpServers": {}, "toolway": {"gateway": {"sandbox": sandbox}}}))

    write("guard")
    process = GatewayProcess(load_file(file), StateDir(tmp_path / "state"))
    assert process.hub.spawner.default_sandbox == "guard"
    serving = asyncio.create_task(process.run("127.0.0.1", 0, None, lambda url: write("auto"), 0.0))
    try:
        await until(lambda: process.hub.spawner.default_sandbox == "auto")
    finally:
        process.stop()
        await serving
