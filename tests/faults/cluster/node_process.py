"""One `toolway serve --cluster`, which can be killed, stopped and started again under the same name."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.faults.cluster.engines_setup import Seat
from tests.gateway.load_clients import Connection, Lost, load_client

Json = dict[str, Any]
READY: Final = 60.0  # seconds to the first answer
END: Final = 60.0
TOKEN: Final = "of-all-replicas-" + 32 * "x"


@dataclass(frozen=True)
class Common:
    """What all replicas of a cluster have."""

    folder: Path
    config: Path
    nats: str  # empty: each is its own gateway
    database: str
    key: Path


class Replica:
    def __init__(self, seat: Seat, port: int, common: Common) -> None:
        self.name = seat.name
        self.seat = seat
        self.port = port
        self.lives: list[int] = []  # its pids, one after the other
        self.paused = False
        self.hidden = False  # reached over NATS alone, from the next start on
        self.program: tuple[str, ...] = ("-m", "toolway.cli")  # another one may be put here before the next start
        self._common = common
        self._folder = common.folder / seat.name
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        return self.lives[-1]

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    async def start(self) -> None:
        """Start it; `wait_ready` says when it serves."""
        state = self._folder / "state"
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        (state / "token").write_text(TOKEN)
        (state / "token").chmod(0o600)
        with (self._folder / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.seat.inside,
                sys.executable,
                *self.program,
                *self._words(),
                env={**os.environ, **self._environ()},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.lives.append(self._process.pid)

    def _words(self) -> list[str]:
        common = self._common
        words = ["serve", "-c", str(common.config), "--host", self.seat.host, "--port", str(self.port)]
        if common.nats:
            words += ["--cluster", common.nats, "--database", common.database, "--cluster-key-file", str(common.key)]
            address = "none" if self.hidden else f"http://{self.seat.host}:{self.port}"
            words += ["--node", self.name, "--advertise", address, "--insecure-nats"]
        return [*words, "--drain-delay", "0.5"]

    def _environ(self) -> dict[str, str]:
        folders = {
            "TOOLWAY_STATE": "state",
            "XDG_CACHE_HOME": "cache",
            "XDG_RUNTIME_DIR": "run",
            "XDG_STATE_HOME": "xdg",
        }
        return {name: str(self._folder / folder) for name, folder in folders.items()}

    async def wait_ready(self) -> None:
        async with asyncio.timeout(READY):
            while not await self.is_ready():
                assert self.runs, f"{self.name} ended:\n{self.log[-3000:]}"
                await asyncio.sleep(0.05)

    async def is_ready(self) -> bool:
        try:
            status, _ = await asyncio.wait_for(self.get("/readyz"), 2)
        except (OSError, Lost, TimeoutError, ValueError):
            return False
        return status == 200

    async def get(self, path: str) -> tuple[int, Json]:
        return await self.request("GET", path)

    async def request(self, method: str, path: str, body: Json | None = None) -> tuple[int, Json]:
        connection = await Connection.to(self.port, self.seat.host)
        try:
            data = json.dumps(body).encode() if body is not None else b""
            fields = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
            answer = await connection.request(method, path, fields, data)
            return answer.status, json.loads(answer.body) if answer.body.startswith(b"{") else {}
        finally:
            connection.close()

    async def listed(self) -> set[str]:
        """The servers whose tools it lists."""
        client = load_client("modern", self.port, TOKEN)
        client.host = self.seat.host
        try:
            found = await client.request("tools/list", {})
        finally:
            client.close()
        return {tool["name"].partition("__")[0] for tool in found.raw["tools"]}

    # -- what is done to it -------------------------------------------------------------------------------------------

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        await self.ended()

    def pause(self) -> None:
        self.paused = True
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)
        self.paused = False

    async def stop(self) -> int:
        """In order; its exit code."""
        self.signal(signal.SIGTERM)
        return await self.ended()

    async def ended(self) -> int:
        assert self._process is not None
        async with asyncio.timeout(END):
            return await self._process.wait()
