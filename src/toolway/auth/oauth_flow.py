"""OAuth flow for a new token: discovery, registration, login, code exchange.

Loaded on first use.

The steps are the SDK's. The SDK flow expects to send the original request itself and to get its 401 response. Here,
the transport has already sent that request, so the flow gets a copy of the 401 response. Each request that the flow
yields is checked before it is sent. Toolway adds what the SDK leaves open: URLs are checked, an issuer without PKCE
is rejected, an issuer other than the configured one receives nothing, and the authorization server's error messages
are not repeated.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.auth.oauth2 import OAuthContext
from mcp.client.auth.utils import (
    build_protected_resource_metadata_discovery_urls,
    create_oauth_metadata_request,
    extract_resource_metadata_from_www_auth,
    handle_protected_resource_response,
    issuers_match,
    union_scopes,
)
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from mcp_types import LATEST_PROTOCOL_VERSION
from pydantic import AnyUrl

from toolway.auth.oauth_http import fetch
from toolway.auth.refresh import is_usable_token, parse_json_object, rejection_error
from toolway.auth.token_store import Credential, OAuthClient
from toolway.auth.urls import check_oauth_url
from toolway.config.schema import OAuth
from toolway.network import NetworkPolicy
from toolway.secrets.replacer import cut_text
from toolway.types import AuthChallenge, AuthError

#: Called with the URL of the login page; returns the redirect URL at the end of the login.
RunLogin = Callable[[str], Awaitable[str]]

MAX_FLOW_REQUESTS: Final = 24  # requests of one flow, including redirects within an origin

#: The end of a validation error of the SDK. It repeats the response, which may contain tokens and secrets.
_INVALID_INPUT: Final = re.compile(r"\s*\[type=.*", re.DOTALL)

_in_toolway_flow: ContextVar[bool] = ContextVar("a flow of ours runs", default=False)
# The SDK logs each failure with the text of the authorization server. Toolway raises its own error without that text.
logging.getLogger("mcp.client.auth.oauth2").addFilter(lambda record: not _in_toolway_flow.get())


@dataclass(frozen=True, slots=True)
class AuthorizationRequest:
    """The input for one OAuth flow: the server, its OAuth settings, and its challenge."""

    url: str  # of the server
    settings: OAuth
    challenge: AuthChallenge
    previous: Credential | None  # the credential that was rejected, if there was one
    network_policy: NetworkPolicy  # addresses that requests of the flow may use


async def fetch_challenge(url: str, headers: Mapping[str, str], network_policy: NetworkPolicy) -> AuthChallenge:
    """Send a request without credential and return the server's auth challenge.

    Raises `AuthError` if the server accepts the request, which means that it does not require a login, or if it
    cannot be reached.
    """
    protocol_headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": LATEST_PROTOCOL_VERSION,
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    response = await fetch(
        httpx2.Request("POST", url, headers={**headers, **protocol_headers}, json=body), network_policy
    )
    if response.status_code < 300:
        raise AuthError(
            "the server does not need a login", code="E-AUTH-FLOW", hint="call its tools without logging in"
        )
    return AuthChallenge(401, response.headers.get("www-authenticate", ""), "", "login")


async def is_issuer_unchanged(auth_request: AuthorizationRequest, issuer: str) -> bool:
    """Return True if the server's metadata still names `issuer` as one of its issuers.

    If the metadata is missing or cannot be fetched, the issuer counts as unchanged.
    """
    try:
        issuers = await _fetch_issuers(auth_request)
    except AuthError:
        return True
    return issuers is None or any(issuers_match(each, issuer) for each in issuers)


async def _fetch_issuers(auth_request: AuthorizationRequest) -> list[str] | None:
    """Return the issuers in the server's protected resource metadata, or None if it has none."""
    response = _challenge_response(auth_request)
    metadata_url = extract_resource_metadata_from_www_auth(response)
    for url in build_protected_resource_metadata_discovery_urls(metadata_url, auth_request.url):
        response = await fetch(create_oauth_metadata_request(url), auth_request.network_policy)
        found = await handle_protected_resource_response(response)
        if found is not None:
            return [str(issuer) for issuer in found.authorization_servers]
    return None


