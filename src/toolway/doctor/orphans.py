"""Leftover server processes, and which process listens on a port.

All data comes from Linux (`toolway._os.proc`); on other systems nothing is found.

A stdio server is left over if no process holds the other end of its stdin: it can never receive a request again.
Pipes are searched among the open files of all processes; for sockets see `proc.orphaned_sockets`. The parent process is
no criterion, because any process may adopt an orphan. A process with our tag is left over if it has no reaper as
ancestor.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from toolway._os import proc
from toolway.config.masking import mask_value
from toolway.config.schema import Server
from toolway.upstream.process.server_process import TAG_VARIABLE

TAG_PREFIX: Final = TAG_VARIABLE.encode() + b"="
REAPER_PATH: Final = os.path.join("process", "reaper.py")
EXIT_WAIT_S: Final = 2.0  # after SIGTERM


@dataclass(frozen=True, slots=True)
class Orphan:
    """A leftover server process whose client has ended.

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
        pids = (self.pid, *descendants(self.pid)) if self._is_alive() else ()
        tree = [(pid, proc.stat_field(pid, proc.STARTED)) for pid in pids]
        for at_once in (False, True):
            for pid, started in tree:
                if _is_process_alive(pid, started):
                    proc.end(pid, at_once=at_once)
            if _wait_gone(EXIT_WAIT_S, tree):
                break
        return f"ended process {self.pid}"

    def _is_alive(self) -> bool:
        return _is_process_alive(self.pid, self.started)


def _is_process_alive(pid: int, start_ticks: str) -> bool:
    """Return True if the process `pid` runs and has this start time, so the pid was not reused."""
    return proc.stat_field(pid, proc.STARTED) == start_ticks and proc.stat_field(pid, proc.STATE) != "Z"


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
    server_by_words = {_command_words(server): name for name, server in servers.items() if server.command is not None}
    candidates = {pid: name for pid in proc.user_pids() if (name := _matching_server(pid, server_by_words)) is not None}
    disconnected = _without_writer({pid: proc.descriptor_target(pid, 0) for pid in candidates}) if candidates else set()
    # The files of a gateway are not readable, so its servers seem to have no writer. A reaper never outlives its hub.
    found = {pid: candidates[pid] for pid in disconnected if not _has_reaper(pid)}
    for pid in proc.user_pids():
        if pid not in candidates and _has_tag(pid) and not _has_reaper(pid):
            found[pid] = ""
    return [_describe_orphan(pid, name) for pid, name in sorted(found.items())]


def _without_writer(stdins: Mapping[int, str]) -> set[int]:
    """Return the pids whose stdin has no writer left. `stdins` maps a pid to its stdin (`pipe:[…]`).

    A stdin that is neither pipe nor socket is never reported.
    """
    pipes = {link for link in stdins.values() if link.startswith("pipe:")}
    gone = (pipes - _open_pipes(pipes)) | {f"socket:[{inode}]" for inode in proc.orphaned_sockets()}
    return {pid for pid, link in stdins.items() if link in gone}


def _open_pipes(pipes: set[str]) -> set[str]:
    """Return the `pipes` whose write end a process of this user still has open."""
    open_ones: set[str] = set()
    if not pipes:
        return open_ones
    for pid in (*proc.user_pids(), os.getpid()):
        for fd in proc.descriptors(pid):
            link = proc.descriptor_target(pid, fd)
            if link in pipes and link not in open_ones and proc.is_writable(pid, fd):
                open_ones.add(link)
    return open_ones


def _matching_server(pid: int, server_by_words: Mapping[tuple[str, ...], str]) -> str | None:
    """Return the name of the configured server whose command the process runs; None if none."""
    argv = proc.arguments(pid)
    for words, name in server_by_words.items():
        # An interpreter precedes the script's own path: `python /usr/bin/server`, `uv tool uvx server`.
        tail = argv[-len(words) :]
        if words in (tail, (os.path.basename(tail[0]), *tail[1:])):
            return name
    return None


def _has_tag(pid: int) -> bool:
    return any(each.startswith(TAG_PREFIX) for each in proc.read(pid, "environ").split(b"\0"))


def _has_reaper(pid: int) -> bool:
    """Return True if an ancestor of the process is a reaper, Toolway's helper that ends servers.

    Such a process is not left over.
    """
    above = proc.stat_field(pid, proc.PARENT)
    while above not in ("", "0", "1"):
        if any(word.endswith(REAPER_PATH) for word in proc.arguments(int(above))):
            return True
        above = proc.stat_field(int(above), proc.PARENT)
    return False


def _command_words(server: Server) -> tuple[str, ...]:
    """Return the words that a process's command line ends with if it runs this server."""
    program = os.path.basename(server.command or "")
    if program == "npx":
        rest = itertools.dropwhile(lambda word: word.startswith("-"), server.args)
        return (f"npm exec {' '.join(rest)}",)  # the process title that npx sets
    return (program, *server.args)


def _describe_orphan(pid: int, name: str) -> Orphan:
    start_ticks = proc.stat_field(pid, proc.STARTED)
    pages = int(proc.stat_field(pid, proc.MEMORY_PAGES) or 0)
    age = proc.uptime() - proc.ticks_to_seconds(int(start_ticks or 0))
    return Orphan(pid, start_ticks, name, command_line(pid), proc.pages_to_megabytes(pages), max(0.0, age))


# -- processes and ports -----------------------------------------------------------------------------------------------


def process_on_port(port: int) -> tuple[int, str] | None:
    """Return pid and command line of this user's process that listens on a local TCP port.

    None if the process does not exist.
    """
    inodes = {inode for number, inode in proc.listening_sockets() if number == port}
    for pid in proc.user_pids() if inodes else ():
        if inodes & set(proc.socket_inodes(pid)):
            return pid, command_line(pid)
    return None


def listening_ports(pid: int) -> list[int]:
    """Return the TCP ports on which a process or one of its descendants listens."""
    inodes = {inode for each in (pid, *descendants(pid)) for inode in proc.socket_inodes(each)}
    return sorted({port for port, inode in proc.listening_sockets() if inode in inodes}) if inodes else []


def descendants(root: int) -> list[int]:
    """Return the pids of the living descendants of a process, oldest first."""
    children: dict[str, list[int]] = {}
    for pid in proc.user_pids():
        if proc.stat_field(pid, proc.STATE) not in ("", "Z"):
            children.setdefault(proc.stat_field(pid, proc.PARENT), []).append(pid)
    found: list[int] = []
    pending = [root]
    while pending:
        below = children.get(str(pending.pop()), [])
        found += below
        pending += below
    return sorted(found, key=lambda pid: (int(proc.stat_field(pid, proc.STARTED) or 0), pid))


def command_line(pid: int) -> str:
    """Return the command line of a process for display, with secrets masked."""
    return " ".join(mask_value(list(proc.arguments(pid))))


def start_interval(first: int, second: int) -> float | None:
    """Return the seconds between the starts of two processes; None if one of them is gone."""
    begin, end = proc.stat_field(first, proc.STARTED), proc.stat_field(second, proc.STARTED)
    return proc.ticks_to_seconds(int(end) - int(begin)) if begin and end else None
