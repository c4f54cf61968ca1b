"""`toolway trust` and `toolway secrets`: trusted project files and the secret store.

The value of a secret is typed or piped in. It is never an argument and is never shown.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from toolway.auth.encrypted_token_store import KEY_SECRET_NAME as KEY_OF_LOGINS
from toolway.cli.completion import complete_servers
from toolway.cli.exit_codes import ExitCode, UsageError
from toolway.cli.file_changes import parse_entries
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.cli.output import Output
from toolway.config.admission.variables import is_never_allowed
from toolway.config.approval.accesses import find_accesses
from toolway.config.approval.held_entries import (
    ApprovalGate,
    find_approvable,
    find_held_workflows,
    json_digest,
    workflow_digest,
)
from toolway.config.approval.trust_store import has_commands
from toolway.config.approval.workflow_files import capture_workflows
from toolway.config.dotenv import read_dotenv_beside
from toolway.config.editing import jsonc
from toolway.config.loader import (
    TOOLWAY_BLOCK,
    add_dotenv,
    decode_config,
    find_server_map,
    normalize_name,
    parse_config,
    read_config_bytes,
    reject_outside_project,
)
from toolway.config.locations import CONFIG_FILE_VARIABLE
from toolway.config.masking import mask_value
from toolway.config.scopes import (
    UNTRUSTED_CODE,
    UntrustedFile,
    find_config_paths,
    load_config,
    load_scopes,
    open_trust_store,
)
from toolway.config.secret_refs import SecretRef
from toolway.config.secrets import list_secret_refs, migrate_secrets, plan_secret_moves
from toolway.errors import ConfigError, NotFound
from toolway.secrets import check_secret_name, open_store, remember_secret

if TYPE_CHECKING:
    from toolway.config.approval.accesses import Access
    from toolway.config.approval.held_entries import HeldEntry
    from toolway.config.approval.workflow_files import CapturedWorkflow
    from toolway.config.secrets import SecretMove
    from toolway.types import Json

_MAX_SECRET_CHARS: Final = 64 * 1024  # characters
_SHA256_HEX: Final = re.compile("[0-9a-f]{64}")  # the full digest: a prefix can be forged
SecretName = Annotated[
    str, typer.Argument(metavar="NAME", help="For example server.NAME; used as ${keyring:NAME}.", show_default=False)
]


def trust(
    context: CommandContext,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE|NAME]",
            help="A project file, server, or workflow. Default: all that need your review.",
            show_default=False,
            autocompletion=complete_servers,
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            "-s",
            metavar="NAME",
            help="A server by name, even if it is called tools, lock, update, or sandbox.",
            show_default=False,
            autocompletion=complete_servers,
        ),
    ] = None,
    digest: Annotated[
        str | None,
        typer.Option("--digest", metavar="SHA256", help="Trust this content without a prompt.", show_default=False),
    ] = None,
    allow_commands: Annotated[
        bool, typer.Option("--allow-commands", help="Also allow the commands in ${command:…}.")
    ] = False,
    revoke: Annotated[bool, typer.Option("--revoke", help="Stop trusting this file or server.")] = False,
) -> CommandResult:
    """Let the config file of a project start servers, after you have reviewed it.

    After a change of the file it must be trusted again.

    An entry that another program wrote into your file needs your review too: toolway trust NAME. So does every new
    or changed workflow file.

    Everything that would be run, read or sent is listed, with the schedule, tools and models of each workflow.
    ${command:…} needs a second confirmation, or --allow-commands.
    """
    config = context.target_options.config
    if server is not None and target is not None:
        raise UsageError("--server and a name cannot be used together", hint=f"toolway trust --server {server}")
    target = server if server is not None else target
    if revoke:
        return run_trust_revoke(context.output, config, target)
    return run_trust(context.output, config, target, digest, allow_commands=allow_commands)


def secrets_set(
    context: CommandContext,
    name: SecretName,
    extra: Annotated[str | None, typer.Argument(hidden=True)] = None,  # accepted only to explain why it is refused
) -> CommandResult:
    """Prompt for the value of the secret, or read it from a pipe."""
    return run_secrets_set(context.output, name, extra)


def secrets_ls(context: CommandContext) -> CommandResult:
    """Show only the names of secrets, with the servers that use them."""
    return run_secrets_ls(context.output, context.config_file())


def secrets_rm(context: CommandContext, name: SecretName) -> CommandResult:
    return run_secrets_rm(context.output, context.config_file(), name)


# -- trust -------------------------------------------------------------------------------------------------------------


def run_trust(
    output: Output, config: Path | None, target: str | None, digest: str | None, *, allow_commands: bool
) -> ExitCode:
    """Show project files and entries that need review, and trust those that the user confirms.

    Trust is for the current content. A given digest replaces the confirmation. Everything that would be run, read or
    sent is shown in full, with invisible characters escaped: the user must see what is trusted. Only plain text that is
    clearly a secret is masked, never a reference.
    """
    if digest is not None and not _SHA256_HEX.fullmatch(digest):
        raise UsageError("invalid digest: expected 64 hex characters", hint="show it: toolway trust")
    gate = ApprovalGate.open(os.environ, "hold")
    pending = _find_pending(config, target, gate)
    if gate.recorded and not output.as_json:
        number = "1 entry" if len(gate.recorded) == 1 else f"{len(gate.recorded)} entries"
        output.info(f"recorded {number} as trusted: {', '.join(gate.recorded)}", "green")
    trusted = []
    for each in pending:
        if confirm_review(output, each, digest, only_one=len(pending) == 1, allow_commands=allow_commands):
            each.approve()
            trusted.append(each)
            if not output.as_json:
                output.info(f"trusted: {each.title}", "green")
    if output.as_json:
        rows = [(each.kind, {**each.document, "trusted": each in trusted}) for each in pending]
        output.print_raw_json(  # exact: what is approved must not be changed for display
            {
                "files": [row for kind, row in rows if kind == "file"],
                "entries": [row for kind, row in rows if kind == "entry"],
            }
        )
    elif not pending:
        output.info("nothing needs your review")
    return ExitCode.OK if len(trusted) == len(pending) else ExitCode.CONFIG


def run_trust_revoke(output: Output, config: Path | None, target: str | None) -> ExitCode:
    """Stop trusting a project's config file, or an entry in the user's own file."""
    trust_store = open_trust_store(os.environ)
    if target is None or _is_file(target):
        files = [Path(target)] if target is not None else list(find_config_paths(os.environ, Path.cwd()).project)
        revoked = [str(each) for each in files if trust_store.revoke(each.absolute())]
    else:
        revoked = _revoke_entry(config, target)
    if not revoked:
        raise NotFound("no trusted file or entry found here", hint="use a name: toolway trust --revoke FILE or SERVER")
    if output.as_json:
        output.print_json({"revoked": revoked})
    else:
        output.info(f"no longer used: {', '.join(revoked)}")
    return ExitCode.OK


def _revoke_entry(config: Path | None, name: str) -> list[str]:
    """Stop trusting an entry, agent, setting or workflow, as it is now. Return what was trusted."""

    def named(found: Sequence[HeldEntry]) -> list[str]:
        return [each.digest for each in found if name in (each.name, each.server, normalize_name(each.name))]

    store, revoked = open_trust_store(os.environ), []
    for file, content, entries, block in _own_files(config):
        workflows = _workflows_of(content, file, is_project=False)
        digests = named(find_approvable(file, entries, block, read_dotenv_beside(file), workflows))
        if store.revoke_entries(file, digests):
            revoked.append(f"{name} of {file}")
    for path in find_config_paths(os.environ, Path.cwd()).project if config is None else ():
        if path.is_file() and store.was_trusted(path):
            workflows = _workflows_of(path.read_bytes(), os.fspath(path))
            if store.revoke_workflows(path, named(find_held_workflows(os.fspath(path), workflows, ()))):
                revoked.append(f"{name} of {path}")
    return revoked


def confirm_review(
    output: Output, pending: PendingReview, digest: str | None, *, only_one: bool = True, allow_commands: bool = False
) -> bool:
    """Show a file or entries to trust. Return True if the user confirms, or gave their digest.

    Raises `ConfigError` if this is the only review (`only_one`) and other content has the given digest.
    """
    if not output.as_json:
        _print_review(output, pending)
    confirmed = _confirm_trust(pending, digest, only_one=only_one, interactive=not output.as_json)
    if confirmed and _confirm_commands(pending, allow_commands, interactive=digest is None and not output.as_json):
        return True
    if not output.as_json:
        flag = " --allow-commands" if pending.secret_commands else ""
        command = f"{pending.command} --digest {pending.digest}{flag}"
        output.info(f"not trusted; to trust this content: {command}", "yellow")
    return False


@dataclass(frozen=True, eq=False)
class PendingReview:
    """A project's file, or entries for the user's own file, waiting for the user's trust."""

    kind: Literal["file", "entry"]
    title: str
    digest: str
    document: Json  # for --json, with what it runs, reads and sends
    accesses: Sequence[Access]
    approve: Callable[[], None] = lambda: None
    command: str = "toolway trust"  # accepts the digest instead of a confirmation

    @property
    def secret_commands(self) -> list[str]:
        """Commands in references `${command:…}`, which run on this machine to get a value."""
        return [each.what for each in self.accesses if each.kind == "runs" and each.key != "command"]


