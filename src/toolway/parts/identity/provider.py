"""Login with an identity provider: turns a bearer token into a principal, or into an error.

The gateway is an OAuth 2.1 resource server. It does not have a login page, passwords, or a table of users: a client
gets a token from the provider, which the RFC 9728 metadata names, and the gateway verifies it. A verified token is then
looked up by its hash until it expires, its key is withdrawn, or the rules change.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from toolway.auth.token_exchange import SubjectToken
from toolway.errors import ConfigError
from toolway.events import AccessEvent, Event
from toolway.gateway.authenticator import ProvenIdentity, RequestDenied, VerificationPending
from toolway.gateway.credentials import RESOURCE_METADATA_PATH
from toolway.gateway.principals import ACCESS_PREFIX, TOKEN_PREFIX, USER_PREFIX, Principal
from toolway.gateway.tool_filter import ToolFilter
from toolway.network import NetworkPolicy
from toolway.parts.identity.access_tokens import (
    CLOCK_SKEW_S,
    InvalidToken,
    ParsedToken,
    TokenIdentity,
    TokenRules,
    is_jwt,
    parse_token,
)
from toolway.parts.identity.identity_assertions import AssertionGrants, is_own_token
from toolway.parts.identity.introspection import MAX_OPAQUE_CHARS, Ask, Introspection
from toolway.parts.identity.settings import EVERYONE, LoginSettings
from toolway.parts.identity.signing_keys import Fetch, ProviderKeys, require_joserfc
from toolway.protocol.jsonrpc import encode_json
from toolway.types import AuthError, Json

if TYPE_CHECKING:
    from toolway.http.exchange import Headers, HttpRequest

MAX_TOKENS: Final = 10_000  # verified tokens that are remembered; the oldest is verified again
MAX_TOOLS: Final = 10_000  # tools whose required scopes are remembered
MAX_USERS: Final = 10_000  # users whose last groups are remembered
RUN_RIGHTS_S: Final = 24 * 3600.0  # seconds after a user's last token in which the user's workflow runs continue
_log = logging.getLogger("toolway.gateway")


class SeenUser(NamedTuple):
    """A user's last known login: the principal, and details of the last token."""

    principal: Principal
    identity: TokenIdentity
    seen_at: float  # when a token of the user was verified last, in seconds since 1970


class VerifiedToken(NamedTuple):
    """A verified access token: the identity it proves, when it was issued, and when it expires."""

    proven: ProvenIdentity
    expires_at: float
    issued_at: float | None


