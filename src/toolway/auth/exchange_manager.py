"""Authorizer that exchanges a caller's token for a server's token, and keeps that until it expires.

Tokens stay in memory only, one per issuer, server, and principal. All calls share one exchange (single flight). A
token is renewed 60 s early; if the issuer does not respond at that time, the token is used until it expires. If the
exchange fails, the call fails, because no other credential is used instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from toolway._async import SharedTask
from toolway.auth.token_exchange import (
    EXCHANGE_CODE,
    ExchangedToken,
    SubjectToken,
    SubjectTokens,
    TokenRequest,
    answer_error,
    assertion_request,
    exchange_request,
    metadata_urls,
    no_subject_error,
    parse_assertion,
    parse_exchange,
    parse_token_endpoint,
)
from toolway.auth.token_manager import FAILURE_COOLDOWN_S, ChallengeLimiter, TokenOwner, is_scope_challenge
from toolway.auth.token_slot import REFRESH_TIMEOUT_S, Clock, import_lazily
from toolway.config.schema import OAuth
from toolway.secrets import remember_secret
from toolway.secrets.server_secrets import secrets_of
from toolway.types import AuthChallenge, AuthError

METADATA_LIFETIME_S: Final = 3600.0
MAX_ISSUERS: Final = 100

#: Sends a form to a URL and returns (status, body). `None` as form is a GET. Raises `AuthError`.
Send = Callable[[str, TokenRequest | None], Awaitable[tuple[int, bytes]]]


class TokenEndpoints:
    """A cache of the token endpoints in issuers' metadata, shared by all servers and callers."""

    def __init__(self, now: Clock) -> None:
        self._now = now
        self._known: dict[str, tuple[float, str]] = {}  # issuer → end of validity, token endpoint
        self._fetching: dict[str, asyncio.Task[str]] = {}

    async def find(self, issuer: str, send: Send) -> str:
        """Return the token endpoint of an issuer. Raises `AuthError` if its metadata cannot be fetched."""
        known = self._known.get(issuer)
        if known is not None and self._now() < known[0]:
            return known[1]
        task = self._fetching.get(issuer)
        if task is None:
            task = self._fetching[issuer] = asyncio.create_task(self._fetch(issuer, send))
            task.add_done_callback(lambda done: self._on_fetched(issuer, done))
        return await asyncio.shield(task)

    def _on_fetched(self, issuer: str, task: asyncio.Task[str]) -> None:
        self._fetching.pop(issuer, None)
        if not task.cancelled():
            task.exception()  # mark as retrieved; the waiters have raised it

    async def _fetch(self, issuer: str, send: Send) -> str:
        for url in metadata_urls(issuer):
            endpoint = parse_token_endpoint(*await send(url, None), issuer)
            if endpoint is not None:
                if len(self._known) >= MAX_ISSUERS:
                    self._known.clear()
                self._known[issuer] = (self._now() + METADATA_LIFETIME_S, endpoint)
                return endpoint
        raise AuthError(
            f"the metadata of {issuer} has no token endpoint, or belongs to another issuer",
            code=EXCHANGE_CODE,
            hint="use the issuer exactly as in its metadata",
        )

    async def close(self) -> None:
        tasks = list(self._fetching.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class ExchangeManager:
    """`Authorizer` that gets one caller's tokens for one server, in exchange for the caller's own token."""

    is_inactive = False  # the server is never called without a token of the caller
    is_interactive = False

    def __init__(
        self,
        owner: TokenOwner,
        settings: OAuth,
        subjects: Callable[[], SubjectTokens | None],
        endpoints: TokenEndpoints,
        now: Clock,
        send: Send | None = None,
    ) -> None:
        """Create the manager for the exchanged token of the server and caller in `owner`.

        `subjects` returns the source of the tokens with which callers logged in, or None if the gateway has no login.
        """
        self.owner = owner
        self._settings = settings
        self._subjects = subjects
        self._endpoints = endpoints
        self._now = now
        self._send = send if send is not None else self._send_http
        self._token: ExchangedToken | None = None
        self._login_issued_at: float | None = None  # when the caller's token was issued that `_token` was exchanged for
        self._failure: tuple[float, AuthError] | None = None
        self._limiter = ChallengeLimiter()
        self._task = SharedTask()
        self.exchanges = 0

    def activate(self) -> None: ...

    def allows(self, caller: str) -> bool:
        """Return True if the token may be used for `caller`: its owner, or "".

        The caller "" means a request that the owner's own connection makes by itself, such as a ping.
        """
        return self.owner.principal != "" and caller in ("", self.owner.principal)

    async def authorization_header(self) -> str:
        self._require_login()
        token = self._token
        if token is None or self._now() >= token.renew_at:
            try:
                await self._task.run(self._exchange)
            except AuthError:
                if token is None or self._token is not token or self._now() >= token.expires_at:
                    raise  # never another credential
        self._require_login()  # it may have ended while the issuer responded
        if self._token is None:
            raise no_subject_error(self.owner.server, self.owner.principal)
        secrets_of(self.owner.server).add_token(self._token.token)  # it must not leave in a result of the server
        return self._header

    async def on_challenge(self, challenge: AuthChallenge) -> bool:
        if challenge.sent_authorization != self._header:
            return True  # another call has exchanged it already
        if is_scope_challenge(challenge) or not self._limiter.allow(challenge, self._now()):
            return False
        self._token = None
        await self._task.run(self._exchange)
        return challenge.sent_authorization != self._header

    def on_rejected(self, challenge: AuthChallenge) -> None:
        if challenge.sent_authorization == self._header:
            self._limiter.block(challenge.sent_authorization, self._now())

    def reset_failures(self) -> None:
        self._failure, self._limiter = None, ChallengeLimiter()

    def drop(self) -> None:
        """Forget the token, because the caller's login has ended."""
        self._token = None

    async def close(self) -> None:
        self.drop()
        await self._task.close()

    @property
    def is_unused(self) -> bool:
        """Return True if no token can be reused and none is being fetched."""
        return not self._task.is_running and (self._token is None or self._now() >= self._token.expires_at)

    @property
    def _header(self) -> str:
        return f"Bearer {self._token.token}" if self._token is not None else ""

    def _require_login(self) -> None:
        """Raise `AuthError` and forget the token unless the caller is a user whose login has not been ended.

        The token from an ended login is forgotten even if the caller has logged in again since.
        """
        subjects, caller = self._subjects(), self.owner.principal
        if not caller or subjects is None or subjects.is_login_ended(caller):
            self.drop()
            raise no_subject_error(self.owner.server, caller)
        if self._token is not None and subjects.is_token_ended(caller, self._login_issued_at):
            self.drop()

    # -- exchange -----------------------------------------------------------------------------------------------------

    async def _exchange(self) -> None:
        if self._failure is not None and self._now() < self._failure[0]:
            raise self._failure[1]
        try:
            subject = self._require_subject()
            self._token = await self._request(subject)
            self._login_issued_at = subject.issued_at
        except AuthError as error:
            self._failure = self._now() + FAILURE_COOLDOWN_S, error
            raise
        self._failure = None
        remember_secret(self._token.token)  # mask it in strings from the server

    def _require_subject(self) -> SubjectToken:
        subjects = self._subjects()
        found = subjects.find_subject_token(self.owner.principal) if subjects is not None else None
        if found is None:
            raise no_subject_error(self.owner.server, self.owner.principal)
        expected = self._settings.issuer
        if self._settings.grant != "id-jag" and expected is not None and expected != found.issuer:
            # The token would go to an issuer that did not issue it.
            raise AuthError(
                f"the caller logged in with a different issuer than the entry of {self.owner.server} names",
                code=EXCHANGE_CODE,
                hint="remove auth.issuer from the entry, or use the issuer of toolway.gateway.login",
            )
        return found

    async def _request(self, subject: SubjectToken) -> ExchangedToken:
        settings, self.exchanges = self._settings, self.exchanges + 1
        endpoint = await self._endpoints.find(subject.issuer, self._send)
        answer = await self._send(endpoint, exchange_request(settings, subject, self.owner.url))
        if settings.grant != "id-jag":
            return self._require_foreign(parse_exchange(settings, *answer, subject.issuer, self._now()))
        assertion = parse_assertion(*answer, subject.issuer)
        self._require_foreign(ExchangedToken(assertion, 0.0))
        remember_secret(assertion)
        issuer = settings.issuer or ""
        endpoint = await self._endpoints.find(issuer, self._send)
        answer = await self._send(endpoint, assertion_request(settings, assertion))
        return self._require_foreign(parse_exchange(settings, *answer, issuer, self._now()))

    def _require_foreign(self, found: ExchangedToken) -> ExchangedToken:
        """Return an issuer's token. Raises `AuthError` if it would also open the gateway.

        With such a token, a server could use the gateway in the caller's name.
        """
        subjects = self._subjects()
        if subjects is None or subjects.opens_gateway(found.token):
            raise answer_error("contains a token for this gateway")
        return found

    async def _send_http(self, url: str, request: TokenRequest | None) -> tuple[int, bytes]:
        http = await import_lazily("oauth_http")
        subjects = self._subjects()
        found = subjects.find_subject_token(self.owner.principal) if subjects is not None else None
        policy = self.owner.network_policy.allowing(found.issuer if found is not None else None)
        if request is not None:
            answer: tuple[int, bytes] = await http.post(
                url, dict(request.form), dict(request.headers), policy, REFRESH_TIMEOUT_S
            )
            return answer
        response = await http.get(url, policy)
        return response.status_code, response.content
