"""Start of one gateway with its servers, and a single measurement of it."""

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
from bench.launch import Launch, LaunchContext, Server
from bench.peers import Peer
from bench.plan import Case, Pace, ServerGroup

LOAD, UPSTREAM = TOOLS / "load", TOOLS / "upstream"
START_SECONDS = 90.0
BRIDGE_SECONDS = 15.0  # for a peer that already listens; one that cannot bridge eras never succeeds
SETTLE_SECONDS = 5.0
#: A server that starts as slowly as one made with the SDK, with as much CPU time.
LATE = (sys.executable, "-c", "import os, sys, mcp.server; os.execvp(sys.argv[1], sys.argv[1:])")

Figures: TypeAlias = dict[str, Any]

_ONCE = ["--warm", "0", "--calls", "1", "--seconds", "20"]


class NotReadyError(Exception):
    """Failure of a gateway to start or to return a correct result."""


@dataclass(frozen=True)
class Gateway:
    launch: Launch
    process: subprocess.Popen[bytes] | None
    folder: Path
    begun: float

    def used(self) -> machine.Usage:
        return machine.measure_usage(self.process.pid, UPSTREAM) if self.process else machine.Usage(0, 0, 0)


@contextlib.contextmanager
def servers(behind: ServerGroup, on: machine.Role = "load") -> Iterator[tuple[Server, ...]]:
    """Start the servers: yield commands for the gateway to start, or URLs of a running server."""
    core = machine.core_for(on)
    options = ["--era", behind.era, "--tools", str(behind.tools)]
    if behind.kind == "stdio":
        quick = machine.pin_to_core([str(UPSTREAM), "stdio", *options], core)
        late = machine.pin_to_core([*LATE, *quick], core)
        commands = [late if behind.slow and i else quick for i in range(behind.count)]
        yield tuple(Server(f"s{i:02d}", command=tuple(one), era=behind.era) for i, one in enumerate(commands))
        return
    port = machine.free_port(behind.count)
    command = [str(UPSTREAM), "http", str(port), "--ports", str(behind.count), *options]
    with (
        tempfile.TemporaryDirectory() as folder,
        machine.run_process(machine.pin_to_core(command, core), Path(folder) / "log") as one,
    ):
        if not machine.wait_for_port(port, one, 5):
            raise NotReadyError("the upstream did not start")
        yield tuple(
            Server(f"s{i:02d}", f"http://127.0.0.1:{port + i}/mcp", era=behind.era) for i in range(behind.count)
        )


@contextlib.contextmanager
def gateway(peer: Peer, behind: tuple[Server, ...], on: machine.Role = "gateway") -> Iterator[Gateway]:
    """Start a peer and yield it when it listens; it may not be ready to handle calls yet."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with started(peer.launch(LaunchContext(behind, machine.free_port(), folder, peer.home)), folder, on) as one:
            yield one


@contextlib.contextmanager
def started(launch: Launch, folder: Path, on: machine.Role = "gateway") -> Iterator[Gateway]:
    """Start a prepared launch, which can be started again later."""
    begun = time.monotonic()
    if not launch.command:
        yield Gateway(launch, None, folder, begun)
        return
    command = machine.pin_to_core(launch.command, machine.core_for(on))
    with machine.run_process(command, folder / "log", launch.env, folder) as process:
        if not machine.wait_for_port(launch.endpoint.port, process, START_SECONDS):
            raise NotReadyError(f"it did not start: {_tail(folder / 'log')}")
        if launch.prepare:
            launch.prepare()
        yield Gateway(launch, process, folder, begun)


def wait_until_ready(one: Gateway, case: Case, timeout_s: float = START_SECONDS) -> float:
    """Return the seconds from process start to the first correct result. Raises `NotReadyError`."""
    end = time.monotonic() + timeout_s
    figures: Figures = {}
    while time.monotonic() < end:
        with contextlib.suppress(NotReadyError):
            figures = load(one, case, requests(one, case, ("s00",)), _ONCE)
        if figures.get("calls"):
            return time.monotonic() - one.begun
        time.sleep(0.02)
    raise NotReadyError(f"no correct result: {figures.get('first_error')} {_tail(one.folder / 'log')}")


def settle(one: Gateway) -> None:
    """Wait until the gateway is idle: some peers continue calls of clients that have disconnected."""
    end = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < end:
        before = one.used().cpu
        time.sleep(0.2)
        if one.used().cpu - before < 0.02:
            return


def idle_memory(one: Gateway, case: Case) -> float:
    """Return the MB of the gateway when all servers are connected and it is idle."""
    case = Case(case.work, case.era, 1)
    load(one, case, requests(one, case, ("s00",)), _ONCE)
    settle(one)
    return one.used().rss / 1e6


def measure(
    one: Gateway, case: Case, pace: Pace, at: tuple[str, ...] = ("s00",), calls: Sequence[bytes] = ()
) -> Figures:
    """Run one round. `at` are the servers to call in turn; `calls` replaces the requests of the case."""
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
    endpoint = one.launch.endpoint
    if case.work == "list":
        return [wire.request(endpoint, case.era, "tools/list", {})]
    return [wire.call(endpoint, case.era, one.launch.tool(server, case.work), case.work == "big") for server in at]


def load(one: Gateway, case: Case, calls: Sequence[bytes], options: list[str]) -> Figures:
    """Run the load generator and add the gateway's CPU seconds. Raises `NotReadyError`."""
    endpoint, era = one.launch.endpoint, case.era
    words = [str(LOAD), "--port", str(endpoint.port), "--connections", str(case.connections), *options]
    words += ["--expect", wire.expected(case.work)]
    for number, call in enumerate(calls):
        words += ["--call", _file(one, f"call-{number}", call)]
    for number, hello in enumerate(wire.hellos(endpoint, era)):
        words += ["--hello", _file(one, f"hello-{number}", hello)]
    if era == "rest":
        words.append("--any-id")
    with subprocess.Popen(
        machine.pin_to_core(words, machine.core_for("load")),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
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
        raise NotReadyError(f"the gateway accepts no connections: {_tail(one.folder / 'log')}")
    return figures


def _file(one: Gateway, name: str, request: bytes) -> str:
    path = one.folder / name
    path.write_bytes(request)
    return str(path)


def _tail(log: Path) -> str:
    return " | ".join(log.read_text(errors="replace").splitlines()[-3:])[-400:] if log.exists() else ""
