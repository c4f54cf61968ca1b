"""Spawner on Windows: each server is in a Job Object, which the kernel ends with this process.

Windows has no reaper. A server is born in its job, so no descendant can escape. Only this process has a handle for
the job, so when it dies, for whatever reason, the kernel kills all processes in the job.

The pipes belong to asyncio's Proactor loop, the default on Windows. The Selector loop has none.
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

from toolway._async import run_in_daemon_thread
from toolway._os import win32_job, win32_processes, win32_start
from toolway.config.schema import Sandbox, SandboxGrants
from toolway.upstream.process.pipes import Buffers
from toolway.upstream.process.server_process import BATCH_CODE, TAG_VARIABLE, Process, SpawnerBase, SpawnError
from toolway.upstream.process.windows.program import UnsafeArgument, build_command_line

assert sys.platform == "win32"

MAX_BATCH_CHARS: Final = 64 * 1024  # of a batch file that is read; more than any known layout has
NO_PROACTOR: Final = "servers that are commands need asyncio's Proactor event loop, the default on Windows"


class JobSpawner(SpawnerBase):
    """Starts server processes, each in its own job."""

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
        if not isinstance(loop, asyncio.ProactorEventLoop):
            raise SpawnError("ENOSYS", NO_PROACTOR)
        job = win32_job.JobObject()
        try:
            words = build_command_line(confined.argv, confined.env, os.path.abspath(cwd or "."), _Disk())
            env = {**confined.env, TAG_VARIABLE: secrets.token_hex(16)}
            flags = subprocess.CREATE_NEW_PROCESS_GROUP  # Ctrl-C of our console is not for servers
            if not win32_processes.has_console():
                flags |= subprocess.CREATE_NO_WINDOW
            started = win32_start.start_in_job(words, env, cwd, flags, job.handle)
            exited = run_in_daemon_thread(started.wait)
            stdin, stdout, stderr = _PipeSink(), _PipeSource(), _PipeSource()
            await loop.connect_write_pipe(lambda: stdin, started.stdin)
            await loop.connect_read_pipe(lambda: stdout, started.stdout)
            await loop.connect_read_pipe(lambda: stderr, started.stderr)
        except UnsafeArgument as exc:
            job.close()
            raise SpawnError(BATCH_CODE, str(exc)) from None
        except OSError as exc:
            job.close()
            code = "ENOENT" if isinstance(exc, FileNotFoundError) else "EACCES" if exc.errno == 13 else "EAGAIN"
            raise SpawnError(code, str(exc)) from None
        except BaseException:
            job.close()
            raise
        self._jobs[number] = (job, started.pid)
        exited.add_done_callback(lambda _: self._on_exited(number))
        return Process(started.pid, stdin, stdout, stderr, exited, self, number)

    def _on_exited(self, number: int) -> None:
        job, _ = self._jobs.pop(number, (None, 0))  # none after `close`
        if job is not None:
            job.close()  # what the server left behind ends with it

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
        """Return a number. Nothing is copied, because servers and locks end together with this process."""
        self._last_id += 1
        return self._last_id

    def release(self, number: int) -> None:
        """Do nothing, because `hold` made no copy."""

    async def close(self) -> None:
        for job, _ in list(self._jobs.values()):
            job.close()
        self._jobs.clear()


class _PipeSource(asyncio.Protocol):
    """Readable pipe of a process: a `Source`."""

    def __init__(self) -> None:
        self._pipe: asyncio.ReadTransport | None = None
        self._on_data: Callable[[bytes], None] | None = None
        self._early: list[bytes] = []  # before `start`
        self.is_open = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.ReadTransport)
        self._pipe = transport

    def data_received(self, data: bytes) -> None:
        if not self.is_open:
            return
        if self._on_data is None:
            self._early.append(data)
            return
        if not data:
            self.is_open = False
        self._on_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.data_received(b"")

    def start(self, on_data: Callable[[bytes], None]) -> None:
        self._on_data = on_data
        early, self._early = self._early, []
        for data in early:
            self.data_received(data)

    def pause(self) -> None:
        if self.is_open and self._pipe is not None and self._pipe.is_reading():
            self._pipe.pause_reading()

    def resume(self) -> None:
        if self.is_open and self._pipe is not None and not self._pipe.is_reading():
            self._pipe.resume_reading()

    def close(self) -> None:
        self.is_open = False
        if self._pipe is not None:
            self._pipe.close()


class _PipeSink(asyncio.BaseProtocol):
    """Writable pipe of a process: a `Sink`."""

    def __init__(self) -> None:
        self._pipe: asyncio.WriteTransport | None = None
        self._on_writable: Callable[[], None] | None = None
        self._lost = False
        self.is_pending = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._pipe = transport
        transport.set_write_buffer_limits(high=0)  # `resume_writing` then means: all is written

    def write(self, buffers: Buffers) -> int:
        if self._lost or self._pipe is None or self._pipe.is_closing():
            raise BrokenPipeError
        if self.is_pending:
            raise BlockingIOError
        data = b"".join(buffers)
        self._pipe.write(data)
        return len(data)

    def pause_writing(self) -> None:
        self.is_pending = True

    def resume_writing(self) -> None:
        self.is_pending = False
        if self._on_writable is not None:
            self._on_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self.resume_writing()

    def wait(self, on_writable: Callable[[], None]) -> None:
        self._on_writable = on_writable

    def stop_waiting(self) -> None:
        self._on_writable = None

    def close(self) -> None:
        self._lost = True
        if self._pipe is not None:
            self._pipe.close()


class _Disk:
    """The files of this machine, for program lookups."""

    def is_file(self, path: str) -> bool:
        return os.path.isfile(path)

    def read_text(self, path: str) -> str:
        with open(path, encoding="utf-8") as file:
            return file.read(MAX_BATCH_CHARS)
