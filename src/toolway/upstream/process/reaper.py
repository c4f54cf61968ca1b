"""The reaper, a small process that starts a hub's servers and lets none of them outlive the hub.

Run by path, with the standard library only (`python -I -S reaper.py FD RUNTIME_DIR`). It exists because a killed
process cannot clean up after itself: when the hub dies, however it dies, its end of the control socket closes, and
the reaper kills everything that it started and exits.

- Every server is a child of the reaper, leads its own session and process group, and is killed by the kernel if the
  reaper dies first (parent-death signal; the child checks its parent after setting it, which closes the race).
- The reaper is a child sub-reaper: what a server leaves behind, daemons that called `setsid` included, becomes the
  reaper's child, is found by the random tag in its environment, and is ended with its server.
- On Linux the reaper is two processes. The outer one only waits for the inner one, which does all the work. It
  continues an inner process that was stopped. If the inner process is killed, the outer one adopts and kills all that
  it started; if the outer one is killed, the inner one kills all. The death of the hub continues the outer process.
- What it started is recorded in a file (pid, start time, boot, tag), so after both crash, the next reaper
  can end what still matches all four.
- On macOS nobody adopts what a server leaves behind, and no signal reports a parent's death. There `ps` names
  the descendants of a server, in whichever session, before it is killed. A daemon whose parent has ended is not found.

Control messages are JSON lines. To the reaper: `spawn` (with three descriptors: stdin, stdout, stderr), `signal`,
`end`, `hold` (with one descriptor, which stays open until all servers have ended, or until `release`). From the
reaper: `{"id", "pid"}` or `{"id", "error"}` after a spawn, and `{"id", "exit"}` once when the server's own process
has ended.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import importlib
import json
import os
import select
import signal
import socket
import sys
import time

assert sys.platform != "win32"

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import
    from collections.abc import Iterable
    from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
LINUX = sys.platform == "linux"
FILTER_FD = 3  # where bubblewrap reads a filter of system calls
TAG_VARIABLE = "TOOLWAY_TAG"
TERM_GRACE_S = 0.5  # for what a server left behind when it exited, before it is killed
KILL_ALL_TIMEOUT_S = 1.5  # to kill everything when the hub is gone


class Child:
    """One server's process, as the reaper knows it.

    After it exits, any processes that it left behind are killed at the time `kill_at`.
    """

    def __init__(self, id: int, pid: int, tag: str, group: str = "") -> None:
        self.id = id
        self.pid = pid
        self.tag = tag
        self.group = group  # folder of its control group; "" without one
        self.exited = False
        self.kill_at = 0.0


class Reaper:
    """Starts and ends server processes for the hub, and kills them all when the hub is gone."""

    def __init__(self, control: socket.socket, runtime_dir: str, outer: int = -1) -> None:
        self.control = control
        self.outer = outer  # descriptor that is closed when the outer process ends; -1 without one
        self.pid_file = PidFile(runtime_dir)
        self.children: dict[int, Child] = {}  # by the hub's id
        self.inbox = b""
        self.fds: list[int] = []
        self.held: dict[int, int] = {}  # descriptors by the hub's id
        self.outbox = b""
        self.wakeup = _signal_pipe()

    def run(self) -> None:
        _become_subreaper()
        self.pid_file.sweep()
        poll = select.poll()
        poll.register(self.wakeup, select.POLLIN)
        if self.outer >= 0:
            poll.register(self.outer, select.POLLIN)
        while True:
            poll.register(self.control, select.POLLIN | (select.POLLOUT if self.outbox else 0))
            ready = dict(poll.poll(self._poll_timeout_ms()))
            if self.wakeup in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self.wakeup, 4096)
            self._reap()
            self._kill_leftovers()
            if self.control.fileno() in ready and not self._receive():
                break
            if self.outer in ready:
                break
            self._flush()
        self._kill_everything()
        self.pid_file.remove()

    # -- control ------------------------------------------------------------------------------------------------------

    def _receive(self) -> bool:
        """Execute the hub's commands. Return False if the control socket is closed."""
        try:
            data, fds = _recv_with_fds(self.control)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.fds.extend(fds)
        if not data:
            return False
        *lines, self.inbox = (self.inbox + data).split(b"\n")
        for line in lines:
            self._execute(json.loads(line))
        return True

    def _execute(self, command: dict) -> None:  # type: ignore[type-arg]
        if command["op"] == "spawn":
            stdio, self.fds = self.fds[:3], self.fds[3:]
            self._spawn(command, stdio)
        elif command["op"] == "signal":
            child = self.children.get(command["id"])
            if child is not None:
                _signal_group(child.pid, command["signal"])
        elif command["op"] == "hold":
            self.held[command["id"]] = self.fds.pop(0)
        elif command["op"] == "release":
            if (fd := self.held.pop(command["id"], None)) is not None:
                os.close(fd)
        elif command["op"] == "end":
            child = self.children.get(command["id"])
            if child is not None:
                self._kill_all_of(child)

    def _send(self, message: dict) -> None:  # type: ignore[type-arg]
        self.outbox += json.dumps(message).encode() + b"\n"
        self._flush()

    def _flush(self) -> None:
        try:
            while self.outbox:
                self.outbox = self.outbox[self.control.send(self.outbox) :]
        except BlockingIOError:
            pass
        except OSError:
            self.outbox = b""  # the hub is gone; the next receive says so

    # -- starting -----------------------------------------------------------------------------------------------------

    def _spawn(self, command: dict, stdio: list[int]) -> None:  # type: ignore[type-arg]
        report_r, report_w = os.pipe()
        parent = os.getpid()
        is_confined = any(command.get(key) for key in ("hidden", "allowed", "powerless", "scoped"))
        for name in ("landlock", "syscall_filter") if is_confined else ():
            _load(name)  # here, so no child loads it again
        group = ""
        try:
            if wanted := command.get("group"):
                create = _load("control_group").create
                group = create(wanted["parent"], command["id"], wanted["memory"], wanted["processes"])
            pid = os.fork()
        except OSError as exc:
            self._send({"id": command["id"], "error": errno.errorcode.get(exc.errno or 0, "EAGAIN"), "text": str(exc)})
            for fd in (report_r, report_w, *stdio):
                os.close(fd)
            _remove_group(group)
            return
        if pid == 0:
            _become_server(command, stdio, report_w, parent, group)
        for fd in (report_w, *stdio):
            os.close(fd)
        report = b""
        while chunk := os.read(report_r, 4096):  # ends when exec closes the pipe, or with the reason of its failure
            report += chunk
        os.close(report_r)
        if report:
            _wait(pid)
            _remove_group(group)
            name, _, text = report.decode().partition(" ")
            self._send({"id": command["id"], "error": name, "text": text})
            return
        self.children[command["id"]] = Child(command["id"], pid, command["env"][TAG_VARIABLE], group)
        self.pid_file.add(pid, command["env"][TAG_VARIABLE])
        self._send({"id": command["id"], "pid": pid})

    # -- ending -------------------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        by_pid = {child.pid: child for child in self.children.values()}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = by_pid.get(pid)
            if child is not None and not child.exited:
                child.exited = True
                self._terminate_leftovers(child)
                self._send({"id": child.id, "exit": os.waitstatus_to_exitcode(status)})

    def _terminate_leftovers(self, child: Child) -> None:
        """Send SIGTERM to the group and orphans of a server whose main process has ended.

        They are killed after `TERM_GRACE_S` seconds.
        """
        child.kill_at = time.monotonic() + TERM_GRACE_S
        _signal_group(child.pid, signal.SIGTERM)
        for pid in _tagged_processes(child.tag):
            _signal(pid, signal.SIGTERM)

    def _kill_all_of(self, child: Child) -> None:
        """Kill all processes of a server, repeatedly: one may fork before it is killed."""
        if child.group:
            _load("control_group").kill(child.group)
        _kill_groups([child], child.pid)
        for _ in range(10):
            found = _descendants(child.pid) | _tagged_processes(child.tag)
            if not found:
                break
            for pid in found:
                _signal(pid, signal.SIGKILL)
            time.sleep(0.002)
            self._reap()

    def _kill_leftovers(self) -> None:
        now = time.monotonic()
        for child in [c for c in self.children.values() if c.exited and now >= c.kill_at]:
            self._kill_all_of(child)
            _remove_group(child.group)
            del self.children[child.id]
            self.pid_file.drop(child.pid)

    def _poll_timeout_ms(self) -> float | None:
        """Return the milliseconds until leftovers must be killed, or None if there are none."""
        due = [c.kill_at for c in self.children.values() if c.exited]
        return max(0.0, (min(due) - time.monotonic()) * 1000) if due else None

    def _kill_everything(self) -> None:
        """Kill all server processes and their descendants without a grace period, because the hub is gone."""
        _kill_groups(self.children.values(), os.getpid())
        kill_descendants(os.getpid())
        for child in self.children.values():
            _remove_group(child.group)


