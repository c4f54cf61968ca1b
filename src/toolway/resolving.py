"""Secrets are fetched when the server that names them starts, and for it alone.

A `LateLink` stands before the real one until then. What is fetched is remembered as secret (`secrets/known.py`), put
into the definition that this one link is made from, and kept nowhere else: the next start fetches it again.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import stat
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar, cast

from toolway.config.expand import expand_home
from toolway.config.references import Reference
from toolway.config.secrets import filled, references
from toolway.config.spec import Server
from toolway.errors import ConfigError, ToolwayError
from toolway.model import Certainty, Era, Json
from toolway.secrets import SecretsError, open_store, remember
from toolway.upstream.link import Fault, Inbound, Link, LinkFacts, Loss, Request
from toolway.upstream.process import environment
from toolway.upstream.process.spawn import Process, Spawner, SpawnFailed

LONGEST: Final = 64 * 1024  # bytes of a secret
COMMAND_TIME: Final = 10.0  # seconds in which a command must give it
STORE_TIME: Final = 35.0  # the same for the store: a keychain gives up earlier
T = TypeVar("T")


async def resolved(server: Server, environ: Mapping[str, str], spawner: Spawner) -> Server:
    """The server with its secrets. Raises `ToolwayError`, in which there is none."""
    wanted = references(server)
    values = await asyncio.gather(*(_fetched(reference, environ, spawner) for reference in wanted))
    for value in values:
        remember(value)
    return filled(server, dict(zip(wanted, values, strict=True)))


async def _fetched(reference: Reference, environ: Mapping[str, str], spawner: Spawner) -> str:
    if reference.kind == "command":
        value = await _of_command(reference, environ, spawner)
    elif reference.kind == "file":
        value = await _aside(lambda: _of_file(reference, environ))
    else:
        value = await _aside(lambda: _of_store(reference, environ))
    if not value:
        raise _missing(reference, "it is empty")
    return value


def _of_store(reference: Reference, environ: Mapping[str, str]) -> str:
    value = open_store(environ).get(reference.what)
    if value is None:
        raise _missing(reference, "there is no secret of that name", f"toolway secrets set {reference.what}")
    return value


def _of_file(reference: Reference, environ: Mapping[str, str]) -> str:
    """The content of a file, without the line break at its end."""
    path = expand_home(reference.what, environ)
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _missing(reference, "it is no ordinary file")
            return _text(reference, file.read(LONGEST + 1))
    except OSError as exc:
        raise _missing(reference, exc.strerror or type(exc).__name__) from None


async def _of_command(reference: Reference, environ: Mapping[str, str], spawner: Spawner) -> str:
    """What a command writes to stdout. It is a process like any server's: it cannot outlive us. Nothing of what it
    writes is ever repeated, as it may be the secret."""
    try:
        process = await spawner.start(shlex.split(reference.what), environment.build(environ, "inherit", {}), None)
    except SpawnFailed as exc:
        raise _missing(reference, f"it cannot be started: {exc.code}") from None
    try:
        async with asyncio.timeout(COMMAND_TIME):
            os.close(process.stdin)
            data = await _output(process)
            code = await process.exited if len(data) <= LONGEST else 0
    except TimeoutError:
        raise _missing(reference, f"it did not end within {COMMAND_TIME:.0f} s") from None
    finally:
        process.end()
        os.close(process.stdout)
        os.close(process.stderr)
    if code != 0:
        raise _missing(reference, f"it ended with exit code {code}", f"run it: {reference.what}")
    return _text(reference, data)


async def _output(process: Process) -> bytes:
    """What comes on stdout, and a byte more than is allowed at most; stderr is thrown away."""
    loop = asyncio.get_running_loop()
    whole: asyncio.Future[None] = loop.create_future()
    data = bytearray()

    def on_stdout() -> None:
        piece = os.read(process.stdout, LONGEST)
        data.extend(piece)
        if not whole.done() and (not piece or len(data) > LONGEST):
            whole.set_result(None)

    def on_stderr() -> None:
        if not os.read(process.stderr, LONGEST):
            loop.remove_reader(process.stderr)

    loop.add_reader(process.stdout, on_stdout)
    loop.add_reader(process.stderr, on_stderr)
    try:
        await whole
    finally:
        loop.remove_reader(process.stdout)
        loop.remove_reader(process.stderr)
    return bytes(data)


def _text(reference: Reference, data: bytes) -> str:
    if len(data) > LONGEST:
        raise _missing(reference, f"it is longer than {LONGEST} bytes")
    try:
        return data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise _missing(reference, "it is not UTF-8 text") from None


async def _aside(work: Callable[[], T]) -> T:
    """In a thread that nobody waits for at the end: a keychain may ask a person, who is not there."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: ToolwayError | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(cast(T, result))

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except ToolwayError as exc:
            error = exc
        with suppress(RuntimeError):  # the loop is closed, and so is whoever asked
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="secret", daemon=True).start()
    try:
        return await asyncio.wait_for(done, STORE_TIME)
    except TimeoutError:
        raise SecretsError("the store of secrets did not answer", fix="unlock the keychain") from None


def _missing(reference: Reference, evidence: str, fix: str = "") -> ConfigError:
    return ConfigError(
        f"the secret {reference} cannot be had",
        evidence=evidence,
        fix=fix or "correct the reference in the server's entry",
        code="E-SECRETS-MISSING",
    )


class LateLink:
    """The link of a server that names secrets: made when it is opened. Afterwards calls go to the real one at once."""

    request: Callable[[Request], Coroutine[Any, Any, Json]]
    notify: Callable[[str, Json], Coroutine[Any, Any, None]]

    def __init__(self, make: Callable[[], Awaitable[Link]]) -> None:
        self._make = make
        self._link: Link | None = None

    async def open(self, inbound: Inbound) -> None:
        try:
            self._link = link = await self._make()
        except ToolwayError as exc:
            reason = f"{exc.what}: {exc.evidence}" if exc.evidence else exc.what
            raise Fault(reason, Certainty.C0, code=exc.code, fix=exc.fix) from None
        self.request, self.notify = link.request, link.notify
        await link.open(inbound)

    def adopt(self, era: Era, version: str) -> None:
        assert self._link is not None
        self._link.adopt(era, version)

    def forget_session(self) -> None:
        assert self._link is not None
        self._link.forget_session()

    async def wait_lost(self) -> Loss:
        assert self._link is not None
        return await self._link.wait_lost()

    def facts(self) -> LinkFacts:
        return self._link.facts() if self._link is not None else LinkFacts()

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()
