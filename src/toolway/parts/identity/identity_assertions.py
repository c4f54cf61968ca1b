"""Enterprise-managed authorization: clients exchange identity assertions for gateway tokens.

An assertion (ID-JAG) is a JWT that the company's provider issued to a client for one user and this gateway, without a
browser. The gateway accepts it at one token endpoint, with the grant `jwt-bearer` (RFC 7523). The token it returns is a
sealed handle that every node of a cluster can open. Refresh tokens are not issued: the client gets a new assertion
instead.
"""

from __future__ import annotations

import base64
import hmac
import secrets
import time
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from toolway.gateway.sealing import Sealer
from toolway.parts.identity.access_tokens import (
    CLOCK_SKEW_S,
    InvalidToken,
    ParsedToken,
    TokenIdentity,
    TokenRules,
    parse_token,
)
from toolway.parts.identity.settings import LoginSettings
from toolway.protocol.jsonrpc import encode_json
from toolway.types import Json

if TYPE_CHECKING:
    from toolway.http.exchange import HttpRequest

GRANT_TYPE: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ASSERTION_TYPES: Final = ("oauth-id-jag+jwt", "application/oauth-id-jag+jwt")
METADATA_PATH: Final = "/.well-known/oauth-authorization-server"
TOKEN_PATH: Final = "/oauth/token"
AUTHORIZE_PATH: Final = "/oauth/authorize"  # clients require that there is one
TOKEN_PREFIX: Final = "ema_"
TOKEN_LIFETIME_S: Final = 900.0  # a client then needs a new assertion, which the provider may refuse
MAX_ASSERTION_LIFETIME_S: Final = 600.0  # an assertion that is good for longer is refused
MAX_USED: Final = 100_000  # assertions that are remembered until they expire; beyond it none is accepted
_SEAL_KIND: Final = "ema-token"
_JSON: Final = (("content-type", "application/json"), ("cache-control", "no-store"))

#: Verifies the signature of a parsed token. Raises `InvalidToken`, or `RequestDenied` if its key is not known (yet).
VerifySignature = Callable[[str, ParsedToken], None]
Answer = tuple[int, bytes, tuple[tuple[str, str], ...]]


class GrantRefused(Exception):
    """Raised when a request to the token endpoint is rejected. `code` is an RFC 6749 error code."""

    def __init__(self, code: str, description: str, status: int = 400) -> None:
        super().__init__(description)
        self.code = code
        self.status = status


