"""Connections that are reset, closed between calls, or silently lost."""

from __future__ import annotations

import asyncio
import random
import socket
from itertools import product

import pytest

from tests.faults.fault_lab import ERAS, WAYS, lab
from tests.faults.matrix.http.network_namespace import far_away
from tests.faults.matrix.http.web_servers import behind_proxy, often, web
from tests.timing import within
from toolway import CallTimeout, OutcomeUnknown, Server, ServerUnavailable, Timeout
from toolway.http import dialer
from toolway.network import NetworkPolicy
from toolway.testing import Fault, Flow
from toolway.upstream.transports import streamable_http as http_link

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("era", "answer"), [*product(("modern", "legacy"), ("json", "sse")), ("sse", "sse")])
@pytest.mark.fault("B4")
async def test_one_reset_among_fifty_calls_fails_one_call(era: str, answer: str) -> None:
    async with lab({"bad": web(era, answer=answer)}) as bench:
        work = [bench.start("bad.sleep", {"seconds": 0.2}) for _ in range(48)]
        lost = bench.start("bad.bad", {"mode": "reset_before_response", "effect": True})
        read = bench.start("bad.bad_read", {"mode": "reset_before_response", "effect": True})
        for call in work:
            (await call).expect(None)
        (await lost).expect(OutcomeUnknown, "unknown")
        assert bench.happened(await lost) == 1
        (await read).expect(OutcomeUnknown, "unknown")
        assert bench.happened(await read) == 3


@WAYS
@pytest.mark.fault("B4")
async def test_read_is_repeated_after_reset(era: str) -> None:
    fake = web(era, modes=["reset_before_response;on=bad_read;times=2"])
    async with lab({"bad": fake}) as bench:
        read = (await bench.call("bad.bad_read", {"effect": True})).expect(None)
        assert (read.reply and read.reply.attempts, bench.happened(read)) == (3, 3)


@WAYS
@pytest.mark.fault("B4")
async def test_reset_at_any_byte_leaves_at_most_one_effect(era: str, dice: random.Random) -> None:
    async with behind_proxy(era) as (fake, proxy), lab({"bad": often(proxy.url_for(fake.endpoint.path))}) as bench:
        fake.server.effects_path = str(bench.effects)
        proxy.set_faults(lambda number: _reset_somewhere(dice) if number % 2 else Fault())
        for _ in range(12):
            await proxy.cut_connections()
            await asyncio.sleep(0.02)
            calls = [bench.start("bad.counter") for _ in range(3)]
            for each in calls:
                call = await each
                if isinstance(call.error, ServerUnavailable) and (era == "sse" or call.error.code == "E-BREAKER-OPEN"):
                    assert (call.executed, bench.happened(call)) == ("no", 0)  # after many resets in a row
                elif not call.ok:
                    call.expect(OutcomeUnknown, "unknown")
        proxy.set_faults([])
        assert {bench.happened(call) for call in bench.calls} <= {0, 1}


def _reset_somewhere(dice: random.Random) -> Fault:
    flow = Flow(cut_at=dice.randrange(700), reset=dice.random() < 0.5)
    return Fault(up=flow) if dice.random() < 0.5 else Fault(down=flow)


@WAYS
@pytest.mark.fault("B5")
async def test_connection_closed_between_calls_is_not_reused(era: str) -> None:
    async with behind_proxy(era) as (fake, proxy), lab({"bad": often(proxy.url_for(fake.endpoint.path))}) as bench:
        fake.server.effects_path = str(bench.effects)
        for _ in range(10):
            (await bench.call("bad.counter", max_attempts=1)).expect(None)
            await proxy.cut_connections(reset=False)
            await asyncio.sleep(0.02)  # the close is seen; what is sent before it is seen is lost, see below


