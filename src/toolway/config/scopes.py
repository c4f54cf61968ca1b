"""Search and merge of the configuration files of all scopes: user, project, local.

    user      $XDG_CONFIG_HOME/toolway/mcp.json
    project   mcp.json or .mcp.json of the project; used only if its exact content is trusted (`TrustStore`), and if it
              is inside the project, links included
    local     $XDG_CONFIG_HOME/toolway/projects/<project>/mcp.json: one user's file for one project. It is outside the
              project folder, so a repository cannot contain one

A later scope overrides an earlier one by whole entries: a server is defined by one file, never by a mixture of two.
A file that cannot be read does not hide the other files. With an `ApprovalGate`, entries of the user and local files
that are not approved are left out (approval/held_entries.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from toolway.config.approval.held_entries import (
    MODEL_URLS_NAME,
    REVIEW_CODE,
    SIGNER_NAME,
    ApprovalGate,
    HeldEntry,
    find_held_workflows,
    held_agents,
)
from toolway.config.approval.trust_store import TrustStore, content_digest, open_trust_store
from toolway.config.approval.workflow_files import CapturedWorkflow, capture_workflows
from toolway.config.dotenv import env_file_error, read_dotenv_beside
from toolway.config.editing import jsonc
from toolway.config.loader import (
    TOOLWAY_BLOCK,
    LoadedConfig,
    add_dotenv,
    decode_config,
    dotenv_path,
    find_missing_env_files,
    find_server_map,
    find_toolway_block,
    is_inside,
    load_file,
    load_text,
    normalize_name,
    parse_config,
    read_config_bytes,
    reject_outside_project,
)
from toolway.config.locations import (
    CONFIG_FILE_VARIABLE,
    PROJECT_FILE_NAMES,
    ConfigPaths,
    Scope,
    find_config_paths,
    no_config_error,
)
from toolway.config.masking import mask_entry
from toolway.config.schema import ConfigIssue, Server
from toolway.config.secret_refs import find_unset_variables, join_folder
from toolway.config.settings import GatewaySettings, parse_gateway, with_network_policy
from toolway.errors import ConfigError
from toolway.network.policy import PUBLIC_ONLY, NetworkPolicy
from toolway.part_api import registry

if TYPE_CHECKING:
    from toolway.config.agent_settings import ConfiguredAgent

__all__ = [
    "REVIEW_CODE",
    "UNTRUSTED_CODE",
    "ApprovalGate",
    "ConfigPaths",
    "MergedConfig",
    "Provenance",
    "TrustStore",
    "UntrustedFile",
    "ValueWithOrigin",
    "find_config_paths",
    "load_config",
    "load_scopes",
    "open_trust_store",
    "with_project_cwd",
]

UNTRUSTED_CODE: Final = "E-CONFIG-UNTRUSTED"
MAX_LINE_LEVELS: Final = 6  # depth of keys with a known line; deeper keys have the line of their ancestor at this depth


class Provenance(msgspec.Struct, frozen=True):
    """Origin of a configuration value or server entry: scope, file and line."""

    scope: Scope
    file: str
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class ValueWithOrigin(msgspec.Struct, frozen=True):
    """Effective configuration value, with the file and line that set it. Secrets are masked."""

    path: tuple[str, ...]  # begins with the name of the server, or with `toolway`
    masked_json: str  # as JSON, masked
    origin: Provenance


@dataclass(frozen=True, slots=True)
class UntrustedFile:
    """A project file that is not used, because you do not trust its current content."""

    path: Path
    content: bytes = field(repr=False)
    changed: bool  # an earlier content of the file was trusted

    @property
    def digest(self) -> str:
        return content_digest(self.content)


@dataclass(frozen=True, slots=True)
class MergedConfig:
    """Configuration merged from the user, project and local files, with origins and issues."""

    paths: ConfigPaths
    servers: dict[str, Server] = field(repr=False)
    issues: tuple[ConfigIssue, ...]
    gateway: GatewaySettings
    files: tuple[Provenance, ...]  # files that were read, lowest priority first
    values: tuple[ValueWithOrigin, ...]  # each effective value with its origin
    overridden: Mapping[str, tuple[Provenance, ...]]  # by server: origins of overridden entries
    untrusted: tuple[UntrustedFile, ...]  # project files that are not trusted
    file_errors: tuple[ConfigError, ...]  # files that cannot be used at all
    held: tuple[HeldEntry, ...] = ()  # entries that need review, of user and local files; workflows of all
    network_policy: NetworkPolicy = PUBLIC_ONLY  # network policies of all files together
    approved_workflows: tuple[CapturedWorkflow, ...] | None = field(default=None, repr=False)  # as of `LoadedConfig`

    @property
    def origins(self) -> dict[tuple[str, ...], Provenance]:
        return {value.path: value.origin for value in self.values}


def load_scopes(environment: Mapping[str, str], directory: Path, gate: ApprovalGate | None = None) -> MergedConfig:
    """Find and merge the configuration files of user, project and local scope.

    Project files that the user does not trust are not used, only listed in `untrusted`. Without a `gate`, all entries
    of the user and local files are used.
    """
    paths = find_config_paths(environment, directory)
    if gate is not None and any(path.is_file() for _, path in paths.iter_by_scope()) and gate.start():
        _take_own_files(paths, environment, gate)
    return _ScopeMerger(paths, environment, gate).merge()


def _take_own_files(paths: ConfigPaths, environment: Mapping[str, str], gate: ApprovalGate) -> None:
    """Trust all entries of the user's own files on the first start."""
    for path in (paths.user, *sorted(paths.local.parent.parent.glob(f"*/{paths.local.name}"))):
        file, entries, block = os.fspath(path), {}, None
        workflows: tuple[CapturedWorkflow, ...] = ()
        with suppress(ConfigError):
            text = decode_config(read_config_bytes(file), file)
            document = jsonc.parse_jsonc(text, file)
            entries, block = find_server_map(document, file)[1], find_toolway_block(document)
            variables, _ = add_dotenv(file, environment)
            workflows = capture_workflows(parse_config(text, file, variables).gateway.workflows)
        gate.take(file, entries, block, read_dotenv_beside(file), workflows)


