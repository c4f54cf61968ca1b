"""A pass is taken once, at one node, in time, for what that node owns."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from toolway.catalog.catalog import Catalog
from toolway.cluster.db.instances import Ownership, ServerInstance
from toolway.cluster.node_auth import (
    CALL_TOKEN_LIFETIME_S,
    GENERATION_S,
    CallToken,
    CallTokenVerifier,
    NodeProofs,
    issue_call_token,
    new_use_id,
)
from toolway.cluster.routing.call_cipher import CallCipher, join_request
from toolway.cluster.routing.remote import forwarding_info_for, token_for_call
from toolway.gateway.mcp.context import RequestContext
from toolway.gateway.mcp.view import EndpointView
from toolway.gateway.principals import Principal
from toolway.gateway.sealing import Sealer
from toolway.gateway.tool_filter import ALL_TOOLS
from toolway.types import Call, CallState

WHAT = CallToken(
    "node-a", "acme", "files", 0, 7, "key-1", "key:key-1", "call-1", "once-and-only", key="ab" * 32, use_id="first"
)
REQUEST = b'{"jsonrpc":"2.0"}'


class Lab:
    def __init__(self, remembered: int = 1000) -> None:
        self.time = 1000.0
        self.sealer = Sealer(b"k" * 32, lambda: self.time)
        self.fence: int | None = 7
        self._verifier = CallTokenVerifier(
            "node-a",
            self.sealer,
            lambda tenant, server, instance: self.fence,
            lambda: self.time,
            lambda: self.time,
            remembered,
        )
        self._next = 0

    def issue(self, sealer: Sealer | None = None, **changes: object) -> str:
        """A call token as `WHAT`, which was never used."""
        self._next += 1
        return issue_call_token(sealer or self.sealer, replace(WHAT, **{"use_id": str(self._next), **changes}))

    def show(self, text: str, key: str = WHAT.key, request: bytes = REQUEST) -> CallToken | str | None:
        """The content of a call token that is accepted, why it is rejected, or None if it is invalid."""
        sealed = CallCipher(bytes.fromhex(key)).seal_request(request)
        opened = self._verifier.open_call(join_request(text, sealed))
        if opened is None:
            return None
        if opened.rejection is not None:
            return opened.rejection
        assert opened.request == request
        return opened.token


def test_call_token_names_its_call_and_is_accepted_once() -> None:
    lab = Lab()
    text = issue_call_token(lab.sealer, WHAT)
    assert lab.show(text) == WHAT
    assert lab.show(text) == "replayed"
    assert lab.show(issue_call_token(lab.sealer, WHAT)) == "replayed"  # sent again: it only seemed to be lost
    assert isinstance(lab.show(lab.issue()), CallToken)  # the next call has its own


def test_expired_forged_or_altered_call_token_is_rejected() -> None:
    lab = Lab()
    text = lab.issue()
    other = lab.issue(Sealer(b"x" * 32, lambda: lab.time))
    session = lab.sealer.seal("session", {"to": "node-a"}, 60)
    keyless, endless = lab.issue(key=""), lab.issue(use_id="")
    for wrong in ("", "x", other, session, keyless, endless, text[:-2] + ("AA" if text[-2:] != "AA" else "BB")):
        assert lab.show(wrong) is None
    lab.time += CALL_TOKEN_LIFETIME_S
    assert lab.show(text) == "expired"


def test_mismatched_request_is_rejected_and_uses_up_its_token() -> None:
    lab = Lab()
    text = lab.issue()
    assert lab.show(text, key="cd" * 32) == "changed"
    assert lab.show(text) == "replayed"


def test_call_token_for_another_node_is_rejected() -> None:
    lab = Lab()
    assert lab.show(lab.issue(target_node="node-b")) is None


@pytest.mark.parametrize("fence", [None, 6, 8])
def test_call_token_with_another_fence_reports_moved(fence: int | None) -> None:
    lab = Lab()
    lab.fence = fence
    assert lab.show(lab.issue()) == "moved"


def test_used_call_token_is_remembered_until_it_expires() -> None:
    lab = Lab()
    lab.time += CALL_TOKEN_LIFETIME_S - 1
    text = lab.issue()
    assert isinstance(lab.show(text), CallToken)
    for _ in range(int(CALL_TOKEN_LIFETIME_S) - 1):
        lab.time += 1
        assert isinstance(lab.show(lab.issue()), CallToken)
        assert lab.show(text) == "replayed"
    lab.time += 1
    assert lab.show(text) == "expired"


def test_used_token_memory_is_bounded_and_freed() -> None:
    lab = Lab(remembered=3)
    results = [lab.show(lab.issue()) for _ in range(5)]
    assert results[3:] == ["busy", "busy"]
    lab.time += GENERATION_S
    assert isinstance(lab.show(lab.issue()), CallToken)


# -- the key of a call ------------------------------------------------------------------------------------------------


def test_each_reply_is_opened_once_and_nearly_in_order() -> None:
    caller, owner = CallCipher(bytes(32)), CallCipher(bytes(32))
    sent = [owner.seal_reply(str(number).encode()) for number in range(200)]
    order = [1, 0, 3, 2, *range(5, 200), 4]
    assert [caller.open_reply(sent[number]) for number in order[:-1]] == [str(n).encode() for n in order[:-1]]
    assert caller.open_reply(sent[4]) is None  # far too late
    assert all(caller.open_reply(each) is None for each in sent)


def test_messages_sealed_by_others_are_not_opened() -> None:
    caller, owner, other = CallCipher(bytes(32)), CallCipher(bytes(32)), CallCipher(b"x" * 32)
    request, reply = caller.seal_request(b"request"), owner.seal_reply(b"reply")
    for junk in (b"", b"x", request, other.seal_reply(b"reply"), reply[:-1], reply[:-1] + bytes([reply[-1] ^ 1])):
        assert caller.open_reply(junk) is None
    for junk in (b"", b"x", reply, reply[12:], other.seal_request(b"request"), request[:-1]):
        assert owner.open_request(junk) is None
    assert (owner.open_request(request), caller.open_reply(reply)) == (b"request", b"reply")


def test_two_replies_never_share_a_nonce() -> None:
    replies = {CallCipher(bytes(32)).seal_reply(b"same") for _ in range(100)}
    assert len(replies) == 100


# -- node proofs ------------------------------------------------------------------------------------------------------


def test_node_proof_is_bound_to_challenge_node_and_address() -> None:
    sealer = Sealer(b"k" * 32, lambda: 1000.0)
    asking = NodeProofs("a", sealer, lambda: ("a", 1), lambda: "http://a")
    node = NodeProofs("b", sealer, lambda: ("b", 5), lambda: "http://b")
    challenge, nonce = asking.challenge("b")
    proof = node.prove(challenge)
    assert proof is not None
    assert asking.is_valid(proof, "b", 5, "http://b", nonce) and asking.is_valid(proof, "b", 4, "http://b", nonce)
    assert not asking.is_valid(proof, "b", 6, "http://b", nonce)  # of an earlier lease
    assert not asking.is_valid(proof, "b", 5, "http://other", nonce)
    assert not asking.is_valid(proof, "c", 5, "http://b", nonce)
    assert not asking.is_valid(proof, "b", 5, "http://b", asking.challenge("b")[1])
    assert not asking.is_valid(challenge, "b", 5, "http://b", nonce)
    for wrong in ("", "x", proof, asking.challenge("c")[0]):
        assert node.prove(wrong) is None
    assert NodeProofs("b", sealer, lambda: None, lambda: "http://b").prove(challenge) is None  # it has no lease


@pytest.mark.promise("D18")
def test_owner_learns_the_clients_request_id() -> None:
    lab = Lab()
    view = EndpointView(Catalog(), dict, ALL_TOOLS, ALL_TOOLS, None)
    context = RequestContext(Principal("key-1", "bob", "key:key-1"), view, "", "modern")
    call = Call("files.read", "tools/call", {}, state=CallState(request_id="req-7"), downstream=context, id="c1")
    ownership = Ownership(ServerInstance("acme", "files", 0), "node-a", 7)
    token = token_for_call(forwarding_info_for(call), ownership, "node-b", new_use_id())
    taken = lab.show(issue_call_token(lab.sealer, token), token.key)
    assert isinstance(taken, CallToken) and (taken.call_id, taken.request_id) == ("c1", "req-7")
