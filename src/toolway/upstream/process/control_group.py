"""Linux control groups (v2), which limit the memory and processes of a server and everything it starts.

The reaper loads this module, so it uses the standard library only. Groups for servers are created below or next to
this process's group, if that part of the tree is delegated to its user: by systemd with `Delegate=yes` and
`DelegateSubgroup=`, or in a desktop session. A group that holds processes cannot have limited groups below it.
"""

from __future__ import annotations

import os
import time

ROOT = "/sys/fs/cgroup"
CONTROLLERS = ("memory", "pids")
PREFIX = "toolway-"
REMOVE_ATTEMPTS = 50  # a group is removed when the kernel has ended its processes
_found: dict[str, str] = {}  # the result of `find_parent`, by root


def find_parent(root: str = ROOT) -> str:
    """Return the folder in which control groups for servers can be created, or "" if there is none.

    The first call tries it, by creating a group and removing it; later calls return the same result.
    """
    if root not in _found:
        own = _own_group()
        folder = os.path.normpath(f"{root}/{own}")
        candidates = (folder, os.path.dirname(folder)) if own else ()
        inside = [each for each in candidates if each == root or each.startswith(f"{root}/")]
        _found[root] = next((each for each in inside if can_create(each)), "")
    return _found[root]


def can_create(parent: str) -> bool:
    """Return True if this process may create limited groups in `parent` and move processes there."""
    trial = f"{parent}/{PREFIX}{os.getpid()}-trial"
    try:
        if not os.access(f"{parent}/cgroup.procs", os.W_OK):
            return False
        missing = {*CONTROLLERS} - {*_read(f"{parent}/cgroup.subtree_control").split()}
        if missing:
            _write(f"{parent}/cgroup.subtree_control", " ".join(f"+{name}" for name in sorted(missing)))
        os.mkdir(trial)
    except OSError:
        return False
    try:
        _set_limits(trial, 1 << 30, 1000)
    except OSError:
        return False
    finally:
        os.rmdir(trial)
    return True


def create(parent: str, number: int, memory: int, processes: int) -> str:
    """Create the control group of a server, and return its folder.

    `memory` is the limit in bytes, and `processes` the most processes it may have; 0 means no limit. Raises `OSError`
    if the kernel refuses.
    """
    remove_leftovers(parent)
    group = f"{parent}/{PREFIX}{os.getpid()}-{number}"
    os.mkdir(group)
    try:
        _set_limits(group, memory, processes)
    except OSError:
        os.rmdir(group)
        raise
    return group


def join(group: str) -> None:
    """Move this process and its future children into a control group. Raises `OSError`."""
    _write(f"{group}/cgroup.procs", "0")


def kill(group: str) -> None:
    """Kill all processes in a control group. Has no effect before Linux 5.14."""
    try:
        _write(f"{group}/cgroup.kill", "1")
    except OSError:
        return  # the caller kills them one by one


def remove(group: str) -> None:
    """Kill all processes in a control group, and remove the group."""
    kill(group)
    for _ in range(REMOVE_ATTEMPTS):
        try:
            os.rmdir(group)
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.002)


def remove_leftovers(parent: str) -> None:
    """Remove the empty control groups of reapers that no longer run."""
    for name in os.listdir(parent):
        pid = name[len(PREFIX) :].partition("-")[0] if name.startswith(PREFIX) else ""
        if pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            try:
                os.rmdir(f"{parent}/{name}")
            except OSError:
                continue  # it has processes


def _set_limits(group: str, memory: int, processes: int) -> None:
    if memory:
        _write(f"{group}/memory.max", str(memory))
        _write(f"{group}/memory.oom.group", "1")
        if os.path.exists(f"{group}/memory.swap.max"):
            _write(f"{group}/memory.swap.max", "0")
    if processes:
        _write(f"{group}/pids.max", str(processes))


def _own_group() -> str:
    """Return the path of this process's control group, such as `/user.slice/…`, or "" without version 2."""
    try:
        lines = _read("/proc/self/cgroup").splitlines()
    except OSError:
        return ""
    return next((line[3:] for line in lines if line.startswith("0::")), "")


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