def _find_pending(config: Path | None, target: str | None, gate: ApprovalGate) -> list[PendingReview]:
    """Return project files and entries in this folder that need review, or only the named one.

    If no entries were recorded before, `gate` records all of the user's own files as approved. Raises `UsageError` if
    the named file is not a project's config file, and `NotFound` if the named entry does not wait.
    """
    named = _named_file(config)
    path = Path(target).absolute() if target is not None and _is_file(target) else None
    paths = find_config_paths(os.environ, path.parent if path is not None else Path.cwd())
    if path is not None and path in paths.project:
        reject_outside_project(path, paths.root)
        return [_review_file(UntrustedFile(path, read_config_bytes(os.fspath(path)), changed=False))]
    if named is not None:
        untrusted: Sequence[UntrustedFile] = ()
        is_recorded = open_trust_store(os.environ).approved_entries(os.fspath(named)) is not None
        held = load_config(os.environ, Path.cwd(), named, gate).held if is_recorded else ()
    else:
        merged = load_scopes(os.environ, Path.cwd(), gate)
        untrusted, held = merged.untrusted, merged.held
        outside = [each for each in merged.file_errors if each.code == "E-CONFIG-LINK"]
        if outside and target is None:
            raise outside[0]
    entries = [
        _review_entry(each)
        for each in held
        if target in (None, each.name, each.server) or (path is not None and _is_same(path, each.name))
    ]
    if target is None:
        return [*map(_review_file, untrusted), *entries]
    if not entries and path is not None:
        raise UsageError(
            f"{target} is neither a project's config file nor a workflow file to review",
            detail="a project's file is its mcp.json or .mcp.json; other files do not need your trust",
            hint=f"use it: toolway --config {target}",
        )
    if not entries:
        raise NotFound(
            f"{target!r} does not need your review", server=target, hint="see what needs your review: toolway trust"
        )
    return entries


