"""Nodes that are killed or stopped in the middle of something, and a database that goes and comes back."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import literal, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from tests.cluster.db.encryption_keys import a_sealer, an_integrity
from tests.faults.cluster.engines import Postgres
from tests.telemetry.postgres_server import binaries
from tests.timing import within
from toolway.cluster.db.changes import ChangeReader, record_change
from toolway.cluster.db.engine import DATABASE_TIMEOUT_S, open_engine, upgrade_schema
from toolway.cluster.db.idempotency import DatabaseUnavailable, DbIdempotencyStore, WriteRetryQueue
from toolway.cluster.db.nodes import NodeInfo, NodeStore
from toolway.middleware.idempotency import IdempotencyKey, IdempotencyRecord

pytestmark = pytest.mark.anyio

ID = IdempotencyKey("key:1", "bank", "pay", "k")

#: A node that takes a revision and a key, and stops there.
PROGRAM = """
import asyncio, sys
from tests.cluster.db.encryption_keys import a_sealer, an_integrity
from toolway.cluster.db.changes import record_change
from toolway.cluster.db.engine import open_engine
from toolway.cluster.db.idempotency import DbIdempotencyStore
from toolway.cluster.db.nodes import NodeInfo, NodeStore
from toolway.cluster.lease_clock import LeaseSettings
from toolway.middleware.idempotency import IdempotencyKey

