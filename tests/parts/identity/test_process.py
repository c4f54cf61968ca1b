"""`toolway serve` with a login in its configuration file, and a provider that it fetches keys from over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.gateway.edge_lab import modern
from tests.gateway.load_clients import Connection
from tests.gateway.program import Program, kill, program, start
from tests.parts.identity.issuer import AUDIENCE, Issuer
from toolway.network import NetworkPolicy
from toolway.parts.identity.provider import create_fetch
from toolway.parts.identity.settings import LoginSettings
from toolway.parts.identity.signing_keys import ProviderKeys
from toolway.types import AuthError

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def published(issuer: Issuer) -> AsyncIterator[str]:
    """The documents of an issuer at an address of this machine, which becomes its name."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:  # the client closed before it asked for anything
            writer.close()
            return
        path = head.split(b" ")[1].decode()
        status, body, more = "200 OK", b"", ""
        try:
            body = await issuer.fetch(f"{issuer.url}{path}")
        except AuthError:
            status = "404 Not Found"
        if path == "/moved":
            status, more = "302 Found", f"location: {issuer.url}/keys\r\n"
        elif path == "/large":
            status, body = "200 OK", b" " * 10_000_000
        if issuer.date:
            more += f"date: {issuer.date}\r\n"
        writer.write(
            f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{more}connection: close\r\n\r\n".encode() + body
        )
        try:
            await writer.drain()
        except ConnectionError:
            pass
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    issuer.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    issuer.metadata = {"issuer": issuer.url, "jwks_uri": f"{issuer.url}/keys"}
    try:
        yield issuer.url
    finally:
        server.close()
        await server.wait_closed()


async def call(run: Program, token: str) -> int:
    connection = await Connection.to(run.port)
    try:
        body, fields = modern("tools/list", {})
        fields |= {
            "authorization": f"Bearer {token}",
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
        }
        return (await connection.request("POST", "/mcp", fields, json.dumps(body).encode())).status
    finally:
        connection.close()


async def test_gateway_accepts_tokens_of_configured_provider(tmp_path: Path):
    issuer = Issuer()
    async with published(issuer) as url:
        login = {"issuer": url, "audience": AUDIENCE}
        async with program(tmp_path, {}, gateway={"login": login}, access={"eng": ["a.*"]}) as run:
            assert await call(run, issuer.token()) == 200
            assert await call(run, issuer.token(aud="https://other.example")) == 401
            assert await call(run, Issuer(url).token()) == 401
            assert await call(run, run.token) == 200
            run.write({}, gateway={"login": login | {"audience": "https://evil.example"}}, access={"eng": ["a.*"]})
            await run.until_logged("login settings changed in the file: restart the gateway to apply them")
            assert await call(run, issuer.token(aud="https://evil.example")) == 401
            assert await run.stop() == 0


async def test_reload_removes_access_at_once(tmp_path: Path):
    issuer = Issuer()
    async with published(issuer) as url:
        login = {"issuer": url, "audience": AUDIENCE}
        async with program(tmp_path, {}, gateway={"login": login}, access={"eng": ["a.*"]}) as run:
            connection = await Connection.to(run.port)  # one connection and one head, so the gateway is warm

            async def scopes() -> list[str]:
                answer = await connection.request("GET", "/who", {"authorization": f"Bearer {token}"}, b"")
                assert answer.status == 200
                found: list[str] = json.loads(answer.body)["access"]
                return found

            token = issuer.token()
            assert await scopes() == ["eng"]
            run.write({}, gateway={"login": login}, access={"eng": ["a.*"], "*": ["b.*"]})
            await until(scopes, ["*", "eng"])
            run.write({}, gateway={"login": login}, access={"sales": ["b.*"]})
            await until(scopes, [])
            run.write({})  # the login stays until a restart, and no one has a right
            await run.until_logged("login settings changed in the file: restart the gateway to apply them")
            assert await scopes() == []
            connection.close()
            assert await run.stop() == 0


async def until(read: Callable[[], Awaitable[list[str]]], expected: list[str]) -> None:
    async with asyncio.timeout(30):
        while await read() != expected:
            await asyncio.sleep(0.1)


async def test_login_with_no_auth_does_not_start(tmp_path: Path):
    login = {"issuer": "https://login.example", "audience": AUDIENCE}
    run = await start(tmp_path, {}, "--port", "0", "--no-auth", gateway={"login": login})
    try:
        assert run.process.stdout is not None
        problem = json.loads(await run.process.stdout.read())["error"]
        assert problem["code"] == "E-ADDRESS" and "--no-auth" in problem["hint"]
        assert await run.ended() != 0
    finally:
        await kill(run)


async def test_log_explains_unverifiable_tokens(caplog: pytest.LogCaptureFixture):
    issuer = Issuer()
    async with published(issuer) as url:
        settings = LoginSettings(issuer=url, audience=AUDIENCE)
        keys = ProviderKeys(settings, create_fetch(settings, NetworkPolicy), lambda: None)
        issuer.metadata = {"issuer": f"{url}/", "jwks_uri": f"{url}/keys"}
        await keys.refresh()
        await keys.refresh()
        [logged] = caplog.messages
        assert "E-LOGIN-PROVIDER" in logged and f"{url}/" in logged and "toolway.gateway.login.issuer" in logged
        issuer.metadata["issuer"] = url
        issuer.date = "Tue, 17 Nov 2020 12:00:00 GMT"
        await keys.refresh()
        assert not keys.problem and "E-LOGIN-CLOCK" in caplog.messages[-1]


async def test_documents_are_fetched_only_from_allowed_addresses():
    issuer = Issuer()
    async with published(issuer) as url:
        settings = LoginSettings(issuer=url, audience=AUDIENCE)
        fetch = create_fetch(settings, NetworkPolicy)
        assert json.loads(await fetch(f"{url}/keys"))["keys"] == issuer.keys
        port = url.rpartition(":")[2]
        for refused in (
            f"{url}/moved",
            f"{url}/large",
            f"{url}/missing",
            "http://login.example/keys",
            "file:///etc/hosts",
        ):
            with pytest.raises(AuthError):
                await fetch(refused)
        private = create_fetch(LoginSettings(issuer="https://login.example", audience=AUDIENCE), NetworkPolicy)
        for refused in (f"http://127.0.0.1:{port}/keys", "https://10.0.0.1/keys", "https://169.254.169.254/keys"):
            with pytest.raises(AuthError):
                await private(refused)
