"""Getting a token that we do not have: discovery, registration, login, exchange. Loaded only where it is needed.

The steps are the SDK's. Its flow is written for a client that sends a request, is refused, and asks on; here the
request was sent by the link, so the flow is told of the refusal, and each request it wants to make is looked at first.
What it leaves open is settled here: addresses are checked, an issuer that does not do PKCE is refused, an issuer that
is not the configured one gets nothing, and what an authorization server says in refusing is not repeated.
"""

from __future__ import annotations

import logging
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

from toolway.addresses import Addresses
from toolway.config.spec import OAuth
from toolway.model import NotAuthorized, Refusal
from toolway.security.fetching import fetch
from toolway.security.renewal import answer_of, refused
from toolway.security.tokens import Client, Credential
from toolway.security.urls import check_url

#: Takes the address to log in at; gives the address at which the login ended.
Ask = Callable[[str], Awaitable[str]]

STEPS: Final = 24  # requests of one flow, redirects within an origin among them

_ours: ContextVar[bool] = ContextVar("a flow of ours runs", default=False)
# The SDK logs each failure with what the authorization server said; ours are raised, without it.
logging.getLogger("mcp.client.auth.oauth2").addFilter(lambda record: not _ours.get())


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a token is wanted for."""

    url: str  # of the server
    settings: OAuth
    refusal: Refusal
    before: Credential | None  # what it refused, if it was one of ours
    reach: Addresses  # where requests for it may go


async def asked_for(url: str, headers: Mapping[str, str], reach: Addresses) -> Refusal:
    """What a server says to whoever shows no credential. Raises `NotAuthorized` where it wants none."""
    form = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": LATEST_PROTOCOL_VERSION}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    answer = await fetch(httpx2.Request("POST", url, headers={**headers, **form}, json=body), reach)
    if answer.status_code < 300:
        raise NotAuthorized("the server wants no login", code="E-AUTH-FLOW", fix="use it as it is")
    return Refusal(401, answer.headers.get("www-authenticate", ""), "", "login")


async def still_trusts(wanted: Wanted, issuer: str) -> bool:
    """Whether the server names this issuer now, as it did before. Where it does not say, nothing has changed."""
    try:
        trusted = await _trusted(wanted)
    except NotAuthorized:
        return True
    return trusted is None or any(issuers_match(each, issuer) for each in trusted)


async def _trusted(wanted: Wanted) -> list[str] | None:
    answer = _refusal(wanted)
    named = extract_resource_metadata_from_www_auth(answer)
    for url in build_protected_resource_metadata_discovery_urls(named, wanted.url):
        answer = await fetch(create_oauth_metadata_request(url), wanted.reach)
        found = await handle_protected_resource_response(answer)
        if found is not None:
            return [str(issuer) for issuer in found.authorization_servers]
    return None


async def obtain(wanted: Wanted, ask: Ask | None, now: Callable[[], float]) -> Credential:
    """A new credential. Raises `NotAuthorized`."""
    provider = _provider(wanted, ask)
    mark = _ours.set(True)
    try:
        await _drive(provider, wanted)
    except NotAuthorized:
        raise
    except OAuthFlowError as exc:
        raise _failed(str(exc)[:300]) from None
    except Exception as exc:
        raise _failed(f"{type(exc).__name__}") from None
    finally:
        _ours.reset(mark)
    return _credential(provider.context, wanted.settings, now())


async def _drive(provider: OAuthClientProvider, wanted: Wanted) -> None:
    refusal, settings = _refusal(wanted), wanted.settings
    request = refusal.request
    async with aclosing(provider.async_auth_flow(request)) as flow:
        await flow.__anext__()  # the request itself, which was sent already
        answer = refusal
        for _ in range(STEPS):
            outgoing = await flow.asend(answer)
            if outgoing is request:
                return
            _settle(provider.context, settings)
            answer = await _step(provider.context, wanted, outgoing)
    raise _failed("it does not come to an end")


async def _step(context: OAuthContext, wanted: Wanted, outgoing: httpx2.Request) -> httpx2.Response:
    if outgoing.method == "POST":
        _must_know_issuer(context, wanted.settings)
    registering = outgoing.method == "POST" and context.client_info is None
    if registering and context.oauth_metadata is not None and context.oauth_metadata.registration_endpoint is None:
        raise _no_client("the authorization server registers no clients by itself")
    answer = await fetch(outgoing, wanted.reach)
    if outgoing.method == "POST" and answer.status_code >= 400:
        if registering:
            raise _no_client(f"the authorization server did not register us ({answer.status_code})")
        raise refused(answer.status_code, answer_of(answer.content), "give a token")
    return answer


def _must_know_issuer(context: OAuthContext, settings: OAuth) -> None:
    """Where the server or the entry names an issuer, only what that issuer says of itself counts. The flow would else
    go on at the server's own origin, as in 2025-03-26."""
    named = context.auth_server_url or settings.issuer
    if context.oauth_metadata is None and named is not None:
        raise _failed("the authorization server does not describe itself in a way that can be used")


