"""A process that misbehaves: its own call ends in time with the right outcome, and other servers are unaffected.

One row each for everything that a transport shared by all calls gets wrong when a server misbehaves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from tests.timing import within
from toolway import CallError, CallTimeout, Hub, OutcomeUnknown, ProtocolError, ServerUnavailable
from toolway.testing import fake_server
from toolway.types import CallResult
from toolway.upstream.transports import message_stream

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Row:
    mode: str
    error: type[CallError] | None  # None: the call succeeds
    executed: str = "yes"
    within: float = 1.5  # seconds for the call
    link_lives: bool = True
    timeout: float = 30.0


ROWS = [
    Row("garbage", None),
    Row("bad_utf8=stray", None),
    Row("bad_utf8=inside", ProtocolError, "unknown"),
    Row("bom", ProtocolError, "unknown"),
    Row("nul", ProtocolError, "unknown"),
    Row("deep=100", ProtocolError, "unknown"),
    Row("deep=1000", ProtocolError, "unknown"),
    Row("deep=100000", ProtocolError, "unknown"),
    Row("duplicate_keys", ProtocolError, "unknown"),
    Row("nan", ProtocolError, "unknown"),
    Row("huge_number", ProtocolError, "unknown"),
    Row("huge_keys", ProtocolError, "unknown"),
    Row("truncated", ProtocolError, "unknown"),
    Row("result_not_object", ProtocolError, "unknown"),
    Row("both_result_and_error", ProtocolError, "unknown"),
    Row("no_newline_prefix", None),
    Row("foreign_id_type", ProtocolError, "unknown"),
    Row("twice", None),
    Row("unknown_id", None),
    Row("unknown_result_type", None),
    Row("never", CallTimeout, "unknown", timeout=0.5),
    Row("truncated=noid", CallTimeout, "unknown", timeout=0.5),
    Row("line_mb=1", None, within=3),
    Row("line_mb=10", ProtocolError, "unknown", within=5, timeout=10),
    Row("line_mb=50", ProtocolError, "unknown", within=15, timeout=20),
    Row("list_changed_flood=20000", None, within=5, timeout=10),
    Row("progress_flood=10000", None, within=5, timeout=10),
    Row("stderr_flood=64", None, within=10, timeout=20),
    Row("exit_mid_call=1", OutcomeUnknown, "unknown", link_lives=False),
    Row("exit_held_stdout", OutcomeUnknown, "unknown", link_lives=False),
    Row("closes_stdout", OutcomeUnknown, "unknown", link_lives=False),
]


@asynccontextmanager
async def bad_and_good(mode: str, era: str, **entry: Any) -> AsyncIterator[Hub]:
    async with Hub(
        {"bad": {**fake_server(mode, era=era), **entry}, "good": fake_server()}, catalog_storage=None
    ) as hub:
        await hub.wait_ready()
        yield hub


async def calls(hub: Hub, server: str, stop: asyncio.Event) -> int:
    """Calls to a neighbour, one after the other, until stopped; each must bring its own answer."""
    count = 0
    while not stop.is_set():
        nonce = f"{server}-{count}"
        assert (await hub.call_tool(f"{server}.echo", {"text": nonce})).text == nonce
        count += 1
        await asyncio.sleep(0.02)
    return count


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.mode)
@pytest.mark.attack("held-54", "held-55")
async def test_misbehaving_server_harms_only_its_own_call(row: Row, era: str) -> None:
    async with bad_and_good(row.mode, era) as hub:
        stop = asyncio.Event()
        neighbours = [asyncio.create_task(calls(hub, "good", stop))]
        if row.link_lives:
            neighbours.append(asyncio.create_task(calls(hub, "bad", stop)))
        await asyncio.sleep(0.02)
        began = time.monotonic()
        error: CallError | None = None
        try:
            await hub.call_tool("bad.bad", {"text": "x"}, timeout=row.timeout)
        except CallError as exc:
            error = exc
        took = time.monotonic() - began
        stop.set()
        assert all(count > 0 for count in await asyncio.gather(*neighbours))
        if row.error is None:
            assert error is None
        else:
            assert type(error) is row.error
            assert error.executed == row.executed
        assert took < within(row.within)
        # Whatever happened, the next call is answered, by this process or by the next one.
        assert (await hub.call_tool("bad.echo", {"text": "after"}, timeout=15)).text == "after"
        assert hub.status()["bad"].restarts == (0 if row.link_lives else 1)


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_answer_with_another_calls_id_is_dropped(era: str) -> None:
    """On one pipe a stolen id of a running call cannot be detected; with no other running call it is dropped."""
    async with bad_and_good("wrong_id", era) as hub:
        with pytest.raises(CallTimeout) as caught:
            await hub.call_tool("bad.bad", timeout=0.5)
        assert caught.value.executed == "unknown"
        assert (await hub.call_tool("bad.echo", {"text": "mine"})).text == "mine"


async def test_silent_server_fails_only_its_own_start() -> None:
    entry = {**fake_server("silent"), "startTimeout": "1s"}
    began = time.monotonic()
    async with Hub({"mute": entry, "good": fake_server()}, catalog_storage=None) as hub:
        assert (await hub.call_tool("good.echo", {"text": "x"})).text == "x"
        assert time.monotonic() - began < within(1)
        with pytest.raises(ServerUnavailable) as caught:
            await hub.call_tool("mute.echo", timeout=10)
        assert caught.value.code == "E-START-TIMEOUT"
        assert caught.value.executed == "no"
        assert time.monotonic() - began < within(8)


async def test_half_message_then_silence_restarts_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_stream, "MIN_MESSAGE_RATE", (10 * 1024, 0.3))
    async with bad_and_good("half_line", "both") as hub:
        with pytest.raises(ProtocolError) as caught:
            await hub.call_tool("bad.bad", timeout=10)
        assert caught.value.executed == "unknown"
        assert (await hub.call_tool("bad.echo", {"text": "new"}, timeout=15)).text == "new"


async def test_message_at_one_byte_a_second_fails_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_stream, "MIN_MESSAGE_RATE", (10 * 1024, 0.5))
    async with bad_and_good("one_byte_per_second=0.1", "both") as hub:
        began = time.monotonic()
        with pytest.raises(ProtocolError) as caught:
            await hub.call_tool("bad.bad", timeout=20)
        assert caught.value.executed == "unknown"
        assert time.monotonic() - began < within(3)


async def test_server_that_stops_reading_loses_only_its_own_link() -> None:
    entry = {**fake_server("stops_reading"), "limits": {"maxConcurrent": 100}}
    async with Hub({"bad": entry, "good": fake_server()}, catalog_storage=None, timeout=30) as hub:
        from dataclasses import replace

        server = hub._core.servers.entries["bad"]
        await hub.add_server(
            "bad", replace(server, timeout=msgspec.structs.replace(server.timeout, write=0.5)), replace=True
        )
        await hub.wait_ready()
        await hub.call_tool("bad.bad")
        began = time.monotonic()
        results = await asyncio.gather(
            *(hub.call_tool("bad.echo", {"text": "x" * 100_000}) for _ in range(3)), return_exceptions=True
        )
        # What had not left whole is sent to the next process; the rest may have happened.
        assert all(isinstance(r, OutcomeUnknown) or (isinstance(r, CallResult) and r.text) for r in results)
        assert any(isinstance(r, CallResult) for r in results)
        assert time.monotonic() - began < within(10)
        assert (await hub.call_tool("good.echo", {"text": "x"})).text == "x"
        assert (await hub.call_tool("bad.echo", {"text": "back"}, timeout=15)).text == "back"


async def test_server_that_closes_stdin_is_replaced() -> None:
    async with bad_and_good("closes_stdin", "both") as hub:
        await hub.call_tool("bad.bad")
        await asyncio.sleep(0.1)
        first = hub.status()["bad"].pid
        reply = await hub.call_tool("bad.echo", {"text": "next"}, timeout=15)
        assert reply.text == "next"
        assert hub.status()["bad"].pid != first


@pytest.mark.attack("held-55")
async def test_flood_of_list_changes_causes_one_list_per_second() -> None:
    async with bad_and_good("list_changed_flood=100000", "legacy") as hub:
        began = time.monotonic()
        await hub.call_tool("bad.bad", timeout=20)
        await asyncio.sleep(max(0.0, 3 - (time.monotonic() - began)))
        stats = await hub.call_tool("bad.stats")
        lists = stats.data["requests"]["tools/list"]
        assert lists <= 2 + (time.monotonic() - began)


async def test_unrequested_server_requests_are_rejected_or_ignored() -> None:
    for era in ("modern", "legacy"):
        async with bad_and_good("unasked_requests=0.3", era) as hub:
            reply = await hub.call_tool("bad.bad", timeout=30)
            assert "result" not in reply.text or "not supported" in reply.text


def rss_kb() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


@pytest.mark.attack("held-54")
async def test_endless_line_fails_its_call_and_then_the_link() -> None:
    async with bad_and_good("endless_line=300", "both") as hub:
        stop = asyncio.Event()
        neighbour = asyncio.create_task(calls(hub, "good", stop))
        before = rss_kb()
        with pytest.raises(ProtocolError) as caught:
            await hub.call_tool("bad.bad", timeout=20)
        assert caught.value.executed == "unknown"
        async with asyncio.timeout(15):
            while hub.status()["bad"].restarts == 0:
                await asyncio.sleep(0.05)
        assert rss_kb() - before < 32 * 1024
        assert (await hub.call_tool("bad.echo", {"text": "new"}, timeout=15)).text == "new"
        stop.set()
        assert await neighbour > 0


@pytest.mark.attack("held-54")
async def test_memory_stays_bounded_under_a_fifty_megabyte_line() -> None:
    async with bad_and_good("line_mb=50", "both") as hub:
        before = rss_kb()
        with pytest.raises(ProtocolError):
            await hub.call_tool("bad.bad", timeout=20)
        assert rss_kb() - before < 32 * 1024