def _is_file(target: str) -> bool:
    """Return True if the argument of `toolway trust` is a path, not the name of a server or workflow."""
    return "/" in target or target.endswith((".json", ".yaml", ".yml")) or Path(target).is_file()


def _is_same(path: Path, name: str) -> bool:
    """Return True if a path leads to a held workflow file, possibly through a link."""
    return path.name == os.path.basename(name) and os.path.realpath(path.parent) == os.path.realpath(
        os.path.dirname(name)
    )


def _named_file(config: Path | None) -> Path | None:
    """Return the file named by --config or `$TOOLWAY_CONFIG`."""
    if config is None and os.environ.get(CONFIG_FILE_VARIABLE):
        return Path(os.environ[CONFIG_FILE_VARIABLE]).expanduser()
    return config


def _own_files(config: Path | None) -> list[tuple[str, bytes, Mapping[str, Any], Any]]:
    """Return (file, content, server map, `toolway` block) of the named file, or of the user and local files."""
    paths, named = find_config_paths(os.environ, Path.cwd()), _named_file(config)
    files = [each for each in ([named] if named is not None else [paths.user, paths.local]) if each.is_file()]
    contents = [(os.fspath(each), each.read_bytes()) for each in files]
    return [(file, content, *parse_entries(content, file)) for file, content in contents]


