"""A real NATS server for tests, on a port of loopback."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


def program() -> str | None:
    beside = Path(sys.executable).with_name("nats-server")
    return str(beside) if beside.exists() else shutil.which("nats-server")


class NatsServer:
    def __init__(self, port: int, configuration: Path | None = None) -> None:
        self.port = port
        self.url = f"nats://127.0.0.1:{port}"
        self._configuration = configuration
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        found = program()
        assert found is not None
        command = [found, "-a", "127.0.0.1", "-p", str(self.port)]
        if self._configuration is not None:
            command += ["-c", str(self._configuration)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: ASYNC220
        async with asyncio.timeout(20):
            while not await _answers(self.port):
                await asyncio.sleep(0.02)

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(10)


async def _answers(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    told = await reader.readline()
    writer.close()
    return told.startswith(b"INFO")


@asynccontextmanager
async def nats_server(configuration: Path | None = None) -> AsyncIterator[NatsServer]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    server = NatsServer(port, configuration)
    await server.start()
    try:
        yield server
    finally:
        server.kill()
