"""Authentication of other nodes and of the calls that they forward.

    node proof      a node proves itself at every new connection, before it is shown anything (`NodeProofs`)
    credential      names the calling node in the request head; grants nothing by itself (`NodeAuthenticator`)
    call token      for one call, accepted once; carries the key under which the call is sealed (`CallTokenVerifier`)
    link            hello and welcome of two nodes, and the keys of their connection (`NodeProofs`); there, a call has
                    the content of a call token without its seal, because the whole connection is sealed

The caller's permissions were checked at the node that received the call.

A rejection that says "not executed" is final: its token was used up. Otherwise someone on the network could obtain the
rejection first, then have the same call executed, and deliver the rejection. For the same reason a token that was used
before is rejected with an unknown outcome.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec

from toolway.cluster.routing.call_cipher import KEY_BYTES, CallCipher, split_request
from toolway.cluster.routing.link_frames import RANDOM_BYTES, LinkKeys, new_random
from toolway.gateway.mcp.context import ForwardedCall
from toolway.gateway.mcp.errors import DENIED, MOVED, OUTCOME_UNKNOWN, OVERLOADED, RpcFailure
from toolway.gateway.mcp.view import EndpointView
from toolway.gateway.principals import Principal

CALL_TOKEN_KIND: Final = "pass"  # seal kind of call tokens
CALL_TOKEN_LIFETIME_S: Final = 15.0  # seconds
MAX_CLOCK_SKEW_S: Final = 5.0  # seconds by which the clock of the sender may be ahead of ours
GENERATION_S: Final = CALL_TOKEN_LIFETIME_S + MAX_CLOCK_SKEW_S  # a token that is accepted now has expired after that
REMEMBERED_GENERATIONS: Final = 2  # whole generations for which a used token is remembered, besides the current one
_USE_ID_BYTES: Final = 12
MAX_REMEMBERED_TOKENS: Final = 250_000  # used tokens remembered per generation; more are rejected

NODE_CREDENTIAL_KIND: Final = "node"  # seal kind of node credentials
NODE_CREDENTIAL_PREFIX: Final = "twn_"
NODE_CREDENTIAL_LIFETIME_S: Final = 24 * 3600.0  # seconds

CHALLENGE_KIND: Final = "node-challenge"  # seal kinds of node proofs
PROOF_KIND: Final = "node-proof"
HELLO_KIND: Final = "link-hello"  # seal kinds of the first messages of a link
WELCOME_KIND: Final = "link-welcome"
LINK_VERSION: Final = 1
PROOF_LIFETIME_S: Final = 15.0  # seconds: for challenge and proof, hello and welcome

TokenRejection: TypeAlias = Literal["expired", "ahead", "changed", "elsewhere", "replayed", "busy", "moved"]
_REJECTIONS: Final[dict[TokenRejection, tuple[int, str]]] = {
    "expired": (DENIED, "call token expired"),
    "ahead": (DENIED, "call token ends too late: the clock of the calling node is ahead"),
    "changed": (DENIED, "request does not match its call token"),
    "elsewhere": (DENIED, "call token issued for another purpose"),
    "replayed": (OUTCOME_UNKNOWN, "call token already used: the call may have run"),
    "busy": (OVERLOADED, "too many call tokens used in the last seconds"),
    "moved": (MOVED, "server not owned by this node"),
}
#: Rejections after which a call with the same token might still run, or ran.
_UNKNOWN_OUTCOMES: Final = frozenset({"ahead", "replayed"})

log = logging.getLogger("toolway.cluster")


class CallTokenSealer(Protocol):
    """Encrypts and decrypts values with the cluster key (`gateway/sealing.py`)."""

    def seal(self, kind: str, value: Any, seconds: float) -> str: ...

    def open(self, kind: str, text: str) -> Any: ...

    def open_with_expiry(self, kind: str, text: str) -> tuple[float, Any] | None: ...


# -- call tokens ------------------------------------------------------------------------------------------------------


class CallToken(msgspec.Struct, frozen=True, array_like=True):
    """Contents of a call token: proof of a forwarded call's caller, server and fence, and its key.

    It is sealed with the cluster key, so only nodes can read it, and it cannot be forged or changed. It is valid for
    one node and one call, for seconds, and only once. New fields are only added at the end, with a default: nodes of
    two versions work side by side.
    """

    target_node: str  # node that may accept it
    tenant: str
    server: str  # "" for a request to the node itself
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
    key: str = ""  # hexadecimal key of the call: request and replies are sealed with it (`call_cipher.py`)
    use_id: str = ""  # accepted once; a call that is sent again because it seemed to be lost has the same one
    approved_by: str = ""  # who approved the call at the sender: "client", "admin" or ""


def new_call_key() -> str:
    """Return a new random key for one call, as hexadecimal text."""
    return os.urandom(KEY_BYTES).hex()


def new_use_id() -> str:
    """Return a new random call id. A node accepts only one call token per id."""
    return os.urandom(_USE_ID_BYTES).hex()


def issue_call_token(sealer: CallTokenSealer, token: CallToken) -> str:
    """Return a call token as text, encrypted with the cluster key and valid for seconds."""
    return sealer.seal(CALL_TOKEN_KIND, token, CALL_TOKEN_LIFETIME_S)


class OpenedCall(msgspec.Struct, frozen=True):
    """Another node's opened request: call token, JSON-RPC request, and why it is rejected, if it is."""

    token: CallToken
    cipher: CallCipher  # seals the replies
    request: bytes  # JSON-RPC request; empty if the call is rejected
    rejection: TokenRejection | None = None

    def check(self) -> None:
        """Raise `RpcFailure` if the call is rejected, for example because its token was used before."""
        if self.rejection is not None:
            raise rejection_error(self.rejection)


