"""An identity provider in memory: keys, documents, tokens, good ones and forged ones, and a gateway that trusts it."""

from __future__ import annotations

import base64
import hmac
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.gateway.edge_lab import Edge, edge
from toolway.gateway.gateway import Gateway
from toolway.parts.identity.connection import connect_provider
from toolway.parts.identity.introspection import Ask
from toolway.parts.identity.provider import IdentityProvider
from toolway.parts.identity.runtime import IdentityRuntime
from toolway.parts.identity.settings import IdentitySettings, LoginSettings
from toolway.parts.identity.signing_keys import Fetch
from toolway.types import AuthError

ISSUER: Final = "https://login.example/realms/acme"
AUDIENCE: Final = "https://tools.example/mcp"
SETTINGS: Final = LoginSettings(issuer=ISSUER, audience=AUDIENCE)
ACCESS: Final = {"eng": ("a.*", "b.*", "!b.fail"), "sales": ("b.echo",)}
Json = dict[str, Any]
PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def encode_json(value: object) -> str:
    return encode(json.dumps(value).encode())


def _number(value: int, size: int = 0) -> str:
    return encode(value.to_bytes(size or (value.bit_length() + 7) // 8, "big"))


@cache
def rsa_key(bits: int = 2048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def public_jwk(key: PrivateKey, kid: str, **more: object) -> Json:
    """The public half of a key as a provider publishes it."""
    if isinstance(key, ec.EllipticCurvePrivateKey):
        numbers = key.public_key().public_numbers()
        return {
            "kty": "EC",
            "crv": "P-256",
            "x": _number(numbers.x, 32),
            "y": _number(numbers.y, 32),
            "kid": kid,
        } | more
    if isinstance(key, rsa.RSAPrivateKey):
        public = key.public_key().public_numbers()
        return {"kty": "RSA", "n": _number(public.n), "e": _number(public.e), "kid": kid} | more
    raw = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return {"kty": "OKP", "crv": "Ed25519", "x": encode(raw), "kid": kid} | more


def pem(key: PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def sign(key: PrivateKey, algorithm: str, data: bytes) -> bytes:
    if isinstance(key, ec.EllipticCurvePrivateKey):
        r, s = decode_dss_signature(key.sign(data, ec.ECDSA(hashes.SHA256())))
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")
    if isinstance(key, rsa.RSAPrivateKey):
        if algorithm == "PS256":
            return key.sign(data, padding.PSS(padding.MGF1(hashes.SHA256()), 32), hashes.SHA256())
        return key.sign(data, padding.PKCS1v15(), hashes.SHA256())
    return key.sign(data)


def compact(header: Json | str, claims: Json | str, signature: bytes | PrivateKey) -> str:
    """A compact JWT of exactly these parts; a text is already encoded."""
    signed = ".".join(part if isinstance(part, str) else encode_json(part) for part in (header, claims))
    if not isinstance(signature, bytes):
        algorithm = header["alg"] if isinstance(header, dict) else ""
        signature = sign(signature, algorithm, signed.encode())
    return f"{signed}.{encode(signature)}"


def hs256(header: Json, claims: Json, secret: bytes) -> str:
    signed = f"{encode_json(header)}.{encode_json(claims)}"
    return f"{signed}.{encode(hmac.digest(secret, signed.encode(), 'sha256'))}"


class Issuer:
    """An identity provider: its key, the documents that it publishes, and how often each was fetched."""

    def __init__(self, url: str = ISSUER) -> None:
        self.url = url
        self.key: PrivateKey = new_key()
        self.kid = "k1"
        self.keys = [public_jwk(self.key, "k1")]
        self.is_down = False
        self.jwks: bytes | None = None  # instead of the keys
        self.metadata: Json = {"issuer": url, "jwks_uri": f"{url}/keys"}
        self.fetched: list[str] = []
        self.date = ""  # that its answers over HTTP have
        self.now = time.time()

    def rotate(self, kid: str, *, keep: bool = True) -> None:
        """Sign with a new key from now on."""
        self.key, self.kid = new_key(), kid
        self.keys = [*(self.keys if keep else []), public_jwk(self.key, kid)]

    async def fetch(self, url: str) -> bytes:
        self.fetched.append(url)
        if self.is_down:
            raise AuthError("the authorization server cannot be reached", code="E-AUTH-SERVER")
        if url == f"{self.url}/.well-known/openid-configuration":
            return json.dumps(self.metadata).encode()
        if url == self.metadata.get("jwks_uri"):
            return self.jwks if self.jwks is not None else json.dumps({"keys": self.keys}).encode()
        raise AuthError(f"{url} answered with HTTP 404", code="E-LOGIN-PROVIDER")

    def claims(self, **changes: object) -> Json:
        """The claims of a good token, with these changed; None leaves one out."""
        now = int(self.now)
        found: Json = {
            "iss": self.url,
            "sub": "alice",
            "aud": AUDIENCE,
            "exp": now + 600,
            "iat": now,
            "client_id": "claude",
            "scope": "tools:read",
            "groups": ["eng"],
            **changes,
        }
        return {name: value for name, value in found.items() if value is not None}

    def header(self, **changes: object) -> Json:
        found: Json = {"alg": "ES256", "kid": self.kid, "typ": "at+jwt", **changes}
        return {name: value for name, value in found.items() if value is not None}

    def token(self, header: Json | None = None, **changes: object) -> str:
        return compact(self.header(**(header or {})), self.claims(**changes), self.key)


def identity_of(gateway: Gateway) -> IdentityRuntime:
    return gateway.parts.runtime("identity", IdentityRuntime)


def connect_login(
    gateway: Gateway,
    settings: LoginSettings,
    access: Mapping[str, tuple[str, ...]],
    fetch: Fetch | None = None,
    ask: Ask | None = None,
    **more: Any,
) -> IdentityProvider:
    """Let a gateway accept the tokens of a provider from now on."""
    identity = identity_of(gateway)
    identity.start(IdentitySettings(settings, access))
    identity.login = connect_provider(identity.context, IdentitySettings(settings, access), fetch, ask, **more)
    return identity.login


def login_at(gateway: Gateway) -> IdentityProvider:
    """The provider whose tokens a gateway accepts."""
    login = identity_of(gateway).login
    assert login is not None
    return login


@asynccontextmanager
async def guarded(
    folder: Path,
    issuer: Issuer,
    *,
    settings: LoginSettings = SETTINGS,
    access: Mapping[str, tuple[str, ...]] = ACCESS,
    fetched: bool = True,
    ask: Ask | None = None,
    **options: Any,
) -> AsyncIterator[Edge]:
    """A gateway before the servers `a` and `b` that accepts the tokens of the issuer."""
    async with edge(folder, **options) as found:
        login = connect_login(found.gateway, settings, access, issuer.fetch, ask)
        if fetched:
            await login.keys.refresh()
        try:
            yield found
        finally:
            await login.close()
