"""Servers without a handshake, which know two methods, answer everything else with an error, and fail."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.faults.fault_lab import Bench, Served, first_time, lab, server
from tests.timing import within
from toolway import CallTimeout, HealthCheck, OutcomeUnknown, ProtocolError, Server
from toolway.testing import FakeHttp, FakeWebSocket, fake_server
from toolway.upstream import negotiation

pytestmark = pytest.mark.anyio

WAYS = pytest.mark.parametrize("way", ["stdio", "http"])


def bare(way: str, *modes: str) -> Any:
    if way == "websocket":
        return FakeWebSocket(era="bare", modes=modes)
    return FakeHttp(era="bare", modes=modes) if way == "http" else fake_server(*modes, era="bare")


async def works(bench: Bench) -> None:
    """Calls are answered, in the era without a handshake."""
    (await bench.call("bad.counter", timeout=15)).expect(None)
    assert bench.hub.status()["bad"].era == "bare"


# -- the start ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["stdio", "http", "websocket"])
@pytest.mark.fault("E1")
async def test_server_rejecting_the_handshake_is_used_without_it(way: str) -> None:
    async with lab({"bad": bare(way)}) as bench:
        calls = [bench.start("bad.counter") for _ in range(20)]
        for call in calls:
            (await call).expect(None)
        await works(bench)
        requests = (await bench.hub.call_tool("bad.stats")).data["requests"]
        assert set(requests) == {"server/discover", "initialize", "tools/list", "tools/call"}  # and no notification
        assert bench.hub.status()["bad"].restarts == 0


@pytest.mark.fault("E2")
async def test_server_ignoring_the_handshake_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(negotiation, "DISCOVER_GRACE_S", 0.5)
    async with lab({"bad": fake_server("ignores_unknown", era="bare")}) as bench:
        await works(bench)
        monkeypatch.setattr(negotiation, "DISCOVER_GRACE_S", 100.0)  # a second search would not end in time
        pid = bench.pid("bad")
        bench.hub.restart_server("bad")
        await bench.until(lambda: bench.hub.status()["bad"].pid not in (None, pid), 15)
        await works(bench)


@pytest.mark.fault("E2")
async def test_slow_start_is_not_mistaken_for_missing_handshake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All questions have been asked when it begins to read; it answers them in turn."""
    monkeypatch.setattr(negotiation, "DISCOVER_GRACE_S", 0.2)
    for era in ("legacy", "modern"):
        async with lab({"bad": fake_server("slow_start=1", era=era)}) as bench:
            (await bench.call("bad.counter", timeout=15)).expect(None)
            assert bench.hub.status()["bad"].era == era


@pytest.mark.fault("E3")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_server_gaining_a_handshake_is_initialized_with_it(era: str, tmp_path: Path) -> None:
    async with lab({"bad": next_time(tmp_path, "bare", era)}) as bench:
        await works(bench)
        (await bench.call("bad.crash", {"code": 1})).expect(OutcomeUnknown, "unknown")
        (await bench.call("bad.counter", timeout=15)).expect(None)
        assert bench.hub.status()["bad"].era == era


def next_time(folder: Path, first: str, then: str) -> Server:
    """A fake process that speaks another era in its second life."""
    before, after = (shlex.join([entry["command"], *entry["args"]]) for entry in map(_of_era, (first, then)))
    script = f'mkdir {folder / "flag"} 2>/dev/null && exec {before} "$@"; exec {after} "$@"'
    return Server(command="/bin/sh", args=("-c", script, "stdio_main.py"))


def _of_era(era: str) -> dict[str, Any]:
    return fake_server(era=era)


# -- calls -------------------------------------------------------------------------------------------------------------


@pytest.mark.fault("E4")
async def test_unsafe_call_is_unknown_when_bare_server_exits() -> None:
    async with lab({"bad": fake_server("exit_mid_call", era="bare")}) as bench:
        lost = (await bench.call("bad.bad", {"effect": True})).expect(OutcomeUnknown, "unknown")
        assert bench.happened(lost) == 1
        await works(bench)
        assert bench.hub.status()["bad"].restarts == 1


@pytest.mark.fault("E4")
async def test_read_is_repeated_when_bare_server_exits(tmp_path: Path) -> None:
    async with lab({"bad": first_time(tmp_path, "exit_mid_call", era="bare")}) as bench:
        done = (await bench.call("bad.bad_read", {"effect": True}, timeout=15)).expect(None)
        assert bench.happened(done) == 2
        await works(bench)


