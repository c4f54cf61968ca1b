"""`toolway trust lock` and `toolway trust update`: the exact packages of `npx` and `uvx` entries, in `toolway.lock`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from toolway.cli.exit_codes import ExitCode, UsageError
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.cli.targets import load_masked_config
from toolway.config.field_reader import parse_duration
from toolway.errors import ConfigError, NotFound, ToolwayError
from toolway.parts.lock.guard import lock_of
from toolway.parts.lock.lock_file import read_lock
from toolway.parts.lock.lock_writer import write_lock
from toolway.parts.lock.locker import Locker, script_packages
from toolway.parts.lock.malware import MalwareIndex, malware_path, read_osv, write_malware
from toolway.parts.lock.runner_command import NotLockable, is_runner, normalize, parse_command
from toolway.parts.lock.settings import settings_of
from toolway.parts.lock.start import matches, reject_malware, tree_platform
from toolway.parts.lock.store import TreeStore

if TYPE_CHECKING:
    from toolway.cli.output import Output
    from toolway.config.loader import LoadedConfig
    from toolway.config.schema import Server
    from toolway.parts.lock.lock_file import LockedEntry
    from toolway.parts.lock.runner_command import PackageCommand
    from toolway.types import Json

MinAge = Annotated[
    str | None,
    typer.Option(
        "--min-age",
        metavar="TIME",
        help="Only accept packages at least this old: 3d, 12h. 0 turns it off.",
        show_default=False,
    ),
]
_MAX_SHOWN_CHANGES: Final = 40


def lock(
    context: CommandContext,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]…", help="Names of servers. Default: all.", show_default=False),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Change nothing; fail if the lock is out of date.")] = False,
    osv: Annotated[
        Path | None,
        typer.Option(
            "--osv", metavar="PATH", help="Import malware records: a folder or zip file of OSV.", show_default=False
        ),
    ] = None,
    min_age: MinAge = None,
) -> CommandResult:
    """Lock the packages that npx and uvx entries run: exact versions, hashes, and an installed tree.

    A locked server starts from its tree, which is compared with the lock on each start, without asking the registry.

    Install scripts of packages are not run. The entries of the configuration stay as they are.
    """
    if check and (osv is not None or min_age is not None):
        raise UsageError("--check cannot be used with other options", hint="toolway trust lock --check")
    if osv is not None:
        return run_import_malware(context, osv)
    return run_check(context, names or []) if check else run_lock(context, names or [], min_age)


def run_lock(context: CommandContext, names: list[str], min_age: str | None) -> ExitCode:
    """Lock and install the packages of the named servers, or of all, and print what was done."""
    output, config = context.output, load_locked_config(context)
    locker = open_locker(config, min_age)
    rows: list[Json] = []
    problems: list[tuple[str, ToolwayError]] = []
    for file, servers in lock_files(config, names).items():
        entries = read_entries(file)
        if not names:
            kept = {*servers, *(each.server for each in config.held)}
            entries = {name: entry for name, entry in entries.items() if name in kept}
        for name, server in servers.items():
            try:
                with output.spinner(f"locking {name}"):
                    command = require_command(server)
                    entries[name], done = locker.lock(command, entries.get(name))
                rows.append(_describe(name, command, entries[name], done or "unchanged"))
                write_entries(file, entries)
            except ToolwayError as exc:
                problems.append((name, exc))
                rows.append({"server": name, "state": "failed", "problem": str(exc), "code": exc.code})
        write_entries(file, entries)
    _print_rows(output, rows)
    for name, problem in problems if not output.as_json else ():
        output.print_line(f"{name} is not locked")
        output.print_error(problem)
    return ExitCode.ERROR if problems else ExitCode.OK


def secure_added(context: CommandContext, words: Sequence[str], name: str) -> str:
    """Lock the packages of a server that was just added; return what was done. Raises `ToolwayError`."""
    if not is_runner(words):
        return ""
    config = load_locked_config(context)
    [(file, servers)] = lock_files(config, [name]).items()
    entries, command = read_entries(file), require_command(servers[name])
    with context.output.spinner(f"locking {name}"):
        entries[name], _ = open_locker(config, None).lock(command, entries.get(name))
    write_entries(file, entries)
    return f"locked {command.name} {root_version(command, entries[name])} in {file}"


def run_check(context: CommandContext, names: list[str]) -> ExitCode:
    """Compare the lock with the configuration and with the installed packages, and print what differs.

    Nothing is changed, and no registry is asked.
    """
    output, config = context.output, load_locked_config(context)
    malware = MalwareIndex.open(os.environ)
    rows: list[Json] = []
    for file, servers in lock_files(config, names).items():
        entries = read_entries(file)
        for name, server in servers.items():
            state, problem = _check_server(server, entries.get(name), malware)
            rows.append({"server": name, "state": state, "problem": problem})
        known = {*servers, *(each.server for each in config.held)}
        unused = [] if names else sorted(entries.keys() - known)
        rows += [
            {"server": name, "state": "unused", "problem": f"{file} has it, but the config does not"} for name in unused
        ]
    wrong = [row for row in rows if row["state"] not in ("locked", "not installed")]
    if output.as_json:
        output.print_json({"servers": rows, "ok": not wrong})
    else:
        for row in rows:
            output.print_line(f"{row['server']}: {row['state']}{', ' + row['problem'] if row['problem'] else ''}")
        output.info("update the lock: toolway trust lock" if wrong else f"{len(rows)} packages are locked")
    return ExitCode.LINT if wrong else ExitCode.OK


def _check_server(server: Server, entry: LockedEntry | None, malware: MalwareIndex | None) -> tuple[str, str]:
    try:
        command = require_command(server)
    except ConfigError as exc:
        return "not lockable", exc.detail
    if entry is None:
        return "not locked", ""
    if not matches(entry, command):
        return "changed", f"locked for {' '.join(entry.packages)}, the entry has {' '.join(command.packages)}"
    try:
        for platform in entry.contents if entry.ecosystem == "PyPI" else [""]:
            reject_malware(entry, platform, malware)
    except ConfigError as exc:
        return "malware", f"{exc.message} ({exc.detail})"
    platform_name = tree_platform(entry)
    if platform_name is None:
        return "not installed", "it is not locked for this platform"
    store = TreeStore.open(os.environ)
    if not store.is_installed(entry.trees[platform_name], platform_name):
        return "not installed", ""
    problem = store.check(entry.trees[platform_name], platform_name)
    return ("damaged", problem) if problem else ("locked", "")


def run_import_malware(context: CommandContext, source: Path) -> ExitCode:
    """Import OSV's malware records, replacing earlier ones, and compare them with the locked packages."""
    output, target = context.output, malware_path(os.environ)
    if target is None:
        raise ConfigError("no state folder", detail="HOME is not set", hint="set HOME", code="E-STATE")
    with output.spinner("reading the records"):
        count = write_malware(target, read_osv(source))
    malware = MalwareIndex.open(os.environ)
    found: list[Json] = []
    try:
        files = lock_files(load_locked_config(context), [])
    except ConfigError:
        files = {}  # no configuration yet
    for file, servers in files.items():
        for name, entry in read_entries(file).items():
            try:
                for platform in entry.contents if entry.ecosystem == "PyPI" else [""]:
                    reject_malware(entry, platform, malware)
            except ConfigError as exc:
                found.append({"server": name, "problem": exc.message, "record": exc.detail, "used": name in servers})
    if output.as_json:
        output.print_json({"packages": count, "file": os.fspath(target), "hits": found})
    else:
        output.info(f"{count} malicious packages are known: {target}")
        for each in found:
            output.print_line(f"{each['server']}: {each['problem']}, {each['record']}", "red")
    return ExitCode.LINT if found else ExitCode.OK


