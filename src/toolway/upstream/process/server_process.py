"""A server's process, and the interface of its spawner, on every system."""

from __future__ import annotations

import asyncio
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from toolway.config.schema import DefaultSandbox, Sandbox, SandboxGrants
from toolway.upstream.process.confinement import Confinement, SandboxError
from toolway.upstream.process.pipes import Sink, Source
from toolway.upstream.process.sandbox_choice import choose_sandbox, confine

KILL_TIMEOUT_S = 1.0  # after the kill, for the exit notification to arrive
SANDBOX_CODE = "E-SANDBOX"
BATCH_CODE: Final = "E-STDIO-BATCH"  # an argument that cmd.exe would read as its own syntax
TAG_VARIABLE: Final = "TOOLWAY_TAG"  # random tag in the environment of a server's processes; the reaper has a copy


class SpawnError(Exception):
    """Raised when a process could not be started. `code` is an errno name such as ENOENT, or a Toolway code."""

    def __init__(self, code: str, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.hint = hint


class Process(msgspec.Struct):
    """A running server process: its pid, this side's ends of its pipes, and a future for its exit code."""

    pid: int
    stdin: Sink
    stdout: Source
    stderr: Source
    exited: asyncio.Future[int]  # the exit code; negative for a signal, as in `subprocess`
    _spawner: SpawnerBase
    _id: int

    def signal_group(self, signum: int) -> None:
        self._spawner.send_command({"op": "signal", "id": self._id, "signal": int(signum)})

    def kill_tree(self) -> None:
        """Kill the process, its process group and all its descendants at once."""
        self._spawner.send_command({"op": "end", "id": self._id})

    async def stop(self, eof: float, term: float) -> int | None:
        """Wait `eof` seconds for exit, send SIGTERM to the group, wait `term` seconds, then kill.

        Return the exit code, or None if the exit is not reported within a second after the kill.
        """
        for grace, step in ((eof, None), (term, signal.SIGTERM)):
            if step is not None:
                self.signal_group(step)
            done, _ = await asyncio.wait({self.exited}, timeout=grace)
            if done:
                return self.exited.result()
        self.kill_tree()
        done, _ = await asyncio.wait({self.exited}, timeout=KILL_TIMEOUT_S)
        return self.exited.result() if done else None


class SpawnerBase(ABC):
    """Starts server processes, none of which outlives this process."""

    def __init__(self, runtime_dir: Path | None = None, own_folders: Sequence[Path] = ()) -> None:
        self._runtime_dir = runtime_dir
        self._own_folders = own_folders  # hidden from servers, if the kernel has Landlock
        self.required_guards: frozenset[str] = frozenset()  # parts whose start guards must know what starts
        self.default_sandbox: DefaultSandbox = "auto"  # of servers whose entry names none
        self._last_id = 0

    @abstractmethod
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
        is not found or cannot run, or if the sandbox is not possible.
        """

    @abstractmethod
    def send_command(self, command: dict[str, Any]) -> None:
        """Execute `signal` or `end` for the process with the number `id`. Ignored if it has ended."""

    @abstractmethod
    async def hold(self, fd: int) -> int:
        """Keep a copy of a file descriptor open until all server processes have ended. Return a number for `release`.

        A lock on the descriptor is thus held that long, even if this process is killed.
        """

    @abstractmethod
    def release(self, number: int) -> None:
        """Close the copies of the file descriptor that `hold` made under this number."""

    @abstractmethod
    async def close(self) -> None:
        """Kill the remaining server processes."""

    async def _confine(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None,
        sandbox: Sandbox,
        grants: SandboxGrants,
        proxy_folder: str,
    ) -> Confinement:
        """Return how to start a program in its sandbox: command line, environment, and orders for the reaper.

        Raises `SpawnError` if the program is not found, or if the sandbox is not possible.
        """
        own = [os.fspath(folder) for folder in self._own_folders]
        try:
            if sandbox == "auto" and self.default_sandbox != "auto":
                sandbox = await asyncio.to_thread(choose_sandbox, sandbox, self.default_sandbox)
            if sandbox not in ("guard", "strict"):
                return confine(argv, env, cwd, sandbox, grants, own, proxy_folder)
            return await asyncio.to_thread(confine, argv, env, cwd, sandbox, grants, own, proxy_folder)
        except FileNotFoundError as exc:
            raise SpawnError("ENOENT", str(exc)) from None
        except SandboxError as exc:
            raise SpawnError(exc.code, str(exc), exc.hint) from None
