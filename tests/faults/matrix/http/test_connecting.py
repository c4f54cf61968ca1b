"""Host names that do not resolve, and addresses where no server answers. Calls that fail here were not sent."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.faults.fault_lab import WAYS, Served, lab
from tests.faults.matrix.http.web_servers import behind_proxy, calm_down, lose_connections, web
from tests.timing import within
from toolway import Server, ServerUnavailable, Timeout
from toolway.network import NetworkPolicy

pytestmark = pytest.mark.anyio

HOST = "server.test"
TYPES = pytest.mark.parametrize("kind", ["http", "sse"])


class Names:
    """The resolver: this machine's own, except for one name."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.failure: OSError | None = None
        self.awake = threading.Event()  # until it is set, that name is looked up for ever
        self.awake.set()

    def look_up(self, host: str, port: int, *args: Any, flags: int = 0, **kwargs: Any) -> Any:
        if host != HOST or flags & socket.AI_NUMERICHOST:
            return self._real(host, port, *args, flags=flags, **kwargs)
        self.awake.wait(60)
        if self.failure is not None:
            raise self.failure
        return self._real("127.0.0.1", port, *args, flags=flags, **kwargs)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    names = Names(socket.getaddrinfo)
    monkeypatch.setattr(socket, "getaddrinfo", names.look_up)
    yield names
    names.awake.set()


@TYPES
@pytest.mark.fault("B1")
async def test_unresolvable_host_fails_at_once(kind: str, names: Names) -> None:
    async with lab({}) as bench:
        for code in (socket.EAI_NONAME, socket.EAI_AGAIN, socket.EAI_FAIL):
            names.failure = socket.gaierror(code, "not found")
            server = f"bad{-code}"
            await bench.add(server, {"url": f"http://{HOST}/mcp", "type": kind})
            outcome = (await bench.call(f"{server}.counter", timeout=20)).expect(ServerUnavailable, "no")
            assert HOST in str(outcome.error)
            assert outcome.error is not None and outcome.error.code == "E-HTTP-DNS"
            assert outcome.seconds < within(5)


@pytest.mark.fault("B1")
async def test_hanging_resolver_costs_one_connect_timeout(names: Names) -> None:
    names.awake.clear()
    server = Server(url=f"http://{HOST}/mcp", timeout=Timeout(total=20, connect=1))
    async with lab({}) as bench:
        await bench.add("bad", server)
        outcome = (await bench.call("bad.counter", max_attempts=1)).expect(ServerUnavailable, "no")
        assert 0.5 < outcome.seconds < within(2.5)
        again = (await bench.call("bad.counter")).expect(ServerUnavailable, "no")
        assert again.error is not None and again.error.attempts == 3


@WAYS
@pytest.mark.fault("B1")
async def test_host_no_longer_resolving_fails_calls_unsent(era: str, names: Names) -> None:
    async with behind_proxy(era) as (fake, proxy):
        url = f"http://{HOST}:{proxy.port}{fake.endpoint.path}"
        server = Server(url=url, timeout=Timeout(total=20, connect=1), network_policy=NetworkPolicy((HOST,)))
        async with lab({"bad": server}) as bench:
            fake.server.effects_path = str(bench.effects)
            (await bench.call("bad.counter")).expect(None)
            names.failure = socket.gaierror(socket.EAI_AGAIN, "try again")
            await lose_connections(proxy)
            lost = (await bench.call("bad.counter", max_attempts=1)).expect(ServerUnavailable, "no")
            assert lost.seconds < within(5)
            names.failure = None
            await bench.until(lambda: bench.hub.status()["bad"].state == "ready", 10)
            (await bench.call("bad.counter")).expect(None)


def unused_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@TYPES
@pytest.mark.fault("B2")
async def test_refused_connections_open_the_breaker_at_the_fifth(kind: str) -> None:
    async with lab({"bad": {"url": f"http://127.0.0.1:{unused_port()}/mcp", "type": kind}}) as bench:
        codes = []
        for _ in range(6):
            outcome = (await bench.call("bad.counter", max_attempts=1)).expect(ServerUnavailable, "no")
            assert outcome.seconds < within(2)
            assert outcome.error is not None
            codes.append(outcome.error.code)
        assert codes == ["E-HTTP-CONNECT"] * 5 + ["E-BREAKER-OPEN"]


@pytest.mark.fault("B2")
async def test_black_holed_server_opens_the_breaker_and_recovers() -> None:
    async with behind_proxy("both") as (fake, proxy):
        server = Server(url=proxy.url_for("/mcp"), timeout=Timeout(total=20, connect=0.3))
        async with lab({"bad": server}) as bench:
            fake.server.effects_path = str(bench.effects)
            await calm_down(bench)
            await proxy.black_hole()
            await lose_connections(proxy)
            calls = [await bench.call("bad.counter", max_attempts=1) for _ in range(6)]
            codes = [call.expect(ServerUnavailable, "no").error for call in calls]
            assert [code.code for code in codes if code] == ["E-HTTP-TIMEOUT"] * 5 + ["E-BREAKER-OPEN"]
            assert all(call.seconds < within(2) for call in calls)
            shut = codes[-1]
            assert shut is not None and shut.retry_after is not None and 0 < shut.retry_after < 6.5
            await proxy.accept_connections()
            await bench.until(lambda: bench.hub.status()["bad"].state == "ready", 10)
            async with asyncio.timeout(12):
                while not (await bench.call("bad.counter", max_attempts=1)).ok:
                    await asyncio.sleep(0.2)


@WAYS
@pytest.mark.fault("B2")
async def test_server_that_comes_back_is_used_again(era: str) -> None:
    fake = web(era)
    async with lab({"bad": Served(fake)}) as bench:
        (await bench.call("bad.counter")).expect(None)
        await fake.stop()
        (await bench.call("bad.counter", max_attempts=1)).expect(ServerUnavailable, "no")
        await fake.start()
        await bench.until(lambda: bench.hub.status()["bad"].state == "ready", 10)
        (await bench.call("bad.counter")).expect(None)
