"""Enterprise-managed authorization: identity assertions (ID-JAG) become tokens of the gateway, good ones only."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest
from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider

from tests.gateway.edge_lab import Edge, edge, modern
from tests.parts.identity.issuer import ACCESS, ISSUER, Issuer, compact, connect_login
from tests.parts.identity.test_login import CALL, ERAS, ask, text_of
from toolway.errors import ConfigError
from toolway.parts.identity import identity_assertions
from toolway.parts.identity.identity_assertions import GRANT_TYPE, TOKEN_PATH
from toolway.parts.identity.provider import IdentityProvider, principal_id
from toolway.parts.identity.settings import LoginSettings, parse_login

pytestmark = pytest.mark.anyio
SECRET = "the secret of a client"
FORM = {"content-type": "application/x-www-form-urlencoded"}


class Lab:
    def __init__(self, found: Edge, login: IdentityProvider, issuer: Issuer) -> None:
        self.found, self.login, self.issuer = found, login, issuer
        self.url = f"http://127.0.0.1:{found.port}"
        self.resource = f"{self.url}/mcp"
        self._count = 0

    def assertion(self, header: dict[str, Any] | None = None, **changes: object) -> str:
        self._count += 1
        now = int(self.issuer.now)
        own = {"aud": self.url, "resource": self.resource, "jti": f"jti-{self._count}", "exp": now + 300}
        claims = self.issuer.claims(**{**own, **changes})
        return compact(self.issuer.header(**{"typ": "oauth-id-jag+jwt", **(header or {})}), claims, self.issuer.key)

    async def exchange(self, assertion: str, *, headers: Any = None, **form: str) -> tuple[int, Any]:
        client = {"client_id": "claude", "client_secret": SECRET}
        fields = {"grant_type": GRANT_TYPE, "assertion": assertion, **client, **form}
        body = urlencode({name: value for name, value in fields.items() if value}).encode()
        answer = await self.found.ask("POST", TOKEN_PATH, body, {**FORM, **(headers or {})}, token=None)
        assert answer.headers["cache-control"] == "no-store"
        return answer.status, json.loads(answer.body)


@asynccontextmanager
async def lab(folder: Path) -> AsyncIterator[Lab]:
    issuer = Issuer()
    async with edge(folder) as found:
        settings = LoginSettings(issuer=ISSUER, audience=f"http://127.0.0.1:{found.port}/mcp")
        clients = {"claude": SECRET, "other": "o" * 20}
        login = connect_login(found.gateway, settings, ACCESS, issuer.fetch, clients=clients)
        await login.keys.refresh()
        try:
            yield Lab(found, login, issuer)
        finally:
            await login.close()


async def test_assertion_becomes_token_with_the_users_access(tmp_path: Path):
    async with lab(tmp_path) as made:
        status, answer = await made.exchange(made.assertion(groups=["eng"], preferred_username="alice@acme"))
        assert status == 200 and answer["token_type"] == "Bearer" and answer["expires_in"] == 900
        token = answer["access_token"]
        for era in ERAS:
            assert text_of(await ask(made.found, era, token)) == "x"
            denied = await ask(made.found, era, token, {"name": "b__fail", "arguments": {}})
            assert b"Unknown tool" in denied.body
        who = json.loads((await made.found.ask("GET", "/who", token=token)).body)
        assert (who["id"], who["name"], who["client"]) == (principal_id(ISSUER, "alice"), "alice@acme", "claude")
        basic = base64.b64encode(f"claude:{SECRET.replace(' ', '%20')}".encode()).decode()
        by_header = {"authorization": f"Basic {basic}"}
        status, _ = await made.exchange(made.assertion(), headers=by_header, client_id="", client_secret="")
        assert status == 200
        await made.found.ask("DELETE", "/admin/sessions/alice")
        assert (await ask(made.found, "modern", token)).status == 401


async def test_sdk_client_logs_in_without_browser(tmp_path: Path):
    class Storage:
        async def get_tokens(self) -> Any:
            return None

        async def set_tokens(self, tokens: Any) -> None: ...
        async def get_client_info(self) -> Any:
            return None

        async def set_client_info(self, client_info: Any) -> None: ...

    async with lab(tmp_path) as made:

        async def fetch_assertion(audience: str, resource: str) -> str:
            assert (audience, resource) == (made.url, made.resource)
            return made.assertion()

        auth = IdentityAssertionOAuthProvider(
            made.resource, Storage(), "claude", SECRET, made.url, fetch_assertion, scope="tools:read"
        )
        async with httpx2.AsyncClient(auth=auth) as client:
            body, fields = modern("tools/call", CALL)
            accept = {"accept": "application/json, text/event-stream"}
            answer = await client.post(made.resource, json=body, headers={**fields, **accept})
        assert answer.status_code == 200 and answer.json()["result"]["content"][0]["text"] == "x"


@pytest.mark.attack("R3-login-3")
async def test_assertion_for_other_gateway_or_client_is_rejected(tmp_path: Path):
    async with lab(tmp_path) as made:
        now = int(made.issuer.now)
        stranger = Issuer()
        stranger.now = made.issuer.now
        forged = Lab(made.found, made.login, stranger)
        good = made.assertion()
        head, body, signature = good.split(".")
        refused = {
            "an access token": made.assertion({"typ": "at+jwt"}),
            "an ID token": made.assertion({"typ": "JWT"}, nonce="n"),
            "another audience": made.assertion(aud="https://other.example"),
            "our resource as audience": made.assertion(aud=made.resource),
            "two audiences": made.assertion(aud=[made.url, "https://other.example"]),
            "another resource": made.assertion(resource="https://other.example/mcp"),
            "no resource": made.assertion(resource=None),
            "another client": made.assertion(client_id="other"),
            "no client": made.assertion(client_id=None),
            "another issuer": made.assertion(iss="https://evil.example"),
            "no id": made.assertion(jti=None),
            "no end": made.assertion(exp=None),
            "expired": made.assertion(exp=now - 100),
            "valid for a year": made.assertion(exp=now + 365 * 86400),
            "of the future": made.assertion(iat=now + 600, exp=now + 900),
            "bound to a key": made.assertion(cnf={"jkt": "x"}),
            "no subject": made.assertion(sub=None),
            "without a signature": made.assertion({"alg": "none"}),
            "signed by another": forged.assertion(),
            "changed": f"{head}.{body[:-2]}AA.{signature}",
            "empty": "",
        }
        for name, assertion in refused.items():
            status, answer = await made.exchange(assertion)
            assert (status, answer["error"]) == (400, "invalid_grant"), name
        assert (await made.exchange(good))[0] == 200
        assert await made.exchange(good) == (
            400,
            {"error": "invalid_grant", "error_description": "the assertion was already used"},
        )


async def test_wrong_client_or_malformed_request_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with lab(tmp_path) as made:
        for wrong in ({"client_secret": "x"}, {"client_secret": ""}, {"client_id": "nobody"}, {"client_id": ""}):
            status, answer = await made.exchange(made.assertion(), **wrong)
            assert (status, answer["error"]) == (401, "invalid_client")
        for changed, error in (
            ({"grant_type": "client_credentials"}, "unsupported_grant_type"),
            ({"resource": "https://other.example/mcp"}, "invalid_target"),
        ):
            assert (await made.exchange(made.assertion(), **changed))[1]["error"] == error
        for body, headers in ((b"{}", {"content-type": "application/json"}), (b"a=1&a=2", FORM), (b"\xff", FORM)):
            answer = await made.found.ask("POST", TOKEN_PATH, body, headers, token=None)
            assert answer.status == 400 and b"invalid_request" in answer.body
        large = await made.found.ask("POST", TOKEN_PATH, b"a=" + b"x" * 2_000_000, FORM, token=None)
        assert large.status == 413
        monkeypatch.setattr(identity_assertions, "MAX_USED", 0)
        assert (await made.exchange(made.assertion()))[0] == 503
        for token in ("ema_", "ema_garbage", "ema_" + "A" * 200):
            assert (await ask(made.found, "modern", token)).status == 401


async def test_tokens_are_narrowed_and_end_with_their_client(tmp_path: Path):
    async with lab(tmp_path) as made:
        token = (await made.exchange(made.assertion(scope="a b"), scope="b c"))[1]
        assert token["scope"] == "b"
        grants = made.login.assertions
        assert grants is not None and grants.open_token(token["access_token"])[0].scopes == {"b"}
        grants._clients.clear()
        made.login._forget_tokens()
        assert (await ask(made.found, "modern", token["access_token"])).status == 401
        answer = await made.found.ask("GET", "/.well-known/oauth-authorization-server", token=None)
        described = json.loads(answer.body)
        assert described["issuer"] == made.url and described["grant_types_supported"] == [GRANT_TYPE]
        assert (await made.found.ask("GET", "/oauth/authorize", token=None)).status == 400


async def test_no_token_endpoint_without_configured_clients(tmp_path: Path):
    issuer = Issuer()
    async with edge(tmp_path) as found:
        settings = LoginSettings(issuer=ISSUER, audience="https://t.example/mcp")
        login = connect_login(found.gateway, settings, ACCESS, issuer.fetch)
        try:
            for method, path in (("POST", TOKEN_PATH), ("GET", "/.well-known/oauth-authorization-server")):
                assert (await found.ask(method, path, b"", FORM, token=None)).status in (401, 404)
        finally:
            await login.close()


def test_assertion_clients_need_secrets() -> None:
    base = {"issuer": ISSUER, "audience": "https://tools.example/mcp"}
    settings = parse_login({**base, "ema": {"clients": {"claude": SECRET}}}, {})
    assert settings is not None and settings.ema == {"claude": SECRET} and SECRET not in repr(settings)
    blocks: list[Any] = [
        {"clients": {}},
        {"clients": {"claude": ""}},
        {"clients": {"claude": "short"}},
        {"client": {}},
        [],
    ]
    for block in blocks:
        with pytest.raises(ConfigError):
            parse_login({**base, "ema": block}, {})
