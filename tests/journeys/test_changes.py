"""Servers that are added, replaced and removed at the same time."""

from __future__ import annotations

import asyncio

import pytest

from toolway import ConfigError, Hub, NotFound
from toolway.testing import fake_server

pytestmark = pytest.mark.anyio


async def test_a_server_removed_while_it_is_replaced_does_not_come_back() -> None:
    async with Hub({"one": fake_server()}) as hub:
        await hub.wait_ready()
        await asyncio.gather(hub.replace("one", fake_server(era="handshake")), hub.remove("one"))
        assert hub.status() == {}
        assert hub.tools() == []
        with pytest.raises(NotFound):
            await hub.call_tool("one.echo")


async def test_a_server_added_while_one_of_its_name_is_removed_is_there() -> None:
    async with Hub({"one": fake_server()}) as hub:
        await hub.wait_ready()
        await asyncio.gather(hub.remove("one"), hub.add("one", fake_server(era="handshake")))
        assert (await hub.call_tool("one.echo", {"text": "x"})).text == "x"
        assert hub.status()["one"].era == "handshake"
        assert [tool for tool in hub.tools() if tool.name == "one.echo"]


async def test_of_two_replacements_at_once_the_later_stays() -> None:
    async with Hub({"one": fake_server()}) as hub:
        await hub.wait_ready()
        await asyncio.gather(
            hub.replace("one", fake_server(era="handshake")), hub.replace("one", fake_server(era="modern"))
        )
        assert (await hub.call_tool("one.echo", {"text": "x"})).text == "x"
        assert hub.status()["one"].era == "modern"


async def test_a_name_is_given_once_and_a_server_removed_once() -> None:
    async with Hub({}) as hub:
        added = await asyncio.gather(*(hub.add("one", fake_server()) for _ in range(2)), return_exceptions=True)
        assert [type(each) for each in added] == [type(None), ConfigError]
        removed = await asyncio.gather(*(hub.remove("one") for _ in range(2)), return_exceptions=True)
        assert [type(each) for each in removed] == [type(None), NotFound]
