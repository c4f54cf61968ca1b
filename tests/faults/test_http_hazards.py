"""An HTTP server that misbehaves: a failure affects only its own request, and is reported truthfully."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from tests.timing import within
from toolway import (
    AccessDenied,
    CallError,
    CallTimeout,
    Hub,
    Limits,
    OutcomeUnknown,
    Overloaded,
    ProtocolError,
    Server,
    ServerUnavailable,
)
from toolway.testing import FakeHttp
from toolway.upstream.transports import streamable_http as http_base

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Row:
    mode: str
    error: type[CallError] | None  # None: the call succeeds
    executed: str = "yes"
    within: float = 2.0
    timeout: float = 30.0
    retry_after: float | None = None


ROWS = [
    Row("reset_before_response", OutcomeUnknown, "unknown"),
    Row("close_before_response", OutcomeUnknown, "unknown"),
    Row("cut_body", OutcomeUnknown, "unknown"),
    Row("status=429;retry_after=60", Overloaded, "no", retry_after=60, timeout=30),
    Row("status=503;retry_after=60", Overloaded, "no", retry_after=60, timeout=30),
    Row("status=503", OutcomeUnknown, "unknown"),
    Row("status=500", OutcomeUnknown, "unknown"),
    Row("status=502", OutcomeUnknown, "unknown"),
    Row("status=401", AccessDenied, "no"),
    Row("status=403", AccessDenied, "no"),
    Row("status=413", ProtocolError, "no"),
    Row("id_of_other", ProtocolError, "unknown"),
    Row("html", ProtocolError, "unknown"),
    Row("empty_202", ProtocolError, "unknown"),
    Row("no_content", ProtocolError, "unknown"),
    Row("chunk_error", ProtocolError, "unknown"),
    Row("wrong_length=10", OutcomeUnknown, "unknown", within=15, timeout=20),
    Row("cl_and_te", ProtocolError, "unknown"),
    Row("never", CallTimeout, "unknown", timeout=0.5),
    Row("slow_body=0.1", OutcomeUnknown, "unknown", within=4, timeout=20),
    Row("slow_head=0.1", OutcomeUnknown, "unknown", within=4, timeout=20),
    Row("gzip", ProtocolError, "unknown"),
    Row("gzip_bomb", ProtocolError, "unknown", within=5),
    Row("body_mb=10", ProtocolError, "unknown", within=5),
    Row("body_mb=1", None, within=5),
    Row("cut_sse=before", OutcomeUnknown, "unknown"),
    Row("cut_sse=between", OutcomeUnknown, "unknown"),
    Row("cut_sse=inside", OutcomeUnknown, "unknown"),
    Row("sse_event_mb=10", ProtocolError, "unknown", within=5),
    Row("progress_flood=10000", None, within=5),
    Row("bad_utf8", ProtocolError, "unknown"),
    Row("bom", ProtocolError, "unknown"),
    Row("deep", ProtocolError, "unknown"),
    Row("duplicate_keys", ProtocolError, "unknown"),
    Row("huge_number", ProtocolError, "unknown"),
    Row("redirect=307", None),
    Row("redirect=302", ProtocolError, "no"),
    Row("redirect=307;to=http://127.0.0.1:1/elsewhere", ProtocolError, "no"),
    Row("close_after_response", None),
]


@pytest.fixture(autouse=True)
def _shorter_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules for slow heads and bodies, in one second instead of ten."""
    limits = http_base.client_limits_for
    monkeypatch.setattr(
        http_base,
        "client_limits_for",
        lambda server: msgspec.structs.replace(limits(server), head_timeout=1.0, min_rate_window=1.0),
    )


