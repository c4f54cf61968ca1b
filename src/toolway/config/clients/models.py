"""Data types for MCP clients, their configuration files and their server entries.

Entries of all clients are converted to one common form, as in Toolway's file: `command`, `args`, `env`, `cwd`, `url`,
`headers`, `type` (`sse` and `ws` only), `timeout` and `startTimeout` (milliseconds), `enabled`, `tools: {allow, deny}`,
`envFile`, `headersHelper`, `auth`. Variables are written as `${VAR}`. Keys that only the client understands are kept
under `extras: {client: {…}}`. They are written back to that client, and to no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from toolway.config.editing.document import Edit, FormatName
from toolway.config.schema import ConfigIssue
from toolway.config.variables import NO_SYNTAX, VariableSyntax

Transport = Literal["stdio", "http", "sse", "ws"]
ClientScope = Literal["user", "project", "local", "managed"]
Platform = Literal["linux", "darwin", "win32"]
RootPath = tuple[str, ...]
EntryDict = dict[str, Any]
OAUTH_KEYS: Final = {"clientId": "clientId", "clientSecret": "clientSecret", "scopes": "scopes"}
#: (common entry, unread keys) → None; moves keys into the common entry
ToCommon = Callable[[EntryDict, EntryDict], None]
#: (common entry, written entry) → unsupported fields with reasons
FromCommon = Callable[[EntryDict, EntryDict], list[tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class ClientConfigFile:
    """An MCP client's configuration file: path, format, scope, and the path of its server map.

    `directory` is its servers' working directory, if that is fixed.
    """

    client: str
    scope: ClientScope
    path: Path
    exists: bool
    format: FormatName = "json"
    root: RootPath = ("mcpServers",)  # path of the server map in the file
    directory: Path | None = None


@dataclass(frozen=True, slots=True)
class ClientEntry:
    """A server entry in a client's file: as written there, and converted to our config file's keys."""

    name: str  # as written in the file
    value: Mapping[str, Any] = field(repr=False)  # in the common form, variables not expanded
    raw: Any = field(repr=False)  # as written in the file
    file: ClientConfigFile
    line: int | None = None


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The server entries in a client's file, and the issues found.

    An entry that is not a server appears only as an issue.
    """

    file: ClientConfigFile
    entries: tuple[ClientEntry, ...] = ()
    issues: tuple[ConfigIssue, ...] = ()


@dataclass(frozen=True, slots=True)
class Snippet:
    """Part of a YAML file for the user to paste, and the names of the entries to delete."""

    value: Any = field(repr=False)
    removed: tuple[str, ...] = ()
    secrets: frozenset[str] = field(default=frozenset(), repr=False)  # in the file already

    def text(self) -> str:
        """Return the lines to paste, or "" if nothing has to be pasted.

        Secrets that are already in the file are masked.
        """
        from toolway.config.editing.yaml import render  # its library is slow to load

        return render(_masked(self.value, self.secrets)) if self.value else ""


