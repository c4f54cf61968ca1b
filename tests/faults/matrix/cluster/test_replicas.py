"""Three replicas as one gateway. `make cluster` does the same at full size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.faults.cluster import scenarios
from tests.faults.cluster.cluster import Cluster, cluster
from tests.faults.cluster.echo import echoing
from tests.faults.cluster.engines import missing_engines
from tests.faults.cluster.engines_setup import why_no_namespaces
from tests.faults.cluster.load import LIMIT, LONG, Client, Load, Order
from tests.faults.cluster.node_process import Replica
from tests.faults.cluster.runs import Act, Report, under_load
from tests.faults.cluster.verdict import effects_in
from tests.faults.results import results
from tests.timing import QUIET
from toolway.testing import History

pytestmark = [pytest.mark.anyio, pytest.mark.alone, pytest.mark.dear]

NEWER = Path(scenarios.__file__).with_name("newer_gateway.py")  # not imported: it changes what it imports
SERVERS = 6
CLIENTS, CALLS = (12, 300) if QUIET else (4, 100)
KEYED, PLAIN = Order("counter", keyed=True), Order("counter")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def made(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """One for all rows: whatever was done to it, it must be well again afterwards."""
    if why := missing_engines():
        pytest.skip(why)
    async with cluster(tmp_path_factory.mktemp("three"), SERVERS, apart=why_no_namespaces() is None) as found:
        yield found


async def struck(made: Cluster, act: Act, seed: int, limit: float = LIMIT) -> Report:
    """A load while something is done: every promise is kept."""
    report = await under_load(made, "row", act, CALLS, CLIENTS, seed, limit)
    print(report)
    assert not report.wrong, str(report)
    assert report.outcomes["ok"] > CALLS / 2, str(report)
    results.checked("I1", "I2", "I3", "I4")
    return report


@pytest.mark.fault("D9")
async def test_crashed_or_slow_database_keeps_outcomes_correct(made: Cluster, seed: int):
    async def slow(made: Cluster) -> None:
        made.postgres.pause()
        await asyncio.sleep(1.5)
        made.postgres.resume()

    await struck(made, scenarios.postgres_restarts(1), seed)
    await struck(made, slow, seed)


@pytest.mark.fault("D9")
async def test_no_keyed_call_runs_and_no_replica_is_ready_without_db(made: Cluster):
    made.forget()
    history = History(made.effects)
    load = Load(made.replicas, made.servers, history)
    owner = made.owner("s00")
    assert owner is not None
    client = Client(load, made.replicas.index(owner), made.replicas)
    await made.postgres.stop()
    trip, _ = await client.try_once("plain", "s00", PLAIN)
    assert trip.executed == "yes", trip
    trip, _ = await client.try_once("keyed", "s00", KEYED)
    assert trip.executed == "no", trip
    assert history.count_effects() == {"plain": 1}
    late = next(replica for replica in made.replicas if replica is not owner)
    await late.kill()
    await late.start()
    await asyncio.sleep(3)
    assert late.runs, late.log
    assert not await late.is_ready()
    await made.postgres.start()
    await made.settle()
    trip, _ = await client.try_once("keyed", "s00", KEYED)
    assert trip.executed == "yes", trip
    client.close()
    results.checked("I3", "I4")


@pytest.mark.fault("D10")
@pytest.mark.parametrize("cut", [scenarios.cut_from_postgres, scenarios.cut_from_nats, scenarios.cut_from_each_other])
async def test_isolated_replica_and_others_never_share_a_server(cut: Any, made: Cluster, seed: int):
    if why := why_no_namespaces():
        pytest.skip(why)
    seconds = 13 if cut is scenarios.cut_from_postgres else 4
    await struck(made, cut(seconds), seed)


@pytest.mark.fault("D11")
async def test_killed_replica_leaves_only_running_calls_unknown(made: Cluster, seed: int):
    await struck(made, scenarios.kills(1, 5, seed), seed)


@pytest.mark.fault("D12")
async def test_rolling_restart_loses_no_answer(made: Cluster, seed: int):
    report = await struck(made, scenarios.rolling_restart(), seed, LONG)
    assert not [name for name in report.outcomes if name.startswith("unknown")], str(report)


@pytest.mark.fault("D13")
async def test_replica_paused_past_its_lease_resumes_without_it(made: Cluster, seed: int):
    await struck(made, scenarios.pause(13, seed), seed)


@pytest.mark.fault("D14")
async def test_repeated_and_reordered_messages_call_nothing_twice(made: Cluster, seed: int):
    async def nothing(made: Cluster) -> None:
        await asyncio.sleep(3)

    two = made.named("two")
    two.hidden = True  # so what it owns is called over NATS
    await until_it_owns_a_server(made, two)
    async with echoing(made.nats[1].url, seed) as echo:
        await struck(made, nothing, seed, LONG)
    assert {effect.gateway for effect in effects_in(made.effects)} & set(two.lives)
    assert echo.count > CALLS
    two.hidden = False
    await again(made, two)


async def until_it_owns_a_server(made: Cluster, replica: Replica) -> None:
    """What a node should own follows from its id, which is another one with every start: of six servers, sometimes
    none."""
    for _ in range(6):
        await again(made, replica)
        with suppress(TimeoutError):
            await made.watcher.until(lambda: made.spread()[replica.name] > 0, 20)
            return
    raise AssertionError(f"{replica.name} owns nothing: {made.spread()}")


async def again(made: Cluster, replica: Replica) -> None:
    await replica.stop()
    await replica.start()
    await made.settle()


@pytest.mark.fault("D16")
async def test_newer_and_older_replicas_work_together(made: Cluster, seed: int):
    async def upgrade_one(made: Cluster) -> None:
        one = made.replicas[seed % 3]
        for program in ((str(NEWER),), ("-m", "toolway.cli")):
            one.program = program
            await again(made, one)
            await add_to_the_tables(made.postgres.url)
            await asyncio.sleep(2)

    await struck(made, upgrade_one, seed, LONG)


async def add_to_the_tables(url: str) -> None:
    """As the migration of a version to come does, which the older replicas do not know."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as db:
        for table in ("nodes", "servers", "instances", "lists", "claims"):
            await db.execute(f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS weather text")
        await db.execute("UPDATE alembic_version SET version_num = '0199'")
