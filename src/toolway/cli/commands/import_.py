"""`toolway init` and `toolway clients import`: copy servers from client config files to Toolway's.

Client files do not change.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from toolway.cli.commands.approvals.trust import (
    confirm_review,
    find_plain_secrets,
    move_secrets_to_store,
    review_entries,
)
from toolway.cli.exit_codes import ExitCode, UsageError
from toolway.cli.file_changes import (
    apply_own_edit,
    confirm,
    file_for_scope,
    mask_secrets,
    network_policy_for,
    plan_own_change,
    read_own_entries,
    with_tilde,
)
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.cli.output import Output, problem_to_json
from toolway.cli.params import ClientNames, DryRun, Plain, Scope, Yes
from toolway.config.approval.held_entries import json_digest
from toolway.config.clients import CLIENTS, find_client_files, get_client, read_client_file, to_portable
from toolway.config.clients.removed_servers import RemovedServers
from toolway.config.loader import normalize_name
from toolway.config.masking import mask_value
from toolway.config.server_entry import find_ignored_keys
from toolway.config.settings import find_private_hosts

if TYPE_CHECKING:
    from toolway.config.clients import ClientEntry
    from toolway.config.schema import ConfigIssue

ImportStatus = Literal["new", "known", "duplicate", "removed"]


def init(context: CommandContext, plain: Plain = False, yes: Yes = False, dry_run: DryRun = False) -> CommandResult:
    """Copy the servers of your MCP clients to your own config file. Files of clients do not change."""
    return run_import(context, [], project=False, scope=None, plain=plain, yes=yes, dry_run=dry_run, first_run=True)


def import_(
    context: CommandContext,
    clients: ClientNames = None,
    all_clients: Annotated[bool, typer.Option("--all", help="Import from all clients (the default).")] = False,
    project: Annotated[bool, typer.Option("--project", help="Also import files of this project.")] = False,
    digest: Annotated[
        str | None,
        typer.Option(
            "--digest", metavar="SHA256", help="With --project: trust these servers of it.", show_default=False
        ),
    ] = None,
    scope: Scope = None,
    plain: Plain = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> CommandResult:
    """Copy servers from the files of MCP clients to your config file.

    A server that several clients have is copied once. Plain-text tokens can be moved to the secret store. Servers of a
    project's files are shown and need your confirmation; --yes is not enough, --digest is.
    """
    return run_import(
        context, clients or [], project=project, scope=scope, plain=plain, yes=yes, dry_run=dry_run, digest=digest
    )


# -- import ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DiscoveredServer:
    """A server found in a client's config file, and its import status: new, known or duplicate."""

    name: str
    client: str
    entry: dict[str, Any] = field(repr=False)
    status: ImportStatus
    source: str  # file and line
    note: str = ""
    is_project: bool = False  # of a file of the project, which everyone who can change the repository can change


def run_import(
    context: CommandContext,
    clients: Sequence[str],
    *,
    project: bool,
    scope: str | None,
    plain: bool,
    yes: bool,
    dry_run: bool,
    digest: str | None = None,
    first_run: bool = False,
) -> ExitCode:
    """Import new servers from clients into one of Toolway's config files, and print the result."""
    document = import_servers(
        context, clients, project=project, scope=scope, plain=plain, yes=yes, dry_run=dry_run, digest=digest
    )
    output = context.output
    if output.as_json:
        output.print_json(document)
    elif first_run and not document["found"]:
        output.info("add one: toolway add NAME -- COMMAND …, or toolway add URL")
    return ExitCode.CONFIG if document["untrusted"] else ExitCode.OK


