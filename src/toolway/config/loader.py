"""Loads files with an `mcpServers` map, and returns their servers and issues as a `LoadedConfig`.

An invalid entry never hides the valid ones. Only a file that cannot be read at all is an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from toolway.config.approval.held_entries import HeldEntry
from toolway.config.approval.workflow_files import CapturedWorkflow, capture_workflows
from toolway.config.dotenv import DOTENV_NAME, ENV_FILE_CODE, DotenvVariables, env_file_error, read_env_file
from toolway.config.editing import jsonc
from toolway.config.entry_transport import URL_KEYS
from toolway.config.field_reader import json_type_name, parse_duration, unset_variables_error
from toolway.config.foreign_keys import warn_unread_root_keys
from toolway.config.locations import EXAMPLE_CONFIG
from toolway.config.schema import ConfigIssue, Server, check_server_name
from toolway.config.secret_refs import find_unset_variables, join_folder
from toolway.config.server_entry import TIMEOUT_KEYS, parse_entry, parse_entry_with_issues, parse_inline
from toolway.config.settings import (
    GatewaySettings,
    convert_group_list,
    find_unknown_keys,
    locate_workflows,
    parse_gateway,
    parse_network_policy,
    with_network_policy,
)
from toolway.errors import ConfigError
from toolway.network.policy import PUBLIC_ONLY, NetworkPolicy
from toolway.part_api import registry

__all__ = ["ConfigIssue", "LoadedConfig", "load_file", "parse_config", "parse_entry", "parse_inline"]

SERVER_MAP_KEYS: Final = ("mcpServers", "servers", "mcp_servers")
TOOLWAY_BLOCK: Final = "toolway"
GROUP_LIST_KEY: Final = "groups"
MAX_CONFIG_BYTES: Final = 4 * 1024 * 1024
_MAX_BAD_LINES: Final = 8  # lines of a `.env` file that are reported
_ENTRY_KEYS: Final = frozenset({"command", "type", "transport", *URL_KEYS})


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """The servers, issues, and gateway settings in one configuration file, or in all scopes merged.

    A server with an issue of severity `error` is left out of `servers`.
    """

    servers: dict[str, Server] = field(default_factory=dict)
    issues: tuple[ConfigIssue, ...] = ()
    file: str = ""
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    # Loads it again; if None, `file` is read again.
    reload: Callable[[], LoadedConfig] | None = field(default=None, compare=False)
    watched_files: tuple[str, ...] = ()  # more files; a change to one of them may change this result
    network_policy: NetworkPolicy = PUBLIC_ONLY  # network policy of the file; its servers already include it
    held: tuple[HeldEntry, ...] = ()  # entries that need review; they are not among the servers
    dotenv: Mapping[str, str] = field(default_factory=dict, repr=False)  # variables of the `.env` next to the file
    #: Workflows that may be used, as they were read; None: nothing decided about them, so all may be used.
    approved_workflows: tuple[CapturedWorkflow, ...] | None = field(default=None, repr=False)

    def capture_workflows(self) -> tuple[CapturedWorkflow, ...]:
        """Return the workflows that may be used.

        If they needed no approval, this reads their files.
        """
        return capture_workflows(self.gateway.workflows) if self.approved_workflows is None else self.approved_workflows


def load_file(path: str | os.PathLike[str], variables: Mapping[str, str] | None = None) -> LoadedConfig:
    """Load the servers and settings in a configuration file. An invalid entry becomes an issue.

    Raises `ConfigError` if the file cannot be read or parsed, has no server map, or has invalid gateway settings.
    """
    file = os.fspath(path)
    return load_text(decode_config(read_config_bytes(file), file), file, os.environ if variables is None else variables)


def load_text(text: str, file: str, variables: Mapping[str, str]) -> LoadedConfig:
    """Load the servers and settings in the text of a configuration file, as `load_file` does."""
    with_file, issues = add_dotenv(file, variables)
    loaded = parse_config(text, file, with_file)
    issues += find_missing_env_files(loaded)
    return replace(
        loaded, issues=(*loaded.issues, *issues), watched_files=(dotenv_path(file), *registry.entry_files(file))
    )


def dotenv_path(file: str) -> str:
    return os.path.join(os.path.dirname(file), DOTENV_NAME)


def add_dotenv(
    file: str, environment: Mapping[str, str], *, is_project: bool = False
) -> tuple[Mapping[str, str], list[ConfigIssue]]:
    """Return the environment plus the variables in the `.env` file next to a config file, and that file's issues.

    Call this only for a trusted config file. If `is_project` is True, a `.env` that is a link out of the project is not
    read.
    """
    path = dotenv_path(file)
    if not os.path.isfile(path):
        return environment, []
    try:
        if is_project and not is_inside(path, os.path.dirname(file)):
            raise env_file_error(path, "it is a link to a file outside the project", "replace it with a file")
        found = read_env_file(path)
    except ConfigError as exc:
        return environment, [msgspec.structs.replace(ConfigIssue.from_error(exc), severity="warning", file=path)]
    issues = [
        ConfigIssue("", "line is not NAME=value", "it is skipped", "", ENV_FILE_CODE, "note", path, line)
        for line in found.bad_lines[:_MAX_BAD_LINES]
    ]
    return DotenvVariables(environment, found.values, is_project=is_project), issues


def is_inside(path: str, folder: str) -> bool:
    """Return True if a path is in `folder` or below it, after resolving symbolic links."""
    real_folder = os.path.realpath(folder)
    return os.path.commonpath([os.path.realpath(path), real_folder]) == real_folder


def reject_outside_project(path: Path, root: Path) -> None:
    """Raise `ConfigError` if a project file is a symbolic link to a file outside the project folder `root`.

    A repository may contain a link to any file: one that is trusted for another project, or one that we would
    overwrite.
    """
    if is_inside(os.fspath(path), os.fspath(root)):
        return
    raise ConfigError(
        f"{path} points outside its project",
        file=os.fspath(path),
        detail=f"it is a link to {os.path.realpath(path)}; the project is {os.path.realpath(root)}",
        hint="replace the link with a file in the project, or move its entries to your own file",
        code="E-CONFIG-LINK",
    )


def find_missing_env_files(loaded: LoadedConfig) -> list[ConfigIssue]:
    """Return a warning for each server whose `envFile` does not exist.

    Such a server will not start.
    """
    found = []
    for name, server in loaded.servers.items():
        path = server.env_file
        if path is not None and not find_unset_variables(path) and not os.path.isfile(path):
            error = env_file_error(path, "the file does not exist, so the server cannot start")
            found.append(
                msgspec.structs.replace(ConfigIssue.from_error(error, name), severity="warning", file=loaded.file)
            )
    return found


def read_config_bytes(file: str) -> bytes:
    """Return a configuration file's content.

    Raises `ConfigError` if the file cannot be read, or is larger than `MAX_CONFIG_BYTES` (4 MiB).
    """
    try:
        with Path(file).open("rb") as opened:
            data = opened.read(MAX_CONFIG_BYTES + 1)
    except OSError as exc:
        hint = "use another file with --config or $TOOLWAY_CONFIG" if isinstance(exc, FileNotFoundError) else ""
        raise _unreadable_error(file, exc.strerror or str(exc), hint) from None
    if len(data) > MAX_CONFIG_BYTES:
        raise _unreadable_error(file, f"it is larger than {MAX_CONFIG_BYTES} bytes", "")
    return data


def decode_config(data: bytes, file: str) -> str:
    """Decode a configuration file's content. Raises `ConfigError` if it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise _unreadable_error(file, f"byte {exc.start} is not UTF-8", "save the file as UTF-8") from None