def _settle(context: OAuthContext, settings: OAuth) -> None:
    """What must be so before anything more is sent."""
    found = context.oauth_metadata
    if settings.issuer is not None and found is not None and not issuers_match(str(found.issuer), settings.issuer):
        raise _wrong_issuer(str(found.issuer), settings.issuer)
    named = context.auth_server_url
    if settings.issuer is not None and named is not None and not issuers_match(named, settings.issuer):
        raise _wrong_issuer(named, settings.issuer)
    pkce = found is None or "S256" in (found.code_challenge_methods_supported or ())
    if settings.grant == "authorization_code" and not pkce:
        reason = "the authorization server does not protect logins (it offers no PKCE with S256)"
        raise NotAuthorized(reason, code="E-AUTH-PKCE", fix="report it to its operator")
    client = context.client_info
    if client is not None and client.client_secret is not None and client.token_endpoint_auth_method is None:
        # A registration that does not say how the secret is to be shown means the first of these.
        offered = (found.token_endpoint_auth_methods_supported if found is not None else None) or ()
        basic = "client_secret_basic" in offered or "client_secret_post" not in offered
        client.token_endpoint_auth_method = "client_secret_basic" if basic else "client_secret_post"


def _refusal(wanted: Wanted) -> httpx2.Response:
    """The refusal of the link's request, as the SDK knows one."""
    request = httpx2.Request("POST", wanted.url, headers={"MCP-Protocol-Version": LATEST_PROTOCOL_VERSION})
    challenge = {"WWW-Authenticate": wanted.refusal.challenge} if wanted.refusal.challenge else {}
    return httpx2.Response(wanted.refusal.status, headers=challenge, content=b"", request=request)


# -- what the SDK is given --------------------------------------------------------------------------------------------


class _Memory:
    """What the flow may know of earlier ones. It stores nothing: what comes of it is taken from its context."""

    def __init__(self, client: OAuthClientInformationFull | None, granted: OAuthToken | None) -> None:
        self._client = client
        self._granted = granted

    async def get_tokens(self) -> OAuthToken | None:
        return self._granted

    async def set_tokens(self, tokens: OAuthToken) -> None:
        pass

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        pass


class _Login(OAuthClientProvider):
    def __init__(self, wanted: Wanted, ask: Ask) -> None:
        settings = wanted.settings
        metadata = OAuthClientMetadata(
            client_name="Toolway",
            redirect_uris=[AnyUrl(settings.redirect_uri)],
            grant_types=["authorization_code", "refresh_token"],
            response_types=["code"],
        )
        memory = _Memory(_known_client(wanted), _granted(wanted))
        url = settings.client_metadata_url
        super().__init__(wanted.url, metadata, memory, self._send_there, self._came_back, url)
        self._settings = settings
        self._ask = ask
        self._ended_at = ""
        self._state = ""

    def _select_authorization_server(self, advertised: list[str]) -> str:
        wanted = self._settings.issuer
        return next((each for each in advertised if wanted and issuers_match(each, wanted)), advertised[0])

    async def _perform_authorization(self) -> httpx2.Request:
        _must_know_issuer(self.context, self._settings)
        _settle(self.context, self._settings)
        if self._settings.scopes:
            self.context.client_metadata.scope = _scope(self._settings, self.context)
        return await super()._perform_authorization()

    async def _send_there(self, url: str) -> None:
        head, _, parameters = url.rpartition("?")
        url = f"{head}{'&' if '?' in head else '?'}{parameters}"  # the endpoint may have a query of its own
        check_url(url)
        self._state = parse_qs(parameters)["state"][0]
        self._ended_at = await self._ask(url)

    async def _came_back(self) -> AuthorizationCodeResult:
        said = {name: values[0] for name, values in parse_qs(urlsplit(self._ended_at).query).items()}
        if said.get("state") != self._state:
            raise _failed("the login ended with an answer to another one")
        if "error" in said:
            raise refused(400, {"error": said["error"]}, "let us log in")
        return AuthorizationCodeResult(code=said.get("code", ""), state=said.get("state"), iss=said.get("iss"))


class _Secret(ClientCredentialsOAuthProvider):
    scopes: tuple[str, ...] = ()

    async def _perform_authorization(self) -> httpx2.Request:
        if self.scopes:
            self.context.client_metadata.scope = " ".join(self.scopes)
        return await super()._perform_authorization()


