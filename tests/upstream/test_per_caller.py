"""Links of one caller alone: when there are such, how many, and for how long."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.bridge_lab import Json, Lab, Raw, full, lab, made, pipe_entry, until
from toolway.config.server_entry import parse_entry
from toolway.errors import Overloaded
from toolway.gateway.principals import FileApiKeyStore
from toolway.upstream import per_caller
from toolway.upstream.per_caller import PerCallerUpstreams

pytestmark = pytest.mark.anyio


async def pid(raw: Raw) -> int:
    found: int = (await raw.call("declared", capabilities={})).result["structuredContent"]["pid"]
    return found


async def pids(found: Lab, *tokens: str | None) -> list[int]:
    seen = []
    for token in tokens:
        async with found.raw(token=token) as raw:
            seen.append(await pid(raw))
    return seen


@pytest.fixture
def keyring(tmp_path: Path) -> FileApiKeyStore:
    return FileApiKeyStore(tmp_path / "keys.json", "tw_owner")


@pytest.mark.parametrize(
    ("era", "more", "processes"),
    [("legacy", {}, 2), ("legacy", {"shareConnection": True}, 1), ("modern", {}, 1)],
    ids=["legacy", "shared", "modern"],
)
@pytest.mark.attack("held-31")
async def test_each_key_has_its_own_process_on_legacy_stdio(
    era: str, more: Json, processes: int, keyring: FileApiKeyStore
) -> None:
    one, two = made(keyring, "one"), made(keyring, "two")
    async with lab({"full": pipe_entry(era, **more)}, keyring=keyring) as found:
        first, second, again, owner = await pids(found, one, two, one, "tw_owner")
        assert len({first, second}) == processes and again == first
        assert (owner in (first, second)) == (processes == 1)


@pytest.mark.attack("held-31")
async def test_each_key_has_its_own_session_over_http(keyring: FileApiKeyStore) -> None:
    one, two = made(keyring, "one"), made(keyring, "two")
    async with full("legacy", "http", keyring=keyring) as found:
        await pids(found, one, two, one)
        assert len(found.fakes["full"].sessions) == 3  # one of the hub itself
        async with found.raw(token=one) as raw, found.raw(token=two) as other:
            body, fields = raw.modern(
                "subscriptions/listen", {"notifications": {"resourceSubscriptions": ["fake://text"]}}
            )
            async with raw.http.stream("POST", raw.url, json=body, headers=fields) as response:
                lines = response.aiter_lines()
                assert "acknowledged" in await _data(lines)
                watching = [peer for peer, uris in found.fakes["full"].server.watched.items() if uris]
                assert len(watching) == 1  # told on the caller's own link, so he hears what happens there
                await other.call("touch", {"uri": "fake://text"}, capabilities={})
                assert "notifications/resources/updated" in await _data(lines)


async def _data(lines: Any) -> str:
    async with asyncio.timeout(15):
        async for line in lines:
            if line.startswith("data:"):
                return str(line)
    raise AssertionError("the stream has ended")


async def test_idle_process_is_stopped(keyring: FileApiKeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(per_caller, "PER_CALLER_IDLE_TIMEOUT_S", 0.3)
    token = made(keyring, "one")
    async with lab({"full": pipe_entry("legacy")}, keyring=keyring) as found:
        (first,) = await pids(found, token)
        await until(lambda: not Path(f"/proc/{first}").exists())
        (second,) = await pids(found, token)
        assert second != first


async def test_least_recently_used_upstream_is_evicted_at_limit() -> None:
    async with lab({"full": pipe_entry("legacy")}) as found:
        server = parse_entry(pipe_entry("legacy"))
        few = PerCallerUpstreams(found.hub._upstreams.context, max_upstreams=2)
        one, two = few.get_or_start("full", server, "one"), few.get_or_start("full", server, "two")
        try:
            assert few.get_or_start("full", server, "one") is one
            three = few.get_or_start("full", server, "three")
            assert few.get("full", "two") is None and few.get("full", "three") is three
            waiting = [asyncio.create_task(each.wait_ready()) for each in (one, three)]
            await asyncio.sleep(0)
            with pytest.raises(Overloaded):
                few.get_or_start("full", server, "four")  # those who wait for a start are not sent away
            await asyncio.gather(*waiting)
            assert few.get_or_start("full", server, "four") is not None
        finally:
            await asyncio.gather(*(each.stop() for each in few.remove()), two.stop())
            await few.wait_stopped()
