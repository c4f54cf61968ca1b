"""Starting processes when the system is short of something: it passes, or it costs one start."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from toolway.upstream.process import reaper_spawner as spawner_module
from toolway.upstream.process.spawner import Process, Spawner, SpawnError

pytestmark = pytest.mark.anyio

SHORT = pytest.mark.parametrize("code", [errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM], ids=errno.errorcode.get)


@pytest.fixture
async def spawner() -> AsyncIterator[Spawner]:
    spawner = Spawner()
    yield spawner
    await spawner.close()


async def test_lock_is_held_until_servers_have_exited(tmp_path: Path) -> None:
    def is_locked() -> bool:
        with file.open() as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    file = tmp_path / "lock"
    spawner = Spawner()
    first = await spawner.start(["sleep", "60"], {"PATH": os.environ["PATH"]}, None)
    with file.open("w") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        number = await spawner.hold(opened.fileno())
        second = await spawner.start(["sleep", "60"], {"PATH": os.environ["PATH"]}, None)  # the reaper has the lock
    os.close(spawner._held.pop(number))  # as if this process had been killed
    assert is_locked()
    os.kill(first.pid, signal.SIGKILL)
    await first.exited
    assert is_locked()  # the second one runs
    await spawner.close()
    assert not is_locked()
    with pytest.raises(ProcessLookupError):
        os.kill(second.pid, 0)


class Shortage:
    """The kernel, which refuses `times` orders."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: int, times: int) -> None:
        self.left = times
        self._send = spawner_module._send_command
        self._code = code
        monkeypatch.setattr(spawner_module, "_send_command", self)
        monkeypatch.setattr(spawner_module, "SEND_RETRIES", (5, 0.01))

    def __call__(self, control: object, order: spawner_module._Command) -> int:
        if self.left:
            self.left -= 1
            raise OSError(self._code, os.strerror(self._code))
        return self._send(control, order)  # type: ignore[arg-type]


async def start(spawner: Spawner) -> Process:
    async with asyncio.timeout(10):
        return await spawner.start(["/bin/cat"], {}, None)


async def end(process: Process) -> None:
    for fd in (process.stdin, process.stdout, process.stderr):
        fd.close()
    async with asyncio.timeout(10):
        assert await process.exited == 0


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@SHORT
async def test_temporary_shortage_delays_a_start(code: int, spawner: Spawner, monkeypatch: pytest.MonkeyPatch) -> None:
    shortage = Shortage(monkeypatch, code, 3)
    await end(await start(spawner))
    assert shortage.left == 0


@SHORT
async def test_lasting_shortage_fails_only_its_start(
    code: int, spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    await end(await start(spawner))
    before = descriptors()
    Shortage(monkeypatch, code, 6)
    first, second = await asyncio.gather(start(spawner), start(spawner), return_exceptions=True)
    assert isinstance(first, SpawnError)
    assert first.code == errno.errorcode[code]
    assert isinstance(second, Process)
    await end(second)
    await end(await start(spawner))
    assert descriptors() == before


async def test_kill_order_is_resent_until_it_arrives(spawner: Spawner, monkeypatch: pytest.MonkeyPatch) -> None:
    process = await start(spawner)
    Shortage(monkeypatch, errno.ENOBUFS, 20)
    process.kill_tree()
    async with asyncio.timeout(10):
        assert await process.exited == -9
    for fd in (process.stdin, process.stdout, process.stderr):
        fd.close()
