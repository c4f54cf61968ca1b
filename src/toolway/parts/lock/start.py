"""Decides at a server's start whether to run its locked packages, run its entry as it is, or refuse to start it.

If there is a lock file, an `npx` or `uvx` entry only runs from installed packages that are listed in the file and have
exactly the locked content.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from toolway._os import HAS_DRIVES
from toolway.errors import ConfigError
from toolway.parts.lock import windows_tree
from toolway.parts.lock.lock_file import LOCK_CODE, LockedEntry, PackageLock
from toolway.parts.lock.malware import MALWARE_CODE, MalwareIndex
from toolway.parts.lock.runner_command import NotLockable, PackageCommand, parse_command
from toolway.parts.lock.store import TreeStore, machine_platform

__all__ = ["locked_command", "matches", "reject_malware", "tree_command", "tree_platform"]


def locked_command(
    words: Sequence[str], lock: PackageLock | None, environ: Mapping[str, str], *, required: bool, exempt: bool
) -> list[str] | None:
    """Return the command line that runs an entry's locked packages, or None if the entry runs as it is.

    All files in the tree are read and compared, so call this in a thread. With `required`, entries without a lock are
    rejected. `exempt` means that the entry says `"lock": false`. Raises `ConfigError` if the server must not start.
    """
    has_lock = lock is not None and lock.exists
    try:
        command = parse_command(words)
    except NotLockable as exc:
        if (has_lock or required) and not exempt:
            hint = 'use an entry that can be locked, or set "lock": false'
            raise _refusal("the entry cannot be locked", str(exc), hint) from None
        return None
    if command is None:
        return None
    malware = MalwareIndex.open(environ)
    if exempt or not (has_lock or required):
        _reject_named_malware(command, malware)
        return None
    if lock is None or not has_lock:
        raise _refusal(f"{command.packages[0]} is not locked", "the gateway requires a lock", "toolway trust lock")
    if lock.problem:
        raise _refusal(
            f"{lock.file} cannot be used", lock.problem, "restore it, or remove it and run: toolway trust lock"
        )
    entry = lock.entry
    if entry is None:
        raise _refusal(f"{command.packages[0]} is not locked", f"it is not in {lock.file}", "toolway trust lock")
    if not matches(entry, command):
        raise _refusal(
            f"{command.packages[0]} is not locked",
            f"{lock.file} has {' '.join(entry.packages)} for this entry, which was changed since",
            "toolway trust lock",
        )
    return tree_command(entry, command, malware, environ)


def tree_command(
    entry: LockedEntry, command: PackageCommand, malware: MalwareIndex | None, environ: Mapping[str, str]
) -> list[str]:
    """Compare all files of installed packages (a tree) with the digests, and return the command line that runs them.

    Raises `ConfigError` if a file differs from what was locked, or if a package is known malware.
    """
    store, platform = TreeStore.open(environ), tree_platform(entry)
    if platform is None:
        raise _refusal(
            f"{command.packages[0]} is not locked for this platform",
            f"locked for {', '.join(sorted(entry.trees)) or 'none'}; this is {machine_platform()}",
            "toolway trust lock",
        )
    reject_malware(entry, platform, malware)
    problem = store.check(entry.trees[platform], platform)
    if problem:
        raise _refusal(
            f"the locked tree of {command.packages[0]} is not usable", problem, "install it: toolway trust lock"
        )
    folder = os.fspath(store.folder(entry.trees[platform], platform))
    program = os.path.join(folder, entry.program)
    if HAS_DRIVES:
        run = windows_tree.node_command if entry.ecosystem == "npm" else windows_tree.python_command
        return run(folder, entry.program, command.args)
    if entry.ecosystem == "npm":
        return [program, *command.args]
    # -B: an import hook, such as beartype's, would write more compiled modules into the tree.
    return [os.path.join(folder, "bin", "python"), "-B", program, *command.args]


def matches(entry: LockedEntry, command: PackageCommand) -> bool:
    """Return True if a locked entry has the same packages, program, and Python version as a command."""
    locked = (entry.ecosystem, entry.packages, entry.name, entry.python)
    return locked == (command.ecosystem, command.packages, command.program, command.python)


def tree_platform(entry: LockedEntry) -> str | None:
    """Return the platform that an entry is locked for and this machine can run, or None if there is none.

    For Python packages, this is the platform with the newest Python version.
    """
    own = machine_platform()
    if entry.ecosystem == "npm":
        return own if own in entry.trees else None
    found = [each for each in entry.trees if each.rpartition("-")[0] == own]
    return max(found, key=lambda each: int(each.rpartition("-cp")[2] or 0), default=None)


def reject_malware(entry: LockedEntry, platform: str, malware: MalwareIndex | None) -> None:
    """Raise `ConfigError` if a malware record lists one of the locked packages."""
    for name, version in entry.iter_packages(platform) if malware is not None else ():
        if malware is not None and (record := malware.find(entry.ecosystem, name, version)):
            raise malware_error(name, version, record)


def malware_error(name: str, version: str, record: str) -> ConfigError:
    return ConfigError(
        f"{name} {version} is malware",
        detail=f"record {record}",
        hint="remove the server, or pick another version; if it ran before, treat its secrets as stolen",
        code=MALWARE_CODE,
    )


def _reject_named_malware(command: PackageCommand, malware: MalwareIndex | None) -> None:
    version = command.exact_version
    if malware is not None and (record := malware.find(command.ecosystem, command.name, version)):
        raise malware_error(command.name, version or "in all versions", record)


def _refusal(message: str, detail: str, hint: str) -> ConfigError:
    return ConfigError(message, detail=detail, hint=hint, code=LOCK_CODE)
