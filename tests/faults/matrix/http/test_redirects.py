"""Redirects. We follow a few within the origin that keep the method, and no others."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tests.faults.fault_lab import WAYS, Served, lab
from tests.faults.matrix.http.web_servers import web
from tests.timing import within
from tests.upstream.raw_http import peer
from toolway import ProtocolError
from toolway.http import dialer
from toolway.network import ResolvedAddress

pytestmark = pytest.mark.anyio

SECRET = {"headers": {"Authorization": "Bearer canary"}}


@WAYS
@pytest.mark.fault("B20")
async def test_same_origin_redirect_is_followed_with_one_effect(era: str) -> None:
    fake = web(era)
    async with lab({"bad": fake}) as bench:
        for status in (307, 308):
            for to in ("", f"http://127.0.0.1:{fake.port}/else/moved"):
                fake.set_mode(f"redirect={status};on=counter;times=1" + (f";to={to}" if to else ""))
                outcome = (await bench.call("bad.counter", max_attempts=1)).expect(None)
                assert bench.happened(outcome) == 1


@WAYS
@pytest.mark.fault("B20")
async def test_method_changing_redirect_is_rejected_unexecuted(era: str) -> None:
    async with lab({"bad": web(era)}) as bench:
        for status in (300, 301, 302, 303, 304, 305):
            outcome = await bench.call("bad.bad", {"mode": f"redirect={status}"})
            outcome.expect(ProtocolError, "no")
            assert outcome.error is not None and outcome.error.attempts == 1
        (await bench.call("bad.echo")).expect(None)


@WAYS
@pytest.mark.fault("B20")
async def test_redirect_loop_ends(era: str) -> None:
    fake = web(era)
    async with lab({"bad": fake}) as bench:
        before = fake.stats.requests["tools/list"]
        outcome = (await bench.call("bad.bad", {"mode": "redirect=307", "to": "/mcp"})).expect(ProtocolError, "no")
        assert outcome.seconds < within(2)
        assert 1 <= fake.stats.requests["tools/call"] <= 4
        assert fake.stats.requests["tools/list"] == before


@WAYS
@pytest.mark.fault("B20")
async def test_cross_origin_redirect_opens_no_connection(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dialled: list[Any] = []
    open_ = dialer._connect_address

    async def watch(address: ResolvedAddress) -> socket.socket:
        dialled.append(address.sockaddr)
        return await open_(address)

    monkeypatch.setattr(dialer, "_connect_address", watch)

    async def never(conn: Any) -> None:
        raise AssertionError("the other origin was connected to")

    fake = web(era)
    async with peer(never) as other, lab({"bad": Served(fake, SECRET)}) as bench:
        places = (
            other.url,  # the same host, another port
            f"http://localhost:{fake.port}/mcp",  # the same server by another name
            f"https://127.0.0.1:{fake.port}/mcp",
            f"//127.0.0.1:{other.port}/mcp",
            "http://169.254.169.254/latest/meta-data/",
            "http://[::1]:1/",
            f"http://user:word@127.0.0.1:{fake.port}/mcp",
            "file:///etc/passwd",
            "gopher://127.0.0.1:1/",
            "http://0x7f.1/",
            "",
        )
        for to in places:
            mode = {"mode": "redirect=307", "to": to or "http:///"}
            (await bench.call("bad.bad", mode)).expect(ProtocolError, "no")
        (await bench.call("bad.echo")).expect(None)
        assert other.connections == 0
        assert set(dialled) == {("127.0.0.1", fake.port)}


@WAYS
@pytest.mark.fault("B20")
async def test_cross_origin_redirect_at_start_is_not_followed(era: str) -> None:
    async def never(conn: Any) -> None:
        raise AssertionError("the other origin was connected to")

    async with peer(never) as other:
        modes = [f"redirect=307;on=server/discover,initialize;to={other.url}"]
        async with lab({"bad": Served(web(era, modes=modes), SECRET)}) as bench:
            outcome = await bench.call("bad.counter", max_attempts=1)
            assert (outcome.executed, outcome.ok) == ("no", False)
            assert other.connections == 0
