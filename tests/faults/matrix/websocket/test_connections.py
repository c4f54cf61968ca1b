"""WebSocket servers that are unreachable, refuse the handshake, or lose the connection."""

from __future__ import annotations

import asyncio
import random
import ssl
from pathlib import Path

import pytest

from tests.faults.fault_lab import ERAS, Bench, Served, lab
from tests.faults.matrix.http.test_connecting import unused_port
from tests.faults.matrix.http.tls_server import certificate
from tests.faults.matrix.http.web_servers import lose_connections, often
from tests.timing import within
from toolway import AccessDenied, CallError, CallTimeout, OutcomeUnknown, Server, ServerUnavailable, Timeout
from toolway.config.schema import HealthCheck
from toolway.testing import FakeWebSocket, Fault, FaultProxy, Flow
from toolway.upstream.transports import websocket

pytestmark = pytest.mark.anyio

SECRET = {"Authorization": "Bearer canary"}


async def is_ready(bench: Bench) -> None:
    await bench.until(lambda: bench.hub.status()["bad"].state == "ready", 10)


@pytest.mark.fault("W1")
async def test_refused_websocket_opens_the_breaker_at_the_fifth() -> None:
    async with lab({"bad": {"url": f"ws://127.0.0.1:{unused_port()}/mcp"}}) as bench:
        codes = []
        for _ in range(6):
            outcome = (await bench.call("bad.counter", max_attempts=1)).expect(ServerUnavailable, "no")
            assert outcome.error is not None and outcome.seconds < within(2)
            codes.append(outcome.error.code)
        assert codes == ["E-HTTP-CONNECT"] * 5 + ["E-BREAKER-OPEN"]


@ERAS
@pytest.mark.fault("W1")
async def test_websocket_server_that_comes_back_is_reconnected(era: str) -> None:
    fake = FakeWebSocket(era=era)
    async with lab({"bad": Served(fake)}) as bench:
        (await bench.call("bad.counter")).expect(None)
        await fake.stop()
        await bench.until(lambda: bench.hub.status()["bad"].state != "ready", 5)
        (await bench.call("bad.counter", max_attempts=1)).expect(ServerUnavailable, "no")
        await fake.start()
        await is_ready(bench)
        (await bench.call("bad.counter")).expect(None)


@pytest.mark.fault("W2")
async def test_unanswered_websocket_handshake_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert websocket.HANDSHAKE_TIMEOUT_S == 10
    monkeypatch.setattr(websocket, "HANDSHAKE_TIMEOUT_S", 0.5)
    async with lab({"bad": FakeWebSocket(modes=["silent_handshake;on=connect"])}) as bench:
        outcome = (await bench.call("bad.counter", timeout=10, max_attempts=1)).expect(ServerUnavailable, "no")
        assert outcome.error is not None and outcome.error.code == "E-HTTP-TIMEOUT"
        assert outcome.seconds < within(3)


@pytest.mark.fault("W3")
@pytest.mark.parametrize(
    ("mode", "error"),
    [
        ("status=401", AccessDenied),
        ("status=403", AccessDenied),
        ("status=429;retry_after=1", ServerUnavailable),
        ("status=503;retry_after=1", ServerUnavailable),
        ("status=302;to=http://127.0.0.1:1/", ServerUnavailable),
        ("status=200", ServerUnavailable),
    ],
)
async def test_rejected_websocket_handshake_fails_calls_unsent(mode: str, error: type[CallError]) -> None:
    fake = FakeWebSocket(modes=[mode])
    async with lab(
        {"bad": Served(fake, {"headers": SECRET, "maxRestarts": 1000, "restart": {"maxBackoff": "1s"}})}
    ) as bench:
        (await bench.call("bad.counter", max_attempts=1)).expect(error, "no")
        assert fake.stats.requests == {}
        fake.clear_modes()
        await is_ready(bench)
        (await bench.call("bad.counter")).expect(None)


@pytest.mark.fault("W4")
@pytest.mark.parametrize("kind", ["expired", "other host", "untrusted", "no TLS at all"])
async def test_websocket_with_bad_certificate_receives_no_data(kind: str, tmp_path: Path) -> None:
    host = "other.test" if kind == "other host" else "127.0.0.1"
    cert = certificate(tmp_path / "cert.pem", host, days=-1 if kind == "expired" else 1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert)
    async with FakeWebSocket(ssl=None if kind == "no TLS at all" else context) as fake:
        entry = {"url": fake.url.replace("ws:", "wss:"), "headers": SECRET}
        if kind != "untrusted":
            entry["tls"] = {"caFile": str(cert)}
        async with lab({"bad": entry}) as bench:
            outcome = (await bench.call("bad.counter", timeout=10, max_attempts=1)).expect(ServerUnavailable, "no")
            assert outcome.error is not None and outcome.error.code == "E-HTTP-TLS"
        assert fake.requests == []