class _SignedKey(PrivateKeyJWTOAuthProvider):
    scopes: tuple[str, ...] = ()

    async def _perform_authorization(self) -> httpx2.Request:
        if self.scopes:
            self.context.client_metadata.scope = " ".join(self.scopes)
        return await super()._perform_authorization()


def _provider(wanted: Wanted, ask: Ask | None) -> OAuthClientProvider:
    settings = wanted.settings
    if settings.grant == "authorization_code":
        if ask is None:
            raise NotAuthorized(
                "the server wants a login",
                code="E-AUTH-LOGIN",
                fix="give the hub a way to log in: Hub(…, login=…)",
            )
        return _Login(wanted, ask)
    assert settings.client_id is not None
    memory = _Memory(None, _granted(wanted))
    provider: _Secret | _SignedKey
    if settings.private_key is not None:
        signing = SignedJWTParameters(
            issuer=settings.client_id,
            subject=settings.client_id,
            signing_key=settings.private_key,
            signing_algorithm=settings.algorithm,
        )
        signer = signing.create_assertion_provider()
        provider = _SignedKey(wanted.url, memory, settings.client_id, signer, issuer=settings.issuer)
    else:
        assert settings.client_secret is not None
        provider = _Secret(wanted.url, memory, settings.client_id, settings.client_secret, issuer=settings.issuer)
    provider.scopes = settings.scopes
    return provider


def _known_client(wanted: Wanted) -> OAuthClientInformationFull | None:
    """The configured client, or the one that was registered last, with the issuer that it is for."""
    settings = wanted.settings
    if settings.client_id is not None:
        return OAuthClientInformationFull(
            client_id=settings.client_id,
            client_secret=settings.client_secret,
            issuer=settings.issuer,
            redirect_uris=[AnyUrl(settings.redirect_uri)],
        )
    if wanted.before is None or wanted.before.client.redirect not in ("", settings.redirect_uri):
        return None
    client = wanted.before.client
    return OAuthClientInformationFull(
        client_id=client.id,
        client_secret=client.secret,
        token_endpoint_auth_method=client.method,
        issuer=wanted.before.issuer,
        redirect_uris=[AnyUrl(settings.redirect_uri)],
    )


def _granted(wanted: Wanted) -> OAuthToken | None:
    """What was granted before, so that more can be asked for. Without its refresh token, which the flow would use."""
    if wanted.before is None:
        return None
    return OAuthToken(access_token=wanted.before.access, scope=wanted.before.scope)


def _scope(settings: OAuth, context: OAuthContext) -> str | None:
    """The configured scopes; in a step-up, also those that the server wants now."""
    granted = context.current_tokens.scope if context.current_tokens is not None else None
    configured = " ".join(settings.scopes)
    return union_scopes(configured, context.client_metadata.scope) if granted is not None else configured


def _credential(context: OAuthContext, settings: OAuth, now: float) -> Credential:
    token, client = context.current_tokens, context.client_info
    if token is None or client is None:
        raise _failed("no token came of it")
    found = context.oauth_metadata
    issuer = str(found.issuer) if found is not None else context.get_authorization_base_url(context.server_url)
    credential = Credential(
        issuer=issuer,
        token_url=str(found.token_endpoint) if found is not None else f"{issuer}/token",
        client=Client(
            client.client_id, client.client_secret, client.token_endpoint_auth_method or "none", settings.redirect_uri
        ),
        access=token.access_token,
        refresh=token.refresh_token if settings.grant == "authorization_code" else None,  # else we ask anew
        scope=token.scope,
        resource=context.get_resource_url(),
        revoke_url=str(found.revocation_endpoint) if found is not None and found.revocation_endpoint else None,
    )
    return credential.lasting(token.expires_in, now)


# -- failures ---------------------------------------------------------------------------------------------------------


def _failed(why: str) -> NotAuthorized:
    clean = "".join(char if char.isprintable() else " " for char in why)
    fix = "log in again; if that fails too, ask the server's operator"
    return NotAuthorized(f"the login failed: {clean}", code="E-AUTH-FLOW", fix=fix)


def _no_client(why: str) -> NotAuthorized:
    fix = 'register a client there, and give its "clientId" in the "auth" of the entry'
    return NotAuthorized(why, code="E-AUTH-CLIENT", fix=fix)


def _wrong_issuer(found: str, expected: str) -> NotAuthorized:
    clean = "".join(char for char in found[:200] if char.isprintable())
    reason = f"the server names {clean} as its authorization server, and the entry names {expected}"
    return NotAuthorized(reason, code="E-AUTH-ISSUER", fix="correct `auth.issuer`, if you trust that server")
