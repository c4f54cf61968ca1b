"""Manages the OAuth token for one server and principal, which concurrent calls share."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from toolway._async import SharedTask
from toolway.auth.refresh import revocation_request
from toolway.auth.token_slot import REFRESH_TIMEOUT_S, Clock, TokenSlot, import_lazily
from toolway.auth.token_store import Credential
from toolway.config.schema import OAuth
from toolway.network import PUBLIC_ONLY, NetworkPolicy
from toolway.secrets import remember_secret
from toolway.secrets.server_secrets import secrets_of
from toolway.types import AuthChallenge, AuthError

#: Called with (server, URL of the login page). Lets the user log in and returns the redirect URL at the end of the
#: login: `redirect_uri` with the parameters that the authorization server added.
LoginCallback: TypeAlias = Callable[[str, str], str | Awaitable[str]]

LOGIN_TIMEOUT_S: Final = 300.0  # seconds for a whole login, with the time of the user
FAILURE_COOLDOWN_S: Final = 5.0  # seconds after a failure without a new request to the issuer
LOGIN_FAILURE_COOLDOWN_S: Final = 300.0  # seconds after a failed login without a new prompt to the user


class TokenOwner(msgspec.Struct, frozen=True):
    """The server and principal that a token belongs to. A token may also serve all callers."""

    server: str
    url: str
    principal: str = ""  # empty for the hub itself
    for_all_callers: bool = False  # True if the token is used for every caller of a gateway
    network_policy: NetworkPolicy = PUBLIC_ONLY  # addresses that OAuth requests may use


class TokenManager:
    """`Authorizer` for one server and principal: loads, refreshes and replaces its OAuth token.

    Times are wall-clock times, because tokens expire by the wall clock.
    """

    def __init__(
        self,
        owner: TokenOwner,
        settings: OAuth,
        slot: TokenSlot,
        login: LoginCallback | None,
        now: Clock,
        on_activated: Callable[[], None],
        on_login_needed: Callable[[], None],
    ) -> None:
        self.owner = owner
        self._settings = settings
        self._slot = slot
        self._login_callback = login
        self._now = now
        self._on_activated = on_activated
        self._on_login_needed = on_login_needed
        self.login_needed = False  # True after an error asked the user to log in
        #: True if no credential exists and none was requested; transports then skip this object.
        self.is_inactive = login is None and settings == OAuth() and not slot.may_have_token
        self._challenge_limiter = ChallengeLimiter()
        self._loaded = False
        self._credential: Credential | None = None
        self._rejected_refresh_token: str | None = None  # refresh token that the issuer no longer accepts
        self._refresh_failure: tuple[float, AuthError] | None = None  # last refresh error, raised again until this time
        self._authorize_failure: tuple[float, AuthError] | None = None  # the same for the last failed OAuth flow
        self._task = SharedTask()

    def activate(self) -> None:
        self.is_inactive = False
        self._on_activated()

    def allows(self, caller: str) -> bool:
        return self.owner.for_all_callers or caller in ("", self.owner.principal)

    @property
    def is_interactive(self) -> bool:
        return self._login_callback is not None and self._settings.grant == "authorization_code"

    # -- for transports -----------------------------------------------------------------------------------------------

    async def authorization_header(self) -> str:
        while not self._loaded or self._slot.has_changed():
            await self._task.run(self._load)
        current = self._credential
        if current is None:
            return ""
        if current.renew_at is None or self._now() < current.renew_at or not self._can_refresh(current):
            secrets_of(self.owner.server).add_token(current.access)  # it is in use: it is not dropped
            return current.header
        try:
            await self._task.run(partial(self._refresh, current))
        except AuthError as error:
            # Send the expired login: the server's 401 then starts a new one.
            login_expired = error.code == "E-AUTH-LOGIN" and self._can_authorize
            if not login_expired and (current.expires_at is None or self._now() >= current.expires_at):
                raise
        return self._credential.header if self._credential is not None else ""

    async def on_challenge(self, challenge: AuthChallenge) -> bool:
        await self._task.wait()  # use the credential that is being fetched now
        if challenge.sent_authorization != self._auth_header:
            return True
        if not self._challenge_limiter.allow(challenge, self._now()):
            return False
        await self._task.run(partial(self._replace_credential, challenge))
        return challenge.sent_authorization != self._auth_header

    def on_rejected(self, challenge: AuthChallenge) -> None:
        if challenge.sent_authorization == self._auth_header:
            self._challenge_limiter.block(challenge.sent_authorization, self._now())

    def reset_failures(self) -> None:
        """Forget rejected credentials and failed refreshes and logins, so they can be retried."""
        self._challenge_limiter = ChallengeLimiter()
        self._rejected_refresh_token = self._refresh_failure = self._authorize_failure = None

    @property
    def _auth_header(self) -> str:
        return self._credential.header if self._credential is not None else ""

    def detect_login(self) -> bool:
        """Return True and forget failures if another process has since stored the login that was missing."""
        if self.login_needed and self._slot.has_changed() and self._slot.may_have_token:
            self.login_needed = False
            self.reset_failures()
            return True
        return False

    # -- for users ----------------------------------------------------------------------------------------------------

    async def log_in(self, login: LoginCallback, headers: Mapping[str, str], redirect_uri: str) -> Credential:
        """Run a new login, even if there already is a credential. Store and return the new credential.

        Raises `AuthError` if the login fails, or takes longer than `LOGIN_TIMEOUT_S` seconds.
        """
        flow = await import_lazily("oauth_flow")
        settings = replace(self._settings, redirect_uri=redirect_uri)
        challenge = await flow.fetch_challenge(self.owner.url, headers, self.owner.network_policy)
        current = await self._slot.load()
        previous = replace(current, scope=None) if current is not None else None  # reuse the client, not the scope
        auth_request = flow.AuthorizationRequest(
            self.owner.url, settings, challenge, previous, self.owner.network_policy
        )
        try:
            async with asyncio.timeout(LOGIN_TIMEOUT_S):
                credential: Credential = await flow.authorize(auth_request, partial(self._run_login, login), self._now)
        except TimeoutError:
            raise AuthError("the login timed out", code="E-AUTH-FLOW", hint="try again") from None
        await self._save(credential)
        return credential

    async def log_out(self) -> bool:
        """Delete the login and revoke it if the issuer supports that. Return True if there was one.

        Raises `AuthError` if the token store fails.
        """
        dropped = await self._slot.delete()
        self._set_credential(None)
        for credential in dropped:
            await self._revoke(credential)
        return bool(dropped)

    async def _revoke(self, credential: Credential) -> None:
        """Revoke a deleted credential at its issuer, if the issuer has a revocation endpoint.

        Errors are ignored, because the credential has already been deleted here.
        """
        if credential.revoke_url is None:
            return
        form, headers = revocation_request(credential)
        with suppress(AuthError):
            await (await import_lazily("oauth_http")).post(
                credential.revoke_url, form, headers, self.owner.network_policy, REFRESH_TIMEOUT_S
            )

    async def close(self) -> None:
        await self._task.close()

    # -- credential operations ----------------------------------------------------------------------------------------

    async def _load(self) -> None:
        """Load the stored credential again, because another process may have changed it."""
        found = await self._slot.load()
        if found != self._credential:
            self._set_credential(found)
        self._loaded = True

    def _set_credential(self, credential: Credential | None) -> None:
        self._credential = credential
        self._rejected_refresh_token = self._refresh_failure = self._authorize_failure = None
        if credential is not None:
            for secret in (credential.access, credential.refresh, credential.client.secret):
                remember_secret(secret or "")  # mask it in strings from the server
                secrets_of(self.owner.server).add_token(secret or "")  # and in results of the server
            self.login_needed = False
            self.activate()

    async def _save(self, credential: Credential) -> None:
        await self._slot.save(credential)
        self._set_credential(credential)

    def _can_refresh(self, current: Credential) -> bool:
        return current.refresh is not None and current.refresh != self._rejected_refresh_token

    async def _refresh(self, current: Credential) -> None:
        """Refresh the credential `current` at its issuer.

        Raises `AuthError` if that fails, and keeps `current`. For some seconds after a failure, the error is
        raised again without a request.
        """
        if self._refresh_failure is not None and self._now() < self._refresh_failure[0]:
            raise self._refresh_failure[1]
        try:
            self._set_credential(await self._slot.refresh(current, self.owner.network_policy))
        except AuthError as error:
            if error.code == "E-AUTH-LOGIN":
                self._rejected_refresh_token = current.refresh
                error = self._login_needed_error(error.reason)
            self._refresh_failure = self._now() + FAILURE_COOLDOWN_S, error
            raise error from None

    async def _replace_credential(self, challenge: AuthChallenge) -> None:
        """Replace the credential that the server rejected: load a newer one, refresh, or authorize.

        Raises `AuthError` if that fails, or if a user must log in first.
        """
        self.activate()
        await self._load()
        current = self._credential
        if self._auth_header != challenge.sent_authorization:
            return  # another process has stored a new one
        if current is None:
            self._check_can_authorize()
        flow = await import_lazily("oauth_flow")
        auth_request = flow.AuthorizationRequest(
            self.owner.url, self._settings, challenge, current, self.owner.network_policy
        )
        may_refresh = current is not None and self._can_refresh(current) and not is_scope_challenge(challenge)
        if current is not None and may_refresh and await flow.is_issuer_unchanged(auth_request, current.issuer):
            try:
                await self._refresh(current)
                return
            except AuthError as error:
                if error.code != "E-AUTH-LOGIN" or not self._can_authorize:
                    raise
        self._check_can_authorize()
        await self._authorize(
            auth_request, partial(self._run_login, self._login_callback) if self._login_callback is not None else None
        )

    async def _authorize(self, auth_request: Any, run_login: Any) -> None:
        if self._authorize_failure is not None and self._now() < self._authorize_failure[0]:
            raise self._authorize_failure[1]
        flow = await import_lazily("oauth_flow")
        try:
            async with asyncio.timeout(LOGIN_TIMEOUT_S if self.is_interactive else 2 * REFRESH_TIMEOUT_S):
                if self._settings.grant == "client_credentials":
                    await self._authorize_exclusively(auth_request)
                else:
                    await self._save(await flow.authorize(auth_request, run_login, self._now))
        except TimeoutError:
            reason = "the login" if self.is_interactive else "the authorization server"
            error = AuthError(f"{reason} timed out", code="E-AUTH-FLOW", hint="try again")
            self._authorize_failure = self._now() + self._cooldown(error), error
            raise error from None
        except AuthError as error:
            self._authorize_failure = self._now() + self._cooldown(error), error
            raise

    async def _authorize_exclusively(self, auth_request: Any) -> None:
        """Run the OAuth flow while other processes wait, so only one requests a token.

        If another process has stored a new credential in the meantime, that one is used.
        """
        flow = await import_lazily("oauth_flow")
        async with self._slot.exclusive():
            await self._load()
            if self._credential == auth_request.previous:
                await self._save(await flow.authorize(auth_request, None, self._now))

    def _cooldown(self, error: AuthError) -> float:
        return LOGIN_FAILURE_COOLDOWN_S if self.is_interactive and error.code != "E-AUTH-SERVER" else FAILURE_COOLDOWN_S

    @property
    def _can_authorize(self) -> bool:
        return self._login_callback is not None or self._settings.grant == "client_credentials"

    def _check_can_authorize(self) -> None:
        if not self._can_authorize:
            raise self._login_needed_error(f"{self.owner.server} requires a login")

    def _login_needed_error(self, reason: str) -> AuthError:
        self.login_needed = True
        self._on_login_needed()
        hint = f"toolway login {self.owner.server}"
        if self.owner.principal:
            hint += " --gateway URL --token KEY"
        return AuthError(reason, code="E-AUTH-LOGIN", hint=hint)

    async def _run_login(self, login: LoginCallback, url: str) -> str:
        try:
            redirect_url = login(self.owner.server, url)
            return await redirect_url if inspect.isawaitable(redirect_url) else redirect_url
        except AuthError:
            raise
        except Exception as exc:
            reason = f"the login callback failed: {type(exc).__name__}"
            raise AuthError(reason, code="E-AUTH-FLOW", hint="check the login callback") from exc


# -- limit on challenges ----------------------------------------------------------------------------------------------

MAX_SCOPE_CHALLENGES: Final = 2  # requests for more scope per method or tool
BLOCK_S: Final = 300.0  # seconds for which a blocked credential is not replaced
MAX_COUNTED_OPERATIONS: Final = 1000  # methods and tools with a count

_INSUFFICIENT_SCOPE = re.compile(r'\berror\s*=\s*"?insufficient_scope\b')


def is_scope_challenge(challenge: AuthChallenge) -> bool:
    """Return True if the server rejected the request with 403 because the token lacks a scope."""
    return challenge.status == 403 and _INSUFFICIENT_SCOPE.search(challenge.www_authenticate) is not None


class ChallengeLimiter(msgspec.Struct):
    """Limits how many auth challenges (401 or 403) are answered with a new credential.

    Without it, a server that rejects every credential would cause endless logins. No I/O: `now` is an argument.
    """

    # Credential → time until which it is not replaced.
    _blocked_until: dict[str, float] = {}
    # Method or tool → (count, time of the first).
    _scope_challenges: dict[str, tuple[int, float]] = {}

    def allow(self, challenge: AuthChallenge, now: float) -> bool:
        """Return True if the challenge may be answered with a new credential.

        Challenges for more scope are counted per method or tool, and limited to `MAX_SCOPE_CHALLENGES`.
        """
        if self._blocked_until.get(challenge.sent_authorization, 0.0) > now:
            return False
        if challenge.status == 401:
            return True
        if not is_scope_challenge(challenge):
            return False
        count, since = self._scope_challenges.get(challenge.operation, (0, now))
        if now - since >= BLOCK_S:
            count, since = 0, now
        if count >= MAX_SCOPE_CHALLENGES:
            return False
        self._scope_challenges[challenge.operation] = (count + 1, since)
        while len(self._scope_challenges) > MAX_COUNTED_OPERATIONS:
            del self._scope_challenges[next(iter(self._scope_challenges))]
        return True

    def block(self, credential: str, now: float) -> None:
        """Reject challenges for `credential` for `BLOCK_S` seconds, to keep it from being replaced again.

        This is called if the server rejects a credential that has only just been replaced.
        """
        self._blocked_until = {credential: now + BLOCK_S}
