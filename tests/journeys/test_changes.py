"""Servers that are added, replaced and removed at the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.timing import within
from toolway import ConfigError, Hub, NotFound, OutcomeUnknown
from toolway.hub import upstreams
from toolway.testing import fake_server

pytestmark = pytest.mark.anyio


def runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_server_removed_while_replaced_does_not_come_back() -> None:
    async with Hub({"one": fake_server()}) as hub:
        await hub.wait_ready()
        await asyncio.gather(hub.add_server("one", fake_server(era="legacy"), replace=True), hub.remove_server("one"))
        assert hub.status() == {}
        assert hub.known_tools() == []
        with pytest.raises(NotFound):
            await hub.call_tool("one.echo")


async def test_server_added_while_its_namesake_is_removed_stays() -> None:
    async with Hub({"one": fake_server()}) as hub:
        await hub.wait_ready()
        await asyncio.gather(hub.remove_server("one"), hub.add_server("one", fake_server(era="legacy")))
        assert (await hub.call_tool("one.echo", {"text": "x"})).text == "x"
        assert hub.status()["one"].era == "legacy"
        assert [tool for tool in hub.known_tools() if tool.qualified_name == "one.echo"]


async def test_later_of_two_parallel_replacements_wins() -> None:
    async with Hub({"one": fake_server()}) as hub:
        await hub.wait_ready()
        await asyncio.gather(
            hub.add_server("one", fake_server(era="legacy"), replace=True),
            hub.add_server("one", fake_server(era="modern"), replace=True),
        )
        assert (await hub.call_tool("one.echo", {"text": "x"})).text == "x"
        assert hub.status()["one"].era == "modern"


async def test_name_is_added_once_and_removed_once() -> None:
    async with Hub({}) as hub:
        added = await asyncio.gather(*(hub.add_server("one", fake_server()) for _ in range(2)), return_exceptions=True)
        assert [type(each) for each in added] == [type(None), ConfigError]
        removed = await asyncio.gather(*(hub.remove_server("one") for _ in range(2)), return_exceptions=True)
        assert [type(each) for each in removed] == [type(None), NotFound]


async def test_running_call_finishes_while_new_definition_takes_calls() -> None:
    async with Hub({"one": fake_server()}) as hub:
        old = (await hub.call_tool("one.pid")).data["pid"]
        slow = asyncio.create_task(hub.call_tool("one.sleep", {"seconds": 1.5, "nonce": "slow"}))
        await until(lambda: hub.status()["one"].in_flight == 1)
        assert await hub.reload({"one": fake_server(era="legacy")}) == {"one": "changed"}
        new = (await hub.call_tool("one.pid")).data["pid"]
        assert new != old and not slow.done()
        assert (await slow).data["nonce"] == "slow"
        await until(lambda: not runs(old))
        assert (await hub.call_tool("one.pid")).data["pid"] == new


async def test_server_is_removed_after_finishing_its_calls() -> None:
    async with Hub({"one": fake_server()}) as hub:
        pid = (await hub.call_tool("one.pid")).data["pid"]
        slow = asyncio.create_task(hub.call_tool("one.sleep", {"seconds": 1.0, "nonce": "slow"}))
        await until(lambda: hub.status()["one"].in_flight == 1)
        removing = asyncio.create_task(hub.remove_server("one"))
        await asyncio.sleep(0)
        with pytest.raises(NotFound):
            await hub.call_tool("one.echo")
        assert not removing.done()
        assert (await slow).data["nonce"] == "slow"
        await removing
        assert not runs(pid)


async def test_call_of_an_old_definition_is_cut_off_after_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upstreams, "DRAIN_TIMEOUT_S", 0.3)
    async with Hub({"one": fake_server()}) as hub:
        await hub.wait_ready()
        endless = asyncio.create_task(hub.call_tool("one.bad", {"mode": "never"}))
        await until(lambda: hub.status()["one"].in_flight == 1)
        await hub.add_server("one", fake_server(era="legacy"), replace=True)
        with pytest.raises(OutcomeUnknown):
            await endless
        assert (await hub.call_tool("one.echo", {"text": "x"})).text == "x"


async def test_waiting_call_is_taken_by_the_replacing_definition() -> None:
    async with Hub({"one": fake_server("silent")}) as hub:
        waiting = asyncio.create_task(hub.call_tool("one.echo", {"text": "x"}, max_attempts=1))
        await until(lambda: hub.status()["one"].pid is not None)
        await hub.add_server("one", fake_server(), replace=True)
        assert (await waiting).text == "x"


async def test_closing_hub_does_not_wait_for_old_definitions() -> None:
    async with Hub({"one": fake_server()}) as hub:
        pid = (await hub.call_tool("one.pid")).data["pid"]
        endless = asyncio.create_task(hub.call_tool("one.bad", {"mode": "never"}))
        await until(lambda: hub.status()["one"].in_flight == 1)
        await hub.reload({})
        began = time.monotonic()
    assert time.monotonic() - began < within(15)
    assert not runs(pid)
    with pytest.raises(OutcomeUnknown):
        await endless


async def test_idle_old_definition_ends_before_the_new_one_starts() -> None:
    async with Hub({"one": fake_server()}) as hub:
        old = (await hub.call_tool("one.pid")).data["pid"]
        await hub.reload({"one": fake_server(era="legacy")})
        await until(lambda: hub.status()["one"].pid is not None)
        assert not runs(old)


async def test_unchanged_servers_keep_their_process_and_order() -> None:
    three = {name: fake_server() for name in ("one", "two", "three")}
    async with Hub(three) as hub:
        pids = {name: (await hub.call_tool(f"{name}.pid")).data["pid"] for name in three}
        done = await hub.reload({**three, "two": fake_server(era="modern"), "four": fake_server()})
        assert done == {"two": "changed", "four": "added"}
        assert list(hub.status()) == ["one", "two", "three", "four"]
        for name in ("one", "three"):
            assert (await hub.call_tool(f"{name}.pid")).data["pid"] == pids[name]