@ERAS
@pytest.mark.fault("W5")
@pytest.mark.parametrize("mode", ["reset", "lose"])
async def test_lost_websocket_leaves_sent_calls_unknown_and_recovers(era: str, mode: str) -> None:
    async with lab({"bad": FakeWebSocket(era=era)}) as bench:
        others = [bench.start("bad.counter", {"seconds": 0}) for _ in range(5)]
        for other in others:
            (await other).expect(None)
        lost = (await bench.call("bad.bad", {"mode": mode, "effect": True})).expect(OutcomeUnknown, "unknown")
        assert bench.happened(lost) == 1
        await is_ready(bench)
        (await bench.call("bad.counter")).expect(None)


@ERAS
@pytest.mark.fault("W5")
async def test_read_is_repeated_after_a_lost_websocket(era: str) -> None:
    fake = FakeWebSocket(era=era, modes=["lose;on=bad_read;times=1"])
    async with lab({"bad": fake}) as bench:
        read = (await bench.call("bad.bad_read", {"effect": True})).expect(None)
        assert (read.reply and read.reply.attempts, bench.happened(read)) == (2, 2)


@ERAS
@pytest.mark.fault("W5")
async def test_websocket_cut_at_any_byte_leaves_at_most_one_effect(era: str, dice: random.Random) -> None:
    async with (
        FakeWebSocket(era=era) as fake,
        FaultProxy(fake.host, fake.port) as proxy,
        lab({"bad": often(proxy.url_for("/mcp", scheme="ws"))}) as bench,
    ):
        fake.server.effects_path = str(bench.effects)
        proxy.set_faults(lambda number: _cut_somewhere(dice) if number % 2 else Fault())
        for _ in range(12):
            await lose_connections(proxy)
            calls = [bench.start("bad.counter") for _ in range(3)]
            for call in calls:
                outcome = await call
                if not outcome.ok and not isinstance(outcome.error, ServerUnavailable):
                    outcome.expect(OutcomeUnknown, "unknown")
        proxy.set_faults([])
        assert {bench.happened(call) for call in bench.calls} <= {0, 1}


def _cut_somewhere(dice: random.Random) -> Fault:
    flow = Flow(cut_at=dice.randrange(1500), reset=dice.random() < 0.5)
    return Fault(up=flow) if dice.random() < 0.5 else Fault(down=flow)


@ERAS
@pytest.mark.fault("W6")
@pytest.mark.parametrize("code", [1000, 1001, 1009, 1011])
async def test_close_frame_during_a_call_is_unknown_and_names_its_code(era: str, code: int) -> None:
    async with lab({"bad": FakeWebSocket(era=era)}) as bench:
        lost = await bench.call("bad.bad", {"mode": f"close={code}", "effect": True})
        lost.expect(OutcomeUnknown, "unknown")
        assert str(code) in str(lost.error)
        await is_ready(bench)
        (await bench.call("bad.counter")).expect(None)


@ERAS
@pytest.mark.fault("W6")
async def test_answer_followed_by_a_close_frame_counts(era: str) -> None:
    async with lab({"bad": FakeWebSocket(era=era)}) as bench:
        for megabytes in (0, 3):
            (await bench.call("bad.bad", {"mode": "respond_and_close", "mb": megabytes, "effect": True})).expect(None)
            await is_ready(bench)


@ERAS
@pytest.mark.fault("W7")
async def test_silent_websocket_peer_fails_its_call_and_is_replaced(era: str) -> None:
    health = HealthCheck(interval=0.2, timeout=0.3, failure_threshold=2)
    async with FakeWebSocket(era=era) as fake, FaultProxy(fake.host, fake.port) as proxy:
        url = proxy.url_for("/mcp", scheme="ws")
        async with lab({"bad": Server(url=url, health=health, timeout=Timeout(total=20))}) as bench:
            fake.server.effects_path = str(bench.effects)
            (await bench.call("bad.counter")).expect(None)
            proxy.freeze()
            lost = (await bench.call("bad.counter", timeout=1)).expect(CallTimeout, "unknown")
            assert lost.seconds < within(2.5)
            await bench.until(lambda: fake.stats.connections >= 2, 10)
            await is_ready(bench)
            async with asyncio.timeout(10):
                (await bench.call("bad.echo")).expect(None)
            await proxy.cut_connections()
