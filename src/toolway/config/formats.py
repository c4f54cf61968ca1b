"""A file of `mcpServers`, as any host keeps it → `Loaded`: the servers, and what is wrong with the others.

One bad entry never hides the others: only a file that cannot be read at all is an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from toolway.addresses.policy import PUBLIC, Addresses
from toolway.config import jsonc
from toolway.config.addresses import allowing, read_addresses
from toolway.config.entries import URL_KEYS, entry, read_entry, server_from_text
from toolway.config.fields import duration, kind
from toolway.config.find import EXAMPLE
from toolway.config.gateway import GatewaySettings, read_block
from toolway.config.problems import Problem
from toolway.config.spec import Server, check_server_name
from toolway.errors import ConfigError

__all__ = ["Loaded", "Problem", "entry", "parse", "read", "server_from_text"]

ROOT_KEYS: Final = ("mcpServers", "servers", "mcp_servers")
OUR_BLOCK: Final = "toolway"
MAX_BYTES: Final = 4 * 1024 * 1024
_MARKS_OF_AN_ENTRY: Final = frozenset({"command", "type", "transport", *URL_KEYS})


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a file says. A server with a problem of severity `error` is not among the servers."""

    servers: dict[str, Server] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    file: str = ""
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    again: Callable[[], Loaded] | None = field(default=None, compare=False)  # reads it anew; without it, `file` is read
    watched: tuple[str, ...] = ()  # further files whose change may change it
    addresses: Addresses = PUBLIC  # what it allows; its servers have that already


def read(path: str | os.PathLike[str], variables: Mapping[str, str] | None = None) -> Loaded:
    """The servers of a file. Raises `ConfigError` where the file as a whole cannot be used."""
    file = os.fspath(path)
    return parse(text_of(content(file), file), file, variables)


def content(file: str) -> bytes:
    """Raises `ConfigError`."""
    try:
        with Path(file).open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
    except OSError as exc:
        fix = "name another with --config or $TOOLWAY_CONFIG" if isinstance(exc, FileNotFoundError) else ""
        raise _unreadable(file, exc.strerror or str(exc), fix) from None
    if len(data) > MAX_BYTES:
        raise _unreadable(file, f"it is longer than {MAX_BYTES} bytes", "")
    return data


def text_of(data: bytes, file: str) -> str:
    """Raises `ConfigError`."""
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise _unreadable(file, f"byte {exc.start} is not UTF-8", "save the file as UTF-8") from None


def parse(text: str, file: str = "", variables: Mapping[str, str] | None = None) -> Loaded:
    """The servers of a file's text. Raises `ConfigError` where it cannot be used as a whole."""
    document = jsonc.parse(text, file)
    root, entries = entries_of(document, file)
    reading = _Reading(document, file, root, os.environ if variables is None else variables)
    names = reading.names(entries)
    servers = {}
    for written, name in names.items():
        server = reading.server(written, entries[written])
        if server is not None:
            servers[name] = server
    servers = reading.with_our_timeout(servers, entries, names)
    addresses = reading.addresses()
    servers = {name: allowing(server, addresses) for name, server in servers.items()}
    return Loaded(servers, tuple(reading.problems), file, reading.gateway(), addresses=addresses)


def entries_of(document: jsonc.Document, file: str) -> tuple[jsonc.Path, dict[str, Any]]:
    """Where the entries are in the file, and the entries."""
    root = document.value
    if not isinstance(root, dict):
        raise _no_servers(file, f"the file holds {kind(root)}")
    for key in ROOT_KEYS:
        if key in root:
            if not isinstance(root[key], dict):
                raise _no_servers(file, f"{key} holds {kind(root[key])}", document.lines.get((key,)))
            return (key,), root[key]
    entries = {k: v for k, v in root.items() if k != OUR_BLOCK and not k.startswith("$")}
    if entries and not any(isinstance(v, dict) and _MARKS_OF_AN_ENTRY & v.keys() for v in entries.values()):
        raise _no_servers(file, f"found only {', '.join(list(entries)[:5])}")
    return (), entries


