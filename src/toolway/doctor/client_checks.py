"""Checks of the config files of other MCP clients, read the way each client reads its file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from toolway.config import scopes
from toolway.config.clients.importer import find_client_files, read_client_file
from toolway.config.clients.models import Client, ClientConfigFile, ClientEntry
from toolway.config.clients.registry import CLIENTS, get_client
from toolway.config.schema import ConfigIssue
from toolway.config.scopes import open_trust_store
from toolway.config.secret_refs import join_folder
from toolway.config.server_entry import parse_entry_with_issues
from toolway.config.settings import with_network_policy
from toolway.doctor.entry_checks import CheckTarget
from toolway.doctor.file_checks import CheckPlan, ReaderRules, check_file
from toolway.doctor.report import Check, SubjectReport
from toolway.errors import ConfigError
from toolway.network.policy import NetworkPolicy

#: Clients that read JSON with comments.
_JSONC_CLIENTS: Final = frozenset({"vscode", "zed", "opencode", "kilo", "gemini-cli", "amp", "cursor"})
#: Clients that are started from a terminal and therefore inherit its PATH.
_TERMINAL_CLIENTS: Final = frozenset(
    {
        *("claude-code", "codex", "gemini-cli", "copilot-cli", "opencode", "goose", "amp", "crush", "kimi", "vibe"),
        *("grok", "factory", "kilo"),
    }
)


def plan_client_files(
    name: str, environ: Mapping[str, str], directory: Path, *, include_untrusted: bool = False
) -> CheckPlan:
    """Check the existing config files of one MCP client; return the results and the server entries to check next.

    A client without any file gets a failed check. With `include_untrusted`, servers of an untrusted project file
    are started too. Raises `ConfigError` for an unknown client name.
    """
    client = get_client(name)
    client_files = [client_file for client_file in find_client_files(environ, directory) if client_file.client == name]
    plan = _plan_files(
        [client_file for client_file in client_files if client_file.exists], environ, directory, include_untrusted
    )
    if not plan.files:
        searched = "\n".join(str(client_file.path) for client_file in client_files)
        check = Check("file", "fail", f"{client.title} has no MCP config file here", f"searched\n{searched}")
        plan.files.append(SubjectReport("file", name, (replace(check, code="E-CONFIG-NONE"),)))
    return plan


def plan_all_clients(environ: Mapping[str, str], directory: Path, *, include_untrusted: bool = False) -> CheckPlan:
    """Check the config files of every known MCP client; return the results and the server entries to check next.

    With `include_untrusted`, servers of untrusted project files are started too.
    """
    return _plan_files(
        [client_file for client_file in find_client_files(environ, directory) if client_file.exists],
        environ,
        directory,
        include_untrusted,
    )


def _plan_files(
    client_files: Sequence[ClientConfigFile], environ: Mapping[str, str], directory: Path, include_untrusted: bool
) -> CheckPlan:
    plan = CheckPlan(network_policy=scopes.load_scopes(environ, directory).network_policy)
    seen: set[str] = set()
    for client_file in client_files:
        client = CLIENTS[client_file.client]
        checks, usable = _check_format(client_file, client)
        source = os.fspath(client_file.path)
        if source not in seen:
            plan.files.append(
                SubjectReport("file", f"{client.title}: {client_file.path.name}", tuple(checks), source=source)
            )
        seen.add(source)
        if usable:
            untrusted = (
                client_file.scope == "project" and not include_untrusted and not _is_trusted(client_file, environ)
            )
            plan.targets += [
                replace(each, untrusted=untrusted) for each in _read_targets(client_file, client, environ, plan)
            ]
    return plan


def _is_trusted(client_file: ClientConfigFile, environ: Mapping[str, str]) -> bool:
    """Return True if the user trusts a client's config file with its current content.

    The content counts, because a repository can change the file at any time.
    """
    try:
        return open_trust_store(environ).is_trusted(client_file.path, client_file.path.read_bytes())
    except (ConfigError, OSError):
        return False


def _check_format(client_file: ClientConfigFile, client: Client) -> tuple[list[Check], bool]:
    if client_file.format != "json":
        return [Check("file", "ok", f"{client_file.path.name}")], True
    reader = ReaderRules(
        client.title, client_file.root[:1], client.name in _JSONC_CLIENTS, allows_bom=False, allows_top_level=False
    )
    file = check_file(client_file.path, reader)
    return file.checks, file.entries is not None


def _read_targets(
    client_file: ClientConfigFile, client: Client, environ: Mapping[str, str], plan: CheckPlan
) -> Iterator[CheckTarget]:
    try:
        imported = read_client_file(client_file)
    except ConfigError as exc:
        check = Check("file", "fail", exc.message, exc.detail, exc.hint, code=exc.code)
        plan.files.append(SubjectReport("file", client.title, (check,), source=os.fspath(client_file.path)))
        return
    for problem in imported.issues:
        if not any(problem.server == entry.name for entry in imported.entries):
            yield _build_target(client_file, client, problem.server or client_file.path.name, None, (problem,))
    for entry in imported.entries:
        problems = [each for each in imported.issues if each.server == entry.name]
        problems += _check_transport_type(client, entry)
        yield _target_from_entry(client_file, client, entry, problems, environ, plan.network_policy)


def _target_from_entry(
    client_file: ClientConfigFile,
    client: Client,
    entry: ClientEntry,
    problems: list[ConfigIssue],
    environ: Mapping[str, str],
    network_policy: NetworkPolicy,
) -> CheckTarget:
    server = None
    try:
        # Keys under `extras` have an effect in this client.
        value = {key: item for key, item in entry.value.items() if key != "extras"}
        server, entry_problems = parse_entry_with_issues(value, environ)
        server = with_network_policy(server, network_policy)
        problems += entry_problems
    except ConfigError as exc:
        problems.append(ConfigIssue.from_error(exc, entry.name))
    if server is not None and server.command is not None and client_file.directory is not None:
        server = replace(server, cwd=os.fspath(client_file.directory / (server.cwd or "")))
    if server is not None and server.env_file is not None and client_file.directory is not None:
        server = replace(server, env_file=join_folder(os.fspath(client_file.directory), server.env_file))
    target = _build_target(client_file, client, entry.name, entry, tuple(problems))
    return replace(target, server=server)


def _build_target(
    client_file: ClientConfigFile,
    client: Client,
    name: str,
    entry: ClientEntry | None,
    problems: tuple[ConfigIssue, ...],
) -> CheckTarget:
    raw_entry = entry.raw if entry is not None and isinstance(entry.raw, Mapping) else {}
    return CheckTarget(
        name=name,
        server=None,
        file=os.fspath(client_file.path),
        line=entry.line if entry is not None else None,
        root=client_file.root,
        raw_name=name,
        raw_entry=raw_entry,
        client=client.name,
        title=client.title,
        is_desktop_client=client.name not in _TERMINAL_CLIENTS,
        problems=problems,
    )


def _check_transport_type(client: Client, entry: ClientEntry) -> Iterator[ConfigIssue]:
    """Yield a problem if a config entry has a transport type that its MCP client does not know.

    Each client spells the transport in its own way and silently ignores other spellings.
    """
    types = client.dialect.types
    if not isinstance(entry.raw, Mapping) or not types:
        return
    transport_type = entry.raw.get(client.dialect.type_key)
    remote = isinstance(entry.value.get("url"), str)
    wanted = types.get("http" if remote else "stdio")
    if isinstance(transport_type, str) and transport_type not in types.values():
        yield ConfigIssue(
            entry.name,
            f'unknown type "{transport_type}" for {client.title}',
            detail=f"known types: {', '.join(dict.fromkeys(types.values()))}",
            hint=f'set "{client.dialect.type_key}": "{wanted}"',
            code="E-CONFIG-TYPE",
        )
    elif transport_type is None and remote and client.name == "claude-code":
        message = f"{client.title} treats an entry without a type as a command"
        yield ConfigIssue(entry.name, message, "it has a url", f'add "type": "{wanted}"', "E-CONFIG-TYPE")