async def calls(hub: Hub, server: str, stop: asyncio.Event) -> int:
    count = 0
    while not stop.is_set():
        nonce = f"{server}-{count}"
        assert (await hub.call_tool(f"{server}.echo", {"text": nonce})).text == nonce
        count += 1
        await asyncio.sleep(0.02)
    return count


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.mode)
@pytest.mark.attack("held-58")
async def test_bad_http_answer_fails_only_its_own_call(row: Row, era: str) -> None:
    async with FakeHttp(era=era) as fake, FakeHttp() as good, Hub({"bad": fake.url, "good": good.url}) as hub:
        await hub.wait_ready()
        stop = asyncio.Event()
        # A server that asks for a pause is given it, so only another one is a neighbour then.
        neighbour = "good" if row.retry_after else "bad"
        neighbours = [asyncio.create_task(calls(hub, neighbour, stop)) for _ in range(5)]
        slow = asyncio.create_task(hub.call_tool("bad.sleep", {"seconds": 0.3, "nonce": "slow"}))
        await asyncio.sleep(0.05)
        name, *options = row.mode.split(";")
        began = time.monotonic()
        error: CallError | None = None
        try:
            arguments: dict[str, Any] = {"mode": name, **dict(option.split("=", 1) for option in options)}
            await hub.call_tool("bad.bad", arguments, timeout=row.timeout)
        except CallError as exc:
            error = exc
        took = time.monotonic() - began
        stop.set()
        assert all(count > 0 for count in await asyncio.gather(*neighbours))
        assert (await slow).data["nonce"] == "slow"
        if row.error is None:
            assert error is None, error
        else:
            assert type(error) is row.error, error
            assert error.executed == row.executed
            assert error.retry_after == row.retry_after
        assert took < within(row.within)
        assert (await hub.call_tool(f"{neighbour}.echo", {"text": "after"})).text == "after"
        assert hub.status()["bad"].state == "ready"


@pytest.mark.parametrize("answer", ["json", "sse"])
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_one_reset_among_fifty_parallel_calls_fails_one_call(era: str, answer: str) -> None:
    async with FakeHttp(era=era, answer=answer) as fake, Hub({"s": fake.url}, catalog_storage=None) as hub:
        await hub.wait_ready()
        work = [hub.call_tool("s.sleep", {"seconds": 0.2, "nonce": str(n)}) for n in range(49)]
        bad = hub.call_tool("s.bad", {"mode": "reset_before_response"})
        *replies, lost = await asyncio.gather(*work, bad, return_exceptions=True)
        assert isinstance(lost, OutcomeUnknown)
        assert [r.data["nonce"] for r in replies if not isinstance(r, BaseException)] == [str(n) for n in range(49)]


async def test_cut_stream_is_resumed_once_in_legacy_era_only() -> None:
    """The modern era has no resumption: nothing is asked again. The older one has, by the id of the last event."""
    for era in ("modern", "legacy"):
        async with FakeHttp(era=era) as fake, Hub({"s": fake.url}, catalog_storage=None) as hub:
            await hub.wait_ready()
            call = hub.call_tool("s.bad", {"mode": "cut_sse=between", "ids": "1"}, timeout=30)
            if era == "modern":
                with pytest.raises(OutcomeUnknown):
                    await call
                assert not fake.stats.resumes
            else:
                assert not (await call).is_error
                assert len(fake.stats.resumes) == 1


@pytest.mark.attack("held-58")
async def test_gzip_bomb_uses_little_memory() -> None:
    def rss_kb() -> int:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))

    for compression in (False, True):
        async with FakeHttp() as fake:
            server = Server(url=fake.url, limits=Limits(compression=compression))
            async with Hub({"bad": server}, catalog_storage=None) as hub:
                await hub.wait_ready()
                before = rss_kb()
                with pytest.raises(ProtocolError) as caught:
                    await hub.call_tool("bad.bad", {"mode": "gzip_bomb"}, timeout=20)
                assert caught.value.executed == "unknown"
                assert rss_kb() - before < 48 * 1024


async def test_gzip_is_decoded_when_compression_is_enabled() -> None:
    async with FakeHttp() as fake:
        server = Server(url=fake.url, limits=Limits(compression=True))
        async with Hub({"s": server}, catalog_storage=None) as hub:
            assert not (await hub.call_tool("s.bad", {"mode": "gzip"})).is_error


async def test_missing_server_fails_at_once() -> None:
    async with FakeHttp() as fake:
        url = fake.url
    async with Hub({"gone": url}, catalog_storage=None) as hub:
        began = time.monotonic()
        with pytest.raises(ServerUnavailable) as caught:
            await hub.call_tool("gone.echo")
        assert caught.value.executed == "no"
        assert time.monotonic() - began < within(2)


async def test_server_loss_and_return_are_both_noticed() -> None:
    async with FakeHttp() as fake, Hub({"s": fake.url}, catalog_storage=None) as hub:
        await hub.wait_ready()
        await fake.stop()
        with pytest.raises((ServerUnavailable, OutcomeUnknown)):
            await hub.call_tool("s.echo", {"text": "x"})
        async with asyncio.timeout(10):
            while hub.status()["s"].state == "ready":
                await asyncio.sleep(0.05)
        await fake.start()
        async with asyncio.timeout(10):
            while hub.status()["s"].state != "ready":
                await asyncio.sleep(0.05)
        assert (await hub.call_tool("s.echo", {"text": "back"})).text == "back"


