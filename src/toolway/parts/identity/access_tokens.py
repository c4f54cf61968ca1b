"""Rules for access tokens (JWT, RFC 9068): whether a token is meant for this gateway, and what it says.

A token passes three steps. `parse_token` reads the header and the claims. `TokenRules.check` decides whether it is an
access token from the provider, is meant for this gateway, and is valid now. Then its signature is verified with one of
the provider's keys (signing_keys.py). All three steps must succeed, because the sender could have written any claim.
"""

from __future__ import annotations

import base64
import math
import re
from binascii import Error as Base64Error
from typing import Any, Final, NamedTuple

from toolway.parts.identity.settings import LoginSettings
from toolway.protocol.jsonrpc import decode_json
from toolway.protocol.sanitize import remove_invisible
from toolway.types import Json

MAX_TOKEN_CHARS: Final = 16 * 1024  # Entra issues tokens of a few kB; the head of a request has a limit too
MAX_SUBJECT_CHARS: Final = 512
MAX_NAME_CHARS: Final = 100
MAX_GROUPS_PER_TOKEN: Final = 2000  # a longer list counts as no group at all
CLOCK_SKEW_S: Final = 60.0  # seconds by which the clocks of provider and gateway may differ
_MAX_TIME: Final = 1e12  # seconds since 1970; beyond it a number is not a date
_COMPACT: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
#: Parameters of a header that name or contain a key: a key of the sender's choice proves nothing. `crit` requires
#: extensions of which none is supported, and `b64` changes what is signed.
_FORBIDDEN_HEADERS: Final = ("crit", "b64", "jwk", "jku", "x5u", "zip", "enc")
_ACCESS_TOKEN_TYPES: Final = ("at+jwt", "application/at+jwt")
#: Claims of tokens of other kinds: ID tokens, logout tokens and security events, and tokens that are bound to a key
#: of the client, which a bearer does not prove.
_FOREIGN_CLAIMS: Final = ("nonce", "at_hash", "c_hash", "s_hash", "events", "sub_jwk")
_CLIENT_CLAIMS: Final = ("scope", "scp", "azp", "client_id", "cid", "appid")
_NAME_CLAIMS: Final = ("preferred_username", "email", "upn", "name")


class InvalidToken(Exception):
    """Raised when a token does not authenticate its sender.

    The message goes to the sender, so it must not contain secrets.
    """


class ParsedToken(NamedTuple):
    """The header and claims of a token whose signature is not verified yet, so none of it can be trusted."""

    algorithm: str
    key_id: str  # "" if the header has none
    type: str  # in lower case
    claims: Json


class TokenIdentity(NamedTuple):
    """What a verified access token says: who logged in, with which client, and until when."""

    subject: str
    name: str  # for display; it proves nothing, and two users may have the same
    client: str  # id of the client program, "" if unknown
    groups: tuple[str, ...]
    scopes: frozenset[str]
    expires_at: float  # seconds since 1970, with the allowed difference of clocks
    issued_at: float | None  # seconds since 1970; None if the token does not say it
    mfa: bool = False  # the provider says that several factors were used


def parse_token(token: str) -> ParsedToken:
    """Read the header and claims of a compact JWT. Raises `InvalidToken` if it cannot be parsed."""
    if len(token) > MAX_TOKEN_CHARS:
        raise InvalidToken("the token is too long")
    if _COMPACT.fullmatch(token) is None:
        raise InvalidToken("the token is not a signed JWT")
    head, body, _ = token.split(".")
    header, claims = _decode_part(head), _decode_part(body)
    for name in _FORBIDDEN_HEADERS:
        if name in header:
            raise InvalidToken(f"the header parameter {name} is not accepted")
    algorithm, key_id, type_ = header.get("alg"), header.get("kid", ""), header.get("typ", "")
    if not isinstance(algorithm, str) or not isinstance(key_id, str) or not isinstance(type_, str):
        raise InvalidToken("the token has an invalid header")
    return ParsedToken(algorithm, key_id, type_.lower(), claims)


def is_jwt(token: str) -> bool:
    """Return True if a token has the three parts of a signed JWT. All other tokens are opaque."""
    return token.count(".") == 2


