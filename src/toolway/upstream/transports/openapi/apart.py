"""Reading a large document in a process of its own, and taking what it says piece by piece, so that nobody waits."""

from __future__ import annotations

import asyncio
import os
import selectors
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

import toolway
from toolway.addresses.aside import in_thread
from toolway.openapi import program
from toolway.openapi.choice import Choice
from toolway.openapi.operation import Document, Operation
from toolway.openapi.problems import BadDocument
from toolway.upstream.process import environment
from toolway.upstream.process.spawn import Process, Spawner, SpawnFailed

LARGE: Final = 200_000  # bytes; a smaller document is read sooner than a process is started
MOST: Final = 256 << 20  # bytes of what is said of a document
BREATH: Final = 0.0002  # seconds: long enough for the loop to take its turn
_PIECE: Final = 256 * 1024
_TURN: Final = 10  # operations between two breaths


class NotApart(Exception):
    """There is no such process here, or it ended without a word."""


class _Answer(msgspec.Struct):
    reason: str = ""
    fix: str = ""
    document: Document | None = None
    count: int = 0  # of operations that follow


async def read_apart(
    data: bytes, where: str, choose: Choice, given: frozenset[str], spawner: Spawner, environ: Mapping[str, str]
) -> Document:
    """Raises `BadDocument` or `NotApart`."""
    words = [sys.executable, "-I", program.__file__, str(Path(toolway.__file__).parent.parent)]
    try:
        process = await spawner.start(words, environment.build(environ, "none", {}), None)
    except SpawnFailed as exc:
        raise NotApart(exc.code) from None
    head = msgspec.json.encode([where, choose, sorted(given)]) + b"\n"
    work = in_thread(_exchanged, process, head + data)
    try:
        document = await asyncio.shield(work)
        code = await process.exited
    except asyncio.CancelledError:
        work.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise
    finally:
        process.end()  # the thread sees the end of its pipes, and closes them
    if code < 0:  # by a limit of the system: here it would not end better
        raise BadDocument(
            f"{where} takes too long, or too much memory, to be read", fix="keep only what you need of it"
        )
    if document is None or code != 0:
        raise NotApart(f"exit code {code}")
    return document


def _exchanged(process: Process, request: bytes) -> Document | None:
    """What the process says; None where it says nothing whole. Raises `BadDocument`."""
    return _decoded(_answered(process, memoryview(request)))


def _answered(process: Process, request: memoryview) -> bytes:
    """Writes and reads at the same time, and closes the pipes. What is said on stderr is nobody's concern."""
    said = bytearray()
    pipes = {process.stdin, process.stdout, process.stderr}
    selector = selectors.DefaultSelector()

    def close(fd: int) -> None:
        selector.unregister(fd)
        pipes.discard(fd)
        os.close(fd)

    try:
        for fd in pipes:
            selector.register(fd, selectors.EVENT_WRITE if fd == process.stdin else selectors.EVENT_READ)
        while process.stdout in pipes and len(said) <= MOST:
            for key, _ in selector.select():
                if key.fd == process.stdin:
                    request = _written(key.fd, request)
                    if not request:
                        close(key.fd)
                    continue
                piece = _read(key.fd)
                if key.fd == process.stdout:
                    said += piece
                if not piece:
                    close(key.fd)
    finally:
        for fd in tuple(pipes):
            close(fd)
        selector.close()
    return bytes(said)


def _written(fd: int, request: memoryview) -> memoryview:
    """What is left to write: nothing, where nobody reads any more."""
    try:
        return request[os.write(fd, request[:_PIECE]) :]
    except BlockingIOError:
        return request
    except OSError:
        return request[:0]


def _read(fd: int) -> bytes:
    while True:
        try:
            return os.read(fd, _PIECE)
        except BlockingIOError:
            time.sleep(BREATH)
        except OSError:
            return b""


def _decoded(answer: bytes) -> Document | None:
    frames = _frames(answer)
    try:
        first = msgspec.json.decode(next(frames, b""), type=_Answer)
        decode = msgspec.json.Decoder(Operation).decode
        operations = []
        for number, frame in enumerate(frames):
            operations.append(decode(frame))
            if number % _TURN == 0:
                time.sleep(BREATH)
    except msgspec.DecodeError:
        return None
    if first.reason:
        raise BadDocument(first.reason, fix=first.fix)
    if first.document is None or first.count != len(operations):
        return None
    return replace(first.document, operations=tuple(operations))


def _frames(answer: bytes) -> Iterator[bytes]:
    """The frames; one that is cut off is none, and spoils them all."""
    at = 0
    while at < len(answer):
        size = int.from_bytes(answer[at : at + 4], "big")
        yield answer[at + 4 : at + 4 + size] if at + 4 + size <= len(answer) else b""
        at += 4 + size
