"""Resolves secret references and unset variables when a server starts, for that server only.

Until then, a `DeferredTransport` stands in for the real transport. A fetched secret is registered for masking
(`secrets/detection.py`) and put into this one transport's definition. It is stored nowhere else, so the next start
fetches it again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import stat
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeVar, cast

from toolway._os import O_NONBLOCK
from toolway.config.dotenv import read_env_file
from toolway.config.field_reader import unset_variables_error
from toolway.config.schema import Server
from toolway.config.secret_refs import SecretRef, SecretTemplate, find_unset_variables, substitute_variables
from toolway.config.secrets import list_secret_refs, substitute_secrets
from toolway.config.variables import expand_home
from toolway.errors import ConfigError, ToolwayError
from toolway.secrets import SecretsError, is_harmless_value, looks_like_secret, open_store, remember_secret
from toolway.types import Certainty, Era, Json
from toolway.upstream.process.pipes import read_all
from toolway.upstream.process.spawner import Spawner, SpawnError, build_environment
from toolway.upstream.transport import Disconnect, InboundHandler, Request, Transport, TransportError, TransportInfo

MAX_SECRET_BYTES: Final = 64 * 1024  # of a secret
COMMAND_TIMEOUT_S: Final = 10.0  # for a command that prints a secret
STORE_TIMEOUT_S: Final = 35.0  # for the secret store; longer than the timeout of a keychain
T = TypeVar("T")
_log = logging.getLogger("toolway.config")


async def resolve_secrets(
    server: Server,
    environ: Mapping[str, str],
    spawner: Spawner,
    on_secret: Callable[[str], None] = lambda value: None,
) -> Server:
    """Return the server's definition with variables and secret references replaced by their values.

    `on_secret` is called with the value of each reference. Raises `ToolwayError`, which contains no secret, if a
    value is not available.
    """
    server = await _resolve_variables(server, environ)
    references_found = list_secret_refs(server)
    values = await asyncio.gather(*(_fetch_secret(reference, environ, spawner) for reference in references_found))
    for value in values:
        remember_secret(value)
        on_secret(value)
    return substitute_secrets(server, dict(zip(references_found, values, strict=True)))


async def resolve_text(text: str, key: str, environ: Mapping[str, str], spawner: Spawner) -> str:
    """Return a config string with its variables and secret references replaced by their values.

    `key` is the name of the setting, for messages. The result is masked in output from now on. Raises `ToolwayError`
    if a value is not available.
    """
    text = _substitute_now(text, environ, key)
    if isinstance(text, SecretTemplate):
        values = {ref: await _fetch_secret(ref, environ, spawner) for ref in text.references}
        for value in values.values():
            remember_secret(value)
        text = "".join(part if isinstance(part, str) else values[part] for part in text.parts)
    if text:
        remember_secret(text)
    return text


async def _resolve_variables(server: Server, environ: Mapping[str, str]) -> Server:
    """Return the server's definition with its `env_file` loaded and all variables replaced.

    The environment is read again, because a variable may have been set since the configuration was loaded. Raises
    `ConfigError` if the file cannot be used or a variable is still not set.
    """
    values: Mapping[str, str] = environ
    if server.env_file is not None:
        path = os.path.expanduser(_substitute_now(server.env_file, environ, "envFile"))
        file = await _run_in_daemon_thread(lambda: read_env_file(path))
        if file.bad_lines:
            _log.warning("%s: %d lines are not NAME=value, the first is line %d", path, *_count(file.bad_lines))
        for name, value in file.values.items():
            if not is_harmless_value(name, value):
                remember_secret(value)
        values = {**file.values, **environ}
        server = replace(server, env_file=None, env={**file.values, **server.env})
    return _substitute_now(server, values)


def _substitute_now(value: T, values: Mapping[str, str], path: str = "") -> T:
    unset = find_unset_variables(value, path)
    if missing := {name: key for name, key in unset.items() if name not in values}:
        raise unset_variables_error(missing)
    for name in unset:
        in_env = unset[name].startswith("env.")
        if looks_like_secret(name, values[name]) or (in_env and not is_harmless_value(name, values[name])):
            remember_secret(values[name])
    return substitute_variables(value, values)


def _count(lines: tuple[int, ...]) -> tuple[int, int]:
    return len(lines), lines[0]


async def _fetch_secret(reference: SecretRef, environ: Mapping[str, str], spawner: Spawner) -> str:
    if reference.kind == "command":
        value = await _run_secret_command(reference, environ, spawner)
    elif reference.kind == "file":
        value = await _run_in_daemon_thread(lambda: _read_from_file(reference, environ))
    else:
        value = await _run_in_daemon_thread(lambda: _read_from_store(reference, environ))
    if not value:
        raise _secret_error(reference, "the secret is empty")
    return value


def _read_from_store(reference: SecretRef, environ: Mapping[str, str]) -> str:
    value = open_store(environ).get(reference.target)
    if value is None:
        raise _secret_error(reference, "unknown secret name", f"toolway secrets set {reference.target}")
    return value


def _read_from_file(reference: SecretRef, environ: Mapping[str, str]) -> str:
    """Read a secret from a file, without the final line break."""
    path = expand_home(reference.target, environ)
    try:
        with open(os.open(path, os.O_RDONLY | O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _secret_error(reference, "not a regular file")
            return _decode_secret(reference, file.read(MAX_SECRET_BYTES + 1))
    except OSError as exc:
        raise _secret_error(reference, exc.strerror or type(exc).__name__) from None


async def _run_secret_command(reference: SecretRef, environ: Mapping[str, str], spawner: Spawner) -> str:
    """Run a secret reference's command and return its stdout, which is the secret.

    It runs through the reaper like a server, so it cannot outlive this process. Its output is never shown, because it
    may be the secret. Raises `ConfigError` if the command fails or runs longer than 10 s.
    """
    try:
        process = await spawner.start(shlex.split(reference.target), build_environment(environ, "inherit", {}), None)
    except SpawnError as exc:
        raise _secret_error(reference, f"the command cannot be started: {exc.code}") from None
    try:
        async with asyncio.timeout(COMMAND_TIMEOUT_S):
            process.stdin.close()
            process.stderr.start(lambda _: None)
            data = await read_all(process.stdout, MAX_SECRET_BYTES)
            code = await process.exited if len(data) <= MAX_SECRET_BYTES else 0
    except TimeoutError:
        raise _secret_error(reference, f"the command did not end within {COMMAND_TIMEOUT_S:.0f} s") from None
    finally:
        process.kill_tree()
        process.stdout.close()
        process.stderr.close()
    if code != 0:
        raise _secret_error(reference, f"the command ended with exit code {code}", f"run it: {reference.target}")
    return _decode_secret(reference, data)


def _decode_secret(reference: SecretRef, data: bytes) -> str:
    if len(data) > MAX_SECRET_BYTES:
        raise _secret_error(reference, f"the secret is longer than {MAX_SECRET_BYTES} bytes")
    try:
        return data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise _secret_error(reference, "the secret is not UTF-8 text") from None


async def _run_in_daemon_thread(work: Callable[[], T]) -> T:
    """Run `work` in a daemon thread and return its result. Raises `SecretsError` after 35 s.

    The interpreter does not wait for this thread when it exits, because a keychain may be waiting for a user who is
    away.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def deliver(result: T | None, error: ToolwayError | None) -> None:
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
        with suppress(RuntimeError):  # the loop is closed, so no caller waits
            loop.call_soon_threadsafe(deliver, result, error)

    threading.Thread(target=run, name="secret", daemon=True).start()
    try:
        return await asyncio.wait_for(done, STORE_TIMEOUT_S)
    except TimeoutError:
        raise SecretsError("the secret store did not respond", hint="unlock the keychain") from None


