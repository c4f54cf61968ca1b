"""Tokens and where they are kept. A credential belongs to one issuer, one server at one address, and one principal."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple, Protocol

AHEAD: Final = 60.0  # seconds before its end in which a token is renewed; a short-lived one, in its last quarter


@dataclass(frozen=True, slots=True)
class Client:
    """What an authorization server knows us as."""

    id: str
    secret: str | None = field(default=None, repr=False)
    method: str = "none"  # by which it wants us to show that we are it
    redirect: str = ""  # where its logins end, as it was registered


@dataclass(frozen=True, slots=True)
class Credential:
    """A token with all that is needed to renew it where it came from."""

    issuer: str
    token_url: str
    client: Client
    access: str = field(repr=False)
    refresh: str | None = field(default=None, repr=False)
    scope: str | None = None
    resource: str | None = None
    renew_at: float | None = None  # seconds of the wall clock, like `expires_at`; None = it does not say
    expires_at: float | None = None
    revoke_url: str | None = None  # where it can be taken back

    @property
    def header(self) -> str:
        return f"Bearer {self.access}"

    def lasting(self, seconds: float | None, now: float) -> Credential:
        """The same, for so many seconds from now."""
        if seconds is None:
            return replace(self, renew_at=None, expires_at=None)
        end = now + seconds
        return replace(self, renew_at=end - min(AHEAD, seconds / 4), expires_at=end)


def packed(credential: Credential) -> dict[str, Any]:
    """As it is written where it is sealed."""
    return asdict(credential)


def unpacked(facts: dict[str, Any]) -> Credential:
    """Raises `TypeError` or `KeyError` for what is none."""
    return Credential(**{**facts, "client": Client(**facts["client"])})


class Key(NamedTuple):
    issuer: str
    upstream: str  # name and address: a server that moved is another one
    principal: str  # whose login it is; empty for the hub's own


class TokenStore(Protocol):
    """Keeps credentials. What it raises fails the calls that need one."""

    async def get(self, key: Key) -> Credential | None: ...

    async def put(self, key: Key, credential: Credential) -> None: ...

    async def remove(self, key: Key) -> None: ...

    async def issuers(self, upstream: str, principal: str) -> list[str]:
        """Those of whom there is a credential, the last one put first."""
        ...


class MemoryTokens:
    """Lost with the process."""

    def __len__(self) -> int:
        return len(self._kept)

    def __init__(self) -> None:
        self._kept: dict[Key, Credential] = {}

    async def get(self, key: Key) -> Credential | None:
        return self._kept.get(key)

    async def put(self, key: Key, credential: Credential) -> None:
        self._kept.pop(key, None)
        self._kept[key] = credential

    async def remove(self, key: Key) -> None:
        self._kept.pop(key, None)

    async def issuers(self, upstream: str, principal: str) -> list[str]:
        return [key.issuer for key in reversed(self._kept) if key[1:] == (upstream, principal)]


USUAL_TOKENS: Final[TokenStore] = MemoryTokens()  # stands for "the store that all programs of this user share"
