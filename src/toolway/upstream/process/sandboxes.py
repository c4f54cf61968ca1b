"""The `guard` and `strict` sandboxes for server processes: how they are made, and what the reaper does first.

The reaper is the process that starts all servers. `guard` and `strict` use bubblewrap if it can be used. Without it,
`guard` hides Toolway's own folders with Landlock, and `strict` uses Landlock with a filter of system calls. On macOS
both use a profile for `sandbox-exec`. If a sandbox is not possible, the program does not start.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, Final

from toolway.config.locations import private_files
from toolway.config.schema import Sandbox, SandboxGrants
from toolway.upstream.process import bubblewrap, landlock, path_facts, seatbelt, shown_paths, syscall_filter
from toolway.upstream.process.confinement import (
    Confinement,
    SandboxError,
    hide_own_folders,
    program_folders,
    require,
)
from toolway.upstream.process.limits import plan_limits

FILTER_FD: Final = 3  # the reaper puts a filter of system calls there, for bubblewrap
#: Without bubblewrap a server has no private /proc: what programs read there, without the folders of other processes.
SHARED_PROC: Final = tuple(
    f"/proc/{name}" for name in ("self", "cpuinfo", "meminfo", "stat", "sys", "version", "loadavg", "uptime", "mounts")
)
DEVICES: Final = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom"))


def make_sandbox(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str | None,
    sandbox: Sandbox,
    grants: SandboxGrants,
    own_folders: Sequence[str],
    proxy_folder: str,
) -> Confinement:
    """Return how to start the command line `argv` in the sandbox `guard` or `strict`.

    Call this in a thread, because it tries what this machine supports. `own_folders` are Toolway's. Raises
    `SandboxError` if the sandbox is not possible, and `FileNotFoundError` if the program does not exist.
    """
    if sys.platform == "win32":
        raise AssertionError("Windows has no sandboxes")
    if sys.platform == "darwin":
        return _with_seatbelt(argv, env, cwd, sandbox, grants, own_folders)
    program = bubblewrap.find_program()
    try:
        limits = plan_limits(sandbox, grants, program)
        if program is None and sandbox == "strict":
            return _with_landlock(argv, env, cwd, grants, own_folders, limits.orders())
        if program is None:
            _refuse_replaceable([*own_folders, *private_files()])
            # With capabilities, root reads the variables of other processes, and the disk itself, past Landlock.
            orders = {**hide_own_folders(sandbox, own_folders), **limits.orders(), "powerless": True}
            return Confinement([*argv], env, orders)
        own = [*own_folders, *private_files()]
        if sandbox == "strict":
            command = bubblewrap.strict_command(program, argv, env, cwd, own, grants, proxy_folder, limits)
            return Confinement(command, env, {**limits.orders(), **_scope(program, grants)})
        bubblewrap.create_missing(own_folders)
        _refuse_replaceable(own)
        kept = [os.path.join(folder, name) for folder in own for name in program_folders()]
        command = bubblewrap.guard_command(program, argv, env, cwd, own, kept, limits)
        orders = limits.orders()
        if syscall_filter.is_supported():
            command[1:1] = ["--seccomp", str(FILTER_FD)]
            orders["filter"] = syscall_filter.build_mount_filter(os.uname().machine).hex()
        return Confinement(command, env, orders)
    except FileNotFoundError as exc:
        if exc.filename == argv[0]:
            raise
        raise SandboxError(f"{exc.filename} does not exist") from None
    except ValueError as exc:
        raise SandboxError(str(exc)) from None


def describe(sandbox: Sandbox, grants: SandboxGrants) -> list[str]:
    """Return lines for users: the program that makes a sandbox on this machine, and the limits that apply.

    Call this in a thread, because it tries what this machine supports. Raises `SandboxError` if a limit in the entry
    cannot be applied.
    """
    require("sandbox")
    if sys.platform == "darwin":
        return ["made by sandbox-exec, which was not tested", "processes: not limited", "memory: not limited"]
    program = bubblewrap.find_program()
    made_by = f"bubblewrap ({program})" if program else "Landlock and a filter of system calls, without bubblewrap"
    try:
        return [f"made by {made_by}", *plan_limits(sandbox, grants, program).describe()]
    except ValueError as exc:
        raise SandboxError(str(exc)) from None


def _refuse_replaceable(own: Sequence[str]) -> None:
    """Raise `ValueError` if a server could replace a symbolic link on the way to Toolway's files."""
    for path in own:
        if link := path_facts.replaceable_link(path):
            raise ValueError(
                f"{link}, on the way to {path}, is a symbolic link that the server could replace: set the real folder"
                " with XDG_CONFIG_HOME, XDG_STATE_HOME or XDG_DATA_HOME"
            )


