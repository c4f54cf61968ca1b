"""Bearer credentials that are not API keys: the part that verifies them, if any.

Without a verifier, each of them is refused. The authenticator asks the verifier who sent a request, and the router
what the sender may use: the verifier says it, and the core enforces it.
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
    """Verifier of bearer credentials that are not API keys. The principals that it returns are users."""

    @property
    def setting(self) -> str:
        """Setting by which an operator chose it, for errors."""
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
        """True if another server is asked about a credential that cannot be verified here."""
        ...

    @property
    def has_tool_scopes(self) -> bool:
        """True if some tools require scopes that a login alone doesn't."""
        ...

    def authenticate(self, token: str) -> ProvenIdentity:
        """Return the principal of a bearer credential and the end of its validity.

        Raises `VerificationPending` if it cannot be verified yet, `RequestDenied` if it is not accepted.
        """
        ...

    def challenge(self) -> tuple[str, str]:
        """Return the header `WWW-Authenticate` of a refusal."""
        ...

    def tools_of(self, group: str) -> Sequence[str]:
        """Return the patterns of the tools that a group of users may use. A user's scope names the group."""
        ...

    def missing_scopes(self, principal: Principal, tool: str) -> tuple[str, ...]:
        """Return the scopes that the credential of a principal lacks for a call of a tool, named `server.tool`."""
        ...

    def deny_scope(self, present: Iterable[str], missing: Iterable[str]) -> RequestDenied:
        """Return the error for a valid credential that lacks scopes."""
        ...

    def document(self, request: HttpRequest) -> bytes | None:
        """Return the public JSON document that a request is for; None if it is for none."""
        ...

    def is_exchange(self, request: HttpRequest) -> bool:
        """Return True if a request exchanges one credential for another: it has a body, but no principal."""
        ...

    def exchange(self, request: HttpRequest) -> tuple[int, bytes, Headers]:
        """Answer a request of `is_exchange`: return status, body and headers.

        Raises `VerificationPending` if it cannot be answered yet, `RequestDenied` if it is refused.
        """
        ...

    def describe(self, principal: Principal) -> Json:
        """Return for a principal what is known about its credential."""
        ...

    def find_principal(self, id_: str) -> Principal | None:
        """Return the principal with this id as it authenticated last; None if it did not recently."""
        ...

    def names(self) -> Mapping[str, str]:
        """Return the names of the principals that authenticated, by caller id."""
        ...


class Credentials:
    """The part of a gateway that verifies credentials, if any. Without it, nobody has one."""

    def __init__(self) -> None:
        self.verifier: CredentialVerifier | None = None
        self.on_verifier: Callable[[], None] = lambda: None  # set by the authenticator
        #: Makes all clients authenticate again, because accepted credentials may have other rights; set by the
        #: authenticator.
        self.on_changed: Callable[[], None] = lambda: None

    def verify_by(self, verifier: CredentialVerifier) -> None:
        """Let this verifier decide from now on. Raises `LookupError` if there is one: which of the two would count?"""
        if self.verifier is not None:
            raise LookupError("another part already verifies credentials")
        self.verifier = verifier
        self.on_verifier()

    def tools_of(self, group: str) -> Sequence[str]:
        """Return the patterns of the tools that a group of users may use."""
        return self.verifier.tools_of(group) if self.verifier is not None else ()

    def missing_scopes(self, principal: Principal, tool: str) -> tuple[str, ...]:
        """Return the scopes that the credential of a principal lacks for a call of a tool, named `server.tool`."""
        return self.verifier.missing_scopes(principal, tool) if self.verifier is not None else ()

    def find_principal(self, id_: str) -> Principal | None:
        """Return the principal with this id as it authenticated last; None if it did not recently."""
        return self.verifier.find_principal(id_) if self.verifier is not None else None

    def names(self) -> Mapping[str, str]:
        """Return the names of the principals that authenticated, by caller id."""
        return self.verifier.names() if self.verifier is not None else {}

    def describe(self, principal: Principal, expires_at: float | None) -> Json:
        """Return, for `/who`, what the gateway knows about the sender of the request: id, name, rights and login."""
        kind = "person" if principal.is_person else "key" if principal.caller_id else "owner"
        scopes = principal.scopes
        facts: Json = {
            "id": principal.id,
            "name": principal.name,
            "kind": kind,
            "admin": principal.admin,
            "scopes": None if scopes is None else [scope.removeprefix(ACCESS_PREFIX) for scope in scopes],
            "expires": expires_at,
        }
        # Of the token of this request: another token of the same user may have other groups.
        if self.verifier is not None and principal.is_person:
            facts |= self.verifier.describe(principal)
        return facts
