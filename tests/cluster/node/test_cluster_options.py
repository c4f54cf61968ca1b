"""Cluster options of a gateway: read, checked, and shown without secrets."""

import socket

import pytest

from tests.cluster.nats_accounts import operated
from toolway.cluster.keys import derive_tenant_key
from toolway.cluster.options import ClusterOptions, Flags, generate_cluster_key, read_options
from toolway.errors import ConfigError
from toolway.secrets.detection import mask_secrets

KEY = "0123456789abcdef" * 4
LEAST = {"TOOLWAY_CLUSTER_KEY": KEY}
FLAGS = {"cluster": "nats://u:p@a:4222", "database": "postgresql://toolway@db/toolway"}


def options(environ=LEAST, **flags) -> ClusterOptions:
    found = read_options(Flags(**{**FLAGS, **flags}), environ)
    assert found is not None
    return found


def refusal(environ=LEAST, **flags) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read_options(Flags(**{**FLAGS, **flags}), environ)
    assert caught.value.detail and caught.value.hint
    return caught.value


def test_no_cluster_option_means_no_cluster():
    assert read_options(Flags(), {}) is None
    assert read_options(Flags(), {"TOOLWAY_DATABASE": "postgresql://db/x", **LEAST}) is None


def test_nats_and_database_addresses_and_key_are_enough():
    found = options()
    assert (found.nats_urls, found.database_url, found.tenant_key) == (
        ("nats://u:p@a:4222",),
        "postgresql://toolway@db/toolway",
        derive_tenant_key(bytes.fromhex(KEY), "default"),
    )
    assert (found.cluster_name, found.tenant, found.advertise_url, found.capacity, found.labels) == (
        "toolway",
        "default",
        None,
        1000,
        (),
    )


def test_options_come_from_environment_and_flags_win(tmp_path):
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    environ = {
        "TOOLWAY_CLUSTER": "nats://u:p@a:4222, nats://u:p@b:4222",
        "TOOLWAY_DATABASE": "postgres://db/x",
        "TOOLWAY_CLUSTER_KEY_FILE": str(file),
        "TOOLWAY_CLUSTER_NAME": "blue",
        "TOOLWAY_TENANT": "acme",
        "TOOLWAY_NODE": "n1",
        "TOOLWAY_ADVERTISE": "http://10.0.0.7:8765/",
        "TOOLWAY_CAPACITY": "20",
        "TOOLWAY_LABELS": "region=eu, gpu",
    }
    found = read_options(Flags(node="n2"), environ)
    assert found == ClusterOptions(
        nats_urls=("nats://u:p@a:4222", "nats://u:p@b:4222"),
        database_url="postgresql://db/x",
        tenant_key=derive_tenant_key(bytes.fromhex(KEY), "acme"),
        cluster_name="blue",
        tenant="acme",
        node_name="n2",
        advertise_url="http://10.0.0.7:8765",
        capacity=20,
        labels=("gpu", "region=eu"),
    )


def test_empty_variable_is_ignored():
    assert read_options(Flags(), {"TOOLWAY_CLUSTER": ""}) is None
    assert options({**LEAST, "TOOLWAY_TENANT": "", "TOOLWAY_CAPACITY": ""}).tenant == "default"


def test_database_url_can_come_from_a_file(tmp_path):
    file = tmp_path / "database"
    file.write_text("postgresql://toolway:hidden-word@db/toolway\n")
    found = options({**LEAST, "TOOLWAY_DATABASE_FILE": str(file)}, database=None)
    assert found.database_url == "postgresql://toolway:hidden-word@db/toolway"
    assert mask_secrets("it says hidden-word") == "it says ***"


def test_cluster_option_without_a_cluster_is_rejected():
    with pytest.raises(ConfigError) as caught:
        read_options(Flags(cluster_key_file="x"), {})
    assert "--cluster-key-file" in str(caught.value) and "--cluster nats://" in caught.value.hint


@pytest.mark.parametrize(
    "flags",
    [
        {"cluster": ","},
        {"cluster": "http://a"},
        {"cluster": "nats://a:port"},
        {"cluster": ",".join(["nats://a"] * 33)},
        {"database": "mysql://db/x"},
        {"database": "sqlite://"},
        {"advertise": "10.0.0.7:8765"},
        {"advertise": "http://10.0.0.7:8765/mcp"},
        {"advertise": "http://me:word@host"},
        {"node": "a.b"},
        {"node": "*"},
        {"tenant": ">"},
        {"cluster_name": "x" * 64},
        {"capacity": "0"},
        {"capacity": "1e9"},
        {"labels": "a b"},
        {"labels": ",".join(map(str, range(33)))},
        {"nats_credentials": "/nowhere/at/all"},
    ],
)
def test_invalid_option_is_rejected(flags):
    assert refusal(**flags).code == "E-CLUSTER"


def test_missing_database_is_rejected():
    assert "--database" in refusal(database=None).hint


@pytest.mark.parametrize("key", ["", "abc", KEY[:-2], KEY + "00", "zz" * 32])
def test_invalid_key_is_rejected_and_not_shown(key):
    error = refusal({"TOOLWAY_CLUSTER_KEY": key})
    assert error.code == "E-CLUSTER-KEY" and "toolway cluster keygen" in error.hint
    assert not key or key not in str(error)


def test_missing_key_file_is_named_in_the_error(tmp_path):
    assert str(tmp_path / "none") in str(refusal(cluster_key_file=str(tmp_path / "none")))


def test_passwords_and_key_are_masked_in_all_strings():
    found = options(cluster="nats://user:nats-word@a,nats://a-nats-token@b", database="postgresql://u:pass%2Fword@db/x")
    for secret in ("nats-word", "a-nats-token", "pass%2Fword", "pass/word", KEY):
        assert secret not in repr(found)
        assert secret not in mask_secrets(f"there was {secret} in it")
    for flags in (
        {"cluster": "http://user:nats-word@a"},
        {"database": "mysql://u:pass/word@db/x"},
        {"advertise": "ftp://u:some-word@h"},
    ):
        assert "word" not in str(refusal(**flags))


def test_node_is_named_after_its_host_with_a_unique_id(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "Build_Box.example.org")
    found = options()
    assert found.node_name == "build-box"
    assert len({found.new_id() for _ in range(100)}) == 100
    assert found.new_id().startswith("build-box-")
    monkeypatch.setattr(socket, "gethostname", lambda: "…")
    assert options().node_name == "node"


def test_advertise_none_means_over_nats():
    assert options(advertise="none").advertise_url == ""


def test_generated_key_is_usable():
    assert generate_cluster_key() != generate_cluster_key()
    assert options({"TOOLWAY_CLUSTER_KEY": generate_cluster_key()}).tenant_key


def test_nats_credentials_are_checked_before_start(tmp_path):
    _, creds = operated(tmp_path, ["one"])
    assert options(nats_credentials=str(creds["one"])).nats_credentials == str(creds["one"])
    creds["one"].write_text("a password")
    assert "NATS .creds file" in refusal(nats_credentials=str(creds["one"])).detail
    assert "unreadable" in refusal(nats_credentials=str(tmp_path / "none")).message
