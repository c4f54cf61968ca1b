"""Addresses that change: a resolver that answers otherwise a moment later, redirects at each hop, and servers that move
inside while they are used."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.fault_lab import until
from tests.network.network_lab import FORMS, HOME, PORT, Names, connects
from tests.network.test_url_matrix import QUICK, REFUSED, SITE, secured
from tests.upstream.raw_http import (
    EVENTS,
    Conn,
    Received,
    always,
    chunk,
    peer,
    reacting,
    response,
)
from toolway import CallError, Hub, NetworkPolicy, Server
from toolway.auth.encrypted_token_store import EncryptedTokenStore
from toolway.auth.refresh_order import run_order
from toolway.auth.token_store import Credential, OAuthClient, TokenKey, credential_to_dict
from toolway.http.client import ClientLimits, HttpError, HttpTarget
from toolway.http.client import HttpClient as HttpClient
from toolway.parts.openapi.settings import OpenApi
from toolway.testing import FakeHttp
from toolway.types import Call

pytestmark = pytest.mark.anyio

INSIDE = [each for all_ in FORMS.values() for each in all_]
OUTSIDE = "93.184.216.34"


async def code_of(hub: Hub, name: str, **more: Any) -> str:
    try:
        await hub.call_tool(name, **more)
    except CallError as exc:
        return exc.code
    return "answered"


# -- a resolver that changes its answer (CVE-2026-53708)


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.attack("held-36")
async def test_connection_uses_the_checked_address(inside: str) -> None:
    """The first answer is public, later ones are not: resolving twice would connect to an internal address."""
    names = Names({"two.example": [OUTSIDE, inside]})
    client = HttpClient(ClientLimits(connect_timeout=2), names.policy())
    with connects() as made:
        codes = []
        for _ in range(3):
            with pytest.raises(HttpError) as caught:
                async with client.send("POST", HttpTarget.parse(f"http://two.example:{PORT}/")):
                    pass
            codes.append(caught.value.code)
    assert codes == ["E-HTTP-CONNECT", REFUSED, REFUSED]
    assert made == [(OUTSIDE, PORT)]
    assert names.asked == ["two.example"] * 3  # once for each connection
    client.close()


async def test_kept_connection_needs_no_lookup() -> None:
    names = Names({SITE: [HOME, "10.0.0.1"]})
    client = HttpClient(ClientLimits(), names.policy())
    async with peer(always(response(200, b"ok"))) as server:
        for _ in range(50):
            async with client.send("POST", HttpTarget.parse(f"http://{SITE}:{server.port}/"), (), b"x") as answer:
                assert await answer.read(10) == b"ok"
        assert server.connections == 1
    assert names.asked == [SITE]
    client.close()


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_server_that_moves_to_private_address_is_not_followed(era: str) -> None:
    names = Names()
    async with FakeHttp(era=era) as fake:
        server = Server(url=f"http://{SITE}:{fake.port}/mcp", network_policy=names.policy(), timeout=QUICK)
        async with Hub({"one": server}, catalog_storage=None, token_store=None) as hub:
            assert await code_of(hub, "one.echo") == "answered"
            names.known[SITE] = ["10.0.0.1"]
            with connects() as made:
                hub.restart_server("one")
                await until(lambda: hub.status()["one"].state != "ready", 10)
                assert await code_of(hub, "one.echo", max_attempts=1) == REFUSED
            assert made == []
            names.known[SITE] = [HOME]
            hub.restart_server("one")
            await until(lambda: hub.status()["one"].state == "ready", 10)
            assert await code_of(hub, "one.echo") == "answered"


async def test_new_caller_connection_to_private_address_is_rejected() -> None:
    names = Names()
    async with FakeHttp(era="legacy") as fake:
        server = Server(url=f"http://{SITE}:{fake.port}/mcp", network_policy=names.policy(), timeout=QUICK)
        async with Hub({"one": server}, catalog_storage=None, token_store=None) as hub:
            call = Call("one.echo", "tools/call", {"name": "echo", "arguments": {}}, caller="first")
            assert not (await hub._core.calls.request(call)).is_error
            names.known[SITE] = ["10.0.0.1"]
            with connects() as made, pytest.raises(CallError) as caught:
                await hub._core.calls.request(
                    Call("one.echo", "tools/call", call.params, caller="second", max_attempts=1)
                )
            assert caught.value.code == REFUSED and made == []


# -- redirects at each hop (GHSA-c7vv-9h9c-fvj4)


class Hops:
    """A site that redirects `hops` times within itself, and then to `to`."""

    def __init__(self, hops: int, to: str, status: int) -> None:
        self._hops = hops
        self._to = to
        self._status = status

    async def react(self, conn: Conn, request: Received) -> None:
        step = int(request.target.rpartition("/")[2]) if request.target[-1].isdigit() else 0
        to = self._to if step >= self._hops else f"/hop/{step + 1}"
        await conn.send(response(self._status, Location=to))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("hops", [0, 1, 2, 3])
async def test_no_redirect_hop_reaches_private_address(hops: int, status: int) -> None:
    places = (
        "http://10.0.0.1/",
        f"http://127.0.0.2:{PORT}/",
        f"//inside.example:{PORT}/",
        "http://169.254.169.254/latest",
    )
    names = Names({"inside.example": ["192.168.0.1"]})
    for to in places:
        async with peer(reacting(Hops(hops, to, status).react)) as site:
            url = f"http://{SITE}:{site.port}/hop/0"
            policy = names.policy()
            servers = {
                "server": Server(url=url, network_policy=policy, timeout=QUICK, lazy=True),
                "sse": Server(url=url, sse=True, network_policy=policy, timeout=QUICK, lazy=True),
                "api": Server(transport_settings=OpenApi(url=url), network_policy=policy, timeout=QUICK, lazy=True),
            }
            with connects() as made:
                async with Hub(servers, catalog_storage=None, token_store=None) as hub:
                    codes = await asyncio.gather(*(code_of(hub, f"{name}.echo", max_attempts=1) for name in servers))
            assert set(made) == {(HOME, site.port)}
            assert "answered" not in codes


@pytest.mark.parametrize("hops", [0, 1, 2])
async def test_redirect_hop_with_new_connection_is_looked_up_again(hops: int) -> None:
    """The site closes each connection, and its name leads inside after so many."""
    names = Names({SITE: [HOME] * (hops + 1) + ["10.0.0.1"]})

    async def script(conn: Conn) -> None:
        request = await conn.request()
        step = int(request.target.rpartition("/")[2]) if request else 0
        await conn.send(response(307, Location=f"/hop/{step + 1}", Connection="close"))

    async with peer(script) as site:
        server = Server(
            url=f"http://{SITE}:{site.port}/hop/0", network_policy=names.policy(), timeout=QUICK, era="modern"
        )
        with connects() as made:
            async with Hub({"one": server}, catalog_storage=None, token_store=None) as hub:
                assert await code_of(hub, "one.echo", max_attempts=1) == REFUSED
        assert set(made) == {(HOME, site.port)} and site.connections == hops + 1


@pytest.mark.parametrize("hops", [0, 1, 2])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_login_redirect_reaches_private_address(hops: int, status: int, tmp_path: Path) -> None:
    names = Names({"inside.example": ["192.168.0.1"]})
    seen = Hops(hops, f"https://inside.example:{PORT}/", status)

    async def react(conn: Conn, request: Received) -> None:
        if request.target == "/mcp":
            await conn.send(response(401, WWW_Authenticate=f'Bearer resource_metadata="https://{where}/hop/0"'))
        else:
            await seen.react(conn, request)

    async def login(server: str, url: str) -> str:
        raise AssertionError("nobody is sent anywhere")

    async with secured(reacting(react), tmp_path) as site:
        where = f"{SITE}:{site.port}"
        server = Server(url=f"https://{where}/mcp", network_policy=names.policy(), timeout=QUICK, era="modern")
        with connects() as made:
            async with Hub({"one": server}, catalog_storage=None, token_store=None, login_callback=login) as hub:
                assert await code_of(hub, "one.echo", max_attempts=1) != "answered"
        assert set(made) == {(HOME, site.port)}


# -- addresses that servers say in the middle of things


@pytest.mark.parametrize("inside", ["http://10.0.0.1/m", f"http://127.0.0.2:{PORT}/m", "//inside.example/m"])
async def test_sse_endpoint_of_another_origin_is_rejected(inside: str) -> None:
    async def script(conn: Conn) -> None:
        await conn.request()
        await conn.send(EVENTS + chunk(f"event: endpoint\ndata: {inside}\n\n".encode()))
        await conn.gone()

    names = Names({"inside.example": ["10.0.0.1"]})
    async with peer(script) as site:
        url = f"http://{SITE}:{site.port}/sse"
        server = Server(url=url, sse=True, network_policy=names.policy("10.0.0.0/8", "127.0.0.0/8"), timeout=QUICK)
        with connects() as made:
            async with Hub({"one": server}, catalog_storage=None, token_store=None) as hub:
                assert await code_of(hub, "one.echo", max_attempts=1) == "E-SSE-ENDPOINT"
        assert set(made) == {(HOME, site.port)}


def test_token_refresh_process_has_the_same_rules(tmp_path: Path) -> None:
    """It is a separate process that gets its hub's allowed addresses."""
    key = bytes(range(32))
    held = Credential(
        issuer="https://issuer.example",
        token_url=f"https://10.0.0.1:{PORT}/token",
        client=OAuthClient("me", "canary-secret", "client_secret_post"),
        access="a",
        refresh="r",
        expires_at=time.time() - 1,
    )
    store = EncryptedTokenStore(tmp_path, lambda: key)
    asyncio.run(store.put(TokenKey(held.issuer, "one https://mcp.example/", ""), held))
    order: dict[str, Any] = {
        "folder": os.fspath(tmp_path),
        "upstream": "one https://mcp.example/",
        "principal": "",
        "key": key.hex(),
    }
    order |= {"issuer": held.issuer, "held": credential_to_dict(held)}
    answers = []
    for allow in ((), ("10.0.0.0/8",)):
        with connects() as made:
            answers.append(run_order(json.loads(json.dumps({**order, "allow": allow, "written": ()}))))
        assert made == [("10.0.0.1", PORT)] * len(allow)
    assert [answer["code"] for answer in answers] == [REFUSED, "E-AUTH-SERVER"]


