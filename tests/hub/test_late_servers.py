"""One server that hangs, crashes or is late costs the others nothing: lists and calls next to it, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from itertools import pairwise
from typing import Any

import pytest

from tests.sim.loop import VirtualLoop, run
from tests.upstream.scripted_transport import MODERN, ScriptedLink
from toolway import Hub
from toolway.callbacks import FunctionCallbacks
from toolway.config.schema import Server
from toolway.errors import CallError, NotFound, ServerUnavailable
from toolway.hub.core import HubCore
from toolway.hub.environment import HubEnvironment
from toolway.types import Authorizer, Certainty, Json
from toolway.upstream.process.spawner import Spawner
from toolway.upstream.transport import InboundHandler, Request, Transport, TransportError

OFFERS: Json = {"capabilities": {"tools": {}, "prompts": {}}}


class Link(ScriptedLink):
    """A server with one tool, `echo_NAME`. `opens` decides how its start ends."""

    def __init__(self, name: str, opens: Callable[[], Awaitable[None]]) -> None:
        super().__init__(self._respond)
        self._name = name
        self._opens = opens

    async def open(self, inbound: InboundHandler) -> None:
        await super().open(inbound)
        await self._opens()

    async def _respond(self, request: Request) -> Json:
        match request.method:
            case "server/discover":
                return MODERN | OFFERS
            case "tools/list":
                return {"tools": [{"name": f"echo_{self._name}", "inputSchema": {"type": "object"}}]}
            case "prompts/list":
                return {"prompts": [{"name": f"greet_{self._name}"}]}
            case _:
                return {"content": [{"type": "text", "text": self._name}]}


class Town:
    """Servers: good answers, hang never does, crash ends at its start, late is at a URL that is served from 15 s on."""

    def __init__(self) -> None:
        self.starts: dict[str, list[float]] = {}

    def create(self) -> Hub:
        servers: dict[str, Any] = {
            "good": Server(command="good"),
            "hang": Server(command="hang"),
            "crash": Server(command="crash"),
            "slow": Server(command="slow"),
            "late": Server(url="http://late.invalid/mcp"),
        }
        world = HubEnvironment(
            wall_clock=lambda: 0.0,
            random=lambda: 0.999,
            create_transport=self._link,
            environ={},
            cores=8,
            stall_threshold=0,
        )
        callbacks = FunctionCallbacks(None, None, None)
        core = HubCore(servers, callbacks=callbacks, catalog_storage=None, environment=world, library=True)
        return Hub._from_core(core)

    def _link(
        self, name: str, server: Server, spawner: Spawner, environ: Mapping[str, str], authorizer: Authorizer | None
    ) -> Transport:
        clock = asyncio.get_running_loop().time

        async def opens() -> None:
            self.starts.setdefault(name, []).append(clock())
            if name == "hang":
                await asyncio.Event().wait()
            if name == "slow":
                await asyncio.sleep(6)
            if name == "crash" or (name == "late" and clock() < 1015):
                raise TransportError("refused", Certainty.NOT_SENT, code="E-HTTP-CONNECT" if name == "late" else "")

        return Link(name, opens)


def live(scenario: Callable[[Hub, Town], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        town = Town()
        async with town.create() as hub:
            await scenario(hub, town)

    run(main(), VirtualLoop(1000.0))


async def seconds(work: Awaitable[Any]) -> tuple[Any, float]:
    """The result of `work`, or its error, and the seconds that it took."""
    clock = asyncio.get_running_loop().time
    began = clock()
    return (await asyncio.gather(work, return_exceptions=True))[0], clock() - began


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread would make its own time."""

    async def at_once(work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)

    monkeypatch.setattr(asyncio, "to_thread", at_once)