def import_servers(
    context: CommandContext,
    clients: Sequence[str],
    *,
    project: bool = False,
    scope: str | None = None,
    plain: bool = False,
    yes: bool,
    dry_run: bool,
    digest: str | None = None,
    again: bool = True,
) -> dict[str, Any]:
    """Import new servers from clients into one of Toolway's config files.

    Servers that the user removed are imported again only with `again`.

    Servers of a project are imported only if the user confirms them, or gives their digest. Returns the result as JSON.
    Prints messages too, unless --json is set.
    """
    output = context.output
    file = file_for_scope(context, scope)
    found, problems = discover_servers(clients, read_own_entries(file), project=project)
    removed = RemovedServers.open(os.environ)
    if removed is not None and not again:
        found = [_skip_removed(each, removed) for each in found]
    new = {each.name: each.entry for each in found if each.status == "new"}
    if not output.as_json:
        _print_discovered(output, found)
        output.print_problems(problems)
    of_project = {each.name: each.entry for each in found if each.status == "new" and each.is_project}
    untrusted = of_project if not dry_run and not _confirm_project_servers(output, of_project, digest) else {}
    new = {name: entry for name, entry in new.items() if name not in untrusted}
    unconfirmed = new.keys() - of_project.keys()
    if unconfirmed and not dry_run and not confirm(output, _import_question(len(unconfirmed)), yes, default=True):
        new = {name: entry for name, entry in new.items() if name in of_project}
    if new and not plain and not dry_run and _should_move_secrets(output, new, yes):
        new = move_secrets_to_store(output, new)
    entry_problems = [*find_private_hosts(new, network_policy_for(file)), *find_ignored_keys(new)]
    change = plan_own_change(file, new).edit
    mask_secrets(output, change)
    edit_result = apply_own_edit(output, change, dry_run=dry_run)
    if removed is not None and not dry_run:
        removed.forget([server_identity(entry) for entry in new.values()])
    if new and not dry_run and not output.as_json:
        output.info_wrapped(
            f"{_format_count(len(new))} written to {with_tilde(file)}; no client file was changed", "green"
        )
        output.print_problems(entry_problems)
        output.info("check that they work: toolway doctor")
    rows = [
        {"server": f.name, "client": f.client, "status": f.status, "source": f.source, "note": f.note} for f in found
    ]
    return {
        "found": rows,
        "untrusted": {"servers": list(untrusted), "digest": json_digest(untrusted)} if untrusted else None,
        "problems": [problem_to_json(p) for p in (*problems, *entry_problems)],
        **edit_result,
    }


def _skip_removed(found: DiscoveredServer, removed: RemovedServers) -> DiscoveredServer:
    if found.status != "new" or server_identity(found.entry) not in removed:
        return found
    note = f"removed with toolway rm; import it again: toolway clients import {found.client}"
    return replace(found, status="removed", note=note)


def _confirm_project_servers(output: Output, entries: Mapping[str, Any], digest: str | None) -> bool:
    """Show the servers of a project's files in full, and return True if the user wants to import them."""
    return not entries or confirm_review(output, review_entries("servers of this project", entries), digest)


def _should_move_secrets(output: Output, new: Mapping[str, Mapping[str, Any]], yes: bool) -> bool:
    moves = find_plain_secrets(new)
    if not moves:
        return False
    number = sum(len(each) for each in moves.values())
    subject = "1 token is stored" if number == 1 else f"{number} tokens are stored"
    output.info(
        f"{subject} in plain text: {', '.join(f'{n} ({m.location})' for n, ms in moves.items() for m in ms)}", "yellow"
    )
    try:
        return confirm(
            output, "Move them to the secret store? The new file then only refers to them.", yes, default=True
        )
    except UsageError:
        return True  # the servers of a project were confirmed by their digest, without a terminal


def _import_question(number: int) -> str:
    return "Import 1 server?" if number == 1 else f"Import {number} servers?"


def _print_discovered(output: Output, found: Sequence[DiscoveredServer]) -> None:
    if not found:
        output.info("no servers found in client files")
        return
    rows = [(f.name, CLIENTS[f.client].title, f.status, f.note or _command_or_url(f.entry)) for f in found]
    output.print_table(("server", "client", "status", "runs"), rows, cut=True)


def _command_or_url(entry: Mapping[str, Any]) -> str:
    entry = mask_value(entry)
    return str(entry.get("url") or " ".join([str(entry.get("command")), *map(str, entry.get("args") or [])]))


def _format_count(number: int) -> str:
    return "1 server is" if number == 1 else f"{number} servers are"


# -- servers of clients ------------------------------------------------------------------------------------------------


