"""Keys of a provider: which are usable, when they are fetched, and what a provider that is down changes."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace

import pytest

from tests.parts.identity.issuer import ACCESS, ISSUER, SETTINGS, Issuer, new_key, public_jwk, rsa_key
from toolway.errors import ConfigError
from toolway.gateway.authenticator import RequestDenied, VerificationPending
from toolway.parts.identity.provider import IdentityProvider, clock_offset
from toolway.parts.identity.signing_keys import (
    KEYS_LIFETIME_S,
    REFRESH_INTERVAL_S,
    UNKNOWN_KEY_INTERVAL_S,
    parse_jwks,
)

pytestmark = pytest.mark.anyio


def login_of(issuer: Issuer, **more: object) -> IdentityProvider:
    settings = replace(SETTINGS, **more)  # type: ignore[arg-type]
    return IdentityProvider(settings, ACCESS, issuer.fetch, now=lambda: issuer.now)


async def status_of(login: IdentityProvider, token: str) -> int:
    """What a client gets for a token, after the wait for a key."""
    try:
        try:
            login.authenticate(token)
        except VerificationPending as pending:
            await asyncio.wait([pending.task])
            login.authenticate(token)
    except RequestDenied as denied:
        return denied.status
    return 200


async def test_keys_come_from_metadata_or_configured_url():
    issuer = Issuer()
    assert await status_of(login_of(issuer), issuer.token()) == 200
    assert issuer.fetched == [f"{ISSUER}/.well-known/openid-configuration", f"{ISSUER}/keys"]
    issuer.fetched.clear()
    issuer.metadata = {"jwks_uri": "https://keys.example/jwks"}
    assert await status_of(login_of(issuer, jwks="https://keys.example/jwks"), issuer.token()) == 200
    assert issuer.fetched == ["https://keys.example/jwks"]


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": f"{ISSUER}/", "jwks_uri": f"{ISSUER}/keys"},
        {"issuer": "https://evil.example", "jwks_uri": f"{ISSUER}/keys"},
        {"jwks_uri": f"{ISSUER}/keys"},
        {"issuer": ISSUER},
        {"issuer": ISSUER, "jwks_uri": 1},
        {"issuer": ISSUER, "jwks_uri": "http://login.example/keys"},
        {"issuer": ISSUER, "jwks_uri": "file:///etc/passwd"},
        {"issuer": ISSUER, "jwks_uri": "https://user@login.example/keys"},
    ],
)
async def test_invalid_metadata_is_not_used(metadata: dict[str, object]):
    issuer = Issuer()
    issuer.metadata = metadata
    login = login_of(issuer)
    assert await status_of(login, issuer.token()) == 503 and login.keys.problem
    assert f"{ISSUER}/keys" not in issuer.fetched and "file:///etc/passwd" not in issuer.fetched


async def test_keys_stay_valid_for_a_day_while_provider_is_down():
    issuer = Issuer()
    login = login_of(issuer)
    await login.keys.refresh()
    issuer.is_down = True
    for age in (0.0, REFRESH_INTERVAL_S, KEYS_LIFETIME_S - 10):
        issuer.now += age - (issuer.now - login.keys.good_until + KEYS_LIFETIME_S)
        await login.keys.refresh()
        assert login.keys.problem and await status_of(login, issuer.token(jti=str(age))) == 200
    token = issuer.token(exp=issuer.now + 3600)
    assert await status_of(login, token) == 200
    issuer.now += 20
    assert await status_of(login, token) == 503  # also for one that was accepted before
    issuer.is_down = False
    await login.keys.refresh()
    assert await status_of(login, token) == 200 and not login.keys.problem


async def test_nothing_is_accepted_before_first_keys():
    issuer = Issuer()
    issuer.is_down = True
    login = login_of(issuer)
    assert await status_of(login, issuer.token()) == 503
    with pytest.raises(RequestDenied) as denied:
        login.authenticate(issuer.token())
    assert 1 <= int(dict(denied.value.headers)["retry-after"]) <= UNKNOWN_KEY_INTERVAL_S
    issuer.is_down = False
    issuer.now += UNKNOWN_KEY_INTERVAL_S
    assert await status_of(login, issuer.token()) == 200


async def test_unknown_key_ids_cause_one_fetch():
    issuer = Issuer()
    login = login_of(issuer)
    await login.keys.refresh()
    before = login.keys.fetch_count
    tokens = [issuer.token({"kid": f"made-up-{number}"}) for number in range(200)]
    found = await asyncio.gather(*(status_of(login, token) for token in tokens))
    assert set(found) == {401} and login.keys.fetch_count == before + 1
    assert await status_of(login, issuer.token({"kid": "another"})) == 503  # it may be a new key: later
    assert await status_of(login, issuer.token()) == 200 and login.keys.fetch_count == before + 1
    issuer.now += UNKNOWN_KEY_INTERVAL_S
    assert await status_of(login, issuer.token({"kid": "another"})) == 401
    assert login.keys.fetch_count == before + 2


async def test_foreign_token_causes_no_fetch():
    issuer = Issuer()
    login = login_of(issuer)
    for token in (issuer.token(aud="https://other.example"), issuer.token(iss="https://x.example"), "a.b.c", "opaque"):
        assert await status_of(login, token) == 401
    assert issuer.fetched == []


async def test_new_key_works_at_once_and_old_key_until_withdrawn():
    issuer = Issuer()
    login = login_of(issuer)
    await login.keys.refresh()
    old = issuer.token()
    assert await status_of(login, old) == 200
    issuer.rotate("k2")
    assert await status_of(login, issuer.token()) == 200 and await status_of(login, old) == 200
    issuer.keys = issuer.keys[1:]
    assert await status_of(login, old) == 200
    await login.keys.refresh()
    issuer.now += UNKNOWN_KEY_INTERVAL_S
    assert await status_of(login, old) == 401  # withdrawn
    assert await status_of(login, issuer.token()) == 200


async def test_key_replaced_under_same_id_is_withdrawn():
    issuer = Issuer()
    changes: list[None] = []
    login = IdentityProvider(SETTINGS, ACCESS, issuer.fetch, lambda: changes.append(None), now=lambda: issuer.now)
    await login.keys.refresh()
    old = issuer.token()
    assert await status_of(login, old) == 200
    issuer.rotate("k1", keep=False)
    await login.keys.refresh()
    assert changes and await status_of(login, old) == 401


@pytest.mark.parametrize(
    "jwks",
    [
        b"",
        b"<html>",
        b"[]",
        b'{"keys": {}}',
        b'{"keys": []}',
        b'{"keys": [null, 1, "x", {}]}',
        b'{"keys": [{"kty": "oct", "k": "AAAA", "kid": "k1"}]}',
        b'{"keys": [{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "k1"}]}',
        b'{"keys": [{"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA", "kid": "k1"}]}',
        b'{"keys": [{"kty": "OKP", "crv": "X25519", "x": "AA", "kid": "k1"}]}',
        b'{"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB", "kid": "k1"}]}',
        b'{"keys": [], "keys": []}',
    ],
)
async def test_unusable_keys_are_ignored_and_reported(jwks: bytes):
    issuer = Issuer()
    problems: list[str] = []
    login = IdentityProvider(
        SETTINGS, ACCESS, issuer.fetch, emit=lambda event: problems.append(str(event)), now=lambda: issuer.now
    )
    await login.keys.refresh()
    issuer.jwks = jwks
    await login.keys.refresh()
    assert login.keys.problem and any("keys_unavailable" in each for each in problems)
    assert await status_of(login, issuer.token()) == 200


def test_keys_not_meant_for_verifying_are_skipped():
    good = public_jwk(new_key(), "good")
    weak = public_jwk(rsa_key(1024), "weak")
    entries = [
        public_jwk(new_key(), "for-encryption", use="enc"),
        public_jwk(new_key(), "for-signing-only", key_ops=["sign"]),
        public_jwk(new_key(), "with-its-private-half", d="AAAA"),
        public_jwk(new_key(), "of-another-algorithm", alg="RS256"),
        public_jwk(new_key(), "of-no-algorithm", alg=1),
        {"kty": "EC", "kid": "without-a-curve"},
        weak,
        good,
        public_jwk(new_key(), "good"),  # a second one of that id
    ]
    keys = parse_jwks(json.dumps({"keys": entries}).encode())
    found = keys.find("good", "ES256")
    assert len(keys) == 1 and found is not None and good["x"] in found.identity
    assert keys.find("good", "RS256") is None and keys.find("weak", "RS256") is None


def test_token_without_key_id_needs_a_single_candidate():
    two = [public_jwk(new_key(), "1"), public_jwk(new_key(), "2"), public_jwk(rsa_key(), "3")]
    keys = parse_jwks(json.dumps({"keys": two}).encode())
    assert keys.find("", "ES256") is None and keys.find("", "RS256") is not None


def test_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "joserfc", None)
    monkeypatch.setitem(sys.modules, "joserfc.jws", None)
    with pytest.raises(ConfigError) as failed:
        login_of(Issuer())
    assert failed.value.code == "E-LOGIN-MISSING" and failed.value.hint == "pip install 'toolway[login]'"


def test_clock_offset_is_measured():
    assert clock_offset("Tue, 17 Nov 2026 12:00:00 GMT", 1794916800.0 - 90) == 90
    assert clock_offset("", 5.0) == clock_offset("yesterday", 5.0) == 0
