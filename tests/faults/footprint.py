"""What a hub leaves behind, or takes up, as the kernel and the event loop see it."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from toolway import testing

_FAKES = os.path.dirname(testing.__file__)


@dataclass(frozen=True)
class Footprint:
    """Tasks, descriptors and descendants of this process at one moment."""

    tasks: frozenset[asyncio.Task[Any]]
    descriptors: int
    children: frozenset[int]

    @classmethod
    def now(cls) -> Footprint:
        tasks = frozenset(task for task in asyncio.all_tasks() if not _of_a_fake(task))
        return cls(tasks, len(os.listdir("/proc/self/fd")), frozenset(descendants(os.getpid())))

    def beyond(self, before: Footprint) -> str:
        """What there is more than before, in words; empty where nothing is."""
        tasks, children = self.tasks - before.tasks, self.children - before.children
        more = {
            "tasks": [repr(task) for task in tasks],
            "descriptors": self.descriptors - before.descriptors if self.descriptors > before.descriptors else 0,
            "processes": [f"{pid} {command(pid)}" for pid in children],
        }
        return ", ".join(f"{name}: {value}" for name, value in more.items() if value)


async def back_to(before: Footprint, limit: float) -> str:
    """Wait until nothing is left beyond `before`; what still is after `limit` seconds."""
    end = time.monotonic() + limit
    while (left := Footprint.now().beyond(before)) and time.monotonic() < end:
        await asyncio.sleep(0.02)
    return left


def descendants(root: int) -> set[int]:
    """All that descends from `root`, zombies too."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        fields = _stat(int(name)) if name.isdigit() else []
        if fields:
            children.setdefault(int(fields[1]), []).append(int(name))
    found: set[int] = set()
    line = [root]
    while line:
        fresh = children.get(line.pop(), [])
        found.update(fresh)
        line += fresh
    return found


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    return _stat(pid)[:1] not in ([], ["Z"])


def zombies_of(parent: int) -> int:
    """How many children of `parent` have ended and were not waited for."""
    stats = (_stat(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return sum(fields[:2] == ["Z", str(parent)] for fields in stats)


def rss() -> float:
    """Resident memory of this process, in MiB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def give_back_memory() -> None:
    """Return what is free to the kernel: else a hub could grow unnoticed into what earlier ones left."""
    with suppress(AttributeError):  # not every C library has it
        ctypes.CDLL(None).malloc_trim(0)


def kept_waiting(*pids: int | str) -> float:
    """Seconds for which these processes were ready to run and got no core: the load of others, not our doing."""
    total = _stolen()
    for pid in pids:
        try:
            with open(f"/proc/{pid}/schedstat") as file:
                total += int(file.read().split()[1])
        except (OSError, IndexError):
            continue
    return total / 1e9


def _stolen() -> int:
    """Nanoseconds that the machine under a virtual machine gave to others, on all cores."""
    with open("/proc/stat") as file:
        fields = file.readline().split()
    return int(fields[8]) * 10**9 // os.sysconf("SC_CLK_TCK") if len(fields) > 8 else 0


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; the name before them may hold anything."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().decode("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return []


def command(pid: int) -> str:
    """The words a process was started with."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(bytes(1), b" ").decode("utf-8", "replace")[:200]
    except OSError:
        return ""


def _of_a_fake(task: asyncio.Task[Any]) -> bool:
    """A fake server in this process has its own tasks, which are not the hub's."""
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and code.co_filename.startswith(_FAKES)
