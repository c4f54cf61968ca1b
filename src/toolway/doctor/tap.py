"""Listening in on the pipes of a server: when it first spoke, and what it wrote to stdout that is no message.

The link of the server is the one that calls use, untouched. Its stdout goes through a pipe of ours on the way.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from toolway.protocol import wire
from toolway.protocol.shown import clean_text
from toolway.upstream.process.spawn import Process, Spawner

READ_SIZE: Final = 64 * 1024
KEPT: Final = 5  # lines of noise; the first is what matters
LINE: Final = 2000  # bytes of one that are looked at
WAITING: Final = 8 * READ_SIZE  # bytes that are not passed on yet, after which nothing more is read


@dataclass(slots=True)
class Heard:
    """What came from a server's process, in seconds of the loop's clock."""

    pid: int | None = None
    spawned: float | None = None
    first_byte: float | None = None
    noise: list[str] = field(default_factory=list)
    noisy: int = 0  # lines that were no messages


class Tapped(Spawner):
    """Starts the process of one server with the spawner of all, and listens in on its stdout."""

    def __init__(self, real: Spawner) -> None:
        super().__init__()
        self.heard = Heard()
        self._real = real
        self._taps: list[_Tap] = []

    async def start(self, argv: Sequence[str], env: Mapping[str, str], cwd: str | None) -> Process:
        process = await self._real.start(argv, env, cwd)
        loop = asyncio.get_running_loop()
        self.heard.pid, self.heard.spawned = process.pid, loop.time()
        reader, writer = os.pipe()
        for fd in (reader, writer):
            os.set_blocking(fd, False)
        self._taps.append(_Tap(loop, process.stdout, writer, self.heard))
        return replace(process, stdout=reader)

    async def close(self) -> None:
        for tap in self._taps:
            tap.close()


class _Tap:
    """Carries bytes from one pipe to another."""

    def __init__(self, loop: asyncio.AbstractEventLoop, source: int, sink: int, heard: Heard) -> None:
        self._loop = loop
        self._source, self._sink = source, sink
        self._heard = heard
        self._waiting = bytearray()
        self._line = bytearray()
        self._ended = False
        self._closed = False
        loop.add_reader(source, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._source, READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._source)
            self._ended = True
        else:
            self._listen(data)
            self._waiting += data
        self._write()

    def _write(self) -> None:
        try:
            while self._waiting:
                del self._waiting[: os.write(self._sink, self._waiting[:READ_SIZE])]
        except BlockingIOError:
            self._loop.add_writer(self._sink, self._write)
            if len(self._waiting) > WAITING:
                self._loop.remove_reader(self._source)
            return
        except OSError:
            self._waiting.clear()  # nobody reads any more
        self._loop.remove_writer(self._sink)
        if self._ended:
            self.close()
        else:
            self._loop.add_reader(self._source, self._read)

    def _listen(self, data: bytes) -> None:
        if self._heard.first_byte is None:
            self._heard.first_byte = self._loop.time()
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._line += line
            self._judge(bytes(self._line))
            self._line.clear()
        self._line += rest

    def _judge(self, line: bytes) -> None:
        """A line is noise where no message can be read from it."""
        if not line.strip() or wire.is_heavy(line):
            return
        try:
            wire.parse(line)
        except wire.BadMessage:
            self._heard.noisy += 1
            if len(self._heard.noise) < KEPT:
                self._heard.noise.append(clean_text(line[:LINE].decode(errors="replace"), 200).strip())

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._source)
        self._loop.remove_writer(self._sink)
        for fd in (self._source, self._sink):
            with contextlib.suppress(OSError):
                os.close(fd)
