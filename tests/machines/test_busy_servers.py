"""A server with one thread answers nothing while it works: it is left alone, and one that hangs is still found."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.machines.upstreams import PLAIN, FakeHub, Weather
from tests.sim.loop import VirtualLoop, run
from tests.upstream.scripted_transport import HANDSHAKE, MODERN, ScriptedLink
from toolway.config.schema import Server, Timeout
from toolway.types import Call, Certainty, Json
from toolway.upstream.transport import Request, Transport, TransportError
from toolway.upstream.upstream import Upstream

TOOLS: Json = {"capabilities": {"tools": {}}}
DONE: Json = {"content": []}
PATIENT = replace(PLAIN, timeout=Timeout(total=300.0))


class Works(ScriptedLink):
    """A server whose tool takes 50 s. With one thread it answers one request after the other."""

    def __init__(self, threads: int) -> None:
        super().__init__(self._respond)
        self._free = asyncio.Semaphore(threads)
        self.hangs = False
        self._ended = asyncio.Event()

    async def _respond(self, request: Request) -> Json:
        if request.method == "tools/call":
            request.call_state.mark_sent()
        work = asyncio.ensure_future(self._work(request))
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait({work, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise TransportError("the link has ended", Certainty.UNKNOWN, code="E-CLOSED")
            return work.result()
        finally:
            work.cancel()
            ended.cancel()

    async def _work(self, request: Request) -> Json:
        async with self._free:
            if self.hangs:
                await asyncio.Event().wait()
            if request.method == "tools/call":
                await asyncio.sleep(50)
                return DONE
        if request.method in ("server/discover", "initialize"):
            return (MODERN if request.method == "server/discover" else HANDSHAKE) | TOOLS
        return {"tools": []}

    async def close(self) -> None:
        await super().close()
        self._ended.set()


class Beside(FakeHub):
    def __init__(self, threads: int) -> None:
        super().__init__(Weather(roll=0.0))
        self.threads = threads
        self.servers: list[Works] = []

    def open_transport(self, name: str, server: Server, caller: str = "") -> Transport:
        self.servers.append(Works(self.threads))
        return self.servers[-1]


def call(timeout: float | None = None) -> Call:
    return Call("s.t", "tools/call", {"name": "t", "arguments": {}}, server="s", name="t", timeout=timeout)


async def begun(threads: int, server: Server) -> tuple[Upstream, Beside]:
    around = Beside(threads)
    upstream = Upstream("s", server, around)
    upstream.start()
    await upstream.wait_ready()
    return upstream, around


@pytest.mark.user_trial("3")
@pytest.mark.parametrize("era", ["modern", "legacy", "bare"])
@pytest.mark.parametrize("server", [PATIENT, PLAIN], ids=["300 s", "no timeout"])
def test_busy_single_threaded_server_is_not_restarted(era: Any, server: Server) -> None:
    async def main() -> None:
        upstream, around = await begun(1, replace(server, era=era))
        calls = [asyncio.ensure_future(upstream.call(call())) for _ in range(3)]  # the last one takes 150 s
        await asyncio.sleep(100)
        assert upstream.status().check_error == ""
        await asyncio.wait(calls)
        assert [each.result()["content"] for each in calls] == [[], [], []]
        assert len(around.servers) == 1
        assert around.servers[0].methods.count("ping") + around.servers[0].methods.count("server/discover") < 12
        await upstream.stop()

    run(main(), VirtualLoop(1000.0))


@pytest.mark.user_trial("3")
@pytest.mark.parametrize(("server", "timeout", "after"), [(PLAIN, None, 30), (PLAIN, 90.0, 90), (PATIENT, None, 300)])
def test_server_hanging_after_earlier_calls_is_found_in_time(server: Server, timeout: float | None, after: int) -> None:
    async def main() -> float:
        upstream, around = await begun(9, server)
        await upstream.call(call())
        around.servers[0].hangs = True
        began = asyncio.get_running_loop().time()
        with pytest.raises(Exception, match="no response to a health check"):
            await upstream.call(call(timeout))
        seconds = asyncio.get_running_loop().time() - began
        await upstream.stop()
        return seconds

    assert after <= run(main(), VirtualLoop(1000.0)) <= after + 12


@pytest.mark.user_trial("3")
def test_server_hanging_in_its_first_call_is_found_afterwards() -> None:
    async def main() -> None:
        upstream, around = await begun(9, PLAIN)
        around.servers[0].hangs = True
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await upstream.call(call())
        assert len(around.servers) == 1
        await asyncio.sleep(15)
        assert len(around.servers) == 2
        await upstream.stop()

    run(main(), VirtualLoop(1000.0))
