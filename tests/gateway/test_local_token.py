"""The token of the gateway's machine: from where it is accepted."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.gateway.admin.test_dashboard import halves, opened
from tests.gateway.edge_lab import TOKEN, Edge, edge, modern
from tests.http.raw_client import Answer, connected
from tests.parts.identity.issuer import AUDIENCE, Issuer, connect_login
from toolway.config.settings import parse_gateway
from toolway.errors import ConfigError
from toolway.events import AccessEvent, Event
from toolway.gateway.local_token import FORWARDING_HEADERS, FORWARDING_PREFIXES, LocalTokenRule
from toolway.http.exchange import THIS_MACHINE, HttpRequest
from toolway.parts.identity.settings import LoginSettings

pytestmark = pytest.mark.anyio


def find_address() -> str:
    """Return an address of this machine that is not a loopback address; "" if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("203.0.113.1", 9))  # sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return ""


ADDRESS = find_address()
#: A client with this address that connects to 127.0.0.1 is, for the gateway, one of another machine.
needs_address = pytest.mark.skipif(not ADDRESS, reason="this machine has only loopback addresses")


def asked_from(peer: str, headers: Mapping[str, str] | None = None) -> HttpRequest:
    return HttpRequest("POST", "/mcp", "", headers or {}, frozenset(), b"", peer)


async def call_from(found: Edge, address: str, token: str = TOKEN, **fields: str) -> Answer:
    """Call a tool from this address."""
    body, head = modern("tools/call", {"name": "a__echo", "arguments": {"text": "x"}})
    async with connected(found.port, local_addr=(address, 0)) as client:
        return await client.ask(found.request("POST", "/mcp", body, head | fields, token=token))


def test_public_gateway_accepts_local_token_locally_only() -> None:
    near = ("127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", THIS_MACHINE)
    far = (
        "192.0.2.7",
        "10.1.2.3",
        "2001:db8::1",
        "::ffff:192.0.2.7",
        "fe80::1%eth0",
        "",
        "127.0.0.1.example",
        "0.0.0.0",
    )
    for listens_on in ("0.0.0.0", "::", "192.0.2.2", "tools.example"):
        rule = LocalTokenRule(listens_on)
        assert all(rule.allows(asked_from(peer)) for peer in near)
        assert not any(rule.allows(asked_from(peer)) for peer in far)
    for listens_on in ("127.0.0.1", "localhost", "::1"):
        assert all(LocalTokenRule(listens_on).allows(asked_from(peer)) for peer in near)
    wider = LocalTokenRule("0.0.0.0", ("10.1.0.0/16", "2001:db8::/32"))
    assert [peer for peer in far if wider.allows(asked_from(peer))] == ["10.1.2.3", "2001:db8::1"]


def test_local_token_with_forwarding_headers_is_rejected() -> None:
    rules = (
        LocalTokenRule(),
        LocalTokenRule("127.0.0.1"),
        LocalTokenRule("::1"),
        LocalTokenRule("0.0.0.0"),
        LocalTokenRule("0.0.0.0", ("0.0.0.0/0",)),
    )
    families = {f"{prefix}anything" for prefix in FORWARDING_PREFIXES}
    for rule in rules:
        assert rule.allows(asked_from("127.0.0.1", {"user-agent": "x"}))
        for name in FORWARDING_HEADERS | families:
            for value in ("127.0.0.1", "for=127.0.0.1", ""):
                assert not rule.allows(asked_from("127.0.0.1", {name: value})), name


@needs_address
async def test_local_token_from_another_machine_is_rejected(tmp_path: Path) -> None:
    async with edge(tmp_path, host="0.0.0.0") as found:
        seen: list[Event] = []
        found.hub.instrumentation.add_sink(_Sink(seen))
        key = found.key()
        for _ in range(3):
            assert (await call_from(found, "127.0.0.1")).status == 200
        assert not any(isinstance(event, AccessEvent) and event.action == "rejected" for event in seen)
        for _ in range(3):  # a head that was accepted from one address is not known for another one
            assert (await call_from(found, "127.0.0.1")).status == 200
            denied = await call_from(found, ADDRESS)
            assert denied.status == 401 and b"not accepted from other machines" in denied.body
            assert "www-authenticate" in denied.headers
            assert (await call_from(found, ADDRESS, key)).status == 200
        assert (await call_from(found, "127.0.0.1", **{"X-Forwarded-For": "127.0.0.1"})).status == 401
        assert any(isinstance(event, AccessEvent) and event.action == "rejected" for event in seen)
        for path in ("/admin/servers", "/who", "/metrics"):
            async with connected(found.port, local_addr=(ADDRESS, 0)) as client:
                assert (await client.ask(found.request("GET", path))).status == 401
        assert found.calls("a") == 9


