"""Unrequested notifications, progress, and requests from stdio servers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.faults.fault_lab import ERAS, Bench, lab, odd_server
from toolway.testing import fake_server

pytestmark = pytest.mark.anyio


@pytest.mark.alone
@pytest.mark.fault("A26")
async def test_flood_of_list_changes_causes_one_list_per_second() -> None:
    eras = ("modern", "legacy")
    async with lab({era: fake_server(era=era) for era in eras}) as bench:
        began = time.monotonic()
        before = [await lists(bench, era) for era in eras]
        for era in eras:
            flood = await bench.call(f"{era}.bad", {"mode": "list_changed_flood=100000", "effect": True}, timeout=30)
            flood.expect(None)
        await asyncio.sleep(2.2)
        for era, count in zip(eras, before, strict=True):
            assert 1 <= await lists(bench, era) - count <= 1 + (time.monotonic() - began)


async def lists(bench: Bench, server: str) -> int:
    """How often a server was asked for its tools."""
    reply = (await bench.call(f"{server}.stats")).expect(None).reply
    assert reply is not None
    count: int = reply.data["requests"]["tools/list"]
    return count


@ERAS
@pytest.mark.fault("A27")
async def test_progress_for_unknown_tokens_is_dropped(era: str) -> None:
    async with lab({"bad": fake_server("progress_flood=10000", era=era)}) as bench:
        heard: list[float] = []
        (
            await bench.call("bad.bad", {"effect": True}, progress_callback=lambda *report: heard.append(report[0]))
        ).expect(None)
        assert heard == []
        (await bench.call("bad.counter")).expect(None)


@ERAS
@pytest.mark.fault("A27")
async def test_progress_is_rate_limited_and_stops_with_its_call(era: str) -> None:
    """The server reports for every token it can guess. Tokens belong to a link, so it reaches only its own calls."""
    async with lab({"bad": odd_server("token_flood=20000", era=era)}) as bench:
        heard: dict[str, int] = {"other": 0, "over": 0}

        def counter(name: str) -> Any:
            def count(*_: object) -> None:
                heard[name] += 1

            return count

        (await bench.call("bad.echo", progress_callback=counter("over"))).expect(None)
        other = bench.start("bad.sleep", {"seconds": 2}, progress_callback=counter("other"))
        await asyncio.sleep(0.05)
        (await bench.call("bad.bad", {"effect": True}, timeout=20)).expect(None)
        assert heard["over"] == 0
        (await other).expect(None)
        end = dict(heard)
        await asyncio.sleep(0.2)
        assert heard == end
        assert 0 < heard["other"] <= 1000 + 100 * 4


@ERAS
@pytest.mark.fault("A28")
async def test_unrequested_server_requests_are_rejected_or_ignored(era: str) -> None:
    async with lab({"bad": fake_server("unasked_requests=0.3", era=era)}) as bench:
        reply = (await bench.call("bad.bad", {"effect": True})).expect(None).reply
        assert reply is not None
        replies = reply.data["replies"]
        assert replies.keys() == {"sampling/createMessage", "elicitation/create", "roots/list"}
        if era == "modern":
            assert set(replies.values()) == {None}
        else:
            assert [each["error"]["code"] for each in replies.values()] == [-32601] * 3