class _Reading:
    """One file being read: where its entries are, and what has been found wrong so far."""

    def __init__(self, document: jsonc.Document, file: str, root: jsonc.Path, variables: Mapping[str, str]) -> None:
        self.problems: list[Problem] = []
        self._document = document
        self._file = file
        self._root = root
        self._variables = variables
        # The first key in each entry that stands twice; what is twice above the entries belongs to none of them.
        self._twice: dict[str, jsonc.Twice] = {}
        for twice in document.twice.values():
            if len(twice.path) > len(root) and twice.path[: len(root)] == root:
                self._twice.setdefault(twice.path[len(root)], twice)

    def names(self, entries: Mapping[str, Any]) -> dict[str, str]:
        """The name that each entry gets. A name that is right as it stands goes before one that had to be changed."""
        taken = {name for name in entries if _is_name(name)}
        names = {}
        for written in entries:
            name = written if written in taken else normalised(written)
            if name != written:
                clash = name in taken
                self._add(written, _renamed(written, name, clash))
                if clash:
                    continue
            taken.add(name)
            names[written] = name
        return names

    def server(self, written: str, value: Any) -> Server | None:
        try:
            if written in self._twice:
                raise _stands_twice(self._twice[written])
            server, problems = read_entry(value, self._variables)
        except ConfigError as exc:
            self._add(written, Problem.of(exc))
            return None
        self._add(written, *problems)
        return server

    def with_our_timeout(
        self, servers: dict[str, Server], entries: Mapping[str, Any], names: Mapping[str, str]
    ) -> dict[str, Server]:
        """The `timeout` of the `toolway` block, for the servers that have none of their own."""
        block = self._document.value.get(OUR_BLOCK)
        if not isinstance(block, dict) or block.get("timeout") is None:
            return servers
        try:
            total = duration("toolway.timeout", block["timeout"])
        except ConfigError as exc:
            self.problems.append(
                replace(Problem.of(exc), file=self._file, line=self._document.lines.get((OUR_BLOCK, "timeout")))
            )
            return servers
        own = {name for written, name in names.items() if _has_timeout(entries[written])}
        return {
            name: server if name in own else replace(server, timeout=replace(server.timeout, total=total))
            for name, server in servers.items()
        }

    def addresses(self) -> Addresses:
        """What the `toolway` block allows, or nothing where it cannot be read."""
        try:
            return read_addresses(self._document.value.get(OUR_BLOCK), self._variables)
        except ConfigError as exc:
            line = self._document.lines.get((OUR_BLOCK, "addresses"))
            self.problems.append(replace(Problem.of(exc), file=self._file, line=line))
            return PUBLIC

    def gateway(self) -> GatewaySettings:
        """What the `toolway` block says about the gateway. Raises `ConfigError`: half of it could let in anybody."""
        block = self._document.value.get(OUR_BLOCK)
        try:
            return read_block(block, self._variables)
        except ConfigError as exc:
            exc.file = self._file
            exc.line = self._document.lines.get((OUR_BLOCK,))
            raise

    def _add(self, written: str, *problems: Problem) -> None:
        line = self._document.lines.get((*self._root, written))
        self.problems.extend(replace(each, server=written, file=self._file, line=line) for each in problems)


def _stands_twice(twice: jsonc.Twice) -> ConfigError:
    return ConfigError(
        f"{twice.path[-1]!r} stands twice",
        evidence=f"lines {twice.first} and {twice.second}",
        fix="remove one of the two",
        code="E-CONFIG-TWICE",
    )


def _renamed(written: str, name: str, clash: bool) -> Problem:
    return Problem(
        written,
        f"{written!r} would be called {name!r}, and that name is taken" if clash else f"{written!r} is called {name!r}",
        evidence="names are lower-case letters, digits and hyphens",
        fix="rename one of the two" if clash else "",
        code="E-CONFIG-NAME",
        severity="error" if clash else "note",
    )


def _has_timeout(value: Any) -> bool:
    return isinstance(value, dict) and value.get("timeout") is not None


def _is_name(name: str) -> bool:
    try:
        check_server_name(name)
    except ConfigError:
        return False
    return True


def normalised(name: str) -> str:
    """The nearest name that a server can have."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:64].strip("-") or "server"


def _unreadable(file: str, evidence: str, fix: str) -> ConfigError:
    return ConfigError(f"{file} cannot be read", file=file, evidence=evidence, fix=fix, code="E-CONFIG-FILE")


def _no_servers(file: str, evidence: str, line: int | None = None) -> ConfigError:
    return ConfigError(
        f"{file or 'the configuration'} has no map of servers",
        file=file,
        line=line,
        evidence=evidence,
        fix=f"write {EXAMPLE}",
        code="E-CONFIG-SHAPE",
    )
