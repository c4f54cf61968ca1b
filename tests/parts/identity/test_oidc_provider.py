"""A gateway and a real OpenID provider, npm `oidc-provider`, which `make clients ARGS=login` installs."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

import httpx2
import pytest

from tests.gateway.edge_lab import Edge, edge
from tests.parts.identity.issuer import connect_login
from tests.parts.identity.test_login import ERAS, ask, text_of
from toolway import Hub
from toolway.config.server_entry import parse_entry
from toolway.parts.identity import introspection
from toolway.parts.identity.provider import IdentityProvider
from toolway.parts.identity.settings import IntrospectionSettings, LoginSettings
from toolway.testing import FakeHttp
from toolway.testing.http_endpoint import FakeExchange

ROOT = Path(__file__).resolve().parents[3]
NODE = ROOT / ".interop" / "bin" / "node-new"
FOLDER = ROOT / ".interop" / "login"
PROGRAM = Path(__file__).with_name("oidc_provider.mjs")
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(
        not NODE.exists() or not (FOLDER / "node_modules" / "oidc-provider").is_dir(),
        reason="npm oidc-provider is not installed: make clients ARGS=login",
    ),
]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@asynccontextmanager
async def with_provider(
    folder: Path, with_introspection: bool = False
) -> AsyncIterator[tuple[Edge, IdentityProvider, str]]:
    """A gateway, and the provider that logs users in at it, with the address of the provider."""
    url = f"http://127.0.0.1:{free_port()}"
    async with edge(folder) as found:
        resource = f"http://127.0.0.1:{found.port}/mcp"
        command = [str(NODE), str(PROGRAM), str(FOLDER), url.rpartition(":")[2], resource]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=asyncio.subprocess.DEVNULL)
        endpoint = IntrospectionSettings(url=f"{url}/token/introspection", client_id="gateway", client_secret="secret")
        settings = LoginSettings(issuer=url, audience=resource, introspection=endpoint if with_introspection else None)
        login = connect_login(found.gateway, settings, {"eng": ("a.*", "jira.*")}, secret="secret")
        try:
            assert process.stdout is not None
            async with asyncio.timeout(60):
                while (line := await process.stdout.readline()) != b"ready\n":
                    assert line, "the provider ended"
            yield found, login, url
        finally:
            await login.close()
            process.kill()
            await process.wait()


async def machine_token(client: httpx2.AsyncClient, url: str, resource: str, scope: str = "tools:read") -> str:
    form = {"grant_type": "client_credentials", "resource": resource, "scope": scope}
    answer = await client.post(f"{url}/token", data=form, auth=("eng-bot", "secret"))
    assert answer.status_code == 200, answer.text
    token: str = answer.json()["access_token"]
    return token


async def test_real_provider_tokens_work_in_both_eras_after_rotation(tmp_path: Path):
    async with with_provider(tmp_path) as (found, login, url), httpx2.AsyncClient() as client:
        resource = login.settings.resource_url
        for _ in range(2):
            token = await machine_token(client, url, resource)
            for era in ERAS:
                assert text_of(await ask(found, era, token)) == "x"
                denied = await ask(found, era, token, {"name": "b__echo", "arguments": {"text": "x"}})
                assert b"Unknown tool" in denied.body
            elsewhere = await machine_token(client, url, "https://other.example/mcp")
            opaque = await machine_token(client, url, resource, "tools:write")
            for bad in (elsewhere, opaque, token[:-4] + "AAAA"):
                for era in ERAS:
                    assert (await ask(found, era, bad)).status == 401
            login.keys._next_unknown = 0.0  # as if half a minute had passed
            assert (await client.get(f"{url}/rotate")).text == "rotated"
        assert login.keys.fetch_count == 2 and not login.keys.problem


async def test_client_discovers_provider_and_user_logs_in(tmp_path: Path):
    """The client is a hub, with the OAuth flow of the SDK: it only knows the address of the gateway."""
    async with with_provider(tmp_path) as (_, login, url), httpx2.AsyncClient() as browser:

        async def log_in(server: str, page: str) -> str:
            assert page.startswith(f"{url}/auth?") and "resource=" in page and "code_challenge_method=S256" in page
            return await _walk(browser, page)

        entry = {
            "url": login.settings.resource_url,
            "auth": {"type": "oauth", "redirectUri": "http://127.0.0.1:9/callback"},
        }
        async with Hub({"mcpServers": {"gate": entry}}) as hub:
            await hub.login("gate", log_in)
            await hub.wait_ready("gate", timeout=30)
            result = await hub.call_tool("gate.a__echo", {"text": "hello"})
            assert result.text == "hello"
            names = {tool.name for tool in await hub.list_tools()}
            assert names and not any("b__" in name for name in names)
        assert list(login.names().values()) == ["alice"]


async def test_real_provider_exchanges_caller_token_for_server_token(tmp_path: Path):
    """The server verifies nothing here; the test reads the claims of the token that it got."""
    target = FakeHttp(name="jira")
    headers: list[str] = []
    serve = target.endpoint.serve

    async def recorded(exchange: FakeExchange) -> None:
        headers.append(exchange.request.headers.get("authorization", ""))
        await serve(exchange)

    target.endpoint.serve = recorded  # type: ignore[method-assign]
    async with target, with_provider(tmp_path) as (found, login, url), httpx2.AsyncClient() as client:
        auth = {"type": "exchange", "scopes": ["tools:read"], "issuer": url, "clientId": "gateway"}
        entry = parse_entry({"url": target.url, "auth": {**auth, "clientSecret": "secret"}})
        await found.hub.servers.add("jira", entry)
        token = await machine_token(client, url, login.settings.resource_url)
        for era in ERAS:
            answer = await ask(found, era, token, {"name": "jira__echo", "arguments": {"text": "x"}})
            assert text_of(answer) == "x"
        [header] = set(headers)
        body = header.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        assert (claims["aud"], claims["iss"], claims["client_id"]) == (target.url, url, "gateway")
        assert claims["scope"] == "tools:read" and token not in header


async def person_tokens(client: httpx2.AsyncClient, url: str, resource: str) -> dict[str, str]:
    """Log alice in with a new client; return all tokens that the provider gives it, and the client's id."""
    back = "http://127.0.0.1:9/callback"
    about = {"redirect_uris": [back], "token_endpoint_auth_method": "none", "application_type": "native"}
    grants = ["authorization_code", "refresh_token"]
    made = await client.post(f"{url}/reg", json={**about, "grant_types": grants, "response_types": ["code"]})
    assert made.status_code == 201, made.text
    verifier = "v" * 64
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
    asked = {"client_id": made.json()["client_id"], "response_type": "code", "redirect_uri": back, "resource": resource}
    asked |= {"scope": "openid offline_access tools:read", "prompt": "consent"}
    asked |= {"code_challenge": challenge, "code_challenge_method": "S256", "state": "s"}
    end = await _walk(client, f"{url}/auth?{urlencode(asked)}")
    [code] = parse_qs(urlsplit(end).query)["code"]
    form = {"grant_type": "authorization_code", "code": code, "redirect_uri": back, "code_verifier": verifier}
    answer = await client.post(f"{url}/token", data={**form, "client_id": asked["client_id"], "resource": resource})
    assert answer.status_code == 200, answer.text
    return {**answer.json(), "client_id": asked["client_id"]}