class IdentityProvider:
    """Verifies the access tokens of one identity provider, for one gateway (`CredentialVerifier`).

    `access` maps groups to tool patterns. `on_changed` is called when tokens that were accepted may have different
    rights now. `ended_logins` returns when administrators logged users out, by principal id. `ask` asks the provider
    about opaque tokens; if it is None, opaque tokens are rejected.
    """

    setting: Final = "toolway.gateway.login"
    hint: Final = "log in, or send `Authorization: Bearer …` with an access token of the login or an API key"

    def __init__(
        self,
        settings: LoginSettings,
        access: Mapping[str, Sequence[str]],
        fetch: Fetch,
        on_changed: Callable[[], None] = lambda: None,
        emit: Callable[[Event], None] = lambda event: None,
        now: Callable[[], float] = time.time,
        ended_logins: Callable[[], Mapping[str, float]] = dict,
        ask: Ask | None = None,
    ) -> None:
        require_joserfc()
        self.settings = settings
        self._rules = TokenRules(settings)
        self._access = dict(access)
        self._tool_scopes = [(ToolFilter((pattern,)), scopes) for pattern, scopes in settings.tool_scopes.items()]
        self._step_up_scopes = frozenset(scope for _, scopes in self._tool_scopes for scope in scopes)
        self._required: dict[str, tuple[str, ...]] = {}  # scopes by `server.tool`, for tools that were called
        self._on_changed = on_changed
        self._emit = emit
        self._now = now
        self._ended_logins = ended_logins
        self.introspection = Introspection(ask, now) if ask is not None else None
        self._tokens: dict[bytes, VerifiedToken] = {}  # by the hash of the token; the oldest first
        self.assertions: AssertionGrants | None = None  # token endpoint for identity assertions, if there is one
        self.keeps_tokens: Callable[[], bool] = lambda: False  # a server is called on behalf of users
        self._subject_tokens: dict[str, SubjectToken] = {}  # by principal id
        self._users: dict[str, SeenUser] = {}  # by principal id; the one that was seen first is first
        self._running: asyncio.Task[None] | None = None
        self.keys = ProviderKeys(settings, fetch, self._on_keys_withdrawn, self._on_key_problem, now)
        self.resource_host = _host_header(settings.resource_url)
        self.metadata_url, self.metadata_paths = _metadata_location(settings.resource_url)
        self.metadata = encode_json(
            {
                "resource": settings.resource_url,
                "authorization_servers": [settings.issuer],
                "bearer_methods_supported": ["header"],
                "resource_name": "Toolway",
                **({"scopes_supported": scopes} if (scopes := self._known_scopes()) else {}),
            }
        )

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start fetching the provider's keys regularly in the background, without making the gateway wait."""
        self._running = asyncio.get_running_loop().create_task(self.keys.run())

    async def close(self) -> None:
        """Stop fetching the provider's keys."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        await self.keys.close()
        if self.introspection is not None:
            await self.introspection.close()

    def set_access(self, access: Mapping[str, Sequence[str]]) -> None:
        """Use the groups of `toolway.access` from a reloaded configuration, and verify all tokens again."""
        self._access = dict(access)
        self._forget_tokens()

    def _forget_tokens(self) -> None:
        """Forget all verified tokens, so each one is verified again at its next use."""
        self._tokens.clear()
        self._on_changed()

    def _on_keys_withdrawn(self) -> None:
        self._forget_tokens()

    def _on_key_problem(self, reason: str) -> None:
        action = "keys_unavailable" if reason else "keys_available"
        self._emit(AccessEvent("", action, reason or "fetched the identity provider's signing keys again"))

    # -- tokens -------------------------------------------------------------------------------------------------------

    def authenticate(self, token: str) -> ProvenIdentity:
        """Return a bearer token's principal and expiry.

        Raises `VerificationPending` while the provider is being asked, and `RequestDenied` if the token is not valid
        (401), lacks a scope (403), or the provider did not answer (503).
        """
        digest = _digest(token)
        known = self._tokens.get(digest)
        if known is not None and self._now() < known.expires_at:
            self._check_not_ended(known.proven.principal.id, known.issued_at)
            return known.proven
        try:
            identity, valid_until = self._identify(token, digest)
        except InvalidToken as exc:
            self._tokens.pop(digest, None)
            raise self.deny_token(str(exc)) from None
        missing = [scope for scope in self.settings.scopes if scope not in identity.scopes]
        if missing:
            raise self.deny_scope(identity.scopes, missing)
        self._check_not_ended(self.principal_id(identity.subject), identity.issued_at)
        principal = self._remember(identity)
        if known is None:
            self._report(identity, principal)
        expires_at = min(identity.expires_at, valid_until)
        proven = ProvenIdentity(principal, expires_at)
        if len(self._tokens) >= MAX_TOKENS:
            del self._tokens[next(iter(self._tokens))]
        self._tokens[digest] = VerifiedToken(proven, expires_at, identity.issued_at)
        if self.keeps_tokens() and not (self.assertions is not None and is_own_token(token)):
            self._keep_token(principal.id, SubjectToken(token, self.settings.issuer, expires_at, identity.issued_at))
        return proven

    # -- tokens of users for servers that are called on their behalf -------------------------------------------------

    def _keep_token(self, id_: str, new: SubjectToken) -> None:
        """Keep a user's token, to exchange it for tokens of the servers that are called on the user's behalf.

        An earlier token is kept instead if it is valid for longer. A kept token is only sent to its issuer's token
        endpoint.
        """
        known = self._subject_tokens.pop(id_, None)
        if known is None and len(self._subject_tokens) >= MAX_USERS:
            del self._subject_tokens[next(iter(self._subject_tokens))]
        is_longer = known is None or self.is_token_ended(id_, known.issued_at) or known.expires_at <= new.expires_at
        self._subject_tokens[id_] = new if is_longer or known is None else known

    def find_subject_token(self, caller: str) -> SubjectToken | None:
        """Return the token that the user `caller` logged in with, or None if it is missing or has expired."""
        found = self._subject_tokens.get(caller)
        if found is None:
            return None
        if self._now() >= found.expires_at or self.is_token_ended(caller, found.issued_at):
            del self._subject_tokens[caller]
            return None
        return found

    def is_login_ended(self, caller: str) -> bool:
        """Return True if the user `caller` has no valid login, because they logged out or are unknown here."""
        user = self._users.get(caller)
        return user is None or self.is_token_ended(caller, user.identity.issued_at)

    def opens_gateway(self, token: str) -> bool:
        """Return True if this gateway might accept a token as a login, in which case no server may get it.

        Nothing is known about an opaque token that was never used here.
        """
        if _digest(token) in self._tokens or is_own_token(token):
            return True
        try:
            return self._rules.is_for_us(parse_token(token).claims.get("aud"))
        except InvalidToken:
            return False

    def _check_not_ended(self, id_: str, issued_at: float | None) -> None:
        """Raise `RequestDenied` if an administrator ended the login that a token belongs to.

        If the user was ever logged out, a token that does not say when it was issued is rejected as well.
        """
        if self.is_token_ended(id_, issued_at):
            raise self.deny_token("the login was ended")

    def is_token_ended(self, caller: str, issued_at: float | None) -> bool:
        """Return True if an administrator ended the login that a token from the user `caller` belongs to."""
        ended_at = self._ended_logins().get(caller)
        return ended_at is not None and (issued_at is None or issued_at <= ended_at + CLOCK_SKEW_S)

    def _identify(self, token: str, digest: bytes) -> tuple[TokenIdentity, float]:
        """Return the identity behind a bearer token, and how long the proof is valid.

        Raises `InvalidToken`, `RequestDenied`, or `VerificationPending` if the token does not prove an identity, or not
        yet.
        """
        if token.startswith(TOKEN_PREFIX):  # an API key that was revoked: the provider must not see it
            raise InvalidToken("unknown token")
        if self.assertions is not None and is_own_token(token):
            return self.assertions.open_token(token)
        if is_jwt(token):
            return self._verify(token), self.keys.good_until
        if self.introspection is None or len(token) > MAX_OPAQUE_CHARS or not token.isascii():
            raise InvalidToken("unknown token")
        answer = self.introspection.find(digest)
        if answer is None:
            asking = self.introspection.start(token, digest)
            if asking is not None:
                raise VerificationPending(asking, *self._unavailable())
        if answer is None or answer.has_failed:
            raise RequestDenied(503, *self._unavailable())
        if answer.claims is None:
            raise InvalidToken("the token is not active")
        return self._rules.check_introspected(answer.claims, self._now(), answer.until), answer.until

    def _verify(self, token: str) -> TokenIdentity:
        """Verify a JWT's claims and signature, and return the identity in it.

        Raises `InvalidToken` if either is wrong, and `RequestDenied` if the key is unknown or still being fetched.
        """
        parsed = parse_token(token)
        identity = self._rules.check(parsed, self._now())  # before a key is fetched because of it
        self.verify_signature(token, parsed)
        return identity

    def verify_signature(self, token: str, parsed: ParsedToken) -> None:
        """Verify the signature of a token whose claims were already checked.

        Raises `InvalidToken` if it is wrong, and `RequestDenied` if the key is unknown or still being fetched.
        """
        keys = self.keys.current
        key = keys.find(parsed.key_id, parsed.algorithm) if keys is not None else None
        if key is None:
            if keys is not None and (keys.has_id(parsed.key_id) or self.keys.is_absent(parsed.key_id)):
                raise InvalidToken("the identity provider has no such key")
            fetching = self.keys.refresh_for_unknown_key(parsed.key_id)
            if fetching is not None:
                raise VerificationPending(fetching, *self._unavailable())
            raise RequestDenied(503, *self._unavailable())
        key.verify(token, parsed.algorithm)

    def _unavailable(self) -> tuple[str, str, tuple[tuple[str, str], ...]]:
        return (
            "the token cannot be verified now",
            (
                "cannot verify tokens: the identity provider's signing keys are not available. "
                "API keys still work; try again shortly"
            ),
            (("retry-after", str(self.keys.retry_after)),),
        )

    def _remember(self, identity: TokenIdentity) -> Principal:
        """Record a verified token's login, and return the user's principal.

        A principal that has not changed is the same object as before, because cached plans of calls compare it by
        identity.
        """
        principal, now = self._principal_of(identity), self._now()
        known = self._users.pop(principal.id, None)
        if known is not None and known.principal == principal:
            principal = known.principal
        if known is None and len(self._users) >= MAX_USERS:
            del self._users[next(iter(self._users))]
        self._users[principal.id] = SeenUser(principal, identity, now)
        return principal

    def _report(self, identity: TokenIdentity, principal: Principal) -> None:
        """Emit an event when a token is first used. It names the issuer and subject behind the principal id."""
        by = f" with {identity.client}" if identity.client else ""
        reason = f"{self.settings.issuer}#{identity.subject}{by}, groups: {', '.join(self._used_groups(identity))}"
        self._emit(AccessEvent("", "token_accepted", reason[:1000], principal_id=principal.id))

    def _principal_of(self, identity: TokenIdentity) -> Principal:
        """Return a user's principal: its id comes from issuer and subject, and its rights from the user's groups."""
        id_ = self.principal_id(identity.subject)
        is_admin = any(group in self.settings.admins for group in identity.groups)
        access = tuple(f"{ACCESS_PREFIX}{group}" for group in self._used_groups(identity))
        return Principal(
            id_,
            identity.name,
            id_,
            admin=is_admin,
            access=None if is_admin else access,
            granted=tuple(sorted(self._step_up_scopes & identity.scopes)),
            subject=identity.subject,
            groups=tuple(sorted(identity.groups)),
            client=identity.client,
            mfa=identity.mfa,
        )

    def _used_groups(self, identity: TokenIdentity) -> list[str]:
        """Return the user's groups that have tools in `toolway.access`, and `*`, which stands for all users."""
        groups = {*(each for each in identity.groups if each != EVERYONE), EVERYONE}
        return sorted(groups & self._access.keys())

    def tools_of(self, group: str) -> Sequence[str]:
        """Return the patterns of the tools that a group may use."""
        return self._access.get(group, ())

    # -- scopes -------------------------------------------------------------------------------------------------------

    def _known_scopes(self) -> list[str]:
        """Return all scopes that a client may request for this gateway."""
        return [*self.settings.scopes, *sorted(self._step_up_scopes.difference(self.settings.scopes))]

    @property
    def asks_elsewhere(self) -> bool:
        """True if the provider is asked about tokens that are not JWTs."""
        return self.introspection is not None

    @property
    def has_tool_scopes(self) -> bool:
        """True if some tools require scopes that a login alone doesn't."""
        return bool(self._tool_scopes)

    def missing_scopes(self, principal: Principal, tool: str) -> tuple[str, ...]:
        """Return the OAuth scopes that a user's token lacks to call `server.tool`."""
        if not self._tool_scopes or not principal.is_user:
            return ()
        required = self._required.get(tool)
        if required is None:
            found = [scope for tools, scopes in self._tool_scopes if tool in tools for scope in scopes]
            if len(self._required) >= MAX_TOOLS:
                self._required.clear()
            required = self._required[tool] = tuple(dict.fromkeys(found))
        return tuple(scope for scope in required if scope not in principal.granted)

    # -- users --------------------------------------------------------------------------------------------------------

    def describe(self, principal: Principal) -> Json:
        """Return what a user's token said about the user."""
        return {
            "issuer": self.settings.issuer,
            "subject": principal.subject,
            "client": principal.client,
            "groups": list(principal.groups),
        }

    def describe_state(self) -> Mapping[str, object]:
        """Return the provider's state as the gateway sees it, for administrators."""
        keys = self.keys.current
        return {
            "issuer": self.settings.issuer,
            "audience": self.settings.audience,
            "keys": len(keys) if keys is not None else 0,
            "good_until": self.keys.good_until,
            "problem": self.keys.problem,
        }

    def find_user(self, id_: str) -> SeenUser | None:
        """Return a user's last login by principal id, or None if it was too long ago or is unknown here."""
        user = self._users.get(id_)
        if user is None or self._now() >= user.seen_at + RUN_RIGHTS_S:
            return None
        return None if self.is_token_ended(id_, user.identity.issued_at) else user

    def find_principal(self, id_: str) -> Principal | None:
        """Return a user's principal as of the last login, or None if that was too long ago or is unknown here."""
        user = self.find_user(id_)
        return user.principal if user is not None else None

    def users(self) -> list[SeenUser]:
        """Return the last login of every user known here, newest first."""
        return [each for id_ in reversed(self._users) if (each := self.find_user(id_)) is not None]

    def principal_id(self, subject: str) -> str:
        """Return the principal id of the user whom the provider calls `subject`."""
        return principal_id(self.settings.issuer, subject)

    def names(self) -> Mapping[str, str]:
        """Return the names of the users who logged in, by caller id."""
        return {id_: user.principal.name for id_, user in self._users.items()}

    # -- requests without a principal ---------------------------------------------------------------------------------

    def document(self, request: HttpRequest) -> bytes | None:
        """Return the metadata that say where to get a token (RFC 9728), if the request asks for them."""
        return self.metadata if request.path in self.metadata_paths and request.method == "GET" else None

    def is_exchange(self, request: HttpRequest) -> bool:
        """Return True if a request goes to the token endpoint for identity assertions, or asks for its metadata."""
        return self.assertions is not None and self.assertions.handles(request)

    def exchange(self, request: HttpRequest) -> tuple[int, bytes, Headers]:
        """Answer a client's request to exchange an identity assertion for a gateway token.

        Raises `RequestDenied` if the key for the assertion's signature is unknown or still being fetched.
        """
        assert self.assertions is not None
        return self.assertions.answer(request)

    # -- errors for clients -------------------------------------------------------------------------------------------

    def challenge(self, **parameters: str) -> tuple[str, str]:
        """Return the `WWW-Authenticate` header, which says where to get a token (RFC 6750, RFC 9728)."""
        facts = {"realm": "toolway", **parameters, "resource_metadata": self.metadata_url}
        if self.settings.scopes and "scope" not in facts:
            facts["scope"] = " ".join(self.settings.scopes)
        return "www-authenticate", "Bearer " + ", ".join(f'{name}="{value}"' for name, value in facts.items())

    def deny_token(self, reason: str) -> RequestDenied:
        """Return the error for a rejected token. The client sees `reason`, including in the header."""
        challenge = self.challenge(error="invalid_token", error_description=reason)
        return RequestDenied(401, reason, "log in again at the identity provider", (challenge,))

    def deny_scope(self, present: Iterable[str], missing: Iterable[str]) -> RequestDenied:
        """Return the error for a valid token that lacks scopes. It lists all scopes that a new token needs."""
        wanted = " ".join(sorted({*missing, *self.settings.scopes, *_plain(present)}))
        challenge = self.challenge(error="insufficient_scope", scope=wanted)
        return RequestDenied(403, "the token lacks a scope", f"log in with the scope {wanted}", (challenge,))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def principal_id(issuer: str, subject: str) -> str:
    """Return a user's id, which is a hash, because a subject may be any string.

    The id also serves as the caller id.
    """
    return USER_PREFIX + hashlib.sha256(f"{issuer}#{subject}".encode()).hexdigest()[:32]