def _secret_error(reference: SecretRef, detail: str, hint: str = "") -> ConfigError:
    return ConfigError(
        f"secret {reference} is not available",
        detail=detail,
        hint=hint or "fix the reference in the server's entry",
        code="E-SECRETS-MISSING",
    )


class DeferredTransport:
    """Transport for a server with secret references. It creates the real transport in `open()`.

    After that, requests go directly to the real transport.
    """

    request: Callable[[Request], Coroutine[Any, Any, Json]]
    notify: Callable[[str, Json], Coroutine[Any, Any, None]]

    def __init__(self, create: Callable[[], Awaitable[Transport]]) -> None:
        self._create = create
        self._transport: Transport | None = None

    async def open(self, inbound: InboundHandler) -> None:
        try:
            self._transport = transport = await self._create()
        except ToolwayError as exc:
            reason = f"{exc.message}: {exc.detail}" if exc.detail else exc.message
            raise TransportError(reason, Certainty.NOT_SENT, code=exc.code, hint=exc.hint) from None
        self.request, self.notify = transport.request, transport.notify
        await transport.open(inbound)

    def set_protocol(self, era: Era, version: str) -> None:
        assert self._transport is not None
        self._transport.set_protocol(era, version)

    def reset_session(self) -> None:
        assert self._transport is not None
        self._transport.reset_session()

    async def wait_closed(self) -> Disconnect:
        assert self._transport is not None
        return await self._transport.wait_closed()

    def info(self) -> TransportInfo:
        return self._transport.info() if self._transport is not None else TransportInfo()

    async def close(self) -> None:
        if self._transport is not None:
            await self._transport.close()
