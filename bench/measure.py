"""One gateway before some servers, and one measurement of it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from bench import machine, wire
from bench.install import TOOLS
from bench.peers import Launch, Peer, Plan, Server

LOAD, UPSTREAM = TOOLS / "load", TOOLS / "upstream"
START_SECONDS = 90.0
SETTLE_SECONDS = 15.0

Kind: TypeAlias = Literal["http", "stdio"]
Figures: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Behind:
    """The servers behind a gateway."""

    kind: Kind
    count: int = 1
    era: str = "both"

    def __str__(self) -> str:
        words = [str(self.count)] if self.count > 1 else []
        return " ".join([*words, self.kind, *([] if self.era == "both" else [self.era])])


@dataclass(frozen=True)
class Case:
    work: str  # echo, big or list
    era: wire.Era
    connections: int


class NotReadyError(Exception):
    """It did not start, or never gave a good answer."""


@dataclass(frozen=True)
class Gateway:
    launch: Launch
    process: subprocess.Popen[bytes] | None
    folder: Path
    begun: float

    def used(self) -> machine.Used:
        return machine.used(self.process.pid, UPSTREAM) if self.process else machine.Used(0, 0, 0)


@contextlib.contextmanager
def servers(behind: Behind) -> Iterator[tuple[Server, ...]]:
    """Commands for the gateway to start, or addresses of a server that runs; on the core of the load."""
    core = (machine.cores() or (None, None))[1]
    options = ["--era", behind.era]
    if behind.kind == "stdio":
        command = machine.pinned([str(UPSTREAM), "stdio", *options], core)
        yield tuple(Server(f"s{i:02d}", command=tuple(command), era=behind.era) for i in range(behind.count))
        return
    port = machine.free_port(behind.count)
    command = [str(UPSTREAM), "http", str(port), "--ports", str(behind.count), *options]
    with (
        tempfile.TemporaryDirectory() as folder,
        machine.running(machine.pinned(command, core), Path(folder) / "log") as one,
    ):
        if not machine.wait_for_port(port, one, 5):
            raise NotReadyError("the upstream did not start")
        yield tuple(
            Server(f"s{i:02d}", f"http://127.0.0.1:{port + i}/mcp", era=behind.era) for i in range(behind.count)
        )


@contextlib.contextmanager
def gateway(peer: Peer, behind: tuple[Server, ...]) -> Iterator[Gateway]:
    """A peer that listens; whether it answers is another question."""
    core = (machine.cores() or (None, None))[0]
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        launch = peer.launch(Plan(behind, machine.free_port(), folder, peer.home))
        begun = time.monotonic()
        if not launch.command:
            yield Gateway(launch, None, folder, begun)
            return
        command = machine.pinned(launch.command, core)
        with machine.running(command, folder / "log", launch.env, folder) as process:
            if not machine.wait_for_port(launch.door.port, process, START_SECONDS):
                raise NotReadyError(f"it did not start: {_tail(folder / 'log')}")
            if launch.prepare:
                launch.prepare()
            yield Gateway(launch, process, folder, begun)


def wait_until_good(one: Gateway, case: Case, server: str = "s00") -> float:
    """Seconds from the start of the program to the first good answer."""
    end = time.monotonic() + START_SECONDS
    figures: Figures = {}
    while time.monotonic() < end:
        figures = load(one, case, server, ["--warm", "0", "--calls", "1", "--seconds", "20"])
        if figures.get("calls"):
            return time.monotonic() - one.begun
        time.sleep(0.02)
    raise NotReadyError(f"no good answer: {figures.get('first_error')} {_tail(one.folder / 'log')}")


def settle(one: Gateway) -> None:
    """Some go on with the calls of clients that have left: that is not the work of the next measurement."""
    end = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < end:
        before = one.used().cpu
        time.sleep(0.2)
        if one.used().cpu - before < 0.02:
            return


def idle_memory(one: Gateway, case: Case) -> float:
    """MB when all servers are known and nothing happens."""
    load(one, Case(case.work, case.era, 1), "s00", ["--warm", "0", "--calls", "1", "--seconds", "20"])
    settle(one)
    return one.used().rss / 1e6


def measure(one: Gateway, case: Case, warm: float, seconds: float) -> Figures:
    settle(one)
    least = str(2 * case.connections)
    figures = load(one, case, "s00", ["--warm", str(warm), "--seconds", str(seconds), "--least", least])
    used = one.used()
    calls = figures.get("calls", 0)
    cpu = figures.pop("cpu", 0.0)
    figures["cpu_us"] = cpu * 1e6 / calls if calls and one.process else None
    figures["rss_mb"] = used.rss / 1e6
    return figures


def load(one: Gateway, case: Case, server: str, options: list[str]) -> Figures:
    """What the load generator says, and the CPU seconds of the gateway in the measured time."""
    door, era = one.launch.door, case.era
    if case.work == "list":
        call = wire.request(door, era, "tools/list", {})
    else:
        call = wire.call(door, era, one.launch.tool(server, case.work), case.work == "big")
    words = [str(LOAD), "--port", str(door.port), "--connections", str(case.connections), *options]
    words += ["--call", _file(one, "call", call), "--expect", wire.expected(case.work)]
    for number, hello in enumerate(wire.hellos(door, era)):
        words += ["--hello", _file(one, f"hello-{number}", hello)]
    if era == "rest":
        words.append("--any-id")
    core = (machine.cores() or (None, None))[1]
    with subprocess.Popen(
        machine.pinned(words, core), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as run:
        assert run.stdout is not None
        begun, figures = 0.0, Figures()
        for line in run.stdout:
            if line.startswith("begin"):
                begun = one.used().cpu
            else:
                figures = json.loads(line)
                figures["cpu"] = one.used().cpu - begun
    return figures


def _file(one: Gateway, name: str, request: bytes) -> str:
    path = one.folder / name
    path.write_bytes(request)
    return str(path)


def _tail(log: Path) -> str:
    return " | ".join(log.read_text(errors="replace").splitlines()[-3:])[-400:] if log.exists() else ""
