"""Leftover server processes, and the process that listens on a port.

All data is read from /proc; without /proc nothing is found.

A stdio server is left over if no process holds the other end of its stdin: it can never receive a request again.
Pipes are searched among the open files of all processes; for sockets see `orphaned_sockets`. The parent process is
no criterion, because any process may adopt an orphan. A process with our tag is left over if it has no reaper as
ancestor.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from toolway._lazy import dataclass
from toolway.config.masking import mask_value
from toolway.config.schema import Server
from toolway.upstream.process.server_process import TAG_VARIABLE

TAG_PREFIX: Final = TAG_VARIABLE.encode() + b"="
REAPER_PATH: Final = os.path.join("process", "reaper.py")
EXIT_WAIT_S: Final = 2.0  # after SIGTERM
TCP_LISTEN: Final = "0A"  # the state of a socket in /proc/net/tcp


@dataclass(frozen=True, slots=True)
class Orphan:
    """A leftover server process, whose client (Toolway or another one) has ended.

    As a `Fix`, it ends the process.
    """

    pid: int
    started: str  # clock ticks since boot; distinguishes it from a later process with the same pid
    server: str  # the configured server with the same command; empty if only our tag identifies it
    command: str
    megabytes: int
    seconds: float  # since it was started

    @property
    def description(self) -> str:
        return f"end process {self.pid}, which is left over ({self.command[:60]})"

    def apply(self) -> str:
        """Send SIGTERM to the process and its descendants, and after 2 s SIGKILL to the survivors.

        Return a sentence about it for the user.
        """
        tree = [(pid, _stat_field(pid, 21)) for pid in (self.pid, *descendants(self.pid))] if self._is_alive() else []
        assert sys.platform != "win32"
        for signum in (signal.SIGTERM, signal.SIGKILL):
            for pid, started in tree:
                if _is_process_alive(pid, started):
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signum)
            if _wait_gone(EXIT_WAIT_S, tree):
                break
        return f"ended process {self.pid}"

    def _is_alive(self) -> bool:
        return _is_process_alive(self.pid, self.started)


def _is_process_alive(pid: int, start_ticks: str) -> bool:
    """Return True if the process `pid` runs and has this start time, so the pid was not reused."""
    return _stat_field(pid, 21) == start_ticks and _stat_field(pid, 2) != "Z"


def _wait_gone(seconds: float, tree: Sequence[tuple[int, str]]) -> bool:
    end = time.monotonic() + seconds
    while any(_is_process_alive(pid, started) for pid, started in tree):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def find_orphans(servers: Mapping[str, Server]) -> list[Orphan]:
    """Find leftover server processes of this user, which no client can use any more.

    They run the command of a configured server with a closed stdin, or carry Toolway's environment tag without a
    reaper (the helper process that ends servers).
    """
    if not sys.platform.startswith("linux"):
        return []
    server_by_words = {_command_words(server): name for name, server in servers.items() if server.command is not None}
    candidates = {pid: name for pid in _user_pids() if (name := _matching_server(pid, server_by_words)) is not None}
    disconnected = _without_writer({pid: _fd_target(pid, 0) for pid in candidates}) if candidates else set()
    # The files of a gateway are not readable, so its servers seem to have no writer. A reaper never outlives its hub.
    found = {pid: candidates[pid] for pid in disconnected if not _has_reaper(pid)}
    for pid in _user_pids():
        if pid not in candidates and _has_tag(pid) and not _has_reaper(pid):
            found[pid] = ""
    return [_describe_orphan(pid, name) for pid, name in sorted(found.items())]


def _without_writer(stdins: Mapping[int, str]) -> set[int]:
    """Return the pids of processes whose stdin has no writer any more. `stdins` maps a pid to its stdin (`pipe:[…]`).

    A stdin that is neither pipe nor socket is never reported.
    """
    pipes = {link for link in stdins.values() if link.startswith("pipe:")}
    gone = (pipes - _open_pipes(pipes)) | {f"socket:[{inode}]" for inode in orphaned_sockets()}
    return {pid for pid, link in stdins.items() if link in gone}


def _matching_server(pid: int, server_by_words: Mapping[tuple[str, ...], str]) -> str | None:
    """Return the name of the configured server whose command the process runs; None if none."""
    argv = _argv(pid)
    for words, name in server_by_words.items():
        # An interpreter precedes the script's own path: `python /usr/bin/server`, `uv tool uvx server`.
        tail = argv[-len(words) :]
        if words in (tail, (os.path.basename(tail[0]), *tail[1:])):
            return name
    return None


def _has_tag(pid: int) -> bool:
    return any(each.startswith(TAG_PREFIX) for each in _read_proc(pid, "environ").split(b"\0"))


def _has_reaper(pid: int) -> bool:
    """Return True if an ancestor of the process is a reaper, Toolway's helper that ends servers.

    Such a process is not left over.
    """
    above = _stat_field(pid, 3)
    while above not in ("", "0", "1"):
        if any(word.endswith(REAPER_PATH) for word in _argv(int(above))):
            return True
        above = _stat_field(int(above), 3)
    return False


def _command_words(server: Server) -> tuple[str, ...]:
    """Return the words with which the command line of a process ends if the process runs this server."""
    program = os.path.basename(server.command or "")
    if program == "npx":
        rest = itertools.dropwhile(lambda word: word.startswith("-"), server.args)
        return (f"npm exec {' '.join(rest)}",)  # the process title that npx sets
    return (program, *server.args)


def _describe_orphan(pid: int, name: str) -> Orphan:
    assert sys.platform != "win32"
    start_ticks = _stat_field(pid, 21)
    pages = int(_stat_field(pid, 23) or 0)
    uptime = float((_read_uptime() or ["0"])[0])
    age = uptime - int(start_ticks or 0) / os.sysconf("SC_CLK_TCK")
    return Orphan(pid, start_ticks, name, command_line(pid), pages * os.sysconf("SC_PAGE_SIZE") // 2**20, max(0.0, age))


# -- processes and ports -----------------------------------------------------------------------------------------------


def process_on_port(port: int) -> tuple[int, str] | None:
    """Return pid and command line of this user's process that listens on a local TCP port.

    None if there is no such process.
    """
    inodes = {inode for number, inode in _listening_sockets() if number == port}
    for pid in _user_pids() if inodes else ():
        if inodes & set(_socket_inodes(pid)):
            return pid, command_line(pid)
    return None


def listening_ports(pid: int) -> list[int]:
    """Return the TCP ports on which a process or one of its descendants listens."""
    inodes = {inode for each in (pid, *descendants(pid)) for inode in _socket_inodes(each)}
    return sorted({port for port, inode in _listening_sockets() if inode in inodes}) if inodes else []


def descendants(root: int) -> list[int]:
    """Return the pids of the living descendants of a process, oldest first."""
    children: dict[str, list[int]] = {}
    for pid in _user_pids():
        if _stat_field(pid, 2) not in ("", "Z"):
            children.setdefault(_stat_field(pid, 3), []).append(pid)
    found: list[int] = []
    pending = [root]
    while pending:
        below = children.get(str(pending.pop()), [])
        found += below
        pending += below
    return sorted(found, key=lambda pid: (int(_stat_field(pid, 21) or 0), pid))


def command_line(pid: int) -> str:
    """Return the command line of a process for display, with secrets masked."""
    return " ".join(mask_value(list(_argv(pid))))


def start_interval(first: int, second: int) -> float | None:
    """Return the seconds between the starts of two processes; None if one of them is gone."""
    if sys.platform == "win32":
        return None
    begin, end = _stat_field(first, 21), _stat_field(second, 21)
    return (int(end) - int(begin)) / os.sysconf("SC_CLK_TCK") if begin and end else None


# -- /proc -------------------------------------------------------------------------------------------------------------


def _user_pids() -> Iterator[int]:
    """Yield the pids of this user's processes, without the current process."""
    if sys.platform == "win32":
        return
    user, own = os.getuid(), os.getpid()
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        with contextlib.suppress(OSError):
            if name.isdecimal() and int(name) != own and os.stat(f"/proc/{name}").st_uid == user:
                yield int(name)