# -- confirmation ------------------------------------------------------------------------------------------------------


def _confirm_trust(pending: PendingReview, digest: str | None, *, only_one: bool, interactive: bool) -> bool:
    if digest is not None:
        if only_one and pending.digest != digest:
            raise ConfigError(
                f"{pending.title} is not what you reviewed",
                detail=f"its digest is {pending.digest}",
                hint=f"review it again: {pending.command}",
                code=UNTRUSTED_CODE,
            )
        return pending.digest == digest
    return interactive and _ask(f"Use {'this file' if pending.kind == 'file' else 'it'}, exactly as it is now?")


def _confirm_commands(pending: PendingReview, allow_commands: bool, *, interactive: bool) -> bool:
    """Ask a second time if commands would run to get an entry's values. Return True if allowed.

    Without a terminal --allow-commands is needed.
    """
    if allow_commands or not pending.secret_commands:
        return True
    number = len(pending.secret_commands)
    subject = "this command" if number == 1 else f"these {number} commands"
    listed = "".join(f"\n  {_escape_json(command)[1:-1]}" for command in pending.secret_commands)
    return interactive and _ask(f"Its values come from {subject}:{listed}\nRun {subject} on this machine?")


def _ask(question: str) -> bool:
    if not sys.stdin.isatty():
        return False
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


# -- display -----------------------------------------------------------------------------------------------------------


def _review_file(pending: UntrustedFile) -> PendingReview:
    from toolway.workflows.summary import summarize_workflow

    file = os.fspath(pending.path)
    document = jsonc.parse_jsonc(decode_config(pending.content, file), file)
    _, entries = find_server_map(document, file)
    block = document.value.get(TOOLWAY_BLOCK) if isinstance(document.value, dict) else None
    accesses = find_accesses(entries, block)
    workflows = _workflows_of(pending.content, file)
    approved = [workflow_digest(each) for each in workflows if each.file and not each.problem]
    # With workflow files, the digest is of all that is trusted: the file and what these contain now.
    digest = json_digest({"file": pending.digest, "workflows": sorted(approved)}) if approved else pending.digest
    fields: Json = {
        "file": file,
        "digest": digest,
        "changed": pending.changed,
        "servers": {name: _mask_entry(entry) for name, entry in entries.items()},
        **_accesses_to_json(accesses),
    }
    if block is not None:
        fields[TOOLWAY_BLOCK] = mask_value(block, TOOLWAY_BLOCK)
    if workflows:
        fields["workflows"] = [summarize_workflow(each) for each in workflows]

    def approve() -> None:
        store = open_trust_store(os.environ)
        store.approve_workflows(pending.path, approved)
        store.trust(pending.path, pending.content, allow_commands=has_commands(pending.content))

    return PendingReview("file", file, digest, fields, accesses, approve)


def _workflows_of(content: bytes, file: str, *, is_project: bool = True) -> tuple[CapturedWorkflow, ...]:
    """Return a config file's current workflows; () if the file is invalid, so nothing in it runs."""
    variables, _ = add_dotenv(file, os.environ, is_project=is_project)
    try:
        return capture_workflows(parse_config(decode_config(content, file), file, variables).gateway.workflows)
    except ConfigError:
        return ()


def _review_entry(held: HeldEntry) -> PendingReview:
    from toolway.workflows.summary import summarize_workflow

    fields: Json = {
        "server": held.server,
        "file": held.file,
        "line": held.line,
        "digest": held.digest,
        "servers": {} if held.workflow is not None else {held.name: _mask_entry(held.entry)},
        **_accesses_to_json(held.accesses),
    }
    if held.workflow is not None:
        fields["workflows"] = [summarize_workflow(held.workflow)]
    title = f"{'the workflow ' if held.workflow is not None else ''}{held.server} of {held.file}"
    store = open_trust_store(os.environ)
    approve = partial(store.approve_entries, held.file, [held.digest])
    if held.in_project:
        approve = partial(store.approve_workflows, Path(held.file), [held.digest])
    return PendingReview("entry", title, held.digest, fields, held.accesses, approve)


