"""Attacks by a hostile PostgreSQL: rows that no node can read, a server that does not answer, a past put back."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.telemetry.postgres_server import binaries, postgres_server
from toolway.cluster.db.client_state import ApiKeyTable, RateBuckets, RateRequest, SessionState, SessionStateStore
from toolway.cluster.db.config_store import ConfigStore
from toolway.cluster.db.engine import connection_class, open_engine, upgrade_schema
from toolway.cluster.db.idempotency import DbIdempotencyStore
from toolway.cluster.db.integrity import Integrity, StateRefused
from toolway.cluster.db.nodes import NodeInfo, NodeStore
from toolway.cluster.db.run_journal import PostgresJournal
from toolway.cluster.db.takeover import take_over
from toolway.cluster.db.tokens import DecryptionError
from toolway.cluster.keys import derive_tenant_key
from toolway.gateway.sealing import Sealer
from toolway.middleware.idempotency import IdempotencyKey

pytestmark = pytest.mark.anyio
CLUSTER_KEY = b"c" * 32


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
async def engine(postgresql: str) -> AsyncIterator[AsyncEngine]:
    made = open_engine(postgresql)
    await upgrade_schema(made)
    yield made
    await made.dispose()


class Tenant:
    """Its own tenant for each test, as one node sees it, and an attacker who can write all rows."""

    def __init__(self, url: str, engine: AsyncEngine) -> None:
        self.name = f"t{secrets.token_hex(4)}"
        self.key = derive_tenant_key(CLUSTER_KEY, self.name)
        self._url = url
        self._engine = engine
        self.integrity, self.keys = self.another_node()
        sealer = Sealer(self.key, time.time)
        self.nodes = NodeStore(engine, self.integrity)
        self.config = ConfigStore(engine, sealer, self.integrity)
        self.sessions = SessionStateStore(engine)
        self.calls = DbIdempotencyStore(engine, self.name, lambda: (f"{self.name}-n1", 1), sealer)

    def another_node(self) -> tuple[Integrity, ApiKeyTable]:
        """What a node that was just started has: it has seen nothing yet."""
        integrity = Integrity(self.key)
        return integrity, ApiKeyTable(self._engine, integrity)

    async def start(self) -> None:
        await self.keys.add(self.name, "good", {"id": "good"})
        await self.nodes.join(NodeInfo(f"{self.name}-n1", "http://127.0.0.1:1", "1", tenant=self.name))
        await self.config.import_document(self.name, {"mcpServers": {"files": {"command": "x"}}}, "d")
        await self.sessions.update(self.name, "good", lambda now: SessionState("error"), 60.0)

    def attack(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._url, autocommit=True) as db:
            cursor = db.execute(statement.replace("TENANT", f"'{self.name}'").encode(), values)
            return cursor.fetchall() if cursor.description is not None else []

    def copy(self, table: str) -> list[str]:
        return [row[0] for row in self.attack(f"SELECT to_json(t)::text FROM {table} t WHERE tenant = TENANT")]

    def put_back(self, table: str, rows: list[str]) -> None:
        self.attack(f"DELETE FROM {table} WHERE tenant = TENANT")
        for row in rows:
            self.attack(f"INSERT INTO {table} SELECT * FROM json_populate_record(NULL::{table}, %s)", row)


@pytest.fixture
async def tenant(postgresql: str, engine: AsyncEngine) -> Tenant:
    made = Tenant(postgresql, engine)
    await made.start()
    return made


# -- rows -------------------------------------------------------------------------------------------------------------

UNREADABLE = {
    "half a character": '{"id": "\\ud800"}',
    "digits": '{"id": ' + "1" * 5000 + "}",
    "a large number": '{"id": ' + "1" * 30 + "}",
    "out of range": '{"id": 1e999}',
    "deep": "[" * 5000 + "]" * 5000,
}


@pytest.mark.attack("A2-NC1")
@pytest.mark.parametrize("value", UNREADABLE)
async def test_undecodable_rows_are_rejected_without_stopping_others(
    tenant: Tenant, engine: AsyncEngine, value: str
) -> None:
    """PostgreSQL takes it as JSON. It is refused and reported like any other forged row, and the others count."""
    row, evil = UNREADABLE[value], f"{tenant.name}-evil"
    tenant.attack("INSERT INTO api_keys (tenant, id, facts, revision) VALUES (TENANT, 'evil', %s, 9)", row)
    tenant.attack("INSERT INTO servers (tenant, name, definition, revision) VALUES (TENANT, 'evil', %s, 9)", row)
    state = row.replace("id", "level")
    tenant.attack("INSERT INTO sessions (tenant, id, facts, until) VALUES (TENANT, 'evil', %s, 9e9)", state)
    copied = "INSERT INTO nodes SELECT (json_populate_record(n, %s)).* FROM nodes n WHERE id = %s"
    tenant.attack(copied, json.dumps({"id": evil}), f"{tenant.name}-n1")
    tenant.attack("UPDATE nodes SET labels = %s WHERE id = %s", row, evil)
    assert await tenant.keys.revoke(tenant.name, "good")
    assert (await tenant.keys.load_all(tenant.name)).revoked == {"good"}  # the others learn of it
    assert [each.info.id for each in await tenant.nodes.list_alive(tenant.name)] == [f"{tenant.name}-n1"]
    found = await tenant.config.load(tenant.name)
    assert found is not None and list(found[1].entries) == ["files"]
    states = await tenant.sessions.load_many(tenant.name, ["good", "evil"])
    assert states["good"] == SessionState("error") and states["evil"].ended
    for table, name in (("api_keys", "evil"), ("servers", "evil"), ("nodes", evil)):
        assert any(line.startswith(f"{table} '{name}'") for line in tenant.integrity.findings())
    tenant.attack("UPDATE nodes SET lease_until = 0")  # the operator stops all nodes, and repairs the database
    planned = [each for each in await take_over(engine, CLUSTER_KEY) if each.tenant == tenant.name]
    assert {(each.kind, each.name) for each in planned if each.action == "delete"} == {
        ("keys", "evil"),
        ("servers", "evil"),
    }


@pytest.mark.attack("A2-NC1")
async def test_unsigned_rows_are_rejected_without_stopping_others(tenant: Tenant) -> None:
    """The schema was changed too: rows have no signature at all."""
    try:
        for table in ("api_keys", "nodes"):
            tenant.attack(f"ALTER TABLE {table} ALTER COLUMN mac DROP NOT NULL")
        tenant.attack("INSERT INTO api_keys (tenant, id, facts, revision, mac) VALUES (TENANT, 'evil', '{}', 9, NULL)")
        tenant.attack("UPDATE nodes SET mac = NULL WHERE tenant = TENANT")
        assert [each["id"] for each in (await tenant.keys.load_all(tenant.name)).valid] == ["good"]
        assert await tenant.nodes.list_alive(tenant.name) == []
        assert len(tenant.integrity.findings()) == 2
    finally:
        for table in ("api_keys", "nodes"):
            tenant.attack(f"DELETE FROM {table} WHERE mac IS NULL")
            tenant.attack(f"ALTER TABLE {table} ALTER COLUMN mac SET NOT NULL")


@pytest.mark.attack("A2-held-C1")
@pytest.mark.parametrize("change", ["another row", "no text", "changed", "empty"])
async def test_altered_outcome_neither_answers_nor_repeats_a_call(tenant: Tenant, change: str) -> None:
    """It is neither answered nor made: no row can say what a server answered, or that a call may be repeated."""
    mine, yours = (IdempotencyKey("caller", "s", "t", name) for name in ("mine", "yours"))
    for key in (mine, yours):
        assert await tenant.calls.claim(key, "f", "c") is None
        await tenant.calls.finish(key, {"content": key.key})
    rows = "UPDATE claims SET outcome = {} WHERE tenant = TENANT"
    values = {
        "another row": "(SELECT outcome FROM claims o WHERE o.tenant = TENANT AND o.id <> claims.id)",
        "no text": "'\\xff00fe'",
        "changed": "set_byte(outcome, length(outcome) - 9, get_byte(outcome, length(outcome) - 9) # 1)",
        "empty": "''",
    }
    tenant.attack(rows.format(values[change]))
    for key in (mine, yours):
        with pytest.raises(DecryptionError):
            await tenant.calls.claim(key, "f", "c2")


@pytest.mark.attack("A2-held-C2")
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e300", "-1e300"])
async def test_bucket_with_an_invalid_number_grants_no_extra_calls(tenant: Tenant, value: str) -> None:
    buckets = RateBuckets(tenant._engine)
    asked = [RateRequest("k", 10, 1.0, 0.0, 1_000_000)]
    tenant.attack(f"INSERT INTO buckets (tenant, key, tokens, at) VALUES (TENANT, 'k', '{value}', '{value}')")
    granted = [(await buckets.acquire(tenant.name, asked))["k"] for _ in range(3)]
    assert sum(each.tokens for each in granted) <= 10 + 2 and all(each.wait_s < 1e4 for each in granted)


# -- a past that was put back -----------------------------------------------------------------------------------------


@pytest.mark.attack("A2-NC3")
@pytest.mark.parametrize("changes", [1, 3])
async def test_restored_past_is_rejected_by_a_running_node(tenant: Tenant, changes: int) -> None:
    """The past was put back as a whole. A node that starts takes it, and makes changes: more than were made before."""
    tables = ("api_keys", "tenant_states")
    past = {table: tenant.copy(table) for table in tables}
    assert await tenant.keys.revoke(tenant.name, "good")
    assert (await tenant.keys.load_all(tenant.name)).revoked == {"good"}
    present = {table: tenant.copy(table) for table in tables}
    for table in tables:
        tenant.put_back(table, past[table])
    with pytest.raises(StateRefused):
        await tenant.keys.load_all(tenant.name)
    _, started = tenant.another_node()
    for number in range(changes):
        await started.add(tenant.name, f"new{number}", {"id": f"new{number}"})
        with pytest.raises(StateRefused):
            await tenant.keys.load_all(tenant.name)
        with pytest.raises(StateRefused):  # nor does it build on it
            await tenant.keys.add(tenant.name, "mine", {"id": "mine"})
    for table in tables:
        tenant.put_back(table, present[table])
    assert (await tenant.keys.load_all(tenant.name)).revoked == {"good"}
    await tenant.another_node()[1].add(tenant.name, "later", {"id": "later"})
    assert [each["id"] for each in (await tenant.keys.load_all(tenant.name)).valid] == ["later"]


# -- a server that does not answer ------------------------------------------------------------------------------------


class Relay:
    """Stands before the database. Connections can go silent: they stay open, and nothing passes any more."""

    def __init__(self, folder: str) -> None:
        self._socket = f"{folder}/.s.PGSQL.5432"
        self.silent_from = 0  # answers are passed on connections from this one on
        self.connections = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        with suppress(OSError):
            there, back = await asyncio.open_unix_connection(self._socket)
            await asyncio.gather(self._pass(number, reader, back), self._pass(number, there, writer))
        writer.close()

    async def _pass(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if number > self.silent_from:
                    writer.write(data)
        writer.close()


@asynccontextmanager
async def relay(url: str) -> AsyncIterator[Relay]:
    made = Relay(url.partition("host=")[2])
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    made.url = f"postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=disable&gssencmode=disable"
    try:
        yield made
    finally:
        server.close()


@pytest.mark.attack("A2-NC2")
async def test_node_recovers_from_unanswered_database_connections(
    postgresql: str, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_class(), "answer_timeout_s", 0.5)
    monkeypatch.setattr("toolway.cluster.db.engine.PAUSE_GRACE_S", 0.5)
    async with relay(postgresql) as before:
        engine = open_engine(before.url)
        store = NodeStore(engine, tenant.integrity)
        journal = PostgresJournal(before.url, tenant.name, tenant.key, lambda: ("n", 1))
        try:
            await asyncio.gather(*(store.list_alive(tenant.name) for _ in range(20)))
            assert await journal.list_runs(None, 5) == []
            before.silent_from = before.connections
            waiting = [store.list_alive(tenant.name) for _ in range(20)]
            async with asyncio.timeout(30):
                failed = await asyncio.gather(*waiting, journal.list_runs(None, 5), return_exceptions=True)
            assert any(isinstance(each, SQLAlchemyError) for each in failed)
            async with asyncio.timeout(30):
                while True:  # until the last silent connection was cut
                    with suppress(Exception):
                        found = await asyncio.gather(*(store.list_alive(tenant.name) for _ in range(10)))
                        assert await journal.list_runs(None, 5) == []
                        break
            assert all(len(each) == 1 for each in found)
        finally:
            await journal.close()
            await engine.dispose()