def rejection_error(rejection: TokenRejection) -> RpcFailure:
    """Return the error for a rejected call token. Nothing ran, unless the token was used before."""
    code, message = _REJECTIONS[rejection]
    is_unknown = rejection in _UNKNOWN_OUTCOMES
    return _failure(code, message, executed="unknown" if is_unknown else "no")


class CallTokenVerifier:
    """Opens and verifies forwarded calls on the server's owner node, accepting each token once.

    `fence_of` returns the fence (ownership number) under which this node owns an instance of a server, or None.
    `wall_time` must be the clock of the sealer; `now` never goes back.
    """

    def __init__(
        self,
        node: str,
        sealer: CallTokenSealer,
        fence_of: Callable[[str, str, int], int | None],
        now: Callable[[], float],
        wall_time: Callable[[], float],
        max_remembered: int = MAX_REMEMBERED_TOKENS,
    ) -> None:
        self._node = node
        self._sealer = sealer
        self._fence_of = fence_of
        self._now = now
        self._wall_time = wall_time
        self._max_remembered = max_remembered
        # The first generation is the current one. A token in none of them has expired long ago.
        self._used: deque[set[str]] = deque([set()], maxlen=1 + REMEMBERED_GENERATIONS)
        self._rotated_at = now()

    def open_call(self, data: bytes) -> OpenedCall | None:
        """Open a forwarded call (`call_cipher.join_request`) and use up its token.

        None if it has no call token for this node, and so no key to answer with either.
        """
        parts = split_request(data)
        opened = self._sealer.open_with_expiry(CALL_TOKEN_KIND, parts[0]) if parts is not None else None
        if parts is None or opened is None:
            return None
        try:
            token = msgspec.convert(opened[1], CallToken)
            cipher = CallCipher(bytes.fromhex(token.key))
        except (msgspec.ValidationError, ValueError):
            return None
        if token.target_node != self._node or not token.use_id:
            return None
        rejection = self._check_time(opened[0], token.sender) or self._mark_used(token.use_id)
        request = cipher.open_request(parts[1]) if rejection is None else b""
        if request is None:
            rejection = "changed"
        elif rejection is None:
            rejection = self._check_fence(token)
        return OpenedCall(token, cipher, request or b"", rejection)

    def check_link_call(self, token: CallToken, expires: float) -> TokenRejection | None:
        """Check a call that arrived on a link between nodes, and use up its token.

        Return why the call is rejected, or None if it is accepted. `expires` is the wall time of the sender until which
        the call may begin.
        """
        if token.target_node != self._node or not token.use_id:
            return "elsewhere"
        rejection = self._check_time(expires, token.sender) or self._mark_used(token.use_id)
        return rejection or self._check_fence(token)

    def _check_fence(self, token: CallToken) -> TokenRejection | None:
        return "moved" if self._fence_of(token.tenant, token.server, token.index) != token.fence else None

    def _check_time(self, expires: float, sender: str) -> TokenRejection | None:
        left = expires - self._wall_time()
        if left > GENERATION_S:
            log.warning("call of node %s rejected: its clock is %.0f s ahead", sender, left - CALL_TOKEN_LIFETIME_S)
            return "ahead"
        return "expired" if left <= 0 else None

    def _mark_used(self, use_id: str) -> TokenRejection | None:
        """Mark a call token as used. Return why it must be rejected (replayed, busy), or None."""
        passed = self._now() - self._rotated_at
        if passed >= GENERATION_S:
            for _ in range(min(int(passed / GENERATION_S), 1 + REMEMBERED_GENERATIONS)):
                self._used.appendleft(set())
            self._rotated_at = self._now()
        if any(use_id in used for used in self._used):
            return "replayed"
        if len(self._used[0]) >= self._max_remembered:
            return "busy"
        self._used[0].add(use_id)
        return None


