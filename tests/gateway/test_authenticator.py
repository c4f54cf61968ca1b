"""The door: the address that was used, the page that asks, and the token, before anything else is looked at."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.gateway.edge_lab import OPEN, ROUTES, TOKEN, edge, modern
from toolway.gateway.authenticator import Authenticator, RequestDenied
from toolway.gateway.principals import LOCAL_ADMIN, FileApiKeyStore
from toolway.http.exchange import HttpRequest
from toolway.parts.identity.provider import IdentityProvider

pytestmark = pytest.mark.anyio

FOREIGN_HOSTS = (
    "evil.example",
    "127.0.0.1.evil.example",
    "127.0.0.1@evil.example",
    "evil.example:8765",
    "localhost.evil.example",
    "127.0.0.1.",
    "127.1",
    "2130706433",
    "0x7f000001",
    "[::ffff:127.0.0.1]",
    "127.0.0.1:port",
    "127.0.0.1:8765:8765",
    "127.0.0.1, evil.example",
    "",
    "[::1",
    "user@localhost",
    "localhost/",
    "lócalhost",
)


def request(headers: dict[str, str], repeated: frozenset[str] = frozenset(), **more: Any) -> HttpRequest:
    return HttpRequest("POST", "/mcp", "", headers, repeated, b"", "127.0.0.1", **more)


def make_authenticator(tmp_path: Path, **names: Any) -> Authenticator:
    found = Authenticator(FileApiKeyStore(tmp_path / "keys.json", TOKEN), **names)
    found.set_bound_address("127.0.0.1", 8765)
    return found


def refusal(act: Any) -> int:
    try:
        act()
    except RequestDenied as refused:
        return refused.status
    return 0


def test_local_and_configured_host_names_are_accepted(tmp_path: Path):
    here = make_authenticator(tmp_path, hosts=["Tools.example"])
    for host in (
        "127.0.0.1",
        "127.0.0.1:8765",
        "localhost:1",
        "[::1]:8765",
        "LOCALHOST",
        "tools.example",
        "TOOLS.EXAMPLE:443",
    ):
        here.check_host_and_origin(request({"host": host}))


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_other_host_name_gets_421(tmp_path: Path, host: str):
    assert refusal(lambda: make_authenticator(tmp_path).check_host_and_origin(request({"host": host}))) == 421


def test_missing_or_repeated_host_gets_400(tmp_path: Path):
    here = make_authenticator(tmp_path)
    assert refusal(lambda: here.check_host_and_origin(request({}))) == 400
    assert refusal(lambda: here.check_host_and_origin(request({"host": "localhost"}, frozenset({"host"})))) == 400


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:8765", 0),
        ("http://localhost:8765", 0),
        ("https://app.example", 0),
        ("HTTPS://APP.EXAMPLE", 0),
        ("http://127.0.0.1:8766", 403),  # another program of this machine
        ("http://localhost", 403),
        ("https://app.example:444", 403),
        ("https://app.example.evil.example", 403),
        ("http://app.example", 403),
        ("https://evil.example", 403),
        ("null", 403),
        ("", 403),
        ("file://", 403),
    ],
)
@pytest.mark.attack("held-15")
def test_only_own_and_configured_origins_are_accepted(tmp_path: Path, origin: str, status: int):
    here = make_authenticator(tmp_path, origins=["https://app.example/"])
    headers = {"host": "localhost:8765", "origin": origin}
    assert refusal(lambda: here.check_host_and_origin(request(headers))) == status
    assert refusal(lambda: here.check_host_and_origin(request(headers, frozenset({"origin"})))) == 403


def test_origin_at_the_default_port_needs_no_port(tmp_path: Path):
    here = Authenticator(None)
    here.set_bound_address("127.0.0.1", 80)
    here.check_host_and_origin(request({"host": "localhost", "origin": "http://localhost"}))
    assert (
        refusal(lambda: here.check_host_and_origin(request({"host": "localhost", "origin": "https://localhost"})))
        == 403
    )


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Basic {TOKEN}",
        TOKEN,
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer{TOKEN}",
        f"Bearer {TOKEN} {TOKEN}",
        f"Bearer {TOKEN},",
        "Bearer null",
        "Bearer undefined",
        "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJsb2NhbCJ9.",
        "Bearer \xff\xfe",
        "Bearer " + "a" * 10_000,
    ],
)
def test_missing_or_unknown_token_gets_401(tmp_path: Path, value: str | None):
    headers = {"host": "localhost"} | ({"authorization": value} if value is not None else {})
    assert refusal(lambda: make_authenticator(tmp_path).authenticate_token(request(headers))) == 401


def test_repeated_authorization_header_gets_401(tmp_path: Path):
    headers = {"authorization": f"Bearer {TOKEN}"}
    assert make_authenticator(tmp_path).authenticate_token(request(headers)).principal == LOCAL_ADMIN
    assert (
        refusal(lambda: make_authenticator(tmp_path).authenticate_token(request(headers, frozenset({"authorization"}))))
        == 401
    )


async def test_every_route_checks_host_then_origin_then_token(tmp_path: Path):
    async with edge(tmp_path) as found:
        before = found.contacts()
        for method, path in (*ROUTES, *OPEN, ("GET", "/nothing"), ("OPTIONS", "/mcp"), ("HEAD", "/healthz")):
            for fields, status in (
                ({"Host": "evil.example"}, 421),
                ({"Host": f"evil.example:{found.port}", "Origin": f"http://evil.example:{found.port}"}, 421),
                ({"Origin": "https://evil.example"}, 403),
                ({"Origin": "null"}, 403),
            ):
                async with found.connected() as client:
                    await client.send(found.request(method, path, b"", fields))
                    answer = await client.answer(bodiless=method == "HEAD")
                assert answer.status == status, (method, path, fields)
                assert "access-control-allow-origin" not in answer.headers
        for method, path in ROUTES:
            answer = await found.ask(method, path, token=None)
            assert answer.status == 401 and answer.headers["www-authenticate"].startswith("Bearer"), (method, path)
        assert found.contacts() == before


async def test_allowed_origin_gets_cors_headers(tmp_path: Path):
    origin = {"Origin": "https://app.example"}
    async with edge(tmp_path, origins=["https://app.example"]) as found:
        wanted = {
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization, mcp-method",
        }
        before = await found.ask("OPTIONS", "/mcp", fields=origin | wanted, token=None)
        assert before.status == 204
        assert before.headers["access-control-allow-origin"] == "https://app.example"
        assert before.headers["access-control-allow-headers"] == "authorization, mcp-method"
        body, fields = modern("tools/list", {})
        for token, status in ((TOKEN, 200), (None, 401)):
            answer = await found.ask("POST", "/mcp", body, fields | origin, token=token)
            assert (answer.status, answer.headers["vary"]) == (status, "origin")
            assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert "access-control-allow-origin" not in (await found.ask("POST", "/mcp", body, fields)).headers


@pytest.mark.user_trial("20")
def test_gateway_with_login_does_not_suggest_the_local_token(tmp_path: Path):
    found = make_authenticator(tmp_path)
    with pytest.raises(RequestDenied) as refused:
        found.authenticate_token(request({"host": "localhost"}))
    assert b"toolway keys local-token" in refused.value.body
    challenge = ("www-authenticate", "Bearer")
    verifier = SimpleNamespace(challenge=lambda: challenge, resource_host="t.example", hint=IdentityProvider.hint)
    found.credentials.verify_by(verifier)
    with pytest.raises(RequestDenied) as refused:
        found.authenticate_token(request({"host": "localhost"}))
    assert b"log in" in refused.value.body and b"local-token" not in refused.value.body