async def authorize(
    auth_request: AuthorizationRequest, run_login: RunLogin | None, now: Callable[[], float]
) -> Credential:
    """Run the OAuth flow and return the new credential.

    `run_login` lets the user log in; the `client_credentials` grant does not use it. Raises `AuthError` if the flow
    fails.
    """
    provider = _create_provider(auth_request, run_login)
    context_token = _in_toolway_flow.set(True)
    try:
        await _run_flow(provider, auth_request)
    except AuthError:
        raise
    except OAuthFlowError as exc:
        raise _flow_error(cut_text(_INVALID_INPUT.sub("", str(exc)), 300)) from None
    except Exception as exc:
        raise _flow_error(f"{type(exc).__name__}") from None
    finally:
        _in_toolway_flow.reset(context_token)
    return _build_credential(provider.context, auth_request.settings, now())


async def _run_flow(provider: OAuthClientProvider, auth_request: AuthorizationRequest) -> None:
    """Run the SDK's OAuth flow, and send each request that it yields.

    Raises `AuthError` if a request fails, or if the flow yields more than `MAX_FLOW_REQUESTS` requests.
    """
    challenge_response, settings = _challenge_response(auth_request), auth_request.settings
    request = challenge_response.request
    async with aclosing(provider.async_auth_flow(request)) as flow:
        await flow.__anext__()  # yields the original request, which the transport has sent already
        response = challenge_response
        for _ in range(MAX_FLOW_REQUESTS):
            outgoing = await flow.asend(response)
            if outgoing is request:
                return
            _check_metadata(provider.context, settings)
            response = await _send_flow_request(provider.context, auth_request, outgoing)
    raise _flow_error("it needs too many requests")


async def _send_flow_request(
    context: OAuthContext, auth_request: AuthorizationRequest, outgoing: httpx2.Request
) -> httpx2.Response:
    """Send one request of the OAuth flow and return the response.

    Raises `AuthError` if the authorization server cannot be reached or rejects a POST. A POST is not sent at all if
    its issuer has no metadata, or if a client must be registered and the issuer does not support that.
    """
    if outgoing.method == "POST":
        _check_issuer_known(context, auth_request.settings)
    registering = outgoing.method == "POST" and context.client_info is None
    if registering and context.oauth_metadata is not None and context.oauth_metadata.registration_endpoint is None:
        raise _client_error("the authorization server supports no client registration")
    response = await fetch(outgoing, auth_request.network_policy)
    if outgoing.method == "POST" and not response.is_success:  # the SDK would show the text of the response
        if registering:
            raise _client_error(f"the authorization server rejected the client registration ({response.status_code})")
        raise rejection_error(response.status_code, parse_json_object(response.content), "issue a token")
    return response


def _check_issuer_known(context: OAuthContext, settings: OAuth) -> None:
    """Raise `AuthError` if an issuer is named but its metadata was not found.

    Without metadata, the SDK flow would continue at the server's own origin, as in protocol version 2025-03-26.
    """
    named = context.auth_server_url or settings.issuer
    if context.oauth_metadata is None and named is not None:
        raise _flow_error("the authorization server publishes no usable metadata")


def _check_metadata(context: OAuthContext, settings: OAuth) -> None:
    """Raise `AuthError` if the issuer is not the configured one, or if a login would lack PKCE.

    Also sets the client authentication method if the registration response named none.
    """
    found = context.oauth_metadata
    if settings.issuer is not None and found is not None and not issuers_match(str(found.issuer), settings.issuer):
        raise _wrong_issuer_error(str(found.issuer), settings.issuer)
    named = context.auth_server_url
    if settings.issuer is not None and named is not None and not issuers_match(named, settings.issuer):
        raise _wrong_issuer_error(named, settings.issuer)
    pkce = found is None or "S256" in (found.code_challenge_methods_supported or ())
    if settings.grant == "authorization_code" and not pkce:
        reason = "the authorization server does not protect logins (no PKCE with S256)"
        raise AuthError(reason, code="E-AUTH-PKCE", hint="report it to whoever runs the server")
    client = context.client_info
    if client is not None and client.client_secret is not None and client.token_endpoint_auth_method is None:
        # If the registration response names no method for the secret, RFC 7591 defaults to client_secret_basic.
        offered = (found.token_endpoint_auth_methods_supported if found is not None else None) or ()
        basic = "client_secret_basic" in offered or "client_secret_post" not in offered
        client.token_endpoint_auth_method = "client_secret_basic" if basic else "client_secret_post"


