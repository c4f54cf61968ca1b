"""Servers that change their protocol era, speak an unknown version, or do not say."""

from __future__ import annotations

import pytest

from tests.faults.fault_lab import ERAS, Bench, Served, lab
from tests.faults.matrix.http.scripted_server import Json, Scripted, Turn, scripted
from tests.timing import within
from tests.upstream.raw_http import json_response
from toolway import ProtocolError, ServerUnavailable
from toolway.testing import FakeHttp

pytestmark = pytest.mark.anyio

OTHER = {"modern": "legacy", "legacy": "modern"}
UNSUPPORTED = -32022


async def restarted(bench: Bench) -> None:
    before = bench.hub.status()["bad"].restarts
    bench.hub.restart_server("bad")
    await bench.until(lambda: bench.hub.status()["bad"].restarts > before, 5)
    await bench.until(lambda: bench.hub.status()["bad"].state == "ready", 5)


@ERAS
@pytest.mark.fault("B24")
async def test_era_change_executes_nothing_until_renegotiated(era: str) -> None:
    fake = FakeHttp(era=era)
    async with lab({"bad": fake}) as bench:
        (await bench.call("bad.counter")).expect(None)
        fake.server.era = OTHER[era]
        fake.drop_sessions()
        for _ in range(3):
            outcome = await bench.call("bad.counter", max_attempts=1)
            assert (outcome.ok, outcome.executed) == (False, "no"), outcome.error
        await restarted(bench)
        assert bench.hub.status()["bad"].era == OTHER[era]
        (await bench.call("bad.counter")).expect(None)


@ERAS
@pytest.mark.fault("B24")
async def test_era_is_kept_while_calls_succeed(era: str) -> None:
    """A server of both eras is spoken to in the one that was agreed on, whatever else it understands."""
    fake = FakeHttp(era=era)
    async with lab({"bad": fake}) as bench:
        probes = fake.stats.discover + fake.stats.initialize
        fake.server.era = "both"
        for _ in range(20):
            (await bench.call("bad.counter")).expect(None)
        assert fake.stats.discover + fake.stats.initialize == probes
        assert bench.hub.status()["bad"].era == era


@pytest.mark.fault("B24")
async def test_version_rejection_triggers_a_new_probe() -> None:
    """The server was updated: it no longer speaks our version, and says which ones it speaks now."""

    async def react(turn: Turn) -> None:
        data = {"supported": ["2025-11-25"], "requested": "2026-07-28"}
        error = {"code": UNSUPPORTED, "message": "Unsupported protocol version", "data": data}
        if turn.server.era == "modern":
            turn.server.era = "legacy"
            message: Json = {"jsonrpc": "2.0", "id": turn.request.json["id"], "error": error}
            await turn.conn.send(json_response(message, status=400))
        else:
            await turn.answer_well()

    async with scripted("modern", react) as server, lab({"bad": server.url}) as bench:
        server.effects = str(bench.effects)
        await bench.call("bad.act", {"effect": True}, timeout=5)
        await bench.until(lambda: bench.hub.status()["bad"].era == "legacy", 2)
        (await bench.call("bad.act", {"effect": True})).expect(None)


@pytest.mark.fault("B24")
async def test_server_rejecting_its_own_version_is_not_asked_forever() -> None:
    async def react(turn: Turn) -> None:
        error = {"code": UNSUPPORTED, "message": "Unsupported protocol version", "data": {"supported": ["2026-07-28"]}}
        message: Json = {"jsonrpc": "2.0", "id": turn.request.json["id"], "error": error}
        await turn.conn.send(json_response(message, status=400))

    async with scripted("modern", react) as server, lab({"bad": server.url}) as bench:
        outcome = await bench.call("bad.act", timeout=10)
        assert (outcome.ok, outcome.executed, outcome.seconds < within(5)) == (False, "no", True)
        assert 1 <= len(server.turns) <= 6


@pytest.mark.fault("B24")
async def test_server_with_only_unknown_versions_is_unavailable() -> None:
    class Future(Scripted):
        def _protocol(self, message: Json) -> bytes:
            data = {"supported": ["2099-01-01"], "requested": "2026-07-28"}
            error = {"code": UNSUPPORTED, "message": "Unsupported protocol version", "data": data}
            return json_response({"jsonrpc": "2.0", "id": message["id"], "error": error}, status=400)

    async with scripted("modern", kind=Future) as server, lab({"bad": server.url}) as bench:
        outcome = (await bench.call("bad.act", timeout=10)).expect(ServerUnavailable, "no")
        assert "Unsupported protocol version" in str(outcome.error)
        assert not server.turns


@pytest.mark.fault("B24")
async def test_handshake_with_unknown_version_is_unavailable() -> None:
    class Past(Scripted):
        def _protocol(self, message: Json) -> bytes:
            if message["method"] != "initialize":
                return super()._protocol(message)
            hello = {"protocolVersion": "1999-12-31", "capabilities": {}, "serverInfo": {}}
            return json_response(self.answer(message["id"], hello))

    async with scripted("legacy", kind=Past) as server, lab({"bad": server.url}) as bench:
        outcome = (await bench.call("bad.act", timeout=10)).expect(ServerUnavailable, "no")
        assert "1999-12-31" in str(outcome.error)
        assert not server.turns


@pytest.mark.fault("B24")
async def test_unanswered_probe_falls_back_to_legacy_era() -> None:
    fake = FakeHttp(era="legacy", modes=["probe_hang"])
    async with lab({"bad": Served(fake, {"startTimeout": "10s"})}) as bench:
        (await bench.call("bad.counter", timeout=10)).expect(None)
        assert bench.hub.status()["bad"].era == "legacy"


@pytest.mark.fault("B24")
async def test_temporary_failure_does_not_change_the_era() -> None:
    modes = [
        "discover_status=503;times=1",
        "discover_status=429;times=1",
        "reset_before_response;on=server/discover;times=1",
    ]
    fake = FakeHttp(era="both", modes=modes)
    async with lab({"bad": fake}) as bench:
        await bench.until(lambda: bench.hub.status()["bad"].state == "ready", 10)
        (await bench.call("bad.counter")).expect(None)
        assert (bench.hub.status()["bad"].era, fake.stats.initialize) == ("modern", 0)


@ERAS
@pytest.mark.fault("B24")
async def test_protocol_error_does_not_change_the_era(era: str) -> None:
    async def react(turn: Turn) -> None:
        error = {"code": -32602, "message": "invalid arguments"}
        message: Json = {"jsonrpc": "2.0", "id": turn.request.json["id"], "error": error}
        await turn.conn.send(json_response(message, status=400 if era == "modern" else 200))

    async with scripted(era, react) as server, lab({"bad": server.url}) as bench:
        for _ in range(3):
            (await bench.call("bad.act")).expect(ProtocolError, "no")
        assert bench.hub.status()["bad"].era == era
        assert bench.hub.status()["bad"].restarts == 0
