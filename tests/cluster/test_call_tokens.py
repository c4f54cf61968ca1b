"""A pass is taken once, at one node, in time, for what that node owns."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from toolway.catalog.catalog import Catalog
from toolway.cluster.db.instances import Ownership, ServerInstance
from toolway.cluster.node_auth import CALL_TOKEN_LIFETIME_S, CallToken, CallTokenVerifier, issue_call_token
from toolway.cluster.routing.remote import forwarding_info_for, with_call_token
from toolway.gateway.mcp.context import RequestContext
from toolway.gateway.mcp.errors import CALL_TOKEN_META_KEY
from toolway.gateway.mcp.view import EndpointView
from toolway.gateway.principals import Principal
from toolway.gateway.sealing import Sealer
from toolway.gateway.tool_filter import ALL_TOOLS
from toolway.types import Call, CallState

WHAT = CallToken("node-a", "acme", "files", 0, 7, "key-1", "key:key-1", "call-1", "once-and-only")


class Lab:
    def __init__(self, remembered: int = 1000) -> None:
        self.time = 1000.0
        self.sealer = Sealer(b"k" * 32, lambda: self.time)
        self.fence: int | None = 7
        self.inspector = CallTokenVerifier(
            "node-a", self.sealer, lambda tenant, server, instance: self.fence, lambda: self.time, remembered
        )


def test_a_pass_says_who_asks_for_what_and_is_taken_once() -> None:
    lab = Lab()
    text = issue_call_token(lab.sealer, WHAT)
    taken = lab.inspector.verify(text)
    assert taken == WHAT
    assert lab.inspector.verify(text) == "replayed"
    assert isinstance(lab.inspector.verify(issue_call_token(lab.sealer, WHAT)), CallToken)  # the next call has its own


def test_a_pass_that_is_over_or_made_up_or_changed_is_none() -> None:
    lab = Lab()
    text = issue_call_token(lab.sealer, WHAT)
    other = issue_call_token(Sealer(b"x" * 32, lambda: lab.time), WHAT)
    session = lab.sealer.seal("session", {"to": "node-a"}, 60)
    for wrong in ("", "x", other, session, text[:-2] + ("AA" if text[-2:] != "AA" else "BB"), text + "A"):
        assert lab.inspector.verify(wrong) == "forged"
    lab.time += CALL_TOKEN_LIFETIME_S
    assert lab.inspector.verify(text) == "forged"


def test_a_pass_for_another_node_is_refused() -> None:
    lab = Lab()
    assert lab.inspector.verify(issue_call_token(lab.sealer, replace(WHAT, target_node="node-b"))) == "elsewhere"


@pytest.mark.parametrize("fence", [None, 6, 8])
def test_whoever_thinks_of_another_time_of_ownership_is_told_that_it_moved(fence: int | None) -> None:
    lab = Lab()
    lab.fence = fence
    assert lab.inspector.verify(issue_call_token(lab.sealer, WHAT)) == "moved"


def test_what_was_taken_is_remembered_for_as_long_as_it_could_be_shown_again() -> None:
    lab = Lab()
    lab.time += CALL_TOKEN_LIFETIME_S - 1
    text = issue_call_token(lab.sealer, WHAT)
    assert isinstance(lab.inspector.verify(text), CallToken)
    for _ in range(int(CALL_TOKEN_LIFETIME_S) - 1):
        lab.time += 1
        assert isinstance(lab.inspector.verify(issue_call_token(lab.sealer, WHAT)), CallToken)
        assert lab.inspector.verify(text) == "replayed"
    lab.time += 1
    assert lab.inspector.verify(text) == "forged"


def test_the_memory_is_bounded_and_becomes_free_again() -> None:
    lab = Lab(remembered=3)
    results = [lab.inspector.verify(issue_call_token(lab.sealer, WHAT)) for _ in range(5)]
    assert results[3:] == ["busy", "busy"]
    lab.time += 2 * CALL_TOKEN_LIFETIME_S
    assert isinstance(lab.inspector.verify(issue_call_token(lab.sealer, WHAT)), CallToken)


@pytest.mark.promise("D18")
def test_the_owner_of_a_server_learns_the_request_id_of_the_client() -> None:
    lab = Lab()
    view = EndpointView(Catalog(), dict, ALL_TOOLS, ALL_TOOLS, None)
    context = RequestContext(Principal("key-1", "bob", "key:key-1"), view, "", "modern")
    call = Call("files.read", "tools/call", {}, state=CallState(request_id="req-7"), downstream=context, id="c1")
    ownership = Ownership(ServerInstance("acme", "files", 0), "node-a", 7)
    params = with_call_token({}, forwarding_info_for(call), ownership, lab.sealer, "node-b")
    taken = lab.inspector.verify(params["_meta"][CALL_TOKEN_META_KEY])
    assert isinstance(taken, CallToken) and (taken.call_id, taken.request_id) == ("c1", "req-7")
