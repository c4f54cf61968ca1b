"""Bearer credentials other than API keys, and the part that verifies them, if there is one.

Without a verifier, all of them are rejected. The authenticator asks the verifier who sent a request, and the router
asks it what the sender may use. The verifier decides; the core enforces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from toolway.gateway.principals import ACCESS_PREFIX, Principal
from toolway.types import Json

if TYPE_CHECKING:
    from toolway.gateway.authenticator import ProvenIdentity, RequestDenied
    from toolway.http.exchange import Headers, HttpRequest

#: Well-known path of the document that says where a client gets a credential for this gateway (RFC 9728).
RESOURCE_METADATA_PATH: Final = "/.well-known/oauth-protected-resource"


class CredentialVerifier(Protocol):
    """Verifies bearer credentials other than API keys. The principals it returns are users."""

    @property
    def setting(self) -> str:
        """The setting that turned this verifier on, for errors."""
        ...

    @property
    def hint(self) -> str:
        """Hint for a client whose credential is missing or unknown."""
        ...

    @property
    def resource_host(self) -> str:
        """Host name that credentials are issued for. It is accepted in Host headers."""
        ...

    @property
    def asks_elsewhere(self) -> bool:
        """True if a credential that cannot be verified here is checked with another server."""
        ...

    @property
    def has_tool_scopes(self) -> bool:
        """True if some tools require OAuth scopes beyond a login."""
        ...

    def authenticate(self, token: str) -> ProvenIdentity:
        """Return a bearer credential's principal and expiry.

        Raises `VerificationPending` if it cannot be verified yet, and `RequestDenied` if it is not accepted.
        """
        ...

    def challenge(self) -> tuple[str, str]:
        """Return the `WWW-Authenticate` header for a rejected request."""
        ...

    def tools_of(self, group: str) -> Sequence[str]:
        """Return a user group's tool patterns. A user's scope names the group."""
        ...

    def missing_scopes(self, principal: Principal, tool: str) -> tuple[str, ...]:
        """Return the OAuth scopes that a principal's credential lacks to call `server.tool`."""
        ...

    def deny_scope(self, present: Iterable[str], missing: Iterable[str]) -> RequestDenied:
        """Return the error for a valid credential that lacks these OAuth scopes."""
        ...

    def document(self, request: HttpRequest) -> bytes | None:
        """Return the public JSON document that a request asks for, or None."""
        ...

    def is_exchange(self, request: HttpRequest) -> bool:
        """Return True if a request exchanges one credential for another: it has a body but no principal."""
        ...

    def exchange(self, request: HttpRequest) -> tuple[int, bytes, Headers]:
        """Answer a request for which `is_exchange` is True: return the status, body, and headers.

        Raises `VerificationPending` if it cannot be answered yet, and `RequestDenied` if it is rejected.
        """
        ...

    def describe(self, principal: Principal) -> Json:
        """Return what is known about a principal's credential."""
        ...

    def find_principal(self, id_: str) -> Principal | None:
        """Return the principal with this id from its last authentication, or None if that was too long ago."""
        ...

    def names(self) -> Mapping[str, str]:
        """Return the names of authenticated principals by caller id."""
        ...


class Credentials:
    """The part of a gateway that verifies credentials, if there is one. Without it, none are accepted."""

    def __init__(self) -> None:
        self.verifier: CredentialVerifier | None = None
        self.on_verifier: Callable[[], None] = lambda: None  # set by the authenticator
        #: Makes all clients authenticate again, because accepted credentials may have other rights; set by the
        #: authenticator.
        self.on_changed: Callable[[], None] = lambda: None

    def verify_by(self, verifier: CredentialVerifier) -> None:
        """Let this verifier decide from now on. Raises `LookupError` if there is one already."""
        if self.verifier is not None:
            raise LookupError("another part already verifies credentials")
        self.verifier = verifier
        self.on_verifier()

    def tools_of(self, group: str) -> Sequence[str]:
        """Return a user group's tool patterns."""
        return self.verifier.tools_of(group) if self.verifier is not None else ()

    def missing_scopes(self, principal: Principal, tool: str) -> tuple[str, ...]:
        """Return the OAuth scopes that a principal's credential lacks to call `server.tool`."""
        return self.verifier.missing_scopes(principal, tool) if self.verifier is not None else ()

    def find_principal(self, id_: str) -> Principal | None:
        """Return the principal with this id from its last authentication, or None if that was too long ago."""
        return self.verifier.find_principal(id_) if self.verifier is not None else None

    def names(self) -> Mapping[str, str]:
        """Return the names of authenticated principals by caller id."""
        return self.verifier.names() if self.verifier is not None else {}

    def describe(self, principal: Principal, expires_at: float | None) -> Json:
        """Return what `/who` shows about the sender: id, name, rights, and login."""
        kind = "user" if principal.is_user else "key" if principal.caller_id else "local"
        access = principal.access
        facts: Json = {
            "id": principal.id,
            "name": principal.name,
            "kind": kind,
            "admin": principal.admin,
            "access": None if access is None else [each.removeprefix(ACCESS_PREFIX) for each in access],
            "expires": expires_at,
        }
        # Of the token of this request: another token of the same user may have other groups.
        if self.verifier is not None and principal.is_user:
            facts |= self.verifier.describe(principal)
        return facts