# -- shared with `toolway trust update` --------------------------------------------------------------------------------


def load_locked_config(context: CommandContext) -> LoadedConfig:
    """Load the configuration for a lock command, and mask its secrets in the output."""
    return load_masked_config(context.output, context.target_options)


def open_locker(config: LoadedConfig, min_age: str | None) -> Locker:
    """Return a `Locker`, which finds and installs the exact packages of npx and uvx entries.

    It only accepts packages that are at least `min_age` old, such as `7d`. None means the age in the configuration.
    """
    seconds = settings_of(config.gateway).min_age
    if min_age is not None:
        seconds = 0.0 if min_age.strip() == "0" else parse_duration("--min-age", min_age)
    return Locker(dict(os.environ), seconds, MalwareIndex.open(os.environ))


def lock_files(config: LoadedConfig, names: Iterable[str]) -> dict[str, dict[str, Server]]:
    """Return the named servers, or all servers, that run npx or uvx packages, by lock file and name.

    Raises `NotFound` if a named server is unknown, and `ConfigError` if it does not run a package.
    """
    wanted = list(names)
    for name in wanted:
        if name not in config.servers:
            raise NotFound(f"unknown server {name!r}", hint=f"configured: {', '.join(config.servers) or 'none'}"[:300])
        if lock_of(config.servers[name]) is None:
            raise ConfigError(
                f"{name} cannot be locked",
                detail='it does not run an npx or uvx package, or its entry has "lock": false',
                hint="lock servers with npx or uvx: toolway trust lock",
                code="E-LOCK",
            )
    found: dict[str, dict[str, Server]] = {}
    for name, server in config.servers.items():
        locked = lock_of(server)
        if locked is not None and (not wanted or name in wanted):
            found.setdefault(locked.file, {})[name] = server
    return found