async def test_allowed_private_name_works_until_removed() -> None:
    """As an operator does it: the same file with and without the line."""
    names = Names()

    def source(*allow: str) -> dict[str, Server]:
        addresses = NetworkPolicy(allow, lookup=names)
        return {"one": Server(url=f"http://jira.corp.example:{fake.port}/mcp", network_policy=addresses, timeout=QUICK)}

    async with FakeHttp() as fake, Hub(source(), catalog_storage=None, token_store=None) as hub:
        with pytest.raises(CallError) as caught:
            await hub.call_tool("one.echo", max_attempts=1)
        assert caught.value.code == REFUSED and '"allow": ["jira.corp.example"]' in str(caught.value)
        assert "jira.corp.example resolves to 127.0.0.1" in str(hub.status()["one"])
        assert await hub.reload(source("jira.corp.example")) == {"one": "changed"}
        assert await code_of(hub, "one.echo") == "answered"
        assert await hub.reload(source()) == {"one": "changed"}
        assert await code_of(hub, "one.echo", max_attempts=1) == REFUSED


async def test_hub_network_policy_applies_to_later_servers() -> None:
    async with FakeHttp() as fake:
        url = f"http://jira.corp.example:{fake.port}/mcp"
        addresses = NetworkPolicy(("jira.corp.example",), lookup=Names())
        async with Hub({"one": url}, catalog_storage=None, token_store=None, network_policy=addresses) as hub:
            assert await code_of(hub, "one.echo") == "answered"
            await hub.add_server("two", url)
            await hub.add_server("other", f"http://wiki.corp.example:{fake.port}/mcp")
            assert await code_of(hub, "two.echo") == "answered"
            assert await code_of(hub, "other.echo", max_attempts=1) == REFUSED


async def test_allow_line_in_file_applies_on_reload(tmp_path: Path) -> None:
    """127.1 is not a name, but it is not what anyone writes either: without a word it leads nowhere."""
    file = tmp_path / "mcp.json"
    async with FakeHttp() as fake:
        entries = {"mcpServers": {"one": {"url": f"http://127.1:{fake.port}/mcp", "timeout": "20s"}}}
        file.write_text(json.dumps(entries))
        async with Hub(file, catalog_storage=None, token_store=None) as hub:
            with pytest.raises(CallError) as caught:
                await hub.call_tool("one.echo", max_attempts=1)
            assert caught.value.code == REFUSED
            said = str(caught.value).partition("config file: ")[2].rpartition(" [")[0]
            file.write_text(json.dumps(entries | json.loads("{" + said + "}")))
            assert await hub.reload(file) == {"one": "changed"}
            assert await code_of(hub, "one.echo") == "answered"