def _read_proc(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def _argv(pid: int) -> tuple[str, ...]:
    return tuple(word.decode(errors="replace") for word in _read_proc(pid, "cmdline").rstrip(b"\0").split(b"\0"))


def _stat_field(pid: int, number: int) -> str:
    """Return a field of /proc/PID/stat; "" if the process is gone. `number` counts from 0.

    The process name before the state may contain any character, so parsing starts after its last `)`.
    """
    fields = _read_proc(pid, "stat").decode(errors="replace").rpartition(")")[2].split()
    return fields[number - 2] if len(fields) > number - 2 else ""


def _fd_target(pid: int, fd: int | str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return ""


def _fds(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return []


def _socket_inodes(pid: int) -> list[str]:
    links = (_fd_target(pid, fd) for fd in _fds(pid))
    return [link[8:-1] for link in links if link.startswith("socket:[")]


def _listening_sockets() -> Iterator[tuple[int, str]]:
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/net/{table}") as file:
            for line in file.readlines()[1:]:
                words = line.split()
                if words[3] == TCP_LISTEN:
                    yield int(words[1].rpartition(":")[2], 16), words[9]


def _open_pipes(pipes: set[str]) -> set[str]:
    """Return those of `pipes` that some process of this user can still write to (has the write end open)."""
    open_ones: set[str] = set()
    if not pipes:
        return open_ones
    for pid in (*_user_pids(), os.getpid()):
        for fd in _fds(pid):
            link = _fd_target(pid, fd)
            if link in pipes and link not in open_ones and _is_writable(pid, fd):
                open_ones.add(link)
    return open_ones


def _is_writable(pid: int, fd: str) -> bool:
    assert sys.platform != "win32"
    for line in _read_proc(pid, f"fdinfo/{fd}").splitlines():
        if line.startswith(b"flags:"):
            return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False


def _read_uptime() -> list[str]:
    with contextlib.suppress(OSError), open("/proc/uptime") as file:
        return file.read().split()
    return []


# -- sockets, from the kernel by sock_diag(7), which needs no privileges -----------------------------------------------


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

    Node.js programs, and so most clients, give their servers a socket as stdin; other programs use a pipe. The set
    is empty if the kernel gives no answer within a second.
    """
    if sys.platform == "win32":
        return set()
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