def create_fetch(
    settings: LoginSettings,
    network_policy: Callable[[], NetworkPolicy],
    now: Callable[[], float] = time.time,
    on_clock: Callable[[float], None] | None = None,
) -> Fetch:
    """Return the function that fetches the provider's documents, only from allowed addresses.

    URLs in the settings are trusted, so they may contain a private address. `on_clock` is called with the difference
    between the clocks. Without it, the log says when the provider's clock is so far off that valid tokens would be
    rejected.
    """

    async def fetch(url: str) -> bytes:
        from toolway.auth.oauth_http import get

        response = await get(url, network_policy().allowing(settings.issuer, settings.jwks))
        if response.status_code != 200:
            raise AuthError(
                f"{url} answered with HTTP {response.status_code}",
                code="E-LOGIN-PROVIDER",
                hint="check toolway.gateway.login.issuer",
            )
        offset = clock_offset(response.headers.get("date", ""), now())
        if on_clock is not None:
            on_clock(offset)
        elif abs(offset) > CLOCK_SKEW_S:
            _log.warning("%s", clock_error(offset))
        return response.content

    return fetch


def clock_offset(date: str, now: float) -> float:
    """Return how many seconds a `Date` header is ahead of `now`; 0 if it is missing or invalid."""
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(date).timestamp() - now
    except (ValueError, TypeError):
        return 0.0


