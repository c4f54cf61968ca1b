"""Planning, display, confirmation and atomic application of config file changes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolway._os import home_folder
from toolway.cli.exit_codes import UsageError, did_you_mean
from toolway.cli.options import CommandContext
from toolway.cli.output import Output
from toolway.config import scopes
from toolway.config.approval.held_entries import approve_written
from toolway.config.clients import plan_export, read_client_file, toolway_file
from toolway.config.clients.models import ClientConfigFile, ExportPlan, RootPath
from toolway.config.editing import document, jsonc
from toolway.config.editing.document import Backup, ConfigDocument, Edit, apply_edit
from toolway.config.loader import (
    SERVER_MAP_KEYS,
    TOOLWAY_BLOCK,
    decode_config,
    find_server_map,
    find_toolway_block,
    normalize_name,
    parse_config,
    read_config_bytes,
    reject_outside_project,
)
from toolway.config.loader import load_file as read_file
from toolway.config.masking import build_review_masker
from toolway.config.schema import Server
from toolway.config.scopes import find_config_paths, open_trust_store
from toolway.errors import ConfigError, NotFound
from toolway.middleware.resolve import require_server
from toolway.network.policy import PUBLIC_ONLY, NetworkPolicy

WRITABLE_SCOPES = ("user", "project", "local")
_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


# -- changes of our files ----------------------------------------------------------------------------------------------


def own_config_file(file: Path) -> ClientConfigFile:
    """Return one of Toolway's own config files as a `ClientConfigFile`, with its root key."""
    value = ConfigDocument(file).value
    keys = value.keys() if isinstance(value, dict) else set()
    root: RootPath = next(((key,) for key in SERVER_MAP_KEYS if key in keys), ("mcpServers",))
    if not keys & set(SERVER_MAP_KEYS) and any(key != TOOLWAY_BLOCK and not key.startswith("$") for key in keys):
        root = ()  # a bare map of servers
    config_file = toolway_file(file, root)
    return (
        config_file
        if not _is_project_file(file)
        else replace(config_file, directory=find_config_paths(os.environ, Path.cwd()).root)
    )


def read_own_entries(file: Path) -> dict[str, Any]:
    """Return the server entries of one of Toolway's own config files, by name.

    They are normalized, and their variables are not expanded. Raises `ConfigError` if the file cannot be read.
    """
    imported = read_client_file(own_config_file(file))
    return {entry.name: dict(entry.value) for entry in imported.entries}


def network_policy_for(file: Path) -> NetworkPolicy:
    """Return the network policy of a Toolway config file, joined with the policy of the user's file."""
    policy = PUBLIC_ONLY
    for each in {find_config_paths(os.environ, Path.cwd()).user, file}:
        if each.is_file():
            with suppress(ConfigError):
                policy = policy.union(read_file(each).network_policy)
    return policy


def plan_own_change(file: Path, servers: dict[str, Any], remove: Sequence[str] = ()) -> ExportPlan:
    """Plan a change of one of Toolway's own config files: write `servers`, delete `remove`.

    Raises `ConfigError` if the file cannot be read or changed.
    """
    return plan_export(own_config_file(file), servers, remove)


def apply_own_edit(output: Output, edit: Edit, *, dry_run: bool) -> dict[str, Any]:
    """Apply a change to one of Toolway's own config files, and return what was done as JSON.

    A trusted project file stays trusted, and the entries that the change writes to the user's own files are approved.
    With `dry_run`, nothing is written.
    """
    trust_store = open_trust_store(os.environ)
    was_trusted = edit.before is None or trust_store.is_trusted(edit.path, edit.before)
    will_write = has_changes(edit) and not dry_run
    if not output.as_json and (dry_run or output.verbose):
        print_edit(output, edit)
    backup = apply_edit(edit) if will_write else None
    if will_write and was_trusted and _is_project_file(edit.path):
        trust_store.trust(edit.path, edit.after, allow_commands=True)
    elif will_write:
        approve_own_edit(edit.path, edit.before, edit.after)
    return {
        "file": str(edit.path),
        "changed": will_write,
        "diff": edit.diff(),
        "backup": str(backup) if backup is not None else None,
    }


def approve_own_edit(path: Path, before: bytes | None, after: bytes, *, keep_waiting: bool = False) -> None:
    """Trust the entries that a Toolway command wrote to one of the user's own files.

    Entries that the command did not change stay approved or waiting; with `keep_waiting`, entries that waited keep
    waiting even if the command has changed them. Nothing is approved in a named file without stored approvals: a
    gateway approves it as a whole when it first starts with it.
    """
    trust_store, file = open_trust_store(os.environ), os.fspath(path)
    if trust_store.approved_entries(file) is None and not _is_own_scope_file(path):
        return
    contents = parse_entries(before, file), parse_entries(after, file)
    approve_written(trust_store, file, *contents, keep_waiting=keep_waiting)


def _is_own_scope_file(path: Path) -> bool:
    paths = find_config_paths(os.environ, Path.cwd())
    return os.path.realpath(path) in (os.path.realpath(paths.user), os.path.realpath(paths.local))