class PidFile:
    """File that lists this reaper's server processes, for the next one to kill leftovers."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.path = os.path.join(folder, f"{os.getpid()}.json") if folder else ""
        self.entries: dict[int, dict] = {}  # type: ignore[type-arg]
        self.started = _start_time(os.getpid()) if folder else ""

    def add(self, pid: int, tag: str) -> None:
        self.entries[pid] = {"pid": pid, "started": _start_time(pid), "boot": _boot_id(), "tag": tag}
        self._write()

    def drop(self, pid: int) -> None:
        if self.entries.pop(pid, None) is not None:
            self._write()

    def _write(self) -> None:
        if not self.path:
            return
        content = {"keeper": os.getpid(), "started": self.started, "children": list(self.entries.values())}
        with contextlib.suppress(OSError):  # a server runs even if the file cannot be written
            with open(self.path + ".new", "w") as file:
                json.dump(content, file)
            os.replace(self.path + ".new", self.path)

    def remove(self) -> None:
        if self.path:
            with contextlib.suppress(OSError):
                os.unlink(self.path)

    def sweep(self) -> None:
        """Kill the server processes that crashed reapers left running, and delete their pid files."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.folder) if self.folder else ():
                if name.endswith(".json"):
                    self._sweep_file(os.path.join(self.folder, name))

    def _sweep_file(self, path: str) -> None:
        try:
            with open(path) as file:
                content = json.load(file)
            if _start_time(content["keeper"]) == content["started"]:
                return  # that reaper is alive
            for entry in content["children"]:
                self._kill_leftover(entry)
        except (OSError, ValueError, KeyError, TypeError):
            pass
        with contextlib.suppress(OSError):
            os.unlink(path)

    def _kill_leftover(self, entry: dict) -> None:  # type: ignore[type-arg]
        if entry["boot"] != _boot_id():
            return
        if not LINUX and entry["started"] == _start_time(entry["pid"]) != "":
            _kill_groups([Child(0, entry["pid"], entry["tag"])], entry["pid"])
        for pid in _tagged_processes(entry["tag"]):
            _signal(pid, signal.SIGKILL)


