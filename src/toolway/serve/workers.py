"""Several gateway processes at one address on one machine: `toolway serve --workers N`.

The parent binds the address and starts the workers, which listen there too (SO_REUSEPORT), so the kernel distributes
connections over them. The parent itself serves nothing. The workers are nodes of a cluster without NATS, with a
database in a file. Worker 0 owns what has one owner: the server processes, and the answers of /admin and /metrics.

Each worker shares a socket with the parent and uses it to report that it is ready. The socket closes when either
ends, so a worker whose parent was killed drains and ends too.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from toolway.config.locations import add_private_file
from toolway.errors import ConfigError
from toolway.gateway.state_dir import RunningGateway, StateDir
from toolway.serve.sockets import format_host, listen_error, raise_file_limit

if TYPE_CHECKING:
    from toolway.cluster.options import ClusterOptions, WorkerPlace

WORKER_VARIABLE: Final = "TOOLWAY_WORKER"  # set for workers: number, socket to the parent, port, folder
MAX_WORKERS: Final = 64
MIN_CORES_FOR_AUTO: Final = 4  # `--workers auto` starts one worker on a machine with fewer
STABLE_AFTER_S: Final = 10.0  # a worker that ran for so long is started again without a pause
MAX_RESTART_PAUSE_S: Final = 30.0
STOP_TIMEOUT_S: Final = 60.0  # for a worker to drain; then it is killed
READY_MESSAGE: Final = b"ready\n"
GO_MESSAGE: Final = b"go\n"  # to a worker: the database exists
DRAIN_MESSAGE: Final = b"drain\n"  # to worker 0: the other workers are being stopped
DATABASE_NAME: Final = "workers.sqlite"
ONLY_LINUX: Final = "--workers needs Linux"
_log = logging.getLogger("toolway.gateway")


def count_workers(text: str | None, cores: int) -> int:
    """Return how many worker processes to start, from the value of `--workers`: a number or `auto`; 1 if it is None.

    Raises `ConfigError` if the value is invalid.
    """
    if text is None:
        return 1
    if text == "auto":
        return min(cores, MAX_WORKERS) if cores >= MIN_CORES_FOR_AUTO else 1
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= MAX_WORKERS:
        raise ConfigError(
            "invalid number of workers",
            detail=f"--workers {text[:40]!r}",
            hint=f"use a number from 1 to {MAX_WORKERS}, or auto: one per core, from {MIN_CORES_FOR_AUTO} cores on",
            code="E-WORKERS",
        )
    return int(text)


def reject_combination(other: str, reason: str) -> ConfigError:
    """Return the error for an option that cannot be combined with --workers."""
    return ConfigError(
        f"--workers cannot be combined with {other}",
        detail=reason,
        hint=f"remove --workers or {other}",
        code="E-WORKERS",
    )


# -- parent ------------------------------------------------------------------------------------------------------------


class _Worker:
    """One worker process from its parent's point of view: number, process, socket and readiness."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: asyncio.subprocess.Process | None = None
        self.link: asyncio.StreamWriter | None = None
        self.ready = asyncio.Event()
        self.task: asyncio.Task[int] | None = None

    def send_signal(self, number: int) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    def send(self, message: bytes) -> None:
        if self.link is not None and not self.link.is_closing():
            self.link.write(message)


