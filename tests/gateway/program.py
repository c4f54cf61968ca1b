"""`toolway serve` as a program, and what can be done to it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.gateway.load_clients import Connection, close_all

Json = dict[str, Any]


class Program:
    """One gateway in its own process; its file can be written anew while it runs."""

    def __init__(self, folder: Path, process: asyncio.subprocess.Process) -> None:
        self.folder = folder
        self.file = folder / "mcp.json"
        self.process = process
        self.port = 0
        self.token = ""
        self._errors: list[str] = []
        self._reading = asyncio.create_task(self._read_errors())

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        """What it said on stderr."""
        return "".join(self._errors)

    async def _read_errors(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self._errors.append(line.decode(errors="replace"))

    async def announced(self) -> Json:
        """What it prints when it serves."""
        assert self.process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = await self.process.stdout.readline()
            assert line, f"it ended: {text} {self.log}"
            text += line.decode().replace("\r\n", "\n")
        facts: Json = json.loads(text)
        self.port = int(facts["url"].rpartition(":")[2].partition("/")[0])
        self.token = (self.folder / "state" / "token").read_text().strip()
        return facts

    def write(self, servers: Mapping[str, Any], **block: Any) -> None:
        """Another configuration, all at once."""
        fresh = self.file.with_suffix(".new")
        fresh.write_text(json.dumps({"mcpServers": dict(servers), "toolway": with_reload(block)}))
        fresh.replace(self.file)

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    async def ended(self, within: float = 60) -> int:
        """Its exit code."""
        async with asyncio.timeout(within):
            code = await self.process.wait()
            await self._reading
            return code

    async def stop(self) -> int:
        self.signal()
        return await self.ended()

    # -- plain requests -----------------------------------------------------------------------------------------------

    async def get(self, path: str) -> tuple[int, Json]:
        return await self.request("GET", path)

    async def request(self, method: str, path: str, body: Json | None = None) -> tuple[int, Json]:
        """A request on its own connection; the status and the body."""
        connection = await Connection.to(self.port)
        try:
            data = json.dumps(body).encode() if body is not None else b""
            fields = {"authorization": f"Bearer {self.token}", "content-type": "application/json"}
            answer = await connection.request(method, path, fields, data)
            return answer.status, json.loads(answer.body) if answer.body else {}
        finally:
            connection.close()

    async def servers(self) -> dict[str, Json]:
        """Every server as `/admin` shows it."""
        _, found = await self.get("/admin/servers")
        return {status["server"]: status for status in found["servers"]}

    async def until_ready(self, *names: str) -> dict[str, Json]:
        async with asyncio.timeout(60):
            while True:
                found = await self.servers()
                if all(name in found and found[name]["state"] == "ready" for name in names):
                    return found
                await asyncio.sleep(0.02)

    async def until_logged(self, words: str) -> None:
        await until(lambda: words in self.log)


@asynccontextmanager
async def program(folder: Path, servers: Mapping[str, Any], *options: str, **block: Any) -> AsyncIterator[Program]:
    """A gateway that serves these, on its own port; killed if the test has not ended it."""
    run = await start(folder, servers, *options, **block)
    try:
        await run.announced()
        await run.until_ready(*servers)
        yield run
    finally:
        await close_all()
        await kill(run)


async def start(folder: Path, servers: Mapping[str, Any] | None, *options: str, **block: Any) -> Program:
    """Without servers it has and finds no file. `build` is not a setting: it names one of tests/broken_builds.py."""
    build = block.pop("build", "")
    folder.mkdir(exist_ok=True)
    named = []
    if servers is not None:
        (folder / "mcp.json").write_text(json.dumps({"mcpServers": dict(servers), "toolway": with_reload(block)}))
        named = ["-c", str(folder / "mcp.json")]
    words = ["serve", *named, "--json", *(options or ("--port", "0", "--drain-delay", "0"))]
    environ = {"TOOLWAY_STATE": str(folder / "state"), "XDG_CACHE_HOME": str(folder / "cache")}
    if servers is None:
        environ["XDG_CONFIG_HOME"] = str(folder / "config")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        *(["tests.broken_builds", build] if build else ["toolway.cli"]),
        *words,
        cwd=folder if servers is None else None,
        env={**os.environ, **environ, "XDG_RUNTIME_DIR": str(folder / "run")},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    return Program(folder, process)


def with_reload(block: Mapping[str, Any]) -> Json:
    """Settings that trust new commands in the file without a review; tests/attacks covers the review."""
    return {**block, "gateway": {"reload": "all", **block.get("gateway", {})}}


async def kill(run: Program) -> None:
    if run.process.returncode is None:
        run.process.kill()
    await run.ended()


async def until(condition: Callable[[], object], within: float = 30) -> None:
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.01)


def runs(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def below(pid: int) -> set[int]:
    """All processes that descend from one; on Windows none is found."""
    if not Path("/proc/self").exists():
        return set()
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found: set[int] = set()
    while new := {child for child, parent in parents.items() if parent in found | {pid}} - found:
        found |= new
    return found