# -- one process ------------------------------------------------------------------------------------------------------


def _become_server(
    command: dict,  # type: ignore[type-arg]
    stdio: list[int],
    report: int,
    parent: int,
    group: str,
) -> None:
    """Become the server process in the forked child. On failure, write the error to `report`.

    Never returns.
    """
    try:
        os.setsid()
        os.umask(0o077)
        if LINUX:
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
        for signum in (signal.SIGPIPE, signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, signal.SIG_DFL)
        if command.get("cwd"):
            os.chdir(command["cwd"])
        duplicates = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in stdio]
        report = fcntl.fcntl(report, fcntl.F_DUPFD_CLOEXEC, FILTER_FD + 1)
        for target, fd in enumerate(duplicates):
            os.dup2(fd, target)
        os.closerange(3, report)
        os.closerange(report + 1, 4096)  # the reaper itself never has more than a handful
        if filtered := command.get("filter"):
            _pass_filter(bytes.fromhex(filtered))
        if group:
            _load("control_group").join(group)
        _limit_resources(command.get("data", 0), command.get("processes", 0))
        if command.get("hidden"):
            _load("landlock").restrict(command["hidden"], command["kept"])
        if command.get("scoped"):
            _load("landlock").leave_abstract_sockets()
        if allowed := command.get("allowed"):
            _load("landlock").allow_only(allowed["read"], allowed["write"], allowed["network"])
        if command.get("powerless"):
            _load("syscall_filter").drop_capabilities()
        if allowed:
            _load("syscall_filter").install(allowed["network"])
        os.execvpe(command["argv"][0], command["argv"], command["env"])
    except BaseException as exc:
        code = errno.errorcode.get(getattr(exc, "errno", None) or 0, type(exc).__name__)
        with contextlib.suppress(OSError):
            os.write(report, f"{code} {getattr(exc, 'strerror', None) or exc}".encode()[:4000])
    finally:
        os._exit(127)