def load_config(
    environment: Mapping[str, str], directory: Path, named_file: Path | None = None, gate: ApprovalGate | None = None
) -> LoadedConfig:
    """Load the servers of `named_file`, else of `$TOOLWAY_CONFIG`, else of all scopes merged.

    A named file does not need trust. With a `gate`, unapproved entries are left out; entries of a named file only
    if `gate.covers_named`. Raises `ConfigError` if the named file is unusable, if no file is found, or if no server is
    left because files are unusable or untrusted.
    """
    if named_file is None and environment.get(CONFIG_FILE_VARIABLE):
        named_file = Path(environment[CONFIG_FILE_VARIABLE]).expanduser()
    if named_file is not None and gate is not None and gate.covers_named:
        return _load_named_file(named_file, environment, directory, gate)
    if named_file is not None:
        return load_file(named_file, environment)
    merged = load_scopes(environment, directory, gate)
    if not merged.files and not merged.untrusted and not merged.file_errors:
        raise no_config_error(merged.paths)
    if not merged.servers:
        _raise_no_servers(merged)
    main_file = merged.files[0].file if merged.files else os.fspath(merged.paths.user)
    watched_files = [os.fspath(path) for path in _iter_watched_files(merged.paths, environment)]
    return LoadedConfig(
        merged.servers,
        merged.issues,
        main_file,
        merged.gateway,
        partial(load_config, environment, directory, None, gate),
        tuple(watched_files),
        merged.network_policy,
        merged.held,
        approved_workflows=merged.approved_workflows,
    )


def _load_named_file(path: Path, environment: Mapping[str, str], directory: Path, gate: ApprovalGate) -> LoadedConfig:
    """Load the config file that the user named, without the entries that need review."""
    file = os.fspath(path)
    text = decode_config(read_config_bytes(file), file)  # read once: what is checked is what is used
    loaded, document = load_text(text, file, environment), jsonc.parse_jsonc(text, file)
    workflows = capture_workflows(loaded.gateway.workflows)
    if gate.start(file):
        gate.take(file, find_server_map(document, file)[1], find_toolway_block(document), loaded.dotenv, workflows)
    watched_files = loaded.watched_files
    with suppress(ConfigError):
        watched_files = (*watched_files, os.fspath(open_trust_store(environment).file))
    return replace(
        without_held(loaded, document, gate, workflows),
        reload=partial(load_config, environment, directory, path, gate),
        watched_files=watched_files,
    )