def review_entries(title: str, entries: Mapping[str, Any]) -> PendingReview:
    """Return the entries that `toolway clients import` would write, prepared for review."""
    fields: Json = {"servers": {name: _mask_entry(entry) for name, entry in entries.items()}}
    digest, accesses = json_digest(entries), find_accesses(entries)
    return PendingReview("entry", title, digest, fields, accesses, command="toolway clients import --project")


def _accesses_to_json(accesses: Sequence[Access]) -> Json:
    kinds = ("runs", "reads", "sends")
    return {kind: [each.to_json() for each in accesses if each.kind == kind] for kind in kinds}


def _mask_entry(entry: Any) -> Any:
    if not isinstance(entry, Mapping):
        return entry
    unmasked = {key: entry[key] for key in ("command", "args") if key in entry}
    masked = {**mask_value(entry), **unmasked}
    env = entry.get("env")
    if isinstance(env, Mapping):  # a variable such as PYTHONPATH or LD_PRELOAD chooses the code that runs
        masked["env"] = {**masked["env"], **{name: env[name] for name in env if is_never_allowed(name)}}
    return masked


def _print_review(output: Output, pending: PendingReview) -> None:
    document = pending.document
    changed = " has changed since it was trusted" if document.get("changed") else ""
    output.print_line(f"{_escape_json(pending.title)[1:-1]}{changed}", "bold")
    output.print_line(f"sha256 {pending.digest}", "dim")
    for name, entry in document["servers"].items():
        output.print_line(f"\n{_escape_json(name)[1:-1]}", "bold")
        for key, value in entry.items() if isinstance(entry, Mapping) else [("", entry)]:
            if isinstance(value, Mapping):
                for inner, text in value.items():
                    _print_field(output, f"{key}.{inner}", text)
            else:
                _print_field(output, key, value)
    if TOOLWAY_BLOCK in document:
        output.print_line(f"\n{TOOLWAY_BLOCK}  {_escape_json(document[TOOLWAY_BLOCK])}")
    for workflow in document.get("workflows", ()):
        _print_workflow(output, workflow)
    if pending.accesses:
        output.print_line("\nwhat it does", "bold")
    for access in pending.accesses:
        where = f"{access.server} {access.key}" if access.server else access.key
        output.print_line(f"  {_escape_json(str(access))[1:-1]}  ({_escape_json(where)[1:-1]})")
    output.print_line()


def _print_workflow(output: Output, workflow: Json) -> None:
    output.print_line(f"\nworkflow {_escape_json(workflow['name'])[1:-1]}", "bold")
    _print_field(output, "file", workflow["file"] or "(in the config file)")
    children = [each for each in workflow["files"] if each != workflow["file"]]
    if children:
        _print_field(output, "child files", children)
    if "problem" in workflow:
        _print_field(output, "cannot be used", workflow["problem"])
        return
    _print_field(output, "schedule", ", ".join(workflow["schedules"]) or "none: it runs when it is called")
    _print_field(output, "calls", workflow["tools"])
    for agent in workflow["agents"]:
        _print_field(output, "asks the model", agent["model"])
        if "base_url" in agent:
            _print_field(output, "  at", agent["base_url"])
        _print_field(output, "  which may call", agent["tools"])
        _print_field(output, "  with approval of", agent["approve"])


def _print_field(output: Output, key: str, value: Any) -> None:
    output.print_line(f"  {_escape_json(key)[1:-1]:<22}  {_escape_json(value)}")


def _escape_json(value: Any) -> str:
    """Return `value` as ASCII JSON: no look-alike letters and no control characters."""
    return json.dumps(value)


# -- secret store ------------------------------------------------------------------------------------------------------


def run_secrets_set(output: Output, name: str, extra: str | None) -> ExitCode:
    """Store a secret, or replace its value. The value is prompted for or read from a pipe."""
    if extra is not None:
        raise UsageError(
            "a secret cannot be passed on the command line",
            detail="other users on this machine could see it, and your shell history would keep it",
            hint=f"toolway secrets set {check_secret_name(name)}, and type the value at the prompt",
        )
    check_secret_name(name)
    value = _read_secret_value(name)
    store = open_store(os.environ)
    store.set(name, value)
    reference = str(SecretRef("keyring", name))
    if output.as_json:
        output.print_json({"name": name, "store": store.location, "reference": reference})
    else:
        output.info(f"stored {name} in {store.location}", "green")
        output.info(f"reference it in an entry as {reference}")
    return ExitCode.OK


