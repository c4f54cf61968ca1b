"""Memory and process limits in the sandboxes `guard` and `strict`: what this machine can enforce.

A control group limits a server together with everything it starts. Without one, the kernel counts processes per user.
In a user namespace, since Linux 5.14, it only counts the processes inside, so each server has its own limit. That
limit does not apply to root. Without a control group, memory is limited per process.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from dataclasses import dataclass
from typing import Any, Final, Literal

from toolway.config.schema import Sandbox, SandboxGrants
from toolway.upstream.process import control_group

PROCESSES: Final = {"guard": 4096, "strict": 1024}  # with their threads
MEMORY_BYTES: Final = 4 << 30  # in `strict`
PROCESSES_OF_USER: Final = 4096  # if the kernel counts all processes of the user
COUNTS_PER_NAMESPACE: Final = (5, 14)  # Linux
#: `ulimit` has other names for the limit in dash and bash. Without the limit the program is not started.
SHELL_SCRIPT: Final = 'ulimit -u "$0" 2>/dev/null || ulimit -p "$0" || exit 126; exec "$@"'

CountedBy = Literal["group", "namespace", "user", "process", ""]


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """One server's process and memory limits (0 for none), and how each is enforced."""

    processes: int = 0  # with their threads
    processes_by: CountedBy = ""
    memory_bytes: int = 0
    memory_by: CountedBy = ""
    group: str = ""  # folder in which the reaper creates a control group

    def orders(self) -> dict[str, Any]:
        """Return the limits that the reaper must apply, as part of its spawn command."""
        orders: dict[str, Any] = {}
        if self.group:
            orders["group"] = {"parent": self.group, "memory": self.memory_bytes, "processes": self.processes}
        if self.memory_bytes:
            orders["data"] = self.memory_bytes
        if self.processes_by == "user":
            orders["processes"] = self.processes
        return orders

    def wrap(self, argv: list[str]) -> list[str]:
        """Return a command line that sets the process limit inside the sandbox, then runs `argv`.

        Return `argv` itself if no user namespace applies this limit.
        """
        if self.processes_by != "namespace":
            return argv
        return ["/bin/sh", "-c", SHELL_SCRIPT, str(self.processes), *argv]

    def describe(self) -> list[str]:
        """Return one line each about processes and memory: the limit, and how it is enforced."""
        return [
            {
                "group": f"processes and threads: at most {self.processes}, by a control group",
                "namespace": f"processes and threads: at most {self.processes}, in its user namespace (RLIMIT_NPROC)",
                "user": f"processes and threads: at most {self.processes} of the user, other programs included"
                " (RLIMIT_NPROC)",
            }.get(self.processes_by, f"processes: not limited ({_no_limit()})"),
            {
                "group": f"memory: at most {_size(self.memory_bytes)} for all its processes, by a control group",
                "process": f"memory: at most {_size(self.memory_bytes)} for each of its processes (RLIMIT_DATA);"
                " memory that processes share is not counted",
            }.get(self.memory_by, "memory: not limited"),
        ]


def plan_limits(sandbox: Sandbox, grants: SandboxGrants, bubblewrap: str | None) -> ResourceLimits:
    """Return the limits on a server that this machine can apply. `bubblewrap` is that program's path, if used.

    Call this in a thread, because it may try to create a control group. Raises `ValueError` if the entry sets a limit
    that cannot be applied here.
    """
    if sandbox not in ("guard", "strict"):
        return ResourceLimits()
    group = control_group.find_parent()
    memory = (grants.max_memory_bytes or MEMORY_BYTES) if sandbox == "strict" else 0
    processes = grants.max_processes or PROCESSES[sandbox]
    if group:
        return ResourceLimits(processes, "group", memory, "group" if memory else "", group)
    by = _count_processes(sandbox, bubblewrap)
    if grants.max_processes and by != "namespace":
        raise ValueError(f"maxProcesses cannot be applied: {_no_limit()}")
    if by in ("user", ""):
        processes = PROCESSES_OF_USER if by else 0
    return ResourceLimits(processes, by, memory, "process" if memory else "")


def _count_processes(sandbox: Sandbox, bubblewrap: str | None) -> CountedBy:
    if sys.platform == "win32" or os.geteuid() == 0:
        return ""
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    is_new = found is not None and (int(found[1]), int(found[2])) >= COUNTS_PER_NAMESPACE
    # A bubblewrap with the setuid bit creates a user namespace only with an option, as in `strict`.
    has_namespace = bubblewrap is not None and (sandbox == "strict" or not os.stat(bubblewrap).st_mode & stat.S_ISUID)
    if has_namespace and is_new:
        return "namespace"
    return "user" if sandbox == "strict" else ""


def _no_limit() -> str:
    if sys.platform != "win32" and os.geteuid() == 0:
        return "the kernel applies none to root, and no control group is delegated to this process"
    return "it needs bubblewrap on Linux 5.14 or later, or a delegated control group"


def _size(count: int) -> str:
    return f"{count / (1 << 30):g} GiB" if count >= 1 << 30 else f"{count / (1 << 20):g} MiB"