class WorkerPool:
    """The workers' parent: binds the address; starts, restarts and stops workers.

    `environ` is the environment of the workers: the environment of this process before secrets were removed from it.
    """

    def __init__(self, count: int, state_dir: StateDir, config_path: str, environ: Mapping[str, str]) -> None:
        self._state_dir = state_dir
        self._config_path = config_path
        self._environ = dict(environ)
        self._workers = [_Worker(number) for number in range(count)]
        self._stopping = asyncio.Event()
        self._folder = ""
        self._port = 0

    async def run(self, host: str, port: int, scheme: str, on_ready: Callable[[str], None]) -> int:
        """Run the workers until a signal stops them, and return the exit code.

        `on_ready` is called with the URL when all workers serve. Raises `ConfigError` if the address cannot be bound.
        """
        if sys.platform == "win32":
            raise NotImplementedError(ONLY_LINUX)
        raise_file_limit()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop)
        loop.add_signal_handler(signal.SIGHUP, self._on_reload)
        with bind_shared(host, port) as bound:
            self._port = bound.getsockname()[1]
            # Not in the state folder: the path of a Unix socket has at most 107 bytes.
            self._folder = tempfile.mkdtemp(prefix="toolway-")
            try:
                return await self._run_workers(f"{scheme}://{format_host(host)}:{self._port}", on_ready)
            finally:
                self._state_dir.remove_running()
                shutil.rmtree(self._folder, ignore_errors=True)

    async def _run_workers(self, url: str, on_ready: Callable[[str], None]) -> int:
        first, *others = self._workers
        try:
            for worker in others:
                worker.task = asyncio.create_task(self._supervise(worker))
            # The first creates the database, and finds out whether the configuration is usable; all other workers wait.
            if (code := await self._start(first)) is not None:
                return code
            await asyncio.wait(
                [asyncio.ensure_future(self._all_ready()), asyncio.ensure_future(self._stopping.wait())],
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not self._stopping.is_set():
                self._state_dir.write_running(RunningGateway(url, os.getpid(), self._config_path))
                on_ready(url)
            await self._stopping.wait()
            return 0
        finally:
            await self._stop_workers()

    async def _all_ready(self) -> None:
        for worker in self._workers:
            await worker.ready.wait()

    async def _start(self, worker: _Worker) -> int | None:
        """Start the first worker. Return its exit code if it ends before it is ready, else None.

        None is returned when the worker serves, or when a signal stops the parent.
        """
        worker.task = asyncio.create_task(self._supervise(worker, may_fail=True))
        waiting = {worker.task, asyncio.create_task(worker.ready.wait()), asyncio.create_task(self._stopping.wait())}
        done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in left - {worker.task}:
            task.cancel()
        return worker.task.result() if worker.task in done else None

    async def _supervise(self, worker: _Worker, *, may_fail: bool = False) -> int:
        """Keep a worker running until the parent stops, restarting it. Return its last exit code.

        With `may_fail`, a worker that ends before it is ready is not started again.
        """
        loop = asyncio.get_running_loop()
        pause = 0.0
        while True:
            began = loop.time()
            code = await self._run_once(worker)
            if self._stopping.is_set() or (may_fail and not worker.ready.is_set()):
                return code
            may_fail = False
            pause = 0.0 if loop.time() - began >= STABLE_AFTER_S else min(MAX_RESTART_PAUSE_S, max(0.5, pause * 2))
            _log.warning(
                "worker %d ended (%s) and is restarting%s",
                worker.number,
                _describe_exit(code),
                f" in {pause:g} s" if pause else "",
            )
            if pause:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._stopping.wait()
            if self._stopping.is_set():
                return code

    async def _run_once(self, worker: _Worker) -> int:
        if sys.platform == "win32":
            raise NotImplementedError(ONLY_LINUX)
        ours, theirs = socket.socketpair()
        place = f"{worker.number}:{theirs.fileno()}:{self._port}:{self._folder}"
        try:
            worker.process = await asyncio.create_subprocess_exec(
                *(sys.executable, *sys.orig_argv[1:]),
                env={**self._environ, WORKER_VARIABLE: place},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C reaches the parent, which stops the workers
            )
        finally:
            theirs.close()
        if self._stopping.is_set():
            worker.send_signal(signal.SIGTERM)
        reader, worker.link = await asyncio.open_unix_connection(sock=ours)
        tasks = [asyncio.create_task(_read_ready(reader, worker)), asyncio.create_task(self._send_go(worker))]
        try:
            return await worker.process.wait()
        finally:
            for task in tasks:
                task.cancel()
            worker.link.close()
            worker.process = worker.link = None

    async def _send_go(self, worker: _Worker) -> None:
        """Allow a worker to use the database, once the first worker has created it."""
        await self._workers[0].ready.wait()
        worker.send(GO_MESSAGE)

    # -- signals ------------------------------------------------------------------------------------------------------

    def _on_reload(self) -> None:
        if sys.platform == "win32":
            raise NotImplementedError(ONLY_LINUX)
        for worker in self._workers:
            worker.send_signal(signal.SIGHUP)

    def _on_stop(self) -> None:
        if self._stopping.is_set():  # a second signal skips all waiting
            for worker in self._workers:
                worker.send_signal(signal.SIGTERM)
        self._stopping.set()

    async def _stop_workers(self) -> None:
        """Drain all workers, worker 0 last, because the others need its servers."""
        self._stopping.set()
        first, *others = self._workers
        first.send(DRAIN_MESSAGE)
        await self._stop(others)
        await self._stop([first])

    async def _stop(self, workers: list[_Worker]) -> None:
        if sys.platform == "win32":
            raise NotImplementedError(ONLY_LINUX)
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        tasks = [worker.task for worker in workers if worker.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_TIMEOUT_S)
        for worker in workers:
            if worker.process is not None:
                _log.error("worker %d did not end within %d s and is killed", worker.number, STOP_TIMEOUT_S)
                worker.send_signal(signal.SIGKILL)
        if tasks:
            await asyncio.wait(tasks)


async def _read_ready(reader: asyncio.StreamReader, worker: _Worker) -> None:
    with suppress(OSError):
        async for line in reader:
            if line == READY_MESSAGE:
                worker.ready.set()


def bind_shared(host: str, port: int) -> socket.socket:
    """Return a socket that reserves the gateway's address for the workers without listening.

    Raises `ConfigError` if the address cannot be bound, or if another program listens there.
    """
    if sys.platform == "win32":
        raise NotImplementedError(ONLY_LINUX)
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        if bound.family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if port:
            # Without SO_REUSEPORT: another gateway with workers at this address would share our connections.
            with socket.socket(bound.family) as probe:
                if probe.family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((host, port))
    except OSError as exc:
        bound.close()
        raise listen_error(host, port, exc) from None
    return bound


def _describe_exit(code: int) -> str:
    if code < 0:
        with suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"


# -- worker ------------------------------------------------------------------------------------------------------------


class ParentLink:
    """A worker's side of the socket shared with its parent."""

    def __init__(self, handle: int, port: int, place: WorkerPlace) -> None:
        self.port = port
        self._place = place
        self._socket = socket.socket(fileno=handle)
        self._socket.setblocking(False)
        os.set_inheritable(handle, False)
        self.is_orphan = False
        self._go = asyncio.Event()
        if place.is_first:
            self._go.set()

    async def wait_turn(self, stop: asyncio.Event) -> None:
        """Wait until the first worker has created the database, or `stop` is set."""
        waiting = [asyncio.create_task(self._go.wait()), asyncio.create_task(stop.wait())]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()

    def watch(self, on_drain: Callable[[], None], on_orphaned: Callable[[], None]) -> None:
        """Call `on_drain` when the parent stops the other workers, and `on_orphaned` when it has ended."""

        def read() -> None:
            try:
                data = self._socket.recv(4096)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                asyncio.get_running_loop().remove_reader(self._socket)
                self.is_orphan = True
                on_orphaned()
                return
            if GO_MESSAGE in data:
                self._go.set()
            if DRAIN_MESSAGE in data:
                on_drain()

        asyncio.get_running_loop().add_reader(self._socket, read)

    def announce_ready(self) -> None:
        with suppress(OSError):
            self._socket.send(READY_MESSAGE)

    def clean_up(self) -> None:
        """Remove the workers' folder if no worker is left and the parent is gone."""
        with suppress(OSError):
            os.unlink(self._place.socket_path)
        if self.is_orphan:
            with suppress(OSError):
                if not any(name.endswith(".http") for name in os.listdir(self._place.folder)):
                    shutil.rmtree(self._place.folder, ignore_errors=True)


def read_worker(environ: dict[str, str] | os._Environ[str]) -> tuple[ClusterOptions, ParentLink] | None:
    """Return this worker's options and link to its parent; None if this is not a worker.

    The environment variable that has them is removed from `environ`, so no server gets it.
    """
    text = environ.pop(WORKER_VARIABLE, None)
    if text is None:
        return None
    number, handle, port, folder = text.split(":", 3)
    from toolway.cluster.options import MAX_CAPACITY, ClusterOptions, WorkerPlace

    place = WorkerPlace(int(number), folder)
    options = ClusterOptions(
        nats_urls=(),
        database_url=f"sqlite:///{folder}/{DATABASE_NAME}",
        tenant_key=StateDir.default(environ).read_sealing_key(),
        node_name=place.name,
        capacity=MAX_CAPACITY if place.is_first else 0,
        worker=place,
    )
    add_private_file(folder)
    return options, ParentLink(int(handle), int(port), place)