def _challenge_response(auth_request: AuthorizationRequest) -> httpx2.Response:
    """Return the server's auth challenge as the HTTP response that the SDK flow expects."""
    request = httpx2.Request("POST", auth_request.url, headers={"MCP-Protocol-Version": LATEST_PROTOCOL_VERSION})
    challenge_headers = (
        {"WWW-Authenticate": auth_request.challenge.www_authenticate} if auth_request.challenge.www_authenticate else {}
    )
    return httpx2.Response(auth_request.challenge.status, headers=challenge_headers, content=b"", request=request)


# -- providers for the SDK --------------------------------------------------------------------------------------------


class _FixedTokenStorage:
    """Read-only token storage for the SDK flow: the known OAuth client and the previous token.

    The setters do nothing, because Toolway reads the new token from the context of the flow.
    """

    def __init__(self, client: OAuthClientInformationFull | None, token: OAuthToken | None) -> None:
        self._client = client
        self._token = token

    async def get_tokens(self) -> OAuthToken | None:
        return self._token

    async def set_tokens(self, tokens: OAuthToken) -> None:
        pass

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        pass


class _LoginProvider(OAuthClientProvider):
    """SDK auth provider for the login of a user in the browser (`authorization_code` grant)."""

    def __init__(self, auth_request: AuthorizationRequest, run_login: RunLogin) -> None:
        settings = auth_request.settings
        metadata = OAuthClientMetadata(
            client_name="Toolway",
            redirect_uris=[AnyUrl(settings.redirect_uri)],
            grant_types=["authorization_code", "refresh_token"],
            response_types=["code"],
        )
        storage = _FixedTokenStorage(_known_client(auth_request), _previous_token(auth_request))
        url = settings.client_metadata_url
        super().__init__(auth_request.url, metadata, storage, self._open_login_page, self._parse_redirect, url)
        self._settings = settings
        self._run_login = run_login
        self._redirect_url = ""
        self._state = ""

    def _select_authorization_server(self, advertised: list[str]) -> str:
        issuer = self._settings.issuer
        return next((each for each in advertised if issuer and issuers_match(each, issuer)), advertised[0])

    async def _perform_authorization(self) -> httpx2.Request:
        _check_issuer_known(self.context, self._settings)
        _check_metadata(self.context, self._settings)
        if self._settings.scopes:
            self.context.client_metadata.scope = _requested_scope(self._settings, self.context)
        return await super()._perform_authorization()

    async def _open_login_page(self, url: str) -> None:
        head, _, parameters = url.rpartition("?")
        url = f"{head}{'&' if '?' in head else '?'}{parameters}"  # the endpoint URL may already have a query
        check_oauth_url(url)
        self._state = parse_qs(parameters)["state"][0]
        self._redirect_url = await self._run_login(url)

    async def _parse_redirect(self) -> AuthorizationCodeResult:
        params = {name: values[0] for name, values in parse_qs(urlsplit(self._redirect_url).query).items()}
        if params.get("state") != self._state:
            raise _flow_error("the redirect belongs to another login")
        if "error" in params:
            raise rejection_error(400, {"error": params["error"]}, "complete the login")
        return AuthorizationCodeResult(code=params.get("code", ""), state=params.get("state"), iss=params.get("iss"))


class _ClientSecretProvider(ClientCredentialsOAuthProvider):
    """SDK auth provider for `client_credentials` with a client secret and the configured scopes."""

    scopes: tuple[str, ...] = ()

    async def _perform_authorization(self) -> httpx2.Request:
        if self.scopes:
            self.context.client_metadata.scope = " ".join(self.scopes)
        return await super()._perform_authorization()


class _PrivateKeyProvider(PrivateKeyJWTOAuthProvider):
    """SDK auth provider for `client_credentials` with a signed JWT and the configured scopes."""

    scopes: tuple[str, ...] = ()

    async def _perform_authorization(self) -> httpx2.Request:
        if self.scopes:
            self.context.client_metadata.scope = " ".join(self.scopes)
        return await super()._perform_authorization()


