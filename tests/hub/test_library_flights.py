"""Calls of a program without a chain of coroutines: results, failures, cancellation, and what they leave behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from toolway import CallError, Hub, OutcomeUnknown, Overloaded
from toolway.hub.plan import SWITCH
from toolway.testing import fake_server
from toolway.upstream.session import Session

pytestmark = pytest.mark.anyio


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def executed(effects: Path, nonce: str) -> int:
    return sum(nonce in line for line in effects.read_text().splitlines()) if effects.exists() else 0


def is_settled(hub: Hub) -> bool:
    limiter = hub._core.servers.upstreams.limiters.get("s")
    assert limiter is not None
    return limiter.in_use == 0 and not hub._core._upstreams.upstreams["s"].is_busy and not len(hub._core.calls.flights)


@pytest.mark.fast_path
async def test_fast_path_calls_return_results_and_errors(tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    async with Hub({"s": fake_server(era="modern", effects=str(effects))}) as hub:
        await hub.wait_ready()
        flights = hub._core.calls.flights
        results = await asyncio.gather(*(hub.call_tool("s.add", {"a": n, "b": 1}) for n in range(50)))
        assert [float(result.text) for result in results] == [n + 1 for n in range(50)]
        assert (flights.landed, flights.taken_over, results[0].attempts) == (50, 0, 1)
        assert (await hub.call_tool("s.fail", {"text": "x"}, raise_on_error=False)).is_error

        long = await hub.call_tool("s.counter", {"call": "c", "seconds": 2.5, "nonce": "long"})
        assert (flights.taken_over, executed(effects, "long"), long.attempts) == (1, 1, 1)
        assert long.duration > 2

        before = flights.landed
        with pytest.raises(CallError) as wrong:
            await hub.call_tool("s.add", {"a": "x", "b": 1})
        await hub.call_tool("s.add", {"a": 1, "b": 1}, timeout=2)
        assert (wrong.value.executed, flights.landed) == ("no", before)
        await until(lambda: is_settled(hub))


@pytest.mark.fast_path
async def test_cancelled_call_is_cancelled_at_server_and_frees_slot(tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    async with Hub({"s": fake_server(era="modern", effects=str(effects))}) as hub:
        await hub.wait_ready()
        for seconds in (0.0, 1.5):  # in flight, and after the pipeline took over
            nonce = f"left-{seconds}"
            taken = hub._core.calls.flights.taken_over
            call = asyncio.create_task(hub.call_tool("s.counter", {"call": "c", "seconds": 60, "nonce": nonce}))
            await until(lambda nonce=nonce: executed(effects, nonce) == 1)  # type: ignore[misc]  # bound at once
            if seconds:
                await until(lambda taken=taken: hub._core.calls.flights.taken_over > taken)  # type: ignore[misc]
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await until(lambda: is_settled(hub))
            assert executed(effects, nonce) == 1


async def test_restarted_server_leaves_unknown_outcome(tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    async with Hub({"s": fake_server(era="modern", effects=str(effects))}) as hub:
        await hub.wait_ready()
        call = asyncio.create_task(hub.call_tool("s.counter", {"call": "c", "seconds": 60, "nonce": "dies"}))
        await until(lambda: executed(effects, "dies") == 1)
        hub._core.servers.restart("s")
        with pytest.raises(OutcomeUnknown):
            await call
        assert executed(effects, "dies") == 1
        await until(lambda: is_settled(hub))


@pytest.mark.fast_path
async def test_rate_limit_counts_fast_path_and_other_calls() -> None:
    limits = {"rateLimit": "6/h", "tools": {"counter": {"rateLimit": "2/h"}}}
    async with Hub({"s": {**fake_server(era="modern"), **limits}}) as hub:
        await hub.wait_ready()
        flights = hub._core.calls.flights
        for timeout in (None, 2.0):  # a flight, and a call of the pipeline
            await hub.call_tool("s.counter", {"nonce": "x"}, timeout=timeout)
        with pytest.raises(Overloaded, match=r"rate limit for s\.counter") as refused:
            await hub.call_tool("s.counter", {"nonce": "x"})
        assert (refused.value.executed, flights.landed) == ("no", 1)
        for _ in range(4):
            await hub.call_tool("s.add", {"a": 1, "b": 1})
        with pytest.raises(Overloaded, match="rate limit for s is used up"):
            await hub.call_tool("s.add", {"a": 1, "b": 1})
        assert flights.landed == 5
        await until(lambda: is_settled(hub))


async def test_failed_fast_path_does_not_use_rate_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Hub({"s": {**fake_server(era="modern"), "rateLimit": "1/h"}}) as hub:
        await hub.wait_ready()
        monkeypatch.setattr(Session, "start", lambda *_, **__: None)  # as if the call had to wait
        assert float((await hub.call_tool("s.add", {"a": 1, "b": 1})).text) == 2
        assert hub._core.calls.flights.landed == 0


async def test_fast_path_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "off")
    async with Hub({"s": fake_server(era="modern")}) as hub:
        await hub.wait_ready()
        assert float((await hub.call_tool("s.add", {"a": 1, "b": 1})).text) == 2
        assert hub._core.calls.flights.landed == 0
