"""The commands for clusters, where there is none; against a real one: tests/cluster/node/test_operating.py."""

import asyncio
import json
import re
import sqlite3

import pytest
from sqlalchemy import insert

from toolway.cluster.db.client_state import ApiKeyTable
from toolway.cluster.db.engine import open_engine, upgrade_schema
from toolway.cluster.db.integrity import Integrity
from toolway.cluster.db.tables import ApiKeyRow
from toolway.cluster.keys import derive_tenant_key

KEY = "5f" * 32


def test_keygen_prints_a_new_key_each_time(machine):
    first, second = (machine.toolway("cluster", "keygen").stdout for _ in range(2))
    assert re.fullmatch("[0-9a-f]{64}\n", first) and first != second
    assert len(json.loads(machine.toolway("cluster", "keygen", "--json").stdout)["key"]) == 64


def test_keygen_file_is_private_and_never_overwritten(machine):
    file = machine.project / "cluster.key"
    result = machine.toolway("cluster", "keygen", "--out", str(file))
    key = file.read_text()
    assert (result.exit_code, result.stdout, file.stat().st_mode & 0o777) == (0, "", 0o600)
    assert re.fullmatch("[0-9a-f]{64}\n", key) and key.strip() not in result.stderr
    again = machine.toolway("cluster", "keygen", "--out", str(file))
    assert (again.exit_code, "E-CLUSTER-KEY" in again.stderr, file.read_text()) == (3, True, key)


def test_tenant_key_is_derived_and_not_a_cluster_key(machine, monkeypatch):
    file = machine.project / "cluster.key"
    file.write_text(KEY)
    first = machine.toolway("cluster", "tenant-key", "acme", "--cluster-key-file", str(file)).stdout
    assert re.fullmatch("tenant:acme:[0-9a-f]{64}\n", first) and KEY not in first
    monkeypatch.setenv("TOOLWAY_CLUSTER_KEY", KEY)
    assert json.loads(machine.toolway("cluster", "tenant-key", "acme", "--json").stdout)["key"] == first.strip()
    monkeypatch.setenv("TOOLWAY_CLUSTER_KEY", first.strip())
    refused = machine.toolway("cluster", "tenant-key", "other")
    assert (refused.exit_code, "key of one tenant" in refused.stderr) == (3, True)


def test_trust_shows_rows_before_keeping_or_deleting_them(machine, monkeypatch):
    record = machine.project / "record"
    asyncio.run(_make_database(f"sqlite:///{record}"))
    monkeypatch.setenv("TOOLWAY_CLUSTER_KEY", KEY)
    monkeypatch.setenv("TOOLWAY_DATABASE", f"sqlite:///{record}")
    assert machine.toolway("cluster", "trust").exit_code == 2  # no terminal, so no confirmation
    for words, done, left in ((("--dry-run",), False, 2), (("--yes",), True, 1)):
        found = json.loads(machine.toolway("cluster", "trust", "--json", *words).stdout)
        assert found["done"] is done
        assert {(row["name"], row["action"]) for row in found["rows"]} == {("good", "keep"), ("evil", "delete")}
        assert "administrator 'root'" in {row["detail"] for row in found["rows"]}
        with sqlite3.connect(record) as db:
            assert db.execute("SELECT count(*) FROM api_keys").fetchone() == (left,)
    assert "good" in machine.toolway("cluster", "trust", "--dry-run").stdout


async def _make_database(url: str) -> None:
    """Create a database with a signed row of an API key, and one without a signature."""
    engine = open_engine(url)
    await upgrade_schema(engine)
    await ApiKeyTable(engine, Integrity(derive_tenant_key(bytes.fromhex(KEY), "acme"))).add("acme", "good", {})
    async with engine.begin() as db:
        facts = {"name": "root", "admin": True}
        await db.execute(insert(ApiKeyRow).values(tenant="acme", id="evil", facts=facts, revision=9))
    await engine.dispose()


@pytest.mark.parametrize("words", [("cluster", "nodes"), ("cluster", "drain", "one")])
def test_cluster_commands_need_a_gateway(machine, words):
    error = json.loads((result := machine.toolway(*words, "--json")).stdout)["error"]
    assert (result.exit_code, error["code"], "--gateway" in error["hint"]) == (4, "E-GATEWAY", True)
    assert "no running gateway is registered in" in error["detail"] and "no gateway is running here" in error["message"]
    silent = json.loads(machine.toolway(*words, "--json", "--gateway", "http://127.0.0.1:1").stdout)["error"]
    assert silent["code"] == "E-GATEWAY" and all(silent[part] for part in ("message", "detail", "hint"))


def test_cluster_gateway_does_not_serve_stdio(machine, monkeypatch):
    monkeypatch.setenv("TOOLWAY_CLUSTER_KEY", KEY)
    machine.write(".config/toolway/mcp.json", {"mcpServers": {}})
    result = machine.toolway("serve", "--stdio", "--cluster", "nats://token@x", "--database", "postgresql://x/y")
    assert (result.exit_code, "--stdio was combined with --cluster" in result.stderr) == (2, True)


def test_missing_cluster_packages_are_named(machine, monkeypatch):
    from importlib.util import find_spec

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "nats" else find_spec(name))
    monkeypatch.setenv("TOOLWAY_CLUSTER_KEY", KEY)
    result = machine.toolway("serve", "--cluster", "nats://token@x", "--database", "postgresql://x/y")
    assert result.exit_code == 3
    assert "missing packages: nats" in result.stderr and "pip install 'toolway[cluster]'" in result.stderr


def test_common_command_names_lead_to_cluster_commands(machine):
    assert "toolway cluster nodes" in machine.toolway("nodes").stderr
    assert "toolway cluster drain" in machine.toolway("cordon").stderr