def without_held(
    config: LoadedConfig,
    document: jsonc.JsonDocument,
    gate: ApprovalGate,
    workflows: tuple[CapturedWorkflow, ...] | None = None,
) -> LoadedConfig:
    """Return a file's configuration without servers, settings and workflows that need review.

    `document` is the content of the file, `workflows` those that it defines or names; without them they are read.
    """
    root, entries = find_server_map(document, config.file)
    if workflows is None:
        workflows = capture_workflows(config.gateway.workflows)
    servers, held = dict(config.servers), list(config.held)
    for each in gate.find_held(config.file, entries, find_toolway_block(document), config.dotenv, workflows):
        name = each.name if each.name in servers else normalize_name(each.name)
        if each.kind != "server":
            held.append(replace(each, line=document.lines.get((TOOLWAY_BLOCK,))))
        elif servers.pop(name, None) is not None:
            held.append(replace(each, server=name, line=document.lines.get((*root, each.name))))
    new = [each.issue for each in held if each not in config.held]
    return replace(
        config,
        servers=servers,
        issues=(*config.issues, *new),
        held=tuple(held),
        gateway=without_held_settings(config.gateway, held),
        approved_workflows=_without_held_workflows(workflows, held),
    )


def _without_held_workflows(
    workflows: Iterable[CapturedWorkflow], held: Iterable[HeldEntry]
) -> tuple[CapturedWorkflow, ...]:
    waiting = [each.workflow for each in held if each.workflow is not None]
    return tuple(each for each in workflows if each not in waiting)


def without_held_settings(gateway: GatewaySettings, held: Collection[HeldEntry]) -> GatewaySettings:
    """Return a file's settings without agents and model addresses that need review.

    The signer of the audit log is marked as not usable.
    """
    gateway = without_held_signer(gateway, held)
    if any(each.name == MODEL_URLS_NAME for each in held):
        gateway = msgspec.structs.replace(gateway, model_urls=())
    if waiting := held_agents(held):
        agents = {name: each for name, each in gateway.agents.items() if not _uses_agent(name, each, waiting)}
        gateway = msgspec.structs.replace(gateway, agents=agents)
    return gateway


def _uses_agent(name: str, agent: ConfiguredAgent, waiting: Collection[str]) -> bool:
    """Return True if an agent needs review, or calls one that does."""
    return name in waiting or any(_uses_agent(each, inner, waiting) for each, inner in agent.settings.agents.items())


def without_held_signer(gateway: GatewaySettings, held: Iterable[HeldEntry]) -> GatewaySettings:
    """Return the settings with the audit log's signer marked as not usable if it needs review."""
    if gateway.audit is None or not any(each.name == SIGNER_NAME for each in held):
        return gateway
    return msgspec.structs.replace(gateway, audit=replace(gateway.audit, signer_held=True))


def _raise_no_servers(merged: MergedConfig) -> None:
    """Raise `ConfigError` if no server is left because a file is unusable or untrusted."""
    if merged.file_errors:
        raise merged.file_errors[0]
    if merged.untrusted:
        issue = _untrusted_issue(merged.untrusted[0])
        raise ConfigError(issue.message, file=issue.file, detail=issue.detail, hint=issue.hint, code=UNTRUSTED_CODE)