def parse_entries(data: bytes | None, file: str) -> tuple[dict[str, Any], Any]:
    """Return a config file's server map and `toolway` block; empty if it cannot be parsed."""
    try:
        found = jsonc.parse_jsonc((data or b"{}").decode(errors="replace"), file)
        return find_server_map(found, file)[1], find_toolway_block(found)
    except ConfigError:
        return {}, None


def has_changes(edit: Edit) -> bool:
    """Return True if the edit changes the file. Creating an empty file is not a change."""
    return edit.has_changes and bool(edit.before is not None or edit.after)


def _is_project_file(file: Path) -> bool:
    return any(
        os.path.realpath(file) == os.path.realpath(each) for each in find_config_paths(os.environ, file.parent).project
    )


# -- display and confirmation ------------------------------------------------------------------------------------------


def with_tilde(path: str | os.PathLike[str]) -> str:
    """Return a path for display, with `~` for the home directory."""
    text, home = os.fspath(path), home_folder(os.environ).rstrip(os.sep)
    return f"~{text[len(home) :]}" if home and text.startswith(f"{home}{os.sep}") else text


def print_edit(output: Output, edit: Edit) -> None:
    """Print a change of a config file as a unified diff."""
    if not edit.has_changes:
        output.info(f"{edit.path}: no changes", "dim")
    for line in edit.diff().splitlines():
        output.print_line(line, "bold" if line.startswith(("+++", "---")) else _DIFF_STYLES.get(line[:1], ""))


def mask_secrets(output: Output, edit: Edit, more_servers: Iterable[Server] = ()) -> None:
    """Mask the secrets of both versions of a config file in all later output. Command lines stay visible."""
    servers = list(more_servers)
    for data in (edit.before, edit.after):
        try:
            servers += parse_config((data or b"{}").decode(errors="replace")).servers.values()
        except ConfigError:
            continue  # no readable servers; the content is shown only to the owner of the file
    output.mask = build_review_masker(servers)


def confirm(output: Output, question: str, yes: bool, *, default: bool = False) -> bool:
    """Ask the user a yes/no question and return the answer; True without asking if `yes`.

    An empty line means `default`. Raises `UsageError` without a terminal if --yes was not given.
    """
    if yes:
        return True
    if output.as_json or not sys.stdin.isatty() or not sys.stderr.isatty():
        raise UsageError(f"confirmation required: {question}", hint="pass --yes to confirm, or --dry-run to preview")
    sys.stderr.write(f"{output.sanitize(question)} {'[Y/n]' if default else '[y/N]'} ")
    sys.stderr.flush()
    line = sys.stdin.readline()
    return default if line == "\n" else line.strip().lower() in ("y", "yes")  # no line at all is not an answer


# -- selection of our files, and their earlier versions ----------------------------------------------------------------


def file_for_scope(context: CommandContext, scope: str | None) -> Path:
    """Return the config file that a new entry is written to.

    It is the one that the command uses, or the file of scope user (default), project or local. Raises `UsageError` if
    the scope is unknown.
    """
    explicit = context.config_file() if scope is None else None
    if explicit is not None:
        return explicit
    if scope not in (None, *WRITABLE_SCOPES):
        raise UsageError(
            f"unknown scope {scope!r}",
            hint=did_you_mean(str(scope), WRITABLE_SCOPES) or f"one of {', '.join(WRITABLE_SCOPES)}",
        )
    scope_files = scopes.find_config_paths(os.environ, Path.cwd())
    if scope == "project":
        file = scope_files.project[-1] if scope_files.project else scope_files.root / ".mcp.json"
        reject_outside_project(file, scope_files.root)
        return file
    return scope_files.local if scope == "local" else scope_files.user


def file_for_server(context: CommandContext, name: str) -> Path:
    """Return the config file that holds the effective entry of this server.

    Raises `NotFound` if no file has such an entry, and `ConfigError` if a file cannot be read.
    """
    explicit = context.config_file()
    if explicit is not None:
        return explicit
    merged = scopes.load_scopes(os.environ, Path.cwd())
    for origin in reversed(merged.files):  # the file with the highest precedence is last; the entry may be unusable
        _, entries = find_server_map(
            jsonc.parse_jsonc(decode_config(read_config_bytes(origin.file), origin.file), origin.file), origin.file
        )
        if any(name in (written_name, normalize_name(written_name)) for written_name in entries):
            return Path(origin.file)
    if merged.file_errors:
        raise merged.file_errors[0]
    require_server(merged.servers, name)
    raise NotFound(f"no config file has an entry {name!r}", server=name)


def list_versions(file: Path) -> list[Backup]:
    """Return the backups that Toolway made before each change of a config file, newest first."""
    return document.list_backups(Path(os.path.realpath(file)), document.default_backup_folder(os.environ))


def get_version(file: Path, number: int) -> Backup:
    """Return a backup of a config file by number; 1 is the version before the last change.

    Raises `NotFound` if no backup has this number.
    """
    found = list_versions(file)
    if not 0 < number <= len(found):
        detail = f"there are {len(found)}" if found else "toolway never changed it"
        raise NotFound(
            f"{file} has no earlier version {number}", detail=detail, hint="list all: toolway config history"
        )
    return found[number - 1]
