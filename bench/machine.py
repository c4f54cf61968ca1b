"""What the benchmark asks of the machine: programs that run, where they run, and what they used."""

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

Who: TypeAlias = Literal["gateway", "load", "any"]


@functools.cache
def cores() -> tuple[int, int] | None:
    """The core of the gateway, and the core of load and upstream; none on a machine that has no two."""
    able = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return (able[0], able[1]) if len(able) > 1 and shutil.which("taskset") else None


def stand_aside() -> None:
    """The runner itself leaves the core of the gateway alone."""
    if pair := cores():
        os.sched_setaffinity(0, {pair[1]})


def pinned(command: Sequence[str], core: int | str | None) -> list[str]:
    return [*command] if core is None else ["taskset", "-c", str(core), *command]


def core_of(who: Who) -> int | str | None:
    """The gateway has a core, load and servers have another; what is not to be crowded into one has both."""
    pair = cores()
    if pair is None:
        return None
    return f"{pair[0]},{pair[1]}" if who == "any" else pair[0 if who == "gateway" else 1]


def free_port(count: int = 1) -> int:
    """The first of so many ports in a row that nobody listens at."""
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
def running(
    command: Sequence[str], log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a process group of its own, which ends with all that it started."""
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
        family = tree(process.pid)
        _end(process)
        for pid in family:  # of those that left the group
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    for how, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
            return


def wait_for_port(port: int, process: subprocess.Popen[bytes], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        time.sleep(0.02)
    return False


def tree(root: int) -> list[int]:
    """A process and all below it."""
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
class Used:
    """CPU seconds and memory of a gateway with all its processes, but without the upstreams among them."""

    cpu: float
    rss: int  # pages that two processes share count in both
    processes: int


def used(root: int, without: Path) -> Used:
    cpu, rss, count = 0.0, 0, 0
    for pid in tree(root):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/exe") == str(without):
                continue
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            own, reaped = fields[11:13], fields[13:15]
            cpu += sum(map(int, (*own, *reaped))) / _TICK
            rss += int(fields[21]) * _PAGE
            count += 1
    return Used(cpu, rss, count)


def about() -> dict[str, str]:
    """The machine, in words for a reader."""
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
        "commit": _commit(),
        "pinned": f"gateway on core {pins[0]}, load and upstream on core {pins[1]}" if pins else "no",
    }


def _version(package: str) -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return "not installed"


def _commit() -> str:
    """What was measured; with a plus where there were changes beside it."""
    here = Path(__file__).parent
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"], cwd=here, capture_output=True, text=True, check=False
    )
    return said.stdout.strip() or "?"
