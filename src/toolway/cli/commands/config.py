"""`toolway config` and its subcommands: show, check, compare and restore config files."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolway.cli.exit_codes import ExitCode
from toolway.cli.file_changes import get_version, list_versions, mask_secrets, print_edit, with_tilde
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.cli.output import Output, format_age, problem_to_json
from toolway.cli.targets import load_masked_config
from toolway.config import scopes
from toolway.config.editing import jsonc
from toolway.config.editing.document import Edit, apply_edit, read_file_bytes
from toolway.config.loader import TOOLWAY_BLOCK, decode_config, find_server_map, find_toolway_block, read_config_bytes
from toolway.config.scopes import MAX_LINE_LEVELS, Provenance, list_values
from toolway.part_api import registry

if TYPE_CHECKING:
    from toolway.config.scopes import ValueWithOrigin

VersionNumber = Annotated[
    int, typer.Argument(metavar="[VERSION]", min=1, help="1 is the version before the last change, 2 the one before.")
]


def config(
    context: CommandContext,
    origin: Annotated[bool, typer.Option("--origin", "-o", help="Show the file and line of every value.")] = False,
) -> CommandResult:
    return run_config(context, origin=origin)


def path(context: CommandContext) -> CommandResult:
    return run_config_path(context)


def validate(context: CommandContext) -> CommandResult:
    return run_config_validate(context)


def diff(context: CommandContext, version: VersionNumber = 1) -> CommandResult:
    return run_config_diff(context, version)


def history(context: CommandContext) -> CommandResult:
    """List the earlier versions of the config file. Toolway saves one before each change it makes."""
    return run_config_history(context)


def rollback(
    context: CommandContext,
    version: VersionNumber = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Show the change without making it.")] = False,
) -> CommandResult:
    """Restore an earlier version of the config file. A rollback can be undone with another rollback."""
    return run_config_rollback(context, version, dry_run=dry_run)


# -- values and files in effect ----------------------------------------------------------------------------------------


def run_config_path(context: CommandContext) -> ExitCode:
    """Print the config files in use and the paths of the files that do not exist yet."""
    output = context.output
    explicit = context.config_file()
    scope_files = scopes.find_config_paths(os.environ, Path.cwd())
    files = [("named", explicit)] if explicit is not None else list(scope_files.iter_by_scope())
    if output.as_json:
        rows = [{"scope": scope, "file": str(file), "exists": file.exists()} for scope, file in files]
        output.print_json({"files": rows})
    else:
        for scope, file in files:
            output.print_line(
                f"{scope:<9}{file}{'' if file.exists() else '  (missing)'}", "" if file.exists() else "dim"
            )
    return ExitCode.OK


def run_config(context: CommandContext, *, origin: bool) -> ExitCode:
    """Print every effective config value, secrets masked, and with `origin` its file and line."""
    output = context.output
    explicit = context.config_file()
    values = _values_in_file(explicit) if explicit is not None else scopes.load_scopes(os.environ, Path.cwd()).values
    if output.as_json:
        output.print_json({"values": [_value_to_json(value) for value in values]})
    elif origin:
        rows = [(".".join(value.path), value.masked_json, with_tilde(str(value.origin))) for value in values]
        output.print_table(("value", "is", "from"), rows)
    else:
        for value in values:
            output.print_line(f"{'.'.join(value.path)} = {value.masked_json}")
    return ExitCode.OK


def _values_in_file(file: Path) -> list[ValueWithOrigin]:
    """Return all values in the config file given by --config, the only file used then."""
    name = os.fspath(file)
    text = decode_config(read_config_bytes(name), name)
    document, lines = jsonc.parse_jsonc(text, name), jsonc.find_key_lines(text, MAX_LINE_LEVELS)
    root, entries = find_server_map(document, name)
    file_origin = Provenance("user", name)
    found = [list_values(entry, (each,), (*root, each), lines, file_origin) for each, entry in entries.items()]
    block = find_toolway_block(document)
    if isinstance(block, dict):
        found.append(list_values(block, (TOOLWAY_BLOCK,), (TOOLWAY_BLOCK,), lines, file_origin))
    return [value for each in found for value in each]


def _value_to_json(value: ValueWithOrigin) -> dict[str, Any]:
    source = value.origin
    return {
        "path": list(value.path),
        "value": json.loads(value.masked_json),
        "scope": source.scope,
        "file": source.file,
        "line": source.line,
    }


def run_config_validate(context: CommandContext) -> ExitCode:
    """Print the problems of all config entries; starts no server. Returns 3 on an error."""
    output = context.output
    loaded = load_masked_config(output, context.target_options)
    issues = (*loaded.issues, *(each for part in registry.in_use() for each in part.find_issues(loaded)))
    severities = {problem.severity for problem in issues}
    if output.as_json:
        output.print_json(
            {
                "file": str(loaded.file),
                "valid": "error" not in severities,
                "servers": list(loaded.servers),
                "problems": [problem_to_json(p) for p in issues],
            }
        )
    else:
        output.print_problems(issues, notes=True)
        count = len(loaded.servers)
        summary = f"{count} {'server' if count == 1 else 'servers'} can be used"
        output.print_line(f"{with_tilde(loaded.file)}: {summary}", "red" if "error" in severities else "green")
    return ExitCode.CONFIG if "error" in severities else ExitCode.OK


# -- earlier versions --------------------------------------------------------------------------------------------------


def run_config_diff(context: CommandContext, number: int) -> ExitCode:
    """Print the changes since an earlier version of the config file."""
    file = _versioned_file(context)
    old = get_version(file, number)
    edit = _masked_edit(context.output, file, old.read(), read_file_bytes(file) or b"")
    if context.output.as_json:
        context.output.print_json({"file": str(file), "version": number, "diff": edit.diff()})
    else:
        print_edit(context.output, edit)
    return ExitCode.OK


def run_config_history(context: CommandContext) -> ExitCode:
    """Print the earlier versions of the config file, newest first."""
    output = context.output
    file = _versioned_file(context)
    found = list_versions(file)
    now = datetime.now(UTC)
    if output.as_json:
        rows = [{"version": n, "until": each.created.isoformat()} for n, each in enumerate(found, 1)]
        output.print_json({"file": str(file), "versions": rows})
    elif found:
        table = [
            (str(n), format_age((now - each.created).total_seconds()), f"{len(each.read())} bytes")
            for n, each in enumerate(found, 1)
        ]
        output.print_table(("version", "replaced", "size"), table, right=("version", "size"))
        output.info("show one: toolway config diff VERSION · restore one: toolway config rollback VERSION", "dim")
    else:
        output.info(f"toolway never changed {with_tilde(file)}")
    return ExitCode.OK


def run_config_rollback(context: CommandContext, number: int, *, dry_run: bool) -> ExitCode:
    """Restore an earlier version of the config file. The rollback itself can be undone."""
    output = context.output
    file = _versioned_file(context)
    old = get_version(file, number)
    current = read_file_bytes(file)
    edit = _masked_edit(output, file, current, old.read())
    if not dry_run:
        apply_edit(edit)
    if output.as_json:
        output.print_json({"file": str(file), "version": number, "changed": not dry_run, "diff": edit.diff()})
        return ExitCode.OK
    print_edit(output, edit)
    if not dry_run:
        output.info(f"{with_tilde(file)} is restored; undo it with: toolway config rollback", "green")
    return ExitCode.OK


def _versioned_file(context: CommandContext) -> Path:
    """Return the config file whose versions to show: the named one, or the one changed last."""
    explicit = context.config_file()
    if explicit is not None:
        return explicit
    scope_files = scopes.find_config_paths(os.environ, Path.cwd())
    changed = [(found[0].created, file) for _, file in scope_files.iter_by_scope() if (found := list_versions(file))]
    return max(changed)[1] if changed else scope_files.user


def _masked_edit(output: Output, file: Path, before: bytes | None, after: bytes) -> Edit:
    """Return the edit from one version of a config file to another. The secrets of both are masked in the output."""
    edit = Edit(file, before, after)
    mask_secrets(output, edit)
    return edit
