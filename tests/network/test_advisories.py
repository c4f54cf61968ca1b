"""Advisories about addresses, each as the test that would have caught it here. The number is the row of the list of
advisories that the project keeps. The matrix has all of it at length; this is the core of each."""

from __future__ import annotations

import pytest

from tests.faults.fault_lab import until
from tests.network.network_lab import FORMS, HOME, PORT, Names, connects, names_of
from tests.network.test_url_matrix import FEW, PLAIN, REFUSED, SITE, Kind
from toolway import CallError, Hub, Server
from toolway.config.schema import HealthCheck
from toolway.network import private_reason
from toolway.testing import FakeHttp

pytestmark = pytest.mark.anyio

ROWS = (15, 16, 22, 23, 38, 42)


def test_every_address_advisory_has_a_test() -> None:
    marks = [mark for each in globals().values() for mark in getattr(each, "pytestmark", ())]
    assert {int(mark.args[0]) for mark in marks if mark.name == "advisory"} == set(ROWS)


@pytest.mark.parametrize("kind", [kind for name, kind in PLAIN.items() if name != "doctor"], ids=lambda k: k.__name__)
@pytest.mark.advisory("15")
async def test_no_server_kind_reaches_private_addresses(kind: Kind) -> None:
    """CVE-2026-79747: the URL of an upstream was not looked at, and what it answered was shown."""
    with connects() as made:
        ended = await kind(FEW, names_of(FEW).policy())
    assert made == [] and set(ended) == {REFUSED}


@pytest.mark.parametrize(
    "address", [each for form in ("NAT64", "6to4", "Teredo", "ISATAP", "mapped") for each in FORMS[form]]
)
@pytest.mark.advisory("16")
def test_embedded_private_address_is_rejected(address: str) -> None:
    """CVE-2026-79749."""
    assert private_reason(address)


@pytest.mark.advisory("22")
async def test_dns_rebinding_after_check_has_no_effect() -> None:
    """CVE-2026-53708."""
    names = Names({"evil.example": ["93.184.216.34", "127.0.0.2"]})
    server = Server(url=f"http://evil.example:{PORT}/mcp", network_policy=names.policy())
    with connects() as made:
        async with Hub({"evil": server}, catalog_storage=None, token_store=None) as hub:
            with pytest.raises(CallError):
                await hub.call_tool("evil.echo")
    assert set(made) == {("93.184.216.34", PORT)}


@pytest.mark.advisory("23")
async def test_redirect_to_private_address_is_not_followed() -> None:
    """GHSA-c7vv-9h9c-fvj4."""
    async with FakeHttp() as fake:
        url = f"http://{SITE}:{fake.port}/mcp"
        async with Hub(
            {"one": Server(url=url, network_policy=Names().policy())}, catalog_storage=None, token_store=None
        ) as hub:
            with connects() as made:
                for to in ("http://10.0.0.1/", "http://169.254.169.254/latest", f"http://127.0.0.2:{fake.port}/mcp"):
                    with pytest.raises(CallError) as caught:
                        await hub.call_tool("one.bad", {"mode": "redirect=307", "to": to})
                    assert caught.value.executed == "no"
            assert {address for address, _ in made} <= {HOME}


@pytest.mark.advisory("38")
async def test_health_check_redirect_is_not_followed() -> None:
    """GHSA-vc62-q48c-5cmw; its discovery of logins is in `test_moving.py`."""
    async with FakeHttp(era="legacy", modes=["redirect=307;on=ping;to=http://10.0.0.1/"]) as fake:
        health = HealthCheck(interval=0.1, timeout=30.0, failure_threshold=1)
        server = Server(url=f"http://{SITE}:{fake.port}/mcp", network_policy=Names().policy(), health=health)
        async with Hub({"one": server}, catalog_storage=None, token_store=None) as hub:
            await hub.wait_ready(timeout=20)
            with connects() as made:
                await until(lambda: fake.stats.requests.get("ping", 0) >= 2, 20)
            assert {address for address, _ in made} <= {HOME}


@pytest.mark.attack("held-36")
@pytest.mark.advisory("42")
async def test_public_name_with_private_address_is_rejected() -> None:
    """CVE-2026-31945."""
    names = Names({"rebound.example": ["10.0.0.1"]})
    server = Server(url=f"http://rebound.example:{PORT}/mcp", network_policy=names.policy())
    async with Hub({"one": server}, catalog_storage=None, token_store=None) as hub:
        with connects() as made, pytest.raises(CallError) as caught:
            await hub.call_tool("one.echo")
    assert caught.value.code == REFUSED and made == []
