"""A PostgreSQL and a NATS for hundreds of nodes, and what they count themselves."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tests.cluster import nats_server
from tests.faults.cluster.engines import free_port
from tests.telemetry.postgres_server import binaries, postgres_server

CONNECTIONS = 3000
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Engines:
    database: str
    nats: str
    nats_pid: int
    monitor: str

    def counted(self) -> dict[str, float]:
        """Since they were started; and what they use now."""
        with psycopg.connect(self.database, autocommit=True) as db:
            base = "SELECT xact_commit + xact_rollback, tup_returned, numbackends FROM pg_stat_database"
            row: Any = db.execute(f"{base} WHERE datname = current_database()").fetchone()
            size: Any = db.execute("SELECT pg_total_relation_size('instances')").fetchone()
        with urllib.request.urlopen(f"{self.monitor}/varz", timeout=10) as answer:
            varz = json.load(answer)
        return {
            "transactions": float(row[0]),
            "rows": float(row[1]),
            "connections": float(row[2] - 1),
            "places_bytes": float(size[0]),
            "messages_in": varz["in_msgs"],
            "messages_out": varz["out_msgs"],
            "bytes_out": varz["out_bytes"],
            "nats_memory": varz["mem"],
            "nats_cpu": _cpu([self.nats_pid]),
            "postgres_cpu": _cpu(_postgres(self.database)),
        }


def _postgres(database: str) -> list[int]:
    """Its processes. Those that ended are missing: between two looks nodes do not connect anew."""
    folder = Path(database.partition("host=")[2])
    main = int((folder / "data" / "postmaster.pid").read_text().split()[0])
    return [main, *(int(pid) for pid in Path(f"/proc/{main}/task/{main}/children").read_text().split())]


def _cpu(pids: list[int]) -> float:
    """Seconds."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
    return total / _TICKS


@asynccontextmanager
async def engines() -> AsyncIterator[Engines]:
    programs = binaries()
    assert programs is not None
    with postgres_server(programs, CONNECTIONS) as database:
        async with _nats() as (url, monitor, pid):
            yield Engines(database, url, pid, monitor)


@asynccontextmanager
async def _nats() -> AsyncIterator[tuple[str, str, int]]:
    found = nats_server.program()
    assert found is not None
    port, monitor = free_port("127.0.0.1"), free_port("127.0.0.1")
    words = ["-a", "127.0.0.1", "-p", str(port), "-m", str(monitor)]
    null = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(found, *words, stdout=null, stderr=null)
    try:
        await _until_answers(f"http://127.0.0.1:{monitor}")
        yield f"nats://127.0.0.1:{port}", f"http://127.0.0.1:{monitor}", process.pid
    finally:
        process.kill()
        await process.wait()


async def _until_answers(url: str) -> None:
    async with asyncio.timeout(20):
        while True:
            with suppress(OSError):
                await asyncio.to_thread(lambda: urllib.request.urlopen(f"{url}/varz", timeout=5).close())
                return
            await asyncio.sleep(0.05)


@contextmanager
def fresh_database(server: str, name: str) -> Iterator[str]:
    with psycopg.connect(server, autocommit=True) as db:
        db.execute(f"CREATE DATABASE {name}")
    head, _, query = server.partition("?")
    try:
        yield f"{head.rpartition('/')[0]}/{name}?{query}"
    finally:
        with psycopg.connect(server, autocommit=True) as db:
            db.execute(f"DROP DATABASE {name} WITH (FORCE)")