def _scope(program: str, grants: SandboxGrants) -> dict[str, Any]:
    """Return the order that keeps a server with a network from abstract sockets, which a network shares.

    A bubblewrap with the setuid bit would lose its rights if it got this order.
    """
    is_possible = landlock.abi_version() >= landlock.STRICT_ABI and not os.stat(program).st_mode & stat.S_ISUID
    return {"scoped": True} if grants.all_hosts and is_possible else {}


def _with_landlock(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str | None,
    grants: SandboxGrants,
    own_folders: Sequence[str],
    orders: Mapping[str, Any],
) -> Confinement:
    """Return how to start a program in `strict` with Landlock, without bubblewrap.

    Raises `ValueError` if that is not possible.
    """
    assert sys.platform != "win32"
    lacks = "bubblewrap is not installed or not permitted here, and "
    if landlock.abi_version() < landlock.STRICT_ABI or not syscall_filter.is_supported():
        raise ValueError(f"{lacks}this kernel has no Landlock of Linux 6.12")
    if grants.hosts:
        raise ValueError(f"{lacks}without it hosts cannot be granted by name")
    bubblewrap.refuse_package_runner(argv, grants)
    writable = shown_paths.writable_paths(grants)
    readable = shown_paths.readable_paths(argv, env, cwd, grants)
    for folder in (*readable, *writable):
        for own in (*own_folders, *private_files()):
            if path_facts.contains(folder, own):
                raise ValueError(f"{lacks}without it {own} cannot be hidden in {folder}")
    system = (*shown_paths.SYSTEM_PATHS, *(f"/etc/{name}" for name in bubblewrap.ETC_PATHS), *SHARED_PROC)
    private = _create_private_folder()
    allowed = {"read": [*system, *readable], "write": [*writable, private, *DEVICES], "network": grants.all_hosts}
    return Confinement(
        [*argv], {**env, "HOME": private, "TMPDIR": private}, {**orders, "allowed": allowed, "powerless": True}, private
    )


def _create_private_folder() -> str:
    return os.path.realpath(tempfile.mkdtemp(prefix="toolway-sandbox-"))


def _with_seatbelt(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str | None,
    sandbox: Sandbox,
    grants: SandboxGrants,
    own_folders: Sequence[str],
) -> Confinement:
    """Return how to start a program in its sandbox on macOS, with a profile for `sandbox-exec`.

    Raises `SandboxError` if that is not possible.
    """
    if not os.path.exists(seatbelt.PROGRAM):
        raise SandboxError(f"{seatbelt.PROGRAM} does not exist on this system")
    if grants.hosts or grants.max_processes or grants.max_memory_bytes:
        require("sandbox-limits")
    own = [*own_folders, *private_files()]
    if sandbox == "guard":
        profile = seatbelt.guard_profile(env.get("HOME", ""), own)
        return Confinement([seatbelt.PROGRAM, "-p", profile, *argv], env, {})
    try:
        bubblewrap.refuse_package_runner(argv, grants)
        readable, writable = shown_paths.readable_paths(argv, env, cwd, grants), shown_paths.writable_paths(grants)
    except ValueError as exc:
        raise SandboxError(str(exc)) from None
    private = _create_private_folder()
    profile = seatbelt.strict_profile(readable, [*writable, private], own, grants.all_hosts)
    command = [seatbelt.PROGRAM, "-p", profile, *argv]
    return Confinement(command, {**env, "HOME": private, "TMPDIR": private}, {}, private)
