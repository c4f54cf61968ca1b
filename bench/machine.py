"""Processes, cores, ports, CPU time and memory of the machine that runs the benchmark."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import platform
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")

Role: TypeAlias = Literal["gateway", "load", "any"]


@functools.cache
def cores() -> tuple[int, int] | None:
    """Return the core of the gateway and the core of load and upstream, or None with fewer than two cores."""
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return (usable[0], usable[1]) if len(usable) > 1 and shutil.which("taskset") else None


def leave_gateway_core() -> None:
    """Move this process away from the gateway's core."""
    if pair := cores():
        os.sched_setaffinity(0, {pair[1]})


def pin_to_core(command: Sequence[str], core: int | str | None) -> list[str]:
    """Return the command pinned to a core, or unchanged if `core` is None."""
    return [*command] if core is None else ["taskset", "-c", str(core), *command]


def core_for(role: Role) -> int | str | None:
    """Return the core of the gateway, of the load and servers, or both cores for "any"."""
    pair = cores()
    if pair is None:
        return None
    return f"{pair[0]},{pair[1]}" if role == "any" else pair[0 if role == "gateway" else 1]


def free_port(count: int = 1) -> int:
    """Return the first of `count` consecutive ports that are free."""
    while True:
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            begin: int = first.getsockname()[1]
            try:
                for port in range(begin + 1, begin + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return begin


@contextlib.contextmanager
def run_process(
    command: Sequence[str], log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in its own process group; stop it and all its descendants at the end."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        family = process_tree(process.pid)
        _end(process)
        for pid in family:  # descendants that left the group
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    for signal_number, timeout_s in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal_number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
            return


def wait_for_port(port: int, process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Return True if the port accepts a connection in time and before the process ends."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        time.sleep(0.02)
    return False


def process_tree(root: int) -> list[int]:
    """Return the pid of a process and of all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


@dataclass(frozen=True)
class Usage:
    """CPU seconds and memory of a gateway with all its processes, without the upstream servers among them."""

    cpu: float
    rss: int  # a page shared by two processes counts twice
    processes: int


def measure_usage(root: int, without: Path) -> Usage:
    """Return the usage of a process and its descendants, except those that run the program `without`."""
    cpu, rss, count = 0.0, 0, 0
    for pid in process_tree(root):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/exe") == str(without):
                continue
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            own, reaped = fields[11:13], fields[13:15]
            cpu += sum(map(int, (*own, *reaped))) / _TICK
            rss += int(fields[21]) * _PAGE
            count += 1
    return Usage(cpu, rss, count)


def describe_machine() -> dict[str, str]:
    """Describe the machine for the report."""
    model = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    pins = cores()
    return {
        "cpu": model or platform.machine(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "uvloop": _version("uvloop"),
        "commit": measured_commit(),
        "pinned": f"gateway on core {pins[0]}, load and upstream on core {pins[1]}" if pins else "no",
    }


def _version(package: str) -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return "not installed"


def measured_commit() -> str:
    """Return the measured commit, with a plus sign if the tree has uncommitted changes."""
    here = Path(__file__).parent
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]  # not the name of a tag
    described = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    return described.stdout.strip() or "?"
