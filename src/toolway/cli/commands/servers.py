"""`toolway ls`, `show`, `restart`, `rm`, `enable`, `disable`, `edit`.

These commands show the states of servers and change their config entries.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import msgspec
import typer

from toolway.cli.cached_lists import load_cached_lists
from toolway.cli.commands.import_ import server_identity
from toolway.cli.exit_codes import ExitCode, UsageError
from toolway.cli.file_changes import (
    apply_own_edit,
    file_for_scope,
    file_for_server,
    mask_secrets,
    own_config_file,
    print_edit,
    read_own_entries,
    with_tilde,
)
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.cli.output import STATE_STYLES, Output, last_stderr_lines, problem_to_json
from toolway.cli.params import AnyServer, DryRun, Scope, ServerName, Wait
from toolway.cli.targets import (
    DOWN_STATES,
    exit_code_for_statuses,
    failure_cause,
    find_target,
    load_masked_config,
    load_server_info,
    require_gateway,
    require_status,
    wait_for_tools,
)
from toolway.config.clients.removed_servers import RemovedServers
from toolway.config.editing.document import ConfigDocument, Edit, read_file_bytes
from toolway.config.loader import normalize_name, parse_config
from toolway.config.masking import mask_entry
from toolway.errors import ConfigError, NotFound
from toolway.middleware.resolve import require_server

if TYPE_CHECKING:
    from toolway.cli.targets import HubApi, Target, TargetOptions
    from toolway.upstream.status import HealthResult, ServerInfo, ServerStatus

_NO_RESULTS: Mapping[str, HealthResult] = {}
MAX_SHOWN_INSTRUCTIONS = 500  # characters of a server's instructions that `show` prints
_WATCH_INTERVAL_S = 0.5  # seconds between two polls with --watch
_LINE_OPTION_EDITORS = ("vi", "vim", "nvim", "nano", "emacs", "micro", "joe")  # editors that accept `+LINE`


def ls(
    context: CommandContext,
    wait: Wait = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Print again after every change.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Check right now whether each server responds.")] = False,
) -> CommandResult:
    if watch and check:
        raise UsageError("--watch and --check cannot be used together")
    return run_ls(context.output, context.target_options, wait, watch, check)


def show(
    context: CommandContext,
    name: AnyServer = None,
    entry: Annotated[
        bool, typer.Option("--entry", help="Show its entry in the config file instead, without secrets.")
    ] = False,
    wait: Wait = None,
) -> CommandResult:
    """Show state, protocol era, process, restarts, last error and last stderr lines of one server or all servers.

    For one server, also its name, version, capabilities, extensions and instructions, as it declares them.

    With --entry, no server is started and no gateway is asked.
    """
    if not entry:
        return run_status(context.output, context.target_options, wait, name)
    if name is None:
        raise UsageError("--entry needs the NAME of a server", hint="list all servers: toolway ls")
    return run_entry(context, name)


def restart(context: CommandContext, name: ServerName) -> CommandResult:
    """Restart the server in any state.

    Calls in flight fail with an error that says whether they ran.
    """
    return run_restart(context.output, context.target_options, name)


def rm(context: CommandContext, name: ServerName, dry_run: DryRun = False) -> CommandResult:
    return run_rm(context, name, dry_run=dry_run)


def enable(context: CommandContext, name: ServerName, dry_run: DryRun = False) -> CommandResult:
    return run_set_enabled(context, name, enabled=True, dry_run=dry_run)


def disable(context: CommandContext, name: ServerName, dry_run: DryRun = False) -> CommandResult:
    """Keep the entry of the server in the config file, but let no program start the server."""
    return run_set_enabled(context, name, enabled=False, dry_run=dry_run)


def edit(context: CommandContext, name: AnyServer = None, scope: Scope = None) -> CommandResult:
    """Use $VISUAL or $EDITOR to edit the config file. A result that cannot be parsed is discarded."""
    return run_edit(context, name, scope=scope)


# -- states of servers -------------------------------------------------------------------------------------------------


async def run_ls(
    output: Output, target_options: TargetOptions, wait: float | None, watch: bool, check: bool = False
) -> ExitCode:
    """Print one line per server. With `watch`, print again after every change until Ctrl-C.

    With `check`, each server that runs is checked now, and one that fails counts as down.
    """
    target = await find_target(output, target_options)
    async with target.open() as servers:
        statuses = await wait_for_tools(servers, output, wait)
        require_status(servers)
        while watch:
            _output_list(output, target, statuses)
            sys.stdout.flush()
            statuses = await _wait_for_change(servers, statuses)
            output.print_line()
        results = await servers.check_health() if check else {}
        now = servers.status()
        statuses = [now.get(each.server, each) for each in statuses]
    _output_list(output, target, statuses, results)
    failed = {name for name, result in results.items() if result.ok is False}
    return exit_code_for_statuses(statuses, target.problems(), failed)


async def _wait_for_change(servers: HubApi, before: Collection[ServerStatus]) -> list[ServerStatus]:
    """Poll until the state, the tools or the number of restarts of a server changes.

    Return the statuses of all servers.
    """
    previous = {s.server: (s.state, s.tools, s.restarts) for s in before}
    while True:
        await asyncio.sleep(_WATCH_INTERVAL_S)
        await servers.list_tools(wait=0)
        now = list(servers.status().values())
        if {s.server: (s.state, s.tools, s.restarts) for s in now} != previous:
            return now


def _output_list(
    output: Output,
    target: Target,
    statuses: Collection[ServerStatus],
    results: Mapping[str, HealthResult] = _NO_RESULTS,
) -> None:
    if output.as_json:
        keys = (
            "server",
            "transport",
            "state",
            "era",
            "protocol",
            "tools",
            "stale",
            "check_error",
            "paused_for",
            "why",
            "hint",
        )
        rows = [
            {key: fields[key] for key in (*keys, *owner_keys(statuses))}
            for fields in map(msgspec.to_builtins, statuses)
        ]
        for row in rows:
            if (result := results.get(row["server"])) is not None:
                row["check"] = {
                    key: value for key, value in msgspec.to_builtins(result).items() if key not in ("server", "state")
                }
        output.print_json({"servers": rows, "problems": [problem_to_json(p) for p in target.problems()]})
    else:
        _print_server_table(output, target, statuses)
        _print_checks(output, results)


def _print_checks(output: Output, results: Mapping[str, HealthResult]) -> None:
    """Print one line per server that was checked, failed ones first."""
    if results:
        output.print_line()
    for result in sorted(results.values(), key=lambda each: (each.ok is not False, each.ok is None)):
        if result.ok is None:
            output.print_line(f"{result.server}: not running, so not checked", "dim")
        elif result.ok:
            output.print_line(f"{result.server}: responded in {result.seconds * 1000:.0f} ms", "green")
        else:
            output.print_wrapped(f"{result.server}: {result.error}", "red")
            if result.hint:
                output.print_wrapped(f"  hint: {result.hint}", "bold", "        ")


def owner_keys(statuses: Collection[ServerStatus]) -> tuple[str, ...]:
    """Return the extra columns for the table of server statuses: ("nodes",) if a server runs in a cluster, else ()."""
    return ("nodes",) if any(status.nodes for status in statuses) else ()


async def run_status(output: Output, target_options: TargetOptions, wait: float | None, name: str | None) -> ExitCode:
    """Print the full status of one server, or of all servers."""
    target = await find_target(output, target_options)
    async with target.open(name) as servers:
        statuses = await wait_for_tools(servers, output, wait, name)
        require_status(servers)
        info = await load_server_info(servers, name) if name is not None else None
    problems = target.problems(name)
    if output.as_json:
        rows = [msgspec.to_builtins(status) for status in statuses]
        for row in rows if name is not None else ():
            row["info"] = msgspec.to_builtins(info)
        output.print_json({"servers": rows, "problems": [problem_to_json(p) for p in problems]})
    else:
        for status in statuses:
            _print_status(output, status, info)
        output.print_problems(problems)
    return exit_code_for_statuses(statuses, problems)


async def run_restart(output: Output, target_options: TargetOptions, name: str) -> ExitCode:
    """Restart a server of the running gateway. Without a gateway no server is running."""
    gateway = await require_gateway(
        output,
        target_options,
        "no gateway is running, so no servers are",
        fix="start one with: toolway serve; every other command starts its own servers",
    )
    try:
        await gateway.request_admin("POST", f"servers/{quote(name, safe='')}/restart")
    except NotFound:
        known = await gateway.request_admin("GET", "servers")
        require_server([server["server"] for server in known["servers"]], name)
        raise
    if output.as_json:
        output.print_json({"restarting": name})
    else:
        output.info(f"restarting {name}; check it with: toolway show {name}")
    return ExitCode.OK


def _print_server_table(output: Output, target: Target, statuses: Collection[ServerStatus]) -> None:
    if owner_keys(statuses):
        cluster_rows = [
            (
                s.server,
                s.state,
                _format_tool_count(s),
                s.era or "–",
                ", ".join(s.nodes) or "–",
                _state_reason(s),
            )
            for s in statuses
        ]
        output.print_table(
            ("server", "state", "tools", "era", "owner", "why"), cluster_rows, right=("tools",), cut=True
        )
    elif statuses:
        rows = [(s.server, s.state, _format_tool_count(s), s.era or "–", _state_reason(s)) for s in statuses]
        output.print_table(("server", "state", "tools", "era", "why"), rows, right=("tools",), cut=True)
    elif not target.problems():
        output.info(f"no servers in {target.name}")
    output.print_problems(target.problems())
    for status in statuses:
        if status.state in DOWN_STATES:
            _print_failure(output, status)


def _format_tool_count(status: ServerStatus) -> str:
    return str(status.tools) if status.tools or status.state == "ready" else "–"


def _state_reason(status: ServerStatus) -> str:
    is_healthy = status.is_up and not status.paused_for and not status.restarts and not status.problems
    if is_healthy and status.transport == "sse":
        return status.why  # the reason says that SSE is deprecated
    notes = ["its tools are from an earlier run"] if status.stale and status.tools and not is_healthy else []
    return "" if is_healthy else "; ".join((failure_cause(status), *notes, *status.problems))


def _print_failure(output: Output, status: ServerStatus) -> None:
    output.info("")
    output.info_wrapped(f"{status.server}: {status.last_error or status.why}", "red")
    for line in last_stderr_lines(status.stderr):
        output.info(f"  | {line}", "dim")
    if status.hint:
        output.info_wrapped(f"  hint: {status.hint}", "bold", "        ")


def _print_status(output: Output, status: ServerStatus, info: ServerInfo | None) -> None:
    output.print_line(f"{status.server}: {status.state}", STATE_STYLES.get(status.state, "yellow"))
    for label, value in (*_status_details(status), *_info_details(info)):
        output.print_wrapped(f"  {label:<14}{value}", indent=" " * 16)


def _info_details(info: ServerInfo | None) -> Iterator[tuple[str, Any]]:
    if info is None:
        return
    name = f"{info.title} ({info.name})" if info.title and info.name else info.title or info.name
    if name:
        yield "name", f"{name} {info.version}".rstrip()
    if info.capabilities:
        yield "capabilities", ", ".join(sorted(key for key in info.capabilities if key != "extensions"))
    if info.extensions:
        yield "extensions", ", ".join(sorted(info.extensions))
    if info.instructions:
        text = " ".join(info.instructions.split())
        cut = "… (--json shows all)" if len(text) > MAX_SHOWN_INSTRUCTIONS else ""
        yield "instructions", f"{text[:MAX_SHOWN_INSTRUCTIONS]}{cut}"


def _status_details(status: ServerStatus) -> Iterator[tuple[str, Any]]:
    yield "why", status.why
    if status.hint:
        yield "hint", status.hint
    yield "transport", status.transport
    if status.era:
        yield "era", f"{status.era} ({status.protocol})" if status.protocol else status.era
    if status.pid is not None:
        yield "pid", status.pid
    if status.nodes:
        yield "owner", ", ".join(status.nodes)
    yield "tools", f"{status.tools} (from an earlier run)" if status.stale and status.tools else status.tools
    yield "in flight", status.in_flight
    yield "restarts", status.restarts
    yield "since", f"{status.since:.1f} s"
    if status.next_retry is not None:
        yield "next retry", f"in {status.next_retry:.1f} s"
    if status.paused_for:
        yield "no calls", f"for {status.paused_for:.0f} s, as the server asked"
    if status.check_error:
        yield "check", f"failed: {status.check_error}"
    if status.last_error:
        yield "last error", status.last_error
    for problem in status.problems:
        yield "problem", problem
    for line in last_stderr_lines(status.stderr):
        yield "stderr", f"| {line}"


# -- entries of config files -------------------------------------------------------------------------------------------


def run_entry(context: CommandContext, name: str) -> ExitCode:
    """Print the entry of a server with secrets masked, and its file and line."""
    output = context.output
    loaded = load_masked_config(output, context.target_options)
    require_server(loaded.servers, name)
    file = file_for_server(context, name)
    written_name, line = _locate_entry(file, name)
    entry = mask_entry(read_own_entries(file)[written_name])
    cached = load_cached_lists({name: loaded.servers[name]})
    tools = [tool.ref.tool for tool in cached.catalog.tools(name)]
    if output.as_json:
        output.print_json({"server": name, "file": str(file), "line": line, "entry": entry, "tools": tools})
        return ExitCode.OK
    output.print_line(f"{name}  {with_tilde(file)}:{line}" if line else f"{name}  {with_tilde(file)}", "bold")
    output.print_line(json.dumps(entry, ensure_ascii=False, indent=2))
    if tools:
        output.info(f"{len(tools)} tools: toolway tools -s {name}", "dim")
    output.info(f"edit it: toolway edit {name} · remove it: toolway rm {name}", "dim")
    return ExitCode.OK


def run_rm(context: CommandContext, name: str, *, dry_run: bool) -> ExitCode:
    """Remove the entry of a server from its config file."""
    file = file_for_server(context, name)
    written_name, _ = _locate_entry(file, name)
    document = ConfigDocument(file)
    path = (*own_config_file(file).root, written_name)
    entry = document.get(path)
    document.remove(path)
    code = _apply_and_report(context, document, f"removed {name} from {with_tilde(file)}", dry_run)
    removed = RemovedServers.open(os.environ)
    if removed is not None and isinstance(entry, dict) and not dry_run:
        removed.add(server_identity(entry))  # a client may still have it: `sync` must not bring it back
    return code


def run_set_enabled(context: CommandContext, name: str, *, enabled: bool, dry_run: bool) -> ExitCode:
    """Enable or disable a server by changing its entry in the config file."""
    file = file_for_server(context, name)
    written_name, _ = _locate_entry(file, name)
    document = ConfigDocument(file)
    path = (*own_config_file(file).root, written_name)
    if not isinstance(document.get(path), dict):
        raise ConfigError(
            f"the entry of {name} is not an object",
            file=str(file),
            hint=f"toolway edit {name}",
            code="E-CONFIG-KEY",
        )
    if "disabled" in document.get(path):
        document.remove((*path, "disabled"))
    if enabled and "enabled" in document.get(path):
        document.remove((*path, "enabled"))
    elif not enabled:
        document.set((*path, "enabled"), False)
    return _apply_and_report(context, document, f"{name} is {'enabled' if enabled else 'disabled'}", dry_run)


def run_edit(context: CommandContext, name: str | None, *, scope: str | None) -> ExitCode:
    """Open the config file in an editor. Save the result only if it can be parsed."""
    output = context.output
    file = file_for_server(context, name) if name else file_for_scope(context, scope)
    line = _locate_entry(file, name)[1] if name else None
    before = read_file_bytes(file)
    after = _open_editor(before or b'{\n  "mcpServers": {}\n}\n', file, line)
    edit = Edit(file, before, after)
    mask_secrets(output, edit)
    problems = parse_config(after.decode(errors="replace"), str(file)).issues  # raises if the result is unusable
    document = apply_own_edit(output, edit, dry_run=False)
    if output.as_json:
        output.print_json(document)
    elif not edit.has_changes:
        output.info("no changes")
    else:
        print_edit(output, edit)
        output.print_problems(problems)
        output.info(f"{with_tilde(file)} is changed; undo it with: toolway config rollback", "green")
    return ExitCode.OK


def _locate_entry(file: Path, name: str) -> tuple[str, int | None]:
    """Return a server's name as the config file spells it, and the line of its entry.

    Raises `ConfigError` if the file has no such entry.
    """
    document = ConfigDocument(file)
    root = own_config_file(file).root
    lines = document.key_lines(root)
    for written_name in document.get(root) or ():
        if name in (written_name, normalize_name(written_name)):
            return written_name, lines.get(written_name)
    raise ConfigError(f"{file} has no entry {name!r}", file=str(file), hint="list all servers: toolway ls")


def _apply_and_report(context: CommandContext, document: ConfigDocument, message: str, dry_run: bool) -> ExitCode:
    output = context.output
    edit = document.to_edit()
    mask_secrets(output, edit)
    result: dict[str, Any] = apply_own_edit(output, edit, dry_run=dry_run)
    if output.as_json:
        output.print_json(result)
    elif not edit.has_changes:
        output.info("nothing to change")
    elif not dry_run:
        output.info(f"{message}; undo it with: toolway config rollback", "green")
    return ExitCode.OK


def _open_editor(data: bytes, file: Path, line: int | None) -> bytes:
    """Let the user edit a copy of a file's content in $VISUAL or $EDITOR; return the result.

    Raises `UsageError` if no editor is set, or if it cannot be started or fails.
    """
    command = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "")
    if not command:
        raise UsageError(
            "no editor is configured", detail="neither VISUAL nor EDITOR is set", hint="EDITOR=nano toolway edit"
        )
    line_option = [f"+{line}"] if line and os.path.basename(command[0]) in _LINE_OPTION_EDITORS else []
    with tempfile.TemporaryDirectory() as folder:  # only its owner can read it
        copy = Path(folder) / file.name
        copy.write_bytes(data)
        try:
            process = subprocess.run([*command, *line_option, str(copy)], check=False)
        except OSError as exc:
            raise UsageError(f"{command[0]} cannot be started", detail=str(exc), hint="set EDITOR") from None
        if process.returncode != 0:
            raise UsageError(f"{command[0]} exited with {process.returncode}", detail="nothing was changed")
        return copy.read_bytes()
