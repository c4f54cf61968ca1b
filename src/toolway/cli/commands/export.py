"""`toolway clients export`, `clients sync` and `connect`: write to the config files of clients."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from toolway.cli.commands.import_ import import_servers, is_hub_entry, is_same_server, server_identity
from toolway.cli.exit_codes import ExitCode, UsageError, did_you_mean
from toolway.cli.file_changes import confirm, has_changes, own_config_file, print_edit, read_own_entries, with_tilde
from toolway.cli.framework import CommandResult
from toolway.cli.gateway_client import GatewayClient, find_local_gateway, gateway_from_url
from toolway.cli.options import CommandContext
from toolway.cli.output import Output, problem_to_json
from toolway.cli.params import ClientNames, DryRun, Yes
from toolway.cli.targets import load_masked_config
from toolway.config import scopes
from toolway.config.clients import CLIENTS, find_client_files, get_client, plan_export, read_client_file, to_portable
from toolway.config.editing.document import apply_edit
from toolway.config.loader import normalize_name, reject_outside_project
from toolway.config.schema import ConfigIssue
from toolway.config.secrets import find_unmovable_secrets, plan_secret_moves
from toolway.errors import ConfigError
from toolway.gateway.state_dir import StateDir

if TYPE_CHECKING:
    from toolway.cli.targets import TargetOptions
    from toolway.config.clients import ClientConfigFile, ExportPlan
    from toolway.config.clients.models import Snippet

HUB_ENTRY_NAME = "toolway"
_TOOLSET_NAME: Final = re.compile(r"(?:server/)?[a-z0-9-]{1,64}")
_DEFAULT_URL: Final = "http://127.0.0.1:8765"
ClientScope = Annotated[
    str, typer.Option("--scope", metavar="SCOPE", help="user (the default) or project.", show_default=False)
]


def export(
    context: CommandContext,
    clients: ClientNames = None,
    all_clients: Annotated[bool, typer.Option("--all", help="Export to all clients on this machine.")] = False,
    scope: ClientScope = "user",
    yes: Yes = False,
    dry_run: DryRun = False,
) -> CommandResult:
    """Each change is shown first, and the old file is backed up. Settings that a client does not support are reported.

    YAML files (Goose, Continue, Docker MCP) are not changed: the lines to add are printed.

    To write one entry for the gateway in place of all servers: toolway connect CLIENT
    """
    return run_export(context, clients or [], all_clients=all_clients, scope=scope, yes=yes, dry_run=dry_run)


def connect(
    context: CommandContext,
    clients: ClientNames = None,
    all_clients: Annotated[bool, typer.Option("--all", help="Connect all clients on this machine.")] = False,
    print_only: Annotated[
        bool, typer.Option("--print", help="Change nothing; print how to connect CLIENT, or generic.")
    ] = False,
    toolset: Annotated[
        str | None,
        typer.Option(
            "--toolset", metavar="NAME", help="With --print: this toolset, or server/NAME.", show_default=False
        ),
    ] = None,
    search: Annotated[
        bool, typer.Option("--search", help="List only the meta-tools, which find all other tools.")
    ] = False,
    scope: ClientScope = "user",
    yes: Yes = False,
    dry_run: DryRun = False,
) -> CommandResult:
    """Write one entry, Toolway itself, to the config file of a client, in place of the servers behind it.

    Each change is shown first, and the old file is backed up.

    With --print, print a command, or lines for the client's file, to connect it to the running gateway or the one of
    --gateway.
    """
    if search and toolset is not None:
        raise UsageError(
            "--search and --toolset cannot be used together",
            hint='remove --search; for search in a toolset, set "search": true in it',
        )
    if print_only:
        if all_clients or len(clients or ()) != 1:
            raise UsageError("--print requires exactly one client", hint="toolway connect CLIENT --print")
        endpoint = "search" if search else toolset
        return run_print(context.output, context.target_options, (clients or [""])[0], endpoint)
    if toolset is not None or context.target_options.gateway is not None:
        option = "--toolset" if toolset is not None else "--gateway"
        raise UsageError(f"{option} requires --print", hint="toolway connect CLIENT --print")
    return run_export(
        context,
        clients or [],
        all_clients=all_clients,
        connect=True,
        search=search,
        scope=scope,
        yes=yes,
        dry_run=dry_run,
    )


def sync(context: CommandContext, yes: Yes = False, dry_run: DryRun = False) -> CommandResult:
    """Copy new servers of clients to your config file, and from there to all clients.

    A client that is connected to Toolway keeps only that entry.
    """
    return run_sync(context, yes=yes, dry_run=dry_run)


# -- export ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClientExport:
    """Planned export to one client: its config file and the change of that file."""

    config_file: ClientConfigFile
    plan: ExportPlan


def run_export(
    context: CommandContext,
    clients: Sequence[str],
    *,
    all_clients: bool,
    connect: bool = False,
    search: bool = False,
    scope: str,
    yes: bool,
    dry_run: bool,
) -> ExitCode:
    """Export Toolway's servers to client config files, or with `connect` one entry that starts Toolway itself.

    Each change is shown and confirmed first.
    """
    if bool(clients) == all_clients:
        command = "toolway connect" if connect else "toolway clients export"
        raise UsageError("no client given", hint=f"{command} CLIENT, or {command} --all")
    output = context.output
    load_masked_config(output, context.target_options)  # masks its secrets in the output
    effective_entries = read_effective_entries(context)
    config_files = [_client_file(name, scope) for name in clients] if clients else _installed_client_files(scope)
    exports = [
        ClientExport(
            config_file,
            _plan_client_export(
                config_file,
                effective_entries,
                build_hub_entry(context.config_file(), search=search) if connect else None,
            ),
        )
        for config_file in config_files
    ]
    return _apply_exports(output, exports, yes=yes, dry_run=dry_run)


def run_sync(context: CommandContext, *, yes: bool, dry_run: bool) -> ExitCode:
    """Import new servers from all clients, then export all servers to every client.

    A client that uses the entry of Toolway itself keeps only that entry.
    """
    import_document = import_servers(context, [], yes=yes, dry_run=dry_run, again=False)
    effective_entries = read_effective_entries(context)
    exports = [
        ClientExport(config_file, _plan_client_export(config_file, effective_entries, _find_hub_entry(config_file)))
        for config_file in _installed_client_files("user")
    ]
    return _apply_exports(context.output, exports, yes=yes, dry_run=dry_run, import_document=import_document)


def read_effective_entries(context: CommandContext) -> dict[str, dict[str, Any]]:
    """Return the server entries of all effective Toolway config files, by name.

    Their variables are not expanded.
    """
    explicit = context.config_file()
    if explicit is not None:
        return {normalize_name(name): entry for name, entry in read_own_entries(explicit).items()}
    merged = scopes.load_scopes(os.environ, Path.cwd(), scopes.ApprovalGate.open(os.environ))
    held = {(each.file, each.name) for each in merged.held}
    found: dict[str, dict[str, Any]] = {}
    for origin in merged.files:
        for entry in read_client_file(own_config_file(Path(origin.file))).entries:
            is_held = (origin.file, entry.name) in held
            if normalize_name(entry.name) in merged.servers and not is_held:
                found[normalize_name(entry.name)] = to_portable(entry)
    return found


def _client_file(client: str, scope: str) -> ClientConfigFile:
    """Return the config file of a client to which servers are exported.

    Raises `ConfigError` if the client is unknown, and `UsageError` if it has no file of this scope.
    """
    get_client(client)
    config_files = [
        config_file for config_file in find_client_files(os.environ, Path.cwd()) if config_file.client == client
    ]
    chosen = [config_file for config_file in config_files if config_file.scope == scope]
    if not chosen:
        raise UsageError(
            f"{CLIENTS[client].title} has no {scope} file",
            hint=f"use --scope {' or '.join(sorted({config_file.scope for config_file in config_files}))}",
        )
    return next((config_file for config_file in chosen if config_file.exists), chosen[0])


def _installed_client_files(scope: str) -> list[ClientConfigFile]:
    """Return one config file for each client installed on this machine."""
    installed = {
        config_file.client
        for config_file in find_client_files(os.environ, Path.cwd())
        if config_file.exists and config_file.scope != "project"
    }
    found = [
        config_file
        for config_file in find_client_files(os.environ, Path.cwd())
        if config_file.client in installed and config_file.scope == scope
    ]
    return [_client_file(client, scope) for client in dict.fromkeys(config_file.client for config_file in found)]


def _plan_client_export(
    config_file: ClientConfigFile, own_entries: Mapping[str, dict[str, Any]], hub: dict[str, Any] | None
) -> ExportPlan:
    """Plan the export of all servers to a client, or of the entry `hub` that replaces them.

    The entry `hub` starts Toolway itself.
    """
    client_entries = {entry.name: to_portable(entry) for entry in read_client_file(config_file).entries}
    if hub is None:
        allowed, omitted = _omit_plain_secrets(config_file, _use_client_names(own_entries, client_entries))
        export = plan_export(config_file, allowed)
        return replace(export, unsupported=(*export.unsupported, *omitted))
    replaced = [
        name
        for name, value in client_entries.items()
        if any(is_same_server(entry, value, is_own=True) for entry in own_entries.values())
    ]
    return plan_export(config_file, {HUB_ENTRY_NAME: hub}, remove=replaced)


def _omit_plain_secrets(
    config_file: ClientConfigFile, entries: Mapping[str, dict[str, Any]]
) -> tuple[dict[str, dict[str, Any]], list[ConfigIssue]]:
    """Return the entries that add no plain-text secret to the client's file, and a problem for each that would."""
    current_text = config_file.path.read_text(errors="replace") if config_file.exists else ""
    allowed, omitted = {}, []
    for name, entry in entries.items():
        secrets = {move.secret: move.location for move in plan_secret_moves(name, entry)}
        secrets |= dict.fromkeys(find_unmovable_secrets(entry), "args")
        new = sorted({field_name for secret, field_name in secrets.items() if secret not in current_text})
        if new:
            omitted.append(_omitted_problem(name, config_file, new))
        else:
            allowed[name] = entry
    return allowed, omitted


