"""Tokens that must not open the gateway: forged, expired, for another audience, of another issuer, of another kind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.parts.identity.issuer import (
    ACCESS,
    AUDIENCE,
    ISSUER,
    SETTINGS,
    Issuer,
    PrivateKey,
    compact,
    encode,
    encode_json,
    hs256,
    new_key,
    pem,
    public_jwk,
    rsa_key,
)
from toolway.gateway.authenticator import RequestDenied
from toolway.parts.identity.access_tokens import MAX_TOKEN_CHARS, read_groups
from toolway.parts.identity.provider import IdentityProvider, principal_id
from toolway.parts.identity.settings import LoginSettings


def provider(issuer: Issuer, settings: LoginSettings = SETTINGS) -> IdentityProvider:
    made = IdentityProvider(settings, ACCESS, issuer.fetch, now=lambda: issuer.now)
    asyncio.run(made.keys.refresh())
    issuer.fetched.clear()
    return made


def refusal(act: Callable[[], object]) -> RequestDenied | None:
    try:
        act()
    except RequestDenied as refused:
        return refused
    return None


def flipped(token: str, part: int) -> str:
    """The token with one changed character in the middle of a part."""
    parts = token.split(".")
    text, at = parts[part], len(parts[part]) // 2
    parts[part] = text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]
    return ".".join(parts)


def with_other_claims(issuer: Issuer, **changes: object) -> str:
    head, _, signature = issuer.token().split(".")
    return f"{head}.{encode_json(issuer.claims(**changes))}.{signature}"


def of_unknown_key(issuer: Issuer, header: dict[str, object] | None = None, key: PrivateKey | None = None) -> str:
    stranger = key or new_key()
    more = header if header is not None else {"jwk": public_jwk(stranger, issuer.kid)}
    return compact(issuer.header(**more), issuer.claims(), stranger)


FORGED: dict[str, Callable[[Issuer], str]] = {
    # signature
    "of a key that the provider does not have": lambda it: of_unknown_key(it, {}),
    "with its own key in the head": of_unknown_key,
    "with the address of its key in the head": lambda it: of_unknown_key(it, {"jku": "https://evil.example/keys"}),
    "with a certificate address in the head": lambda it: of_unknown_key(it, {"x5u": "https://evil.example/cert"}),
    "with a changed payload": lambda it: with_other_claims(it, groups=["eng", "admin"]),
    "with a changed subject": lambda it: with_other_claims(it, sub="bob"),
    "with one changed bit of the signature": lambda it: flipped(it.token(), 2),
    "with one changed character of the payload": lambda it: flipped(it.token(), 1),
    "with the signature of another token": lambda it: ".".join(
        [*it.token(sub="mallory").split(".")[:2], it.token().split(".")[2]]
    ),
    "without a signature": lambda it: it.token().rpartition(".")[0] + ".",
    "with an empty signature of algorithm none": lambda it: compact(it.header(alg="none"), it.claims(), b"") + "AA",
    "of algorithm None in other letters": lambda it: compact(it.header(alg="nOnE"), it.claims(), b"x"),
    "signed with the public key as a secret": lambda it: hs256(it.header(alg="HS256"), it.claims(), pem(it.key)),
    "signed with the published key text as a secret": lambda it: hs256(
        it.header(alg="HS256"), it.claims(), json.dumps(it.keys[0]).encode()
    ),
    "of an algorithm that does not fit the key": lambda it: compact(it.header(alg="RS256"), it.claims(), rsa_key()),
    "of a curve that does not fit the key": lambda it: compact(it.header(alg="ES384"), it.claims(), it.key),
    "without an algorithm": lambda it: compact(it.header(alg=None), it.claims(), b"x" * 64),
    "of an algorithm that is not a string": lambda it: compact(
        it.header() | {"alg": ["ES256"]}, it.claims(), b"x" * 64
    ),
    "with critical extensions": lambda it: it.token({"crit": ["exp"]}),
    "with an unencoded payload": lambda it: it.token({"b64": False}),
    "with a key id that is not a string": lambda it: compact(it.header() | {"kid": 1}, it.claims(), it.key),
    "whose signature is all zero": lambda it: compact(it.header(), it.claims(), bytes(64)),
    # time
    "that has expired": lambda it: it.token(exp=int(it.now) - 61),
    "that expired long ago": lambda it: it.token(exp=1),
    "that never expires": lambda it: it.token(exp=None),
    "with an expiry that is a string": lambda it: it.token(exp="9999999999"),
    "with an expiry that is true": lambda it: it.token(exp=True),
    "with an expiry that is not a date": lambda it: it.token(exp=1e300),
    "that is not valid yet": lambda it: it.token(nbf=int(it.now) + 61),
    "that was issued in the future": lambda it: it.token(iat=int(it.now) + 3600),
    # issuer and audience
    "of another issuer": lambda it: it.token(iss="https://evil.example"),
    "of an issuer with a slash more": lambda it: it.token(iss=f"{ISSUER}/"),
    "of an issuer in other letters": lambda it: it.token(iss=ISSUER.upper()),
    "of no issuer": lambda it: it.token(iss=None),
    "of a list of issuers": lambda it: it.token(iss=[ISSUER]),
    "for another audience": lambda it: it.token(aud="https://other.example/mcp"),
    "for an audience below ours": lambda it: it.token(aud=f"{AUDIENCE}/admin"),
    "for the host of ours alone": lambda it: it.token(aud="https://tools.example"),
    "for an audience with a slash more": lambda it: it.token(aud=f"{AUDIENCE}/"),
    "for no audience": lambda it: it.token(aud=None),
    "for an empty list": lambda it: it.token(aud=[]),
    "for an audience in an object": lambda it: it.token(aud={AUDIENCE: True}),
    "for our audience and one that is not a string": lambda it: it.token(aud=[AUDIENCE, 1]),
    # kind
    "that is an ID token": lambda it: it.token({"typ": "JWT"}, nonce="n", scope=None, client_id=None, azp="claude"),
    "that is an ID token with a hash of an access token": lambda it: it.token({"typ": "JWT"}, at_hash="x"),
    "that is an ID token of Keycloak": lambda it: it.token({"typ": "JWT"}, typ="ID"),
    "that is a refresh token of Keycloak": lambda it: it.token({"typ": "JWT"}, typ="Refresh"),
    "that is a logout token": lambda it: it.token({"typ": "logout+jwt"}),
    "that is a logout token without its type": lambda it: it.token({"typ": "JWT"}, events={"backchannel-logout": {}}),
    "that is an assertion for another grant": lambda it: it.token({"typ": "oauth-id-jag+jwt"}),
    "that has no mark of an access token": lambda it: it.token({"typ": "JWT"}, scope=None, client_id=None),
    "that is bound to a key of its client": lambda it: it.token(cnf={"jkt": "thumbprint"}),
    "that names no subject": lambda it: it.token(sub=None),
    "that names an empty subject": lambda it: it.token(sub=""),
    "that names a subject that is not a string": lambda it: it.token(sub=["alice"]),
    "that names a subject with a line break": lambda it: it.token(sub="alice\nbob"),
    # form
    "that is encrypted": lambda it: f"{it.token()}.x.y",
    "that has a space in it": lambda it: it.token().replace(".", ". "),
    "that is too long": lambda it: it.token(more="x" * MAX_TOKEN_CHARS),
    "with a duplicate claim": lambda it: compact(
        it.header(), encode(json.dumps(it.claims())[:-1].encode() + b',"sub":"bob"}'), it.key
    ),
    "with a duplicate header": lambda it: compact(
        encode(json.dumps(it.header())[:-1].encode() + b',"alg":"none"}'), it.claims(), it.key
    ),
    "with claims that are a list": lambda it: compact(it.header(), encode(b"[]"), it.key),
    "with padding": lambda it: it.token().replace(".", "=.", 1),
    "of three dots": lambda it: "..",
    "that is an API key with dots": lambda it: "tw_a.b.c",
}


def test_at_least_40_forged_tokens_are_tried():
    assert len(FORGED) >= 40


@pytest.mark.parametrize("name", FORGED)
@pytest.mark.attack("R3-login-1")
def test_forged_token_is_rejected(name: str):
    issuer = Issuer()
    login = provider(issuer)
    assert refusal(lambda: login.authenticate(issuer.token())) is None  # so the rest of it is right
    token = FORGED[name](issuer)
    refused = refusal(lambda: login.authenticate(token))
    assert refused is not None and refused.status == 401
    challenge = dict(refused.headers)["www-authenticate"]
    assert 'error="invalid_token"' in challenge and "resource_metadata=" in challenge
    assert token not in challenge and not issuer.fetched
    assert refusal(lambda: login.authenticate(token)) is not None  # also the second time


@pytest.mark.parametrize(
    ("header", "claims"),
    [
        ({"typ": "application/at+jwt"}, {}),
        ({"typ": "AT+JWT"}, {}),
        ({"typ": "JWT"}, {"typ": "Bearer", "azp": "claude", "realm_access": {"roles": ["x"]}}),  # Keycloak
        ({"typ": "JWT", "x5t": "abc"}, {"scope": None, "scp": "tools:read", "appid": "1"}),  # Entra
        ({"typ": None}, {"scope": None, "scp": ["tools:read"], "client_id": None, "cid": "1"}),  # Okta
        ({}, {"aud": ["https://other.example", AUDIENCE]}),
        ({}, {"exp": 0.5}),
        ({"kid": None}, {}),  # there is only one key
    ],
)
def test_access_tokens_of_real_providers_are_accepted(header: dict[str, object], claims: dict[str, object]):
    issuer = Issuer()
    if claims.get("exp") == 0.5:
        claims = {"exp": issuer.now + 0.5}
    found = provider(issuer).authenticate(issuer.token(header, **claims))
    assert found.principal.id == principal_id(ISSUER, "alice")


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256", "EdDSA", "Ed25519"])
def test_configured_signature_algorithms_are_accepted(algorithm: str):
    from cryptography.hazmat.primitives.asymmetric import ed25519

    issuer = Issuer()
    if algorithm in ("RS256", "PS256"):
        issuer.key = rsa_key()
    elif algorithm != "ES256":
        issuer.key = ed25519.Ed25519PrivateKey.generate()
    issuer.keys = [public_jwk(issuer.key, issuer.kid)]
    token = issuer.token({"alg": algorithm})
    assert provider(issuer).authenticate(token).principal.name == "alice"
    settings = replace(SETTINGS, algorithms=("ES384",))
    refused = refusal(lambda: provider(issuer, settings).authenticate(token))
    assert refused is not None and refused.status == 401


def test_accepted_token_is_rejected_after_expiry():
    issuer = Issuer()
    login = provider(issuer)
    token = issuer.token(exp=int(issuer.now) + 10)
    end = login.authenticate(token).expires_at
    assert end == int(issuer.now) + 10 + 60  # clocks may differ by a minute
    issuer.now = end - 1
    assert login.authenticate(token).expires_at == end
    issuer.now = end
    refused = refusal(lambda: login.authenticate(token))
    assert refused is not None and refused.status == 401


def test_missing_scope_challenge_lists_all_required_scopes():
    issuer = Issuer()
    login = provider(issuer, replace(SETTINGS, scopes=("tools:read", "tools:write")))
    refused = refusal(lambda: login.authenticate(issuer.token()))
    assert refused is not None and refused.status == 403
    challenge = dict(refused.headers)["www-authenticate"]
    assert 'error="insufficient_scope"' in challenge and 'scope="tools:read tools:write"' in challenge
    assert refusal(lambda: login.authenticate(issuer.token(scope="tools:write openid tools:read"))) is None
    forged = with_other_claims(issuer, scope="x")
    refused = refusal(lambda: login.authenticate(forged))  # what it lacks is not said before it is verified
    assert refused is not None and refused.status == 401


def test_scope_claim_cannot_inject_into_header():
    issuer = Issuer()
    login = provider(issuer, replace(SETTINGS, scopes=("tools:write",)))
    refused = refusal(lambda: login.authenticate(issuer.token(scope='x", realm="evil \u00e9 \\')))
    assert refused is not None
    challenge = dict(refused.headers)["www-authenticate"]
    assert challenge.isascii() and challenge.count('realm="') == 1


def test_user_is_identified_by_issuer_and_subject_only():
    issuer = Issuer()
    login = provider(issuer)
    alice = login.authenticate(issuer.token(preferred_username="bob", email="bob@acme")).principal
    bob = login.authenticate(issuer.token(sub="bob", preferred_username="bob")).principal
    assert alice.name == bob.name == "bob" and alice.id != bob.id
    assert alice.id == alice.caller_id == principal_id(ISSUER, "alice") != principal_id("https://other", "alice")
    assert login.authenticate(issuer.token(preferred_username="\u202etxt.exe\x1b[31m")).principal.name == "txt.exe[31m"


def test_equal_principals_are_one_object():
    issuer = Issuer()
    login = provider(issuer)
    first = login.authenticate(issuer.token(jti="1")).principal
    assert login.authenticate(issuer.token(jti="2")).principal is first
    assert login.authenticate(issuer.token(jti="3", groups=["sales"])).principal is not first


@pytest.mark.parametrize(
    ("groups", "scopes"),
    [
        (["eng", "unknown"], ("access:eng",)),
        (["sales", "eng", "eng"], ("access:eng", "access:sales")),
        ("sales", ("access:sales",)),
        ([], ()),
        (None, ()),
        (["*"], ()),  # a group of that name is not everyone
        ([{"name": "eng"}], ()),
        ({"eng": True}, ()),
        (["ENG"], ()),
    ],
)
def test_groups_become_scopes(groups: object, scopes: tuple[str, ...]):
    issuer = Issuer()
    principal = provider(issuer).authenticate(issuer.token(groups=groups)).principal
    assert principal.access == scopes and not principal.admin


def test_administrators_are_members_of_admin_group():
    issuer = Issuer()
    login = provider(issuer, replace(SETTINGS, admins=("platform",)))
    found = login.authenticate(issuer.token(groups=["platform"])).principal
    assert (found.id, found.caller_id) == (principal_id(ISSUER, "alice"),) * 2
    assert found.admin and found.access is None and (found.subject, found.groups) == ("alice", ("platform",))
    assert not login.authenticate(issuer.token(groups=["admin"])).principal.admin


def test_groups_claim_can_be_renamed_or_nested():
    claims = {"https://acme.example/groups": ["a"], "realm_access": {"roles": ["b"]}, "roles": ["c"]}
    assert read_groups(claims, "https://acme.example/groups") == ("a",)
    assert read_groups(claims, "realm_access.roles") == ("b",)
    assert read_groups(claims, "") == ("c",)
    assert read_groups(claims, "groups") == ()
    assert read_groups({"groups": [*map(str, range(3000)), "eng"]}, "") == ()  # too many are none
    assert read_groups({"_claim_names": {"groups": "src1"}}, "") == ()  # Entra, if a user has too many


def test_changed_access_applies_to_next_request():
    issuer = Issuer()
    changes: list[None] = []
    login = IdentityProvider(SETTINGS, ACCESS, issuer.fetch, lambda: changes.append(None), now=lambda: issuer.now)
    asyncio.run(login.keys.refresh())
    token = issuer.token(groups=["eng", "ops"])
    assert login.authenticate(token).principal.access == ("access:eng",)
    login.set_access({"ops": ("b.*",)})
    assert changes and login.authenticate(token).principal.access == ("access:ops",)