class AssertionGrants:
    """A gateway's token endpoint, where clients exchange identity assertions for tokens.

    `clients` has the secrets of the allowed clients, by client id.
    """

    def __init__(
        self,
        settings: LoginSettings,
        clients: Mapping[str, str],
        sealer: Sealer,
        verify: VerifySignature,
        now: Callable[[], float] = time.time,
    ) -> None:
        parts = urlsplit(settings.resource_url)
        self.issuer = f"{parts.scheme}://{parts.netloc}"
        self._settings = settings
        self._rules = TokenRules(settings)
        self._clients = dict(clients)
        self._sealer = sealer
        self._verify = verify
        self._now = now
        self._used: dict[str, float] = {}  # id of a used assertion → when it expires; the oldest first
        self.metadata = encode_json(
            {
                "issuer": self.issuer,
                "token_endpoint": f"{self.issuer}{TOKEN_PATH}",
                "authorization_endpoint": f"{self.issuer}{AUTHORIZE_PATH}",
                "response_types_supported": ["code"],
                "grant_types_supported": [GRANT_TYPE],
                "authorization_grant_profiles_supported": ["urn:ietf:params:oauth:grant-profile:id-jag"],
                "token_endpoint_auth_methods_supported": ["client_secret_post", "client_secret_basic"],
            }
        )

    # -- the endpoint -------------------------------------------------------------------------------------------------

    def handles(self, request: HttpRequest) -> bool:
        """Return True for requests to the token endpoint, metadata document, or authorization URL."""
        return (request.method, request.path) in (
            ("POST", TOKEN_PATH),
            ("GET", METADATA_PATH),
            ("GET", AUTHORIZE_PATH),
        )

    def answer(self, request: HttpRequest) -> Answer:
        """Answer a request: return the status, body, and headers.

        Raises `VerificationPending` while the key that verifies the assertion is being fetched.
        """
        if request.path == METADATA_PATH:
            return 200, self.metadata, (*_JSON[:1], ("cache-control", "max-age=300"))
        if request.path == AUTHORIZE_PATH:
            text = f"users log in at {self._settings.issuer}; this endpoint accepts identity assertions only"
            return 400, _error("unsupported_response_type", text), _JSON
        try:
            return 200, encode_json(self._exchange(request)), _JSON
        except GrantRefused as refused:
            challenge = (("www-authenticate", 'Basic realm="toolway"'),) if refused.status == 401 else ()
            return refused.status, _error(refused.code, str(refused)), (*_JSON, *challenge)

    def _exchange(self, request: HttpRequest) -> Json:
        form = _read_form(request)
        client = self._authenticate_client(request, form)
        if form.get("grant_type") != GRANT_TYPE:
            raise GrantRefused("unsupported_grant_type", f"the grant type must be {GRANT_TYPE}")
        if form.get("resource", self._settings.resource_url) != self._settings.resource_url:
            raise GrantRefused("invalid_target", "the resource is not this gateway")
        token = form.get("assertion", "")
        try:
            identity, claims = self._check(token, client)
        except InvalidToken as exc:
            raise GrantRefused("invalid_grant", str(exc)) from None
        requested = form.get("scope", "").split()
        scopes = [scope for scope in requested if scope in identity.scopes] if requested else sorted(identity.scopes)
        self._use_once(claims, identity.expires_at)
        # An ended login includes what was issued before its end: the assertion's time applies, not the token's.
        value = [identity.subject, identity.name, client, list(identity.groups), scopes, identity.issued_at]
        return {
            "access_token": TOKEN_PREFIX + self._sealer.seal(_SEAL_KIND, value, TOKEN_LIFETIME_S),
            "token_type": "Bearer",
            "expires_in": int(TOKEN_LIFETIME_S),
            **({"scope": " ".join(scopes)} if scopes else {}),
        }

    def _authenticate_client(self, request: HttpRequest, form: Mapping[str, str]) -> str:
        """Return the id of the client that sent a request. Raises `GrantRefused` if its secret is wrong."""
        scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
        client, secret = form.get("client_id", ""), form.get("client_secret", "")
        if scheme.lower() == "basic" and "authorization" not in request.repeated_headers:
            client, secret = _read_basic(encoded)
        expected = self._clients.get(client)
        is_same = hmac.compare_digest((expected or secrets.token_hex(16)).encode(), secret.encode("utf-8", "replace"))
        if expected is None or not expected or not is_same:
            raise GrantRefused("invalid_client", "the client is unknown, or its secret is wrong", 401)
        return client

    def _check(self, token: str, client: str) -> tuple[TokenIdentity, Json]:
        """Verify an identity assertion. Return its identity and its claims.

        Raises `InvalidToken` if it is not valid for this gateway and this client.
        """
        parsed = parse_token(token)
        claims = parsed.claims
        if parsed.type not in ASSERTION_TYPES:
            raise InvalidToken("the assertion is not an identity assertion (ID-JAG)")
        # `aud` names the token endpoint's issuer, and `resource` the gateway: both must be this one.
        if claims.get("aud") not in (self.issuer, [self.issuer]):
            raise InvalidToken(f"the assertion is for an audience other than {self.issuer}")
        if claims.get("resource") not in (self._settings.resource_url, [self._settings.resource_url]):
            raise InvalidToken("the assertion is for another resource")
        if claims.get("client_id") != client:
            raise InvalidToken("the assertion was issued to another client")
        if not isinstance(claims.get("jti"), str) or not 0 < len(claims["jti"]) <= 512:
            raise InvalidToken("the assertion has no id")
        if "cnf" in claims:
            raise InvalidToken("the assertion is bound to a key of its client, which is not supported")
        identity = self._rules.check_assertion(parsed, self._now())
        if identity.expires_at - CLOCK_SKEW_S > self._now() + MAX_ASSERTION_LIFETIME_S + CLOCK_SKEW_S:
            raise InvalidToken("the assertion is valid for too long")
        self._verify(token, parsed)
        return identity, claims

    def _use_once(self, claims: Json, expires_at: float) -> None:
        """Record an assertion as used until it expires. Raises `GrantRefused` if it was already used."""
        now = self._now()
        for used in [each for each, end in self._used.items() if end <= now]:
            del self._used[used]
        if claims["jti"] in self._used:
            raise GrantRefused("invalid_grant", "the assertion was already used")
        if len(self._used) >= MAX_USED:
            raise GrantRefused("temporarily_unavailable", "too many assertions were used; try again later", 503)
        self._used[claims["jti"]] = expires_at

    # -- its tokens ---------------------------------------------------------------------------------------------------

    def open_token(self, token: str) -> tuple[TokenIdentity, float]:
        """Return the identity behind a token from this endpoint, and when the token expires.

        Raises `InvalidToken` if the token is not valid.
        """
        opened = self._sealer.open_with_expiry(_SEAL_KIND, token.removeprefix(TOKEN_PREFIX))
        if opened is None or opened[0] <= self._now():
            raise InvalidToken("the token has expired" if opened is not None else "unknown token")
        expires_at, (subject, name, client, groups, scopes, issued_at) = opened
        if client not in self._clients:
            raise InvalidToken("the token's client is no longer configured")
        identity = TokenIdentity(subject, name, client, tuple(groups), frozenset(scopes), expires_at, issued_at)
        return identity, expires_at


def is_own_token(token: str) -> bool:
    """Return True if a bearer token looks like one that this endpoint issued."""
    return token.startswith(TOKEN_PREFIX)


def _read_form(request: HttpRequest) -> dict[str, str]:
    """Return the fields of the form in a request's body.

    Raises `GrantRefused` if the body is not a form, or repeats a field.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/x-www-form-urlencoded":
        raise GrantRefused("invalid_request", "send a form: application/x-www-form-urlencoded")
    try:
        pairs = parse_qsl(request.body.decode("ascii"), strict_parsing=True, max_num_fields=30)
    except (ValueError, UnicodeDecodeError):
        raise GrantRefused("invalid_request", "the form cannot be read") from None
    form = dict(pairs)
    if len(form) != len(pairs):
        raise GrantRefused("invalid_request", "a field is repeated")
    return form


def _read_basic(encoded: str) -> tuple[str, str]:
    try:
        client, _, secret = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (Base64Error, ValueError):
        return "", ""
    return unquote(client), unquote(secret)


def _error(code: str, description: str) -> bytes:
    plain = "".join(each for each in description if each.isascii() and each.isprintable() and each not in '"\\')
    body: dict[str, Any] = {"error": code, "error_description": plain}
    return encode_json(body)
