"""Attacks by a writer of the cluster database who has no key: two gateways on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import sqlite3
import stat
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.cluster.node.hop_lab import KEY, TOKEN, Cluster, cluster
from tests.gateway.bridge_lab import pipe_entry
from tests.telemetry.postgres_server import binaries, postgres_server
from toolway.auth.token_store import Credential, OAuthClient, TokenKey
from toolway.cluster.db.client_state import ApiKeyTable
from toolway.cluster.db.config_store import ConfigStore
from toolway.cluster.db.engine import open_engine, upgrade_schema
from toolway.cluster.db.integrity import Integrity, StateRefused
from toolway.cluster.db.takeover import take_over
from toolway.cluster.db.tokens import DbTokenStore, EnvelopeCipher
from toolway.cluster.keys import derive_tenant_key, format_tenant_key
from toolway.cluster.node_auth import CallToken, CallTokenVerifier, issue_call_token, new_call_key, new_use_id
from toolway.cluster.options import Flags, read_options
from toolway.cluster.routing.call_cipher import CallCipher, join_request
from toolway.errors import ConfigError
from toolway.gateway.sealing import Sealer

pytestmark = pytest.mark.anyio

SERVERS = {"full": pipe_entry("legacy")}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    programs = binaries()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    with postgres_server(programs, connections=40) as address:
        yield address


@pytest.fixture(scope="module")
async def nodes(postgresql: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    async with cluster(folder, SERVERS, database=postgresql) as made:
        yield made


class Attacker:
    """Attacker with a connection to the database."""

    def __init__(self, url: str) -> None:
        self._url = url

    def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._url, autocommit=True) as db:
            cursor = db.execute(statement, values)
            return cursor.fetchall() if cursor.description is not None else []

    def announce(self, *kinds: str) -> None:
        """Make all nodes read again."""
        (last,) = self.run("UPDATE revisions SET last = last + 1 RETURNING last")[0]
        for kind in kinds:
            self.run("UPDATE changes SET revision = %s WHERE kind = %s", last, kind)

    def copy(self, table: str) -> list[str]:
        """All rows of a table."""
        return [row[0] for row in self.run(f"SELECT to_json(t)::text FROM {table} t")]

    def put_back(self, table: str, rows: list[str]) -> None:
        with psycopg.connect(self._url) as db:
            db.execute("SET session_replication_role = replica")  # rows of other tables are not deleted with them
            db.execute(f"DELETE FROM {table}")
            for row in rows:
                db.execute(f"INSERT INTO {table} SELECT * FROM json_populate_record(NULL::{table}, %s)", [row])


@pytest.fixture
def attacker(postgresql: str) -> Attacker:
    return Attacker(postgresql)


async def _reads_again(nodes: Cluster, attacker: Attacker, *kinds: str) -> None:
    """Until every node has tried to apply what the attacker announced."""
    attacker.announce(*kinds)
    for node in nodes.nodes:
        feed = node.replica.change_feed
        for _ in range(2):
            before = feed.poll_count
            feed.resync()
            async with asyncio.timeout(20):
                while feed.poll_count == before:
                    await asyncio.sleep(0.02)


async def _until(what: Any) -> None:
    async with asyncio.timeout(20):
        while not what():
            await asyncio.sleep(0.02)


def _findings(nodes: Cluster) -> list[str]:
    return [finding for node in nodes.nodes for finding in node.replica.integrity.findings()]


# -- API keys ---------------------------------------------------------------------------------------------------------


@pytest.mark.attack("B4")
async def test_planted_administrator_key_is_rejected(nodes: Cluster, attacker: Attacker) -> None:
    good = await nodes.key("good")
    token = "tw_" + secrets.token_urlsafe(32)
    facts = {"id": "evil", "name": "evil", "hash": hashlib.sha256(token.encode()).hexdigest(), "admin": True}
    attacker.run(
        "INSERT INTO api_keys (tenant, id, facts, revision) VALUES ('default', 'evil', %s, 9)", json.dumps(facts)
    )
    await _reads_again(nodes, attacker, "keys")
    await _until(lambda: sum("'evil'" in finding for finding in _findings(nodes)) == len(nodes.nodes))
    for node in nodes.nodes:
        assert node.replica.api_keys.authenticate(token) is None
        assert node.replica.api_keys.authenticate(good) is not None
        async with node.raw("full", token) as client:
            assert (await client.http.get(f"http://127.0.0.1:{node.port}/admin/keys")).status_code == 401
        async with node.raw("full", TOKEN) as client:
            answer = (await client.http.get(f"http://127.0.0.1:{node.port}/admin/nodes")).json()
            assert any("'evil'" in line for line in answer["rejected"])
    attacker.run("DELETE FROM api_keys WHERE id = 'evil'")
    await _reads_again(nodes, attacker, "keys")
    await _until(lambda: not _findings(nodes))


@pytest.mark.attack("B4")
async def test_key_altered_to_administrator_keeps_its_access(nodes: Cluster, attacker: Attacker) -> None:
    mine = await nodes.key("mine", access=["server/full"])
    rows = attacker.copy("api_keys")
    attacker.run("""UPDATE api_keys SET facts = (facts::jsonb || '{"admin": true}')::json""")
    await _reads_again(nodes, attacker, "keys")
    await _until(lambda: any("tenants.keys" in finding for finding in _findings(nodes)))
    for node in nodes.nodes:
        principal = node.replica.api_keys.authenticate(mine)
        assert principal is not None and not principal.admin and principal.access == ("server/full",)
    attacker.put_back("api_keys", rows)
    await _reads_again(nodes, attacker, "keys")
    await _until(lambda: not _findings(nodes))


@pytest.mark.attack("B4")
async def test_restored_revoked_key_is_rejected(nodes: Cluster, attacker: Attacker, postgresql: str) -> None:
    token = await nodes.key("gone", admin=True)
    rows, states = attacker.copy("api_keys"), attacker.copy("tenant_states")
    [key] = [key for key in nodes.nodes[0].replica.api_keys.list_keys() if key.name == "gone"]
    assert await nodes.nodes[0].replica.api_keys.revoke_key(key.id)
    after, state = attacker.copy("api_keys"), attacker.copy("tenant_states")
    attacker.put_back("api_keys", rows)
    await _reads_again(nodes, attacker, "keys")
    await _until(lambda: any("tenants.keys" in finding for finding in _findings(nodes)))
    assert all(node.replica.api_keys.authenticate(token) is None for node in nodes.nodes)
    with pytest.raises(StateRefused):  # nor does a node that was just started take it
        await _restarted(postgresql)
    attacker.put_back("tenant_states", states)  # all of it as it was: a node that runs notices that too
    await _reads_again(nodes, attacker, "keys")
    await _until(lambda: any("was seen before" in finding for finding in _findings(nodes)))
    assert all(node.replica.api_keys.authenticate(token) is None for node in nodes.nodes)
    attacker.put_back("tenant_states", state)
    attacker.put_back("api_keys", after)
    await _reads_again(nodes, attacker, "keys")
    await _until(lambda: not _findings(nodes))


@pytest.mark.attack("R3-login-2")
async def test_ended_logins_cannot_be_undone(nodes: Cluster, attacker: Attacker, postgresql: str) -> None:
    rows = attacker.copy("api_keys")
    await nodes.nodes[0].replica.api_keys.end_logins("user:mallory", 1000.0)
    await _until(lambda: all("user:mallory" in node.replica.api_keys.ended_logins() for node in nodes.nodes))
    after = attacker.copy("api_keys")
    attacker.put_back("api_keys", rows)
    await _reads_again(nodes, attacker, "keys")
    await _until(lambda: any("tenants.keys" in finding for finding in _findings(nodes)))
    assert all("user:mallory" in node.replica.api_keys.ended_logins() for node in nodes.nodes)
    with pytest.raises(StateRefused):
        await _restarted(postgresql)
    attacker.put_back("api_keys", after)
    await _reads_again(nodes, attacker, "keys")
    await _until(lambda: not _findings(nodes))


async def _restarted(url: str) -> None:
    """Load the keys as a node does that has seen nothing yet."""
    engine = open_engine(url)
    try:
        await ApiKeyTable(engine, Integrity(KEY)).load_all("default")
    finally:
        await engine.dispose()


# -- nodes ------------------------------------------------------------------------------------------------------------


@pytest.mark.attack("B4")
async def test_altered_or_planted_node_address_is_ignored(nodes: Cluster, attacker: Attacker) -> None:
    owner, other = nodes.owner(), nodes.other()
    address = attacker.run("SELECT address FROM nodes WHERE id = %s", owner.id)[0][0]
    attacker.run("UPDATE nodes SET address = 'http://127.0.0.1:9' WHERE id = %s", owner.id)
    found = await other.replica.nodes.list_alive("default")
    assert [status.info.id for status in found] == [other.id]
    assert any(owner.id in finding for finding in other.replica.integrity.findings())
    attacker.run("UPDATE nodes SET address = %s WHERE id = %s", address, owner.id)
    attacker.run(
        'INSERT INTO nodes SELECT (json_populate_record(n, \'{"id": "evil-1", "capacity": 99999}\')).* FROM nodes n'
        " WHERE id = %s",
        owner.id,
    )
    found = await other.replica.nodes.list_alive("default")
    assert {status.info.id for status in found} == {owner.id, other.id}
    attacker.run("DELETE FROM nodes WHERE id = 'evil-1'")
    await other.replica.nodes.list_alive("default")
    assert other.replica.integrity.findings() == []


# -- configuration, lists, logins -------------------------------------------------------------------------------------


@pytest.mark.attack("B4")
async def test_restored_server_definition_is_rejected(nodes: Cluster, attacker: Attacker, postgresql: str) -> None:
    first, second = (node.replica for node in nodes.nodes)
    await first.config_store.put_server("default", "tool", {"command": "vulnerable", "enabled": False})
    old = attacker.copy("servers")
    await first.config_store.put_server("default", "tool", {"command": "mended", "enabled": False})
    new = attacker.copy("servers")
    attacker.put_back("servers", old)
    for integrity in (second.integrity, Integrity(KEY)):
        store = ConfigStore(second.engine, second.sealer, integrity)
        with pytest.raises(StateRefused) as caught:
            await store.load("default")
        assert caught.value.code == "E-RECORD-CHANGED" and caught.value.hint
    attacker.put_back("servers", new)
    assert await first.config_store.remove_server("default", "tool")
    left = attacker.copy("servers")
    attacker.put_back("servers", new)
    with pytest.raises(StateRefused):
        await ConfigStore(second.engine, second.sealer, Integrity(KEY)).load("default")
    with pytest.raises(StateRefused):  # nothing new is built on it
        await first.config_store.import_document("default", {"mcpServers": {}}, "digest", force=True)
    attacker.put_back("servers", left)
    found = await ConfigStore(second.engine, second.sealer, Integrity(KEY)).load("default")
    assert found is not None and "tool" not in found[1].entries
    for replica in (first, second):
        await replica.config_source.load("")
    assert _findings(nodes) == []


@pytest.mark.attack("B4")
async def test_altered_tool_list_is_rejected(nodes: Cluster, attacker: Attacker) -> None:
    rows = attacker.copy("lists")
    attacker.run(
        "UPDATE lists SET body = replace(encode(body, 'escape'), 'echo', 'evil')::bytea, revision = revision + 1"
    )
    catalog = nodes.other().replica.catalog
    assert await catalog.refresh(0) == []
    assert any("lists 'full'" in finding for finding in _findings(nodes))
    attacker.put_back("lists", rows)
    assert await catalog.refresh(0) == ["full"]
    assert _findings(nodes) == []


@pytest.mark.attack("B4")
async def test_restored_login_is_rejected(nodes: Cluster, attacker: Attacker) -> None:
    first, second = (node.replica for node in nodes.nodes)
    key = TokenKey("https://issuer.example", "up https://up.example/mcp", "alice")
    client = OAuthClient("client")
    await first.token_store.put(key, Credential(key.issuer, "https://issuer.example/token", client, "secret-token"))
    await second.token_store.load_revisions()
    assert await second.token_store.get(key) is not None
    old = attacker.copy("credentials")
    await first.token_store.remove(key)
    await second.token_store.load_revisions()
    new = attacker.copy("credentials")
    attacker.put_back("credentials", old)
    for store in (first.token_store, second.token_store):
        with pytest.raises(StateRefused):
            await store.get(key)
    with pytest.raises(StateRefused):
        await DbTokenStore(first.engine, first.sealer, "default", Integrity(KEY)).load_revisions()
    # The revision of the row says it is new: then it does not open.
    attacker.run("UPDATE credentials SET revision = %s", json.loads(new[0])["revision"])
    with pytest.raises(ConfigError):
        await second.token_store.get(key)
    attacker.put_back("credentials", new)
    assert await second.token_store.get(key) is None


# -- tenants ----------------------------------------------------------------------------------------------------------


@pytest.mark.attack("W8")
async def test_tenant_key_works_for_its_own_tenant_only(tmp_path: Path) -> None:
    cluster_key = bytes(range(32))
    file = tmp_path / "acme.key"
    file.write_text(format_tenant_key(cluster_key, "acme"))
    environ = {"TOOLWAY_CLUSTER": "nats://127.0.0.1", "TOOLWAY_DATABASE": "postgresql://db/x"}
    mine = read_options(Flags(tenant="acme", cluster_key_file=str(file)), environ)
    assert mine is not None and mine.tenant_key == derive_tenant_key(cluster_key, "acme")
    with pytest.raises(ConfigError) as caught:
        read_options(Flags(tenant="other", cluster_key_file=str(file)), environ)
    assert caught.value.code == "E-CLUSTER-KEY" and "acme" in caught.value.detail
    theirs = derive_tenant_key(cluster_key, "other")
    # Call tokens, rows and the state of the other tenant.
    key = new_call_key()
    token = CallToken("node", "other", "files", 0, 1, "admin", "admin", "c", key=key, use_id=new_use_id())
    request = CallCipher(bytes.fromhex(key)).seal_request(b"{}")
    for tenant_key, is_taken in ((theirs, True), (mine.tenant_key, False)):
        verifier = CallTokenVerifier("node", Sealer(theirs, time.time), lambda *_: 1, time.monotonic, time.time)
        sealed = issue_call_token(Sealer(tenant_key, time.time), token)
        assert (verifier.open_call(join_request(sealed, request)) is not None) == is_taken
    engine = open_engine(f"sqlite:///{tmp_path / 'record'}")
    try:
        await upgrade_schema(engine)
        await ConfigStore(engine, Sealer(theirs, time.time), Integrity(theirs)).import_document(
            "other", {"mcpServers": {"files": {"command": "x"}}}, "d"
        )
        with pytest.raises(StateRefused):
            await ConfigStore(engine, Sealer(mine.tenant_key, time.time), Integrity(mine.tenant_key)).load("other")
        with pytest.raises(StateRefused):
            await ApiKeyTable(engine, Integrity(mine.tenant_key)).add("other", "evil", {"id": "evil"})
    finally:
        await engine.dispose()


# -- files, and databases of an earlier version -----------------------------------------------------------------------


@pytest.mark.attack("W13")
async def test_database_file_is_private(tmp_path: Path) -> None:
    old_umask = os.umask(0)
    try:
        engine = open_engine(f"sqlite:///{tmp_path / 'record'}")
        await upgrade_schema(engine)
        async with engine.begin() as db:
            await db.exec_driver_sql("UPDATE epochs SET last = 1")
            modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()}
    finally:
        os.umask(old_umask)
        await engine.dispose()
    assert modes.keys() == {"record", "record-wal", "record-shm"} and set(modes.values()) == {0o600}
    (tmp_path / "record").chmod(0o644)
    engine = open_engine(f"sqlite:///{tmp_path / 'record'}")
    await upgrade_schema(engine)
    await engine.dispose()
    assert stat.S_IMODE((tmp_path / "record").stat().st_mode) == 0o600


@pytest.mark.attack("B4")
async def test_planted_row_is_not_signed_by_a_schema_downgrade(tmp_path: Path) -> None:
    file, cluster_key = tmp_path / "record", bytes(32)
    key = derive_tenant_key(cluster_key, "default")
    engine = open_engine(f"sqlite:///{file}")
    try:
        await upgrade_schema(engine)
        keys = ApiKeyTable(engine, Integrity(key))
        await keys.add("default", "good", {"id": "good"})
        await keys.load_all("default")
        with sqlite3.connect(file) as db:
            db.execute("INSERT INTO api_keys (tenant, id, facts, revision) VALUES ('default', 'evil', '{}', 9)")
            present = db.execute("SELECT version_num FROM alembic_version").fetchone()
            db.execute("UPDATE alembic_version SET version_num = '0006'")
        with pytest.raises(ConfigError) as caught:
            await upgrade_schema(engine)
        assert caught.value.code == "E-RECORD-OLD"
        with pytest.raises(ConfigError):  # nor can an operator be made to
            await take_over(engine, cluster_key)
        with sqlite3.connect(file) as db:
            db.execute("UPDATE alembic_version SET version_num = ?", present)
        # The operator who takes the database over signs nothing that had no signature.
        found = await take_over(engine, cluster_key)
        assert {row.name: row.action for row in found} == {"evil": "delete", "good": "keep"}
        await take_over(engine, cluster_key, found)
        assert [facts["id"] for facts in (await ApiKeyTable(engine, Integrity(key)).load_all("default")).valid] == [
            "good"
        ]
        with pytest.raises(StateRefused):  # a node that had seen the old state does not accept the new one
            await keys.load_all("default")
    finally:
        await engine.dispose()


async def test_takeover_applies_only_to_the_rows_that_were_reviewed(tmp_path: Path) -> None:
    file, cluster_key = tmp_path / "record", bytes(32)
    key = derive_tenant_key(cluster_key, "acme")
    engine = open_engine(f"sqlite:///{file}")
    entry = EnvelopeCipher(Sealer(key, time.time)).encrypt(["files", {"command": "x"}], "server", "acme", "files")
    planted = "INSERT INTO api_keys (tenant, id, facts, revision) VALUES ('acme', 'k2', '{}', 2)"
    try:
        await upgrade_schema(engine)
        await ApiKeyTable(engine, Integrity(key)).add("acme", "k1", {"id": "k1", "admin": True})
        with sqlite3.connect(file) as db:
            db.execute("INSERT INTO tenants VALUES ('acme', '', 3)")
            db.execute("INSERT INTO servers VALUES ('acme', 'files', ?, 3)", (json.dumps({"sealed": entry}),))
        found = await take_over(engine, cluster_key)
        assert [(row.kind, row.name, row.action) for row in found] == [
            ("servers", "files", "keep"),
            ("keys", "k1", "keep"),
        ]
        with sqlite3.connect(file) as db:  # between the look and the yes
            db.execute(planted)
        with pytest.raises(ConfigError) as caught:
            await take_over(engine, cluster_key, found)
        assert caught.value.code == "E-RECORD-CHANGED"
        with sqlite3.connect(file) as db:
            db.execute("DELETE FROM api_keys WHERE id = 'k2'")
        await take_over(engine, cluster_key, found)
        loaded = await ConfigStore(engine, Sealer(key, time.time), Integrity(key)).load("acme")
        assert loaded is not None and loaded[1].to_document()["mcpServers"] == {"files": {"command": "x"}}
        assert [facts["id"] for facts in (await ApiKeyTable(engine, Integrity(key)).load_all("acme")).valid] == ["k1"]
        await upgrade_schema(engine)
    finally:
        await engine.dispose()


# -- rows that make no sense ------------------------------------------------------------------------------------------

_HOSTILE_VALUES: dict[str, list[Any]] = {
    "text": ["{", "x" * 1_000_000, "\u202e'; DROP TABLE api_keys; --"],
    "character varying": ["{", "x" * 100_000, "[[[["],
    "json": ['"text"', "[]", '{"a": {"b": [null]}}'],
    "jsonb": ['"text"', "[]", '{"a": {"b": [null]}}'],
    "bytea": [b"", b"\x00\xff" * 500_000, b"{"],
    "double precision": [float("inf"), float("nan"), -1e300],
    "bigint": [7, -7, 2**40],
    "integer": [7, -7, 2**31 - 1],
    "boolean": [True, False, True],
}


@pytest.mark.attack("R3-held-3")
async def test_malformed_rows_do_not_stop_the_nodes(nodes: Cluster, attacker: Attacker) -> None:
    """While they are there, and after they were deleted, the nodes serve calls and learn of changes."""
    good = await nodes.key("before")
    # A cluster needs these; `part_tables` has one row per part, which every start of a node compares.
    kept = ("alembic_version", "epochs", "revisions", "tenants", "tenant_states", "part_tables")
    columns: dict[str, dict[str, str]] = {}
    for table, column, kind in attacker.run(
        "SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = 'public'"
    ):
        if table not in kept and not table.startswith("audit"):
            columns.setdefault(table, {})[column] = kind
    kinds = [kind for (kind,) in attacker.run("SELECT DISTINCT kind FROM changes")]
    planted: list[tuple[str, str]] = []
    for table, types in columns.items():
        for number in range(3):
            names_of_marks = ("id", "name", "server", "key", "pool", "digest", "kind", "run", "hash")
            mark: str = next(name for name in names_of_marks if types.get(name) in ("text", "character varying"))
            row: dict[str, Any] = {name: _HOSTILE_VALUES[kind][number] for name, kind in types.items()}
            row |= {"tenant": "default", mark: f"planted-{number}"}
            names = ", ".join(row)
            places = ", ".join(["%s"] * len(row))
            with psycopg.connect(attacker._url, autocommit=True) as db:
                db.execute("SET session_replication_role = replica")
                try:
                    db.execute(f"INSERT INTO {table} ({names}) VALUES ({places})", list(row.values()))
                except psycopg.errors.ProgramLimitExceeded:  # of a column that is indexed
                    short = [each[:1000] if isinstance(each, str) else each for each in row.values()]
                    db.execute(f"INSERT INTO {table} ({names}) VALUES ({places})", short)
            planted.append((table, mark))
    assert len(planted) > 30 and kinds

    async def assert_served(token: str) -> None:
        for node in nodes.nodes:
            async with node.raw("server/full", token) as client:
                answer = await client.call("echo", {"text": "hello"})
            assert answer.result["content"][0]["text"] == "hello"

    await _reads_again(nodes, attacker, *kinds)
    await assert_served(good)
    for table, column in planted:
        attacker.run(f"DELETE FROM {table} WHERE {column} LIKE 'planted-%%'")
    await _reads_again(nodes, attacker, *kinds)
    await assert_served(await nodes.key("after"))
