"""The detected address at which other nodes reach a gateway."""

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


def test_configured_address_is_used():
    said = replace(NOWHERE, advertise_url="http://gateway-1:8765")
    assert detect_address(said, "127.0.0.1", 1, tls=False) == "http://gateway-1:8765"
    assert detect_address(replace(NOWHERE, advertise_url=""), "0.0.0.0", 1, tls=True) == ""


@pytest.mark.parametrize(
    ("host", "url"),
    [("10.1.2.3", "http://10.1.2.3:8765"), ("fd00::1", "http://[fd00::1]:8765"), ("gw.local", "http://gw.local:8765")],
)
def test_listen_address_is_advertised(host, url):
    assert detect_address(NOWHERE, host, 8765, tls=False) == url


def test_loopback_is_advertised_when_all_is_on_one_machine():
    assert detect_address(HERE, "127.0.0.1", 8765, tls=False) == "http://127.0.0.1:8765"
    assert detect_address(HERE, "localhost", 8765, tls=True) == "https://localhost:8765"
    assert detect_address(HERE, "0.0.0.0", 8765, tls=False) == "http://127.0.0.1:8765"


@pytest.mark.skipif(not has_a_network(), reason="this machine has no way to another network")
def test_address_towards_another_machine_is_advertised():
    found = detect_address(ELSEWHERE, "0.0.0.0", 8765, tls=False)
    assert not ipaddress.ip_address(found.removeprefix("http://").removesuffix(":8765")).is_loopback
    assert detect_address(ELSEWHERE, "127.0.0.1", 8765, tls=False) == ""


def test_tls_requires_a_host_name():
    with pytest.raises(ConfigError) as caught:
        detect_address(HERE, "0.0.0.0", 8443, tls=True)
    assert "--advertise https://NAME:8443" in caught.value.hint
    assert detect_address(HERE, "gw.example.org", 8443, tls=True) == "https://gw.example.org:8443"


def test_database_host_is_used_when_nats_has_no_address():
    found = replace(NOWHERE, database_url="postgresql://u:p@127.0.0.1:5432/x")
    assert detect_address(found, "0.0.0.0", 8765, tls=False) == "http://127.0.0.1:8765"


def test_undetectable_address_is_a_config_error():
    with pytest.raises(ConfigError) as caught:
        detect_address(NOWHERE, "0.0.0.0", 8765, tls=False)
    assert caught.value.code == "E-CLUSTER" and "--advertise" in caught.value.hint