@WAYS
@pytest.mark.fault("B5")
async def test_call_on_a_closing_connection_is_not_sent_twice(era: str, dice: random.Random) -> None:
    """Closed by the server at the moment of the call: the outcome cannot be known, so it is unknown."""
    async with behind_proxy(era) as (fake, proxy), lab({"bad": often(proxy.url_for(fake.endpoint.path))}) as bench:
        fake.server.effects_path = str(bench.effects)
        for _ in range(20):
            call = bench.start("bad.counter")
            await asyncio.sleep(dice.random() * 0.003)
            await proxy.cut_connections(reset=dice.random() < 0.5)
            if not (await call).ok:
                (await call).expect(OutcomeUnknown, "unknown")
            (await bench.call("bad.echo")).expect(None)
            (await bench.call("bad.echo")).expect(None)


@ERAS
@pytest.mark.fault("B5", "B6")
async def test_connection_idle_over_the_limit_carries_no_call(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert http_link.NEW_CONNECTION_MAX_IDLE_S <= 2.0
    monkeypatch.setattr(http_link, "NEW_CONNECTION_MAX_IDLE_S", 0.2)
    async with behind_proxy(era) as (fake, proxy), lab({"bad": often(proxy.url_for(fake.endpoint.path))}) as bench:
        fake.server.effects_path = str(bench.effects)
        (await bench.call("bad.counter")).expect(None)
        await asyncio.sleep(0.3)
        proxy.freeze()  # the kept connections lead nowhere, without any notice
        for tool in ("counter", "echo"):
            assert (await bench.call(f"bad.{tool}", timeout=5)).expect(None).seconds < within(2)
        await proxy.cut_connections()


@ERAS
@pytest.mark.fault("B6")
async def test_silent_peer_fails_its_call_at_the_deadline(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_link, "NEW_CONNECTION_MAX_IDLE_S", 0.2)
    async with behind_proxy(era) as (fake, proxy), lab({"bad": often(proxy.url_for(fake.endpoint.path))}) as bench:
        fake.server.effects_path = str(bench.effects)
        call = bench.start("bad.sleep", {"seconds": 0.3}, timeout=1)
        await asyncio.sleep(0.1)
        proxy.freeze()
        outcome = (await call).expect(CallTimeout, "unknown")
        assert outcome.seconds < within(2)
        (await bench.call("bad.counter")).expect(None)
        await proxy.cut_connections()


@pytest.mark.fault("B6")
def test_vanished_peer_is_detected_within_a_minute() -> None:
    limits = {name: value for name, value in dialer._KEEPALIVE_OPTIONS if hasattr(socket, name)}
    assert limits["TCP_KEEPIDLE"] + limits["TCP_KEEPINTVL"] * limits["TCP_KEEPCNT"] <= 60
    assert dialer._USER_TIMEOUT[1] <= 60_000


@WAYS
@pytest.mark.fault("B6")
async def test_vanished_network_is_detected_and_recovers(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with the limits in seconds instead of tens of them, and a real host behind a cable that is pulled."""
    short = tuple((name, 1 if name != "TCP_KEEPCNT" else 2) for name, _ in dialer._KEEPALIVE_OPTIONS)
    monkeypatch.setattr(dialer, "_KEEPALIVE_OPTIONS", short)
    monkeypatch.setattr(dialer, "_USER_TIMEOUT", ("TCP_USER_TIMEOUT", 2000))
    timeout = Timeout(total=60, connect=1)
    there = NetworkPolicy(allow=("198.18.0.0/15",))
    async with (
        far_away(era) as host,
        lab({"bad": Server(url=host.url, timeout=timeout, network_policy=there)}) as bench,
    ):
        (await bench.call("bad.echo")).expect(None)
        call = bench.start("bad.bad", {"mode": "never"})
        await asyncio.sleep(0.2)
        host.pull_the_cable()
        assert (await call).expect(OutcomeUnknown, "unknown").seconds < within(8)
        host.plug_it_in()
        await bench.until(lambda: bench.hub.status()["bad"].state == "ready", 15)
        (await bench.call("bad.echo")).expect(None)
