"""The commands for clusters, where there is none; against a real one: tests/cluster/node/test_operating.py."""

import json
import re

import pytest

KEY = "5f" * 32


def test_a_key_is_made_shown_and_another_each_time(machine):
    first, second = (machine.toolway("cluster", "keygen").stdout for _ in range(2))
    assert re.fullmatch("[0-9a-f]{64}\n", first) and first != second
    assert len(json.loads(machine.toolway("cluster", "keygen", "--json").stdout)["key"]) == 64


def test_a_key_in_a_file_is_for_its_owner_alone_and_is_never_overwritten(machine):
    file = machine.project / "cluster.key"
    result = machine.toolway("cluster", "keygen", "--out", str(file))
    key = file.read_text()
    assert (result.exit_code, result.stdout, file.stat().st_mode & 0o777) == (0, "", 0o600)
    assert re.fullmatch("[0-9a-f]{64}\n", key) and key.strip() not in result.stderr
    again = machine.toolway("cluster", "keygen", "--out", str(file))
    assert (again.exit_code, "E-CLUSTER-KEY" in again.stderr, file.read_text()) == (3, True, key)


@pytest.mark.parametrize("words", [("cluster", "nodes"), ("cluster", "drain", "one")])
def test_without_a_gateway_there_is_nobody_to_ask(machine, words):
    error = json.loads((result := machine.toolway(*words, "--json")).stdout)["error"]
    assert (result.exit_code, error["code"], "--gateway" in error["hint"]) == (4, "E-GATEWAY", True)
    assert "no running gateway is registered in" in error["detail"] and "no gateway is running here" in error["message"]
    silent = json.loads(machine.toolway(*words, "--json", "--gateway", "http://127.0.0.1:1").stdout)["error"]
    assert silent["code"] == "E-GATEWAY" and all(silent[part] for part in ("message", "detail", "hint"))


def test_a_gateway_of_a_cluster_does_not_serve_pipes(machine, monkeypatch):
    monkeypatch.setenv("TOOLWAY_CLUSTER_KEY", KEY)
    machine.write(".config/toolway/mcp.json", {"mcpServers": {}})
    result = machine.toolway("serve", "--stdio", "--cluster", "nats://token@x", "--database", "postgresql://x/y")
    assert (result.exit_code, "--stdio was combined with --cluster" in result.stderr) == (2, True)


def test_what_a_cluster_needs_may_be_missing_and_is_named(machine, monkeypatch):
    from importlib.util import find_spec

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "nats" else find_spec(name))
    monkeypatch.setenv("TOOLWAY_CLUSTER_KEY", KEY)
    result = machine.toolway("serve", "--cluster", "nats://token@x", "--database", "postgresql://x/y")
    assert result.exit_code == 3
    assert "missing packages: nats" in result.stderr and "pip install 'toolway[cluster]'" in result.stderr


def test_the_words_of_others_lead_to_ours(machine):
    assert "toolway cluster nodes" in machine.toolway("nodes").stderr
    assert "toolway cluster drain" in machine.toolway("cordon").stderr
