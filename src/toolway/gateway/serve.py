"""A gateway from start to end: what `toolway serve` does.

The file of servers is looked at all the time. A change is taken when it has come to rest and makes sense; only the
servers that changed are touched. A signal ends the gateway in order, a second one at once.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import os
import resource
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from toolway.config.formats import Loaded, read
from toolway.config.gateway import GatewaySettings
from toolway.config.mask import masker
from toolway.errors import ConfigError
from toolway.gateway.clients import OnlyClients
from toolway.gateway.desk import Doctor
from toolway.gateway.escalating import Escalator
from toolway.gateway.files import Files
from toolway.gateway.gateway import DRAIN_DELAY, Gateway
from toolway.gateway.principals import KnownKeys
from toolway.gateway.relay import START_TIME
from toolway.gateway.selection import Selection
from toolway.gateway.state import Running, State
from toolway.gateway.stdio import own_pipes
from toolway.gateway.telemetry import Telemetry
from toolway.hub import Hub
from toolway.model import Json

if TYPE_CHECKING:
    from toolway.gateway.replica.options import ClusterOptions
    from toolway.gateway.replica.replica import Replica

LOOK: Final = 0.5  # seconds between two looks at the file
_log = logging.getLogger("toolway.gateway")


class Serving:
    """One gateway, its file and its state."""

    def __init__(
        self,
        loaded: Loaded,
        state: State,
        *,
        auth: bool = True,
        doctor: Doctor | None = None,
        cluster: ClusterOptions | None = None,
    ) -> None:
        self._file = self._loaded = loaded  # what was read last, and what is in use; in a cluster they may differ
        self._state = state
        self._replica = _replica(cluster, state, auth=auth) if cluster is not None else None
        self._keyring = _keyring(state, self._replica) if auth else None
        settings = loaded.gateway
        audit = settings.audit.in_folder(state.folder) if settings.audit is not None else None
        if audit is not None and cluster is not None:
            audit = audit.in_cluster(cluster.key)
        if self._replica is None:
            self.hub = Hub(loaded, asks=OnlyClients(), audit=audit)
        else:
            self.hub = Hub({}, asks=OnlyClients(), audit=audit, **self._replica.parts)
        self.telemetry = Telemetry(settings.telemetry, os.environ)
        self.telemetry.listen_to(self.hub)
        self._escalator = _escalator(loaded, state, self.hub)
        self.gateway = Gateway(
            self.hub,
            cluster.key if cluster is not None else state.key(),
            self._keyring,
            groups=self._groups,
            commands=lambda: self._loaded.gateway.commands,
            reload=self.reload,
            files=Files(lambda: self._loaded, self.reload, os.environ) if loaded.file else None,
            doctor=doctor,
            hosts=settings.hosts,
            origins=settings.origins,
            metrics=self.telemetry.metrics,
            rates=self._replica.rates if self._replica is not None else None,
        )
        if not settings.telemetry.calls:
            self.hub.unlisten(self.gateway.watch)
        self._selections = _selections(settings)
        self._end = asyncio.Event()
        self._hurry = asyncio.Event()
        self._reading = asyncio.Lock()  # one look at the file at a time, whoever asked for it
        self._reloads: set[asyncio.Task[None]] = set()
        self._complaint = ""  # about the file of API keys

    @property
    def node(self) -> str:
        """What this gateway is called in its cluster; nothing where it is alone."""
        return self._replica.id if self._replica is not None else ""

    @property
    def _own_file(self) -> str:
        """Nothing where there is none, in a cluster whose record knows all."""
        return os.path.abspath(self._file.file) if self._file.file else ""

    def _groups(self) -> Mapping[str, Selection]:
        return self._selections

    async def run(
        self, host: str, port: int, tls: ssl.SSLContext | None, on_ready: Callable[[str], None], delay: float
    ) -> None:
        """Serve until a signal. Raises `ConfigError` where the address cannot be had."""
        if self._keyring is None and not _is_ours_alone(host):
            raise _open_to_all(host)
        raise_file_limit()
        self._listen_to_signals()
        _check_address(host, port)  # before any server is started in vain
        if self._escalator is not None:
            self._escalator.start()
        async with self._in_cluster(host, port, tls), self.hub:
            self.telemetry.start()
            await self._begin_in_cluster()
            try:
                port = await self.gateway.listen(host, port, tls)
            except OSError as exc:
                raise _address(host, port, exc) from None
            await self._join_cluster(host, port, tls)
            url = f"{'https' if tls else 'http'}://{_shown(host)}:{port}"
            self._state.announce(Running(url, os.getpid(), self._own_file))
            watching = asyncio.create_task(self._watch_file())
            starting = asyncio.create_task(self._set_start_aside())
            on_ready(url)
            try:
                await self._end.wait()
                watching.cancel()
                await self._end_in_order(delay)
            finally:
                watching.cancel()
                starting.cancel()
                self._state.withdraw()
                if self._escalator is not None:
                    await self._escalator.close()
                await self.telemetry.close()

    async def _end_in_order(self, delay: float) -> None:
        leaving = asyncio.create_task(self._replica.leave()) if self._replica is not None else None
        await self.gateway.drain(self._hurry, delay)
        if leaving is not None:
            if self._hurry.is_set():
                leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)

    # -- as one of several --------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _in_cluster(self, host: str, port: int, tls: ssl.SSLContext | None) -> AsyncIterator[None]:
        """With the record at hand, and what all replicas are configured with; it is waited for, until a signal comes.
        Raises `Unavailable` then."""
        if self._replica is None:
            yield
            return
        from toolway.gateway.replica.waiting import patiently

        self.gateway.app.ready = False
        try:
            self._loaded = await patiently(partial(self._replica.open, self._loaded), self._end, host, port, tls)
            yield
        finally:
            await self._replica.close()

    async def _begin_in_cluster(self) -> None:
        if self._replica is not None:
            await self._replica.serve(self.hub, self.gateway, self._adopt)

    async def _join_cluster(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        if self._replica is not None:
            name = await self._replica.join(host, port, tls=tls is not None)
            self.gateway.also_called(name)
            self.gateway.app.ready = True

    async def _set_start_aside(self) -> None:
        """What was loaded and made at the start stays to the end, and is looked through for garbage no more: that
        would stop everybody for 50 ms, again and again."""
        await self.hub.wait_settled(START_TIME)
        gc.collect()
        gc.freeze()

    async def run_on_pipes(self) -> None:
        """Serve the one who started us, until it closes our input or a signal comes."""
        raise_file_limit()
        self._listen_to_signals()
        async with self.hub:
            self.telemetry.start()
            client = asyncio.create_task(self.gateway.pipe().serve(*own_pipes()))
            ending = asyncio.create_task(self._end.wait())
            await asyncio.wait({client, ending}, return_when=asyncio.FIRST_COMPLETED)
            client.cancel()
            ending.cancel()
            await asyncio.gather(client, ending, return_exceptions=True)
            await self.gateway.listening.close()
            await self.telemetry.close()

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        with suppress(AttributeError):
            loop.add_signal_handler(signal.SIGHUP, self._reload_soon)

    def stop(self) -> None:
        """End in order; asked twice, at once."""
        if self._end.is_set():
            self._hurry.set()
        self._end.set()

    # -- the file -----------------------------------------------------------------------------------------------------

    async def reload(self) -> Json:
        """Take what the file says now. Raises `ConfigError`, and then everything stays as it was."""
        async with self._reading:
            if self._keyring is not None:
                self._keyring.reload()
            if not self._own_file:
                return {"changed": []}  # the record is followed anyway
            loaded = await asyncio.to_thread(self._file.again or partial(read, self._file.file))
            _refuse_new_errors(self._file, loaded)
            self._file = loaded
            if self._replica is not None:
                await self._replica.bring(loaded, force=True)  # it comes back to us as to all others
                return {"changed": [], "told": "all replicas"}
            return await self._take(loaded)

    async def _adopt(self, loaded: Loaded) -> None:
        """Become what all replicas are."""
        async with self._reading:
            await self._take(loaded)

    async def _take(self, loaded: Loaded) -> Json:
        """Become what `loaded` says; only the servers that changed are touched."""
        servers = self._replica.take(loaded.servers) if self._replica is not None else loaded.servers
        done = await self.hub.apply(replace(loaded, servers=servers))
        before, self._loaded = self._loaded.gateway, loaded
        self._selections = _selections(loaded.gateway)
        self.gateway.reconfigured(loaded.gateway.hosts, loaded.gateway.origins)
        if before.audit != loaded.gateway.audit:
            _log.warning("the audit log has changed in its file: it is kept as before until the next start")
        if (before.host, before.port) != (loaded.gateway.host, loaded.gateway.port):
            _log.warning("the address of the gateway has changed in its file: it is used from the next start on")
        if before.telemetry != loaded.gateway.telemetry:
            _log.warning("the telemetry of the gateway has changed in its file: it is used from the next start on")
        return {"changed": done, "problems": [problem.what for problem in loaded.problems]}

    def _reload_soon(self) -> None:
        task = asyncio.get_running_loop().create_task(self._reload_quietly())
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def _reload_quietly(self) -> None:
        try:
            done = await self.reload()
        except ConfigError as exc:
            _log.error("the configuration was not taken, the old one stays: %s", exc)
        except Exception:
            _log.exception("the configuration was not taken, by a fault of ours")
        else:
            _log.info("the configuration was read again: %s", done["changed"] or "nothing changed")

    async def _watch_file(self) -> None:
        taken = seen = self._stamps()
        while True:
            await asyncio.sleep(LOOK)
            if self._replica is None:
                self._look_at_keys()
            before, seen = seen, self._stamps()
            if seen[0] is None and before[0] is not None:
                _log.error("%s is gone; what it said stays", self._loaded.file)
            if seen[0] is not None and seen != taken and seen == before:  # it has changed, and has come to rest
                taken = seen
                await self._reload_quietly()

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        """Of the file first, then of what else may change what it says."""
        return [_stamp(file) for file in (self._file.file, *self._file.watched)]

    def _look_at_keys(self) -> None:
        """Another process may have made or revoked some. A file that cannot be read changes nothing, and says so."""
        if self._keyring is None:
            return
        try:
            self._keyring.reload()
        except (ConfigError, OSError) as exc:
            if str(exc) != self._complaint:
                _log.error("the API keys were not read again, those of before stay: %s", exc)
            self._complaint = str(exc)
        else:
            self._complaint = ""


def _keyring(state: State, replica: Replica | None) -> KnownKeys:
    if replica is None:
        return state.keyring()
    with suppress(ConfigError, OSError):
        if state.keyring().all():
            _log.warning("API keys that were made on this machine alone open nothing in a cluster: make them anew")
    return replica.keyring


def _replica(cluster: ClusterOptions, state: State, *, auth: bool) -> Replica:
    """Raises `ConfigError`."""
    if not auth:
        raise ConfigError(
            "a gateway of a cluster asks everybody for a token",
            evidence="--no-auth stands beside --cluster",
            fix="leave out --no-auth",
            code="E-ADDRESS",
        )
    from toolway.gateway.replica.replica import Replica  # and with it the libraries of the database and of NATS

    return Replica(cluster, state.token())


def _refuse_new_errors(before: Loaded, now: Loaded) -> None:
    """A file with an entry that cannot be used is not taken, unless that entry was not in use before either: whoever
    broke an entry while it ran did not mean to remove it. Raises `ConfigError`."""
    known = {(problem.server, problem.file) for problem in before.problems if problem.severity == "error"}
    for problem in now.problems:
        if problem.severity == "error" and (problem.server, problem.file) not in known:
            raise ConfigError(
                problem.what,
                file=problem.file,
                line=problem.line,
                evidence=problem.evidence,
                fix=problem.fix,
                code=problem.code,
            )


def _stamp(file: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def _escalator(loaded: Loaded, state: State, hub: Hub) -> Escalator | None:
    settings = loaded.gateway.escalations
    if settings is None:
        return None

    def mask(text: str) -> str:
        return masker(hub.servers.values())(text)  # as they are now: a reload may have brought more

    return Escalator(settings, state.folder, hub, mask, loaded.addresses)


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


def _check_address(host: str, port: int) -> None:
    """Raises `ConfigError` for an address that cannot be had. Nobody is let in yet, who would be sent away at once."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as place:
            if place.family == socket.AF_INET6:
                place.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if os.name == "posix":
                place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            place.bind((host, port))
    except OSError as exc:
        raise _address(host, port, exc) from None


def _is_ours_alone(host: str) -> bool:
    """Whether only programs of this machine reach this address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _open_to_all(host: str) -> ConfigError:
    return ConfigError(
        "a gateway that asks nobody for a token listens on this machine alone",
        evidence=f"it was told to listen on {host}",
        fix="leave out --no-auth, or listen on 127.0.0.1",
        code="E-ADDRESS",
    )


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