def _pass_filter(program: bytes) -> None:
    """Let the next program read a system call filter from `FILTER_FD`."""
    reader, writer = os.pipe()
    os.write(writer, program)  # less than a page, so the pipe has room for it
    os.close(writer)
    os.dup2(reader, FILTER_FD)
    if reader != FILTER_FD:
        os.close(reader)
    os.set_inheritable(FILTER_FD, True)


def _limit_resources(data: int, processes: int) -> None:
    """Limit this process's memory and the number of its user's processes; 0 means no limit.

    The kernel does not apply the process limit to root.
    """
    if not data and not processes:
        return
    import resource

    for kind, limit in ((resource.RLIMIT_DATA, data), (resource.RLIMIT_NPROC, processes)):
        _, most = resource.getrlimit(kind)
        if limit:
            limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
            resource.setrlimit(kind, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _remove_group(group: str) -> None:
    if group:
        _load("control_group").remove(group)


def _load(name: str) -> Any:
    """Import a module from this file's folder. This file runs by path, outside its package."""
    folder = os.path.dirname(os.path.abspath(__file__))
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


def _become_subreaper() -> None:
    if LINUX:
        _prctl(PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    import ctypes  # not by a hub that imports this module for its constants

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _split(control: socket.socket) -> int:
    """Fork the reaper's inner process. In it, return a descriptor that is closed when the outer process ends.

    In the outer process, this function never returns.
    """
    _become_subreaper()
    reader, writer = os.pipe()
    _prctl(PR_SET_PDEATHSIG, signal.SIGCONT)
    inner = os.fork()
    if inner == 0:
        os.close(writer)
        _prctl(PR_SET_PDEATHSIG, signal.SIGCONT)
        return reader
    os.close(reader)
    control.close()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    while True:
        pid, status = os.waitpid(-1, os.WUNTRACED)
        if pid == inner and not os.WIFSTOPPED(status):
            break
        if pid == inner:
            _signal(inner, signal.SIGCONT)
    kill_descendants(os.getpid())
    os._exit(0)


def kill_descendants(root: int) -> None:
    """Kill all descendants of the process `root`, repeatedly: one may fork before it is killed.

    Gives up after `KILL_ALL_TIMEOUT_S` seconds. Reaps those that are children of this process.
    """
    end = time.monotonic() + KILL_ALL_TIMEOUT_S
    while time.monotonic() < end:
        found = _descendants(root) - {os.getpid()}
        for pid in found:
            _signal(pid, signal.SIGKILL)
        if root == os.getpid():
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
        if not found:
            return
        time.sleep(0.01)


def _signal(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)


def _signal_group(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signum)


def _wait(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


# -- other processes --------------------------------------------------------------------------------------------------


def _kill_groups(children: Iterable[Child], root: int) -> None:
    """Kill servers' process groups, and on macOS also the descendants of the process `root`.

    Descendants cannot be found once their parents are dead, so the servers are paused first.
    """
    groups = [child.pid for child in children]
    for pid in groups if not LINUX else ():
        _signal_group(pid, signal.SIGSTOP)
    lost = _descendants(root) - {os.getpid()} if not LINUX else set()
    for pid in groups:
        _signal_group(pid, signal.SIGKILL)
    for pid in lost:
        _signal(pid, signal.SIGKILL)


def _ps(*options: str) -> list[list[str]]:
    """Return the output of `ps` as the words of each line, without its own line.

    On macOS, this is how to see other processes.
    """
    reader, writer = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, writer, 1)]
    try:
        pid = os.posix_spawn("/bin/ps", ["ps", *options], {"LC_ALL": "C", "TZ": "UTC0"}, file_actions=actions)
    except OSError:
        os.close(reader)
        return []
    finally:
        os.close(writer)
    with open(reader, "rb") as file:
        lines = file.read().decode("utf-8", "replace").splitlines()
    _wait(pid)
    return [words for line in lines if (words := line.split()) and words[0] != str(pid)]


def _parents() -> dict[int, int]:
    """Return the parent of each running process by pid, without zombies."""
    if not LINUX:
        rows = [row for row in _ps("-A", "-o", "pid=,ppid=,stat=") if len(row) == 3 and row[2][0] != "Z"]
        return {int(pid): int(parent) for pid, parent, _ in rows}
    stats = {pid: _stat(pid) for pid in _pids()}
    return {pid: int(fields[1]) for pid, fields in stats.items() if len(fields) > 1 and fields[0] != "Z"}


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()] if LINUX else []


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the process name, or nothing if the process is gone.

    The name is skipped, because it may contain anything.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().decode("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return []


def _start_time(pid: int) -> str:
    """Return a running process's start time (ticks since boot, or a date on macOS), or "" if it has ended."""
    if not LINUX:
        rows = _ps("-p", str(pid), "-o", "stat=,lstart=")
        return " ".join(rows[0][1:]) if rows and rows[0][0][0] != "Z" else ""
    fields = _stat(pid)
    return fields[19] if len(fields) > 19 and fields[0] != "Z" else ""


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def _descendants(root: int) -> set[int]:
    """Return the pids of all running descendants of the process `root`, without zombies."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents().items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    queue = [root]
    while queue:
        for pid in children.get(queue.pop(), ()):
            if pid not in found:
                found.add(pid)
                queue.append(pid)
    return found


def _tagged_processes(tag: str) -> set[int]:
    """Return the pids of processes that have a server's random tag in their environment."""
    variable = f"{TAG_VARIABLE}={tag}".encode()
    found = set()
    for pid in _pids():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if variable in file.read().split(b"\0"):
                    found.add(pid)
        except OSError:
            continue
    return found


# -- plumbing ---------------------------------------------------------------------------------------------------------


def _signal_pipe() -> int:
    """Return a file descriptor that becomes readable whenever a child process ends.

    Also lets the process ignore SIGINT, SIGTERM and SIGHUP.
    """
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # the hub decides when its servers end
    return reader


def _recv_with_fds(sock: socket.socket) -> tuple[bytes, list[int]]:
    fds = array.array("i")
    data, ancillary, _, _ = sock.recvmsg(65536, socket.CMSG_SPACE(3 * fds.itemsize))
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    return data, list(fds)


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    control.setblocking(False)
    outer = -1
    if LINUX:
        _prctl(PR_SET_DUMPABLE, 0)  # no program of the same user may inspect it
        outer = _split(control)
    Reaper(control, sys.argv[2] if len(sys.argv) > 2 else "", outer).run()


if __name__ == "__main__":
    main()
