"""The spawner on Linux and macOS: a client of the reaper process, which starts and watches the servers.

One spawner belongs to one hub. It starts its reaper with the first process, and a new one if the reaper dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from toolway._os import base_variables
from toolway.config.schema import Sandbox, SandboxGrants
from toolway.upstream.process import fd_pipes, reaper
from toolway.upstream.process.confinement import Confinement
from toolway.upstream.process.server_process import TAG_VARIABLE, Process, SpawnerBase, SpawnError

assert sys.platform != "win32"

TRANSIENT_ERRNOS = frozenset({errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM})  # transient lack of system resources
SEND_RETRIES = (20, 0.05)  # retries of a command in that case, and the seconds in between


class _Command(msgspec.Struct):
    """A command for the reaper that is not completely sent yet."""

    data: bytes
    fds: tuple[int, ...]
    process_number: int | None  # process number if the command is a spawn
    attempts: int = 0


class ReaperSpawner(SpawnerBase):
    """Starts server processes through a reaper process, which it starts on first use."""

    def __init__(self, runtime_dir: Path | None = None, own_folders: Sequence[Path] = ()) -> None:
        super().__init__(runtime_dir, own_folders)
        self._reaper: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._inbox = b""
        self._outbox: list[_Command] = []
        self._started: dict[int, asyncio.Future[int]] = {}
        self._exited: dict[int, asyncio.Future[int]] = {}
        self._held: dict[int, int] = {}  # descriptors that every reaper keeps open
        self._ending: set[asyncio.Task[None]] = set()  # reapers that lost their inner process and still kill

    async def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None,
        sandbox: Sandbox = "off",
        grants: SandboxGrants | None = None,
        proxy_folder: str = "",
    ) -> Process:
        """Start `argv` as a child process with pipes for stdin, stdout and stderr, and return it.

        `grants` and the folder with a proxy's socket are for the sandbox `strict`. Raises `SpawnError` if the program
        is not found or cannot run, if the reaper cannot be started, or if the sandbox is not possible.
        """
        loop = asyncio.get_running_loop()
        confined = await self._confine(argv, env, cwd, sandbox, grants or SandboxGrants(), proxy_folder)
        self._ensure_reaper(loop)
        self._last_id += 1
        number = self._last_id
        started: asyncio.Future[int] = loop.create_future()
        exited: asyncio.Future[int] = loop.create_future()
        try:
            child_fds, our_fds = _pipes()
        except OSError as exc:
            raise SpawnError("EMFILE", str(exc)) from None
        self._started[number], self._exited[number] = started, exited
        command = {
            "op": "spawn",
            "id": number,
            "argv": confined.argv,
            "env": {**confined.env, TAG_VARIABLE: secrets.token_hex(16)},
            "cwd": cwd,
            **confined.orders,
        }
        if confined.folder:
            exited.add_done_callback(lambda _: self._clean_up(confined))
        self._send(command, child_fds, number)
        try:
            pid = await started
        except BaseException as exc:
            _close(our_fds)
            self._exited.pop(number, None)
            if confined.folder:
                self._clean_up(confined)
            if isinstance(exc, asyncio.CancelledError):
                self.send_command({"op": "end", "id": number})
            raise
        finally:
            self._started.pop(number, None)
        stdin, stdout, stderr = our_fds
        return Process(
            pid, fd_pipes.FdSink(stdin), fd_pipes.FdSource(stdout), fd_pipes.FdSource(stderr), exited, self, number
        )

    def _clean_up(self, confined: Confinement) -> None:
        """Remove the private folder of a process that has ended, in the background."""
        task = asyncio.get_running_loop().create_task(asyncio.to_thread(confined.clean_up))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def send_command(self, command: dict[str, Any]) -> None:
        """Send a command to the reaper. If no reaper is running, no server process is left, so this does nothing."""
        if self._control is not None:
            self._send(command)

    async def hold(self, fd: int) -> int:
        """Pass a copy of a file descriptor to the reaper, which keeps it open until all servers have ended.

        A lock on the descriptor is thus held that long, even if this process is killed. Once the reaper has the copy,
        return a number for `release`.
        """
        self._last_id += 1
        number = self._last_id
        self._held[number] = os.dup(fd)
        if self._control is not None:
            self._send_held(number)
        while self._outbox:  # noqa: ASYNC110 # a full socket: many servers are starting
            await asyncio.sleep(0.01)
        return number

    def release(self, number: int) -> None:
        """Close the reaper's copies of the file descriptor that `hold` passed under this number."""
        if (fd := self._held.pop(number, None)) is not None:
            os.close(fd)
            self.send_command({"op": "release", "id": number})

    def _send_held(self, number: int) -> None:
        self._send({"op": "hold", "id": number}, (os.dup(self._held[number]),))

    async def close(self) -> None:
        """Close the control socket of the reaper, which then kills the remaining server processes."""
        self._drop_control("the hub is closing")
        self._retire_reaper()
        while self._ending:
            await asyncio.wait(self._ending)
        for number in list(self._held):
            self.release(number)

    # -- the reaper ---------------------------------------------------------------------------------------------------

    def _ensure_reaper(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._control is not None:
            return
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._reaper = subprocess.Popen(
                    [sys.executable, "-I", "-S", reaper.__file__, str(theirs.fileno()), self._runtime_folder()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env=_reaper_environment(os.environ),
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,  # a signal to our process group must not end the reaper
                )
            except OSError as exc:
                ours.close()
                raise SpawnError("EAGAIN", f"the reaper could not be started: {exc}") from None
        ours.setblocking(False)
        self._control, self._inbox, self._outbox = ours, b"", []
        loop.add_reader(ours, self._receive)
        for number in self._held:  # before the first server starts
            self._send_held(number)

    def _runtime_folder(self) -> str:
        if self._runtime_dir is None:
            return ""
        try:
            self._runtime_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            return ""
        return str(self._runtime_dir)

    def _receive(self) -> None:
        assert self._control is not None
        try:
            data = self._control.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop_control("the reaper ended")
            self._retire_reaper()
            return
        *lines, self._inbox = (self._inbox + data).split(b"\n")
        for line in lines:
            self._handle_message(json.loads(line))

    def _handle_message(self, message: dict[str, Any]) -> None:
        number = message["id"]
        if "exit" in message:
            _resolve_future(self._exited.pop(number, None), message["exit"])
        elif "pid" in message:
            _resolve_future(self._started.get(number), message["pid"])
        else:
            self._exited.pop(number, None)
            _resolve_future(self._started.get(number), SpawnError(message["error"], message["text"]))

    def _drop_control(self, reason: str) -> None:
        control, self._control = self._control, None
        if control is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(control)
            loop.remove_writer(control)
            control.close()
        for command in self._outbox:
            _close(command.fds)
        self._outbox = []
        for future in self._started.values():
            _resolve_future(future, SpawnError("EPIPE", reason))
        for future in list(self._exited.values()):
            _resolve_future(future, -signal.SIGKILL)  # without its reaper a process is killed by the kernel
        self._exited.clear()

    def _retire_reaper(self) -> None:
        """Let the reaper kill its servers and exit, in the background. Close its control socket first."""
        reaper_process, self._reaper = self._reaper, None
        if reaper_process is not None:
            task = asyncio.get_running_loop().create_task(_wait_for_exit(reaper_process))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _send(self, command: dict[str, Any], fds: tuple[int, ...] = (), process_number: int | None = None) -> None:
        self._outbox.append(_Command(json.dumps(command).encode() + b"\n", fds, process_number))
        if len(self._outbox) == 1:
            self._flush()

    def _flush(self) -> None:
        if self._control is None:
            return
        loop = asyncio.get_running_loop()
        while self._outbox:
            command = self._outbox[0]
            try:
                sent = _send_command(self._control, command)
            except BlockingIOError:
                loop.add_writer(self._control, self._flush)
                return
            except OSError as exc:
                loop.remove_writer(self._control)
                if exc.errno in TRANSIENT_ERRNOS:
                    self._retry_later(command, exc)
                return  # otherwise the reaper is gone, which the reader detects
            _close(command.fds)
            if sent == len(command.data):
                self._outbox.pop(0)
            else:
                command.data, command.fds, command.process_number = command.data[sent:], (), None
        loop.remove_writer(self._control)

    def _retry_later(self, command: _Command, exc: OSError) -> None:
        """Retry a command to the reaper after a transient error of the system.

        A spawn that fails too often is dropped, and its start fails. All other commands are retried until they
        are sent.
        """
        max_attempts, pause = SEND_RETRIES
        command.attempts += 1
        if command.process_number is not None and command.attempts > max_attempts:
            self._outbox.pop(0)
            _close(command.fds)
            self._exited.pop(command.process_number, None)
            _resolve_future(
                self._started.get(command.process_number), SpawnError(errno.errorcode[exc.errno or 0], str(exc))
            )
        asyncio.get_running_loop().call_later(pause, self._flush)


def _send_command(control: socket.socket, command: _Command) -> int:
    return socket.send_fds(control, [command.data], command.fds) if command.fds else control.send(command.data)


def _pipes() -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Create pipes for a child's stdin, stdout and stderr. Return (child's ends, our ends)."""
    made: list[int] = []
    try:
        for _ in range(3):
            made.extend(os.pipe())
    except OSError:
        _close(made)
        raise
    in_r, in_w, out_r, out_w, err_r, err_w = made
    ours = (in_w, out_r, err_r)
    for fd in ours:
        os.set_blocking(fd, False)
    return (in_r, out_w, err_w), ours


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def _resolve_future(future: asyncio.Future[int] | None, outcome: int | SpawnError) -> None:
    if future is None or future.done():
        return
    if isinstance(outcome, SpawnError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


async def _wait_for_exit(process: subprocess.Popen[bytes], limit: float = 2.0) -> None:
    """Wait until the reaper has killed its processes and exited. After `limit` seconds, kill them and it.

    A server with the same user may have paused the reaper, so it is resumed.
    """
    end = asyncio.get_running_loop().time() + limit
    while process.poll() is None:
        if asyncio.get_running_loop().time() > end:
            reaper.kill_descendants(process.pid)
            process.kill()
            process.wait()
            return
        process.send_signal(signal.SIGCONT)
        await asyncio.sleep(0.005)


def _reaper_environment(own: Mapping[str, str]) -> dict[str, str]:
    """Return the reaper's environment. It contains no secrets, because servers of the same user could read it."""
    return {name: value for name, value in own.items() if name in base_variables() or name.startswith(("LD_", "DYLD_"))}