def parse_config(text: str, file: str = "", variables: Mapping[str, str] | None = None) -> LoadedConfig:
    """Parse a configuration file's text. An invalid server entry becomes an issue.

    Raises `ConfigError` if the text is not JSON, has no server map, or has invalid gateway settings.
    """
    document = jsonc.parse_jsonc(text, file)
    root, entries = find_server_map(document, file)
    parser = _ConfigParser(document, file, root, os.environ if variables is None else variables)
    names = parser.assign_names(entries)
    servers = {}
    for raw_name, name in names.items():
        server = parser.parse_server(raw_name, entries[raw_name])
        if server is not None:
            servers[name] = server
    parser.check_root_keys()
    servers = parser.apply_default_timeout(servers, entries, names)
    network_policy = parser.parse_network_policy()
    servers = {name: with_network_policy(server, network_policy) for name, server in servers.items()}
    servers = _with_guard_facts(servers, file)
    gateway = parser.parse_gateway_settings()
    dotenv = variables.file_values if isinstance(variables, DotenvVariables) else {}
    return LoadedConfig(servers, tuple(parser.issues), file, gateway, network_policy=network_policy, dotenv=dotenv)


def _with_guard_facts(servers: dict[str, Server], file: str) -> dict[str, Server]:
    """Return the servers with what start guards know about each.

    The guards read this from their files next to the config file.
    """
    if not file or all(server.command is None for server in servers.values()):
        return servers
    for part, guard in registry.start_guards().items():
        for name, facts in guard.read_facts(file, servers).items():
            servers[name] = replace(servers[name], guard_facts={**servers[name].guard_facts, part: facts})
    return servers


