"""The address matrix: every form of an address that leads inside, behind a name and spelt out, in every kind of URL.

Nothing is connected to but what is allowed: an audit hook sees whatever any socket is told. Each kind has its control:
with everything allowed, the same URLs are connected to, so each of them would have been.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.http.test_dialer import certificate, serving
from tests.network.network_lab import EVERYTHING, FORMS, HOME, PORT, Cell, cells, connects, names_of, plain
from tests.upstream.raw_http import Conn, Peer, Received, json_response, peer, reacting, response
from toolway import CallError, Hub, NetworkPolicy, Server, Timeout
from toolway.auth import oauth_http
from toolway.auth.token_store import Credential, MemoryTokenStore, OAuthClient, TokenKey
from toolway.config.schema import OAuth
from toolway.doctor.http_checks import probe_server
from toolway.events import Alert
from toolway.parts.openapi.settings import OpenApi
from toolway.telemetry.webhook import Webhook, encode_alert

pytestmark = pytest.mark.anyio

#: A login is a dozen requests: on every change it is tried with one form of each kind, by turns behind a name and spelt
#: out; `make long-tests ARGS=addresses` tries all.
ALL = cells()
FEW = [
    max((c for c in ALL if c.kind == kind), key=lambda c: (c.named == (n % 2 == 0), -c.number))
    for n, kind in enumerate([*FORMS, "odd"])
]
LONG = bool(os.environ.get("TOOLWAY_LONG"))
REFUSED = "E-HTTP-ADDRESS"
QUICK = Timeout(total=30, connect=5, start=20)  # long enough for a machine that has much to do
SITE = "mcp.example"  # a server as it should be, at `HOME`


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


Kind = Callable[[list[Cell], NetworkPolicy], Awaitable[list[str]]]  # (URLs, policy) → how each of them ended


async def codes(servers: dict[str, Server], **options: Any) -> list[str]:
    """The code with which a call to each server ends."""
    gate = asyncio.Semaphore(8)
    lazy = {name: replace(server, lazy=True, timeout=QUICK) for name, server in servers.items()}
    async with Hub(lazy, catalog_storage=None, **({"token_store": None} | options)) as hub:

        async def one(name: str) -> str:
            try:
                async with gate:
                    await hub.call_tool(f"{name}.echo", max_attempts=1)
            except CallError as exc:
                return exc.code if exc.executed == "no" else f"{exc.code}, and executed: {exc.executed}"
            return "answered"

        return await asyncio.gather(*map(one, servers))


def each(chosen: list[Cell], make: Callable[[Cell], Server]) -> dict[str, Server]:
    return {f"s{cell.number}": make(cell) for cell in chosen}


# -- the kinds of URL


async def of_a_server(chosen: list[Cell], policy: NetworkPolicy) -> list[str]:
    return await codes(each(chosen, lambda c: Server(url=c.url("/mcp"), network_policy=policy)))


async def of_a_server_with_tls(chosen: list[Cell], policy: NetworkPolicy) -> list[str]:
    return await codes(each(chosen, lambda c: Server(url=c.url("/mcp", "https"), network_policy=policy)))


async def of_an_sse_server(chosen: list[Cell], policy: NetworkPolicy) -> list[str]:
    return await codes(each(chosen, lambda c: Server(url=c.url("/sse"), sse=True, network_policy=policy)))


async def of_an_openapi_document(chosen: list[Cell], policy: NetworkPolicy) -> list[str]:
    def api(cell: Cell) -> Server:
        return Server(transport_settings=OpenApi(url=cell.url("/api.json")), network_policy=policy)

    return await codes(each(chosen, api))


async def of_a_server_in_a_document(chosen: list[Cell], policy: NetworkPolicy) -> list[str]:
    def api(cell: Cell) -> Server:
        paths = {"/echo": {"get": {"operationId": "echo", "responses": {"200": {"description": "ok"}}}}}
        about = {"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "servers": [{"url": cell.url()}]}
        return Server(transport_settings=OpenApi(document={**about, "paths": paths}), network_policy=policy)

    return await codes(each(chosen, api))


async def of_the_doctor(chosen: list[Cell], policy: NetworkPolicy) -> list[str]:
    """It says nothing of what it met; whoever asks it has the failure of the start."""
    servers = each(chosen, lambda c: Server(url=c.url("/mcp"), network_policy=policy))
    found = await asyncio.gather(*map(probe_server, servers.values()))
    return [REFUSED if not closer.post.status else "answered" for closer in found]


async def of_a_webhook(chosen: list[Cell], policy: NetworkPolicy) -> list[str]:
    """No one waits for it: it says what went wrong in the log."""
    trust = ssl.create_default_context()
    matter = encode_alert(Alert("", "server-down", "it failed"))

    async def one(cell: Cell) -> str:
        why, again = await Webhook(cell.url("/hook"), {}, policy)._post(matter, trust)
        return REFUSED if "connections to it are denied" in why and not again else why

    return [await one(cell) for cell in chosen]


# -- the kinds of URL that a login has


class Issuers:
    """Servers of one site that want a token, and all that is said about how to get one. `where` is what is not as it
    should be, for each of them."""

    def __init__(self, said: str, chosen: list[Cell]) -> None:
        self._said = said
        self._bad = {str(cell.number): cell.url("/x", "https") for cell in chosen}
        self.site = ""

    async def react(self, conn: Conn, request: Received) -> None:
        number = request.target.strip("/").split("/")[-1]
        own = {
            "resource_metadata": f"{self.site}/prm/{number}",
            "authorization_servers": f"{self.site}/{number}",
            "registration_endpoint": f"{self.site}/register/{number}",
            "token_endpoint": f"{self.site}/token/{number}",
        }
        own[self._said] = self._bad[number]
        if request.target.startswith("/prm/"):
            resource = f"{self.site}/mcp/{number}"
            answer = json_response({"resource": resource, "authorization_servers": [own["authorization_servers"]]})
        elif request.target.startswith("/.well-known/oauth-authorization-server/"):
            answer = json_response(self._issuer(number, own))
        elif request.target.startswith("/register/"):
            given = json.loads(request.body)
            answer = json_response({**given, "client_id": "me", "client_secret": "canary"}, 201)
        elif request.target.startswith("/mcp/"):
            challenge = f'Bearer resource_metadata="{own["resource_metadata"]}"'
            answer = response(401, WWW_Authenticate=challenge)
        else:
            answer = response(404)
        await conn.send(answer)

    def _issuer(self, number: str, own: dict[str, str]) -> dict[str, Any]:
        return {
            "issuer": f"{self.site}/{number}",
            "authorization_endpoint": f"{self.site}/authorize",
            "token_endpoint": own["token_endpoint"],
            "registration_endpoint": own["registration_endpoint"],
            "code_challenge_methods_supported": ["S256"],
            "response_types_supported": ["code"],
        }


@asynccontextmanager
async def secured(script: Any, folder: Path) -> AsyncIterator[Peer]:
    """A site at `HOME` whose certificate both our clients trust."""
    cert = certificate(folder / f"cert-{time.monotonic_ns()}.pem", SITE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(cert))
        patch.setattr(oauth_http, "_ssl_context", ssl.create_default_context(cafile=str(cert)))
        async with peer(script, serving(cert)) as found:
            yield found


def login_with(said: str, folder: Path) -> Kind:
    """A login in which the server or its issuer names the URL."""

    async def agree(server: str, url: str) -> str:
        asked = parse_qs(urlsplit(url).query)
        return f"{asked['redirect_uri'][0]}?code=c&state={asked['state'][0]}"

    async def kind(chosen: list[Cell], policy: NetworkPolicy) -> list[str]:
        issuers = Issuers(said, chosen)
        async with secured(reacting(issuers.react), folder) as site:
            issuers.site = f"https://{SITE}:{site.port}"

            def guarded(cell: Cell) -> Server:
                return Server(url=f"{issuers.site}/mcp/{cell.number}", network_policy=policy, era="modern")

            return await codes(each(chosen, guarded), login_callback=agree)

    return kind


def renewal(folder: Path) -> Kind:
    """A token that is over, and whose issuer's address leads inside by now."""

    async def kind(chosen: list[Cell], policy: NetworkPolicy) -> list[str]:
        tokens = MemoryTokenStore()
        servers = {}
        for cell in chosen:
            name, url = f"s{cell.number}", f"https://{SITE}:1/{cell.number}"
            held = Credential(
                issuer="https://issuer.example",
                token_url=cell.url("/token", "https"),
                client=OAuthClient("me", "canary-secret", "client_secret_post"),
                access="canary-access",
                refresh="canary-refresh",
                renew_at=1.0,
                expires_at=2.0,
            )
            await tokens.put(TokenKey(held.issuer, f"{name} {url}", ""), held)
            servers[name] = Server(url=url, network_policy=policy, era="modern", auth=OAuth())
        return await codes(servers, token_store=tokens)

    return kind