def _create_provider(auth_request: AuthorizationRequest, run_login: RunLogin | None) -> OAuthClientProvider:
    settings = auth_request.settings
    if settings.grant == "authorization_code":
        if run_login is None:
            raise AuthError(
                "the server requires a login",
                code="E-AUTH-LOGIN",
                hint="log in: toolway login NAME; in Python: Hub(…, login_callback=…)",
            )
        return _LoginProvider(auth_request, run_login)
    assert settings.client_id is not None
    storage = _FixedTokenStorage(None, _previous_token(auth_request))
    provider: _ClientSecretProvider | _PrivateKeyProvider
    if settings.private_key is not None:
        signing = SignedJWTParameters(
            issuer=settings.client_id,
            subject=settings.client_id,
            signing_key=settings.private_key,
            signing_algorithm=settings.algorithm,
        )
        signer = signing.create_assertion_provider()
        provider = _PrivateKeyProvider(auth_request.url, storage, settings.client_id, signer, issuer=settings.issuer)
    else:
        assert settings.client_secret is not None
        provider = _ClientSecretProvider(
            auth_request.url, storage, settings.client_id, settings.client_secret, issuer=settings.issuer
        )
    provider.scopes = settings.scopes
    return provider


def _known_client(auth_request: AuthorizationRequest) -> OAuthClientInformationFull | None:
    """Return the configured OAuth client, or the previous credential's, or None if both are missing.

    A client that was registered with another redirect URI is not used again.
    """
    settings = auth_request.settings
    if settings.client_id is not None:
        return OAuthClientInformationFull(
            client_id=settings.client_id,
            client_secret=settings.client_secret,
            issuer=settings.issuer,
            redirect_uris=[AnyUrl(settings.redirect_uri)],
        )
    if auth_request.previous is None or auth_request.previous.client.redirect not in ("", settings.redirect_uri):
        return None
    client = auth_request.previous.client
    return OAuthClientInformationFull(
        client_id=client.id,
        client_secret=client.secret,
        token_endpoint_auth_method=client.method,
        issuer=auth_request.previous.issuer,
        redirect_uris=[AnyUrl(settings.redirect_uri)],
    )


def _previous_token(auth_request: AuthorizationRequest) -> OAuthToken | None:
    """Return the server's previous access token, so the flow extends its scope, or None without one.

    Its refresh token is left out, because the flow would use it.
    """
    if auth_request.previous is None:
        return None
    return OAuthToken(access_token=auth_request.previous.access, scope=auth_request.previous.scope)


def _requested_scope(settings: OAuth, context: OAuthContext) -> str | None:
    """Return the OAuth scopes to request: the configured ones, and in a step-up those that the server demands.

    A step-up is a new authorization for more scopes, which only happens if the earlier token has scopes.
    """
    granted = context.current_tokens.scope if context.current_tokens is not None else None
    configured = " ".join(settings.scopes)
    return union_scopes(configured, context.client_metadata.scope) if granted is not None else configured


def _build_credential(context: OAuthContext, settings: OAuth, now: float) -> Credential:
    token, client = context.current_tokens, context.client_info
    if token is None or client is None:
        raise _flow_error("it returned no token")
    if not is_usable_token(token.access_token):
        raise _flow_error("it returned a token that is empty, or has characters other than visible ASCII")
    found = context.oauth_metadata
    issuer = str(found.issuer) if found is not None else context.get_authorization_base_url(context.server_url)
    credential = Credential(
        issuer=issuer,
        token_url=str(found.token_endpoint) if found is not None else f"{issuer}/token",
        client=OAuthClient(
            client.client_id, client.client_secret, client.token_endpoint_auth_method or "none", settings.redirect_uri
        ),
        access=token.access_token,
        refresh=token.refresh_token
        if settings.grant == "authorization_code"
        else None,  # else a new token is requested
        scope=token.scope,
        resource=context.get_resource_url(),
        revoke_url=str(found.revocation_endpoint) if found is not None and found.revocation_endpoint else None,
    )
    return credential.with_expiry(token.expires_in, now)


# -- failures ---------------------------------------------------------------------------------------------------------


def _flow_error(why: str) -> AuthError:
    clean = "".join(char if char.isprintable() else " " for char in why)
    hint = "log in again; if that fails too, ask whoever runs the server"
    return AuthError(f"the login failed: {clean}", code="E-AUTH-FLOW", hint=hint)


def _client_error(why: str) -> AuthError:
    hint = 'register a client there, and set its "clientId" in the "auth" of the entry'
    return AuthError(why, code="E-AUTH-CLIENT", hint=hint)


def _wrong_issuer_error(found: str, expected: str) -> AuthError:
    clean = "".join(char for char in cut_text(found, 200) if char.isprintable())
    reason = f"the server names {clean} as its authorization server, but the entry names {expected}"
    return AuthError(reason, code="E-AUTH-ISSUER", hint="fix `auth.issuer`, if you trust that server")
