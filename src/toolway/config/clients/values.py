"""What is known about a client, and what its files say: frozen values.

Between all dialects stands one form of an entry, the one of our own file: `command`, `args`, `env`, `cwd`, `url`,
`headers`, `type` (`sse` and `ws` only), `timeout` and `startTimeout` (milliseconds), `enabled`, `tools: {allow, deny}`,
`envFile`, `headersHelper`, `auth`. Variables are written as `${VAR}`. What a client knows and we do not is kept under
`extras: {client: {…}}`, so that the client gets it back and no other does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from toolway.config.editing.edit import Edit
from toolway.config.problems import Problem

if TYPE_CHECKING:
    from toolway.config.clients.dialect import Dialect
    from toolway.config.clients.paths import Paths

Scope = Literal["user", "project", "local", "managed"]
Platform = Literal["linux", "darwin", "win32"]
Format = Literal["json", "toml", "yaml"]
KeyPath = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """A file that a client reads. `directory` is where it starts the servers of this file, if that is fixed."""

    client: str
    scope: Scope
    path: Path
    exists: bool
    format: Format = "json"
    root: KeyPath = ("mcpServers",)  # where in the file its servers are
    directory: Path | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One server of a client's file."""

    name: str  # as the file spells it
    value: Mapping[str, Any] = field(repr=False)  # in our own form, variables not filled in
    written: Any = field(repr=False)  # as the file has it
    place: Place
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    """What a client's file says. An entry that is no server is among the problems only."""

    place: Place
    entries: tuple[Entry, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Export:
    """A change of a client's file, and what the client cannot be told, field by field."""

    edit: Edit
    losses: tuple[Problem, ...] = ()
    written: tuple[str, ...] = ()  # the names of the entries that are new or change
    same: tuple[str, ...] = ()  # the names of those that the file has already


@dataclass(frozen=True, slots=True)
class Client:
    """A program that reads MCP servers from files. The first place of a scope is the one that is written."""

    name: str  # claude-code
    title: str  # Claude Code
    places: Callable[[Paths], list[Place]] = field(repr=False)
    dialect: Dialect = field(repr=False)
    chosen: Callable[[Place], frozenset[str]] | None = field(default=None, repr=False)  # what is on, said elsewhere