def _masked(value: Any, secrets: frozenset[str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _masked(item, secrets) for key, item in value.items()}
    if isinstance(value, list):
        return [_masked(item, secrets) for item in value]
    for secret in sorted(secrets, key=len, reverse=True) if isinstance(value, str) else ():
        value = value.replace(secret, "***")
    return value


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """A planned edit of a client's file, with an issue for each unsupported setting.

    A YAML file is not edited. Its plan has a snippet instead.
    """

    edit: Edit
    unsupported: tuple[ConfigIssue, ...] = ()
    changed: tuple[str, ...] = ()  # names of new or changed entries
    unchanged: tuple[str, ...] = ()  # names of entries that are already up to date
    snippet: Snippet | None = None


@dataclass(frozen=True, slots=True)
class Client:
    """An MCP client: a program that reads servers from its configuration files.

    If a scope has several files, the first one is written.
    """

    name: str  # claude-code
    title: str  # Claude Code
    config_files: Callable[[ClientPaths], list[ClientConfigFile]] = field(repr=False)
    dialect: Dialect = field(repr=False)
    # Names of the enabled servers, if they are in another file.
    enabled_servers: Callable[[ClientConfigFile], frozenset[str]] | None = field(default=None, repr=False)


def make_config_file(
    client: str,
    scope: ClientScope,
    path: Path,
    format: FormatName = "json",
    root: RootPath = ("mcpServers",),
    directory: Path | None = None,
) -> ClientConfigFile:
    return ClientConfigFile(client, scope, path, path.is_file(), format, root, directory)


# -- spelling of entries ----------------------------------------------------------------------------------------------


class UnsupportedEntry(Exception):
    """Raised by a client's `from_common` function if the client cannot represent the server."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(reason)
        self.field, self.reason = field, reason


def _no_conversion(_value: EntryDict, _left: EntryDict) -> None:
    return None


def _no_unsupported(_value: EntryDict, _written: EntryDict) -> list[tuple[str, str]]:
    return []


@dataclass(frozen=True, slots=True)
class TimeoutKey:
    """The name of a client's key for a duration, and the unit of its value in milliseconds."""

    key: str
    unit_ms: int = 1


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a client's file spells server entries: key names, units, and fixed keys.

    Any client's spelling can be read. A dialect defines how entries are *written*. If a field is None, the client does
    not have that key.
    """

    command: str = "command"
    joined_command: bool = False  # command and arguments are one list
    args: str = "args"
    env: str = "env"
    cwd: str | None = None
    env_file: str | None = None
    urls: Mapping[Transport, str] = field(default_factory=lambda: {"http": "url", "sse": "url"})
    headers: str | None = "headers"
    headers_helper: str | None = None
    type_key: str = "type"
    types: Mapping[Transport, str] = field(default_factory=dict)  # transport → spelling; missing: not written
    fixed: Mapping[str, Any] = field(default_factory=dict)  # keys written in every new entry
    timeout: TimeoutKey | None = None
    start_timeout: TimeoutKey | None = None
    enabled: str | None = None  # key that is true if the server is enabled
    disabled: str | None = None  # key that is true if the server is disabled
    writes_enabled: bool = False  # write that key even if the server is enabled
    allow: str | None = None  # list of allowed tools
    deny: str | None = None
    tool_patterns: bool = False  # these lists may contain patterns such as `delete_*`
    root_tools: str | None = None  # key of the file with `{"SERVER_TOOL": false}` for denied tools; read, not written
    oauth: str | None = None
    oauth_keys: Mapping[str, str] = field(default_factory=dict)  # their key → ours
    oauth_scopes_as_text: bool = False  # scopes are one space-separated text
    syntax: VariableSyntax = NO_SYNTAX
    to_common: ToCommon = _no_conversion
    from_common: FromCommon = _no_unsupported
    name_key: str | None = None  # key of an entry that holds its name
    is_list: bool = False  # the servers are a list, not a map
    implicit_cwd: bool = False  # `cwd` has no effect: servers start in the directory of the project
    is_own: bool = False  # our own file: its entries are not converted


# -- folders ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClientPaths:
    """The base folders of client configuration files on one platform, and the working directory."""

    environment: Mapping[str, str]
    directory: Path
    platform: Platform

    @property
    def home(self) -> Path:
        key = "USERPROFILE" if self.platform == "win32" else "HOME"
        return Path(self.environment.get(key) or Path.home())

    @property
    def config_home(self) -> Path:
        """Return `$XDG_CONFIG_HOME`, or `~/.config` by default."""
        return Path(self.environment.get("XDG_CONFIG_HOME") or self.home / ".config")

    @property
    def app_support(self) -> Path:
        """Return the folder where desktop programs keep their settings on this platform."""
        if self.platform == "darwin":
            return self.home / "Library" / "Application Support"
        if self.platform == "win32":
            return Path(self.environment.get("APPDATA") or self.home / "AppData" / "Roaming")
        return self.config_home

    def folder_from_env(self, variable: str, default: Path) -> Path:
        """Return the folder that an environment variable names, or else `default`."""
        return Path(self.environment[variable]) if self.environment.get(variable) else default

    def find_nearest(self, name: str) -> Path:
        """Return the nearest file called `name`, searching from the working directory up to the repository's root.

        The home folder and its parents are not searched, because a file there is user configuration. If nothing is
        found, return the path of such a file in the working directory.
        """
        for folder in (self.directory, *self.directory.parents):
            if folder == self.home and folder != self.directory:
                break
            if (folder / name).is_file():
                return folder / name
            if (folder / ".git").exists():
                break
        return self.directory / name