async def main() -> None:
    engine = open_engine(sys.argv[1])
    epoch = await NodeStore(engine, an_integrity(), LeaseSettings(ttl=2.0)).join(NodeInfo("other", "", "1"))
    keys = DbIdempotencyStore(engine, "acme", lambda: ("other", epoch), a_sealer())
    assert await keys.claim(IdempotencyKey("key:1", "bank", "pay", "k"), "f", "call-0") is None
    async with engine.begin() as db:
        await record_change(db, "keys", "acme")
        print("in the middle", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


@asynccontextmanager
async def in_the_middle(url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    command = (sys.executable, "-c", PROGRAM, url)
    root = Path(__file__).parents[3]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=root)
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"in the middle\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _node(engine: AsyncEngine, id: str = "a") -> DbIdempotencyStore:
    epoch = await NodeStore(engine, an_integrity()).join(NodeInfo(id, "", "1"))
    return DbIdempotencyStore(engine, "acme", lambda: (id, epoch), a_sealer())


async def _change(engine: AsyncEngine) -> float:
    """How long a change takes, in seconds."""
    began = time.monotonic()
    async with engine.begin() as db:
        await record_change(db, "keys", "acme")
    return time.monotonic() - began


async def test_killed_writer_leaves_no_lock_and_no_partial_change(engine: AsyncEngine, url: str) -> None:
    async with in_the_middle(url) as process:
        process.kill()
        await process.wait()
        assert await _change(engine) < DATABASE_TIMEOUT_S
        last, changed = await ChangeReader(engine).fetch_since(0)
        assert ("keys", "acme") in changed
        assert (await ChangeReader(engine).fetch_since(last - 1))[1] == {("keys", "acme")}  # ours is all since then


async def test_claim_of_a_killed_node_is_interrupted_after_its_lease(engine: AsyncEngine, url: str) -> None:
    async with in_the_middle(url) as process:
        process.kill()
        await process.wait()
        keys = await _node(engine)
        began = time.monotonic()
        assert await keys.claim(ID, "f", "call-1") == IdempotencyRecord("interrupted", "f")
        assert time.monotonic() - began < within(8.0)


async def test_stopped_writer_delays_others_only_briefly(engine: AsyncEngine, url: str) -> None:
    if engine.dialect.name == "sqlite":
        pytest.skip("whoever has a SQLite file may hold up the others: it is for one machine")
    async with in_the_middle(url) as process:
        os.kill(process.pid, signal.SIGSTOP)
        assert await _change(engine) < DATABASE_TIMEOUT_S
        assert await _change(engine) < 0.5
        os.kill(process.pid, signal.SIGCONT)


async def test_connection_closed_by_the_database_is_not_reused(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine.dialect.name == "sqlite":
        pytest.skip("a file has no connections that could end")
    monkeypatch.setattr("toolway.cluster.db.engine.PING_AFTER_IDLE_S", 0.0)
    await _change(engine)
    other = open_engine(engine.url.render_as_string(hide_password=False))
    async with other.begin() as db:
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        await db.execute(text(f"{ended} AND pid <> pg_backend_pid()"))
    await other.dispose()
    await _change(engine)


# -- a database that is away ------------------------------------------------------------------------------------------


@pytest.fixture
async def server() -> AsyncIterator[Postgres]:
    programs = binaries()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    folder = Path(tempfile.mkdtemp(prefix="toolway-pg-", dir="/tmp"))
    server = Postgres(programs, folder, "127.0.0.1")
    await server.make()
    await server.start()
    yield server
    await server.stop()
    shutil.rmtree(folder, ignore_errors=True)


async def test_killed_database_keeps_outcomes_and_gets_missed_ones(
    server: Postgres,
) -> None:
    engine = open_engine(server.url)
    await upgrade_schema(engine)
    a, b = await _node(engine, "a"), await _node(engine, "b")
    before = IdempotencyKey("", "s", "t", "before")
    assert await a.claim(before, "f", "call-0") is None
    await a.finish(before, {"n": 0})
    assert await a.claim(ID, "f", "call-1") is None
    await server.stop()
    await a.finish(ID, {"n": 1})  # the call has ended since
    during = IdempotencyKey("", "s", "t", "during")
    with pytest.raises(DatabaseUnavailable, match=r"does not respond: \w+$"):  # and no word of where the database is
        await a.claim(during, "f", "call-2")
    await server.start()
    assert await b.claim(before, "f", "call-3") == IdempotencyRecord("finished", "f", {"n": 0})
    async with asyncio.timeout(15):
        assert await b.claim(ID, "f", "call-4") == IdempotencyRecord("finished", "f", {"n": 1})
        assert await b.claim(during, "f", "call-5") is None
    await a.close()
    await engine.dispose()


# -- answers that are lost --------------------------------------------------------------------------------------------


class LosesAnswers:
    """An engine that executes statements but loses their answers."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        async with self._engine.begin() as db:
            yield db
        raise ConnectionError("the answer was lost")


async def test_claim_with_a_lost_answer_does_not_block_the_key(engine: AsyncEngine) -> None:
    a, b = await _node(engine, "a"), await _node(engine, "b")
    a._autocommit = LosesAnswers(a._autocommit)  # type: ignore[assignment]
    with pytest.raises(DatabaseUnavailable):
        await a.claim(ID, "f", "call-1")
    b._follow_timeout = 0.0
    assert await b.claim(ID, "f", "call-2") == IdempotencyRecord("running", "f")  # so it stands there
    b._follow_timeout = 10.0
    assert await b.claim(ID, "f", "call-2") is None


async def test_outcome_with_a_lost_answer_is_rewritten_unchanged(engine: AsyncEngine) -> None:
    a, b = await _node(engine, "a"), await _node(engine, "b")
    assert await a.claim(ID, "f", "call-1") is None
    a._autocommit = LosesAnswers(a._autocommit)  # type: ignore[assignment]
    await a.finish(ID, {"n": 1})
    await a.close()
    assert await b.claim(ID, "f", "call-2") == IdempotencyRecord("finished", "f", {"n": 1})


async def test_write_retry_queue_is_bounded(engine: AsyncEngine) -> None:
    later = WriteRetryQueue(engine, max_queued=2)
    statement = select(literal(1))
    assert [later.add(statement, {}) for _ in range(3)] == [True, True, False]
    await later.close()
    assert len(later) == 0


async def test_failed_claim_does_not_end_the_next_claim_of_the_call(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, owner, other = await _node(engine, "sender"), await _node(engine, "owner"), await _node(engine, "other")
    assert await sender.claim(ID, "f", "call-1") is None
    judge = DbIdempotencyStore._resolve_existing

    async def lost(self: DbIdempotencyStore, *given: object) -> IdempotencyRecord | None:
        await judge(self, *given)  # type: ignore[arg-type]
        raise ConnectionError("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(DbIdempotencyStore, "_resolve_existing", lost)
        with pytest.raises(DatabaseUnavailable):
            await owner.claim(ID, "f", "call-1")
    assert await owner.claim(ID, "f", "call-1") is None  # the sender brings it once more
    await owner.close()  # what is to be put right is put right now
    other._follow_timeout = 0.0
    assert await other.claim(ID, "f", "call-2") == IdempotencyRecord("running", "f")