def _decode_part(part: str) -> Json:
    """Decode one part of a JWT, which is a JSON object without duplicate keys in base64url without padding."""
    try:
        data = base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
        # Unused bits in the last character would give one token several spellings.
        if base64.urlsafe_b64encode(data).rstrip(b"=") != part.encode():
            raise ValueError
        value = decode_json(data)
    except (ValueError, Base64Error):
        raise InvalidToken("the token cannot be decoded") from None
    if not isinstance(value, dict):
        raise InvalidToken("the token cannot be decoded")
    return value


class TokenRules:
    """The gateway's rules for tokens: issuer, audience, algorithm, validity period, and kind of token."""

    def __init__(self, settings: LoginSettings) -> None:
        self._issuer = settings.issuer
        self._audience = settings.audience
        self._algorithms = frozenset(settings.algorithms)
        self._groups_claim = settings.groups_claim

    def check(self, token: ParsedToken, now: float) -> TokenIdentity:
        """Return the identity in an access token that is from the provider, for this gateway, and valid at `now`.

        Raises `InvalidToken` otherwise. The caller must also verify the signature. Scopes are not checked here.
        """
        claims = token.claims
        if token.algorithm not in self._algorithms:
            raise InvalidToken("the signature algorithm is not accepted")
        issuer = claims.get("iss")
        if not isinstance(issuer, str) or issuer != self._issuer:
            raise InvalidToken("the token is from another issuer")
        if not self.is_for_us(claims.get("aud")):
            raise InvalidToken("the token is for another audience")
        expires_at = self._check_times(claims, now)
        _check_kind(token)
        return self._identify(claims, expires_at)

    def check_assertion(self, token: ParsedToken, now: float) -> TokenIdentity:
        """Return the identity in an identity assertion that comes from the provider and is valid at `now`.

        Raises `InvalidToken` otherwise. The caller must also check the audience and verify the signature.
        """
        if token.algorithm not in self._algorithms:
            raise InvalidToken("the signature algorithm is not accepted")
        issuer = token.claims.get("iss")
        if not isinstance(issuer, str) or issuer != self._issuer:
            raise InvalidToken("the assertion is from another issuer")
        return self._identify(token.claims, self._check_times(token.claims, now))

    def check_introspected(self, claims: Json, now: float, until: float) -> TokenIdentity:
        """Return the identity behind an active opaque token, given the provider's `claims` about it.

        The identity is used no later than `until`; then the provider is asked again. Raises `InvalidToken` if the token
        is not for this gateway.
        """
        if claims.get("iss", self._issuer) != self._issuer:
            raise InvalidToken("the token is from another issuer")
        if not self.is_for_us(claims.get("aud")):
            raise InvalidToken("the token is for another audience")
        kind = claims.get("token_type", "Bearer")
        if "cnf" in claims or not isinstance(kind, str) or kind.lower() != "bearer":
            raise InvalidToken("the token is not a bearer token")
        if _states_another_kind(claims):
            raise InvalidToken("the token is not an access token")
        expires_at = self._check_times({"exp": until, **claims}, now)
        return self._identify({"name": claims.get("username"), **claims}, min(expires_at, until))

    def _identify(self, claims: Json, expires_at: float) -> TokenIdentity:
        subject = claims.get("sub")
        if not isinstance(subject, str) or not 0 < len(subject) <= MAX_SUBJECT_CHARS or not subject.isprintable():
            raise InvalidToken("the token has no subject")
        return TokenIdentity(
            subject,
            _read_name(claims) or subject[:MAX_NAME_CHARS],
            _read_client(claims),
            read_groups(claims, self._groups_claim),
            read_scopes(claims),
            expires_at,
            _read_time(claims, "iat"),
            _read_mfa(claims),
        )

    def is_for_us(self, audience: Any) -> bool:
        """Return True if the claim `aud` is this gateway's audience, or a list that contains it."""
        if isinstance(audience, str):
            return audience == self._audience
        return (
            isinstance(audience, list)
            and all(isinstance(each, str) for each in audience)
            and self._audience in audience
        )

    @staticmethod
    def _check_times(claims: Json, now: float) -> float:
        """Return when a token expires, in seconds since 1970.

        Raises `InvalidToken` if the token is not valid at `now`.
        """
        expires_at = _read_time(claims, "exp")
        if expires_at is None:
            raise InvalidToken("the token never expires (no exp claim)")
        if now >= expires_at + CLOCK_SKEW_S:
            raise InvalidToken("the token has expired")
        for name in ("nbf", "iat"):
            begins_at = _read_time(claims, name)
            if begins_at is not None and now < begins_at - CLOCK_SKEW_S:
                raise InvalidToken("the token is not valid yet")
        return expires_at + CLOCK_SKEW_S


