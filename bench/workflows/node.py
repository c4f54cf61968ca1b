"""Node of a cluster that executes runs of the journal in PostgreSQL, without a gateway.

python -m bench.workflows.node DATABASE NODE URL       # until it is killed
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

from toolway import Hub, Server
from toolway._os import boot_time
from toolway.cluster.db.engine import open_engine, upgrade_schema
from toolway.cluster.db.integrity import Integrity
from toolway.cluster.db.nodes import NodeInfo, NodeStore
from toolway.cluster.db.run_journal import PostgresJournal
from toolway.cluster.lease import Lease
from toolway.cluster.lease_clock import DEFAULT_LEASE_SETTINGS as LEASE
from toolway.cluster.queries import QueryRunner
from toolway.workflows import Workflows

CLUSTER_KEY = b"k" * 32
TENANT = "default"


@contextlib.asynccontextmanager
async def open_journal(database: str, node: str) -> AsyncIterator[PostgresJournal]:
    """Give the journal of a node with a lease. A node that is started again gets a new lease at once."""
    engine = open_engine(database)
    await upgrade_schema(engine)
    held = asyncio.Event()
    lease = Lease(
        NodeInfo(node, "", "1"),
        NodeStore(engine, Integrity(CLUSTER_KEY), LEASE),
        QueryRunner(LEASE.hold - LEASE.renew_interval),
        boot_time,
        LEASE,
        on_acquired=held.set,
        on_lost=held.clear,
        load=lambda: 0,
    )

    def identity() -> tuple[str, int] | None:
        return (node, lease.epoch) if lease.epoch is not None else None

    renewing = asyncio.create_task(lease.run())
    try:
        await held.wait()
        yield PostgresJournal(database, TENANT, CLUSTER_KEY, identity, LEASE)
    finally:
        renewing.cancel()
        await lease.release()
        await engine.dispose()


def effect_server_at(url: str) -> Server:
    """Return the effect server as a server of a hub. It honors idempotency keys."""
    return Server(url=f"{url}/mcp", idempotency_meta_key="key")


async def main(database: str, node: str, url: str) -> None:
    server = effect_server_at(url)
    async with Hub({"s": server}) as hub, open_journal(database, node) as journal, Workflows(hub, journal):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