def require_command(server: Server) -> PackageCommand:
    """Return the parsed package command (npx or uvx) of a server. Raises `ConfigError` if it cannot be locked."""
    assert server.command is not None
    try:
        command = parse_command([server.command, *map(str, server.args)])
    except NotLockable as exc:
        raise ConfigError(
            "the entry cannot be locked",
            detail=str(exc),
            hint='use a package from a registry, or set "lock": false in the entry',
            code="E-LOCK",
        ) from None
    assert command is not None
    return command


def read_entries(file: str) -> dict[str, LockedEntry]:
    """Return the entries of a lock file, or none if the file does not exist."""
    return read_lock(file) or {}


def write_entries(file: str, entries: Mapping[str, LockedEntry]) -> None:
    """Write a lock file's entries. Without entries, do not create the file."""
    if entries or os.path.exists(file):
        write_lock(file, entries)


def root_version(command: PackageCommand, entry: LockedEntry) -> str:
    """Return the locked version of the package that contains the server's program."""
    if entry.ecosystem == "npm":
        return str(entry.contents.get(f"node_modules/{command.name}", {}).get("version", ""))
    found = [each.get(normalize(command.name), {}).get("version", "") for each in entry.contents.values()]
    return str(found[-1]) if found else ""


def _describe(name: str, command: PackageCommand, entry: LockedEntry, state: str) -> Json:
    platform = tree_platform(entry) or ""
    return {
        "server": name,
        "state": state,
        "package": command.name,
        "version": root_version(command, entry),
        "packages": len(entry.iter_packages(platform)),
        "tree": entry.trees.get(platform, ""),
        "scripts": script_packages(entry),
    }


def _print_rows(output: Output, rows: list[Json]) -> None:
    if output.as_json:
        output.print_json({"servers": rows})
        return
    locked = [row for row in rows if "tree" in row]
    if not rows:
        output.info("no server runs an npx or uvx package")
    if locked:
        columns = ("server", "state", "package", "version", "packages")
        output.print_table(columns, [[str(row[column]) for column in columns] for row in locked])
    for row in locked:
        if row["scripts"]:
            names = ", ".join(row["scripts"][:_MAX_SHOWN_CHANGES])
            output.info(f"{row['server']}: install scripts of these packages did not run: {names}")