def find_server_map(document: jsonc.JsonDocument, file: str) -> tuple[jsonc.JsonPath, dict[str, Any]]:
    """Return the key path of a config file's server map, such as `("mcpServers",)`, and the map.

    Without such a key, the root object is the map and the path is empty. A list of entries with a `name` is converted
    to a map. Raises `ConfigError` if neither is a map or list of server entries.
    """
    root = document.value
    if isinstance(root, list) and _is_entry_list(root):
        return (), name_entries(root)
    if not isinstance(root, dict):
        raise _no_server_map_error(file, f"the file holds {json_type_name(root)}")
    for key in SERVER_MAP_KEYS:
        if key in root:
            if isinstance(root[key], list) and _is_entry_list(root[key]):
                return (key,), name_entries(root[key])
            if not isinstance(root[key], dict):
                raise _no_server_map_error(file, f"{key} holds {json_type_name(root[key])}", document.lines.get((key,)))
            return (key,), root[key]
    entries = {k: v for k, v in root.items() if k != TOOLWAY_BLOCK and not k.startswith("$")}
    if entries and not any(isinstance(v, dict) and _ENTRY_KEYS & v.keys() for v in entries.values()):
        raise _no_server_map_error(file, f"found only {', '.join(list(entries)[:5])}")
    return (), entries


def find_server_map_key(config: Mapping[str, Any]) -> str | None:
    """Return the key, such as `mcpServers`, that holds the servers in a Python mapping, or None if it has none.

    In that case, the mapping itself maps names to servers. A server may even be called `servers`: its value has the
    keys of a server entry, or is not a map.
    """
    for key in SERVER_MAP_KEYS:
        value = config.get(key)
        if isinstance(value, list) or (isinstance(value, Mapping) and not _ENTRY_KEYS & value.keys()):
            return key
    return None


def _is_entry_list(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(each, dict) for each in values)


