"""Where other nodes reach a gateway that was not told."""

import ipaddress
from dataclasses import replace

import pytest

from toolway.cluster.bootstrap import detect_address
from toolway.cluster.options import ClusterOptions
from toolway.errors import ConfigError

HERE = ClusterOptions(nats_urls=("nats://127.0.0.1:4222",), database_url="postgresql://db/x", tenant_key=bytes(32))
ELSEWHERE = replace(HERE, nats_urls=("nats://192.0.2.1:4222",))
NOWHERE = replace(HERE, nats_urls=("nats://name.invalid:4222",), database_url="postgresql:///x?host=/run/postgresql")


def has_a_network():
    try:
        return bool(detect_address(ELSEWHERE, "0.0.0.0", 1, tls=False))
    except ConfigError:
        return False


def test_what_was_said_counts():
    said = replace(NOWHERE, advertise_url="http://gateway-1:8765")
    assert detect_address(said, "127.0.0.1", 1, tls=False) == "http://gateway-1:8765"
    assert detect_address(replace(NOWHERE, advertise_url=""), "0.0.0.0", 1, tls=True) == ""


@pytest.mark.parametrize(
    ("host", "url"),
    [("10.1.2.3", "http://10.1.2.3:8765"), ("fd00::1", "http://[fd00::1]:8765"), ("gw.local", "http://gw.local:8765")],
)
def test_an_address_that_it_listens_at_is_one_that_others_reach(host, url):
    assert detect_address(NOWHERE, host, 8765, tls=False) == url


def test_on_one_machine_loopback_is_enough():
    assert detect_address(HERE, "127.0.0.1", 8765, tls=False) == "http://127.0.0.1:8765"
    assert detect_address(HERE, "localhost", 8765, tls=True) == "https://localhost:8765"
    assert detect_address(HERE, "0.0.0.0", 8765, tls=False) == "http://127.0.0.1:8765"


@pytest.mark.skipif(not has_a_network(), reason="this machine has no way to another network")
def test_towards_another_machine_it_is_the_number_on_that_way_and_a_closed_door_is_none():
    found = detect_address(ELSEWHERE, "0.0.0.0", 8765, tls=False)
    assert not ipaddress.ip_address(found.removeprefix("http://").removesuffix(":8765")).is_loopback
    assert detect_address(ELSEWHERE, "127.0.0.1", 8765, tls=False) == ""


def test_a_certificate_needs_a_name():
    with pytest.raises(ConfigError) as caught:
        detect_address(HERE, "0.0.0.0", 8443, tls=True)
    assert "--advertise https://NAME:8443" in caught.value.hint
    assert detect_address(HERE, "gw.example.org", 8443, tls=True) == "https://gw.example.org:8443"


def test_while_nats_has_no_address_the_way_to_the_database_will_do():
    found = replace(NOWHERE, database_url="postgresql://u:p@127.0.0.1:5432/x")
    assert detect_address(found, "0.0.0.0", 8765, tls=False) == "http://127.0.0.1:8765"


def test_where_nothing_can_be_found_out_it_is_asked_for():
    with pytest.raises(ConfigError) as caught:
        detect_address(NOWHERE, "0.0.0.0", 8765, tls=False)
    assert caught.value.code == "E-CLUSTER" and "--advertise" in caught.value.hint
