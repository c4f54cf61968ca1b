"""Our side of the keeper: ask for a process, hear of its end.

One `Spawner` belongs to one hub. It starts its keeper with the first process, and a new one if the keeper should die.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolway.upstream.process import keeper

KILL_WAIT = 1.0  # after SIGKILL, for the news of the end to arrive
SHORT = frozenset({errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM})  # the system lacks something just now
SHORT_TRIES = (20, 0.05)  # how often an order is sent again then, and the seconds in between


class SpawnFailed(Exception):
    """The process could not be started. `code` is the name of the errno, such as ENOENT."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(slots=True)
class Process:
    """A server's process: our ends of its pipes, and its end."""

    pid: int
    stdin: int
    stdout: int
    stderr: int
    exited: asyncio.Future[int]  # the exit code; negative for a signal, as `subprocess` has it
    _spawner: Spawner
    _id: int

    def signal_group(self, signum: int) -> None:
        self._spawner.order({"op": "signal", "id": self._id, "signal": int(signum)})

    def end(self) -> None:
        """Kill the process, its group and all it left behind, at once."""
        self._spawner.order({"op": "end", "id": self._id})

    async def stop(self, eof: float, term: float) -> int | None:
        """Wait `eof` seconds for it to end by itself, ask its group to terminate, wait `term`, then kill."""
        for grace, step in ((eof, None), (term, signal.SIGTERM)):
            if step is not None:
                self.signal_group(step)
            done, _ = await asyncio.wait({self.exited}, timeout=grace)
            if done:
                return self.exited.result()
        self.end()
        done, _ = await asyncio.wait({self.exited}, timeout=KILL_WAIT)
        return self.exited.result() if done else None


@dataclass(slots=True)
class _Order:
    """What the keeper is still to be sent."""

    data: bytes
    fds: tuple[int, ...]
    start: int | None  # the number of the start that this is
    tries: int = 0


