"""WebSocket messages that are cut, slow, too large, junk, misaddressed, or too many; peers that stop reading."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.faults.fault_lab import ERAS, lab
from tests.timing import within
from toolway import CallTimeout, ProtocolError, Server, Timeout
from toolway.testing import FakeWebSocket
from toolway.upstream.transports import message_stream

pytestmark = pytest.mark.anyio


@ERAS
@pytest.mark.fault("W8")
@pytest.mark.parametrize("mode", ["half_frame", "slow_frame=0.05"])
async def test_stalled_or_slow_websocket_message_ends_the_link(
    era: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert message_stream.MIN_MESSAGE_RATE == (10 * 1024, 10.0)
    monkeypatch.setattr(message_stream, "MIN_MESSAGE_RATE", (10 * 1024, 0.5))
    async with lab({"bad": FakeWebSocket(era=era)}) as bench:
        lost = await bench.call("bad.bad", {"mode": mode, "effect": True}, timeout=10)
        lost.expect(ProtocolError, "unknown")
        assert lost.error is not None and lost.error.code == "E-FRAME-HALF"
        assert lost.seconds < within(3)
        await bench.until(lambda: bench.hub.status()["bad"].state == "ready", 10)
        (await bench.call("bad.counter")).expect(None)


@asynccontextmanager
async def _process(era: str, effects: Path) -> AsyncIterator[str]:
    """Run a fake WebSocket server as a process and yield its URL."""
    args = ("-m", "toolway.testing.websocket_server", "--port", "0", "--era", era, "--effects", str(effects))
    process = await asyncio.create_subprocess_exec(sys.executable, *args, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        port = int((await process.stdout.readline()).split()[1])
        yield f"ws://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        await process.wait()


@ERAS
@pytest.mark.fault("W9")
async def test_websocket_message_over_the_limit_ends_the_link(era: str, tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    # In its own process: to build and write such a message would block this loop.
    async with _process(era, effects) as url, lab({"bad": Server(url=url)}, memory=96, effects=effects) as bench:
        (await bench.call("bad.bad", {"mode": "message_mb=8.2", "effect": True})).expect(None)
        over = await bench.call("bad.bad", {"mode": "message_mb=50", "effect": True})
        over.expect(ProtocolError, "unknown")
        assert over.error is not None and over.error.code == "E-FRAME-LIMIT"
        assert "maxMessageBytes" in over.error.hint
        await bench.until(lambda: bench.hub.status()["bad"].state == "ready", 10)
        (await bench.call("bad.counter")).expect(None)


@ERAS
@pytest.mark.fault("W10")
async def test_junk_between_websocket_messages_is_ignored_and_kept(era: str) -> None:
    async with lab({"bad": FakeWebSocket(era=era, modes=["garbage;on=tools/list"])}) as bench:
        for _ in range(3):
            (await bench.call("bad.bad", {"mode": "garbage", "effect": True})).expect(None)
        info = bench.link("bad")
        assert info.invalid_lines == 16
        assert "binary message" in info.stderr


@ERAS
@pytest.mark.fault("W10")
@pytest.mark.parametrize(
    ("mode", "code"),
    [
        ("truncated", "E-ANSWER"),
        ("bad_utf8", "E-ANSWER"),
        ("binary_flood", "E-FRAME-BAD"),
        ("invalid_frame", "E-FRAME-BAD"),
    ],
)
async def test_invalid_websocket_answer_reports_its_error_code(era: str, mode: str, code: str) -> None:
    async with lab({"bad": FakeWebSocket(era=era)}) as bench:
        spoiled = await bench.call("bad.bad", {"mode": mode, "effect": True})
        spoiled.expect(ProtocolError, "unknown")
        assert spoiled.error is not None and spoiled.error.code == code
        await bench.until(lambda: bench.hub.status()["bad"].state == "ready", 10)
        (await bench.call("bad.counter")).expect(None)


@ERAS
@pytest.mark.fault("W11")
async def test_websocket_answer_with_unknown_id_is_dropped(era: str) -> None:
    async with lab({"bad": FakeWebSocket(era=era)}) as bench:
        (await bench.call("bad.bad", {"mode": "twice", "effect": True})).expect(None)
        (await bench.call("bad.bad", {"mode": "fragments=7", "effect": True})).expect(None)
        lost = bench.start("bad.bad", {"mode": "wrong_id", "effect": True}, timeout=1)
        (await lost).expect(CallTimeout, "unknown")
        (await bench.call("bad.counter")).expect(None)
        assert bench.link("bad").unmatched_responses >= 2


@ERAS
@pytest.mark.fault("W12")
async def test_websocket_server_that_stops_reading_is_replaced(era: str) -> None:
    assert Timeout().write == 10
    async with FakeWebSocket(era=era) as fake:
        server = Server(url=fake.url, timeout=Timeout(20, write=0.7))
        async with lab({"bad": server}, memory=96) as bench:
            fake.server.effects_path = str(bench.effects)
            (await bench.call("bad.bad", {"mode": "stops_reading", "effect": True})).expect(None)
            big = {"padding": "x" * 4_000_000}
            calls = [bench.start("bad.counter", big, max_attempts=1) for _ in range(6)]
            outcomes = [await call for call in calls]
            lost = [outcome for outcome in outcomes if not outcome.ok]
            assert lost and lost[0] is outcomes[0]
            for outcome in lost:
                assert outcome.error is not None and outcome.error.code == "E-WS-STUCK"
            assert fake.stats.connections == 2
            (await bench.call("bad.counter")).expect(None)
            await fake.stop()  # it does not see the end of a connection that it does not read


@ERAS
@pytest.mark.fault("W13")
@pytest.mark.parametrize("mode", ["ping_flood=50000", "list_changed_flood=20000"])
async def test_flood_of_websocket_frames_delays_no_other_call(era: str, mode: str) -> None:
    async with lab({"bad": FakeWebSocket(era=era)}, calm=False) as bench:
        (await bench.call("bad.bad", {"mode": mode, "effect": True}, timeout=30)).expect(None)
        (await bench.call("bad.counter")).expect(None)