@pytest.mark.user_trial("1")
def test_lists_return_known_tools_and_name_missing_servers(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(hub: Hub, town: Town) -> None:
        found, took = await seconds(hub.list_tools())
        assert [tool.name for tool in found] == ["echo_good"] and took <= 2.0
        assert {"hang: still starting", "slow: still starting"} <= set(caplog.messages)
        assert any(line.startswith("crash is down: ") for line in caplog.messages)
        for _ in range(3):
            for again in (hub.list_tools(), hub.list_prompts(), hub.search_tools("echo")):
                found, took = await seconds(again)
                assert isinstance(found, list) and found and took <= 0.5
        assert caplog.messages.count("hang: still starting") == 1  # not once per list
        await asyncio.sleep(6)
        found, took = await seconds(hub.list_tools())
        assert {tool.name for tool in found} == {"echo_good", "echo_slow"} and took <= 0.5

    with caplog.at_level(logging.WARNING, "toolway.hub"):
        live(scenario)


@pytest.mark.user_trial("1")
def test_search_waits_for_starting_servers_like_a_list() -> None:
    async def scenario(hub: Hub, town: Town) -> None:
        found, took = await seconds(hub.search_tools("echo"))
        assert [each.tool.server for each in found] == ["good"] and took <= 2.0

    live(scenario)


@pytest.mark.user_trial("1")
def test_list_wait_can_be_set() -> None:
    async def scenario(hub: Hub, town: Town) -> None:
        found, took = await seconds(hub.list_tools(wait=0))
        assert (found, took) == ([], 0)
        found, took = await seconds(hub.list_tools(wait=7))
        assert {tool.server for tool in found} == {"good", "slow"} and took == 7
        found, took = await seconds(hub.list_tools(server="slow"))
        assert [tool.server for tool in found] == ["slow"] and took == 0

    live(scenario)


@pytest.mark.user_trial("1")
def test_bare_tool_name_is_found_despite_unresponsive_servers() -> None:
    async def scenario(hub: Hub, town: Town) -> None:
        result, took = await seconds(hub.call_tool("echo_good"))
        assert result.text == "good" and took <= 2.0
        result, took = await seconds(hub.call_tool("echo_slow"))  # the rest of its servers is waited for longer
        assert result.text == "slow" and took <= 10
        result, took = await seconds(hub.call_tool("echo_nowhere"))
        assert isinstance(result, NotFound) and took <= 10

    live(scenario)


@pytest.mark.user_trial("2")
def test_late_server_is_used_within_a_second_of_its_return() -> None:
    async def scenario(hub: Hub, town: Town) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < 1014.9:
            with pytest.raises(ServerUnavailable):
                await hub.call_tool("late.echo_late", max_attempts=1)
            await asyncio.sleep(0.3)
        await asyncio.sleep(0.2)
        while isinstance((await seconds(hub.call_tool("late.echo_late")))[0], CallError):
            await asyncio.sleep(0.05)  # the circuit breaker is open, for a second at most
        assert loop.time() <= 1016.5
        starts = [each for each in town.starts["late"] if each >= 1001]
        assert all(later - earlier >= 0.999 for earlier, later in pairwise(starts))

    live(scenario)


@pytest.mark.user_trial("2")
def test_first_call_finds_late_server() -> None:
    async def scenario(hub: Hub, town: Town) -> None:
        await asyncio.sleep(15)
        result, took = await seconds(hub.call_tool("late.echo_late"))
        assert result.text == "late" and took <= 1.0

    live(scenario)


@pytest.mark.user_trial("2")
def test_check_and_list_retry_a_down_server() -> None:
    async def scenario(hub: Hub, town: Town) -> None:
        await asyncio.sleep(10)
        before = len(town.starts["late"])
        assert not (await hub.check_health("late", start=True)).ok
        assert len(town.starts["late"]) == before + 1
        await asyncio.sleep(5.5)
        assert (await hub.check_health("late", start=True)).ok
        assert "late" in {tool.server for tool in await hub.list_tools()}

    live(scenario)


@pytest.mark.user_trial("2")
def test_lists_do_not_open_breaker_of_down_server() -> None:
    async def scenario(hub: Hub, town: Town) -> None:
        for _ in range(14):
            await hub.list_tools()
            await asyncio.sleep(1)
        assert hub._core.servers.breakers.server("late").state == "closed"

    live(scenario)