PLAIN = {
    "server": of_a_server,
    "server, TLS": of_a_server_with_tls,
    "HTTP+SSE server": of_an_sse_server,
    "OpenAPI document": of_an_openapi_document,
    "server in a document": of_a_server_in_a_document,
    "doctor": of_the_doctor,
    "webhook": of_a_webhook,
}
LOGIN = ("resource_metadata", "authorization_servers", "registration_endpoint", "token_endpoint", "renewal")
KINDS = [*PLAIN, *(f"login: {said}" for said in LOGIN)]


def chosen_for(name: str) -> list[Cell]:
    return ALL if LONG or name in PLAIN else FEW


def kind_of(name: str, folder: Path) -> Kind:
    if name in PLAIN:
        return PLAIN[name]
    said = name.removeprefix("login: ")
    return renewal(folder) if said == "renewal" else login_with(said, folder)


def is_refusal(cell: Cell, code: str) -> bool:
    """What is spelt oddly may not even be taken for an address."""
    return code == REFUSED or (cell.kind == "odd" and code in ("E-AUTH-URL", "E-AUTH-FLOW", "invalid URL"))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.attack("held-35", "held-50", "held-52")
async def test_no_private_address_is_connected_to(name: str, tmp_path: Path) -> None:
    chosen = chosen_for(name)
    with connects() as made:
        ended = await kind_of(name, tmp_path)(chosen, names_of(chosen).policy())
    assert {address for address, _ in made} <= {HOME}
    wrong = {cell.host: code for cell, code in zip(chosen, ended, strict=True) if not is_refusal(cell, code)}
    assert not wrong


@pytest.mark.parametrize("name", KINDS)
async def test_control_connects_when_everything_is_allowed(name: str, tmp_path: Path) -> None:
    chosen = [cell for cell in chosen_for(name) if cell.kind != "odd"]  # which not every part of a login can read
    with connects() as made:
        await kind_of(name, tmp_path)(chosen, names_of(chosen).policy(*EVERYTHING))
    reached = {plain(address) for address, port in made if port == PORT}
    assert {plain(cell.address) for cell in chosen} <= reached
