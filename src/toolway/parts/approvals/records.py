"""Approval requests, and the interface of the stores that keep them.

A store decides atomically: if two calls try to use the same approval at the same time, even on different nodes, only
one gets it. Stored requests are encrypted with the gateway's key, so a program that can write to the store can neither
read arguments nor approve calls.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from toolway.gateway.sealing import Sealer

APPROVAL_LIFETIME_S: Final = 900.0  # seconds that a request waits, and that an answer counts
MAX_PENDING: Final = 1000  # requests that wait; at most half of them of one caller
MAX_SPENT: Final = 100_000  # used answers of clients that are remembered until they expire
MAX_REVIEW_BYTES: Final = 65_536  # of all arguments of a call: nobody reads more, and they are stored
_MAX_SEALED_CHARS: Final = 8 * MAX_REVIEW_BYTES  # with all escapes, in base64
_SEALED_KIND: Final = "approval record"
_LINK_KIND: Final = "approval link"

ApprovalState = Literal["pending", "approved", "denied", "used", "expired"]


class ShownArgument(msgspec.Struct, frozen=True):
    """A call argument in the form in which the approver sees it."""

    name: str
    value: str  # JSON text, all of it; secrets are masked
    note: str = ""  # what is masked in it, such as `equals the secret API_TOKEN of server bank`


class ApprovalRequest(msgspec.Struct, frozen=True):
    """A request to an administrator to approve one call, including the administrator's answer."""

    id: str
    key: str  # what the approval is bound to (`bind_call`)
    state: ApprovalState
    caller: str  # caller id; "" for the local token
    server: str
    tool: str
    effect: str
    digest: str  # SHA-256 of what will be sent: an approval covers nothing else
    definition: str  # hash of the tool definition
    arguments: list[ShownArgument]
    call: str  # id of the call that asked
    asked_at: float  # Unix time
    until: float  # Unix time at which the request, or the answer, expires
    who: str = ""  # principal id of the approver; "" for the local token
    reason: str = ""


class ClaimOutcome(NamedTuple):
    """The result of `ApprovalStore.claim`: the outcome, and the approval request it refers to.

    `expired` lists other requests that expired without an answer.
    """

    outcome: Literal["used", "denied", "pending", "asked", "full"]
    request: ApprovalRequest
    expired: Sequence[ApprovalRequest] = ()


class ApprovalStore(Protocol):
    """Stores approval requests. If storing fails, methods raise `StoreError`, and no call is sent."""

    async def claim(self, request: ApprovalRequest) -> ClaimOutcome:
        """Use up the administrator's approval of the call in `request`, or ask for one if there is none.

        Asking means storing `request`, unless a request for the same call waits or was denied, or too many requests
        wait.
        """
        ...

    async def spend(self, nonce: str) -> bool:
        """Record that a client's answer to an approval question was used. `nonce` is the question's unique name.

        Return False if the answer was used before, or if too many answers are recorded.
        """
        ...

    async def decide(
        self, id: str, state: Literal["approved", "denied"], who: str, reason: str
    ) -> ApprovalRequest | None:
        """Store the answer to a request.

        Return the request with the answer, or None if the request does not wait for one.
        """
        ...

    async def load(self) -> list[ApprovalRequest]:
        """Return all requests that have not expired, oldest first."""
        ...

    async def count_pending(self) -> int:
        """Return the number of requests that wait for an answer."""
        ...

    async def close(self) -> None: ...


class StoreError(Exception):
    """Raised when the approval store cannot be read or written."""


def new_request_id() -> str:
    """Return a new random id for a request, short enough to type."""
    return secrets.token_hex(5)


def new_nonce() -> str:
    """Return a new random name for a question to a client, so its answer is accepted only once."""
    return secrets.token_urlsafe(16)


class RequestSealer:
    """Encrypts approval requests for the store, with the gateway's key."""

    def __init__(self, key: bytes, now: Callable[[], float] = time.time) -> None:
        self._sealer = Sealer(key, now, _MAX_SEALED_CHARS)
        self._now = now

    def seal(self, request: ApprovalRequest) -> str:
        return self._sealer.seal(_SEALED_KIND, msgspec.to_builtins(request), max(0.0, request.until - self._now()))

    def open(self, sealed: Any) -> ApprovalRequest | None:
        """Decrypt a stored request, even an expired one.

        Return None if it was not encrypted with the gateway's key.
        """
        found = self._sealer.open_with_expiry(_SEALED_KIND, sealed) if isinstance(sealed, str) else None
        return msgspec.convert(found[1], ApprovalRequest) if found is not None else None


class ApprovalLinks:
    """Signed links to the dashboard page of one approval request, for messages to administrators.

    A link does not grant access: the page needs an administrator's session, and a GET changes nothing. The signature
    proves that this gateway created the link for this request. It expires with the request. Cluster nodes accept each
    other's links.
    """

    def __init__(self, key: bytes, now: Callable[[], float] = time.time) -> None:
        self._sealer = Sealer(key, now)
        self._now = now

    def create_url(self, gateway_url: str, id_: str, asked_at: float) -> str:
        """Return the URL of the page. `gateway_url` comes from the configuration, never from a request."""
        seconds = asked_at + APPROVAL_LIFETIME_S - self._now()
        return f"{gateway_url.rstrip('/')}/dashboard/approvals/{self._sealer.seal(_LINK_KIND, id_, seconds)}"

    def read(self, link: str) -> str | None:
        """Return the request id in the last part of a link, or None if the link is forged or expired."""
        found = self._sealer.open(_LINK_KIND, link)
        return found if isinstance(found, str) else None


def decide_claim(
    known: Sequence[ApprovalRequest], request: ApprovalRequest, pending: int, pending_of_caller: int
) -> ClaimOutcome:
    """Decide, without I/O, whether the call in a claim (`ApprovalStore.claim`) is approved, denied, or has to wait.

    `known` are the stored requests for the same call that have not expired. If the outcome is `used` or `asked`, the
    store then writes the returned request.
    """
    by_state = {each.state: each for each in known}
    if (approved := by_state.get("approved")) is not None:
        return ClaimOutcome("used", msgspec.structs.replace(approved, state="used"))
    if (denied := by_state.get("denied")) is not None:
        return ClaimOutcome("denied", denied)
    if (waiting := by_state.get("pending")) is not None:
        return ClaimOutcome("pending", waiting)
    if pending >= MAX_PENDING or pending_of_caller >= MAX_PENDING // 2:
        return ClaimOutcome("full", request)
    return ClaimOutcome("asked", request)