def run_secrets_ls(output: Output, config: Path | None) -> ExitCode:
    """Print the names of all secrets, the servers that use them, and missing secrets."""
    store = open_store(os.environ)
    names, users = store.names(), _servers_by_secret(output, config)
    missing = sorted(users.keys() - set(names))
    users = {**users, KEY_OF_LOGINS: ["toolway login"]}
    if output.as_json:
        rows = [
            {"name": name, "used_by": users.get(name, []), "missing": name in missing} for name in [*names, *missing]
        ]
        output.print_json({"store": store.location, "secrets": rows})
        return ExitCode.OK
    if names or missing:
        stored_rows = [(name, ", ".join(users.get(name, [])) or "–") for name in names]
        missing_rows = [
            (name, f"{', '.join(users[name])}; missing, set it: toolway secrets set {name}") for name in missing
        ]
        output.print_table(("name", "used by"), [*stored_rows, *missing_rows])
        output.info(f"stored in {store.location}", "dim")
    else:
        output.info("no secrets yet; store one with: toolway secrets set server.NAME")
    return ExitCode.OK


def run_secrets_rm(output: Output, config: Path | None, name: str) -> ExitCode:
    """Delete a secret from the secret store."""
    check_secret_name(name)
    if not open_store(os.environ).delete(name):
        raise NotFound(f"unknown secret {name}", hint="list all: toolway secrets ls", code="E-SECRETS-NAME")
    users = _servers_by_secret(output, config).get(name, [])
    if output.as_json:
        output.print_json({"removed": name, "used_by": users})
    else:
        output.info(f"deleted {name}")
        if users:
            output.info(f"it is still referenced by {', '.join(users)}", "yellow")
    return ExitCode.OK


def _read_secret_value(name: str) -> str:
    """Read the value of a secret from a prompt or a pipe, without the final line break.

    Raises `UsageError` if the value is empty or too long.
    """
    if sys.stdin.isatty():
        value = getpass.getpass(f"value of {name} (not shown): ")
    else:
        value = sys.stdin.read(_MAX_SECRET_CHARS + 1).removesuffix("\n").removesuffix("\r")
    remember_secret(value)
    if not value or len(value) > _MAX_SECRET_CHARS:
        why = "it is empty" if not value else f"it is longer than {_MAX_SECRET_CHARS} characters"
        raise UsageError("the secret is invalid", detail=why, hint=f"toolway secrets set {name} < FILE")
    return value


def _servers_by_secret(output: Output, config: Path | None) -> Mapping[str, list[str]]:
    """Return the servers that reference each secret, by secret name."""
    try:
        servers = load_config(os.environ, Path.cwd(), config).servers
    except ConfigError as exc:
        if exc.code != "E-CONFIG-NONE" and not output.as_json:
            output.info(f"the servers that use them are unknown: {exc.message}", "yellow")
        return {}
    users: dict[str, list[str]] = {}
    for server, entry in servers.items():
        for reference in list_secret_refs(entry):
            if reference.kind == "keyring":
                users.setdefault(reference.target, []).append(server)
    return users


# -- plain-text tokens of config entries -------------------------------------------------------------------------------


def find_plain_secrets(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, list[SecretMove]]:
    """Return the plain-text secrets in server entries that can be moved to the secret store."""
    found = {name: plan_secret_moves(name, entry) for name, entry in entries.items()}
    return {name: moves for name, moves in found.items() if moves}


def move_secrets_to_store(output: Output, entries: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Move plain-text secrets of server entries to the secret store.

    Return the entries with references to the secrets.
    """
    result = {name: dict(entry) for name, entry in entries.items()}
    moves = find_plain_secrets(entries)
    if not moves:
        return result
    store = open_store(os.environ)
    for name, server_moves in moves.items():
        result[name] = migrate_secrets(result[name], server_moves, store)
        for move in server_moves:
            output.info(f"{name}: stored {move.location} in {store.location} as {move.name}")
    return result
