"""OAuth credentials, the interface of a store for them, and an in-memory store.

A credential belongs to one issuer, one server at one URL, and one principal.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple, Protocol

REFRESH_AHEAD_S: Final = 60.0  # before expiry a token is refreshed, but at most a quarter of its lifetime before


@dataclass(frozen=True, slots=True)
class OAuthClient:
    """OAuth client as registered at an authorization server."""

    id: str
    secret: str | None = field(default=None, repr=False)
    method: str = "none"  # token endpoint authentication method
    redirect: str = ""  # registered redirect URI


@dataclass(frozen=True, slots=True)
class Credential:
    """Access token with everything that is needed to refresh it at its issuer."""

    issuer: str
    token_url: str
    client: OAuthClient
    access: str = field(repr=False)
    refresh: str | None = field(default=None, repr=False)
    scope: str | None = None
    resource: str | None = None
    renew_at: float | None = None  # wall-clock time in seconds, like `expires_at`; None if the issuer names no lifetime
    expires_at: float | None = None
    revoke_url: str | None = None  # revocation endpoint

    @property
    def header(self) -> str:
        """Return the value of the Authorization header: `Bearer` and the access token."""
        return f"Bearer {self.access}"

    def with_expiry(self, seconds: float | None, now: float) -> Credential:
        """Return a copy that expires `seconds` after `now`, or never if `seconds` is None."""
        if seconds is None:
            return replace(self, renew_at=None, expires_at=None)
        end = now + seconds
        return replace(self, renew_at=end - min(REFRESH_AHEAD_S, seconds / 4), expires_at=end)


def credential_to_dict(credential: Credential) -> dict[str, Any]:
    """Return the credential as a dict of JSON values, for the encrypted token file."""
    return asdict(credential)


def credential_from_dict(fields: dict[str, Any]) -> Credential:
    """Return the credential from a dict of `credential_to_dict`.

    Raises `TypeError` or `KeyError` if the dict is invalid.
    """
    return Credential(**{**fields, "client": OAuthClient(**fields["client"])})


class TokenKey(NamedTuple):
    """Key of a credential in a token store: issuer, server and principal."""

    issuer: str
    upstream: str  # name and URL: a server at a new URL is another server
    principal: str  # owner of the login; empty for the hub itself


class TokenStore(Protocol):
    """Store of OAuth credentials. If it raises, the call that needs a credential fails."""

    async def get(self, key: TokenKey) -> Credential | None: ...

    async def put(self, key: TokenKey, credential: Credential) -> None: ...

    async def remove(self, key: TokenKey) -> None: ...

    async def issuers(self, upstream: str, principal: str) -> list[str]:
        """Return the issuers with a credential for this server and principal, last stored first."""
        ...


class MemoryTokenStore:
    """`TokenStore` in memory: its credentials are lost when the process ends."""

    def __init__(self) -> None:
        self._credentials: dict[TokenKey, Credential] = {}

    def __len__(self) -> int:
        return len(self._credentials)

    async def get(self, key: TokenKey) -> Credential | None:
        return self._credentials.get(key)

    async def put(self, key: TokenKey, credential: Credential) -> None:
        self._credentials.pop(key, None)
        self._credentials[key] = credential

    async def remove(self, key: TokenKey) -> None:
        self._credentials.pop(key, None)

    async def issuers(self, upstream: str, principal: str) -> list[str]:
        return [key.issuer for key in reversed(self._credentials) if key[1:] == (upstream, principal)]


#: Placeholder for the encrypted store that all programs of a user share.
DEFAULT_TOKENS: Final[TokenStore] = MemoryTokenStore()


# -- credentials of one server and one principal, by issuer -----------------------------------------------------------

MAX_ISSUERS: Final = 8  # per server and principal; the oldest is dropped

CredentialsByIssuer = dict[str, Credential]  # by issuer, in the order of storage


def put_credential(credentials: CredentialsByIssuer, issuer: str, credential: Credential) -> CredentialsByIssuer:
    """Return a copy of `credentials` with `credential` as the newest one. Only the newest 8 are kept."""
    after = {**remove_credential(credentials, issuer), issuer: credential}
    return dict(list(after.items())[-MAX_ISSUERS:])


def remove_credential(credentials: CredentialsByIssuer, issuer: str) -> CredentialsByIssuer:
    """Return a copy of `credentials` without the credential of `issuer`."""
    return {each: credential for each, credential in credentials.items() if each != issuer}


def replace_credential(old: Credential, new: Credential, credentials: CredentialsByIssuer) -> CredentialsByIssuer:
    """Return `credentials` with `old` replaced with `new`, or unchanged if `old` is no longer stored."""
    stored = credentials.get(old.issuer)
    return {**credentials, old.issuer: new} if stored is not None and stored.access == old.access else credentials
