"""Landlock, with which the kernel keeps a server process out of folders, without privileges.

`restrict` denies Toolway's own folders, and `allow_only` denies everything that is not named (the sandbox `strict`).

The reaper loads this module, so it uses the standard library only. Landlock rules only allow, never forbid. To hide a
folder, Toolway therefore allows everything around its path: every entry of each ancestor except the next one on the
path. Entries created in an ancestor later are not allowed, so by default, a folder is only hidden if only the
administrator can create entries in its ancestors (`hides_nothing_else`).

A process in a Landlock domain also cannot inspect processes outside it (ptrace, /proc/PID/environ, mem and root) and,
since Linux 6.12, cannot send signals to them.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import sys
from collections.abc import Iterable, Iterator

MIN_ABI = 2  # Linux 5.19; the first one denies every move of a file to another folder
STRICT_ABI = 6  # Linux 6.12: TCP, devices, signals and abstract sockets are controlled, too
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # system calls, the same on all architectures
CREATE_RULESET_VERSION = 1
RULE_PATH_BENEATH = 1
PR_SET_NO_NEW_PRIVS = 38
SCOPE_ABSTRACT_SOCKET, SCOPE_SIGNAL = 1, 2
BIND_AND_CONNECT_TCP = 3
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
TRUNCATE = 1 << 14
DEVICE_CONTROL = 1 << 15
ALL_RIGHTS = (1 << 16) - 1  # of version 6
# Rights that a ruleset controls, by the version that introduced them: write, read, remove and create; move; truncate.
# Listing a folder and executing a file stay free: names are not secret, and an unreadable file does not start.
RIGHTS = {1: WRITE_FILE | READ_FILE | sum(1 << bit for bit in range(4, 13)), 2: 1 << 13, 3: TRUNCATE}
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | DEVICE_CONTROL

NOT_LINUX = "only Linux has Landlock"


def abi_version() -> int:
    """Return the version of Landlock in this kernel, or 0 without Landlock."""
    if sys.platform != "linux":
        return 0
    import ctypes  # slow to import

    return max(0, int(ctypes.CDLL(None).syscall(CREATE_RULESET, None, 0, CREATE_RULESET_VERSION)))


def hides_nothing_else(path: str) -> bool:
    """Return True if hiding this path cannot hide any other file, not even one created later.

    This is the case if only the administrator can create entries in its ancestors.
    """
    if sys.platform != "linux":
        return False
    user, groups = os.geteuid(), {os.getegid(), *os.getgroups()}
    for ancestor in _ancestors(os.path.realpath(path)):
        try:
            found = os.stat(ancestor)
            if os.statvfs(ancestor).f_flag & os.ST_RDONLY:
                continue
        except OSError:
            return False
        by_group = found.st_mode & stat.S_IWGRP and found.st_gid in groups
        if found.st_uid == user or by_group or found.st_mode & stat.S_IWOTH:
            return False
    return True


def restrict(hidden: Iterable[str], kept: Iterable[str]) -> None:
    """Deny this process and its descendants the `hidden` folders, except the `kept` ones inside.

    Raises `OSError` if the kernel refuses.
    """
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, NOT_LINUX)
    version = abi_version()
    rights = sum(bits for since, bits in RIGHTS.items() if version >= since)
    rules = [(path, rights, os.O_NOFOLLOW) for path in (*_allowed_paths(hidden), *kept)]
    attributes = struct.pack("=QQQ", rights, 0, SCOPE_SIGNAL if version >= 6 else 0)
    _enforce(attributes[: 24 if version >= 6 else 8], rules)


def allow_only(readable: Iterable[str], writable: Iterable[str], with_network: bool) -> None:
    """Deny this process and its descendants all files and folders except these.

    They cannot signal or inspect processes outside, and cannot use TCP unless `with_network` is True. Raises `OSError`
    if the kernel refuses, or has no Landlock 6.
    """
    if abi_version() < STRICT_ABI:
        raise OSError(errno.ENOSYS, "this kernel has no Landlock of version 6 (Linux 6.12)")
    rules = [(path, EXECUTE | READ_FILE | READ_DIR, 0) for path in readable]
    rules += [(path, ALL_RIGHTS, 0) for path in writable]
    tcp = 0 if with_network else BIND_AND_CONNECT_TCP
    _enforce(struct.pack("=QQQ", ALL_RIGHTS, tcp, SCOPE_ABSTRACT_SOCKET | SCOPE_SIGNAL), rules)


def leave_abstract_sockets() -> None:
    """Deny this process and its descendants abstract Unix sockets and signals to outside processes.

    They can still mount, so bubblewrap can follow. Raises `OSError` if the kernel refuses, or has no Landlock 6.
    """
    _enforce(struct.pack("=QQQ", 0, 0, SCOPE_ABSTRACT_SOCKET | SCOPE_SIGNAL), [])


def _enforce(attributes: bytes, rules: Iterable[tuple[str, int, int]]) -> None:
    """Enforce a Landlock ruleset of (path, rights, flags of `open`) rules on this process."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, NOT_LINUX)
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    ruleset = _check(libc.syscall(CREATE_RULESET, attributes, len(attributes), 0))
    for path, rights, flags in rules:
        try:
            entry = os.open(path, os.O_PATH | os.O_CLOEXEC | flags)
        except OSError:
            continue  # it is gone, or it is not ours to open
        is_folder = stat.S_ISDIR(os.fstat(entry).st_mode)
        rule = struct.pack("=Qi", rights if is_folder else rights & FILE_RIGHTS, entry)
        added = libc.syscall(ADD_RULE, ruleset, RULE_PATH_BENEATH, rule, 0)
        os.close(entry)
        _check(added)
    _check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _check(libc.syscall(RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)


def _allowed_paths(hidden: Iterable[str]) -> Iterator[str]:
    """Yield the paths to allow when only the `hidden` folders are denied.

    They are the entries of each ancestor of a hidden folder that are neither hidden nor an ancestor themselves. A
    symbolic link is left out: its target is allowed, or not, by its own path.
    """
    folders = {os.path.realpath(each) for each in hidden}
    ancestors = {ancestor for folder in folders for ancestor in _ancestors(folder)}
    for ancestor in ancestors:
        if any(ancestor == folder or ancestor.startswith(f"{folder}/") for folder in folders):
            continue  # a hidden folder inside another one
        try:
            entries = list(os.scandir(ancestor))
        except OSError:
            continue  # it does not exist yet
        for entry in entries:
            if entry.path not in folders and entry.path not in ancestors and not entry.is_symlink():
                yield entry.path


def _ancestors(path: str) -> list[str]:
    found = []
    while path != os.path.dirname(path):
        path = os.path.dirname(path)
        found.append(path)
    return found


def _check(result: int) -> int:
    if result < 0:
        import ctypes

        code = ctypes.get_errno()
        raise OSError(code, f"Landlock: {os.strerror(code)}")
    return result
