"""A gateway from start to end: what `toolway serve` does.

The file of servers is looked at all the time. A change is taken when it has come to rest and makes sense; only the
servers that changed are touched. A signal ends the gateway in order, a second one at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from toolway.config.formats import Loaded, read
from toolway.config.gateway import GatewaySettings
from toolway.errors import ConfigError
from toolway.gateway.clients import OnlyClients
from toolway.gateway.gateway import DRAIN_DELAY, Gateway
from toolway.gateway.principals import Keyring
from toolway.gateway.selection import Selection
from toolway.gateway.state import Running, State
from toolway.gateway.stdio import own_pipes
from toolway.hub import Hub
from toolway.model import Json

LOOK: Final = 0.5  # seconds between two looks at the file
_log = logging.getLogger("toolway.gateway")


class Serving:
    """One gateway, its file and its state."""

    def __init__(self, loaded: Loaded, state: State, *, auth: bool = True) -> None:
        self._loaded = loaded
        self._state = state
        self._keyring: Keyring | None = state.keyring() if auth else None
        self.hub = Hub(loaded, asks=OnlyClients())
        settings = loaded.gateway
        self.gateway = Gateway(
            self.hub,
            state.key(),
            self._keyring,
            groups=self._groups,
            reload=self.reload,
            hosts=settings.hosts,
            origins=settings.origins,
        )
        self._selections = _selections(settings)
        self._end = asyncio.Event()
        self._hurry = asyncio.Event()

    def _groups(self) -> Mapping[str, Selection]:
        return self._selections

    async def run(
        self, host: str, port: int, tls: ssl.SSLContext | None, on_ready: Callable[[str], None], delay: float
    ) -> None:
        """Serve until a signal. Raises `ConfigError` where the address cannot be had."""
        raise_file_limit()
        self._listen_to_signals()
        async with self.hub:
            try:
                port = await self.gateway.listen(host, port, tls)
            except OSError as exc:
                raise _address(host, port, exc) from None
            url = f"{'https' if tls else 'http'}://{_shown(host)}:{port}"
            self._state.announce(Running(url, os.getpid(), os.path.abspath(self._loaded.file)))
            watching = asyncio.create_task(self._watch_file())
            on_ready(url)
            try:
                await self._end.wait()
                await self.gateway.drain(self._hurry, delay)
            finally:
                watching.cancel()
                self._state.withdraw()

    async def run_on_pipes(self) -> None:
        """Serve the one who started us, until it closes our input or a signal comes."""
        raise_file_limit()
        self._listen_to_signals()
        async with self.hub:
            client = asyncio.create_task(self.gateway.pipe().serve(*own_pipes()))
            ending = asyncio.create_task(self._end.wait())
            await asyncio.wait({client, ending}, return_when=asyncio.FIRST_COMPLETED)
            client.cancel()
            ending.cancel()
            await asyncio.gather(client, ending, return_exceptions=True)
            await self.gateway.listening.close()

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        with suppress(AttributeError):
            loop.add_signal_handler(signal.SIGHUP, lambda: loop.create_task(self._reload_quietly()))

    def stop(self) -> None:
        """End in order; asked twice, at once."""
        if self._end.is_set():
            self._hurry.set()
        self._end.set()

    # -- the file -----------------------------------------------------------------------------------------------------

    async def reload(self) -> Json:
        """Take what the file says now. Raises `ConfigError`, and then everything stays as it was."""
        if self._keyring is not None:
            self._keyring.reload()
        loaded = await asyncio.to_thread(read, self._loaded.file)
        done = await self.hub.apply(loaded)
        self._loaded = loaded
        self._selections = _selections(loaded.gateway)
        self.gateway.app.forget_views()
        return {"changed": done, "problems": [problem.what for problem in loaded.problems]}

    async def _reload_quietly(self) -> None:
        try:
            done = await self.reload()
        except ConfigError as exc:
            _log.error("the configuration was not taken, the old one stays: %s", exc)
        else:
            _log.info("the configuration was read again: %s", done["changed"] or "nothing changed")

    async def _watch_file(self) -> None:
        taken = seen = _stamp(self._loaded.file)
        while True:
            await asyncio.sleep(LOOK)
            if self._keyring is not None:
                with suppress(ConfigError):
                    self._keyring.reload()
            before, seen = seen, _stamp(self._loaded.file)
            if seen not in (taken, None) and seen == before:  # it has changed, and has come to rest
                taken = seen
                await self._reload_quietly()


def _stamp(file: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def _selections(settings: GatewaySettings) -> dict[str, Selection]:
    return {name: Selection(group.tools, group.rename, group.describe) for name, group in settings.groups.items()}


def raise_file_limit() -> None:
    """As many connections as the system lets us have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1_048_576
    if soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def tls_context(certificate: Path, key: Path | None) -> ssl.SSLContext:
    """Raises `ConfigError`."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as exc:
        raise ConfigError(f"the certificate {certificate} cannot be used", evidence=str(exc), code="E-TLS") from None
    return context


def _address(host: str, port: int, exc: OSError) -> ConfigError:
    return ConfigError(
        f"the gateway cannot listen on {_shown(host)}:{port}",
        evidence=exc.strerror or str(exc),
        fix="choose another port with --port, or end what listens there",
        code="E-ADDRESS",
    )


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


__all__ = ["DRAIN_DELAY", "Serving", "raise_file_limit", "tls_context"]
