"""Stored approval requests, and the interface of their stores.

A store decides atomically: if two calls use one approval at the same time, on any nodes, only one gets it. A stored
request is sealed with the key of the gateway. So a program that can write to the store can neither read arguments nor
approve a call.
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
    """A call argument as shown before the call is approved."""

    name: str
    value: str  # JSON text, all of it; secrets are masked
    note: str = ""  # what is masked in it, such as `equals the secret API_TOKEN of server bank`


class ApprovalRequest(msgspec.Struct, frozen=True):
    """Request to an administrator to approve one call, with the administrator's answer."""

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
    """Result of `ApprovalStore.claim`: the outcome, and the approval request it is about.

    `expired` are other requests, which expired without an answer.
    """

    outcome: Literal["used", "denied", "pending", "asked", "full"]
    request: ApprovalRequest
    expired: Sequence[ApprovalRequest] = ()


class ApprovalStore(Protocol):
    """Stores approval requests. Methods raise `StoreError` if that fails; then no call is sent."""

    async def claim(self, request: ApprovalRequest) -> ClaimOutcome:
        """Use up the administrator's approval of the call in `request`, if there is one; otherwise ask for it.

        To ask is to store `request`, unless a request for the same call waits or was denied, or too many requests wait.
        """
        ...

    async def spend(self, nonce: str) -> bool:
        """Record that a client's answer to an approval question was used. `nonce` is the unique name of the question.

        Return False if it was used before, or if too many answers are recorded.
        """
        ...

    async def decide(
        self, id: str, state: Literal["approved", "denied"], who: str, reason: str
    ) -> ApprovalRequest | None:
        """Store the answer to a request. Return the request with the answer; None if it does not wait for one."""
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
    """Return a new random name for a question to a client, to accept its answer only once."""
    return secrets.token_urlsafe(16)


class RequestSealer:
    """Encrypts approval requests for the store, with the gateway's key."""

    def __init__(self, key: bytes, now: Callable[[], float] = time.time) -> None:
        self._sealer = Sealer(key, now, _MAX_SEALED_CHARS)
        self._now = now

    def seal(self, request: ApprovalRequest) -> str:
        return self._sealer.seal(_SEALED_KIND, msgspec.to_builtins(request), max(0.0, request.until - self._now()))

    def open(self, sealed: Any) -> ApprovalRequest | None:
        """Decrypt a stored request, even if it has expired.

        Return None if it was not encrypted with the key of the gateway.
        """
        found = self._sealer.open_with_expiry(_SEALED_KIND, sealed) if isinstance(sealed, str) else None
        return msgspec.convert(found[1], ApprovalRequest) if found is not None else None


class ApprovalLinks:
    """Signed links to the dashboard page of one request for approval, for messages to administrators.

    A link grants no access: the page needs an administrator's session, and a GET changes nothing. The signature
    proves that this gateway wrote the link for this request, and expires with the request. Cluster nodes accept each
    other's links.
    """

    def __init__(self, key: bytes, now: Callable[[], float] = time.time) -> None:
        self._sealer = Sealer(key, now)
        self._now = now

    def create_url(self, gateway_url: str, id_: str, asked_at: float) -> str:
        """Return the URL of the page. `gateway_url` is from the configuration, never from a request."""
        seconds = asked_at + APPROVAL_LIFETIME_S - self._now()
        return f"{gateway_url.rstrip('/')}/dashboard/approvals/{self._sealer.seal(_LINK_KIND, id_, seconds)}"

    def read(self, link: str) -> str | None:
        """Return the request id in the last part of a link; None if the link is forged or expired."""
        found = self._sealer.open(_LINK_KIND, link)
        return found if isinstance(found, str) else None


def decide_claim(
    known: Sequence[ApprovalRequest], request: ApprovalRequest, pending: int, pending_of_caller: int
) -> ClaimOutcome:
    """Decide a claim (`ApprovalStore.claim`): is the call approved, denied, or must it wait? No I/O.

    `known` are the stored requests for the same call that have not expired. The store then writes the returned request
    if the outcome is `used` or `asked`.
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
