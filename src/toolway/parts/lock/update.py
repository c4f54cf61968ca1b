"""`toolway trust update`: finds newer packages, shows what would change, and locks them once you confirm."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from toolway import Hub
from toolway.catalog.pin_keeper import PIN_FILE_NAME, DamagedPinsError, PinFile, hash_identity
from toolway.catalog.pin_report import describe_deviation
from toolway.catalog.pins import Deviation, definition_digest, server_key
from toolway.cli.exit_codes import ExitCode
from toolway.cli.file_changes import confirm
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.cli.params import DryRun, Yes
from toolway.config.locations import gateway_state_folder
from toolway.errors import CallError, NotFound
from toolway.hub.source import server_fingerprint
from toolway.parts.lock.cli import (
    MinAge,
    load_locked_config,
    lock_files,
    open_locker,
    read_entries,
    require_command,
    write_entries,
)
from toolway.parts.lock.locker import compare
from toolway.parts.lock.start import tree_command

if TYPE_CHECKING:
    from toolway.catalog.pins import Reason, ServerPins
    from toolway.cli.output import Output
    from toolway.config.schema import Server
    from toolway.parts.lock.lock_file import LockedEntry
    from toolway.parts.lock.locker import VersionChange
    from toolway.parts.lock.runner_command import PackageCommand
    from toolway.types import Json

START_TIMEOUT_S: Final = 60.0
_MAX_SHOWN: Final = 40


def update(
    context: CommandContext,
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="Names of locked servers.", show_default=False)],
    min_age: MinAge = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> CommandResult:
    """Show which packages of a server would change, and lock the newer ones.

    If the definitions of its tools are pinned, the new version is started in the sandbox strict, and what it changes is
    shown too.
    """
    return run_update(context, names, min_age, yes=yes, dry_run=dry_run)


async def run_update(
    context: CommandContext, names: list[str], min_age: str | None, *, yes: bool, dry_run: bool
) -> ExitCode:
    """Show and lock the newer packages of the named servers."""
    output, config = context.output, load_locked_config(context)
    locker = open_locker(config, min_age)
    rows: list[Json] = []
    for file, servers in lock_files(config, names).items():
        entries = read_entries(file)
        for name, server in servers.items():
            if name not in entries:
                raise NotFound(f"{name} is not locked", hint=f"toolway trust lock {name}")
            command = require_command(server)
            with output.spinner(f"resolving {name}"):
                new = await asyncio.to_thread(locker.resolve, command)
            changes = compare(entries[name], new)
            row: Json = {"server": name, "changes": [each._asdict() for each in changes], "taken": False}
            rows.append(row)
            if not changes and new.trees.items() <= entries[name].trees.items():
                output.info(f"{name} is up to date")
                continue
            row["definitions"], row["note"] = await _compare_definitions(name, server, command, new)
            _print_changes(output, name, changes, row)
            if dry_run or not confirm(output, f"Lock these packages of {name}?", yes):
                continue
            entries[name] = new
            write_entries(file, entries)
            row["taken"] = True
            output.info(f"locked {name}; a running gateway restarts it", "green")
    if output.as_json:
        output.print_json({"servers": rows})
    return ExitCode.OK


def _print_changes(output: Output, name: str, changes: list[VersionChange], row: Json) -> None:
    if output.as_json:
        return
    output.print_line(f"{name}: {len(changes)} packages change", "bold")
    for each in changes[:_MAX_SHOWN]:
        output.print_line(f"  {each.package}  {each.before or 'new'} → {each.after or 'removed'}")
    if len(changes) > _MAX_SHOWN:
        output.print_line(f"  and {len(changes) - _MAX_SHOWN} more")
    for definition in row["definitions"]:
        output.print_line(f"{definition['name']} ({definition['reason']})", "bold")
        for change in definition["changes"]:
            if change["old"] is not None:
                output.print_line(f"- {change['path']}  {change['old'][:300]}", "red")
            if change["new"] is not None:
                output.print_line(f"+ {change['path']}  {change['new'][:300]}", "green")
    output.info(row["note"])


async def _compare_definitions(
    name: str, server: Server, command: PackageCommand, entry: LockedEntry
) -> tuple[list[Json], str]:
    """Start a server's new version in the sandbox `strict`, and compare its tools with the pins.

    Return the tools that differ, and a note about the comparison.
    """
    pins = _find_pins(name, server)
    if pins is None:
        return [], "its definitions are not pinned, so they are not compared"

    argv = tree_command(entry, command, None, os.environ)
    trial = replace(
        server, command=argv[0], args=tuple(argv[1:]), guard_facts={}, sandbox="strict", enabled=True, lazy=False
    )
    async with Hub({name: trial}, token_store=None, catalog_storage=None) as hub:
        try:
            tools = await hub.list_tools(server=name, wait=START_TIMEOUT_S)
        except CallError as exc:
            return [], f"its definitions are not compared: {exc.message}{': ' + exc.detail if exc.detail else ''}"
    found = _deviations(pins, {tool.name: dict(tool.raw) for tool in tools})
    return found, f"{len(tools)} tools are compared with their pins, {len(found)} differ"


def _find_pins(name: str, server: Server) -> ServerPins | None:
    folder = gateway_state_folder(os.environ)
    if folder is None:
        return None
    try:
        stored = PinFile(folder / PIN_FILE_NAME).load()
    except DamagedPinsError:
        return None
    return stored.get(server_key(name, hash_identity(server_fingerprint(server))))


def _deviations(pins: ServerPins, tools: dict[str, Json]) -> list[Json]:
    """Return the tools whose definitions are new, changed, or gone, each with its changes."""
    found = []
    for tool, definition in sorted(tools.items()):
        key, digest = f"tools/{tool}", definition_digest(definition)
        pin = pins.pins.get(key)
        if pin is None or pin.digest != digest:
            reason: Reason = "changed" if pin is not None else "new"
            deviation = Deviation(digest, reason, 0.0, held=False, definition=definition)
            found.append(describe_deviation(pins, key, deviation))
    for key in sorted(pins.pins):
        kind, _, tool = key.partition("/")
        if kind == "tools" and tool not in tools:
            found.append({"name": f"{pins.name}.{tool}", "reason": "removed", "changes": []})
    return found
