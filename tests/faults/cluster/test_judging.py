"""The judge before real gateways: three that know nothing of each other are not a cluster, and one is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.cluster.cluster import common_to, end_all
from tests.faults.cluster.engines import free_port
from tests.faults.cluster.engines_setup import Loopback
from tests.faults.cluster.load import Load
from tests.faults.cluster.node_process import Replica
from tests.faults.cluster.observation import Tenure
from tests.faults.cluster.verdict import Owners, effects_in, two_owners
from toolway.testing import History, check

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("count", [1, 2])
async def test_unconnected_gateways_are_reported_as_two_owners(tmp_path: Path, count: int):
    common = common_to(tmp_path, ["s00", "s01"])
    seats = [Loopback().seat(name) for name in ("one", "two")[:count]]
    replicas = [Replica(seat, free_port(seat.host), common) for seat in seats]
    history = History(tmp_path / "effects")
    try:
        for replica in replicas:
            await replica.start()
        for replica in replicas:
            await replica.wait_ready()
        load = Load(replicas, ["s00", "s01"], history)
        await load.clients(4, 100)
    finally:
        await end_all(replicas)
    assert check(history) == []
    assert len(history.invocations) == len({trip.nonce for trip in load.trips}) == 100
    assert load.outcomes()["ok"] == 100
    everybody = [Tenure(server, f"{each.name}-0", 1, 0) for server in ("s00", "s01") for each in replicas]
    pids = {pid: replica.name for replica in replicas for pid in replica.lives}
    found = list(two_owners(effects_in(tmp_path / "effects"), pids, Owners(everybody)))
    assert all("in turns" in each for each in found)
    assert bool(found) is (count > 1)