class Spawner:
    """Starts processes through a keeper."""

    def __init__(self, runtime_dir: Path | None = None) -> None:
        self._runtime_dir = runtime_dir
        self._keeper: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._inbox = b""
        self._outbox: list[_Order] = []
        self._started: dict[int, asyncio.Future[int]] = {}
        self._exited: dict[int, asyncio.Future[int]] = {}
        self._last_id = 0

    async def start(self, argv: Sequence[str], env: Mapping[str, str], cwd: str | None) -> Process:
        """Start `argv`. Raises `SpawnFailed`."""
        loop = asyncio.get_running_loop()
        self._ensure_keeper(loop)
        assert self._keeper is not None
        self._last_id += 1
        number = self._last_id
        started: asyncio.Future[int] = loop.create_future()
        exited: asyncio.Future[int] = loop.create_future()
        try:
            theirs, ours = _pipes()
        except OSError as exc:
            raise SpawnFailed("EMFILE", str(exc)) from None
        self._started[number], self._exited[number] = started, exited
        order = {
            "op": "spawn",
            "id": number,
            "keeper": self._keeper.pid,
            "argv": list(argv),
            "env": {**env, keeper.TAG: secrets.token_hex(16)},
            "cwd": cwd,
        }
        self._send(order, theirs, number)
        try:
            pid = await started
        except BaseException as exc:
            _close(ours)
            self._exited.pop(number, None)
            if isinstance(exc, asyncio.CancelledError):
                self.order({"op": "end", "id": number})
            raise
        finally:
            self._started.pop(number, None)
        return Process(pid, *ours, exited, self, number)

    def order(self, order: dict[str, Any]) -> None:
        """Send an order; without a keeper there is nothing left that could obey, or need to."""
        if self._control is not None:
            self._send(order)

    async def close(self) -> None:
        """Let the keeper go; it ends whatever is still there."""
        keeper_process, self._keeper = self._keeper, None
        self._drop_control("the hub is closing")
        if keeper_process is not None:
            await _wait_for(keeper_process)

    # -- the keeper ---------------------------------------------------------------------------------------------------

    def _ensure_keeper(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._control is not None:
            return
        if not hasattr(os, "fork"):
            raise SpawnFailed("ENOSYS", "servers that are commands need Linux or macOS")
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._keeper = subprocess.Popen(
                    [sys.executable, "-I", "-S", keeper.__file__, str(theirs.fileno()), self._folder()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,  # a signal to our group must not take the keeper with us
                )
            except OSError as exc:
                ours.close()
                raise SpawnFailed("EAGAIN", f"the keeper could not be started: {exc}") from None
        ours.setblocking(False)
        self._control, self._inbox, self._outbox = ours, b"", []
        loop.add_reader(ours, self._receive)

    def _folder(self) -> str:
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
            self._drop_control("the keeper ended")
            self._bury_keeper()
            return
        *lines, self._inbox = (self._inbox + data).split(b"\n")
        for line in lines:
            self._hear(json.loads(line))

    def _hear(self, fact: dict[str, Any]) -> None:
        number = fact["id"]
        if "exit" in fact:
            _settle(self._exited.pop(number, None), fact["exit"])
        elif "pid" in fact:
            _settle(self._started.get(number), fact["pid"])
        else:
            self._exited.pop(number, None)
            _settle(self._started.get(number), SpawnFailed(fact["error"], fact["text"]))

    def _drop_control(self, reason: str) -> None:
        control, self._control = self._control, None
        if control is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(control)
            loop.remove_writer(control)
            control.close()
        for order in self._outbox:
            _close(order.fds)
        self._outbox = []
        for future in self._started.values():
            _settle(future, SpawnFailed("EPIPE", reason))
        for future in list(self._exited.values()):
            _settle(future, -signal.SIGKILL)  # without its keeper a process is killed by the kernel
        self._exited.clear()

    def _bury_keeper(self) -> None:
        keeper_process, self._keeper = self._keeper, None
        if keeper_process is not None:
            keeper_process.kill()  # it closed its socket, so it is gone or going
            keeper_process.wait()

    def _send(self, order: dict[str, Any], fds: tuple[int, ...] = (), start: int | None = None) -> None:
        self._outbox.append(_Order(json.dumps(order).encode() + b"\n", fds, start))
        if len(self._outbox) == 1:
            self._flush()

    def _flush(self) -> None:
        if self._control is None:
            return
        loop = asyncio.get_running_loop()
        while self._outbox:
            order = self._outbox[0]
            try:
                sent = _send_to(self._control, order)
            except BlockingIOError:
                loop.add_writer(self._control, self._flush)
                return
            except OSError as exc:
                loop.remove_writer(self._control)
                if exc.errno in SHORT:
                    self._put_off(order, exc)
                return  # else the keeper is gone; the reader hears of it
            _close(order.fds)
            if sent == len(order.data):
                self._outbox.pop(0)
            else:
                order.data, order.fds, order.start = order.data[sent:], (), None
        loop.remove_writer(self._control)

    def _put_off(self, order: _Order, exc: OSError) -> None:
        """Try again in a moment. A start that cannot be sent for long fails, and it alone; the rest must arrive."""
        most, pause = SHORT_TRIES
        order.tries += 1
        if order.start is not None and order.tries > most:
            self._outbox.pop(0)
            _close(order.fds)
            self._exited.pop(order.start, None)
            _settle(self._started.get(order.start), SpawnFailed(errno.errorcode[exc.errno or 0], str(exc)))
        asyncio.get_running_loop().call_later(pause, self._flush)


def _send_to(control: socket.socket, order: _Order) -> int:
    return socket.send_fds(control, [order.data], order.fds) if order.fds else control.send(order.data)


def _pipes() -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Three pipes: (their ends, our ends), each as (stdin, stdout, stderr)."""
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


def _settle(future: asyncio.Future[int] | None, outcome: int | SpawnFailed) -> None:
    if future is None or future.done():
        return
    if isinstance(outcome, SpawnFailed):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


async def _wait_for(process: subprocess.Popen[bytes], limit: float = 2.0) -> None:
    """Reap the keeper without a thread; kill it if it does not end in time (its children die with it)."""
    end = asyncio.get_running_loop().time() + limit
    while process.poll() is None:
        if asyncio.get_running_loop().time() > end:
            process.kill()
            process.wait()
            return
        await asyncio.sleep(0.005)