@needs_address
async def test_local_program_may_use_any_address_of_the_machine(tmp_path: Path) -> None:
    async with edge(tmp_path, host="0.0.0.0", hosts=[ADDRESS]) as found:
        body, head = modern("tools/list", {})
        async with connected(found.port, host=ADDRESS) as client:
            assert (await client.ask(found.request("POST", "/mcp", body, head))).status == 200


@needs_address
async def test_local_browser_session_from_another_machine_is_rejected(tmp_path: Path) -> None:
    async with edge(tmp_path, host="0.0.0.0") as found:
        cookie, page = await opened(found)
        fields = {"Cookie": cookie, "X-Toolway-Page": page}
        boss = halves(await found.ask("POST", "/dashboard/session", token=found.key(admin=True)))
        for address, status in (("127.0.0.1", 200), (ADDRESS, 401)):
            async with connected(found.port, local_addr=(address, 0)) as client:
                request = found.request("GET", "/admin/overview", fields=fields, token=None)
                assert (await client.ask(request)).status == status
        async with connected(found.port, local_addr=(ADDRESS, 0)) as client:
            own = {"Cookie": boss[0], "X-Toolway-Page": boss[1]}
            assert (await client.ask(found.request("GET", "/admin/overview", fields=own, token=None))).status == 200
            link = json.loads((await found.ask("POST", "/admin/dashboard-links")).body)["path"]
            code = {"X-Toolway-Code": link.rpartition("=")[2]}
            assert (
                await client.ask(found.request("POST", "/dashboard/session", fields=code, token=None))
            ).status == 403
            assert (await client.ask(found.request("POST", "/dashboard/session"))).status == 401


@needs_address
async def test_configured_networks_may_use_the_local_token(tmp_path: Path) -> None:
    async with edge(tmp_path, host="0.0.0.0", local_token_from=[ADDRESS]) as found:
        assert (await call_from(found, ADDRESS)).status == 200
        assert (await call_from(found, ADDRESS, Via="1.1 proxy")).status == 401


def test_loopback_gateway_accepts_local_token_for_loopback_host() -> None:
    near = ("localhost", "LOCALHOST:8765", "127.0.0.1:8765", "127.8.8.8", "[::1]", "[::1]:8765")
    far = ("tools.example", "tools.example:443", "192.0.2.7", "[2001:db8::1]:443", "localhost.example", "0.0.0.0", "")
    rule, wide = LocalTokenRule("127.0.0.1"), LocalTokenRule("0.0.0.0")
    assert all(rule.allows(asked_from("127.0.0.1", {"host": host})) for host in near)
    assert not any(rule.allows(asked_from("127.0.0.1", {"host": host})) for host in far)
    assert all(wide.allows(asked_from("127.0.0.1", {"host": host})) for host in (*near, *far)), "its peer decides"


async def test_gateway_with_login_rejects_local_token_through_a_proxy(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        issuer = Issuer()
        login = connect_login(found.gateway, LoginSettings(issuer=issuer.url, audience=AUDIENCE), {}, issuer.fetch)
        try:
            denied = await call_from(found, "127.0.0.1", **{"X-Forwarded-For": "192.0.2.7"})
            assert denied.status == 401 and "resource_metadata" in denied.headers["www-authenticate"]
            assert (await call_from(found, "127.0.0.1")).status == 200
            assert (await call_from(found, "127.0.0.1", found.key(), Via="1.1 proxy")).status == 200
        finally:
            await login.close()


def test_local_token_setting_accepts_networks_only() -> None:
    networks = ("10.1.0.0/16", "192.0.2.7", "2001:db8::/32")
    assert parse_gateway({"gateway": {"localTokenFrom": list(networks)}}, {}).local_token_from == networks
    for bad in ("tools.example", "10.1.0.1/16", "*", ""):
        with pytest.raises(ConfigError, match="localTokenFrom"):
            parse_gateway({"gateway": {"localTokenFrom": [bad]}}, {})
    with pytest.raises(ConfigError) as caught:
        parse_gateway({"gateway": {"localTokenFrom": ["10.0.0.1/8"]}}, {})
    assert caught.value.hint == 'use "10.0.0.0/8" for the network, or "10.0.0.1" for the address'


class _Sink:
    wants_attempts = wants_calls = False

    def __init__(self, seen: list[Event]) -> None:
        self.on_event = seen.append

    def on_call(self, event: object) -> None:
        pass
