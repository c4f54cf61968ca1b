"""This user's processes, their files and sockets, from /proc on Linux. On other systems there are none.

`erase_own_memory` and `forbid_inspection` work the other way: they limit what this process shows to others.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import socket

IS_COMPLETE: Final = sys.platform == "linux"  # all processes of this user are found

# Fields of /proc/PID/stat, counted from 0.
STATE: Final = 2
PARENT: Final = 3
STARTED: Final = 21  # clock ticks since boot
MEMORY_PAGES: Final = 23
_ARGUMENTS: Final = 47  # arg_start; then arg_end, env_start, env_end

_PR_SET_DUMPABLE: Final = 4
_TCP_LISTEN: Final = "0A"  # the state of a socket in /proc/net/tcp


# -- processes --------------------------------------------------------------------------------------------------------


def user_pids() -> Iterator[int]:
    """Yield the pids of this user's processes, without the current process."""
    if sys.platform != "linux":
        return
    user, own = os.getuid(), os.getpid()
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        with contextlib.suppress(OSError):
            if name.isdecimal() and int(name) != own and os.stat(f"/proc/{name}").st_uid == user:
                yield int(name)


def read(pid: int, name: str) -> bytes:
    """Return the content of a file in /proc/PID, or b"" if it is missing or this user may not read it."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def arguments(pid: int) -> tuple[str, ...]:
    """Return the command line of a process as its words."""
    return tuple(word.decode(errors="replace") for word in read(pid, "cmdline").rstrip(b"\0").split(b"\0"))


def stat_field(pid: int, number: int) -> str:
    """Return a field of /proc/PID/stat, or "" if the process is gone. `number` counts from 0.

    The process name before the state may contain any character, so parsing starts after its last `)`.
    """
    fields = read(pid, "stat").decode(errors="replace").rpartition(")")[2].split()
    return fields[number - 2] if len(fields) > number - 2 else ""


def uptime() -> float:
    """Return the seconds since the machine was started, or 0 if unknown."""
    with contextlib.suppress(OSError), open("/proc/uptime") as file:
        return float(file.read().split()[0])
    return 0.0


def ticks_to_seconds(ticks: int) -> float:
    """Convert clock ticks, the unit of process start times, to seconds."""
    if sys.platform != "linux":
        return 0.0
    return ticks / os.sysconf("SC_CLK_TCK")


def pages_to_megabytes(pages: int) -> int:
    if sys.platform != "linux":
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20


def end(pid: int, *, at_once: bool) -> None:
    """Ask a process to end, or kill it at once. Does nothing if it is gone, or belongs to another user."""
    if sys.platform == "linux":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL if at_once else signal.SIGTERM)


# -- open files and sockets -------------------------------------------------------------------------------------------


def descriptors(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return []


def descriptor_target(pid: int, fd: int | str) -> str:
    """Return what a descriptor of a process is: a path, `pipe:[…]` or `socket:[…]`, or "" if unknown."""
    try:
        return os.readlink(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return ""


def is_writable(pid: int, fd: str) -> bool:
    """Return True if a process has opened a descriptor for writing."""
    if sys.platform == "linux":
        for line in read(pid, f"fdinfo/{fd}").splitlines():
            if line.startswith(b"flags:"):
                return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False


def socket_inodes(pid: int) -> list[str]:
    """Return the numbers of the sockets that a process has open."""
    links = (descriptor_target(pid, fd) for fd in descriptors(pid))
    return [link[8:-1] for link in links if link.startswith("socket:[")]


def listening_sockets() -> Iterator[tuple[int, str]]:
    """Yield (port, inode) for each listening TCP socket on this machine."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/net/{table}") as file:
            for line in file.readlines()[1:]:
                words = line.split()
                if words[3] == _TCP_LISTEN:
                    yield int(words[1].rpartition(":")[2], 16), words[9]


# -- Unix sockets, from the kernel by sock_diag(7), without any privileges -----------------------------------------