# -- nodes and forwarded calls ----------------------------------------------------------------------------------------


def issue_node_credential(sealer: CallTokenSealer, sender: str, target_node: str) -> str:
    """Return the bearer token with which node `sender` authenticates at node `target_node`."""
    return NODE_CREDENTIAL_PREFIX + sealer.seal(NODE_CREDENTIAL_KIND, [sender, target_node], NODE_CREDENTIAL_LIFETIME_S)


class NodeAuthenticator:
    """Authenticates other cluster nodes by the bearer tokens of their HTTP requests."""

    def __init__(self, id: str, sealer: CallTokenSealer) -> None:
        self._id = id
        self._sealer = sealer

    def authenticate(self, token: str) -> Principal | None:
        """Return the principal of the node that sent this credential, or None if it is invalid.

        A credential is valid at the one node for which it was issued.
        """
        if not token.startswith(NODE_CREDENTIAL_PREFIX):
            return None
        found: Any = self._sealer.open(NODE_CREDENTIAL_KIND, token.removeprefix(NODE_CREDENTIAL_PREFIX))
        if not isinstance(found, list) or len(found) != 2 or found[1] != self._id:
            return None
        sender = str(found[0])
        return Principal(f"node:{sender}", f"node {sender}", f"node:{sender}", access=(), is_node=True)


