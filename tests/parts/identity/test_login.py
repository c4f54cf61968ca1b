"""A gateway that accepts tokens of an identity provider: what clients of both eras get, even while it fails."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.edge_lab import ROUTES, TOKEN, Edge, handshake, message_of, modern
from tests.http.raw_client import Answer
from tests.parts.identity.issuer import AUDIENCE, ISSUER, SETTINGS, Issuer, guarded, login_at
from toolway.errors import ConfigError
from toolway.gateway.principals import ApiKeyStore
from toolway.gateway.router import MAX_LIGHT_BYTES
from toolway.gateway.tool_filter import ToolFilter
from toolway.http.exchange import HttpRequest
from toolway.parts.identity.provider import principal_id

pytestmark = pytest.mark.anyio

CALL = {"name": "a__echo", "arguments": {"text": "x"}}
METADATA_PATH = "/.well-known/oauth-protected-resource/mcp"
ERAS = ("modern", "legacy")


async def ask(found: Edge, era: str, token: str, params: dict[str, Any] = CALL, path: str = "/mcp") -> Answer:
    """A tool call in one era. In the legacy era it is the request that comes after the handshake."""
    if era == "modern":
        body, fields = modern("tools/call", params)
        return await found.ask("POST", path, body, fields, token=token)
    hello = await found.ask(
        "POST",
        path,
        handshake(
            "initialize",
            {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}},
        ),
        token=token,
    )
    if hello.status != 200:
        return hello
    session = hello.headers["mcp-session-id"]
    return await found.ask("POST", path, handshake("tools/call", params), {"Mcp-Session-Id": session}, token=token)


def text_of(answer: Answer) -> str:
    text: str = message_of(answer)["result"]["content"][0]["text"]
    return text


async def test_unauthenticated_request_gets_resource_metadata(tmp_path: Path):
    issuer = Issuer()
    async with guarded(tmp_path, issuer, settings=replace(SETTINGS, scopes=("tools:read",))) as found:
        for method, path in ROUTES:
            answer = await found.ask(method, path, token=None)
            assert answer.status == 401
            challenge = answer.headers["www-authenticate"]
            assert f'resource_metadata="https://tools.example{METADATA_PATH}"' in challenge, path
            assert 'scope="tools:read"' in challenge and "error=" not in challenge
        for path in (METADATA_PATH, "/.well-known/oauth-protected-resource"):
            answer = await found.ask("GET", path, token=None, fields={"Host": "tools.example"})
            assert answer.status == 200 and json.loads(answer.body) == {
                "resource": AUDIENCE,
                "authorization_servers": [ISSUER],
                "bearer_methods_supported": ["header"],
                "resource_name": "Toolway",
                "scopes_supported": ["tools:read"],
            }
        for path in (f"{METADATA_PATH}/x", "/.well-known/oauth-authorization-server", "/.well-known/"):
            assert (await found.ask("GET", path, token=None)).status == 401
        assert (await found.ask("GET", METADATA_PATH, token=None, fields={"Host": "evil.example"})).status == 421


@pytest.mark.parametrize("era", ERAS)
async def test_user_calls_only_tools_of_own_groups(tmp_path: Path, era: str):
    issuer = Issuer()
    async with guarded(tmp_path, issuer) as found:
        eng, sales = issuer.token(), issuer.token(sub="bob", groups=["sales"])
        without_groups = issuer.token(sub="carol", groups=[])
        assert text_of(await ask(found, era, eng)) == "x"
        assert text_of(await ask(found, era, sales, {"name": "b__echo", "arguments": {"text": "y"}})) == "y"
        before = found.contacts()
        for token, tool in (
            (sales, "a__echo"),
            (eng, "b__fail"),
            (without_groups, "b__echo"),
            (without_groups, "a__echo"),
        ):
            answer = message_of(await ask(found, era, token, {"name": tool, "arguments": {"text": "z"}}))
            assert answer["error"]["message"].startswith("Unknown tool"), (tool, answer)
        assert found.contacts() == before
        assert await found.tools(token=sales) == ["b__echo"] and await found.tools(token=without_groups) == []
        assert {name for name in await found.tools(token=eng) if name.startswith("b__")} == {
            name for name in await found.tools() if name.startswith("b__")
        } - {"b__fail"}


@pytest.mark.parametrize("era", ERAS)
async def test_toolset_and_server_endpoints_show_only_allowed_tools(tmp_path: Path, era: str):
    issuer = Issuer()
    async with guarded(tmp_path, issuer, toolsets={"only-a": ToolFilter(("a.*",))}) as found:
        sales = issuer.token(groups=["sales"])
        assert await found.tools(path="/mcp/both", token=sales) == ["b__echo"]
        assert await found.tools(path="/mcp/only-a", token=sales) == []
        assert (await ask(found, era, sales, path="/mcp/server/a")).status == 404  # it exists for others
        assert (await ask(found, era, sales, path="/mcp/server/none")).status == 404
        answer = await ask(found, era, sales, {"name": "echo", "arguments": {"text": "y"}}, path="/mcp/server/b")
        assert text_of(answer) == "y"


@pytest.mark.parametrize("era", ERAS)
async def test_bad_token_is_rejected_without_contacting_servers(tmp_path: Path, era: str):
    issuer = Issuer()
    async with guarded(tmp_path, issuer) as found:
        before = found.contacts()
        for token in (
            issuer.token(aud="https://other.example"),
            issuer.token(exp=1),
            issuer.token(iss="https://evil.example"),
            issuer.token({"typ": "JWT"}, nonce="n"),
            Issuer().token(),
            "opaque",
        ):
            answer = await ask(found, era, token)
            assert answer.status == 401 and 'error="invalid_token"' in answer.headers["www-authenticate"]
        assert found.contacts() == before
        for method, path in ROUTES:
            assert (await found.ask(method, path, token=Issuer().token())).status == 401, path


@pytest.mark.parametrize("era", ERAS)
async def test_known_keys_work_while_provider_is_down(tmp_path: Path, era: str):
    issuer = Issuer()
    issuer.is_down = True
    async with guarded(tmp_path, issuer, fetched=False) as found:
        answer = await ask(found, era, issuer.token())
        assert answer.status == 503 and int(answer.headers["retry-after"]) > 0
        assert text_of(await ask(found, era, TOKEN)) == "x"  # API keys and the token of this machine
        assert (await found.ask("GET", "/readyz", token=None)).status == 200
        issuer.is_down = False
        login = login_at(found.gateway)
        await login.keys.refresh()
        assert text_of(await ask(found, era, issuer.token())) == "x"
        issuer.is_down = True
        await login.keys.refresh()
        assert text_of(await ask(found, era, issuer.token(jti="new"))) == "x"


@pytest.mark.parametrize("era", ERAS)
async def test_call_with_new_signing_key_waits_and_succeeds(tmp_path: Path, era: str):
    issuer = Issuer()
    async with guarded(tmp_path, issuer) as found:
        assert text_of(await ask(found, era, issuer.token())) == "x"
        issuer.rotate("k2")
        answers = await asyncio.gather(*(ask(found, era, issuer.token(jti=str(each))) for each in range(10)))
        assert {text_of(answer) for answer in answers} == {"x"}
        login = login_at(found.gateway)
        assert login.keys.fetch_count == 2


async def test_large_body_is_not_read_while_key_is_fetched(tmp_path: Path):
    issuer = Issuer()
    async with guarded(tmp_path, issuer) as found:
        issuer.rotate("k2")
        body, fields = modern("tools/call", {"name": "a__echo", "arguments": {"text": "x" * MAX_LIGHT_BYTES}})
        answer = await found.ask("POST", "/mcp", body, fields, token=issuer.token())
        assert answer.status == 503 and "retry-after" in answer.headers
        login = login_at(found.gateway)
        await login.keys.refresh()
        assert (await found.ask("POST", "/mcp", body, fields, token=issuer.token())).status == 200


@pytest.mark.parametrize("era", ERAS)
async def test_cached_head_expires_with_its_token(tmp_path: Path, era: str, monkeypatch: pytest.MonkeyPatch):
    """A client repeats its head exactly, and the result of its authentication is kept."""
    issuer = Issuer()
    async with guarded(tmp_path, issuer) as found, found.connected() as client:
        token = issuer.token(exp=int(time.time()) + 30)
        if era == "modern":
            body, fields = modern("tools/call", CALL)
        else:
            session = await found.initialize(token=token)
            body, fields = handshake("tools/call", CALL), {"Mcp-Session-Id": session}
        request = found.request("POST", "/mcp", body, fields, token=token)
        for _ in range(3):
            assert text_of(await client.ask(request)) == "x"
        before = found.contacts()
        later = time.time() + 120
        monkeypatch.setattr(time, "time", lambda: later)
        login = login_at(found.gateway)
        login._now = time.time
        answer = await client.ask(request)
        assert answer.status == 401 and found.contacts() == before


@pytest.mark.parametrize("era", ERAS)
async def test_known_token_is_not_verified_again(tmp_path: Path, era: str, monkeypatch: pytest.MonkeyPatch):
    issuer = Issuer()
    async with guarded(tmp_path, issuer) as found:
        login = login_at(found.gateway)
        token = issuer.token()
        await ask(found, era, token)
        monkeypatch.setattr(login, "_verify", None)
        assert text_of(await ask(found, era, token)) == "x"


@pytest.mark.parametrize("era", ERAS)
async def test_notification_stream_ends_when_token_expires(tmp_path: Path, era: str):
    issuer = Issuer()
    async with guarded(tmp_path, issuer) as found, found.connected() as client:
        token = issuer.token(exp=time.time() - 59)  # clocks may differ by a minute
        if era == "modern":
            body, fields = modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
            await client.send(found.request("POST", "/mcp", body, fields, token=token))
        else:
            session = {"Mcp-Session-Id": await found.initialize(token=token)}
            await client.send(found.request("GET", "/mcp", b"", session, token=token))
        assert (await client.head()).status == 200
        await client.closed()


async def test_session_of_another_user_is_not_found(tmp_path: Path):
    issuer = Issuer()
    async with guarded(tmp_path, issuer) as found:
        session = await found.initialize(token=issuer.token())
        stolen = {"Mcp-Session-Id": session}
        for other in (issuer.token(sub="bob"), TOKEN, found.key()):
            for method in ("POST", "GET", "DELETE"):
                body = handshake("tools/call", CALL) if method == "POST" else b""
                assert (await found.ask(method, "/mcp", body, stolen, token=other)).status == 404
        again = await found.ask("POST", "/mcp", handshake("tools/call", CALL), stolen, token=issuer.token(jti="2"))
        assert text_of(again) == "x"


async def test_session_loses_tools_missing_from_new_token(tmp_path: Path):
    issuer = Issuer()
    async with guarded(tmp_path, issuer) as found:
        session = {"Mcp-Session-Id": await found.initialize(token=issuer.token())}
        fewer = issuer.token(groups=["sales"])
        answer = await found.ask("POST", "/mcp", handshake("tools/call", CALL), session, token=fewer)
        assert message_of(answer)["error"]["message"].startswith("Unknown tool")


async def test_only_admin_group_can_administer_the_gateway(tmp_path: Path):
    issuer = Issuer()
    async with guarded(tmp_path, issuer, settings=replace(SETTINGS, admins=("platform",))) as found:
        person, admin = issuer.token(groups=["eng"]), issuer.token(sub="root", groups=["platform"])
        for path in ("/admin/servers", "/admin/keys", "/admin/calls"):
            assert (await found.ask("GET", path, token=person)).status == 403
            assert (await found.ask("GET", path, token=admin)).status == 200
        assert (await found.ask("GET", "/metrics", token=person)).status in (403, 404)
        refused = await found.ask("POST", "/dashboard/session", token=admin)
        assert refused.status == 403  # a browser session ends with an API key, and a user has none


async def test_calls_are_recorded_with_the_user(tmp_path: Path):
    issuer = Issuer()
    async with guarded(tmp_path, issuer) as found:
        await found.call("a__echo", {"text": "x"}, token=issuer.token(preferred_username="alice@acme"))
        answer = await found.ask("GET", "/admin/calls?principal=alice@acme")
        [call] = json.loads(answer.body)["calls"]
        assert call["tool"] == "echo" and call["principal"] == "alice@acme"
        found.key()  # its name is "a key"
        for subject, name in (("m1", "local"), ("m2", "a key")):
            await found.call("a__echo", {"text": "x"}, token=issuer.token(sub=subject, preferred_username=name))
            calls = json.loads((await found.ask("GET", "/admin/calls?limit=1")).body)["calls"]
            assert calls[0]["principal"] == principal_id(ISSUER, subject)  # a user may choose its name


@pytest.mark.advisory("35")
async def test_gateway_that_accepts_anonymous_calls_fails_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """GHSA-gc9p-rmpx-vv9j: a login was configured, and the part that checks it was missing."""
    issuer = Issuer()
    async with guarded(tmp_path, issuer) as found:
        found.gateway.check_refusals()
        with monkeypatch.context() as broken:
            broken.setattr(found.gateway.http_server, "authenticate_head", None)
            with pytest.raises(ConfigError) as failed:
                found.gateway.check_refusals()
            assert failed.value.code == "E-LOGIN-OPEN"

        owner = found.keyring.authenticate(TOKEN)

        def let_all_in(self: ApiKeyStore, token: str) -> object:
            return owner

        monkeypatch.setattr(ApiKeyStore, "authenticate", let_all_in)
        with pytest.raises(ConfigError):
            found.gateway.check_refusals()


async def test_audience_host_is_accepted(tmp_path: Path):
    issuer = Issuer()
    async with guarded(tmp_path, issuer) as found:
        body, fields = modern("tools/call", CALL)
        fields["Host"] = "tools.example"
        assert (await found.ask("POST", "/mcp", body, fields, token=issuer.token())).status == 200


async def test_user_token_reaches_no_server(tmp_path: Path):
    issuer = Issuer()
    async with guarded(tmp_path, issuer) as found:
        token = issuer.token()
        await found.call("a__echo", {"text": "x"}, token=token)
        for fake in found.fakes.values():
            assert token not in repr(vars(fake)) and token not in repr(fake.stats)


def test_body_is_small_only_if_length_is_known():
    from toolway.gateway.router import _has_small_body

    def request(**headers: str) -> HttpRequest:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return HttpRequest("POST", "/mcp", "", named, frozenset(), b"", "")

    assert _has_small_body(request(content_length="100")) and _has_small_body(request())
    assert not _has_small_body(request(content_length=str(MAX_LIGHT_BYTES + 1)))
    assert not _has_small_body(request(transfer_encoding="chunked"))
    assert not _has_small_body(request(content_length="x"))