async def test_restarted_modern_server_answers_at_once() -> None:
    async with FakeHttp(era="modern") as fake, Hub({"s": fake.url}, catalog_storage=None) as hub:
        await hub.call_tool("s.echo", {"text": "x"})
        await fake.restart()
        replies = await asyncio.gather(*(hub.call_tool("s.echo", {"text": str(n)}) for n in range(50)))
        assert [reply.text for reply in replies] == [str(n) for n in range(50)]


@pytest.mark.parametrize("answer", ["json", "sse"])
async def test_restarted_legacy_server_is_initialized_once(answer: str) -> None:
    async with FakeHttp(era="legacy", answer=answer) as fake, Hub({"s": fake.url}, catalog_storage=None) as hub:
        await hub.call_tool("s.echo", {"text": "x"})
        before = fake.stats.initialize
        await fake.restart()
        replies = await asyncio.gather(*(hub.call_tool("s.echo", {"text": str(n)}) for n in range(50)))
        assert [reply.text for reply in replies] == [str(n) for n in range(50)]
        assert fake.stats.initialize == before + 1


async def test_temporary_503_does_not_select_the_legacy_era() -> None:
    async with (
        FakeHttp(era="both", modes=["discover_503_once"]) as fake,
        Hub({"s": fake.url}, catalog_storage=None) as hub,
    ):
        async with asyncio.timeout(10):
            while hub.status()["s"].state != "ready":
                await asyncio.sleep(0.02)
        assert hub.status()["s"].era == "modern"
        assert fake.stats.initialize == 0


@pytest.mark.parametrize("answer", ["json", "sse"])
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_main_features_work_over_http(era: str, answer: str) -> None:
    def elicit(server: str, params: dict[str, Any]) -> dict[str, Any]:
        return {"action": "accept", "content": {"name": f"for {server}"}}

    async with FakeHttp(era=era, answer=answer) as fake, Hub({"s": fake.url}, elicitation_callback=elicit) as hub:
        reply = await hub.call_tool("s.echo", {"text": "hello", "tag": "ü mirrored"})
        assert reply.text == "hello"
        assert hub.status()["s"].era == era
        seen: list[float] = []
        await hub.call_tool("s.progress", {"n": 4}, progress_callback=lambda p, t, m: seen.append(p))
        assert len(seen) == 4
        assert "for s" in (await hub.call_tool("s.elicit", {"rounds": 2})).text
        assert any(block["type"] == "video" for block in (await hub.call_tool("s.unknown_fields")).content)
        (tool,) = [t for t in await hub.list_tools(server="s") if t.name == "unknown_fields"]
        assert "x-vendor" in tool.raw
        assert len(await hub.list_resources(server="s")) == 2
        await asyncio.sleep(0.2)
        before = {tool.name for tool in hub.known_tools()}
        await hub.call_tool("s.change_tools")
        async with asyncio.timeout(30):
            while len({tool.name for tool in hub.known_tools()} - before) != 1:
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_cancelled_call_reaches_the_server(era: str) -> None:
    async with FakeHttp(era=era) as fake, Hub({"s": fake.url}, catalog_storage=None) as hub:
        await hub.wait_ready()
        call = asyncio.create_task(hub.call_tool("s.sleep", {"seconds": 30}))
        await asyncio.sleep(0.2)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        async with asyncio.timeout(30):
            while not fake.stats.cancelled:
                await asyncio.sleep(0.02)
        assert (await hub.call_tool("s.echo", {"text": "x"})).text == "x"


async def test_hanging_probe_falls_back_to_legacy_era() -> None:
    async with (
        FakeHttp(era="legacy", modes=["probe_hang"]) as fake,
        Hub({"s": fake.url}, catalog_storage=None) as hub,
    ):
        assert (await hub.call_tool("s.echo", {"text": "x"}, timeout=10)).text == "x"
        assert hub.status()["s"].era == "legacy"


async def test_pinned_era_is_not_probed() -> None:
    async with FakeHttp(era="both") as fake:
        async with Hub({"s": replace(Server(url=fake.url), era="legacy")}, catalog_storage=None) as hub:
            await hub.call_tool("s.echo", {"text": "x"})
            assert (hub.status()["s"].era, fake.stats.discover) == ("legacy", 0)
        async with Hub({"s": replace(Server(url=fake.url), era="modern")}, catalog_storage=None) as hub:
            await hub.call_tool("s.echo", {"text": "x"})
            assert (hub.status()["s"].era, fake.stats.initialize) == ("modern", 1)
