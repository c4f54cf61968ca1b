"""What the benchmark asks of whom."""

import pytest

from bench.peers import PEERS, by_name
from bench.plan import GROUPS, PARTS, Behind, Case, cases, chosen_parts, chosen_peers


def test_every_peer_is_asked_something():
    assert [peer.name for peer in PEERS if not any(list(cases(peer, behind)) for behind in GROUPS)] == []


def test_both_eras_both_works_and_three_numbers_of_connections_before_one_server():
    asked = list(cases(by_name("toolway"), Behind("http")))
    assert len(asked) == len(set(asked)) == 12
    assert {case.connections for case in asked} == {1, 16, 64}
    assert {case.era for case in asked} == {"modern", "handshake"}
    assert {case.work for case in asked} == {"echo", "big"}


def test_who_has_only_stdio_servers_is_not_asked_for_http():
    assert list(cases(by_name("supergateway"), Behind("http"))) == []
    assert list(cases(by_name("contextforge"), Behind("stdio", 18))) == []


def test_before_many_servers_only_lists_count():
    assert list(cases(by_name("envoy"), Behind("http", 18))) == [Case("list", "modern", 1), Case("list", "modern", 16)]
    assert list(cases(by_name("nginx"), Behind("http", 18))) == []


def test_a_bridge_is_measured_beside_the_same_clients_without_one():
    asked = list(cases(by_name("toolway"), Behind("http", era="handshake")))
    assert {case.era for case in asked if case.work == "echo" and case.connections == 64} == {"modern", "handshake"}
    assert list(cases(by_name("envoy"), Behind("http", era="handshake"))) == []


def test_the_names_of_parts_are_those_of_the_groups_and_all_are_different():
    assert len(set(PARTS)) == len(PARTS)
    assert str(Behind("stdio", 18, slow=True)) == "18 slow stdio"
    assert chosen_parts("") == list(PARTS)
    assert chosen_parts("library, http") == ["http", "library"]


def test_who_is_measured_again_has_the_swift_beside_him():
    chosen = [peer.name for peer in chosen_peers(PEERS, "litellm")]
    assert chosen == ["direct", "nginx", "bare", "toolway", "envoy", "litellm"]
    assert chosen_peers(PEERS, "") == list(PEERS)


@pytest.mark.parametrize("choose", [chosen_parts, lambda words: chosen_peers(PEERS, words)])
def test_a_name_that_does_not_exist_is_not_passed_over(choose):
    with pytest.raises(ValueError, match=r"no such .*nonsense"):
        choose("nonsense")
