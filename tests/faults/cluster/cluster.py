"""A whole cluster: NATS × 3, PostgreSQL, replicas × 3 and the servers that they share."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.faults.cluster.effects_server import entry
from tests.faults.cluster.engines import NatsNode, Postgres, free_port, nats_cluster, postgres
from tests.faults.cluster.engines_setup import Ground, Loopback, namespaces
from tests.faults.cluster.load import ERAS
from tests.faults.cluster.node_process import Common, Replica
from tests.faults.cluster.observation import Watcher, watching
from tests.faults.cluster.verdict import Strike, replica_of
from tests.gateway.load_clients import close_all

REPLICAS: Final = ("one", "two", "three")
SETTLED: Final = 60.0  # seconds until every server has an owner
TIRELESS: Final = 1_000_000  # restarts
TEST_NETWORKS: Final = "198.18.0.0/15"  # of all namespaces
NOTHING: Final[Mapping[str, Any]] = {}


@dataclass
class Cluster:
    folder: Path
    ground: Ground
    nats: list[NatsNode]
    postgres: Postgres
    replicas: list[Replica]
    servers: list[str]
    watcher: Watcher
    strikes: list[Strike] = field(default_factory=list)
    took: dict[str, list[float]] = field(default_factory=dict)  # seconds of what the report shows

    @property
    def effects(self) -> Path:
        return self.folder / "effects"

    def named(self, name: str) -> Replica:
        return next(replica for replica in self.replicas if replica.name == name)

    def owner(self, server: str) -> Replica | None:
        node = self.watcher.owner(server)
        return self.named(replica_of(node)) if node is not None else None

    def pids(self) -> dict[int, str]:
        """Of gateways, and which replica each is or was."""
        return {pid: replica.name for replica in self.replicas for pid in replica.lives}

    def strike(self, what: str, *replicas: Replica, pair: bool = False) -> Strike:
        """Something is done to replicas, from now on until `over`."""
        made = Strike(what, frozenset(replica.name for replica in replicas), time.monotonic(), pair=pair)
        self.strikes.append(made)
        return made

    async def settle(self) -> float:
        """Wait until every server has an owner, and every replica serves and lists its tools; the seconds it took."""
        began = time.monotonic()
        await self.watcher.until(self._all_owned, SETTLED)
        async with asyncio.timeout(SETTLED):
            for replica in self.replicas:
                await replica.wait_ready()
                while not set(self.servers) <= await replica.listed():
                    await asyncio.sleep(0.1)
        return time.monotonic() - began

    def _all_owned(self) -> bool:
        for replica in self.replicas:
            assert replica.runs, f"{replica.name} ended:\n{replica.log[-3000:]}"
        return set(self.servers) <= self.watcher.owners().keys()

    def forget(self) -> None:
        """Begin new books: the effects so far, strikes and tenures are put aside."""
        if self.effects.exists():
            self.effects.rename(self.folder / f"effects-{time.monotonic_ns()}")
        self.strikes.clear()
        self.took.clear()
        self.watcher.begin_anew()

    def spread(self) -> dict[str, int]:
        """How many servers each replica owns."""
        found = dict.fromkeys(REPLICAS, 0)
        for node in self.watcher.owners().values():
            found[replica_of(node)] += 1
        return found


@asynccontextmanager
async def cluster(
    folder: Path,
    servers: int,
    *,
    apart: bool,
    more: Mapping[str, Any] = NOTHING,
    settings: Mapping[str, Any] = NOTHING,
) -> AsyncIterator[Cluster]:
    """`apart` puts replicas into their own namespaces. `more` are entries of more servers.

    `settings` is the block `toolway` of the configuration file.
    """
    with ExitStack() as grounds:
        ground: Ground = grounds.enter_context(namespaces(REPLICAS)) if apart else Loopback()
        async with AsyncExitStack() as stack:
            names = [f"s{number:02}" for number in range(servers)]
            nats = await stack.enter_async_context(nats_cluster(ground))
            database = await stack.enter_async_context(postgres(ground))
            common = common_to(folder, names, nats, database.url, more, settings)
            watcher = await stack.enter_async_context(watching(database.url))
            seats = [ground.seat(name) for name in REPLICAS]
            replicas = [Replica(seat, free_port_at(seat.host), common) for seat in seats]
            stack.push_async_callback(end_all, replicas)
            for replica in replicas:
                await replica.start()
            made = Cluster(folder, ground, nats, database, replicas, [*names, *more], watcher)
            await made.settle()
            yield made


def free_port_at(host: str) -> int:
    """In its own namespace every port is free."""
    return free_port(host) if host == "127.0.0.1" else 8300


def common_to(
    folder: Path,
    names: list[str],
    nats: Sequence[NatsNode] = (),
    database: str = "",
    more: Mapping[str, Any] = NOTHING,
    settings: Mapping[str, Any] = NOTHING,
) -> Common:
    """What all replicas have; without NATS, they are gateways that know nothing of each other."""
    effects = str(folder / "effects")
    entries = {
        name: {**entry(name, effects, ERAS[number % 2]), "maxRestarts": TIRELESS} for number, name in enumerate(names)
    }
    config, key = folder / "mcp.json", folder / "cluster-key"
    # Clients use the token of the replicas' machine, from a network namespace with its own address.
    # A node is public, so its servers would run in `guard`, where they do not see the processes that are counted here.
    gateway = {"sandbox": "auto", **settings.get("gateway", {}), "localTokenFrom": [TEST_NETWORKS]}
    config.write_text(json.dumps({"mcpServers": {**entries, **more}, "toolway": {**settings, "gateway": gateway}}))
    key.write_text(secrets.token_hex(32))
    key.chmod(0o600)
    return Common(folder, config, ",".join(node.url for node in nats), database, key)


async def end_all(replicas: list[Replica]) -> None:
    await close_all()
    broken = sys.exc_info()[0] is not None
    for replica in replicas:
        if replica.runs:
            replica.resume()
    await asyncio.gather(*(replica.kill() for replica in replicas if replica.runs))
    if broken:
        for replica in replicas:
            print(f"--- {replica.name}\n{replica.log[-2000:]}", file=sys.stderr)
