"""The engines under a cluster: three NATS servers that know each other, and a PostgreSQL that can be restarted."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from tests.cluster import nats_server
from tests.faults.cluster.engines_setup import NATS, POSTGRES, Ground
from tests.telemetry.postgres_server import binaries

START: Final = 30.0  # seconds for an engine
CONNECTIONS: Final = 200


def missing_engines() -> str | None:
    """What is not there; None where all is."""
    if nats_server.program() is None:
        return "nats-server is not installed"
    return None if binaries() is not None else "PostgreSQL is not installed"


def free_port(host: str) -> int:
    with socket.socket() as free:
        free.bind((host, 0))
        port: int = free.getsockname()[1]
        return port


class NatsNode:
    """One NATS server of a cluster."""

    def __init__(self, host: str, routes: Sequence[str], cluster_port: int) -> None:
        self._host = host
        self._port = free_port(host)
        self._routes = routes
        self._cluster = f"nats://{host}:{cluster_port}"
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"nats://{self._host}:{self._port}"

    async def start(self) -> None:
        found = nats_server.program()
        assert found is not None
        words = ["-a", self._host, "-p", str(self._port), "--cluster_name", "toolway", "--cluster", self._cluster]
        self._process = await asyncio.create_subprocess_exec(
            found,
            *words,
            "--routes",
            ",".join(self._routes),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        await _until_open(self._host, self._port)

    async def kill(self) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        await self._process.wait()


class Postgres:
    """Listens on TCP, so the way to it can be cut."""

    def __init__(self, programs: Path, folder: Path, host: str) -> None:
        self._programs = programs
        self._folder = folder
        self._host = host
        self._port = free_port(host)

    @property
    def url(self) -> str:
        return f"postgresql://postgres@{self._host}:{self._port}/postgres"

    async def make(self) -> None:
        await self._do("initdb", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-sync")
        with (self._folder / "data" / "pg_hba.conf").open("a") as rules:
            rules.write("host all all 198.18.0.0/15 trust\n")

    async def start(self) -> None:
        settings = {
            "listen_addresses": self._host,
            "port": str(self._port),
            "unix_socket_directories": str(self._folder),
            "max_connections": str(CONNECTIONS),
        }
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        await self._do("pg_ctl", "start", "-w", "-s", "-o", options, "-l", str(self._folder / "log"))

    async def stop(self, how: str = "immediate") -> None:
        """`immediate` is a crash: the next start recovers from the log. `fast` ends it in order."""
        await self._do("pg_ctl", "stop", "-w", "-s", "-m", how)

    def pause(self) -> None:
        """It does not answer, and connections to it stay open."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Whatever is left of it."""
        with suppress(OSError, ValueError):
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        main = int((self._folder / "data" / "postmaster.pid").read_text().split()[0])
        for pid in (main, *_children(main)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    async def _do(self, program: str, *arguments: str) -> None:
        # It refuses to run as root.
        as_another = ["unshare", "--user", "--map-user=1000"] if os.geteuid() == 0 else []
        words = [*as_another, str(self._programs / program), "-D", str(self._folder / "data"), *arguments]
        process = await asyncio.create_subprocess_exec(
            *words,
            cwd=self._folder,
            env={"PATH": os.defpath, "LC_ALL": "C"},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        async with asyncio.timeout(60):
            code = await process.wait()
        assert code == 0, f"{program} ended with {code}"


def _children(pid: int) -> list[int]:
    return [int(found) for found in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@asynccontextmanager
async def nats_cluster(ground: Ground) -> AsyncIterator[list[NatsNode]]:
    hosts = [ground.seat(name).host for name in NATS]
    ports = [free_port(host) for host in hosts]
    routes = [f"nats://{host}:{port}" for host, port in zip(hosts, ports, strict=True)]
    async with AsyncExitStack() as stack:
        nodes = [NatsNode(host, routes, port) for host, port in zip(hosts, ports, strict=True)]
        for node in nodes:
            await node.start()
            stack.push_async_callback(node.kill)
        yield nodes


@asynccontextmanager
async def postgres(ground: Ground) -> AsyncIterator[Postgres]:
    programs = binaries()
    assert programs is not None
    folder = Path(tempfile.mkdtemp(prefix="toolway-pg-", dir="/tmp"))  # the path of a socket must be short
    server = Postgres(programs, folder, ground.seat(POSTGRES).host)
    try:
        await server.make()
        await server.start()
        try:
            yield server
        finally:
            with suppress(OSError, ValueError):
                server.resume()
            try:
                await server.stop()
            except (AssertionError, TimeoutError):
                server.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _until_open(host: str, port: int) -> None:
    async with asyncio.timeout(START):
        while True:
            with suppress(OSError):
                _, writer = await asyncio.open_connection(host, port)
                writer.close()
                return
            await asyncio.sleep(0.02)