def name_entries(entries: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Convert a list of server entries, each with a `name`, to a map by name.

    An entry without a name is called `server-1`, after its place in the list. If a name is taken, the place is
    appended.
    """
    found: dict[str, Any] = {}
    for number, entry in enumerate(entries, 1):
        given = entry.get("name")
        name = given if isinstance(given, str) and given else f"server-{number}"
        rest = {key: value for key, value in entry.items() if key != "name"}
        found[f"{name} {number}" if name in found else name] = rest
    return found


def find_toolway_block(document: jsonc.JsonDocument) -> Any:
    """Return a config file's `toolway` block, with the groups that other hosts keep next to the servers.

    Return None if the file has neither.
    """
    root = document.value
    if not isinstance(root, dict):
        return None
    block = root.get(TOOLWAY_BLOCK)
    if not any(key in root for key in SERVER_MAP_KEYS) or not isinstance(root.get(GROUP_LIST_KEY), list):
        return block
    groups, _ = convert_group_list(root[GROUP_LIST_KEY], normalize_name)
    if not groups or not isinstance(block, dict | None):
        return block
    own = (block or {}).get("toolsets")
    return {**(block or {}), "toolsets": {**groups, **own} if isinstance(own, dict) else groups if own is None else own}


class _ConfigParser:
    """Parses one configuration file. `issues` collects the issues of all entries."""

    def __init__(
        self, document: jsonc.JsonDocument, file: str, root: jsonc.JsonPath, variables: Mapping[str, str]
    ) -> None:
        self.issues: list[ConfigIssue] = []
        self._document = document
        self._file = file
        self._root = root
        self._variables = variables
        self._block = find_toolway_block(document)
        # The first duplicate key of each entry. Duplicates outside the entries do not belong to any of them.
        self._duplicates: dict[str, jsonc.DuplicateKey] = {}
        for duplicate in document.duplicates.values():
            if len(duplicate.path) > len(root) and duplicate.path[: len(root)] == root:
                self._duplicates.setdefault(duplicate.path[len(root)], duplicate)

    def assign_names(self, entries: Mapping[str, Any]) -> dict[str, str]:
        """Return the name of the server for each key in the server map.

        An invalid name is normalized. If the normalized name is already taken, the entry is left out, and an issue is
        added.
        """
        taken = {name for name in entries if _is_valid_name(name)}
        names = {}
        for raw_name in entries:
            name = raw_name if raw_name in taken else normalize_name(raw_name)
            if name != raw_name:
                clash = name in taken
                self._add_issues(raw_name, _renamed_issue(raw_name, name, clash))
                if clash:
                    continue
            taken.add(name)
            names[raw_name] = name
        return names

    def parse_server(self, raw_name: str, value: Any) -> Server | None:
        try:
            if raw_name in self._duplicates:
                raise _duplicate_key_error(self._duplicates[raw_name])
            server, issues = parse_entry_with_issues(value, self._variables)
        except ConfigError as exc:
            self._add_issues(raw_name, ConfigIssue.from_error(exc))
            return None
        self._add_issues(raw_name, *issues)
        if server.env_file is not None and self._file:
            server = replace(server, env_file=join_folder(os.path.dirname(self._file) or ".", server.env_file))
        return server

    def apply_default_timeout(
        self, servers: dict[str, Server], entries: Mapping[str, Any], names: Mapping[str, str]
    ) -> dict[str, Server]:
        """Apply `toolway.timeout` to the servers that have no `timeout`."""
        block = self._block
        if not isinstance(block, dict) or block.get("timeout") is None:
            return servers
        try:
            total = parse_duration("toolway.timeout", block["timeout"])
        except ConfigError as exc:
            self.issues.append(
                msgspec.structs.replace(
                    ConfigIssue.from_error(exc),
                    file=self._file,
                    line=self._document.lines.get((TOOLWAY_BLOCK, "timeout")),
                )
            )
            return servers
        with_own_timeout = {name for raw_name, name in names.items() if _has_timeout(entries[raw_name])}
        return {
            name: server
            if name in with_own_timeout
            else replace(server, timeout=msgspec.structs.replace(server.timeout, total=total))
            for name, server in servers.items()
        }

    def check_root_keys(self) -> None:
        """Add an issue for each key next to the server map that has no effect."""
        root = self._document.value
        if not self._root or not isinstance(root, dict):
            return
        groups, group_issues = root.get(GROUP_LIST_KEY), []
        read = [self._root[0], TOOLWAY_BLOCK]
        twice = self._document.duplicates.get(self._root[:1])
        if twice is not None and len(twice.path) == 1:  # the servers of the first map are not read
            issue = ConfigIssue.from_error(_duplicate_key_error(twice))
            self.issues.append(msgspec.structs.replace(issue, file=self._file, line=twice.second))
        if isinstance(groups, list):
            read.append(GROUP_LIST_KEY)
            group_issues = convert_group_list(groups, normalize_name)[1]
        for issue in (*warn_unread_root_keys(root, read), *group_issues):
            self.issues.append(msgspec.structs.replace(issue, file=self._file))

    def parse_network_policy(self) -> NetworkPolicy:
        """Return the network policy in the `toolway` block.

        If it is invalid, an issue is added, and only public addresses are allowed.
        """
        try:
            return parse_network_policy(self._block, self._variables)
        except ConfigError as exc:
            line = self._document.lines.get((TOOLWAY_BLOCK, "addresses"))
            self.issues.append(msgspec.structs.replace(ConfigIssue.from_error(exc), file=self._file, line=line))
            return PUBLIC_ONLY

    def parse_gateway_settings(self) -> GatewaySettings:
        """Return the gateway settings in the `toolway` block.

        Raises `ConfigError` if a setting is invalid or occurs twice, because applying only some settings could grant
        access to anyone.
        """
        for duplicate in self._document.duplicates.values():
            if duplicate.path[0] == TOOLWAY_BLOCK:
                error = _duplicate_key_error(duplicate)
                error.file, error.line = self._file, duplicate.second
                raise error
        try:
            settings = locate_workflows(parse_gateway(self._block, self._variables), self._file)
        except ConfigError as exc:
            exc.file = self._file
            exc.line = self._document.lines.get((TOOLWAY_BLOCK,))
            raise
        line = self._document.lines.get((TOOLWAY_BLOCK,))
        self.issues += [
            msgspec.structs.replace(issue, file=self._file, line=line) for issue in find_unknown_keys(self._block)
        ]
        self.issues += [
            msgspec.structs.replace(issue, file=self._file, line=line)
            for part in registry.in_use()
            if part.name in settings.parts
            for issue in part.warnings(settings.parts[part.name])
        ]
        if unset := find_unset_variables(settings, TOOLWAY_BLOCK):
            unset = {name: key.replace("toolway.parts.", "toolway.", 1) for name, key in unset.items()}
            issue = ConfigIssue.from_error(unset_variables_error(unset))
            line = self._document.lines.get((TOOLWAY_BLOCK,))
            self.issues.append(msgspec.structs.replace(issue, severity="warning", file=self._file, line=line))
        return settings

    def _add_issues(self, raw_name: str, *issues: ConfigIssue) -> None:
        line = self._document.lines.get((*self._root, raw_name))
        self.issues.extend(
            msgspec.structs.replace(each, server=raw_name, file=self._file, line=line) for each in issues
        )


def _duplicate_key_error(duplicate: jsonc.DuplicateKey) -> ConfigError:
    return ConfigError(
        f"duplicate key {duplicate.path[-1]!r}",
        detail=f"lines {duplicate.first} and {duplicate.second}",
        hint="remove one of the two",
        code="E-CONFIG-TWICE",
    )


def _renamed_issue(raw_name: str, name: str, clash: bool) -> ConfigIssue:
    return ConfigIssue(
        raw_name,
        f"{raw_name!r} would become {name!r}, which is taken" if clash else f"{raw_name!r} is renamed to {name!r}",
        detail="names use lowercase letters, digits, and hyphens",
        hint="rename one of the two" if clash else "",
        code="E-CONFIG-NAME",
        severity="error" if clash else "note",
    )


def _has_timeout(value: Any) -> bool:
    return isinstance(value, dict) and any(value.get(key) is not None for key in TIMEOUT_KEYS)


def _is_valid_name(name: str) -> bool:
    try:
        check_server_name(name)
    except ConfigError:
        return False
    return True


def normalize_name(name: str) -> str:
    """Convert any text to the closest valid server name: `My Server` → `my-server`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:64].strip("-") or "server"


def _unreadable_error(file: str, detail: str, hint: str) -> ConfigError:
    return ConfigError(f"{file} cannot be read", file=file, detail=detail, hint=hint, code="E-CONFIG-FILE")


def _no_server_map_error(file: str, detail: str, line: int | None = None) -> ConfigError:
    return ConfigError(
        f"{file or 'the configuration'} has no server map",
        file=file,
        line=line,
        detail=detail,
        hint=f"use {EXAMPLE_CONFIG}",
        code="E-CONFIG-SHAPE",
    )
