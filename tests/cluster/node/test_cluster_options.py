"""What a gateway must be told to take part in a cluster: read, checked, and shown without what is secret."""

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


def test_nobody_who_does_not_ask_is_part_of_a_cluster():
    assert read_options(Flags(), {}) is None
    assert read_options(Flags(), {"TOOLWAY_DATABASE": "postgresql://db/x", **LEAST}) is None


def test_two_addresses_and_a_key_are_enough():
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


def test_all_of_it_can_stand_in_the_environment_and_a_flag_counts_more(tmp_path):
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


def test_a_variable_that_is_empty_says_nothing():
    assert read_options(Flags(), {"TOOLWAY_CLUSTER": ""}) is None
    assert options({**LEAST, "TOOLWAY_TENANT": "", "TOOLWAY_CAPACITY": ""}).tenant == "default"


def test_the_database_can_stand_in_a_file_as_secrets_of_containers_do(tmp_path):
    file = tmp_path / "database"
    file.write_text("postgresql://toolway:hidden-word@db/toolway\n")
    found = options({**LEAST, "TOOLWAY_DATABASE_FILE": str(file)}, database=None)
    assert found.database_url == "postgresql://toolway:hidden-word@db/toolway"
    assert mask_secrets("it says hidden-word") == "it says ***"


def test_an_option_of_a_cluster_without_one_is_not_left_out_in_silence():
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
def test_what_cannot_be_used_is_refused_in_four_parts(flags):
    assert refusal(**flags).code == "E-CLUSTER"


def test_a_database_is_missed():
    assert "--database" in refusal(database=None).hint


@pytest.mark.parametrize("key", ["", "abc", KEY[:-2], KEY + "00", "zz" * 32])
def test_a_key_that_is_none_is_refused_and_not_shown(key):
    error = refusal({"TOOLWAY_CLUSTER_KEY": key})
    assert error.code == "E-CLUSTER-KEY" and "toolway cluster keygen" in error.hint
    assert not key or key not in str(error)


def test_a_key_file_that_is_not_there_is_named(tmp_path):
    assert str(tmp_path / "none") in str(refusal(cluster_key_file=str(tmp_path / "none")))


def test_passwords_and_the_key_are_in_no_text():
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


def test_a_node_is_called_as_its_machine_is_and_no_two_have_one_id(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "Build_Box.example.org")
    found = options()
    assert found.node_name == "build-box"
    assert len({found.new_id() for _ in range(100)}) == 100
    assert found.new_id().startswith("build-box-")
    monkeypatch.setattr(socket, "gethostname", lambda: "…")
    assert options().node_name == "node"


def test_none_to_advertise_means_over_nats():
    assert options(advertise="none").advertise_url == ""


def test_a_new_key_can_be_used():
    assert generate_cluster_key() != generate_cluster_key()
    assert options({"TOOLWAY_CLUSTER_KEY": generate_cluster_key()}).tenant_key


def test_credentials_of_nats_are_looked_at_before_anything_starts(tmp_path):
    _, creds = operated(tmp_path, ["one"])
    assert options(nats_credentials=str(creds["one"])).nats_credentials == str(creds["one"])
    creds["one"].write_text("a password")
    assert "NATS .creds file" in refusal(nats_credentials=str(creds["one"])).detail
    assert "unreadable" in refusal(nats_credentials=str(tmp_path / "none")).message