def clock_error(offset: float) -> ConfigError:
    """Return the error for a provider clock that is `offset` seconds ahead."""
    return ConfigError(
        "the gateway's clock and the identity provider's differ too much",
        detail=f"by {abs(offset):.0f} s; valid tokens may be rejected, and expired ones accepted",
        hint="sync this machine's clock, for example with NTP",
        code="E-LOGIN-CLOCK",
    )


def _metadata_location(resource: str) -> tuple[str, frozenset[str]]:
    """Return a resource's metadata URL (RFC 9728), and the paths where the gateway serves the metadata.

    One path omits the resource's path, because some clients only request that one.
    """
    parts = urlsplit(resource)
    path = parts.path.rstrip("/")
    known = RESOURCE_METADATA_PATH
    return f"{parts.scheme}://{parts.netloc}{known}{path}", frozenset({known, f"{known}{path}"})


def _host_header(url: str) -> str:
    """Return a URL's host in the form of a Host header, without the port."""
    host = urlsplit(url).hostname or ""
    return f"[{host}]" if ":" in host else host


def _plain(scopes: Iterable[str]) -> Iterable[str]:
    """Return the scopes that can be put into a header without escaping."""
    return (scope for scope in scopes if scope.isascii() and scope.isprintable() and not {'"', "\\"} & set(scope))
