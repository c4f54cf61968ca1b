"""Spawner on Windows: each server is in a Job Object, which the kernel ends with this process.

There is no reaper. A server is created suspended, taken into its job and resumed, so that no descendant can escape.
This process has the only handle of the job: when it dies, however it dies, the kernel kills all processes of the job.

Pipes and exit codes come from asyncio's Proactor loop, the default on Windows. The Selector loop has no processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from toolway._os import win32_job, win32_processes
from toolway.config.schema import Sandbox, SandboxGrants
from toolway.upstream.process.pipes import Buffers
from toolway.upstream.process.server_process import BATCH_CODE, TAG_VARIABLE, Process, SpawnerBase, SpawnError
from toolway.upstream.process.windows.program import UnsafeArgument, build_command_line

assert sys.platform == "win32"

CREATE_SUSPENDED: Final = 0x4
MAX_BATCH_CHARS: Final = 64 * 1024  # of a batch file that is read; more than any known layout has
NO_PROACTOR: Final = "servers that are commands need asyncio's Proactor event loop, the default on Windows"


class JobSpawner(SpawnerBase):
    """Starts server processes, each in a job of its own."""

    def __init__(self, runtime_dir: Path | None = None, own_folders: Sequence[Path] = ()) -> None:
        super().__init__(runtime_dir, own_folders)
        self._jobs: dict[int, tuple[win32_job.JobObject, int]] = {}

    async def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None,
        sandbox: Sandbox = "off",
        grants: SandboxGrants | None = None,
        proxy_folder: str = "",
    ) -> Process:
        confined = await self._confine(argv, env, cwd, sandbox, grants or SandboxGrants(), proxy_folder)
        self._last_id += 1
        number = self._last_id
        loop = asyncio.get_running_loop()
        job = win32_job.JobObject()
        try:
            words = build_command_line(confined.argv, confined.env, os.path.abspath(cwd or "."), _Disk())
            flags = CREATE_SUSPENDED | subprocess.CREATE_NEW_PROCESS_GROUP  # Ctrl-C of our console is not for servers
            transport, protocol = await loop.subprocess_exec(
                lambda: _ServerProtocol(loop, job),
                *words,
                cwd=cwd,
                env={**confined.env, TAG_VARIABLE: secrets.token_hex(16)},
                creationflags=flags if win32_processes.has_console() else flags | subprocess.CREATE_NO_WINDOW,
            )
            protocol.transport = transport
            pid = transport.get_pid()
            try:
                job.adopt(pid)
            except OSError:
                transport.kill()  # it is suspended, and in no job
                raise
        except UnsafeArgument as exc:
            job.close()
            raise SpawnError(BATCH_CODE, str(exc)) from None
        except NotImplementedError:
            job.close()
            raise SpawnError("ENOSYS", NO_PROACTOR) from None
        except OSError as exc:
            job.close()
            code = "ENOENT" if isinstance(exc, FileNotFoundError) else "EACCES" if exc.errno == 13 else "EAGAIN"
            raise SpawnError(code, str(exc)) from None
        except BaseException:
            job.close()
            raise
        self._jobs[number] = (job, pid)
        protocol.exited.add_done_callback(lambda _: self._jobs.pop(number, None))
        return Process(pid, protocol.stdin, protocol.stdout, protocol.stderr, protocol.exited, self, number)

    def send_command(self, command: dict[str, Any]) -> None:
        job, pid = self._jobs.get(command["id"], (None, 0))
        if job is None:
            return
        if command["op"] == "end":
            job.kill()
        elif win32_processes.has_console():  # a program without a console gets no signal: it is killed a moment later
            with contextlib.suppress(OSError):
                os.kill(pid, signal.CTRL_BREAK_EVENT)

    async def hold(self, fd: int) -> int:
        """Return a number. The descriptor needs no copy: servers and locks end with this process, at the same time."""
        self._last_id += 1
        return self._last_id

    def release(self, number: int) -> None:
        """Do nothing: `hold` made no copy."""

    async def close(self) -> None:
        for job, _ in list(self._jobs.values()):
            job.close()
        self._jobs.clear()


class _ServerProtocol(asyncio.SubprocessProtocol):
    """Receives the output and the exit of one process from asyncio."""

    def __init__(self, loop: asyncio.AbstractEventLoop, job: win32_job.JobObject) -> None:
        self.transport: asyncio.SubprocessTransport | None = None
        self.exited: asyncio.Future[int] = loop.create_future()
        self.stdin, self.stdout, self.stderr = _PipeSink(self), _PipeSource(self, 1), _PipeSource(self, 2)
        self._job = job

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self.transport = transport
        stdin = self.pipe(0)
        if isinstance(stdin, asyncio.WriteTransport):
            stdin.set_write_buffer_limits(high=0)  # `resume_writing` then means: all is written

    def pipe(self, number: int) -> asyncio.BaseTransport | None:
        return self.transport.get_pipe_transport(number) if self.transport is not None else None

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        assert isinstance(data, bytes)
        (self.stdout if fd == 1 else self.stderr).feed(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 0:
            self.stdin.on_lost()
        else:
            (self.stdout if fd == 1 else self.stderr).feed(b"")

    def pause_writing(self) -> None:
        self.stdin.is_pending = True

    def resume_writing(self) -> None:
        self.stdin.on_writable()

    def process_exited(self) -> None:
        self._job.close()  # what the server left behind ends with it
        if not self.exited.done() and self.transport is not None:
            self.exited.set_result(self.transport.get_returncode() or 0)


class _PipeSource:
    """Readable pipe of a process: a `Source`."""

    def __init__(self, protocol: _ServerProtocol, number: int) -> None:
        self._protocol = protocol
        self._number = number
        self._on_data: Callable[[bytes], None] | None = None
        self._early: list[bytes] = []  # before `start`
        self.is_open = True

    def feed(self, data: bytes) -> None:
        if not self.is_open:
            return
        if self._on_data is None:
            self._early.append(data)
            return
        if not data:
            self.is_open = False
        self._on_data(data)

    def start(self, on_data: Callable[[bytes], None]) -> None:
        self._on_data = on_data
        early, self._early = self._early, []
        for data in early:
            self.feed(data)

    def pause(self) -> None:
        pipe = self._protocol.pipe(self._number)
        if self.is_open and isinstance(pipe, asyncio.ReadTransport) and pipe.is_reading():
            pipe.pause_reading()

    def resume(self) -> None:
        pipe = self._protocol.pipe(self._number)
        if self.is_open and isinstance(pipe, asyncio.ReadTransport) and not pipe.is_reading():
            pipe.resume_reading()

    def close(self) -> None:
        self.is_open = False
        pipe = self._protocol.pipe(self._number)
        if pipe is not None:
            pipe.close()


class _PipeSink:
    """Writable pipe of a process: a `Sink`."""

    def __init__(self, protocol: _ServerProtocol) -> None:
        self._protocol = protocol
        self._on_writable: Callable[[], None] | None = None
        self._lost = False
        self.is_pending = False

    def write(self, buffers: Buffers) -> int:
        pipe = self._protocol.pipe(0)
        if self._lost or not isinstance(pipe, asyncio.WriteTransport) or pipe.is_closing():
            raise BrokenPipeError
        if self.is_pending:
            raise BlockingIOError
        data = b"".join(buffers)
        pipe.write(data)
        return len(data)

    def on_writable(self) -> None:
        self.is_pending = False
        if self._on_writable is not None:
            self._on_writable()

    def on_lost(self) -> None:
        self._lost = True
        self.on_writable()

    def wait(self, on_writable: Callable[[], None]) -> None:
        self._on_writable = on_writable

    def stop_waiting(self) -> None:
        self._on_writable = None

    def close(self) -> None:
        self._lost = True
        pipe = self._protocol.pipe(0)
        if pipe is not None:
            pipe.close()


class _Disk:
    """Files of this machine, for the search of a program."""

    def is_file(self, path: str) -> bool:
        return os.path.isfile(path)

    def read_text(self, path: str) -> str:
        with open(path, encoding="utf-8") as file:
            return file.read(MAX_BATCH_CHARS)
