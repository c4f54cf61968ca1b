"""Processes that nobody needs any more, and who holds a port. Read from /proc; where there is none, nothing is found.

A server over stdio is left over when nobody holds the other end of its stdin: it can never be asked anything again
(a pipe is looked for among the open files of all processes; about sockets see `sockets.py`).
That is looked at, and not who its parent is: an orphan may be adopted by anybody. What carries our tag is left over
when no keeper is above it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from toolway.config.mask import masked
from toolway.config.spec import Server
from toolway.doctor import sockets
from toolway.upstream.process import keeper

TAG: Final = keeper.TAG.encode() + b"="
KEEPER: Final = os.path.join("process", os.path.basename(keeper.__file__))
END_WAIT: Final = 2.0  # after SIGTERM
LISTENING: Final = "0A"  # the state of a socket in /proc/net/tcp


@dataclass(frozen=True, slots=True)
class Orphan:
    """A process that was a server of ours, or of another client, and has lost whoever started it."""

    pid: int
    started: str  # ticks since boot, so that another process of the same number is never taken for it
    server: str  # the configured server that it looks like; empty where only our tag tells
    command: str
    megabytes: int
    seconds: float  # since it was started

    @property
    def what(self) -> str:
        return f"end process {self.pid}, which is left over ({self.command[:60]})"

    def apply(self) -> str:
        """Ask it and all below it to end, and kill what does not."""
        tree = [(pid, _field(pid, 21)) for pid in (self.pid, *descendants(self.pid))] if self._lives() else []
        for signum in (signal.SIGTERM, signal.SIGKILL):
            for pid, started in tree:
                if _lives(pid, started):
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signum)
            if _gone_within(END_WAIT, tree):
                break
        return f"ended process {self.pid}"

    def _lives(self) -> bool:
        return _lives(self.pid, self.started)


def _lives(pid: int, started: str) -> bool:
    """Whether the process of that number is still the same one."""
    return _field(pid, 21) == started and _field(pid, 2) != "Z"


def _gone_within(seconds: float, tree: Sequence[tuple[int, str]]) -> bool:
    end = time.monotonic() + seconds
    while any(_lives(pid, started) for pid, started in tree):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def find_orphans(servers: Mapping[str, Server]) -> list[Orphan]:
    """Processes that run the command of a configured server, or carry our tag, and that nobody talks to any more."""
    if not sys.platform.startswith("linux"):
        return []
    wanted = {_words(server): name for name, server in servers.items() if server.command is not None}
    alike = {pid: name for pid in _own_pids() if (name := _looks_like(pid, wanted)) is not None}
    alone = _alone({pid: _link(pid, 0) for pid in alike}) if alike else set()
    found = {pid: alike[pid] for pid in alone}
    for pid in _own_pids():
        if pid not in alike and _is_tagged(pid) and not _is_kept(pid):
            found[pid] = ""
    return [_orphan(pid, name) for pid, name in sorted(found.items())]


def _alone(stdins: Mapping[int, str]) -> set[int]:
    """Those to whose stdin nobody can write any more. Of what is neither pipe nor socket that cannot be said."""
    pipes = {link for link in stdins.values() if link.startswith("pipe:")}
    gone = (pipes - _held_pipes(pipes)) | {f"socket:[{inode}]" for inode in sockets.abandoned()}
    return {pid for pid, link in stdins.items() if link in gone}


def holder_of_port(port: int) -> tuple[int, str] | None:
    """Which process of ours listens on a TCP port of this machine: its pid and its command."""
    inodes = {inode for number, inode in _listening() if number == port}
    for pid in _own_pids() if inodes else ():
        if inodes & set(_sockets(pid)):
            return pid, command_of(pid)
    return None


def ports_of(pid: int) -> list[int]:
    """The TCP ports on which a process or one of its descendants listens."""
    inodes = {inode for each in (pid, *descendants(pid)) for inode in _sockets(each)}
    return sorted({port for port, inode in _listening() if inode in inodes}) if inodes else []


def descendants(root: int) -> list[int]:
    """The living descendants of a process, the oldest first."""
    children: dict[str, list[int]] = {}
    for pid in _own_pids():
        if _field(pid, 2) not in ("", "Z"):
            children.setdefault(_field(pid, 3), []).append(pid)
    found: list[int] = []
    line = [root]
    while line:
        below = children.get(str(line.pop()), [])
        found += below
        line += below
    return sorted(found, key=lambda pid: (int(_field(pid, 21) or 0), pid))


def command_of(pid: int) -> str:
    """The command line, for people; what looks like a secret is not shown."""
    return " ".join(masked(list(_argv(pid))))


def seconds_between(first: int, second: int) -> float | None:
    """How long after one process the other was started."""
    begin, end = _field(first, 21), _field(second, 21)
    return (int(end) - int(begin)) / os.sysconf("SC_CLK_TCK") if begin and end else None


# -- what /proc says --------------------------------------------------------------------------------------------------


def _own_pids() -> Iterator[int]:
    """The processes of this user, without this one."""
    user, own = os.getuid(), os.getpid()
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        with contextlib.suppress(OSError):
            if name.isdecimal() and int(name) != own and os.stat(f"/proc/{name}").st_uid == user:
                yield int(name)


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def _argv(pid: int) -> tuple[str, ...]:
    return tuple(word.decode(errors="replace") for word in _read(pid, "cmdline").rstrip(b"\0").split(b"\0"))


def _field(pid: int, number: int) -> str:
    """A field of /proc/PID/stat, as proc(5) numbers them less one; the name before the state may hold anything."""
    fields = _read(pid, "stat").decode(errors="replace").rpartition(")")[2].split()
    return fields[number - 2] if len(fields) > number - 2 else ""


def _link(pid: int, fd: int | str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return ""


def _fds(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return []


def _sockets(pid: int) -> list[str]:
    links = (_link(pid, fd) for fd in _fds(pid))
    return [link[8:-1] for link in links if link.startswith("socket:[")]


def _listening() -> Iterator[tuple[int, str]]:
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/net/{table}") as file:
            for line in file.readlines()[1:]:
                words = line.split()
                if words[3] == LISTENING:
                    yield int(words[1].rpartition(":")[2], 16), words[9]


def _held_pipes(pipes: set[str]) -> set[str]:
    """Those of the pipes whose writing end somebody has open."""
    held: set[str] = set()
    if not pipes:
        return held
    for pid in (*_own_pids(), os.getpid()):
        for fd in _fds(pid):
            link = _link(pid, fd)
            if link in pipes and link not in held and _may_write(pid, fd):
                held.add(link)
    return held


def _may_write(pid: int, fd: str) -> bool:
    for line in _read(pid, f"fdinfo/{fd}").splitlines():
        if line.startswith(b"flags:"):
            return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False


def _looks_like(pid: int, wanted: Mapping[tuple[str, ...], str]) -> str | None:
    """The name of the server whose command a process runs."""
    argv = _argv(pid)
    for words, name in wanted.items():
        # What runs a script stands before the script's own path: `python /usr/bin/server`, `uv tool uvx server`.
        tail = argv[-len(words) :]
        if words in (tail, (os.path.basename(tail[0]), *tail[1:])):
            return name
    return None


def _is_tagged(pid: int) -> bool:
    return any(each.startswith(TAG) for each in _read(pid, "environ").split(b"\0"))


def _is_kept(pid: int) -> bool:
    """Whether a keeper is above it, which ends it in time."""
    above = _field(pid, 3)
    while above not in ("", "0", "1"):
        if any(word.endswith(KEEPER) for word in _argv(int(above))):
            return True
        above = _field(int(above), 3)
    return False


def _words(server: Server) -> tuple[str, ...]:
    """What stands at the end of the command line of the server's process."""
    program = os.path.basename(server.command or "")
    if program == "npx":
        rest = itertools.dropwhile(lambda word: word.startswith("-"), server.args)
        return (f"npm exec {' '.join(rest)}",)  # how npx calls itself
    return (program, *server.args)


def _orphan(pid: int, name: str) -> Orphan:
    started = _field(pid, 21)
    pages = int(_field(pid, 23) or 0)
    uptime = float((_uptime() or ["0"])[0])
    age = uptime - int(started or 0) / os.sysconf("SC_CLK_TCK")
    return Orphan(pid, started, name, command_of(pid), pages * os.sysconf("SC_PAGE_SIZE") // 2**20, max(0.0, age))


def _uptime() -> list[str]:
    with contextlib.suppress(OSError), open("/proc/uptime") as file:
        return file.read().split()
    return []
