"""Where the servers are that a command is about: in a file, or behind a gateway that runs.

Commands ask the same questions of both, so none of them knows which it is.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from toolway.catalog.index import Tool
from toolway.catalog.resolve import check_server
from toolway.cli.exits import GatewayError
from toolway.cli.gateways import Door, at_address, of_this_machine, why_none_here
from toolway.cli.known import Kept, kept_lists
from toolway.cli.options import Where
from toolway.cli.output import Output
from toolway.config.formats import Loaded, normalised, read
from toolway.config.mask import masker
from toolway.config.problems import Problem
from toolway.config.scopes import loaded
from toolway.config.spec import Server
from toolway.errors import ConfigError
from toolway.model import OnProgress, Reply

if TYPE_CHECKING:
    from toolway.upstream.status import Status

__all__ = ["Place", "Servers", "Where", "file_at_once", "find", "gateway_alone", "gateway_for", "load", "usable"]


class Servers(Protocol):
    """The questions: those of a `Hub`."""

    def status(self) -> dict[str, Status]: ...

    def tools(self, query: str | None = None, *, server: str | None = None) -> list[Tool]: ...

    async def list_tools(self, *, server: str | None = None, timeout: float = 30.0) -> list[Tool]: ...

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> Reply: ...


class Place(Protocol):
    @property
    def name(self) -> str:
        """What a person calls it: a file, or an address."""
        ...

    def problems(self, server: str | None = None) -> tuple[Problem, ...]:
        """What is wrong with the file: all, or what concerns one server."""
        ...

    def asking(self, only: str | None = None) -> AbstractAsyncContextManager[Servers]:
        """The servers, or only the one that is wanted. Raises `ConfigError`, or `NotFound` where there is none."""
        ...

    def kept(self, only: str | None = None) -> Kept | None:
        """What earlier runs kept of the servers, or of the one that is wanted; None where there is somebody to ask who
        knows better. Raises as `asking` does."""
        ...

    def asking_some(self, names: Collection[str]) -> AbstractAsyncContextManager[Servers]:
        """These servers and no other."""
        ...


async def find(output: Output, where: Where) -> Place:
    """The place that the options mean. Raises `ConfigError`, and `GatewayError` where a gateway was named in vain."""
    door = await gateway_for(output, where)
    return _Gateway(door) if door is not None else _File(load(output, where.config))


def file_at_once(output: Output, where: Where) -> Place | None:
    """The file, where no gateway has to be asked whether it is there; nothing is waited for. Raises `ConfigError`."""
    if where.gateway is not None or (not where.no_gateway and of_this_machine(where.config, where.token) is not None):
        return None
    return _File(load(output, where.config))


async def gateway_for(output: Output, where: Where) -> Door | None:
    """The gateway that was named, or that runs on this machine; None where the file is to be used."""
    door = _door(output, where)
    if door is None:
        return None
    if where.gateway is None:
        try:
            await door.knock()
        except GatewayError as exc:
            output.say(f"the gateway at {door.url} does not answer, so its file is used: {exc.evidence}", "yellow")
            return None
        output.say(f"asking the gateway at {door.url}; --no-gateway asks the file", "dim")
    return door


async def gateway_alone(output: Output, where: Where, missing: str, fix: str) -> Door:
    """The same for what no file can answer: where there is none that answers, `GatewayError` says so, and why."""
    door = _door(output, where)
    if door is None:
        why = "--no-gateway stands in the command" if where.no_gateway else why_none_here(where.config)
        raise GatewayError(missing, evidence=why, fix=fix)
    if where.gateway is None:
        await door.knock()
    return door


def _door(output: Output, where: Where) -> Door | None:
    """What it keeps secret is not shown by us either."""
    if where.gateway is not None:
        door: Door | None = at_address(where.gateway, where.token)
    else:
        door = None if where.no_gateway else of_this_machine(where.config, where.token)
    if door is not None:
        output.mask = masker([*_servers_in(door.config), Server(url=door.url, headers=door.headers)])
    return door


def load(output: Output, config: Path | None) -> Loaded:
    """The servers of the file that is named, or of all scopes. Raises `ConfigError`."""
    found = loaded(os.environ, Path.cwd(), config)
    output.mask = masker(found.servers.values())
    return found


def _servers_in(file: str) -> list[Server]:
    """The servers of the file of a gateway of this machine: what they keep secret is not shown by us either."""
    try:
        return list(read(file).servers.values()) if file else []
    except ConfigError:
        return []


class _File:
    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self.name = os.fspath(loaded.file)

    def problems(self, server: str | None = None) -> tuple[Problem, ...]:
        return tuple(p for p in self._loaded.problems if server is None or p.server in (server, ""))

    @asynccontextmanager
    async def asking(self, only: str | None = None) -> AsyncIterator[Servers]:
        """A hub in which all servers start, or only the one that is wanted; the others are known but stay asleep."""
        from toolway.hub import Hub

        self._must_be_usable(only or None)
        loaded = self._loaded
        servers = {name: replace(server, lazy=only not in (None, name)) for name, server in loaded.servers.items()}
        async with Hub(replace(loaded, servers=servers)) as hub:
            yield hub

    def kept(self, only: str | None = None) -> Kept:
        self._must_be_usable(only)
        servers = self._loaded.servers
        return kept_lists(servers if only is None else {only: servers[only]})

    @asynccontextmanager
    async def asking_some(self, names: Collection[str]) -> AsyncIterator[Servers]:
        from toolway.hub import Hub

        servers = self._loaded.servers
        chosen = {name: replace(server, lazy=False) for name, server in servers.items() if name in names}
        async with Hub(replace(self._loaded, servers=chosen)) as hub:
            yield hub

    def _must_be_usable(self, name: str | None) -> None:
        if name is not None:
            usable(self._loaded, name)


def usable(loaded: Loaded, name: str) -> Server:
    """The server of this name. Raises what is wrong with its entry, `ConfigError`, or `NotFound` for no entry."""
    for problem in loaded.problems if name not in loaded.servers else ():
        if problem.severity == "error" and name in (problem.server, normalised(problem.server)):
            raise ConfigError(
                f"{problem.server}: {problem.what}",
                file=problem.file,
                line=problem.line,
                evidence=problem.evidence,
                fix=problem.fix,
                code=problem.code,
            )
    check_server(loaded.servers, name)
    return loaded.servers[name]


class _Gateway:
    def __init__(self, door: Door) -> None:
        self._door = door
        self.name = door.url

    def problems(self, server: str | None = None) -> tuple[Problem, ...]:
        return ()  # of the file of a gateway its log tells

    @asynccontextmanager
    async def asking(self, only: str | None = None) -> AsyncIterator[Servers]:
        from toolway.cli.remote import Remote

        yield Remote(self._door)

    def kept(self, only: str | None = None) -> None:
        return None  # the gateway itself answers at once

    def asking_some(self, names: Collection[str]) -> AbstractAsyncContextManager[Servers]:
        return self.asking()
