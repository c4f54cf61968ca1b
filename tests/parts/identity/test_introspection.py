"""Opaque tokens: only a clear yes of the provider opens the gateway, and it is not asked too often."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.parts.identity.issuer import ACCESS, AUDIENCE, ISSUER, SETTINGS, Issuer, guarded
from tests.parts.identity.test_login import ERAS, ask, text_of
from tests.parts.identity.test_signing_keys import status_of
from toolway.network import NetworkPolicy
from toolway.parts.identity import introspection
from toolway.parts.identity.introspection import ACTIVE_S, FAILED_S, INACTIVE_S, create_ask
from toolway.parts.identity.provider import IdentityProvider, principal_id
from toolway.parts.identity.settings import IntrospectionSettings
from toolway.types import AuthError

pytestmark = pytest.mark.anyio


class Endpoint:
    """The introspection endpoint of a provider, and what it was asked."""

    def __init__(self, issuer: Issuer) -> None:
        self.issuer = issuer
        self.asked: list[str] = []
        self.status = 200
        self.body: bytes | None = None

    def claims(self, **changes: object) -> dict[str, Any]:
        return {"active": True, **self.issuer.claims(**changes), "token_type": "Bearer"}

    async def ask(self, token: str) -> tuple[int, bytes]:
        self.asked.append(token)
        await asyncio.sleep(0)
        return self.status, self.body if self.body is not None else json.dumps(self.claims()).encode()


def login_of(issuer: Issuer, endpoint: Endpoint) -> IdentityProvider:
    return IdentityProvider(SETTINGS, ACCESS, issuer.fetch, now=lambda: issuer.now, ask=endpoint.ask)


@pytest.mark.parametrize("era", ERAS)
async def test_active_token_is_accepted(tmp_path: Path, era: str):
    issuer = Issuer()
    endpoint = Endpoint(issuer)
    async with guarded(tmp_path, issuer, ask=endpoint.ask) as found:
        for _ in range(3):
            assert text_of(await ask(found, era, "opaque-token")) == "x"
        denied = await ask(found, era, "opaque-token", {"name": "b__fail", "arguments": {}})
        assert b"Unknown tool" in denied.body
        assert endpoint.asked == ["opaque-token"]
        assert text_of(await ask(found, era, issuer.token())) == "x"  # a JWT is verified here
        assert len(endpoint.asked) == 1
        endpoint.status = 500
        answer = await ask(found, era, "another-token")
        assert answer.status == 503 and "retry-after" in answer.headers
        assert text_of(await ask(found, era, "opaque-token")) == "x"


async def test_startup_check_allows_introspection(tmp_path: Path):
    issuer = Issuer()
    endpoint = Endpoint(issuer)
    async with guarded(tmp_path, issuer, ask=endpoint.ask) as found:
        endpoint.status = 500  # the provider is down
        found.gateway.check_refusals()
        assert (await ask(found, "modern", "garbage")).status in (401, 503)
        found.gateway.check_refusals()  # with the answer about "garbage" that was just given
        endpoint.status, endpoint.body = 200, b'{"active": false}'
        assert (await ask(found, "modern", "other-garbage")).status == 401


async def test_introspection_result_is_cached_for_30_seconds():
    issuer = Issuer()
    endpoint = Endpoint(issuer)
    login = login_of(issuer, endpoint)
    assert await status_of(login, "opaque") == 200
    expires_at = login.authenticate("opaque").expires_at
    assert expires_at == issuer.now + ACTIVE_S
    endpoint.body = b'{"active": false}'
    issuer.now += ACTIVE_S - 1
    assert await status_of(login, "opaque") == 200 and len(endpoint.asked) == 1
    issuer.now += 1
    assert await status_of(login, "opaque") == 401 and len(endpoint.asked) == 2  # revoked in the meantime
    assert await status_of(login, "opaque") == 401 and len(endpoint.asked) == 2
    endpoint.body = None
    issuer.now += INACTIVE_S
    assert await status_of(login, "opaque") == 200
    assert login.authenticate("opaque").principal.id == principal_id(ISSUER, "alice")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, None),
        (429, None),
        (401, None),
        (302, None),
        (200, b""),
        (200, b"<html>"),
        (200, b"[]"),
        (200, b"{}"),
        (200, b'{"active": "true"}'),
        (200, b'{"active": 1}'),
        (200, b'{"active": null}'),
        (200, b'{"active": false, "active": true}'),
    ],
)
async def test_unclear_introspection_response_is_rejected(status: int, body: bytes | None):
    issuer = Issuer()
    endpoint = Endpoint(issuer)
    endpoint.status, endpoint.body = status, body
    login = login_of(issuer, endpoint)
    assert await status_of(login, "opaque") == 503
    assert await status_of(login, "opaque") == 503 and len(endpoint.asked) == 1
    endpoint.status, endpoint.body = 200, None
    issuer.now += FAILED_S
    assert await status_of(login, "opaque") == 200


async def test_silent_introspection_endpoint_rejects_token():
    issuer = Issuer()

    async def silent(token: str) -> tuple[int, bytes]:
        raise AuthError("the authorization server took too long", code="E-AUTH-SERVER")

    login = IdentityProvider(SETTINGS, ACCESS, issuer.fetch, now=lambda: issuer.now, ask=silent)
    assert await status_of(login, "opaque") == 503


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": "https://other.example"},
        {"aud": None},
        {"iss": "https://evil.example"},
        {"exp": 1},
        {"nbf": 9e9},
        {"sub": None},
        {"cnf": {"jkt": "x"}},
        {"active": False},
    ],
)
async def test_active_token_for_other_audience_is_rejected(changes: dict[str, object]):
    issuer = Issuer()
    endpoint = Endpoint(issuer)
    endpoint.body = json.dumps(
        {name: value for name, value in (endpoint.claims() | changes).items() if value is not None}
    ).encode()
    assert await status_of(login_of(issuer, endpoint), "opaque") == 401


async def test_api_keys_and_malformed_tokens_are_not_introspected():
    issuer = Issuer()
    endpoint = Endpoint(issuer)
    login = login_of(issuer, endpoint)
    for token in ("tw_a-key-that-was-revoked", "x" * 5000, "t\u00f6ken", "a.b.c"):
        assert await status_of(login, token) == 401
    assert endpoint.asked == []
    assert await status_of(IdentityProvider(SETTINGS, ACCESS, issuer.fetch, now=lambda: issuer.now), "opaque") == 401


async def test_introspection_is_shared_and_limited(monkeypatch: pytest.MonkeyPatch):
    issuer = Issuer()
    endpoint = Endpoint(issuer)
    login = login_of(issuer, endpoint)
    assert set(await asyncio.gather(*(status_of(login, "opaque") for _ in range(50)))) == {200}
    assert endpoint.asked == ["opaque"]
    monkeypatch.setattr(introspection, "MAX_CONCURRENT", 5)
    found = await asyncio.gather(*(status_of(login, f"made-up-{number}") for number in range(20)))
    assert sorted(set(found)) == [200, 503] and len(endpoint.asked) == 6


async def test_ended_login_is_rejected_without_introspection():
    issuer = Issuer()
    endpoint = Endpoint(issuer)
    ended = {principal_id(ISSUER, "alice"): issuer.now}
    login = IdentityProvider(
        SETTINGS, ACCESS, issuer.fetch, now=lambda: issuer.now, ask=endpoint.ask, ended_logins=lambda: ended
    )
    assert await status_of(login, "opaque") == 401


async def test_introspection_request_authenticates_the_gateway():
    got: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.readuntil(b"\r\n\r\n"))
        got.append(await reader.read(4096))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 16\r\n\r\n" + b'{"active":false}')
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/introspect"
        asking = create_ask(IntrospectionSettings(url, "gate:way", "unused"), "s%cret", NetworkPolicy)
        assert await asking("a&b") == (200, b'{"active":false}')
    head, body = got
    assert b"Basic Z2F0ZSUzQXdheTpzJTI1Y3JldA==" in head
    assert b"token=a%26b" in body and AUDIENCE.encode() not in body
