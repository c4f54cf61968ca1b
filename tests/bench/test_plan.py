"""The measurements that are planned for each peer."""

import pytest

from bench.peers import PEERS, get_peer
from bench.plan import GROUPS, PARTS, Case, ServerGroup, cases, select_parts, select_peers


def test_every_peer_has_a_case():
    assert [peer.name for peer in PEERS if not any(list(cases(peer, behind)) for behind in GROUPS)] == []


def test_one_server_has_12_cases():
    found = list(cases(get_peer("toolway"), ServerGroup("http")))
    assert len(found) == len(set(found)) == 12
    assert {case.connections for case in found} == {1, 16, 64}
    assert {case.era for case in found} == {"modern", "legacy"}
    assert {case.work for case in found} == {"echo", "big"}


def test_peer_without_http_servers_has_no_http_case():
    assert list(cases(get_peer("supergateway"), ServerGroup("http"))) == []
    assert list(cases(get_peer("contextforge"), ServerGroup("stdio", 18))) == []


def test_many_servers_are_measured_by_lists_only():
    assert list(cases(get_peer("envoy"), ServerGroup("http", 18))) == [
        Case("list", "modern", 1),
        Case("list", "modern", 16),
    ]
    assert list(cases(get_peer("nginx"), ServerGroup("http", 18))) == []


def test_bridge_is_measured_next_to_clients_of_servers_era():
    found = list(cases(get_peer("toolway"), ServerGroup("http", era="legacy")))
    assert {case.era for case in found if case.work == "echo" and case.connections == 64} == {"modern", "legacy"}
    assert list(cases(get_peer("envoy"), ServerGroup("http", era="legacy"))) == []


def test_part_names_are_unique_and_include_the_groups():
    assert len(set(PARTS)) == len(PARTS)
    assert str(ServerGroup("stdio", 18, slow=True)) == "18 slow stdio"
    assert select_parts("") == list(PARTS)
    assert select_parts("library, http") == ["http", "library"]


def test_selected_peer_is_measured_with_fast_peers():
    chosen = [peer.name for peer in select_peers(PEERS, "litellm")]
    assert chosen == ["direct", "nginx", "bare", "toolway", "envoy", "litellm"]
    assert select_peers(PEERS, "") == list(PEERS)


@pytest.mark.parametrize("choose", [select_parts, lambda words: select_peers(PEERS, words)])
def test_unknown_name_is_rejected(choose):
    with pytest.raises(ValueError, match=r"unknown .*nonsense"):
        choose("nonsense")
