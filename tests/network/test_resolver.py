"""From a name to addresses that may be connected to."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.timing import within
from toolway import NetworkPolicy
from toolway.network import (
    PUBLIC_ONLY,
    AddressDenied,
    AddressError,
    NameNotFound,
    private_reason,
    resolve_host,
    resolver,
)

pytestmark = pytest.mark.anyio

OUTSIDE, OTHER, OUTSIDE_6 = "93.184.216.34", "1.1.1.1", "2606:4700::1111"


def names(*answers: str, allow: tuple[str, ...] = ()) -> NetworkPolicy:
    return NetworkPolicy(allow, lookup=lambda _: answers)


async def hosts(host: str, addresses: NetworkPolicy) -> list[str]:
    return [each.host for each in await resolve_host(host, 443, addresses)]


async def test_address_families_alternate() -> None:
    found = await resolve_host("docs.example", 443, names(OUTSIDE_6, "2606:4700::2", OUTSIDE, OUTSIDE))
    assert [each.host for each in found] == [OUTSIDE_6, OUTSIDE, "2606:4700::2"]
    assert found[0].sockaddr == (OUTSIDE_6, 443, 0, 0) and found[1].sockaddr == (OUTSIDE, 443)


async def test_forbidden_addresses_are_skipped() -> None:
    assert await hosts("docs.example", names("127.0.0.1", OUTSIDE, "10.0.0.1")) == [OUTSIDE]


async def test_denied_name_error_hints_at_allow_rule() -> None:
    with pytest.raises(AddressDenied) as caught:
        await resolve_host("jira.corp.example", 443, names("10.1.2.3", "10.1.2.4"))
    assert caught.value.code == "E-HTTP-ADDRESS"
    assert "jira.corp.example resolves to 10.1.2.3, which is a private address" in caught.value.reason
    assert '"toolway": {"addresses": {"allow": ["jira.corp.example"]}}' in caught.value.hint
    assert await hosts("jira.corp.example", names("10.1.2.3", allow=("jira.corp.example",))) == ["10.1.2.3"]


@pytest.mark.parametrize(
    "host", ["10.0.0.1", "127.1", "0x7f000001", "2130706433", "0177.0.0.1", "::1", "::ffff:10.0.0.1", "169.254.169.254"]
)
async def test_hint_for_denied_literal_address_works(host: str) -> None:
    """What the error says to allow is what must be allowed, and no name server is asked."""

    def never(_: str) -> Iterable[str]:
        raise AssertionError("asked")

    with pytest.raises(AddressDenied) as caught:
        await resolve_host(host, 80, replace(PUBLIC_ONLY, lookup=never))
    allow = caught.value.hint.partition('"allow": [')[2].partition("]}")[0]
    wanted = tuple(each.strip(' "') for each in allow.split(","))
    assert await resolve_host(host, 80, NetworkPolicy(wanted, lookup=never))


@pytest.mark.parametrize("answer", [(), ("not an address",)])
async def test_name_without_address_is_not_found(answer: tuple[str, ...]) -> None:
    with pytest.raises(NameNotFound) as caught:
        await resolve_host("nowhere.example", 443, names(*answer))
    assert caught.value.code == "E-HTTP-DNS" and "nowhere.example" in caught.value.reason


@pytest.mark.parametrize("failure", [socket.gaierror(socket.EAI_AGAIN, "try again"), OSError("no network"), OSError()])
async def test_resolver_failure_is_not_found(failure: OSError) -> None:
    def fail(_: str) -> Iterable[str]:
        raise failure

    with pytest.raises(NameNotFound):
        await resolve_host("docs.example", 443, NetworkPolicy(lookup=fail))


@given(st.text(max_size=300), st.lists(st.ip_addresses().map(str), max_size=4))
def test_any_host_is_resolved_or_rejected(host: str, answers: list[str]) -> None:
    try:
        found = asyncio.run(resolve_host(host, 443, names(*answers)))
    except AddressError:
        return
    assert found and all(private_reason(each.host) is None for each in found)


class Slow:
    """A resolver that answers only when released."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.release = threading.Event()

    def __call__(self, host: str) -> Iterable[str]:
        self.asked.append(host)
        self.release.wait(20)
        return [OUTSIDE]


@pytest.fixture
def slow() -> Any:
    found = Slow()
    yield found
    found.release.set()


async def test_hanging_resolver_times_out_with_one_thread(slow: Slow) -> None:
    addresses = NetworkPolicy(lookup=slow)
    began = time.monotonic()
    tries = (resolve_host("slow.example", 443, addresses, timeout=0.2) for _ in range(50))
    failures = await asyncio.gather(*tries, return_exceptions=True)
    assert time.monotonic() - began < within(2)
    assert {type(each) for each in failures} == {NameNotFound}
    assert slow.asked == ["slow.example"]
    slow.release.set()
    assert [each.host for each in await resolve_host("slow.example", 443, addresses)] == [OUTSIDE]


async def test_other_names_resolve_while_one_hangs(slow: Slow) -> None:
    waiting = asyncio.create_task(resolve_host("slow.example", 443, NetworkPolicy(lookup=slow)))
    await asyncio.sleep(0)
    assert await hosts("quick.example", names(OTHER)) == [OTHER]
    slow.release.set()
    assert len(await waiting) == 1


async def test_pending_lookups_are_limited(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "MAX_LOOKUPS", 3)
    addresses = NetworkPolicy(lookup=slow)
    waiting = [asyncio.create_task(resolve_host(f"{n}.example", 443, addresses)) for n in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(NameNotFound, match="too many pending lookups"):
        await resolve_host("one-more.example", 443, addresses)
    slow.release.set()
    await asyncio.gather(*waiting)
    assert await resolve_host("one-more.example", 443, addresses)


async def test_cancelled_lookup_continues_for_others(slow: Slow) -> None:
    addresses = NetworkPolicy(lookup=slow)
    leaving, staying = (asyncio.create_task(resolve_host("docs.example", 443, addresses)) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    slow.release.set()
    assert (await staying)[0].host == OUTSIDE
    assert slow.asked == ["docs.example"]
