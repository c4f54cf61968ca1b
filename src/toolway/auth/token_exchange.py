"""Gets a token for a server on a caller's behalf, by exchanging the caller's own token at its issuer. No I/O.

    exchange   RFC 8693: subject token = the caller's token, resource and audience = the URL of the server
    obo        the form of Microsoft Entra: grant `jwt-bearer`, with the caller's token as assertion
    id-jag     RFC 8693 for an identity assertion (ID-JAG), then `jwt-bearer` at the server's own issuer

Requests are built here, and responses are checked: another issuer, another kind of token, or more scope than
requested is rejected. `exchange_manager.py` sends the requests, keeps the tokens, and rejects those that open the
gateway.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote, urlsplit

from toolway.auth.refresh import is_usable_token, parse_expires_in, parse_json_object
from toolway.config.schema import OAuth
from toolway.types import AuthError

EXCHANGE_CODE: Final = "E-AUTH-EXCHANGE"
EXCHANGE_GRANT: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
JWT_BEARER_GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ACCESS_TOKEN_TYPE: Final = "urn:ietf:params:oauth:token-type:access_token"
JWT_TYPE: Final = "urn:ietf:params:oauth:token-type:jwt"
ID_JAG_TYPE: Final = "urn:ietf:params:oauth:token-type:id-jag"
RENEW_EARLY_S: Final = 60.0
DEFAULT_LIFETIME_S: Final = 300.0  # of a token whose response does not say it
MAX_LIFETIME_S: Final = 24 * 3600.0
_KNOWN_ERRORS: Final = frozenset(
    {
        *("invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type"),
        *("invalid_scope", "invalid_target", "access_denied", "interaction_required"),
    }
)


class SubjectToken(NamedTuple):
    """The token with which a caller logged in, and the issuer that verified it. Only that issuer may get it."""

    token: str
    issuer: str
    expires_at: float
    issued_at: float | None = None  # seconds since 1970; None if the token does not say it

    def __repr__(self) -> str:
        return f"SubjectToken(issuer={self.issuer!r})"  # never the token


class SubjectTokens(Protocol):
    """Gives access to the tokens with which callers logged in to a gateway."""

    def find_subject_token(self, caller: str) -> SubjectToken | None:
        """Return the token with which a caller logged in, or None if it is missing, expired, or was ended."""
        ...

    def is_login_ended(self, caller: str) -> bool:
        """Return True if an administrator ended a caller's login, so the caller's tokens must not be used."""
        ...

    def is_token_ended(self, caller: str, issued_at: float | None) -> bool:
        """Return True if an administrator ended a caller's login after one of the caller's tokens was issued."""
        ...

    def opens_gateway(self, token: str) -> bool:
        """Return True if the gateway could accept a token as a login, so no server may get it."""
        ...


class TokenRequest(NamedTuple):
    """Form and headers of a request to a token endpoint."""

    form: Mapping[str, str]
    headers: Mapping[str, str]


class ExchangedToken(NamedTuple):
    """A token from an issuer, and the wall-clock time when it expires."""

    token: str
    expires_at: float

    @property
    def renew_at(self) -> float:
        return self.expires_at - RENEW_EARLY_S


def exchange_request(settings: OAuth, subject: SubjectToken, url: str) -> TokenRequest:
    """Return the first request of a token exchange, which goes to the issuer of the caller's token.

    `url` is the URL of the MCP server.
    """
    scope = {"scope": " ".join(settings.scopes)} if settings.scopes else {}
    if settings.grant == "obo":
        form = {"grant_type": JWT_BEARER_GRANT, "assertion": subject.token, "requested_token_use": "on_behalf_of"}
        return _with_client(settings.client_id, settings.client_secret, {**form, **scope})
    form = {"grant_type": EXCHANGE_GRANT, "subject_token": subject.token, "subject_token_type": ACCESS_TOKEN_TYPE}
    if settings.grant == "id-jag":
        form |= {"requested_token_type": ID_JAG_TYPE, "audience": settings.issuer or "", "resource": url, **scope}
        return _with_client(settings.idp_client_id, settings.idp_client_secret, form)
    form |= {"requested_token_type": ACCESS_TOKEN_TYPE, "audience": url, "resource": url, **scope}
    return _with_client(settings.client_id, settings.client_secret, form)


def assertion_request(settings: OAuth, assertion: str) -> TokenRequest:
    """Return the second request of a token exchange with the grant `id-jag`, for the server's own issuer.

    The request does not contain the caller's token.
    """
    form = {"grant_type": JWT_BEARER_GRANT, "assertion": assertion}
    if settings.scopes:
        form["scope"] = " ".join(settings.scopes)
    return _with_client(settings.client_id, settings.client_secret, form)


def _with_client(id_: str | None, secret: str | None, form: dict[str, str]) -> TokenRequest:
    headers = {"Accept": "application/json"}
    if id_ is not None and secret is not None:
        pair = f"{quote(id_, safe='')}:{quote(secret, safe='')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    elif id_ is not None:
        form["client_id"] = id_
    return TokenRequest(form, headers)


def parse_assertion(status: int, body: bytes, issuer: str) -> str:
    """Return the identity assertion in the response to the first request of the grant `id-jag`.

    Raises `AuthError` if the response is an error, or contains another kind of token.
    """
    response = _require_success(status, body, issuer)
    if response.get("issued_token_type") != ID_JAG_TYPE:
        raise answer_error("contains another kind of token than an identity assertion")
    return _require_token(response)


def parse_exchange(settings: OAuth, status: int, body: bytes, issuer: str, now: float) -> ExchangedToken:
    """Return the token for the server from the issuer's response.

    Raises `AuthError` if it is not what was requested.
    """
    response = _require_success(status, body, issuer)
    if str(response.get("token_type", "")).lower() != "bearer":
        raise answer_error("has an unknown token type")
    if response.get("issued_token_type", ACCESS_TOKEN_TYPE) not in (ACCESS_TOKEN_TYPE, JWT_TYPE):
        raise answer_error("contains another kind of token than an access token")
    scope = response.get("scope")
    if scope is not None and not isinstance(scope, str):
        raise answer_error("has an unreadable scope")
    if settings.scopes and scope is not None and set(scope.split()) - set(settings.scopes):
        raise answer_error("grants more scope than was requested")
    lifetime = parse_expires_in(response.get("expires_in"))
    lifetime = DEFAULT_LIFETIME_S if lifetime is None else min(lifetime, MAX_LIFETIME_S)
    return ExchangedToken(_require_token(response), now + lifetime)


def _require_success(status: int, body: bytes, issuer: str) -> dict[str, Any]:
    response = parse_json_object(body)
    if status != 200:
        error = response.get("error")
        is_known = isinstance(error, str) and error in _KNOWN_ERRORS
        shown = f"{status} {error}" if is_known else str(status)  # the rest may repeat the token
        is_refused = 400 <= status < 500 and status != 429
        hint = "ask the administrator of the identity provider to allow this exchange for the gateway"
        raise AuthError(
            f"the identity provider did not exchange the caller's token ({shown})",
            code=EXCHANGE_CODE if is_refused else "E-AUTH-SERVER",
            hint=hint if is_refused else "try again later",
        )
    if response.get("iss", response.get("issuer", issuer)) != issuer:
        raise answer_error("names another issuer")
    return response


def _require_token(response: Mapping[str, Any]) -> str:
    token = response.get("access_token")
    if not isinstance(token, str) or not is_usable_token(token):
        raise answer_error("contains no usable token")
    return token


def answer_error(problem: str) -> AuthError:
    """Return the error for an unusable issuer response. `problem` completes the sentence "the response …"."""
    reason = f"the identity provider's response {problem}, so it was rejected"
    hint = "report it to whoever runs the server; we never fall back to another credential"
    return AuthError(reason, code=EXCHANGE_CODE, hint=hint)


def no_subject_error(server: str, caller: str) -> AuthError:
    """Return the error for a caller who has no token from a login that could be exchanged."""
    who = "calls of the gateway itself have none" if not caller else "an API key has none, and a login may have ended"
    return AuthError(
        f"{server} is called on behalf of a user, but this call has no user token: {who}",
        code=EXCHANGE_CODE,
        hint="log in to the gateway with the identity provider (toolway.gateway.login), then try again",
    )


def metadata_urls(issuer: str) -> tuple[str, str]:
    """Return the two URLs at which an issuer may publish its metadata: OpenID Connect Discovery, and RFC 8414."""
    parts = urlsplit(issuer)
    path = parts.path.rstrip("/")
    origin = f"{parts.scheme}://{parts.netloc}"
    return (
        f"{origin}{path}/.well-known/openid-configuration",
        f"{origin}/.well-known/oauth-authorization-server{path}",
    )


def parse_token_endpoint(status: int, body: bytes, issuer: str) -> str | None:
    """Return the token endpoint in the metadata of an issuer, or None if it is not the metadata of this issuer."""
    response = parse_json_object(body) if status == 200 else {}
    endpoint = response.get("token_endpoint")
    return endpoint if response.get("issuer") == issuer and isinstance(endpoint, str) else None