def _omitted_problem(name: str, config_file: ClientConfigFile, field_names: Sequence[str]) -> ConfigIssue:
    return ConfigIssue(
        name,
        f"{name} was not exported",
        detail=f"{', '.join(field_names)} is a plain-text secret and would be copied into another file",
        hint=f"connect the client to Toolway instead: toolway connect {config_file.client}",
        code="E-CLIENT-SECRET",
        severity="warning",
        file=str(config_file.path),
    )


def _use_client_names(
    own_entries: Mapping[str, dict[str, Any]], client_entries: Mapping[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return Toolway's server entries under the names that the client uses.

    A server that the client has already (the same command or URL, environment and headers) keeps the client's name. So
    does a server with the same name and command but another environment. The remaining servers get names not in use.
    """
    client_names: dict[str, str] = {}  # own name → name that the client uses
    for name, entry in own_entries.items():
        for used, value in client_entries.items():
            if used not in client_names.values() and is_same_server(entry, value, is_own=True):
                client_names[name] = used
                break
    for name, entry in own_entries.items():
        is_free = name not in client_names and name not in client_names.values()
        if is_free and name in client_entries and server_identity(entry) == server_identity(client_entries[name]):
            client_names[name] = name
    found = {used: own_entries[name] for name, used in client_names.items()}
    for name, entry in own_entries.items():
        if name not in client_names:
            unused_names = (each for each in (name, *(f"{name}-{n}" for n in range(2, 1000))) if each not in found)
            found[next(unused_names)] = entry
    return found


def build_hub_entry(config: Path | None = None, *, search: bool = False) -> dict[str, Any]:
    """Return the client entry that starts Toolway over stdio, with the given config file if any.

    With `search`, the client lists only meta-tools, which find and call all other tools.

    The command is an absolute path, because desktop applications have a different PATH than a shell.
    """
    program = shutil.which(HUB_ENTRY_NAME, path=os.path.dirname(sys.executable)) or shutil.which(HUB_ENTRY_NAME)
    flags = ["--search"] if search else []
    arguments = ["serve", "--stdio", *flags, *(["--config", str(config.absolute())] if config is not None else [])]
    if program is not None:
        return {"command": program, "args": arguments}
    return {"command": sys.executable, "args": ["-m", "toolway.cli", *arguments]}


def _find_hub_entry(config_file: ClientConfigFile) -> dict[str, Any] | None:
    """Return the entry in a client's file that starts Toolway itself; None if there is none."""
    return next(
        (to_portable(entry) for entry in read_client_file(config_file).entries if is_hub_entry(entry.value)), None
    )


def _apply_exports(
    output: Output,
    exports: Sequence[ClientExport],
    *,
    yes: bool,
    dry_run: bool,
    import_document: Mapping[str, Any] | None = None,
) -> ExitCode:
    for export in exports:
        _reject_foreign_target(export.config_file)
    changed = [export for export in exports if has_changes(export.plan.edit)]
    for export in exports if not output.as_json else ():
        _print_export(output, export)
    confirmed = bool(changed) and not dry_run and confirm(output, _confirmation_question(changed), yes)
    backups = {}
    for export in changed if confirmed else ():
        _reject_foreign_target(export.config_file)  # the link may be new since the question
        backups[export.config_file.path] = apply_edit(export.plan.edit)
    if output.as_json:
        found = {"imported": import_document} if import_document is not None else {}
        output.print_json({**found, "clients": [_export_to_json(export, confirmed) for export in exports]})
        return ExitCode.OK
    for path, backup in backups.items():
        output.info_wrapped(f"changed: {with_tilde(path)}{f', backup: {backup}' if backup else ''}", "green")
    if not exports:
        output.info("no client found on this machine")
    return ExitCode.OK


def _reject_foreign_target(config_file: ClientConfigFile) -> None:
    """Raise `ConfigError` if a client's project file is a link that points outside the project."""
    if config_file.scope == "project" and config_file.directory is not None:
        reject_outside_project(config_file.path, config_file.directory)


def _confirmation_question(exports: Sequence[ClientExport]) -> str:
    return "Change this file?" if len(exports) == 1 else f"Change these {len(exports)} files?"


def _print_export(output: Output, export: ClientExport) -> None:
    title = CLIENTS[export.config_file.client].title
    if export.plan.snippet is not None:
        _print_snippet(output, title, export.config_file, export.plan.snippet)
    elif has_changes(export.plan.edit):
        output.print_line(title, "bold")
        print_edit(output, export.plan.edit)
    else:
        output.info(f"{title}: {export.config_file.path} is up to date", "dim")
    output.print_problems(export.plan.unsupported, notes=True)


def _print_snippet(output: Output, title: str, config_file: ClientConfigFile, snippet: Snippet) -> None:
    output.print_line(title, "bold")
    text = snippet.text()
    if text:
        output.info(f"add this to {config_file.path}; Toolway does not change YAML files:", "yellow")
        sys.stdout.write(text)
    if "***" in text:
        output.info("keep each value that is shown as *** as it is in the file", "dim")
    if snippet.removed:
        output.info(f"remove from {config_file.path}: {', '.join(snippet.removed)}", "yellow")


def _export_to_json(export: ClientExport, confirmed: bool) -> dict[str, Any]:
    edit, snippet = export.plan.edit, export.plan.snippet
    return {
        "client": export.config_file.client,
        "file": str(export.config_file.path),
        "changed": has_changes(edit) and confirmed,
        "diff": edit.diff(),
        "written": list(export.plan.changed) if snippet is None else [],
        **({"snippet": snippet.text(), "remove": list(snippet.removed)} if snippet is not None else {}),
        "losses": [problem_to_json(loss) for loss in export.plan.unsupported],
    }


# -- instructions to connect a client to the gateway -------------------------------------------------------------------


@dataclass(frozen=True)
class ClientInstructions:
    """Instructions to connect a client to the gateway: what to do, and the text to paste."""

    instruction: str
    text: str


async def run_print(output: Output, target_options: TargetOptions, client: str, toolset: str | None) -> ExitCode:
    """Print a command or config lines that connect a client to the gateway."""
    make_instructions = PRINT_CLIENTS.get(client)
    if make_instructions is None:
        hint = did_you_mean(client, PRINT_CLIENTS) or f"pick one of {', '.join(PRINT_CLIENTS)}"
        raise UsageError(f"unknown client {client!r}", hint=hint)
    if toolset is not None and not _TOOLSET_NAME.fullmatch(toolset):
        raise UsageError(f"invalid toolset name {toolset!r}", hint="use a toolset name, or server/NAME")
    gateway = _gateway_to_connect(output, target_options)
    name = f"toolway-{toolset.replace('/', '-')}" if toolset else "toolway"
    url = f"{gateway.url}/mcp/{toolset}" if toolset else f"{gateway.url}/mcp"
    instructions = make_instructions(name, url, gateway.headers)
    if output.as_json:
        output.print_raw_json(
            {
                "client": client,
                "url": url,
                "headers": gateway.headers,
                "do": instructions.instruction,
                "text": instructions.text,
            }
        )
        return ExitCode.OK
    output.info(instructions.instruction, "dim")
    sys.stdout.write(instructions.text + "\n")
    return ExitCode.OK


def _gateway_to_connect(output: Output, target_options: TargetOptions) -> GatewayClient:
    """Return the gateway that a client should connect to.

    It is the one of --gateway, the running one, or the one that `toolway serve` would start.
    """
    if target_options.gateway is not None:
        return gateway_from_url(target_options)
    found = find_local_gateway(target_options)
    if found is not None:
        return found
    output.info("no gateway is running; these settings are for one started with: toolway serve", "yellow")
    try:
        settings = load_masked_config(output, target_options).gateway
    except ConfigError:
        if target_options.config is not None:
            raise
        return GatewayClient(_DEFAULT_URL, target_options.token or StateDir.default(os.environ).read_token())
    return GatewayClient(
        f"http://{settings.host}:{settings.port}", target_options.token or StateDir.default(os.environ).read_token()
    )


def _claude_code(name: str, url: str, headers: dict[str, str]) -> ClientInstructions:
    fields = [word for key, value in headers.items() for word in ("--header", f"{key}: {value}")]
    return ClientInstructions(
        "run this:", shlex.join(["claude", "mcp", "add", "--transport", "http", name, url, *fields])
    )


def _cursor(name: str, url: str, headers: dict[str, str]) -> ClientInstructions:
    return ClientInstructions(
        "add this to ~/.cursor/mcp.json:", _entry_json("mcpServers", name, {"url": url, **_header_fields(headers)})
    )


def _vscode(name: str, url: str, headers: dict[str, str]) -> ClientInstructions:
    entry = {"type": "http", "url": url, **_header_fields(headers)}
    return ClientInstructions("add this to .vscode/mcp.json:", _entry_json("servers", name, entry))


def _codex(name: str, url: str, headers: dict[str, str]) -> ClientInstructions:
    lines = [f"[mcp_servers.{name}]", f"url = {json.dumps(url)}"]
    if headers:
        fields = ", ".join(f"{key} = {json.dumps(value)}" for key, value in headers.items())
        lines.append(f"http_headers = {{ {fields} }}")
    return ClientInstructions("add this to ~/.codex/config.toml:", "\n".join(lines))


def _generic(name: str, url: str, headers: dict[str, str]) -> ClientInstructions:
    entry = {"type": "http", "url": url, **_header_fields(headers)}
    return ClientInstructions("add this to the client's config file:", _entry_json("mcpServers", name, entry))


def _header_fields(headers: dict[str, str]) -> dict[str, object]:
    return {"headers": headers} if headers else {}


def _entry_json(root: str, name: str, entry: dict[str, object]) -> str:
    return json.dumps({root: {name: entry}}, indent=2)


PRINT_CLIENTS: Final[dict[str, Callable[[str, str, dict[str, str]], ClientInstructions]]] = {
    "claude-code": _claude_code,
    "cursor": _cursor,
    "vscode": _vscode,
    "codex": _codex,
    "generic": _generic,
}
