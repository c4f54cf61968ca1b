"""One gateway before some servers, and one measurement of it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from bench import machine, wire
from bench.install import TOOLS
from bench.launch import Launch, Place, Server
from bench.peers import Peer
from bench.plan import Behind, Case, Pace

LOAD, UPSTREAM = TOOLS / "load", TOOLS / "upstream"
START_SECONDS = 90.0
BRIDGE_SECONDS = 15.0  # for who listens already; whoever cannot bridge says no for ever
SETTLE_SECONDS = 5.0
#: A server that takes as long to start as one that is made with the SDK, and burns as much CPU meanwhile.
LATE = (sys.executable, "-c", "import os, sys, mcp.server; os.execvp(sys.argv[1], sys.argv[1:])")

Figures: TypeAlias = dict[str, Any]

_ONCE = ["--warm", "0", "--calls", "1", "--seconds", "20"]


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
def servers(behind: Behind, on: machine.Who = "load") -> Iterator[tuple[Server, ...]]:
    """Commands for the gateway to start, or addresses of a server that runs."""
    core = machine.core_of(on)
    options = ["--era", behind.era, "--tools", str(behind.tools)]
    if behind.kind == "stdio":
        quick = machine.pinned([str(UPSTREAM), "stdio", *options], core)
        late = machine.pinned([*LATE, *quick], core)
        commands = [late if behind.slow and i else quick for i in range(behind.count)]
        yield tuple(Server(f"s{i:02d}", command=tuple(one), era=behind.era) for i, one in enumerate(commands))
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
def gateway(peer: Peer, behind: tuple[Server, ...], on: machine.Who = "gateway") -> Iterator[Gateway]:
    """A peer that listens; whether it answers is another question."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with started(peer.launch(Place(behind, machine.free_port(), folder, peer.home)), folder, on) as one:
            yield one


@contextlib.contextmanager
def started(launch: Launch, folder: Path, on: machine.Who = "gateway") -> Iterator[Gateway]:
    """The same, of what is ready to be launched, and may be launched again."""
    begun = time.monotonic()
    if not launch.command:
        yield Gateway(launch, None, folder, begun)
        return
    command = machine.pinned(launch.command, machine.core_of(on))
    with machine.running(command, folder / "log", launch.env, folder) as process:
        if not machine.wait_for_port(launch.door.port, process, START_SECONDS):
            raise NotReadyError(f"it did not start: {_tail(folder / 'log')}")
        if launch.prepare:
            launch.prepare()
        yield Gateway(launch, process, folder, begun)


def wait_until_good(one: Gateway, case: Case, patience: float = START_SECONDS) -> float:
    """Seconds from the start of the program to the first good answer. Raises `NotReadyError`."""
    end = time.monotonic() + patience
    figures: Figures = {}
    while time.monotonic() < end:
        with contextlib.suppress(NotReadyError):
            figures = load(one, case, requests(one, case, ("s00",)), _ONCE)
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
    case = Case(case.work, case.era, 1)
    load(one, case, requests(one, case, ("s00",)), _ONCE)
    settle(one)
    return one.used().rss / 1e6


def measure(
    one: Gateway, case: Case, pace: Pace, at: tuple[str, ...] = ("s00",), calls: Sequence[bytes] = ()
) -> Figures:
    """One round. `at` are the servers that are called, in turn; `calls` are other requests than those of the case."""
    options = ["--warm", str(pace.warm), "--seconds", str(pace.seconds), "--longest", str(pace.longest)]
    options += ["--least", str(2 * case.connections)]
    figures = load(one, case, calls or requests(one, case, at), options)
    used = one.used()
    answers = figures["calls"]
    cpu = figures.pop("cpu")
    figures["cpu_us"] = cpu * 1e6 / answers if answers and one.process else None
    figures["rss_mb"] = used.rss / 1e6
    return figures


def requests(one: Gateway, case: Case, at: tuple[str, ...]) -> list[bytes]:
    door = one.launch.door
    if case.work == "list":
        return [wire.request(door, case.era, "tools/list", {})]
    return [wire.call(door, case.era, one.launch.tool(server, case.work), case.work == "big") for server in at]


def load(one: Gateway, case: Case, calls: Sequence[bytes], options: list[str]) -> Figures:
    """What the load generator says, and the CPU seconds of the gateway in the measured time. Raises `NotReadyError`."""
    door, era = one.launch.door, case.era
    words = [str(LOAD), "--port", str(door.port), "--connections", str(case.connections), *options]
    words += ["--expect", wire.expected(case.work)]
    for number, call in enumerate(calls):
        words += ["--call", _file(one, f"call-{number}", call)]
    for number, hello in enumerate(wire.hellos(door, era)):
        words += ["--hello", _file(one, f"hello-{number}", hello)]
    if era == "rest":
        words.append("--any-id")
    with subprocess.Popen(
        machine.pinned(words, machine.core_of("load")), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as run:
        assert run.stdout is not None
        begun, figures = 0.0, Figures()
        for line in run.stdout:
            if line.startswith("begin"):
                begun = one.used().cpu
            else:
                figures = json.loads(line)
                figures["cpu"] = one.used().cpu - begun
    if not figures:
        raise NotReadyError(f"it takes no connections: {_tail(one.folder / 'log')}")
    return figures


def _file(one: Gateway, name: str, request: bytes) -> str:
    path = one.folder / name
    path.write_bytes(request)
    return str(path)


def _tail(log: Path) -> str:
    return " | ".join(log.read_text(errors="replace").splitlines()[-3:])[-400:] if log.exists() else ""
