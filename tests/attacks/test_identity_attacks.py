"""Logins of users: tokens and documents of the identity provider, assertions, and calls on behalf of users."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from tests.gateway.edge_lab import message_of, modern
from tests.parts.identity.exchange_lab import ExchangeIssuer, Target, exchange_auth, on_behalf
from tests.parts.identity.issuer import ACCESS, AUDIENCE, ISSUER, SETTINGS, Issuer, compact, encode, guarded
from tests.parts.identity.test_identity_assertions import lab
from tests.parts.identity.test_introspection import Endpoint, login_of
from tests.parts.identity.test_login import ask
from tests.parts.identity.test_signing_keys import status_of
from toolway.network import NetworkPolicy
from toolway.parts.identity.access_tokens import CLOCK_SKEW_S
from toolway.parts.identity.provider import IdentityProvider, create_fetch, principal_id

pytestmark = pytest.mark.anyio
Json = dict[str, Any]
CALL: Final = {"name": "jira__echo", "arguments": {"text": "x"}}


@pytest.fixture
async def issuer() -> AsyncIterator[ExchangeIssuer]:
    async with ExchangeIssuer() as found:
        yield found


# -- ended logins ------------------------------------------------------------------------------------------------------


@pytest.mark.attack("A2-NI1")
async def test_assertion_from_before_a_logout_grants_no_access(tmp_path: Path) -> None:
    async with lab(tmp_path) as made:
        now = int(time.time())
        kept = made.assertion(iat=now - 200, exp=now + 300)
        timeless = made.assertion(iat=None, exp=now + 300)
        await made.found.keyring.end_logins(principal_id(ISSUER, "alice"), now - CLOCK_SKEW_S - 60)
        for assertion in (kept, timeless):
            status, answer = await made.exchange(assertion)
            if status == 200:
                assert (await ask(made.found, "modern", answer["access_token"])).status == 401
        status, answer = await made.exchange(made.assertion(iat=now, exp=now + 300))  # a login that began later
        assert status == 200 and (await ask(made.found, "modern", answer["access_token"])).status == 200


@pytest.mark.attack("A2-NI2")
async def test_new_login_gets_a_new_server_token(tmp_path: Path, issuer: ExchangeIssuer) -> None:
    target = Target(issuer)
    async with on_behalf(tmp_path, issuer, {"jira": target}) as found:
        now = int(time.time())
        assert (await ask(found, "modern", issuer.token("alice", iat=now - 300), CALL)).status == 200
        await found.keyring.end_logins(principal_id(issuer.issuer, "alice"), now - CLOCK_SKEW_S - 60)
        assert (await ask(found, "modern", issuer.token("alice", iat=now), CALL)).status == 200
        assert len(set(target.sent)) == 2 and len(issuer.forms) == 2  # its own token for each login


# -- documents of the provider -----------------------------------------------------------------------------------------

STRANGE_KEYS: Final = [
    '{"keys":[{"kty":[]}]}',
    '{"keys":[{"kty":{"a":1}}]}',
    '{"keys":[{"kty":"EC","kid":[],"crv":{}}]}',
    '{"keys":[{"kty":"RSA","n":"\\u00e9","e":"AQAB"}]}',
    '{"keys":[{"kty":"RSA","n":"' + "A" * 100_000 + '","e":"AQAB"}]}',
    '{"keys":[{"kty":"EC","key_ops":[[]],"crv":"P-256"}]}',
    '{"keys":{}}',
    '{"keys":[],"keys":[]}',
]
STRANGE_URLS: Final = [
    "https://\u00e9..x/",
    "https://a/" + "b" * 70_000,
    "https://[::1]%25/",
    "https://%zz/",
    "http://a/",
]


@pytest.mark.attack("A2-NI3")
async def test_malformed_provider_document_does_not_stop_logins() -> None:
    issuer = Issuer()
    fetch = create_fetch(SETTINGS, NetworkPolicy)

    async def fetch_some(url: str) -> bytes:
        return await (issuer.fetch(url) if url.startswith(ISSUER) else fetch(url))

    login = IdentityProvider(SETTINGS, ACCESS, fetch_some, now=lambda: issuer.now)
    await login.keys.refresh()
    for jwks in STRANGE_KEYS:
        issuer.jwks = jwks.encode()
        await login.keys.refresh()
        assert login.keys.problem and login.authenticate(issuer.token()), jwks[:50]
    issuer.jwks = None
    for url in STRANGE_URLS:
        issuer.metadata["jwks_uri"] = url
        await login.keys.refresh()
        assert login.keys.problem and login.authenticate(issuer.token()), url[:50]
    issuer.metadata["jwks_uri"] = f"{ISSUER}/keys"
    issuer.rotate("k2", keep=False)
    await login.keys.refresh()
    assert login.keys.problem == "" and await status_of(login, issuer.token()) == 200


# -- tokens of other kinds ---------------------------------------------------------------------------------------------


@pytest.mark.attack("A2-NI4")
@pytest.mark.parametrize(
    "changes",
    [{"token_use": "refresh_token"}, {"token_use": "id"}, {"token_use": ["access"]}, {"typ": "Refresh"}, {"typ": "ID"}],
)
async def test_refresh_and_id_tokens_are_rejected(changes: Json) -> None:
    issuer = Issuer()
    endpoint = Endpoint(issuer)
    endpoint.body = json.dumps(endpoint.claims(**changes)).encode()
    login = login_of(issuer, endpoint)
    await login.keys.refresh()
    assert await status_of(login, "opaque-refresh-token") == 401
    assert await status_of(login, issuer.token({"typ": "JWT"}, **changes)) == 401
    for use in ("access", "access_token"):  # Cognito, Hydra
        endpoint.body = json.dumps(endpoint.claims(token_use=use, typ="Bearer")).encode()
        assert await status_of(login, f"opaque-{use}") == 200
        assert await status_of(login, issuer.token({"typ": "JWT"}, token_use=use)) == 200


# -- on behalf of users -----------------------------------------------------------------------------------------------


@pytest.mark.attack("A2-NI5")
@pytest.mark.parametrize("kind", ["exchange", "obo", "id-jag"])
@pytest.mark.parametrize("echo", ["the same token", "another for the gateway", "one for both"])
async def test_token_usable_at_the_gateway_is_not_sent_to_a_server(
    tmp_path: Path, issuer: ExchangeIssuer, kind: str, echo: str
) -> None:
    target = Target(issuer)
    more = {"idpClientId": "gateway", "idpClientSecret": "s"} if kind == "id-jag" else {}
    async with on_behalf(tmp_path, issuer, {"jira": target}, exchange_auth(issuer, type=kind, **more)) as found:
        token = issuer.token("alice")
        audience = [target.url, AUDIENCE] if echo == "one for both" else AUDIENCE
        issuer.answer = {"access_token": token if echo == "the same token" else issuer.token("alice", aud=audience)}
        answer = await ask(found, "modern", token, CALL)
        assert b"E-AUTH-EXCHANGE" in answer.body and b"for this gateway" in answer.body
    sent = [form for form in issuer.forms if issuer.answer["access_token"] == form.get("assertion")]
    assert not any("ey" in each for each in target.seen) and (kind == "obo" or sent == [])


@pytest.mark.attack("A2-NI6")
@pytest.mark.parametrize("status", [200, 400, 500])
async def test_malformed_issuer_answer_sends_no_token(tmp_path: Path, issuer: ExchangeIssuer, status: int) -> None:
    target = Target(issuer)
    answers: list[Json] = [
        {"error": []},
        {"error": {"a": 1}},
        {"scope": []},
        {"token_type": {}},
        {"issued_token_type": []},
        {"expires_in": "1e400", "token_type": []},
        {"iss": [], "access_token": "t"},
    ]
    async with on_behalf(tmp_path, issuer, {"jira": target}) as found:
        for number, answer in enumerate(answers):
            issuer.raw_status, issuer.answer = status, answer
            if status == 200 and "error" in answer:
                continue
            token = issuer.token(f"p{number}")
            got = await ask(found, "modern", token, CALL)
            assert b"E-AUTH-" in got.body and token.encode() not in got.body, (answer, got.body)
    assert target.sent == []


@pytest.mark.attack("A2-held-I1")
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_parallel_calls_use_the_token_of_their_own_caller(
    tmp_path: Path, issuer: ExchangeIssuer, seed: int
) -> None:
    choose = random.Random(seed)
    targets = {name: Target(issuer) for name in ("s1", "s2")}
    users = [f"p{number}" for number in range(5)]
    async with on_behalf(tmp_path, issuer, targets) as found:
        # Several tokens per user, used in turn: exchanges of all users overlap.
        tokens = {user: [issuer.token(user, jti=str(number)) for number in range(2)] for user in users}

        async def call(user: str, server: str, delay: float) -> None:
            await asyncio.sleep(delay)
            params = {"name": f"{server}__echo", "arguments": {"text": f"of-{user}"}}
            answer = await ask(found, choose.choice(["modern", "legacy"]), choose.choice(tokens[user]), params)
            assert f"of-{user}".encode() in answer.body, answer.body

        work = [(choose.choice(users), choose.choice(list(targets)), choose.random() / 20) for _ in range(40)]
        await asyncio.gather(*(call(*each) for each in work))
    calls = [each for target in targets.values() for each in target.seen if "of-p" in each]
    assert len(calls) == 40
    for each in calls:
        [token] = {token for token in issuer.owners if f"Bearer {token}'" in each}
        assert f"of-{issuer.owners[token]}" in each


# -- what a token says -------------------------------------------------------------------------------------------------

TIMES: Final = ("1" + "0" * 400, "-1", "1e400", "1e999", "NaN", "Infinity", "null", "[]", "{}", '"9"', "1" * 5000)


@pytest.mark.attack("A2-held-I2")
@pytest.mark.parametrize("claim", ["exp", "nbf", "iat"])
async def test_token_with_invalid_or_repeated_time_is_rejected(claim: str) -> None:
    issuer = Issuer()
    endpoint = Endpoint(issuer)
    login = login_of(issuer, endpoint)
    await login.keys.refresh()
    rest = json.dumps({name: value for name, value in issuer.claims().items() if name != claim})[:-1]
    for number, value in enumerate(TIMES):
        text = f'{rest}, "{claim}": {value}}}'
        assert await status_of(login, compact(issuer.header(), encode(text.encode()), issuer.key)) == 401, value[:9]
        endpoint.body = b'{"active": true, ' + text[1:].encode()
        assert await status_of(login, f"opaque-{number}") in (401, 503), value[:9]
    twice = f'{rest}, "{claim}": 1, "{claim}": {int(issuer.now) + 60}}}'
    assert await status_of(login, compact(issuer.header(), encode(twice.encode()), issuer.key)) == 401


@pytest.mark.attack("A2-held-I3")
async def test_token_header_cannot_choose_the_key() -> None:
    issuer, stranger = Issuer(), Issuer()
    login = IdentityProvider(SETTINGS, ACCESS, issuer.fetch, now=lambda: issuer.now)
    await login.keys.refresh()
    stranger.now = issuer.now
    own = stranger.keys[0]
    for header in (
        {"kid": "../../../dev/null"},
        {"kid": "k1' OR '1'='1"},
        {"kid": ""},
        {"kid": None},
        {"x5c": ["MIIB"]},
        {"jwk": own},
        {"jku": "https://evil.example/keys"},
        {"x5u": "https://evil.example/cert"},
        {"crit": ["exp"]},
        {"alg": "none"},
        {"alg": "es256"},
        {"alg": "RS256"},
    ):
        token = compact(stranger.header(**header), stranger.claims(), stranger.key)
        assert await status_of(login, token) in (401, 503), header
    assert len([url for url in issuer.fetched if "keys" in url]) <= 2


@pytest.mark.attack("A2-held-I4")
async def test_group_name_lookalikes_grant_nothing() -> None:
    issuer = Issuer()
    login = IdentityProvider(SETTINGS, {**ACCESS, "*": ("b.echo",)}, issuer.fetch, now=lambda: issuer.now)
    await login.keys.refresh()
    only_everyone = ("access:*",)
    for groups in (
        ["*"],
        ["access:eng"],
        ["eng\n", " eng", "ENG", "eng\u200b", "\uff45ng"],
        [["eng"], {"eng": 1}, None, 1],
        {"eng": True},
        [*["a"] * 2000, "eng"],
        "eng,sales",
    ):
        assert login.authenticate(issuer.token(groups=groups)).principal.access == only_everyone, groups
    assert not login.authenticate(issuer.token(groups=["*", "admin", "local"])).principal.admin


@pytest.mark.attack("A2-held-I5")
async def test_subject_and_name_lookalikes_are_other_users() -> None:
    issuer = Issuer()
    login = IdentityProvider(SETTINGS, ACCESS, issuer.fetch, now=lambda: issuer.now)
    await login.keys.refresh()
    alice = login.authenticate(issuer.token()).principal
    for subject in (
        "Alice",
        "alice#",
        "#alice",
        f"{ISSUER}#alice",
        alice.id,
        "\u0430lice",
        "e\u0301",
        "\u00e9",
        "alice ",
    ):
        found = login.authenticate(issuer.token(sub=subject, preferred_username="alice")).principal
        assert found.id != alice.id and found.caller_id != alice.caller_id, subject
    composed, joined = (login.authenticate(issuer.token(sub=each)).principal.id for each in ("e\u0301", "\u00e9"))
    assert composed != joined
    for subject in ("alice\n", "alice\u200b", "\u202eecila", "alice\0", "\x1b[2Jalice", "alice\u00a0", ""):
        assert await status_of(login, issuer.token(sub=subject)) == 401, subject
    for name in ("\u202eecila", "alice\nbob", "\x1b[2Jalice", "alice\u2028x", "a" * 5000):
        shown = login.authenticate(issuer.token(sub="mallory", preferred_username=name)).principal.name
        assert shown.isprintable() and "\n" not in shown and len(shown) <= 100, name


@pytest.mark.attack("A2-NI12")
@pytest.mark.parametrize("claim", ["client_id", "azp", "cid", "appid"])
async def test_client_id_cannot_forge_a_log_line(claim: str) -> None:
    issuer, events = Issuer(), list[Any]()
    login = IdentityProvider(SETTINGS, ACCESS, issuer.fetch, now=lambda: issuer.now, emit=events.append)
    await login.keys.refresh()
    events.clear()
    for client in ("x\nadmin: True", "x\ty", "x\u2028y", "\x1b[2Jx"):
        names: Json = {"client_id": None, claim: client}
        shown = login.authenticate(issuer.token(**names)).principal.client
        assert shown.isprintable() and events.pop().reason.isprintable(), client
    assert login.authenticate(issuer.token(client_id="claude code")).principal.client == "claude code"


@pytest.mark.attack("A2-held-I6")
async def test_answer_about_one_opaque_token_is_not_used_for_another() -> None:
    issuer = Issuer()
    endpoint = Endpoint(issuer)

    async def answer(token: str) -> tuple[int, bytes]:
        endpoint.asked.append(token)
        await asyncio.sleep(0)
        return 200, json.dumps(endpoint.claims() if token == "Opaque-token" else {"active": False}).encode()

    login = IdentityProvider(SETTINGS, ACCESS, issuer.fetch, now=lambda: issuer.now, ask=answer)
    variants = ("opaque-token", "Opaque-token ", "Opaque-toke", "Opaque-tokenx", "Opaque%2Dtoken", "Opaque-token\t")
    found = await asyncio.gather(*(status_of(login, each) for each in ("Opaque-token", *variants)))
    assert found == [200, *[401] * len(variants)]
    assert await status_of(login, "Opaque-token") == 200


@pytest.mark.attack("A2-held-I7")
async def test_token_outside_the_authorization_header_is_rejected(tmp_path: Path) -> None:
    issuer = Issuer()
    async with guarded(tmp_path, issuer) as found:
        token = issuer.token()
        for path, fields in (
            (f"/mcp?access_token={token}", {}),
            ("/mcp", {"cookie": f"access_token={token}; Authorization=Bearer {token}"}),
            ("/mcp", {"x-authorization": f"Bearer {token}", "proxy-authorization": f"Bearer {token}"}),
            ("/mcp", {"authorization": f"DPoP {token}", "dpop": "x"}),
            ("/mcp", {"authorization": f"Basic {token}"}),
            ("/mcp", {"authorization": f"Bearer {token}, Bearer {token}"}),
        ):
            body, heads = modern("tools/call", {"name": "a__echo", "arguments": {"text": "x"}})
            answer = await found.ask("POST", path, body, {**heads, **fields}, token=None)
            assert answer.status == 401 and token.encode() not in answer.body, fields


@pytest.mark.attack("R4-8")
async def test_admin_call_requires_the_oauth_scope_of_the_tool(tmp_path: Path) -> None:
    issuer = Issuer()
    settings = replace(SETTINGS, admins=("platform",), tool_scopes={"a.echo": ("pay",)})
    async with guarded(tmp_path, issuer, settings=settings) as found:
        body = {"server": "a", "tool": "echo", "arguments": {"text": "x"}}
        for scope, status in (("read", 502), ("read pay", 200)):
            token = issuer.token(groups=["platform"], scope=scope)
            answer = await found.ask("POST", "/admin/call", body, token=token)
            assert answer.status == status and (status == 200) == (b"lacks the scope pay" not in answer.body)
        (made,) = message_of(await found.ask("GET", "/admin/calls?limit=5"))["calls"]
        plain = issuer.token(groups=["platform"], scope="read")
        again = await found.ask("POST", f"/admin/calls/{made['id']}/replay", {"confirm": True}, token=plain)
        assert b"lacks the scope pay" in again.body and found.calls("a") == 1