def _iter_watched_files(paths: ConfigPaths, environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the paths of all files that affect the configuration, even if they do not exist, and of the trust store."""
    files = (paths.user, *(paths.root / name for name in PROJECT_FILE_NAMES), paths.local)
    yield from files
    yield from dict.fromkeys(Path(dotenv_path(os.fspath(file))) for file in files)
    yield from dict.fromkeys(Path(each) for file in files for each in registry.entry_files(os.fspath(file)))
    try:
        yield open_trust_store(environment).file
    except ConfigError:
        return


class _ScopeMerger:
    """Merger of the configuration files of all scopes, lowest priority first."""

    def __init__(self, paths: ConfigPaths, environment: Mapping[str, str], gate: ApprovalGate | None) -> None:
        self._paths = paths
        self._environment = environment
        self._gate = gate
        self._held: list[HeldEntry] = []
        self._servers: dict[str, Server] = {}
        self._values: dict[str, list[ValueWithOrigin]] = {}
        self._origins: dict[str, Provenance] = {}
        self._overridden: dict[str, tuple[Provenance, ...]] = {}
        self._block: dict[str, Any] = {}
        self._issues: list[ConfigIssue] = []
        self._files: list[Provenance] = []
        self._untrusted: list[UntrustedFile] = []
        self._file_errors: list[ConfigError] = []
        self._network_policy = PUBLIC_ONLY
        self._workflows: tuple[CapturedWorkflow, ...] | None = None

    def merge(self) -> MergedConfig:
        for scope, path in self._paths.iter_by_scope():
            if path.is_file():
                try:
                    self._add_file(scope, path)
                except ConfigError as exc:
                    self._file_errors.append(exc)
                    self._issues.append(ConfigIssue.from_error(exc))
        return MergedConfig(
            self._paths,
            self._servers,
            tuple(self._issues),
            # valid: the block of each file was parsed before
            without_held_signer(parse_gateway(self._block, self._environment), self._held),
            tuple(self._files),
            tuple(value for values in self._values.values() for value in values),
            self._overridden,
            tuple(self._untrusted),
            tuple(self._file_errors),
            tuple(self._held),
            self._network_policy,
            self._workflows,
        )

    def _add_file(self, scope: Scope, path: Path) -> None:
        """Add the servers and settings of one config file, unless it is an untrusted project file.

        The file is read once, so the content checked for trust is the content parsed.
        """
        file = os.fspath(path)
        if scope == "project":
            reject_outside_project(path, self._paths.root)
        data = read_config_bytes(file)
        if scope == "project" and not self._is_trusted(path, data):
            return
        text = decode_config(data, file)
        variables, dotenv_issues = add_dotenv(file, self._environment, is_project=scope == "project")
        config = parse_config(text, file, variables)
        if scope == "project":
            config = without_foreign_env_files(config, os.fspath(self._paths.root))
            config = self._without_held_files(config, path)
        elif self._gate is not None:
            config = without_held(config, jsonc.parse_jsonc(text, file), self._gate)
        self._held += config.held
        origin = Provenance(scope, file)
        self._files.append(origin)
        self._issues.extend((*config.issues, *dotenv_issues, *find_missing_env_files(config)))
        self._network_policy = self._network_policy.union(config.network_policy)
        self._add_entries(config, text, origin)

    def _without_held_files(self, config: LoadedConfig, path: Path) -> LoadedConfig:
        """Return a trusted project file's configuration without the workflow files that need review."""
        workflows = capture_workflows(config.gateway.workflows)
        if not workflows:
            return replace(config, approved_workflows=())
        held = find_held_workflows(config.file, workflows, self._open_trust_store().approved_workflows(path))
        usable = _without_held_workflows(workflows, held)
        issues = (*config.issues, *(each.issue for each in held))
        return replace(config, approved_workflows=usable, held=(*config.held, *held), issues=issues)

    def _open_trust_store(self) -> TrustStore:
        try:
            return open_trust_store(self._environment)
        except ConfigError:
            return TrustStore(Path(os.devnull))

    def _is_trusted(self, path: Path, data: bytes) -> bool:
        trust_store = self._open_trust_store()
        if trust_store.is_trusted(path, data):
            return True
        untrusted = UntrustedFile(path, data, trust_store.was_trusted(path))
        self._untrusted.append(untrusted)
        self._issues.append(_untrusted_issue(untrusted))
        return False

    def _add_entries(self, config: LoadedConfig, text: str, origin: Provenance) -> None:
        document = jsonc.parse_jsonc(text, origin.file)
        lines = jsonc.find_key_lines(text, MAX_LINE_LEVELS)
        root, entries = find_server_map(document, origin.file)
        # Valid names are last, so they override normalized ones.
        for raw_name in sorted(entries, key=lambda each: each in config.servers):
            name = raw_name if raw_name in config.servers else normalize_name(raw_name)
            if name in config.servers:
                self._add_server(name, config.servers[name], locate(origin, (*root, raw_name), lines))
                self._values[name] = list_values(entries[raw_name], (name,), (*root, raw_name), lines, origin)
        block = find_toolway_block(document)
        for key, value in block.items() if isinstance(block, dict) else ():
            found = list_values(value, (TOOLWAY_BLOCK, key), (TOOLWAY_BLOCK, key), lines, origin)
            if key == "workflows":
                value, self._workflows = list(config.gateway.workflows), config.approved_workflows
            elif key == "agents" and isinstance(value, dict):
                value = {name: each for name, each in value.items() if name in config.gateway.agents}
            elif key == "modelUrls":
                value = list(config.gateway.model_urls)
            self._merge_setting(key, value, found)

    def _add_server(self, name: str, server: Server, origin: Provenance) -> None:
        overridden = self._origins.get(name)
        if overridden is not None and overridden.file != origin.file:
            self._overridden[name] = (*self._overridden.get(name, ()), overridden)
            detail = f"the entry of {origin} overrides it"
            self._issues.append(
                ConfigIssue(
                    name,
                    f"the {overridden.scope} entry of {name} is not used",
                    detail,
                    "",
                    "E-CONFIG-SCOPE",
                    "note",
                    overridden.file,
                    overridden.line,
                )
            )
        self._origins[name] = origin
        self._servers.pop(name, None)
        # A file may use the network policy of earlier files. Its own policy does not apply to their servers.
        server = with_network_policy(server, self._network_policy)
        self._servers[name] = server if origin.scope == "user" else with_project_cwd(server, self._paths.root)

    def _merge_setting(self, key: str, value: Any, found: list[ValueWithOrigin]) -> None:
        """Merge one key of a file's `toolway` block into the block of the earlier files.

        Objects such as `toolsets` merge by key, so a project can add a toolset. Any other value is replaced.
        """
        existing, remaining = self._block.get(key), self._values.get(TOOLWAY_BLOCK, [])
        if isinstance(value, dict) and isinstance(existing, dict):
            value, new = {**existing, **value}, {each.path[:3] for each in found}
            remaining = [each for each in remaining if each.path[:3] not in new]
        else:
            remaining = [each for each in remaining if each.path[1] != key]
        self._block[key] = value
        self._values[TOOLWAY_BLOCK] = remaining + found


def with_project_cwd(server: Server, folder: Path) -> Server:
    """Return `server` with the project folder as working directory of its command.

    A relative `cwd` is resolved against the folder; an absolute one stays. A server without a command stays unchanged.
    """
    if server.command is None:
        return server
    return replace(server, cwd=join_folder(os.fspath(folder), server.cwd) if server.cwd else os.fspath(folder))


def without_foreign_env_files(config: LoadedConfig, root: str) -> LoadedConfig:
    """Return a project's configuration without the servers whose `envFile` is outside the project folder.

    A repository must not decide which of the user's files a server gets.
    """
    servers, issues = dict(config.servers), list(config.issues)
    for name, server in config.servers.items():
        path = server.env_file
        if path is None:
            continue
        if not find_unset_variables(path) and is_inside(path, root):
            servers[name] = replace(server, env_file=os.path.realpath(path))
            continue
        del servers[name]
        detail = "the envFile of a project file must be inside the project"
        error = env_file_error(path, detail, "move the entry to your own configuration file")
        issues.append(msgspec.structs.replace(ConfigIssue.from_error(error, name), file=config.file))
    return replace(config, servers=servers, issues=tuple(issues))


def _untrusted_issue(untrusted: UntrustedFile) -> ConfigIssue:
    reason = "its content has changed since it was trusted" if untrusted.changed else "it is not trusted yet"
    return ConfigIssue(
        "",
        f"{untrusted.path} is not used until you trust it",
        detail=f"{reason}; it belongs to the project and can start programs",
        hint="review it: toolway trust",
        code=UNTRUSTED_CODE,
        file=os.fspath(untrusted.path),
    )


# -- origin of values -------------------------------------------------------------------------------------------------


def list_values(
    entry: Any, path: tuple[str, ...], at: jsonc.JsonPath, lines: Mapping[jsonc.JsonPath, int], file: Provenance
) -> list[ValueWithOrigin]:
    """Return each value inside a config entry with its key path and its origin (scope, file, line). Secrets are masked.

    `path` is put before the path of each value in the result; `at` is the key path of the entry in its file.
    """
    return [
        ValueWithOrigin((*path, *keys), _value_to_json(leaf, (*path, *keys)), locate(file, (*at, *keys), lines))
        for keys, leaf in _iter_leaves(entry)
    ]


def locate(file: Provenance, at: jsonc.JsonPath, lines: Mapping[jsonc.JsonPath, int]) -> Provenance:
    """Return the origin (scope, file and line) of the key at path `at`.

    If the line of the key is unknown, the result has the line of its nearest parent. `lines` contains the known lines,
    by key path.
    """
    known = next((lines[at[:end]] for end in range(len(at), 0, -1) if at[:end] in lines), None)
    return Provenance(file.scope, file.file, known)


def _value_to_json(leaf: Any, path: tuple[str, ...]) -> str:
    return json.dumps(mask_entry(leaf, *path), ensure_ascii=False)


def _iter_leaves(value: Any, parents: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping) and value and len(parents) < MAX_LINE_LEVELS:
        for key, inner in value.items():
            yield from _iter_leaves(inner, (*parents, str(key)))
    else:
        yield parents, value