@pytest.mark.attack("A2-held-I8")
async def test_token_for_another_purpose_is_rejected(tmp_path: Path):
    async with with_provider(tmp_path) as (found, login, url), httpx2.AsyncClient() as client:
        resource = login.settings.resource_url
        person = await person_tokens(client, url, resource)
        others = [await machine_token(client, url, f"{resource}{end}") for end in ("/", "x", "/server/a")]
        others.append(await machine_token(client, url, resource.replace("127.0.0.1", "localhost")))
        for era in ERAS:
            assert text_of(await ask(found, era, person["access_token"])) == "x"
            for bad in (person["id_token"], person["refresh_token"], person["client_id"], *others):
                assert (await ask(found, era, bad)).status == 401, bad


@pytest.mark.attack("A2-held-I9")
async def test_expired_token_of_real_provider_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with with_provider(tmp_path) as (found, login, url), httpx2.AsyncClient() as client:
        token, unseen = [await machine_token(client, url, login.settings.resource_url) for _ in range(2)]
        assert text_of(await ask(found, "modern", token)) == "x"
        now = login._now
        monkeypatch.setattr(login, "_now", lambda: now() + 700)  # it is valid for 600 seconds
        for era in ERAS:
            assert (await ask(found, era, unseen)).status == 401


@pytest.mark.attack("A2-held-I10")
async def test_revoked_opaque_token_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(introspection, "ACTIVE_S", 0.2)  # seconds for which an answer counts
    async with with_provider(tmp_path, with_introspection=True) as (found, login, url), httpx2.AsyncClient() as client:
        resource = login.settings.resource_url
        kept, ended = [await machine_token(client, url, resource, "tools:write") for _ in range(2)]
        elsewhere = await machine_token(client, url, "https://other.example/mcp", "tools:write")
        assert "." not in kept
        for era in ERAS:
            assert text_of(await ask(found, era, kept)) == text_of(await ask(found, era, ended)) == "x"
            assert (await ask(found, era, elsewhere)).status == 401
        form = {"token": ended}
        gone = await client.post(f"{url}/token/revocation", data=form, auth=("eng-bot", "secret"))
        assert gone.status_code == 200, gone.text
        async with asyncio.timeout(30):  # until the answer of the provider no longer counts
            while (await ask(found, "modern", ended)).status != 401:
                await asyncio.sleep(0.05)
        for era in ERAS:
            assert (await ask(found, era, ended)).status == 401
            assert text_of(await ask(found, era, kept)) == "x"


async def _walk(browser: httpx2.AsyncClient, page: str) -> str:
    """Log in as alice and consent, as a user would on the pages of the provider; return where it ends."""
    for _ in range(12):
        answer = await browser.get(page, follow_redirects=False)
        while answer.is_redirect:
            page = urljoin(page, answer.headers["location"])
            if "/callback?" in page:
                return page
            answer = await browser.get(page, follow_redirects=False)
        action = re.search(r'<form[^>]*action="([^"]+)"', answer.text)
        assert action is not None, answer.text
        prompt = "login" if 'name="login"' in answer.text else "consent"
        form = {"prompt": prompt, **({"login": "alice", "password": "x"} if prompt == "login" else {})}
        sent = await browser.post(urljoin(page, action[1]), data=form, follow_redirects=False)
        page = urljoin(page, sent.headers["location"])
        if "/callback?" in page:
            return page
    raise AssertionError("the pages of the provider do not end")
