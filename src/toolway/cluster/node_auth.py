"""Authentication of other nodes and of the calls that they forward.

The request head carries the credential of the node, which grants nothing by itself. The body carries a call token
(`CallToken`) for one call, accepted once. The caller's permissions were checked at the node that received the call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec

from toolway.gateway.mcp.context import ForwardedCall, get_meta
from toolway.gateway.mcp.errors import CALL_TOKEN_META_KEY, DENIED, MOVED, OVERLOADED, RpcFailure
from toolway.gateway.mcp.view import EndpointView
from toolway.gateway.principals import Principal
from toolway.types import Json

CALL_TOKEN_KIND: Final = "pass"  # seal kind of call tokens
CALL_TOKEN_LIFETIME_S: Final = 15.0  # seconds: clocks of nodes may differ by a few
NONCE_CHARS: Final = 16  # characters: the unique beginning of every sealed text
MAX_REMEMBERED_TOKENS: Final = 200_000  # used tokens remembered per lifetime; more are rejected

NODE_CREDENTIAL_KIND: Final = "node"  # seal kind of node credentials
NODE_CREDENTIAL_PREFIX: Final = "twn_"
NODE_CREDENTIAL_LIFETIME_S: Final = 24 * 3600.0  # seconds

TokenRejection: TypeAlias = Literal["forged", "elsewhere", "replayed", "busy", "moved"]
_REJECTIONS: Final[dict[TokenRejection, tuple[int, str]]] = {
    "forged": (DENIED, "call token invalid or expired"),
    "elsewhere": (DENIED, "call token issued for another node or server"),
    "replayed": (DENIED, "call token already used"),
    "busy": (OVERLOADED, "too many call tokens used in the last seconds"),
    "moved": (MOVED, "server not owned by this node"),
}


class CallTokenSealer(Protocol):
    """Encrypts values with the cluster key (`gateway/sealing.py`)."""

    def seal(self, kind: str, value: Any, seconds: float) -> str: ...

    def open(self, kind: str, text: str) -> Any: ...


# -- call tokens ------------------------------------------------------------------------------------------------------


class CallToken(msgspec.Struct, frozen=True, array_like=True):
    """Content of a call token: proof of caller, server and fence for a forwarded call.

    It is sealed with the cluster key, so only nodes can read it, and it cannot be forged or changed. It is valid for
    one node and one call, for seconds, and only once. New fields are only added at the end, with a default: nodes of
    two versions work side by side.
    """

    target_node: str  # node that may accept it
    tenant: str
    server: str
    index: int
    fence: int  # fence under which the sender believes that the node owns the server
    principal: str  # id of the calling principal; "" for the sending node itself
    caller_id: str  # authorization context of the call
    call_id: str
    idempotency_key: str | None = None
    sender: str = ""
    principal_name: str = ""  # display name of the principal
    endpoint: str = ""  # endpoint that the client called
    request_id: str = ""  # `X-Request-ID` that the client sent


def issue_call_token(sealer: CallTokenSealer, token: CallToken) -> str:
    """Return a call token as text, encrypted with the cluster key and valid for seconds."""
    return sealer.seal(CALL_TOKEN_KIND, token, CALL_TOKEN_LIFETIME_S)


class CallTokenVerifier:
    """Verifies call tokens on the node that owns the called server; each token is accepted once.

    `fence_of` returns the fence (ownership number) under which this node owns an instance of a server, or None.
    """

    def __init__(
        self,
        node: str,
        sealer: CallTokenSealer,
        fence_of: Callable[[str, str, int], int | None],
        now: Callable[[], float],
        max_remembered: int = MAX_REMEMBERED_TOKENS,
    ) -> None:
        self._node = node
        self._sealer = sealer
        self._fence_of = fence_of
        self._now = now
        self._max_remembered = max_remembered
        # Two generations of one token lifetime each: a token in neither has expired.
        self._used: set[str] = set()
        self._used_before: set[str] = set()
        self._rotated_at = now()

    def verify(self, text: str) -> CallToken | TokenRejection:
        """Verify and consume a call token. Return its content, or the reason of its rejection.

        A rejected call was not executed.
        """
        try:
            token = msgspec.convert(self._sealer.open(CALL_TOKEN_KIND, text), CallToken)
        except msgspec.ValidationError:
            return "forged"  # or expired
        if token.target_node != self._node:
            return "elsewhere"
        rejection = self._mark_used(text[:NONCE_CHARS])
        if rejection is not None:
            return rejection
        if self._fence_of(token.tenant, token.server, token.index) != token.fence:
            return "moved"
        return token

    def _mark_used(self, nonce: str) -> TokenRejection | None:
        """Mark a call token as used. Return why it must be rejected (replayed, busy), or None."""
        if self._now() - self._rotated_at >= CALL_TOKEN_LIFETIME_S:
            is_expired = self._now() - self._rotated_at >= 2 * CALL_TOKEN_LIFETIME_S
            self._used_before, self._used = (set() if is_expired else self._used), set()
            self._rotated_at = self._now()
        if nonce in self._used or nonce in self._used_before:
            return "replayed"
        if len(self._used) >= self._max_remembered:
            return "busy"
        self._used.add(nonce)
        return None


# -- nodes and forwarded calls ----------------------------------------------------------------------------------------


def issue_node_credential(sealer: CallTokenSealer, sender: str, target_node: str) -> str:
    """Return the bearer token by which node `sender` authenticates itself at node `target_node`."""
    return NODE_CREDENTIAL_PREFIX + sealer.seal(NODE_CREDENTIAL_KIND, [sender, target_node], NODE_CREDENTIAL_LIFETIME_S)


class NodeAuthenticator:
    """Authenticates other nodes of this cluster by the bearer tokens of their HTTP requests."""

    def __init__(self, id: str, sealer: CallTokenSealer) -> None:
        self._id = id
        self._sealer = sealer

    def authenticate(self, token: str) -> Principal | None:
        """Return the principal of the node that sent this credential; None if it is invalid.

        A credential is valid at the one node for which it was issued.
        """
        if not token.startswith(NODE_CREDENTIAL_PREFIX):
            return None
        found: Any = self._sealer.open(NODE_CREDENTIAL_KIND, token.removeprefix(NODE_CREDENTIAL_PREFIX))
        if not isinstance(found, list) or len(found) != 2 or found[1] != self._id:
            return None
        sender = str(found[0])
        return Principal(f"node:{sender}", f"node {sender}", f"node:{sender}", scopes=(), is_node=True)


class ForwardedCallVerifier:
    """Verifies the call tokens of calls that other nodes forward to this node.

    `view_for(endpoint)` returns the view of a server endpoint, or None if there is none.
    """

    def __init__(self, token_verifier: CallTokenVerifier, view_for: Callable[[str], EndpointView | None]) -> None:
        self._token_verifier = token_verifier
        self._view_for = view_for

    def verify(
        self, server: str, params: Json, view: EndpointView | None
    ) -> tuple[Principal, EndpointView, ForwardedCall]:
        """Verify a forwarded call.

        Return its principal, the view of the server and the forwarded data.

        Raises `RpcFailure` if the call token is invalid or the server is unknown; then nothing was executed.
        """
        text = get_meta(params).get(CALL_TOKEN_META_KEY)
        token: CallToken | TokenRejection = self._token_verifier.verify(text) if isinstance(text, str) else "forged"
        if isinstance(token, CallToken) and token.server != server:
            token = "elsewhere"
        if not isinstance(token, CallToken):
            code, message = _REJECTIONS[token]
            raise _rejection(code, message)
        view = view if view is not None else self._view_for(f"server/{server}")
        if view is None:
            raise _rejection(MOVED, "server not yet known to this node")
        principal_id = token.principal or f"node:{token.sender}"
        principal = Principal(principal_id, token.principal_name or principal_id, token.caller_id)
        return principal, view, ForwardedCall(token.call_id, token.idempotency_key, token.endpoint, token.request_id)


def _rejection(code: int, message: str) -> RpcFailure:
    return RpcFailure(code, message, {"executed": "no", "certainty": "C0", "retryable": code != DENIED, "attempts": 0})