@pytest.mark.fault("E4")
async def test_unsafe_call_is_unknown_when_bare_connection_is_lost() -> None:
    async with lab({"bad": FakeHttp(era="bare", modes=["reset_before_response"])}) as bench:
        lost = (await bench.call("bad.bad", {"effect": True})).expect(OutcomeUnknown, "unknown")
        assert bench.happened(lost) == 1
        await works(bench)


@pytest.mark.fault("E5")
async def test_text_between_bare_answers_is_ignored() -> None:
    async with lab({"bad": fake_server("garbage", era="bare")}) as bench:
        for _ in range(3):
            (await bench.call("bad.bad", {"effect": True})).expect(None)
        (await bench.call("bad.bad", {"mode": "bad_utf8=stray", "effect": True})).expect(None)
        assert bench.hub.status()["bad"].restarts == 0
        assert bench.link("bad").invalid_lines > 0


@pytest.mark.fault("E5")
async def test_spoiled_bare_answer_fails_only_its_own_call() -> None:
    async with lab({"bad": fake_server(era="bare")}) as bench:
        for mode in ("nul", "truncated", "deep=10000", "duplicate_keys", "nan", "both_result_and_error"):
            beside = bench.start("bad.sleep", {"seconds": 0.1})
            spoiled = (await bench.call("bad.bad", {"mode": mode, "effect": True})).expect(ProtocolError, "unknown")
            assert spoiled.seconds < within(1) and bench.happened(spoiled) == 1
            (await beside).expect(None)
            (await bench.call("bad.bad", {"effect": True})).expect(None)
        assert bench.hub.status()["bad"].restarts == 0


@WAYS
@pytest.mark.fault("E6")
async def test_slow_bare_call_is_unknown_and_late_answer_is_dropped(way: str) -> None:
    async with lab({"bad": bare(way)}) as bench:
        slow = await bench.call("bad.counter", {"seconds": 1}, timeout=0.5)
        slow.expect(CallTimeout, "unknown")
        await works(bench)
        if way == "stdio":  # no cancellation was sent, so it answers
            await bench.until(lambda: bench.link("bad").unmatched_responses == 1, 10)
        requests = (await bench.hub.call_tool("bad.stats")).data["requests"]
        assert not any(method.startswith("notifications/") for method in requests)
        assert bench.hub.status()["bad"].restarts == 0


@pytest.mark.fault("E6")
async def test_frozen_bare_server_is_detected_by_its_tool_list() -> None:
    health = HealthCheck(interval=0.3, timeout=0.5, failure_threshold=2)
    async with lab({"bad": server("sigstop", era="bare", health=health)}) as bench:
        await bench.until(lambda: bench.hub.status()["bad"].state == "ready", 15)
        # Ended by its own timeout, or earlier by the health check.
        ended = await bench.call("bad.bad", {"effect": True}, timeout=1)
        assert (type(ended.error) in (CallTimeout, OutcomeUnknown), ended.executed) == (True, "unknown")
        await bench.until(lambda: bench.hub.status()["bad"].restarts == 1, 20)
        await works(bench)


@WAYS
@pytest.mark.fault("E7")
async def test_bare_answer_with_wrong_id_is_dropped(way: str) -> None:
    fault, error = ("wrong_id", CallTimeout) if way == "stdio" else ("id_of_other", ProtocolError)
    async with lab({"bad": bare(way, fault)}) as bench:
        (await bench.call("bad.bad", {"effect": True}, timeout=1)).expect(error, "unknown")
        await works(bench)
        if way == "stdio":
            assert bench.link("bad").unmatched_responses == 1


@WAYS
@pytest.mark.fault("E8")
async def test_bare_server_may_return_any_json_value(way: str) -> None:
    async with lab({"bad": bare(way)}) as bench:
        for value, text in (("", '["done"]'), ("null", "null"), ("text", '"done"')):
            mode = f"result_not_object={value}"
            done = await bench.call("bad.bad", {"mode": mode, "effect": True}, echoes=False)
            assert done.expect(None).text == text
        await works(bench)


@pytest.mark.fault("E8")
async def test_bare_tool_error_is_passed_on_unchanged() -> None:
    async with lab({"bad": Served(FakeHttp(era="bare")), "pipe": fake_server(era="bare")}) as bench:
        for name in ("bad", "pipe"):
            failed = (await bench.call(f"{name}.fail", {"text": "as asked"})).expect(ProtocolError, "unknown")
            assert failed.error is not None and failed.error.detail == "Internal error: as asked"
        await works(bench)