_AF_NETLINK: Final = 16  # address family
_NETLINK_SOCK_DIAG: Final = 4  # protocol
_SOCK_DIAG_BY_FAMILY: Final = 20  # type of message
_REQUEST_DUMP: Final = 0x301
_MESSAGE_DONE, _MESSAGE_ERROR = 3, 2
_ATTR_SHUTDOWN: Final = 6  # attribute: which directions are closed
_BOTH_CLOSED: Final = 3  # its value when the other end was closed
_MESSAGE_HEADER: Final = struct.Struct("=IHHII")
_DIAG_REQUEST: Final = struct.Struct("=BBHIIIII")
_DIAG_REPLY: Final = struct.Struct("=BBBBIII")
_ATTRIBUTE_HEADER: Final = struct.Struct("=HH")


def orphaned_sockets() -> set[str]:
    """Return the inodes of all Unix sockets whose other end is closed.

    Node.js programs, and so most clients, give their servers a socket as stdin, whereas other programs use a pipe.
    The set is empty if the kernel does not answer within a second.
    """
    if sys.platform == "linux":
        import socket

        with contextlib.suppress(OSError), socket.socket(_AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(1.0)
            request = _DIAG_REQUEST.pack(socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, 0, 0, 0)
            kernel.send(
                _MESSAGE_HEADER.pack(_MESSAGE_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0)
                + request
            )
            return {str(inode) for inode, closed in _read_sockets(kernel) if closed == _BOTH_CLOSED}
    return set()


def _read_sockets(kernel: socket.socket) -> Iterator[tuple[int, int]]:
    """Yield (inode, closed directions) of each Unix socket that the kernel reports over netlink (sock_diag).

    The directions are bits: 1 is receiving, 2 is sending.
    """
    while True:
        data = kernel.recv(256 * 1024)
        while len(data) >= _MESSAGE_HEADER.size:
            length, kind, _, _, _ = _MESSAGE_HEADER.unpack_from(data)
            if kind in (_MESSAGE_DONE, _MESSAGE_ERROR) or length < _MESSAGE_HEADER.size:
                return
            body, data = data[_MESSAGE_HEADER.size : length], data[(length + 3) & ~3 :]
            yield _DIAG_REPLY.unpack_from(body)[4], _closed_directions(body[_DIAG_REPLY.size :])


def _closed_directions(attributes: bytes) -> int:
    while len(attributes) >= _ATTRIBUTE_HEADER.size:
        length, kind = _ATTRIBUTE_HEADER.unpack_from(attributes)
        if kind == _ATTR_SHUTDOWN:
            return attributes[_ATTRIBUTE_HEADER.size]
        if length < _ATTRIBUTE_HEADER.size:
            break
        attributes = attributes[(length + 3) & ~3 :]
    return 0


# -- what others see of this process ----------------------------------------------------------------------------------


def erase_own_memory(variables: Iterable[str], secrets: Iterable[str]) -> None:
    """Overwrite environment variables and secret arguments in the memory that /proc shows.

    This is needed because `os.environ` is a copy: the variables with which this process was started stay in its
    memory.
    """
    import ctypes

    try:
        with open("/proc/self/stat", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        arg_start, arg_end, env_start, env_end = map(int, fields[_ARGUMENTS - 2 : _ARGUMENTS + 2])
    except (OSError, ValueError):
        return  # /proc is not mounted: then no other program reads it either
    names = tuple(f"{name}=".encode() for name in variables)
    position = env_start
    for entry in ctypes.string_at(env_start, env_end - env_start).split(b"\0"):
        if entry.startswith(names):
            ctypes.memset(position, 0, len(entry))
        position += len(entry) + 1
    given = ctypes.string_at(arg_start, arg_end - arg_start)
    for secret in map(os.fsencode, secrets):
        found = given.find(secret)
        while found >= 0:
            ctypes.memset(arg_start + found, ord("*"), len(secret))
            found = given.find(secret, found + len(secret))


def forbid_inspection() -> None:
    """Keep other programs of this user from reading this process's memory, environment, and open files."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