class NodeProofs:
    """Identity proofs between nodes: one sends a challenge, the other proves that it is the addressed node.

    A challenge is sealed too, so only nodes get a proof. The proof names the address under which the node itself wants
    to be reached: it is worthless for a process that forwards the challenge from another address.

    `identity()` returns our id and the number (epoch) of our lease, `address()` our address for other nodes.
    """

    def __init__(
        self,
        id: str,
        sealer: CallTokenSealer,
        identity: Callable[[], tuple[str, int] | None],
        address: Callable[[], str],
    ) -> None:
        self._id = id
        self._sealer = sealer
        self._identity = identity
        self._address = address

    def challenge(self, target_node: str) -> tuple[str, str]:
        """Return a new challenge for a node, as text, and the nonce that its proof must repeat."""
        nonce = secrets.token_hex(16)
        return self._sealer.seal(CHALLENGE_KIND, [self._id, target_node, nonce], PROOF_LIFETIME_S), nonce

    def prove(self, challenge: str) -> str | None:
        """Return our proof for another node's challenge, or None if it is invalid or not for us."""
        found: Any = self._sealer.open(CHALLENGE_KIND, challenge)
        identity = self._identity()
        if not isinstance(found, list) or len(found) != 3 or found[1] != self._id or identity is None:
            return None
        return self._sealer.seal(PROOF_KIND, [*identity, self._address(), found[0], found[2]], PROOF_LIFETIME_S)

    def is_valid(self, proof: str, node: str, epoch: int, address: str, nonce: str) -> bool:
        """Return True if `proof` is a valid proof of this node, at this address, for our challenge.

        `epoch` is the lease under which we know the node; a later one is accepted.
        """
        found: Any = self._sealer.open(PROOF_KIND, proof)
        if not isinstance(found, list) or len(found) != 5 or not isinstance(found[1], int) or found[1] < epoch:
            return False
        return [found[0], *found[2:]] == [node, address, self._id, nonce]

    # -- links --------------------------------------------------------------------------------------------------------

    def hello(self, target_node: str) -> tuple[bytes, bytes]:
        """Return a hello, our first message on a link to another node, and the random bytes in it."""
        random = new_random()
        value = [LINK_VERSION, self._id, target_node, random.hex()]
        return self._sealer.seal(HELLO_KIND, value, PROOF_LIFETIME_S).encode(), random

    def welcome(self, hello: bytes) -> tuple[bytes, LinkKeys, str] | None:
        """Return our welcome (the answer to a hello), the link's keys, and the other node's id.

        Return None if the hello is invalid or not for us. The keys depend on random bytes from both sides, so
        replaying a recorded hello yields keys that the attacker does not know.
        """
        found: Any = self._sealer.open(HELLO_KIND, hello.decode("ascii", "replace"))
        identity = self._identity()
        if not isinstance(found, list) or len(found) < 4 or found[2] != self._id or identity is None:
            return None
        caller_random = _decode_random(found[3])
        if found[0] != LINK_VERSION or caller_random is None:
            return None
        random, sender = new_random(), str(found[1])
        value = [LINK_VERSION, *identity, self._address(), sender, found[3], random.hex()]
        welcome = self._sealer.seal(WELCOME_KIND, value, PROOF_LIFETIME_S).encode()
        return welcome, LinkKeys.derive(caller_random, random), sender

    def keys_from_welcome(
        self, welcome: bytes, node: str, epoch: int, address: str, caller_random: bytes
    ) -> LinkKeys | None:
        """Verify a node's welcome to our hello, and return the keys of the link.

        None if it is not this node's answer, from this address, to our hello.
        """
        found: Any = self._sealer.open(WELCOME_KIND, welcome.decode("ascii", "replace"))
        if not isinstance(found, list) or len(found) < 7 or not isinstance(found[2], int) or found[2] < epoch:
            return None
        random = _decode_random(found[6])
        if random is None or [found[0], found[1], *found[3:6]] != [
            LINK_VERSION,
            node,
            address,
            self._id,
            caller_random.hex(),
        ]:
            return None
        return LinkKeys.derive(caller_random, random)


def _decode_random(text: object) -> bytes | None:
    """Return the random bytes in a hello or welcome, or None if malformed."""
    try:
        random = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        return None
    return random if len(random) == RANDOM_BYTES else None


class ForwardedCallVerifier:
    """Finds the principal of a forwarded call, and the view of its server.

    `view_for(endpoint)` returns the view (visible tools, prompts, resources) of a server endpoint, or None if there is
    none.
    """

    def __init__(self, view_for: Callable[[str], EndpointView | None]) -> None:
        self._view_for = view_for

    def resolve(self, token: CallToken) -> tuple[Principal, EndpointView, ForwardedCall]:
        """Return the principal who makes the call, the view of its server, and its forwarded data.

        The view has the visible tools, prompts and resources. Raises `RpcFailure` if the server is unknown; then
        nothing ran.
        """
        if not token.server:
            raise rejection_error("elsewhere")
        view = self._view_for(f"server/{token.server}")
        if view is None:
            raise _failure(MOVED, "server not yet known to this node")
        principal_id = token.principal or f"node:{token.sender}"
        principal = Principal(principal_id, token.principal_name or principal_id, token.caller_id)
        forwarded = ForwardedCall(
            token.call_id, token.idempotency_key, token.endpoint, token.request_id, token.approved_by
        )
        return principal, view, forwarded


def _failure(code: int, message: str, executed: str = "no") -> RpcFailure:
    certainty = "C0" if executed == "no" else "C2"
    return RpcFailure(
        code,
        message,
        {"executed": executed, "certainty": certainty, "retryable": code in (MOVED, OVERLOADED), "attempts": 0},
    )