def discover_servers(
    clients: Sequence[str], known: Mapping[str, Any], *, project: bool
) -> tuple[list[DiscoveredServer], list[ConfigIssue]]:
    """Read the servers in the config files of these clients, or of all clients.

    Returns them with the problems of the files. `known` are the entries that Toolway already has.
    """
    for name in clients:
        get_client(name)  # raises for an unknown client
    scopes = ("user", "local", "managed", *(["project"] if project else []))
    chosen = [
        p
        for p in find_client_files(os.environ, Path.cwd())
        if p.exists and p.scope in scopes and p.client in (clients or CLIENTS)
    ]
    imported = [read_client_file(config_file) for config_file in chosen]
    deduplicator = _Deduplicator(known)
    found = [
        deduplicator.classify(entry) for each in imported for entry in each.entries if not is_hub_entry(entry.value)
    ]
    return found, [problem for each in imported for problem in each.issues]


class _Deduplicator:
    """Classifies clients' server entries: new, known (in our own file) or duplicate.

    Of several entries for the same server the first is kept. Entries whose environment or headers differ are different
    servers: two accounts, or two folders of data.
    """

    def __init__(self, known: Mapping[str, Any]) -> None:
        self._names = {normalize_name(name) for name in known}
        self._seen: list[tuple[str, str, dict[str, Any]]] = [
            (normalize_name(name), "", dict(entry)) for name, entry in known.items()
        ]

    def classify(self, entry: ClientEntry) -> DiscoveredServer:
        value, client = to_portable(entry), entry.file.client
        source = f"{entry.file.path}:{entry.line}" if entry.line else str(entry.file.path)
        name, note = normalize_name(entry.name), ""
        is_project = entry.file.scope == "project"
        for known_name, first_client, first in self._seen:
            is_own = not first_client
            if is_same_server(first, value, is_own=is_own):
                if is_own:
                    return DiscoveredServer(
                        known_name, client, value, "known", source, f"it is {known_name} in our own file"
                    )
                note = f"it is {known_name} of {CLIENTS[first_client].title}"
                return DiscoveredServer(known_name, client, value, "duplicate", source, note)
        if name in self._names:
            name, note = self._unused_name(f"{name}-{client}"), f"another server is named {name}"
        self._names.add(name)
        self._seen.append((name, client, value))
        return DiscoveredServer(name, client, value, "new", source, note, is_project)

    def _unused_name(self, name: str) -> str:
        return next(each for each in (name, *(f"{name}-{n}" for n in range(2, 1000))) if each not in self._names)


def is_same_server(first: Mapping[str, Any], second: Mapping[str, Any], *, is_own: bool) -> bool:
    """Return True if two entries describe the same server: equal command or URL, environment and headers."""
    return server_identity(first) == server_identity(second) and not _differ(first, second, is_own=is_own)


def _differ(first: Mapping[str, Any], second: Mapping[str, Any], *, is_own: bool) -> bool:
    """Return True if the environment or the headers of two entries differ.

    An unresolved ${…} reference matches every value. If `first` is an entry of Toolway's file, its references may be
    missing in `second`: an export leaves secrets out.
    """
    for field_ in ("env", "headers"):
        one, other = (entry.get(field_) or {} for entry in (first, second))
        if other.keys() - one.keys():
            return True
        if any(not is_own or "${" not in str(one[name]) for name in one.keys() - other.keys()):
            return True
        for name in one.keys() & other.keys():
            if one[name] != other[name] and not any("${" in str(text) for text in (one[name], other[name])):
                return True
    return False


def server_identity(entry: Mapping[str, Any]) -> str:
    """Return a string that identifies an entry's server: its URL, or its command with arguments."""
    url = entry.get("url")
    if isinstance(url, str):
        return url.rstrip("/").lower()
    command = os.path.basename(str(entry.get("command")))
    args = [arg for arg in entry.get("args") or [] if arg not in ("-y", "--yes")]
    return json.dumps([command, args], default=str)


def is_hub_entry(entry: Mapping[str, Any]) -> bool:
    """Return True if the entry starts Toolway itself, as `toolway connect` writes it."""
    args = entry.get("args") or []
    ours = os.path.basename(str(entry.get("command"))) == "toolway" or "toolway.cli" in args
    return ours and "serve" in args and "--stdio" in args