def _check_kind(token: ParsedToken) -> None:
    """Raise `InvalidToken` unless a token is an access token, judging by its type header and its claims.

    Some providers declare the type of access tokens as `JWT` (Keycloak, Entra) or not at all (Okta). Such a token must
    have a claim that only access tokens have, and none that only ID tokens have.
    """
    claims = token.claims
    if "cnf" in claims:
        raise InvalidToken("the token is bound to a key of its client, which is not supported")
    if token.type in _ACCESS_TOKEN_TYPES:
        return
    if (
        token.type not in ("jwt", "")
        or _states_another_kind(claims)
        or any(name in claims for name in _FOREIGN_CLAIMS)
        or not any(name in claims for name in _CLIENT_CLAIMS)
    ):
        raise InvalidToken("the token is not an access token")


def _states_another_kind(claims: Json) -> bool:
    """Return True if a token's claims say that it is an ID token, a refresh token, or something unknown.

    Keycloak declares the kind in `typ` (Bearer, ID, Refresh, Logout), and Cognito and Hydra declare it in `token_use`.
    """
    kind, use = claims.get("typ", "Bearer"), claims.get("token_use", "access")
    return not (isinstance(kind, str) and kind.lower() == "bearer" and use in ("access", "access_token"))


def read_scopes(claims: Json) -> frozenset[str]:
    """Return a token's scopes from `scope` (text with spaces), or from some providers' `scp` (text or list)."""
    for name in ("scope", "scp"):
        value = claims.get(name)
        if isinstance(value, str):
            return frozenset(value.split())
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            return frozenset(value)
    return frozenset()


def read_groups(claims: Json, claim: str) -> tuple[str, ...]:
    """Return a user's groups from a token's claims, or nothing if the claim is missing, invalid, or too long.

    `claim` is the name of a claim, or a path to one (`realm_access.roles`). If it is "", `groups` is tried first, then
    `roles`.
    """
    for name in (claim,) if claim else ("groups", "roles"):
        value = claims.get(name)
        if value is None and "." in name:
            value = claims
            for part in name.split("."):
                value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, str):
            value = [value]
        if isinstance(value, list) and len(value) <= MAX_GROUPS_PER_TOKEN:
            return tuple(dict.fromkeys(each for each in value if isinstance(each, str)))
    return ()


def _read_name(claims: Json) -> str:
    for claim in _NAME_CLAIMS:
        value = claims.get(claim)
        if isinstance(value, str):
            name = remove_invisible(value)[:MAX_NAME_CHARS].strip()
            if name and name.isprintable():
                return name
    return ""


def _read_client(claims: Json) -> str:
    found = (claims.get(name) for name in ("client_id", "azp", "cid", "appid"))
    client = next((each for each in found if isinstance(each, str)), "")
    return "".join(each for each in remove_invisible(client)[:MAX_NAME_CHARS] if each.isprintable())


def _read_mfa(claims: Json) -> bool:
    """Return True if a token's `amr` claim says that the user logged in with several factors (RFC 8176)."""
    methods = claims.get("amr")
    return isinstance(methods, list) and "mfa" in methods


def _read_time(claims: Json, name: str) -> float | None:
    """Return the time in the claim `name`, or None if the token has no such claim.

    Raises `InvalidToken` if the claim is not a time.
    """
    value = claims.get(name)
    if value is None and name not in claims:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidToken(f"the claim {name} is not a time")
    if not 0 <= value <= _MAX_TIME:
        raise InvalidToken(f"the claim {name} is not a time")
    return float(value)
